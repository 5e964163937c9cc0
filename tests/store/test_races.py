"""Two transactions on one attempt, in every order that row locks allow (INV-1, INV-5, INV-19).

Each race is run in both orders with the first one's transaction held open: the second is known to
wait for a lock, or known to have decided without one. No sleeping: Postgres says who waits.
"""

import asyncio
from typing import Any

import asyncpg
import pytest

from store import commands, dispatch
from store.commands import AttemptCommand, CommandOutcome
from store.dispatch import ClaimPair
from tests.store.race import Act, Race, carried_out
from tests.store.world import LEASE_MS, World

REPEATS = 100


@pytest.fixture
async def race(world: World) -> Race:
    return await Race.at(world)


def starting(world: World, start: AttemptCommand) -> Act:
    async def act(db: "asyncpg.Connection[Any]") -> CommandOutcome:
        return (await commands.start_attempts(db, [start], now=world.now))[0]

    return act


def finishing(world: World, start: AttemptCommand) -> Act:
    report = world.finish_of(start)

    async def act(db: "asyncpg.Connection[Any]") -> CommandOutcome:
        return (await commands.finish_attempts(db, [report], now=world.now))[0]

    return act


def renewing(world: World, start: AttemptCommand) -> Act:
    renewal = world.again(start)

    async def act(db: "asyncpg.Connection[Any]") -> CommandOutcome:
        return (await commands.renew_leases(db, [renewal], now=world.now))[0]

    return act


def closing(world: World, session_id: str) -> Act:
    async def act(db: "asyncpg.Connection[Any]") -> list[tuple[str, int]]:
        gone = [commands.CloseSession(session_id, "gone")]
        return await commands.close_sessions(db, gone, now=world.now)

    return act


def greeting(world: World, instance_id: str) -> Act:
    hello = world.hello(instance_id=instance_id)

    async def act(db: "asyncpg.Connection[Any]") -> commands.SessionOutcome:
        return (await commands.open_sessions(db, [hello], now=world.now))[0]

    return act


def claiming(world: World, task_id: str, session_id: str) -> Act:
    pair = ClaimPair(task_id, session_id, world.id())

    async def act(db: "asyncpg.Connection[Any]") -> list[dispatch.Assignment]:
        return await dispatch.claim_tasks(db, [pair], LEASE_MS, now=world.now)

    return act


def sweeping(world: World, at_ms: int) -> Act:
    async def act(db: "asyncpg.Connection[Any]") -> list[dispatch.Expired]:
        return await dispatch.expire_leases(db, 100, now=world.at(at_ms))

    return act


async def test_start_then_hello(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [start] = await world.leased(worker)
        started, hello = await race.run(starting(world, start), greeting(world, worker.instance_id))
        assert started.active
        assert hello.superseded_session_id == worker.session_id
        assert (await world.view(start.task_id)).state == "RUNNING"


async def test_hello_then_start(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [start] = await world.leased(worker)
        _, started = await race.run(greeting(world, worker.instance_id), starting(world, start))
        assert started.code == "session_superseded"
        assert (await world.view(start.task_id)).state == "WAITING"


async def test_hello_then_renewal_of_the_old_session(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        start = await world.running(worker)
        _, renewed = await race.run(greeting(world, worker.instance_id), renewing(world, start))
        assert renewed.code == "session_superseded"


async def test_finish_then_sweep(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        start = await world.running(await world.worker())
        finished, swept = await race.run(finishing(world, start), sweeping(world, LEASE_MS))
        assert (finished.task_state, swept) == ("SUCCEEDED", [])
        assert (await world.view(start.task_id)).state == "SUCCEEDED"


async def test_sweep_then_finish(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        start = await world.running(await world.worker())
        swept, finished = await race.run(sweeping(world, LEASE_MS), finishing(world, start))
        assert [e.attempt_id for e in swept] == [start.attempt_id]
        assert (finished.disposition, finished.attempt_state) == ("EVIDENCE_ONLY", "EXPIRED")
        await world.connection.execute("DELETE FROM evidence")


async def test_renewal_then_sweep(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        start = await world.running(await world.worker())
        world.wait(10_000)
        renewed, swept = await race.run(renewing(world, start), sweeping(world, LEASE_MS - 5000))
        assert (renewed.active, swept) == (True, [])
        await world.finish(world.finish_of(start))


async def test_claim_then_close(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [task_id] = await world.submitted()
        won, given_back = await race.run(
            claiming(world, task_id, worker.session_id), closing(world, worker.session_id)
        )
        assert len(won) == len(given_back) == 1
        assert (await world.view(task_id)).state == "WAITING"


async def test_close_then_claim(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [task_id] = await world.submitted()
        given_back, won = await race.run(
            closing(world, worker.session_id), claiming(world, task_id, worker.session_id)
        )
        assert given_back == won == []


async def test_claim_then_hello(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [task_id] = await world.submitted()
        won, hello = await race.run(
            claiming(world, task_id, worker.session_id), greeting(world, worker.instance_id)
        )
        assert (len(won), hello.epoch) == (1, 2)
        assert (await world.view(task_id)).state == "WAITING"


async def test_start_then_close(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [start] = await world.leased(worker)
        started, given_back = await race.run(
            starting(world, start), closing(world, worker.session_id)
        )
        assert (started.active, given_back) == (True, [])
        assert (await world.view(start.task_id)).state == "RUNNING"


async def test_close_then_start(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        worker = await world.worker()
        [start] = await world.leased(worker)
        given_back, started = await race.run(
            closing(world, worker.session_id), starting(world, start)
        )
        assert (len(given_back), started.code) == (1, "session_superseded")


async def test_two_late_reports_at_once_get_one_answer_each_for_ever(
    world: World, race: Race
) -> None:
    for _ in range(REPEATS):
        start = await world.ended(await world.worker())
        report = finishing(world, start)
        first, second = await race.run(report, report)
        assert (first.deduplicated, second.deduplicated) == (False, True)
        assert first.disposition == second.disposition == "EVIDENCE_ONLY"
        assert await world.count("evidence") == 1
        await world.connection.execute("DELETE FROM evidence")


async def test_two_reports_at_once_settle_once(world: World, race: Race) -> None:
    for _ in range(REPEATS):
        start = await world.running(await world.worker())
        first, second = await race.run(finishing(world, start), finishing(world, start))
        assert (first.disposition, second.disposition) == ("APPLIED", "APPLIED")
        assert (first.deduplicated, second.deduplicated) == (False, True)


async def test_batches_of_commands_in_other_orders_never_deadlock(world: World) -> None:
    other = await world.other()
    worker = await world.worker(capacity=256)
    starts = await world.leased(worker, 60)
    for turn in range(20):
        mine = [world.again(start) for start in starts]
        theirs = [world.again(start) for start in reversed(starts)]
        act = commands.start_attempts if turn == 0 else commands.renew_leases
        for outcomes in await asyncio.gather(
            carried_out(act, world.connection, mine, world.now),
            carried_out(act, other, theirs, world.now),
        ):
            assert {o.code for o in outcomes} == {"ok"}
