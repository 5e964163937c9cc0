"""What dispatchers and outlets ask of Postgres: candidates, grants, levels, sweeps and beats.

Peek and claim are two calls with the pure `match()` between them: peek only reads, claim proves and
writes and returns only what it won. The rest are the slow twins of the Redis streams.
`now` replaces the database clock and is for tests and simulations alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from orbit_sdk.protocol.times import time_text
from store.commands import Connection

Intent: TypeAlias = Literal["caller", "deadline"]
"""Who wants an attempt stopped: the word of the intent that was saved."""

INLINE_PAYLOAD_BYTES_MAX = 16_384
"""A larger payload does not travel through Redis: the gateway reads the row."""

UNSENT_LEASES = """
SELECT l.attempt_id, l.session_id FROM session s
CROSS JOIN LATERAL (
    SELECT k.attempt_id, k.session_id FROM lease k
    WHERE k.instance_id = s.instance_id AND k.session_id = s.id AND k.state = 'LEASED'
      AND k.lease_until > clock_timestamp()
      AND k.granted_at <= clock_timestamp() - $2::bigint * interval '1 ms'
      AND k.granted_at > clock_timestamp() - $3::bigint * interval '1 ms' OFFSET 0) l
WHERE s.node_id = $1 AND s.closed_at IS NULL
"""

DUE_OF_TASKS = """
SELECT DISTINCT r.queue_id, r.route_id FROM ready r
WHERE r.task_id = ANY ($1) AND r.available_at <= clock_timestamp()
"""

SESSIONS_OF_NODE = "SELECT s.id FROM session s WHERE s.node_id = $1 AND s.closed_at IS NULL"

SUPERSEDED = "SELECT s.id FROM session s WHERE s.id = ANY ($1) AND s.close_reason = 'superseded'"

ACTIVE_QUEUES = "SELECT DISTINCT queue_id FROM session WHERE closed_at IS NULL"


class ReadyTask(msgspec.Struct, frozen=True, gc=False):
    """A due task of a route, as a candidate."""

    task_id: str
    route_id: int
    priority: int
    available_at: datetime


class ClaimPair(msgspec.Struct, frozen=True, gc=False):
    """A proposed grant: this task to that session, under a new attempt id."""

    task_id: str
    session_id: str
    attempt_id: str


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """A claimed task on its way to a session. `task`: the assignedTask JSON; empty if large."""

    session_id: str
    node_id: str
    task_id: str
    attempt_id: str
    epoch: int
    lease_until: str
    server_time: str
    task: bytes


class SessionLevel(msgspec.Struct, frozen=True, gc=False):
    """An open session and how many more attempts it may hold."""

    session_id: str
    node_id: str
    instance_id: str
    queue_id: str
    routes: tuple[int, ...]
    free: int


class Expired(msgspec.Struct, frozen=True, gc=False):
    """A lease that was settled by a sweep; `waiting`: its task can be dispatched again.

    With a session and its node it is not settled: the task's deadline has passed, and the attempt
    has one window to report in (OP-26).
    """

    attempt_id: str
    queue_id: str
    route_id: int
    waiting: bool
    session_id: str | None
    node_id: str | None


class _Retry(msgspec.Struct, frozen=True, gc=False):
    max_attempts: int
    initial_delay_ms: int
    max_delay_ms: int
    attempt_timeout_ms: int


class _AssignedTask(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="state", tag="LEASED"
):
    """The wire shape of R-031; result, completion and intent are left out (OP-33)."""

    id: str
    namespace_id: str
    queue_id: str
    revision: str
    handler: str
    handler_version: str
    payload_version: str
    payload: msgspec.Raw
    available_at: str
    deadline_at: str
    recovery_safety: str
    retry: _Retry
    attempt_count: int
    created_at: str
    updated_at: str
    business_key: str | None = None
    start_deadline_at: str | None = None


_encode = msgspec.json.Encoder().encode


def _assignment(row: Sequence[Any]) -> Assignment:
    (session_id, node_id, task_id, attempt_id, epoch, revision, attempt_count, lease_until,
     server_time, namespace_id, queue_id, handler, handler_version, payload_version, payload,
     available_at, start_deadline_at, deadline_at, business_key, recovery_safety, max_attempts,
     initial_delay_ms, max_delay_ms, attempt_timeout_ms, created_at) = row  # fmt: skip
    now = time_text(server_time)
    task = b""
    if payload is not None:
        task = _encode(_AssignedTask(
            task_id, namespace_id, queue_id, str(revision), handler, handler_version,
            payload_version, msgspec.Raw(payload), time_text(available_at),
            time_text(deadline_at), recovery_safety,
            _Retry(max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms),
            attempt_count, time_text(created_at), now, business_key,
            None if start_deadline_at is None else time_text(start_deadline_at),
        ))  # fmt: skip
    return Assignment(
        session_id, node_id, task_id, attempt_id, epoch, time_text(lease_until), now, task
    )


async def peek_ready(
    connection: Connection, wanted: Sequence[tuple[int, int]], *, now: datetime | None = None
) -> list[ReadyTask]:
    """Read at most `limit` due tasks of each (route, limit), in dispatch order per route."""
    rows = await connection.fetch(
        "SELECT * FROM peek_ready_v1($1,$2,$3)", [w[0] for w in wanted], [w[1] for w in wanted], now
    )
    return [ReadyTask(*row) for row in rows]


async def claim_tasks(
    connection: Connection,
    pairs: Sequence[ClaimPair],
    lease_ms: int,
    *,
    now: datetime | None = None,
) -> list[Assignment]:
    """Grant leases for what can be proven; returns only what was won."""
    rows = await connection.fetch(
        "SELECT * FROM claim_tasks_v1($1,$2,$3,$4,$5,$6)",
        [p.task_id for p in pairs],
        [p.session_id for p in pairs],
        [p.attempt_id for p in pairs],
        lease_ms,
        INLINE_PAYLOAD_BYTES_MAX,
        now,
    )
    return [_assignment(row) for row in rows]


async def load_assignments(
    connection: Connection, attempt_ids: Sequence[str], *, now: datetime | None = None
) -> list[Assignment]:
    """Read unstarted leases in full, large payloads included."""
    rows = await connection.fetch(
        "SELECT * FROM load_assignments_v1($1,$2)", list(attempt_ids), now
    )
    return [_assignment(row) for row in rows]


async def unsent_leases(
    connection: Connection, node_id: str, older_than_ms: int, younger_than_ms: int
) -> list[tuple[str, str]]:
    """(attempt, session) of unstarted leases of a node's sessions, granted between these ages."""
    rows = await connection.fetch(UNSENT_LEASES, node_id, older_than_ms, younger_than_ms)
    return [(row[0], row[1]) for row in rows]


async def due_routes(connection: Connection, queue_ids: Sequence[str]) -> list[tuple[str, int]]:
    """(queue, route) of every route of these queues that has a due task (slow twin of `wake`)."""
    rows = await connection.fetch(
        "SELECT r.queue_id, r.id FROM route r WHERE r.queue_id = ANY ($1::uuid[])"
        " AND EXISTS (SELECT 1 FROM peek_ready_v1(ARRAY[r.id], ARRAY[1]))",
        list(queue_ids),
    )
    return [(row[0], row[1]) for row in rows]


async def due_of_tasks(connection: Connection, task_ids: Sequence[str]) -> list[tuple[str, int]]:
    """(queue, route) of those of these tasks that wait and are due now."""
    rows = await connection.fetch(DUE_OF_TASKS, list(task_ids))
    return [(row[0], row[1]) for row in rows]


async def holders_of_ended(
    connection: Connection, attempt_ids: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Node, session and attempt of those whose session is still open now that they have ended."""
    rows = await connection.fetch("SELECT * FROM ended_holders_v1($1)", list(attempt_ids))
    return [(row[0], row[1], row[2]) for row in rows]


async def open_session_levels(
    connection: Connection, queue_ids: Sequence[str], *, now: datetime | None = None
) -> list[SessionLevel]:
    """Levels of the open sessions of these queues (slow twin of `capacity`)."""
    return await _levels(connection, queue_ids, (), now)


async def load_sessions(
    connection: Connection, session_ids: Sequence[str], *, now: datetime | None = None
) -> list[SessionLevel]:
    """Levels of these sessions, those that are open."""
    return await _levels(connection, (), session_ids, now)


async def _levels(
    connection: Connection,
    queue_ids: Sequence[str],
    session_ids: Sequence[str],
    now: datetime | None,
) -> list[SessionLevel]:
    rows = await connection.fetch(
        "SELECT * FROM session_levels_v1($1,$2,$3)", list(queue_ids), list(session_ids), now
    )
    return [SessionLevel(r[0], r[1], r[2], r[3], tuple(r[4]), r[5]) for r in rows]


async def sessions_of_node(connection: Connection, node_id: str) -> list[str]:
    """The open sessions of a node."""
    rows = await connection.fetch(SESSIONS_OF_NODE, node_id)
    return [row[0] for row in rows]


async def superseded_sessions(connection: Connection, session_ids: Sequence[str]) -> set[str]:
    """Those of these sessions that a newer one of their instance has closed (OP-13)."""
    return {row[0] for row in await connection.fetch(SUPERSEDED, list(session_ids))}


async def active_queues(connection: Connection) -> list[str]:
    """Queues that have an open session, to be shared out among dispatchers."""
    rows = await connection.fetch(ACTIVE_QUEUES)
    return [row[0] for row in rows]


async def expire_leases(
    connection: Connection, limit: int, *, now: datetime | None = None
) -> list[Expired]:
    """Settle up to `limit` leases that ran out, or open their window to report in (INV-6)."""
    rows = await connection.fetch("SELECT * FROM expire_leases_v1($1,$2)", limit, now)
    return [Expired(*row) for row in rows]


async def expire_ready(connection: Connection, limit: int, *, now: datetime | None = None) -> int:
    """Fail up to `limit` tasks that waited past a deadline (OP-26)."""
    return int(await connection.fetchval("SELECT expire_ready_v1($1,$2)", limit, now))


async def beat_node(
    connection: Connection, node_id: str, kind: str, draining: bool, *, now: datetime | None = None
) -> bool:
    """Beat. False when the node was not known (first beat, or given up meanwhile)."""
    return bool(
        await connection.fetchval("SELECT beat_node_v1($1,$2,$3,$4)", node_id, kind, draining, now)
    )


async def reap_nodes(
    connection: Connection, dead_after_ms: int, *, now: datetime | None = None
) -> tuple[list[str], list[tuple[str, int]]]:
    """Give up silent nodes: (their ids, the (queue, route) of tasks that wait again)."""
    rows = await connection.fetch("SELECT * FROM reap_nodes_v1($1,$2)", dead_after_ms, now)
    return (
        [r[0] for r in rows if r[0] is not None],
        [(r[1], r[2]) for r in rows if r[0] is None],
    )


async def leave_node(connection: Connection, node_id: str) -> None:
    """A node that stops in good order takes its own row away."""
    await connection.execute("DELETE FROM node WHERE id = $1", node_id)


async def ensure_partitions(
    connection: Connection, days: int = 3, *, now: datetime | None = None
) -> int:
    """Make the coming days' history partitions; returns how many were made."""
    return int(await connection.fetchval("SELECT ensure_partitions_v1($1,$2)", days, now))


async def prune_receipts(
    connection: Connection, keep_ms: int, limit: int, *, now: datetime | None = None
) -> int:
    """Forget old renew receipts; returns how many."""
    return int(await connection.fetchval("SELECT prune_receipts_v1($1,$2,$3)", keep_ms, limit, now))
