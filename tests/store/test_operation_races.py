"""Operations against everything that moves a task, in every order that locks allow.

INV-5, INV-18, OP-28, B-81: whoever commits first wins, no task slips between two places unseen, and
after a committed pause or cancel nothing starts.
"""

import asyncio
from typing import Any

import asyncpg
import pytest

from store import commands, dispatch, operations
from store.commands import AttemptCommand, CommandOutcome
from store.dispatch import ClaimPair
from store.operations import GateOutcome, TaskOutcome
from tests.store.race import Act, Race, carried_out
from tests.store.world import LEASE_MS, World

REPEATS = 100


@pytest.fixture
async def race(world: World) -> Race:
    return await Race.at(world)


def cancelling(world: World, task_id: str, **changes: Any) -> Act:
    wish = world.cancellation(task_id, **changes)

    async def act(db: "asyncpg.Connection[Any]") -> TaskOutcome:
        return (await operations.cancel_tasks(db, [wish], now=world.now))[0]

    return act


def claiming(world: World, task_id: str, session_id: str) -> Act:
    pair = ClaimPair(task_id, session_id, world.id())

    async def act(db: "asyncpg.Connection[Any]") -> list[dispatch.Assignment]:
        return await dispatch.claim_tasks(db, [pair], LEASE_MS, now=world.now)

    return act


def starting(world: World, start: AttemptCommand) -> Act:
    async def act(db: "asyncpg.Connection[Any]") -> CommandOutcome:
        return (await commands.start_attempts(db, [start], now=world.now))[0]

    return act


def finishing(world: World, start: AttemptCommand, code: str | None = None) -> Act:
    report = world.finish_of(start) if code is None else world.failure_of(start, code)

    async def act(db: "asyncpg.Connection[Any]") -> CommandOutcome:
        return (await commands.finish_attempts(db, [report], now=world.now))[0]

    return act


def sweeping(world: World) -> Act:
    async def act(db: "asyncpg.Connection[Any]") -> list[dispatch.Expired]:
        return await dispatch.expire_leases(db, 100, now=world.now)

    return act


def retrying(world: World, task_id: str, revision: int) -> Act:
    wish = world.another_try(task_id, revision)

    async def act(db: "asyncpg.Connection[Any]") -> TaskOutcome:
        return (await operations.retry_tasks(db, [wish], now=world.now))[0]

    return act


def pausing(world: World, version: int) -> Act:
    change = world.gate_change(True, version)

    async def act(db: "asyncpg.Connection[Any]") -> GateOutcome:
        return (await operations.set_gates(db, [change], now=world.now))[0]

    return act


def closing(world: World, session_id: str) -> Act:
    gone = [commands.CloseSession(session_id, "gone")]

    async def act(db: "asyncpg.Connection[Any]") -> list[tuple[str, int]]:
        return await commands.close_sessions(db, gone, now=world.now)

    return act


async def state_of(world: World, task_id: str) -> str:
    return (await world.view(task_id)).state


# -- cancel and claim -----------------------------------------------------------------------------


async def test_claim_then_cancel(world: World, race: Race) -> None:
    """The task moves to its lease while the cancel waits for the ready row: it is found there."""
    for _ in range(REPEATS):
        worker = await world.worker()
        [task_id] = await world.submitted()
        won, cancelled = await race.run(
            claiming(world, task_id, worker.session_id), cancelling(world, task_id)
        )
        assert (cancelled.code, cancelled.attempt_id) == ("done", won[0].attempt_id)
        assert (await world.start(world.command(won[0]))).attempt_state == "CANCELLED"


async def test_cancel_then_claim(world: World, race: Race) -> None:
    worker = await world.worker()
    for _ in range(REPEATS):
        [task_id] = await world.submitted()
        cancelled, won = await race.run(
            cancelling(world, task_id), claiming(world, task_id, worker.session_id)
        )
        assert (cancelled.code, won) == ("done", [])


async def test_close_then_cancel(world: World, race: Race) -> None:
    """The task goes back from its lease to its ready row meanwhile: it is found there."""
    for _ in range(REPEATS):
        worker = await world.worker()
        [start] = await world.leased(worker)
        given_back, cancelled = await race.run(
            closing(world, worker.session_id), cancelling(world, start.task_id)
        )
        assert len(given_back) == 1
        assert (cancelled.code, cancelled.attempt_id) == ("done", None)
        assert await state_of(world, start.task_id) == "CANCELLED"


async def test_cancel_then_close(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [start] = await world.leased(worker)
        cancelled, given_back = await race.run(
            cancelling(world, start.task_id), closing(world, worker.session_id)
        )
        assert (cancelled.code, given_back) == ("done", [])
        assert await state_of(world, start.task_id) == "CANCELLED"


# -- cancel and start -----------------------------------------------------------------------------


async def test_start_then_cancel(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [start] = await world.leased(await world.worker())
        started, cancelled = await race.run(
            starting(world, start), cancelling(world, start.task_id)
        )
        assert (started.active, cancelled.code) == (True, "intent")
        assert not (await world.renew(world.again(start))).active


async def test_cancel_then_start(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [start] = await world.leased(await world.worker())
        cancelled, started = await race.run(
            cancelling(world, start.task_id), starting(world, start)
        )
        assert cancelled.code == "done"
        assert (started.disposition, started.task_state) == ("EVIDENCE_ONLY", "CANCELLED")
        assert not started.active


# -- cancel and finish ----------------------------------------------------------------------------


async def test_finish_then_cancel(world: World, race: Race) -> None:
    worker = await world.worker()
    for _ in range(REPEATS):
        start = await world.running(worker)
        finished, cancelled = await race.run(
            finishing(world, start), cancelling(world, start.task_id)
        )
        assert finished.task_state == cancelled.task_state == "SUCCEEDED"
        assert cancelled.code == "state_conflict"


async def test_failed_finish_then_cancel(world: World, race: Race) -> None:
    """The task goes back to wait for its next attempt meanwhile: there is none."""
    worker = await world.worker()
    for _ in range(REPEATS):
        start = await world.running(worker)
        finished, cancelled = await race.run(
            finishing(world, start, "smtp.down"), cancelling(world, start.task_id)
        )
        assert (finished.task_state, cancelled.code) == ("WAITING", "done")
        assert await state_of(world, start.task_id) == "CANCELLED"


@pytest.mark.parametrize(
    ("code", "ends"), [(None, "SUCCEEDED"), ("smtp.down", "CANCELLED"), ("cancelled", "CANCELLED")]
)
async def test_cancel_then_finish(world: World, race: Race, code: str | None, ends: str) -> None:
    worker = await world.worker()
    for _ in range(REPEATS):
        start = await world.running(worker)
        cancelled, finished = await race.run(
            cancelling(world, start.task_id), finishing(world, start, code)
        )
        assert (cancelled.code, finished.task_state) == ("intent", ends)


# -- cancel and expiry ----------------------------------------------------------------------------


async def test_sweep_then_cancel(world: World, race: Race) -> None:
    """B-81: the sweep has read and written, the cancel comes before its commit."""
    for _ in range(REPEATS):
        start = await world.running(await world.worker())
        world.wait(LEASE_MS)
        swept, cancelled = await race.run(sweeping(world), cancelling(world, start.task_id))
        assert [expired.waiting for expired in swept] == [True]
        assert (cancelled.code, cancelled.attempt_id) == ("done", None)
        assert await state_of(world, start.task_id) == "CANCELLED"


async def test_cancel_then_sweep(world: World, race: Race) -> None:
    """B-81 the other way: a sweep that finds the lease locked leaves it alone."""
    for _ in range(REPEATS):
        start = await world.running(await world.worker())
        world.wait(LEASE_MS)
        cancelled, swept = await race.run(cancelling(world, start.task_id), sweeping(world))
        assert (cancelled.code, swept) == ("done", [])
        assert await state_of(world, start.task_id) == "CANCELLED"


# -- cancel, retry and their repeats ---------------------------------------------------------------


async def test_retry_then_cancel(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [task_id] = await world.submitted()
        await world.cancel(task_id)
        retried, cancelled = await race.run(retrying(world, task_id, 2), cancelling(world, task_id))
        # The cancel did not wait: to it the task was still settled.
        assert (retried.code, cancelled.code) == ("done", "state_conflict")
        assert await state_of(world, task_id) == "WAITING"


async def test_cancel_then_retry(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [task_id] = await world.submitted()
        cancelled, retried = await race.run(cancelling(world, task_id), retrying(world, task_id, 2))
        assert (cancelled.code, retried.code) == ("done", "state_conflict")
        assert await state_of(world, task_id) == "CANCELLED"


async def test_two_retries_at_once_give_one_try(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [task_id] = await world.submitted()
        await world.cancel(task_id)
        first, second = await race.run(retrying(world, task_id, 2), retrying(world, task_id, 2))
        assert (first.code, second.code) == ("done", "state_conflict")
        assert (await world.view(task_id)).max_attempts == 4


@pytest.mark.parametrize("place", ["waiting", "running"])
async def test_one_key_sent_twice_at_once_is_one_cancel(
    world: World, race: Race, place: str
) -> None:
    worker = await world.worker(capacity=256)
    for _ in range(REPEATS):
        if place == "waiting":
            [task_id] = await world.submitted()
        else:
            task_id = (await world.running(worker)).task_id
        wish = cancelling(world, task_id)
        first, second = await race.run(wish, wish)
        assert (first.deduplicated, second.deduplicated) == (False, True)
        assert (first.code, first.task_revision) == (second.code, second.task_revision)


async def test_one_key_sent_twice_at_once_is_one_retry(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [task_id] = await world.submitted()
        await world.cancel(task_id)
        wish = retrying(world, task_id, 2)
        first, second = await race.run(wish, wish)
        assert (first.deduplicated, second.deduplicated) == (False, True)
        assert second.task_revision == first.task_revision == 3


# -- pause ----------------------------------------------------------------------------------------


async def test_pause_then_start(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        [start] = await world.leased(await world.worker())
        paused, started = await race.run(
            pausing(world, await world.gate_version()), starting(world, start)
        )
        assert (paused.code, started.code) == ("done", "execution_gated")
        await world.pause(False)


async def test_start_then_pause(world: World, race: Race) -> None:
    """The pause waits: who may still start has committed before it."""

    async def pause_and_look(db: "asyncpg.Connection[Any]") -> bool:
        async with db.transaction():
            await pausing(world, version)(db)
            return bool(await db.fetchval("SELECT bool_and(state = 'RUNNING') FROM lease"))

    for _ in range(REPEATS):
        [start] = await world.leased(await world.worker())
        version = await world.gate_version()
        started, none_pending = await race.run(starting(world, start), pause_and_look)
        assert started.active
        assert none_pending
        await world.pause(False)


async def test_pause_then_claim(world: World, race: Race) -> None:
    worker = await world.worker()
    for _ in range(REPEATS):
        [task_id] = await world.submitted()
        paused, won = await race.run(
            pausing(world, await world.gate_version()),
            claiming(world, task_id, worker.session_id),
        )
        assert (paused.code, won) == ("done", [])
        await world.pause(False)
        await world.cancel(task_id)


async def test_claim_then_pause(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [task_id] = await world.submitted()
        won, paused = await race.run(
            claiming(world, task_id, worker.session_id),
            pausing(world, await world.gate_version()),
        )
        assert (len(won), paused.code) == (1, "done")
        # Granted before, not started: the start is refused, the grant goes back.
        assert (await world.start(world.command(won[0]))).code == "execution_gated"
        await world.pause(False)


async def test_two_pauses_at_once_are_one_change(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        version = await world.gate_version()
        first, second = await race.run(pausing(world, version), pausing(world, version))
        assert (first.code, second.code) == ("done", "state_conflict")
        assert second.control_version == first.control_version == version + 1


# -- many at once ---------------------------------------------------------------------------------


async def test_batches_against_moving_tasks_miss_none_and_never_deadlock(world: World) -> None:
    """Cancels in opposite orders, while a dispatcher claims and a closing session gives back."""
    others = [await world.other() for _ in range(3)]
    for _ in range(20):
        worker = await world.worker(capacity=256)
        starts = await world.leased(worker, 20)
        task_ids = [start.task_id for start in starts] + await world.submitted(20)
        idle = await world.worker(capacity=256)
        pairs = [ClaimPair(task_id, idle.session_id, world.id()) for task_id in task_ids]
        wishes = [world.cancellation(task_id) for task_id in task_ids]
        forth, back, _, _ = await asyncio.gather(
            carried_out(operations.cancel_tasks, world.connection, wishes, world.now),
            carried_out(
                operations.cancel_tasks,
                others[0],
                [world.cancellation(task_id) for task_id in reversed(task_ids)],
                world.now,
            ),
            dispatch.claim_tasks(others[1], pairs, LEASE_MS, now=world.now),
            closing(world, worker.session_id)(others[2]),
        )
        for one, other in zip(forth, reversed(back), strict=True):
            assert {one.code, other.code} == {"done", "state_conflict"}
        states = await world.connection.fetch(
            "SELECT state, count(*) FROM task WHERE id = ANY ($1::uuid[]) GROUP BY 1", task_ids
        )
        assert [tuple(row) for row in states] == [("CANCELLED", len(task_ids))]


async def test_a_search_for_a_lost_task_ends(world: World) -> None:
    """Only a broken store has a live task in no place; the search says so and holds nothing."""
    [task_id] = await world.submitted()
    transaction = world.connection.transaction()
    await transaction.start()
    await world.connection.execute("DELETE FROM ready")
    with pytest.raises(asyncpg.RaiseError, match="in no place"):
        await world.cancel(task_id)
    await transaction.rollback()
    assert (await world.cancel(task_id)).code == "done"
