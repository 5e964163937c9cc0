"""A checker that never failed proves nothing: every invariant is broken once, and found."""

from collections.abc import AsyncIterator

import pytest

from store.invariants import INVARIANTS, violations
from tests.store.world import World

LOOSE = (
    "ALTER TABLE lease DROP CONSTRAINT IF EXISTS lease_one_per_task;"
    "ALTER TABLE lease DROP CONSTRAINT IF EXISTS lease_pkey;"
)
"""What Postgres itself refuses must be let in before it can be found."""

COPY_LEASE = "INSERT INTO lease SELECT (l).* FROM (SELECT l FROM lease l WHERE state = 'RUNNING') k"
BREACHES: tuple[tuple[str, str], ...] = (
    ("a task has at most one attempt in LEASED or RUNNING", COPY_LEASE),
    (
        "an attempt is held or over, not both",
        "UPDATE lease SET attempt_id = (SELECT id FROM attempt LIMIT 1) WHERE state = 'LEASED'",
    ),
    ("the lease epochs of a task are 1, 2, 3", "UPDATE attempt SET epoch = 7"),
    ("a lease ends within the deadlines in force", "UPDATE lease SET lease_until = 'infinity'"),
    ("what settled a task is what its last attempt says", "UPDATE attempt SET task_revision = 9"),
    ("an attempt that is over left its task", "UPDATE attempt SET task_state = 'WAITING'"),
    ("a reported end has its receipt", "UPDATE attempt SET finish_hash = NULL"),
    ("a settled task has its event", "DELETE FROM event"),
    (
        "a receipt of its own is a renewal, a second start",
        "UPDATE receipt SET attempt_id = gen_random_uuid()",
    ),
    (
        "a RECONCILE_ONLY task starts again only after",
        "UPDATE task SET recovery_safety = 'RECONCILE_ONLY';"
        "UPDATE attempt SET state = 'EXPIRED', task_state = 'WAITING', finish_message_id = NULL,"
        " finish_hash = NULL, result = NULL",
    ),
    ("attempt_count is the started attempts plus", "UPDATE ready SET attempt_count = 2"),
    ("the epoch that a waiting or settled task carries", "UPDATE ready SET epoch = 5"),
    ("every task is in exactly one place", "DELETE FROM ready"),
    ("no place holds a task that does not exist", "DELETE FROM task"),
    ("a session whose capacity never changed", "UPDATE session SET capacity = 0"),
    (
        "no unstarted lease belongs to a session that is over",
        "UPDATE session SET closed_at = now()",
    ),
    ("CANCELLED is written only with a saved intent", "UPDATE task SET state = 'CANCELLED'"),
    ("marks of a stop belong to one", "UPDATE lease SET told_at = now()"),
    ("an instance's open session is its newest", "UPDATE worker_instance SET session_epoch = 8"),
    ("an accepted key names exactly one task", "DELETE FROM submission"),
    ("a key of an operation is bound to what it did", "DELETE FROM audit"),
    (
        "at most 16 evidence rows an attempt",
        "INSERT INTO evidence (attempt_id, task_id, operation, message_id, received_at)"
        " SELECT id, task_id, 'finish', id, now() FROM attempt, generate_series(1, 17)",
    ),
    ("a revision counts the committed transitions", "UPDATE lease SET revision = 99"),
)


@pytest.fixture
async def busy(database_url: str) -> AsyncIterator[World]:
    """One of everything: waiting, leased, running, failed once, settled; a receipt."""
    world = await World.create(database_url)
    worker = await world.worker()
    await world.submitted()
    await world.leased(worker)
    running = await world.running(worker)
    await world.renew(world.again(running))
    done = await world.running(worker)
    await world.finish(world.finish_of(done))
    failed = await world.running(worker)
    await world.finish(world.failure_of(failed))
    world.wait(1000)
    await world.granted(worker, [failed.task_id])
    [unwanted] = await world.submitted()
    await world.cancel(unwanted)
    assert await violations(world.connection) == []
    yield world
    await world.close()


def test_every_invariant_has_its_breach() -> None:
    for invariant in INVARIANTS:
        assert sum(invariant.promise.startswith(start) for start, _ in BREACHES) == 1, invariant
    assert len(BREACHES) == len(INVARIANTS) >= 12


async def test_every_breach_is_found(busy: World) -> None:
    await busy.connection.execute(LOOSE)
    for promise, breach in BREACHES:
        savepoint = busy.connection.transaction(isolation="repeatable_read")
        await savepoint.start()
        await busy.connection.execute(breach)
        found = await violations(busy.connection)
        await savepoint.rollback()
        assert any(promise in line for line in found), (promise, found)
    assert await violations(busy.connection) == []
