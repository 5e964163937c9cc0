"""The writes that workers and clients cause: one SQL function each, one row a command out.

Every coroutine takes a connection and a batch and answers in the order of the batch. A refusal is
a row, never an exception; an exception means that the whole batch did not commit, or that nobody
knows (a lost connection): then the same batch may be sent again, receipts make that harmless.
`now` replaces the database clock and is for tests and simulations alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg
import msgspec
from msgspec.structs import astuple

Connection: TypeAlias = "asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]"

NO_SESSION = "0" * 32
"""The session of a command that an instance sends for itself."""

HELD_ATTEMPTS = """
SELECT s.id, l.attempt_id FROM session s
CROSS JOIN LATERAL (
    SELECT k.attempt_id FROM lease k
    WHERE k.instance_id = s.instance_id AND k.session_id <> s.id AND k.state = 'RUNNING' OFFSET 0) l
WHERE s.id = ANY ($1)
"""


class SubmitTask(msgspec.Struct, frozen=True, gc=False):
    """One accepted submission, checked and hashed, with its queue and route looked up."""

    namespace_id: str
    key: str
    hash: bytes
    task_id: str
    queue_id: str
    route_id: int
    gate_id: int
    payload: bytes
    priority: int
    business_key: str | None
    available_at: datetime | None
    start_deadline_at: datetime | None
    deadline_at: datetime | None
    recovery_safety: str
    max_attempts: int
    initial_delay_ms: int
    max_delay_ms: int
    attempt_timeout_ms: int


class SubmitOutcome(msgspec.Struct, frozen=True, gc=False):
    """`created`, `repeat`, `idempotency_conflict` or `deadline_order`, and the task it names."""

    code: str
    task_id: str | None
    state: str
    revision: int


class InstanceProof(msgspec.Struct, frozen=True, gc=False):
    """An instance that speaks for itself, without a session; `secret_hash` is SHA-256."""

    instance_id: str
    secret_hash: bytes


class AttemptCommand(msgspec.Struct, frozen=True, gc=False):
    """A start, renew or resume whose lease secret was proven by the caller.

    It comes from a session, or (a renew alone) by HTTP from `instance`, then with NO_SESSION.
    """

    namespace_id: str
    session_id: str
    gate_id: int
    task_id: str
    attempt_id: str
    epoch: int
    message_id: str
    instance: InstanceProof | None = None


class FinishCommand(msgspec.Struct, frozen=True, gc=False):
    """A finish whose lease secret was proven by the caller; `hash` is its semantic hash.

    It comes from a session, or by HTTP from `instance`, then with NO_SESSION.
    """

    namespace_id: str
    session_id: str
    task_id: str
    attempt_id: str
    epoch: int
    message_id: str
    hash: bytes
    outcome: str
    error_code: str | None
    result: bytes
    instance: InstanceProof | None = None


class CommandOutcome(msgspec.Struct, frozen=True, gc=False):
    """`ok` with receipt and lease, an error code, `again` or `locked`.

    `again`: a second command of one attempt in one batch, to be sent in the next one. `locked`:
    another transaction holds the lease, to be sent in a while; a batch of one waits for it. After a
    resume only the lease fields are set. `settled`: the attempt is over and holds no slot.
    """

    code: str
    task_state: str | None
    attempt_state: str | None
    task_revision: int | None
    receipt_lease_until: datetime | None
    disposition: str | None
    deduplicated: bool
    active: bool
    lease_state: str | None
    lease_until: datetime | None
    server_time: datetime
    settled: bool


class OpenSession(msgspec.Struct, frozen=True, gc=False):
    """An authenticated hello. `routes` are sorted route ids; `secret_hash` is SHA-256."""

    session_id: str
    namespace_id: str
    instance_id: str
    secret_hash: bytes
    queue_id: str
    routes: tuple[int, ...]
    capacity: int
    node_id: str
    session_max_ms: int
    credential_key_id: str


class SessionOutcome(msgspec.Struct, frozen=True, gc=False):
    """`ok` with the session's epoch and end, or `instance_conflict`.

    A hello sent again after an unknown commit gets its own session, or `session_superseded`.
    """

    code: str
    epoch: int | None
    draining: bool | None
    expires_at: datetime | None
    server_time: datetime
    capacity: int | None
    """What counts: as declared, and no more than the credential's quota (OP-29)."""
    superseded_session_id: str | None
    superseded_node_id: str | None
    held: tuple[str, ...] = ()
    """Attempts that the instance runs since an earlier session, each of which takes a slot."""


class SetCapacity(msgspec.Struct, frozen=True, gc=False):
    """A capacity frame: a level, never a change. `sequence` is a uint64."""

    session_id: str
    sequence: int
    capacity: int
    drain: bool


class CapacityOutcome(msgspec.Struct, frozen=True, gc=False):
    """`ok` with the level in force, `stale_sequence`, or why the session is over."""

    code: str
    draining: bool | None
    epoch: int | None
    expires_at: datetime | None
    server_time: datetime
    capacity: int | None


class CloseSession(msgspec.Struct, frozen=True, gc=False):
    """A session whose socket is gone, and why."""

    session_id: str
    reason: str


class ReturnLease(msgspec.Struct, frozen=True, gc=False):
    """An assignment that was never written to the socket of its session, and never will be."""

    attempt_id: str
    session_id: str


async def submit_tasks(
    connection: Connection, items: Sequence[SubmitTask], *, now: datetime | None = None
) -> list[SubmitOutcome]:
    """Accept tasks durably, each once per key (R-090..R-094)."""
    rows = await connection.fetch(
        "SELECT * FROM submit_tasks_v1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,"
        "$17,$18,$19)",
        *_columns(items),
        now,
    )
    return [SubmitOutcome(*row) for row in rows]


async def start_attempts(
    connection: Connection, items: Sequence[AttemptCommand], *, now: datetime | None = None
) -> list[CommandOutcome]:
    """Authorise starts (R-131). Repeats get the original receipt."""
    *columns, _ = _columns(items)
    rows = await connection.fetch(
        "SELECT * FROM start_attempts_v1($1,$2,$3,$4,$5,$6,$7,$8)", *columns, now
    )
    return [CommandOutcome(*row) for row in rows]


async def renew_leases(
    connection: Connection, items: Sequence[AttemptCommand], *, now: datetime | None = None
) -> list[CommandOutcome]:
    """Extend valid leases (R-125); under an intent the answer is inactive and nothing extends."""
    namespaces, sessions, _, tasks, attempts, epochs, messages, _ = _columns(items)
    rows = await connection.fetch(
        "SELECT * FROM renew_leases_v1($1,$2,$3,$4,$5,$6,$7,$8,$9)",
        namespaces,
        sessions,
        tasks,
        attempts,
        epochs,
        messages,
        now,
        *_proofs(items),
    )
    return [CommandOutcome(*row) for row in rows]


async def resume_attempts(
    connection: Connection, items: Sequence[AttemptCommand], *, now: datetime | None = None
) -> list[CommandOutcome]:
    """Move held attempts to the new session (OP-14): never extends, never revives."""
    namespaces, sessions, _, tasks, attempts, epochs, _, _ = _columns(items)
    rows = await connection.fetch(
        "SELECT * FROM resume_attempts_v1($1,$2,$3,$4,$5,$6)",
        namespaces,
        sessions,
        tasks,
        attempts,
        epochs,
        now,
    )
    return [CommandOutcome(*row) for row in rows]


async def finish_attempts(
    connection: Connection, items: Sequence[FinishCommand], *, now: datetime | None = None
) -> list[CommandOutcome]:
    """Settle attempts as reported (R-140); late and conflicting reports become evidence."""
    *columns, _ = _columns(items)
    rows = await connection.fetch(
        "SELECT * FROM finish_attempts_v1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)",
        *columns,
        now,
        *_proofs(items),
    )
    return [CommandOutcome(*row) for row in rows]


def _proofs(
    items: Sequence[AttemptCommand] | Sequence[FinishCommand],
) -> tuple[list[str | None] | None, list[bytes | None] | None]:
    """The columns of instances without a session; none where every command has one."""
    proofs = [item.instance for item in items]
    if not any(proofs):
        return None, None
    return (
        [None if proof is None else proof.instance_id for proof in proofs],
        [None if proof is None else proof.secret_hash for proof in proofs],
    )


async def open_sessions(
    connection: Connection, items: Sequence[OpenSession], *, now: datetime | None = None
) -> list[SessionOutcome]:
    """Accept hellos; the newest of an instance wins (OP-13)."""
    rows = await connection.fetch(
        "SELECT * FROM open_sessions_v1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)",
        [i.session_id for i in items],
        [i.namespace_id for i in items],
        [i.instance_id for i in items],
        [i.secret_hash for i in items],
        [i.queue_id for i in items],
        [",".join(map(str, i.routes)) for i in items],
        [i.capacity for i in items],
        [i.node_id for i in items],
        [i.session_max_ms for i in items],
        [i.credential_key_id for i in items],
        now,
    )
    returned = [i.session_id for i, row in zip(items, rows, strict=True) if (row[1] or 0) > 1]
    held: dict[str, list[str]] = {}
    if returned:
        for row in await connection.fetch(HELD_ATTEMPTS, returned):
            held.setdefault(row[0], []).append(row[1])
    return [
        SessionOutcome(*(*row, tuple(held.get(item.session_id, ()))))
        for item, row in zip(items, rows, strict=True)
    ]


async def set_capacity(
    connection: Connection, items: Sequence[SetCapacity], *, now: datetime | None = None
) -> list[CapacityOutcome]:
    """Overwrite declared capacities by sequence (OP-29); drain is one-way (R-024)."""
    rows = await connection.fetch(
        "SELECT * FROM set_capacity_v1($1,$2,$3,$4,$5)",
        [i.session_id for i in items],
        [str(i.sequence) for i in items],
        [i.capacity for i in items],
        [i.drain for i in items],
        now,
    )
    return [CapacityOutcome(*row) for row in rows]


async def close_sessions(
    connection: Connection, items: Sequence[CloseSession], *, now: datetime | None = None
) -> list[tuple[str, int]]:
    """Close sessions and give their unstarted leases back: (queue, route) of each, to wake."""
    rows = await connection.fetch(
        "SELECT * FROM close_sessions_v1($1,$2,$3)", *_columns(items), now
    )
    return [(row[0], row[1]) for row in rows]


async def return_leases(
    connection: Connection, items: Sequence[ReturnLease], *, now: datetime | None = None
) -> list[tuple[str, int]]:
    """Give unstarted leases back: (queue, route) of each task that waits again, to wake."""
    rows = await connection.fetch("SELECT * FROM return_leases_v1($1,$2,$3)", *_columns(items), now)
    return [(row[0], row[1]) for row in rows]


def _columns(items: Sequence[msgspec.Struct]) -> list[list[Any]]:
    """The fields of a batch as the store takes them: one list a field, in the struct's order."""
    return [list(column) for column in zip(*map(astuple, items), strict=True)]
