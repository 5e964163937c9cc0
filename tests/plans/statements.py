"""The hot statements with arguments that fit the large database, a batch of BATCH each."""

from dataclasses import dataclass
from typing import Any

import asyncpg

from store.commands import HELD_ATTEMPTS
from store.dispatch import (
    ACTIVE_QUEUES,
    DUE_OF_TASKS,
    SESSIONS_OF_NODE,
    SUPERSEDED,
    UNSENT_LEASES,
)
from tests.plans.large import LARGE, Places

BATCH = 100
SESSIONS = 10
Row = list[Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A statement, its arguments, and how many rows of the big tables it may read."""

    name: str
    statement: str
    arguments: tuple[Any, ...]
    rows_max: int = 10 * BATCH


async def hot_calls(connection: "asyncpg.Connection[Any]", places: Places) -> list[Call]:
    """Arguments are read by plain statements, so that they do not depend on what is tested."""
    return [
        *await _submissions(connection, places),
        *await _commands(connection, places),
        *await _operations(connection),
        *await _sweeps(connection, places),
        *await _sessions(connection, places),
    ]


async def _columns(connection: "asyncpg.Connection[Any]", statement: str, *args: Any) -> list[Row]:
    rows = await connection.fetch(statement, *args)
    return [list(column) for column in zip(*rows, strict=True)]


def _fresh_ids(count: int) -> list[str]:
    return [f"{n:032x}" for n in range(1, count + 1)]


async def _submissions(connection: "asyncpg.Connection[Any]", places: Places) -> list[Call]:
    keys, hashes = await _columns(
        connection, f"SELECT key, hash FROM submission WHERE key LIKE 'settled%' LIMIT {BATCH}"
    )

    def submit(name: str, keys: Row, hashes: Row) -> Call:
        alike = (
            places.queue_id, places.served[0], places.gate_id, b"1", 0, None, None, None, None,
            "IDEMPOTENT", 3, 1, 1, 1000,
        )  # fmt: skip
        arguments = (
            [places.namespace_id] * len(keys),
            keys,
            hashes,
            _fresh_ids(len(keys)),
            *([value] * len(keys) for value in alike),
        )
        marks = ",".join(f"${n}" for n in range(1, 19))
        return Call(name, f"SELECT * FROM submit_tasks_v1({marks})", arguments)

    new_keys = [f"new{n}" for n in range(len(keys))]
    half = len(keys) // 2
    return [
        submit("submit new ones", new_keys, hashes),
        submit("submit with repeats", new_keys[:half] + keys[half:], hashes),
    ]


async def _commands(connection: "asyncpg.Connection[Any]", places: Places) -> list[Call]:
    ready, sessions = await _columns(
        connection,
        "SELECT r.task_id, s.id FROM (SELECT task_id, row_number() OVER () AS n FROM ready"
        " WHERE route_id = $1 AND available_at <= clock_timestamp()"
        f" AND expires_at > clock_timestamp() LIMIT {BATCH}) r JOIN (SELECT id, row_number() OVER"
        " () AS n FROM session WHERE closed_at IS NULL) s USING (n)",
        places.served[0],
    )
    held = (
        "SELECT namespace_id, session_id, task_id, attempt_id, epoch, gate_id FROM lease"
        f" WHERE state = $1 AND lease_until > clock_timestamp() LIMIT {BATCH}"
    )
    leased = await _columns(connection, held, "LEASED")
    running = await _columns(connection, held, "RUNNING")
    over = await _columns(
        connection,
        "SELECT a.namespace_id, a.session_id, a.task_id, a.id, a.epoch, $1::bigint"
        f" FROM attempt a LIMIT {BATCH}",
        places.gate_id,
    )

    def start(name: str, refs: list[Row]) -> Call:
        *ref, gates = refs
        arguments = (ref[0], ref[1], gates, *ref[2:], _fresh_ids(len(gates)))
        return Call(name, "SELECT * FROM start_attempts_v1($1,$2,$3,$4,$5,$6,$7)", arguments)

    def renew(name: str, refs: list[Row]) -> Call:
        marks = "$1,$2,$3,$4,$5,$6"
        return Call(
            name, f"SELECT * FROM renew_leases_v1({marks})", (*refs[:5], _fresh_ids(len(refs[0])))
        )

    def finish(name: str, refs: list[Row], outcome: str) -> Call:
        size = len(refs[0])
        report = ([value] * size for value in (b"h" * 32, outcome, "x", b"1"))
        marks = ",".join(f"${n}" for n in range(1, 11))
        return Call(
            name,
            f"SELECT * FROM finish_attempts_v1({marks})",
            (*refs[:5], _fresh_ids(size), *report),
        )

    resume = "SELECT * FROM resume_attempts_v1($1,$2,$3,$4,$5)"
    return [
        Call(
            "claim",
            "SELECT * FROM claim_tasks_v1($1,$2,$3,30000,16384)",
            (ready, sessions, _fresh_ids(len(ready))),
            6 * BATCH + BATCH * LARGE.leases // LARGE.instances,
        ),
        start("start", leased),
        start("start late", over),
        renew("renew", running),
        renew("renew late", over),
        await _renew_by_instance(connection, "renew by instance", running),
        await _renew_by_instance(connection, "renew by instance late", over),
        finish("finish", running, "SUCCEEDED"),
        finish("finish with a retry", running, "FAILED"),
        finish("finish late", over, "SUCCEEDED"),
        Call("resume", resume, tuple(running[:5])),
        Call("resume late", resume, tuple(over[:5])),
        Call("give back", "SELECT * FROM return_leases_v1($1,$2)", (leased[3], leased[1])),
        Call("due of tasks", DUE_OF_TASKS, (ready,)),
        Call("load assignments", "SELECT * FROM load_assignments_v1($1)", (leased[3],)),
    ]


async def _renew_by_instance(
    connection: "asyncpg.Connection[Any]", name: str, refs: list[Row]
) -> Call:
    size = len(refs[0])
    proofs = await _columns(
        connection,
        "SELECT w.id, w.secret_hash FROM unnest($1::uuid[]) WITH ORDINALITY AS c (id, ord)"
        " LEFT JOIN lease l ON l.attempt_id = c.id LEFT JOIN attempt a ON a.id = c.id"
        " LEFT JOIN worker_instance w ON w.id = coalesce(l.instance_id, a.instance_id)"
        " ORDER BY c.ord",
        refs[3],
    )
    return Call(
        name,
        "SELECT * FROM renew_leases_v1($1,$2,$3,$4,$5,$6,NULL,$7,$8)",
        (refs[0], [None] * size, *refs[2:5], _fresh_ids(size), *proofs),
    )


async def _operations(connection: "asyncpg.Connection[Any]") -> list[Call]:
    live = "SELECT namespace_id, task_id FROM {} LIMIT {}"
    settled = f"SELECT namespace_id, id FROM task WHERE state = $1 LIMIT {BATCH}"

    def words(refs: list[Row], *values: Any) -> list[Row]:
        return [[value] * len(refs[0]) for value in values]

    def cancel(name: str, refs: list[Row]) -> Call:
        arguments = (*refs, *words(refs, "key", bytes(32), None, "why", "who"))
        marks = "$1,$2,$3,$4,$5,$6,$7"
        return Call(name, f"SELECT * FROM cancel_tasks_v1({marks})", arguments, 25 * BATCH)

    failed = await _columns(connection, settled, "FAILED")
    unclear = await _columns(connection, settled, "NEEDS_REVIEW")
    deadline = await connection.fetchval("SELECT clock_timestamp() + interval '1 day'")
    retry = words(failed, "key", bytes(32), 4, deadline, "why", "who")
    resolve = words(unclear, "key", bytes(32), 4, "SUCCEEDED", "why", "who", b"1")
    return [
        cancel("cancel waiting", await _columns(connection, live.format("ready", BATCH))),
        cancel("cancel held", await _columns(connection, live.format("lease", BATCH))),
        cancel("cancel settled", failed),
        Call(
            "retry",
            "SELECT * FROM retry_tasks_v1($1,$2,$3,$4,$5,$6,$7,$8)",
            (*failed, *retry),
        ),
        Call(
            "resolve",
            "SELECT * FROM resolve_tasks_v1($1,$2,$3,$4,$5,$6,$7,$8,$9)",
            (*unclear, *resolve),
        ),
    ]


async def _sweeps(connection: "asyncpg.Connection[Any]", places: Places) -> list[Call]:
    both = [list(places.served), [BATCH // 2] * 2]
    return [
        Call("peek", "SELECT * FROM peek_ready_v1($1,$2)", tuple(both)),
        Call("expire ready", f"SELECT expire_ready_v1({BATCH})", ()),
        Call("prune receipts", f"SELECT prune_receipts_v1(0, {BATCH})", ()),
    ]


async def _sessions(connection: "asyncpg.Connection[Any]", places: Places) -> list[Call]:
    columns = await _columns(
        connection,
        "SELECT id, namespace_id, instance_id, queue_id, capacity, node_id FROM session"
        f" WHERE closed_at IS NULL LIMIT {SESSIONS}",
    )
    sessions, namespaces, instances, queues, capacities, nodes = columns
    size = len(sessions)
    routes = ",".join(map(str, places.served))
    hellos = (
        _fresh_ids(size),
        namespaces,
        instances,
        [bytes(32)] * size,
        queues,
        [routes] * size,
        capacities,
        nodes,
        [1000] * size,
        ["0"] * size,
    )
    marks = ",".join(f"${n}" for n in range(1, 11))
    levels = "SELECT * FROM session_levels_v1($1,$2)"
    reasons = ["gone"] * size
    held = size * LARGE.leases // LARGE.instances
    (ended,) = await _columns(connection, f"SELECT id FROM attempt LIMIT {BATCH}")
    return [
        Call(
            "set capacity",
            "SELECT * FROM set_capacity_v1($1,$2,$3,$4)",
            (sessions, *([value] * size for value in ("1", 5, False))),
        ),
        Call("hello again", f"SELECT * FROM open_sessions_v1({marks})", hellos, 5 * held),
        Call("close", "SELECT * FROM close_sessions_v1($1,$2)", (sessions, reasons), 3 * held),
        Call("levels of a queue", levels, (queues[:1], []), 2 * LARGE.leases),
        Call("levels of sessions", levels, ([], sessions), 2 * held),
        Call("held attempts", HELD_ATTEMPTS, (sessions,), 2 * held),
        Call("unsent leases", UNSENT_LEASES, (nodes[0], 1000, 30_000), 2 * LARGE.leases),
        Call("holders of ended attempts", "SELECT * FROM ended_holders_v1($1)", (ended,)),
        Call("sessions of a node", SESSIONS_OF_NODE, (nodes[0],), 2 * LARGE.instances),
        Call("superseded sessions", SUPERSEDED, (sessions,)),
        Call("active queues", ACTIVE_QUEUES, (), 2 * LARGE.instances),
        Call("reap nodes", "SELECT * FROM reap_nodes_v1($1)", (3_600_000,), 2 * LARGE.instances),
    ]
