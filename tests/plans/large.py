"""A large database: a long backlog, much history, many leases, made with generate_series.

Live work is of the last two days; history fills the daily partitions before. A tenth of the backlog
is due tomorrow at a high priority; half of it belongs to a route that no session serves.
"""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import asyncpg

from store import dispatch


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows of each kind. The first 200 leases are over."""

    ready: int = 120_000
    settled: int = 60_000
    leases: int = 10_000
    instances: int = 100
    closed: int = 10_000
    """Closed sessions."""
    receipts: int = 30_000
    expired: int = 2_000
    """Of `ready`: waiting past their deadline, not swept yet."""


LARGE = Sizes()
SMALL = Sizes(60, 100, 260, 5, 5, 10, 5)
BIG = ("task", "ready", "lease", "attempt", "receipt", "submission", "session", "event", "evidence")


class Places(NamedTuple):
    """Where work may be asked for."""

    namespace_id: str
    queue_id: str
    gate_id: int
    served: tuple[int, int]
    """Routes with sessions, a quarter of the backlog each."""
    unserved: int


async def quiet(connection: "asyncpg.Connection[Any]") -> None:
    """No autovacuum may improve the statistics behind our back."""
    rows = await connection.fetch(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = 'public'::regnamespace"
    )
    for row in rows:
        await connection.execute(f"ALTER TABLE {row[0]} SET (autovacuum_enabled = off)")


async def make_places(connection: "asyncpg.Connection[Any]", days: int) -> Places:
    """The partitions of `days` days up to tomorrow, a queue with three routes, a node."""
    first = await connection.fetchval(
        "SELECT clock_timestamp() - ($1 - 2) * interval '1 day'", days
    )
    await dispatch.ensure_partitions(connection, days, now=first)
    namespace_id, queue_id, node_id = "a" * 32, "b" * 32, "c" * 32
    await connection.execute("INSERT INTO namespace (id, name) VALUES ($1, 'large')", namespace_id)
    gate_id = await connection.fetchval("INSERT INTO gate DEFAULT VALUES RETURNING id")
    await connection.execute(
        "INSERT INTO queue (id, namespace_id, name, gate_id) VALUES ($1, $2, 'q', $3)",
        queue_id,
        namespace_id,
        gate_id,
    )
    routes = await connection.fetch(
        "INSERT INTO route (queue_id, handler, handler_version, payload_version)"
        " SELECT $1, 'h' || n, '1', '1' FROM generate_series(1, 3) n RETURNING id",
        queue_id,
    )
    await dispatch.beat_node(connection, node_id, "gateway", False)
    first_route, second_route, unserved = (row[0] for row in routes)
    return Places(namespace_id, queue_id, gate_id, (first_route, second_route), unserved)


# A UUIDv7 of an instant, the same for the same seed.
_FUNCTIONS = """
CREATE OR REPLACE FUNCTION pg_temp.id_of(at timestamptz, seed text) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(seed), 1, 3) || '8' || substr(md5(seed), 4, 15))::uuid $$;
CREATE OR REPLACE FUNCTION pg_temp.plain(seed text) RETURNS uuid LANGUAGE sql AS $$
    SELECT md5(seed)::uuid $$;
"""

_TASKS = """
CREATE TEMP TABLE made AS
SELECT n, kind, pg_temp.id_of(at, kind || n) AS id, at,
       CASE n % 4 WHEN 0 THEN {first} WHEN 1 THEN {second} ELSE {unserved} END AS route_id,
       (n % 7 - 3)::smallint AS priority
FROM (SELECT n, 'ready' AS kind, clock_timestamp() - (n % 100000) * interval '1 second' AS at
      FROM generate_series(1, {ready}) n
      UNION ALL SELECT n, 'lease', clock_timestamp() - (n % 3600) * interval '1 second'
      FROM generate_series(1, {leases}) n
      UNION ALL SELECT n, 'settled',
             clock_timestamp() - (n % ({days} - 1)) * interval '1 day' - n * interval '1 ms'
      FROM generate_series(1, {settled}) n) k;
INSERT INTO task (id, namespace_id, queue_id, route_id, priority, payload, recovery_safety,
    max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, available_at, deadline_at,
    created_at, state, revision, attempt_count, attempt_id, completed_at)
SELECT id, '{namespace}', '{queue}', route_id, priority, '{{"n": 1}}', 'IDEMPOTENT', 3, 1000,
       60000, 3600000, at, at + interval '2 days', at,
       CASE kind WHEN 'settled' THEN (ARRAY['FAILED', 'NEEDS_REVIEW', 'SUCCEEDED'])[1 + n % 3] END,
       CASE kind WHEN 'settled' THEN 4 ELSE 1 END,
       CASE kind WHEN 'settled' THEN 1 ELSE 0 END,
       CASE kind WHEN 'settled' THEN pg_temp.id_of(at, 'attempt' || n) END,
       CASE kind WHEN 'settled' THEN at END
FROM made;
INSERT INTO submission (namespace_id, operation, key, hash, resource_id, created_at)
SELECT '{namespace}', 'task.submit', kind || n, sha256(convert_to(kind || n, 'UTF8')), id, at
FROM made;
INSERT INTO ready (task_id, namespace_id, queue_id, route_id, gate_id, priority, available_at,
    expires_at, start_deadline_at, deadline_at, epoch, attempt_count, lapses, revision,
    recovery_safety, max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms)
SELECT id, '{namespace}', '{queue}', route_id, {gate},
       CASE WHEN n % 40 < 4 THEN 100 ELSE priority END,
       CASE WHEN n % 40 < 4 THEN clock_timestamp() + interval '1 day' ELSE at END,
       CASE WHEN n <= {expired} THEN clock_timestamp() - interval '1 minute'
            ELSE clock_timestamp() + interval '2 days' END,
       NULL, clock_timestamp() + interval '2 days', 0, 0, 0, 1, 'IDEMPOTENT', 3, 1000, 60000,
       3600000
FROM made WHERE kind = 'ready';
"""

_ATTEMPTS = """
INSERT INTO worker_instance (id, namespace_id, secret_hash, queue_id, routes, draining,
    session_epoch, session_id, created_at)
SELECT pg_temp.plain('instance' || n), '{namespace}', decode(repeat('00', 32), 'hex'), '{queue}',
       ARRAY[{first}, {second}], false, 1, pg_temp.plain('session' || n), clock_timestamp()
FROM generate_series(1, {instances}) n;
INSERT INTO session (id, instance_id, namespace_id, node_id, queue_id, credential_key_id, epoch,
    declared, capacity, sequence, drain, opened_at, expires_at, closed_at, close_reason)
SELECT pg_temp.plain('session' || n), pg_temp.plain('instance' || n), '{namespace}', '{node}',
       '{queue}', '0', 1, 256, 256, 0, false, clock_timestamp(),
       clock_timestamp() + interval '1 day', NULL, NULL
FROM generate_series(1, {instances}) n;
INSERT INTO session (id, instance_id, namespace_id, node_id, queue_id, credential_key_id, epoch,
    declared, capacity, sequence, drain, opened_at, expires_at, closed_at, close_reason)
SELECT pg_temp.plain('closed' || n), pg_temp.plain('instance' || n % {instances}), '{namespace}',
       '{node}', '{queue}', '0', 1, 256, 256, 0, false, clock_timestamp(),
       clock_timestamp() + interval '1 day', clock_timestamp(), 'gone'
FROM generate_series(1, {closed}) n;
INSERT INTO lease (attempt_id, task_id, namespace_id, queue_id, route_id, gate_id, priority,
    session_id, instance_id, state, epoch, attempt_count, lapses, revision, lease_ms, granted_at,
    lease_until, started_at, attempt_deadline_at, start_deadline_at, deadline_at, recovery_safety,
    max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms, intent, intent_at,
    start_message_id, start_revision, start_lease_until)
SELECT pg_temp.id_of(at, 'attempt' || 'lease' || n), id, '{namespace}', '{queue}',
       CASE WHEN n % 2 = 0 THEN {first} ELSE {second} END, {gate}, 0,
       pg_temp.plain('session' || 1 + n % {instances}),
       pg_temp.plain('instance' || 1 + n % {instances}),
       CASE WHEN n % 5 = 0 THEN 'LEASED' ELSE 'RUNNING' END, 1, 1, 0, 2, 30000, at,
       clock_timestamp() + CASE WHEN n <= 200 THEN interval '-1 s' ELSE interval '1 hour' END,
       CASE WHEN n % 5 <> 0 THEN at END,
       CASE WHEN n % 5 <> 0 THEN clock_timestamp() + interval '1 hour' END, NULL,
       clock_timestamp() + interval '2 days', 'IDEMPOTENT', 3, 1000, 60000, 3600000, NULL, NULL,
       CASE WHEN n % 5 <> 0 THEN pg_temp.plain('start' || n) END, 3, at
FROM made WHERE kind = 'lease';
INSERT INTO attempt (id, task_id, namespace_id, instance_id, session_id, epoch, state, granted_at,
    started_at, finished_at, lease_until, intent, intent_at, error_code, result,
    start_message_id, start_revision, start_lease_until, finish_message_id, finish_hash,
    task_state, task_revision)
SELECT pg_temp.id_of(at, 'attempt' || n), id, '{namespace}', pg_temp.plain('instance1'),
       pg_temp.plain('session1'), 1, 'SUCCEEDED', at, at, at, at, NULL, NULL, NULL, '1',
       pg_temp.plain('start' || n), 3, at, pg_temp.plain('finish' || n),
       sha256(convert_to(n::text, 'UTF8')), 'SUCCEEDED', 4
FROM made WHERE kind = 'settled';
INSERT INTO receipt (attempt_id, operation, message_id, hash, task_state, attempt_state,
    task_revision, lease_until, disposition, created_at)
SELECT a.id, 'renew', pg_temp.plain('renew' || a.id || k), NULL, 'RUNNING', 'RUNNING', 3,
       granted_at, 'APPLIED', granted_at
FROM (SELECT id, granted_at FROM attempt LIMIT {receipts} / 2) a, generate_series(1, 2) k;
INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, occurred_at)
SELECT '{namespace}', 'task', id, 4, 'task.succeeded', at FROM made WHERE kind = 'settled';
INSERT INTO evidence (attempt_id, task_id, operation, message_id, received_at)
SELECT a.id, a.task_id, 'finish', a.id, granted_at FROM attempt a LIMIT 20000;
"""


async def fill(
    connection: "asyncpg.Connection[Any]", places: Places, days: int, sizes: Sizes
) -> None:
    """Fill the tables, which must be empty."""
    values = {
        "namespace": places.namespace_id,
        "queue": places.queue_id,
        "gate": places.gate_id,
        "node": "c" * 32,
        "first": places.served[0],
        "second": places.served[1],
        "unserved": places.unserved,
        "days": days,
        **asdict(sizes),
    }
    await connection.execute(_FUNCTIONS)
    await connection.execute((_TASKS + _ATTEMPTS).format(**values), timeout=100)
    await connection.execute("DROP TABLE made")


async def empty(connection: "asyncpg.Connection[Any]") -> None:
    """Take every row of the big tables away and leave their statistics as they are."""
    for table in (*BIG, "worker_instance"):
        await connection.execute(f"DELETE FROM {table}")
