"""Reads, and the rare writes of management: credentials, queues, routes, tasks as they are now.

A live task's state is read by joining its hot row: the lease's state, else WAITING if it has a
ready row, else what it was settled as. One statement reads all three, so the answer is of one
instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from store.commands import Connection


class Credential(msgspec.Struct, frozen=True):
    """A bearer credential as stored: the SHA-256 of its secret and what it may do."""

    key_id: str
    namespace_id: str
    secret_hash: bytes
    scopes: frozenset[str]
    queue_ids: frozenset[str] | None
    """None: every queue of the namespace."""
    left_s: float
    """How much longer it lives: infinity without an end."""
    revoked: bool


class Queue(msgspec.Struct, frozen=True):
    """A queue of a namespace and the gate over it."""

    id: str
    name: str
    gate_id: int
    paused: bool
    control_version: int
    """Of the gate: an operation on it names the version that it saw."""
    reason: str
    """Of the last pause or resume."""


class TaskView(msgspec.Struct, frozen=True):
    """A task as it is now, for the API."""

    id: str
    namespace_id: str
    queue_id: str
    handler: str
    handler_version: str
    payload_version: str
    priority: int
    business_key: str | None
    payload: bytes
    recovery_safety: str
    max_attempts: int
    initial_delay_ms: int
    max_delay_ms: int
    attempt_timeout_ms: int
    available_at: datetime
    start_deadline_at: datetime | None
    deadline_at: datetime
    created_at: datetime
    updated_at: datetime
    state: str
    revision: int
    attempt_count: int
    attempt_id: str | None
    error_code: str | None
    result: bytes | None
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    completed_at: datetime | None
    resolved_at: datetime | None
    resolve_reason: str | None


class AttemptView(msgspec.Struct, frozen=True):
    """One attempt, running or finished, for the API."""

    id: str
    epoch: int
    state: str
    instance_id: str
    granted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lease_until: datetime
    error_code: str | None
    result: bytes | None
    intent: str | None
    """Who wanted it to stop: a `caller`, or the `deadline`."""
    intent_at: datetime | None
    acknowledged_at: datetime | None
    """The worker was heard from after it had been told."""
    forced_at: datetime | None
    """Its lease lapsed before it stopped."""


async def find_credential(connection: Connection, key_id: str) -> Credential | None:
    """Look a credential up by its public key id; judged by the database clock."""
    row = await connection.fetchrow(
        "SELECT key_id, namespace_id, secret_hash, scopes, queue_ids,"
        " coalesce(extract(epoch FROM expires_at - clock_timestamp())::float8, 'infinity'),"
        " revoked_at IS NOT NULL"
        " FROM credential WHERE key_id = $1",
        key_id,
    )
    if row is None:
        return None
    queue_ids = None if row[4] is None else frozenset(row[4])
    return Credential(row[0], row[1], row[2], frozenset(row[3]), queue_ids, *row[5:])


async def valid_credentials(connection: Connection, key_ids: Sequence[str]) -> set[str]:
    """Those of these key ids that are neither revoked nor expired."""
    rows = await connection.fetch(
        "SELECT key_id FROM credential WHERE key_id = ANY ($1) AND revoked_at IS NULL"
        " AND (expires_at IS NULL OR expires_at > clock_timestamp())",
        list(key_ids),
    )
    return {row[0] for row in rows}


async def revoke_credential(connection: Connection, key_id: str) -> tuple[str, datetime] | None:
    """Revoke a credential once and for all; a repeat changes nothing.

    The name of its application and when it was revoked; None when there is no such credential.
    """
    async with connection.transaction():
        found = await connection.fetchrow(
            "SELECT c.namespace_id, n.name, c.revoked_at FROM credential c"
            " JOIN namespace n ON n.id = c.namespace_id WHERE c.key_id = $1 FOR UPDATE OF c",
            key_id,
        )
        if found is None:
            return None
        namespace_id, name, revoked_at = found
        if revoked_at is None:
            revoked_at = await connection.fetchval(
                "UPDATE credential SET revoked_at = clock_timestamp() WHERE key_id = $1"
                " RETURNING revoked_at",
                key_id,
            )
            await connection.execute(
                "INSERT INTO audit (namespace_id, actor, action, resource)"
                " VALUES ($1, 'operator', 'credential.revoke', $2)",
                namespace_id,
                key_id,
            )
    return name, revoked_at


async def create_app(
    connection: Connection,
    namespace_id: str,
    name: str,
    queues: Sequence[tuple[str, str]],
    credential: tuple[str, bytes, Sequence[str]],
    *,
    capacity_max: int | None = None,
) -> str:
    """Make an application (or take the existing one of that name) with queues and a credential.

    `queues` are (id, name) pairs, `credential` is (key id, secret hash, scopes), `capacity_max` the
    quota of each worker instance that uses it (OP-29). Returns the namespace id in force.
    """
    key_id, secret_hash, scopes = credential
    async with connection.transaction():
        await connection.execute(
            "INSERT INTO namespace (id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            namespace_id,
            name,
        )
        namespace_id = await connection.fetchval("SELECT id FROM namespace WHERE name = $1", name)
        for queue_id, queue_name in queues:
            await create_queue(connection, namespace_id, queue_id, queue_name)
        await connection.execute(
            "INSERT INTO credential (key_id, namespace_id, label, secret_hash, scopes,"
            " capacity_max) VALUES ($1, $2, $3, $4, $5, $6)",
            key_id,
            namespace_id,
            name,
            secret_hash,
            list(scopes),
            capacity_max,
        )
        await connection.execute(
            "INSERT INTO audit (namespace_id, actor, action, resource)"
            " VALUES ($1, 'operator', 'credential.create', $2)",
            namespace_id,
            key_id,
        )
    return namespace_id


async def create_queue(
    connection: Connection, namespace_id: str, queue_id: str, name: str
) -> tuple[Queue, bool]:
    """Make a queue, or return the one of that name; and whether it was made."""
    async with connection.transaction():
        found = await find_queue(connection, namespace_id, name)
        if found is not None:
            return found, False
        made = await connection.fetchval(
            "WITH g AS (INSERT INTO gate DEFAULT VALUES RETURNING id)"
            " INSERT INTO queue (id, namespace_id, name, gate_id)"
            " SELECT $1, $2, $3, g.id FROM g ON CONFLICT DO NOTHING RETURNING id",
            queue_id,
            namespace_id,
            name,
        )
        queue = await find_queue(connection, namespace_id, name)
    if queue is None:
        raise LookupError("a queue that was just made cannot be read")
    return queue, made is not None


async def find_queue(connection: Connection, namespace_id: str, id_or_name: str) -> Queue | None:
    """Find a queue of a namespace by id (32 hex digits) or by name."""
    row = await connection.fetchrow(
        "SELECT q.id, q.name, q.gate_id, g.paused, g.control_version, g.reason"
        " FROM queue q JOIN gate g ON g.id = q.gate_id"
        " WHERE q.namespace_id = $1 AND (q.name = $2 OR replace(q.id::text, '-', '') = $2)"
        " ORDER BY q.name = $2 DESC LIMIT 1",
        namespace_id,
        id_or_name,
    )
    return None if row is None else Queue(*row)


async def list_queues(connection: Connection, namespace_id: str) -> list[Queue]:
    """All queues of a namespace, by name."""
    rows = await connection.fetch(
        "SELECT q.id, q.name, q.gate_id, g.paused, g.control_version, g.reason"
        " FROM queue q JOIN gate g ON g.id = q.gate_id"
        " WHERE q.namespace_id = $1 ORDER BY q.name",
        namespace_id,
    )
    return [Queue(*row) for row in rows]


async def intern_routes(
    connection: Connection, queue_id: str, triples: Sequence[tuple[str, str, str]]
) -> list[int]:
    """Route ids of (handler, handler version, payload version) triples, in order; made if new."""
    columns = [[triple[i] for triple in triples] for i in range(3)]
    rows = await connection.fetch(
        "SELECT r.id FROM unnest($2::text[], $3::text[], $4::text[])"
        " WITH ORDINALITY AS t (handler, handler_version, payload_version, ord)"
        " JOIN route r ON r.queue_id = $1 AND r.handler = t.handler"
        " AND r.handler_version = t.handler_version AND r.payload_version = t.payload_version"
        " ORDER BY t.ord",
        queue_id,
        *columns,
    )
    if len(rows) == len(triples):
        return [row[0] for row in rows]
    await connection.execute(
        "INSERT INTO route (queue_id, handler, handler_version, payload_version)"
        " SELECT DISTINCT $1::uuid, t.a, t.b, t.c FROM unnest($2::text[], $3::text[], $4::text[])"
        " AS t (a, b, c) ORDER BY 2, 3, 4 ON CONFLICT DO NOTHING",
        queue_id,
        *columns,
    )
    return await intern_routes(connection, queue_id, triples)


async def get_task(connection: Connection, namespace_id: str, task_id: str) -> TaskView | None:
    """A task of a namespace as it is now; None if absent or another namespace's."""
    row = await connection.fetchrow(
        "SELECT t.id, t.namespace_id, t.queue_id, rt.handler, rt.handler_version,"
        " rt.payload_version, t.priority, t.business_key, t.payload, t.recovery_safety,"
        " t.max_attempts, t.initial_delay_ms, t.max_delay_ms, t.attempt_timeout_ms,"
        " coalesce(r.available_at, t.available_at), t.start_deadline_at, t.deadline_at,"
        " t.created_at, coalesce(l.intent_at, l.started_at, l.granted_at, t.completed_at,"
        " a.finished_at, t.retried_at, t.created_at),"
        " coalesce(l.state, CASE WHEN r.task_id IS NOT NULL THEN 'WAITING' END, t.state),"
        " coalesce(l.revision, r.revision, t.revision),"
        " coalesce(l.attempt_count, r.attempt_count, t.attempt_count),"
        " coalesce(l.attempt_id, t.attempt_id), t.error_code, a.result,"
        " coalesce(t.cancel_requested_at, CASE WHEN l.intent = 'caller' THEN l.intent_at END),"
        " coalesce(t.cancel_reason, l.intent_reason), t.completed_at, t.resolved_at,"
        " t.resolve_reason"
        " FROM task t JOIN route rt ON rt.id = t.route_id"
        " LEFT JOIN ready r ON r.task_id = t.id LEFT JOIN lease l ON l.task_id = t.id"
        " LEFT JOIN attempt a ON a.id = t.attempt_id"
        " WHERE t.id = $2 AND t.namespace_id = $1",
        namespace_id,
        task_id,
    )
    return None if row is None else TaskView(*row)


async def find_queue_of_instance(
    connection: Connection, namespace_id: str, instance_id: str
) -> str | None:
    """The queue that a worker instance of this namespace is bound to; None for no such one."""
    queue_id: str | None = await connection.fetchval(
        "SELECT queue_id FROM worker_instance WHERE id = $2 AND namespace_id = $1",
        namespace_id,
        instance_id,
    )
    return queue_id


async def find_queue_of(connection: Connection, namespace_id: str, task_id: str) -> str | None:
    """The queue of a task of this namespace; None if there is no such task."""
    queue_id: str | None = await connection.fetchval(
        "SELECT queue_id FROM task WHERE id = $2 AND namespace_id = $1", namespace_id, task_id
    )
    return queue_id


async def list_attempts(
    connection: Connection, namespace_id: str, task_id: str, after_epoch: int, limit: int
) -> list[AttemptView]:
    """Attempts of a task in order of their epochs, after a given one (keyset paging)."""
    rows = await connection.fetch(
        "SELECT * FROM ("
        " SELECT id, epoch, state, instance_id, granted_at, started_at, finished_at, lease_until,"
        " error_code, result, intent, intent_at, acknowledged_at,"
        " CASE WHEN intent IS NOT NULL AND state IN ('EXPIRED', 'UNKNOWN')"
        " AND finish_message_id IS NULL THEN finished_at END"
        " FROM attempt WHERE task_id = $2 AND namespace_id = $1"
        " UNION ALL"
        " SELECT attempt_id, epoch, state, instance_id, granted_at, started_at, NULL, lease_until,"
        " NULL, NULL, intent, intent_at, acknowledged_at, NULL"
        " FROM lease WHERE task_id = $2 AND namespace_id = $1) a"
        " WHERE epoch > $3 ORDER BY epoch LIMIT $4",
        namespace_id,
        task_id,
        after_epoch,
        limit,
    )
    return [AttemptView(*row) for row in rows]
