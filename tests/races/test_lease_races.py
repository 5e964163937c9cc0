"""Races of transactions on leases: B-02, B-03, B-05, B-06, B-24 and B-77, led by row locks.

A side session that holds a row is the failpoint inside an SQL function: whoever comes stops there,
with what it has read and locked so far. Postgres says who waits; nothing sleeps.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import asyncpg
import pytest

from store import commands, dispatch
from store.commands import AttemptCommand, CommandOutcome, FinishCommand
from store.dispatch import ClaimPair
from tests.races.repeats import CHEAP, SEED
from tests.store.race import carried_out
from tests.store.waits import waiting
from tests.store.world import LEASE_MS, World
from tests.waiting import wait_until

Db = Any
pytestmark = pytest.mark.timeout(180)


class Side:
    """A session that holds a row until it lets go."""

    def __init__(self, connection: Db) -> None:
        self._connection = connection

    @asynccontextmanager
    async def holding(self, statement: str, *args: object) -> AsyncIterator[None]:
        """What the statement locks, or has begun to write, which it never finishes."""
        transaction = self._connection.transaction()
        await transaction.start()
        try:
            assert await self._connection.fetchval(statement, *args) is not None
            yield
        finally:
            await transaction.rollback()


ENDED_BY_ANOTHER = """
INSERT INTO attempt (id, task_id, namespace_id, instance_id, session_id, epoch, state, granted_at,
                     finished_at, lease_until, task_state, task_revision)
SELECT attempt_id, task_id, namespace_id, instance_id, session_id, epoch, 'EXPIRED', granted_at,
       granted_at, lease_until, 'WAITING', revision FROM lease WHERE attempt_id = $1
RETURNING id
"""
"""Whoever ends this attempt meanwhile gets as far as its row in the history, and waits."""


async def finish(db: Db, world: World, report: FinishCommand, ms: float = 0) -> CommandOutcome:
    [outcome] = await commands.finish_attempts(db, [report], now=world.at(ms))
    return outcome


async def renew(db: Db, world: World, renewal: AttemptCommand, ms: float = 0) -> CommandOutcome:
    [outcome] = await commands.renew_leases(db, [renewal], now=world.at(ms))
    return outcome


async def sweep(db: Db, world: World, ms: float) -> list[str]:
    return [row.attempt_id for row in await dispatch.expire_leases(db, 1000, now=world.at(ms))]


async def blocked(watcher: Db, count: int, *work: Awaitable[Any]) -> list["asyncio.Future[Any]"]:
    """Begin the work; return when that many of the backends wait for a lock."""
    begun: list[asyncio.Future[Any]] = [asyncio.ensure_future(item) for item in work]
    await waiting(watcher, count)
    return begun


@pytest.mark.parametrize("is_over", [False, True], ids=["b-runs", "b-finished"])
async def test_b02_a_worker_that_slept_past_its_lease_overwrites_nothing(
    world: World, is_over: bool
) -> None:
    """INV-2, INV-3, INV-5: epoch 1 comes back after epoch 2 began, or ended."""
    frozen, other = await world.worker(), await world.worker()
    for _ in range(2 * CHEAP):
        old = await world.running(frozen)
        world.wait(LEASE_MS)
        assert [row.attempt_id for row in await world.sweep()] == [old.attempt_id]
        world.wait(1_000)
        [new] = await world.granted(other, [old.task_id])
        assert new.epoch == 2
        assert (await world.start(new)).active
        mine = world.finish_of(new, result=b'{"by":"b"}')
        if is_over:
            await world.finish(mine)
        before = await world.view(old.task_id)
        for outcome in (
            await world.finish(world.finish_of(old, result=b'{"by":"a"}', hash=b"a" * 32)),
            await world.renew(world.again(old)),
            await world.start(world.again(old)),
        ):
            assert (outcome.disposition, outcome.active) == ("EVIDENCE_ONLY", False)
        assert await world.view(old.task_id) == before
        if not is_over:
            assert (await world.finish(mine)).disposition == "APPLIED"
        assert (await world.view(old.task_id)).result == b'{"by":"b"}'


async def test_b02_the_late_and_the_true_report_at_the_same_moment(world: World) -> None:
    """INV-2, INV-5: in whatever order they get the locks."""
    frozen, other = await world.worker(), await world.worker()
    first, second = await world.other(), await world.other()
    for turn in range(CHEAP):
        old = await world.running(frozen)
        world.wait(LEASE_MS)
        await world.sweep()
        world.wait(1_000)
        [new] = await world.granted(other, [old.task_id])
        await world.start(new)
        late = finish(first, world, world.finish_of(old, result=b'{"by":"a"}', hash=b"a" * 32))
        true = finish(second, world, world.finish_of(new, result=b'{"by":"b"}'))
        if turn % 2:
            true_outcome, late_outcome = await asyncio.gather(true, late)
        else:
            late_outcome, true_outcome = await asyncio.gather(late, true)
        assert late_outcome.disposition == "EVIDENCE_ONLY"
        assert true_outcome.disposition == "APPLIED"
        assert (await world.view(old.task_id)).result == b'{"by":"b"}'


async def test_b03_a_report_that_comes_while_the_sweep_is_half_way(world: World) -> None:
    """INV-5, INV-6: the sweep has read and locked, has not written; the report must not win too."""
    worker = await world.worker()
    side, watcher = Side(await world.other()), await world.other()
    sweeper, reporter = await world.other(), await world.other()
    for _ in range(CHEAP):
        held = await world.running(worker, recovery_safety="RECONCILE_ONLY")
        async with side.holding(ENDED_BY_ANOTHER, held.attempt_id):
            [swept] = await blocked(watcher, 1, sweep(sweeper, world, LEASE_MS))
            report = world.finish_of(held)
            [reported] = await blocked(watcher, 2, finish(reporter, world, report))
        assert await swept == [held.attempt_id]
        assert (await reported).disposition == "EVIDENCE_ONLY"
        assert (await world.view(held.task_id)).state == "NEEDS_REVIEW"


async def test_b03_a_sweep_that_comes_while_the_report_is_half_way(world: World) -> None:
    """INV-5: the report has locked, has not written; the sweep passes over it."""
    worker = await world.worker()
    side, watcher = Side(await world.other()), await world.other()
    sweeper, reporter = await world.other(), await world.other()
    for _ in range(CHEAP):
        held = await world.running(worker)
        async with side.holding("SELECT id FROM task WHERE id = $1 FOR UPDATE", held.task_id):
            [reported] = await blocked(watcher, 1, finish(reporter, world, world.finish_of(held)))
            assert await sweep(sweeper, world, LEASE_MS) == []
        assert (await reported).disposition == "APPLIED"
        assert await sweep(sweeper, world, LEASE_MS) == []
        assert (await world.view(held.task_id)).state == "SUCCEEDED"
        events = await world.connection.fetchval(
            "SELECT count(*) FROM event WHERE resource_id = $1", held.task_id
        )
        assert events == 1


async def test_b03_reports_renewals_and_two_sweeps_in_any_order(world: World) -> None:
    """INV-5, INV-6, INV-44: 500 orders drawn at random, each ends in one row of the table."""
    dice = random.Random(SEED)
    worker = await world.worker(capacity=256)
    connections = [await world.other() for _ in range(4)]
    ends = {"finish": 0, "sweep": 0}
    for _ in range(5 * CHEAP):
        held = await world.running(worker)
        work = [
            finish(connections[0], world, world.finish_of(held), LEASE_MS - 1),
            renew(connections[1], world, world.again(held), LEASE_MS - 1),
            sweep(connections[2], world, LEASE_MS),
            sweep(connections[3], world, LEASE_MS),
        ]
        order = dice.sample(range(4), 4)
        done: dict[int, Any] = dict(
            zip(order, await asyncio.gather(*(work[place] for place in order)), strict=True)
        )
        swept = done[2] + done[3]
        view = await world.view(held.task_id)
        if done[0].disposition == "APPLIED":
            ends["finish"] += 1
            assert (swept, view.state) == ([], "SUCCEEDED")
        else:
            ends["sweep"] += 1
            assert (swept, view.state) == ([held.attempt_id], "WAITING")
            assert not done[1].active
        assert len(await world.attempts(held.task_id)) == 1
    assert min(ends.values()) > 0, ends


async def test_b05_sweepers_that_read_before_the_renewals_expire_nothing_live(
    world: World,
) -> None:
    """INV-5, INV-6, INV-44: 250 renewals, two sweeps with an old list; each attempt is one's."""
    worker = await world.worker(capacity=250)
    starts = await world.leased(worker, 250)
    assert {o.code for o in await commands.start_attempts(
        world.connection, starts, now=world.now)} == {"ok"}  # fmt: skip
    renewer, one, two = [await world.other() for _ in range(3)]
    live = {start.attempt_id: start for start in starts}
    for turn in range(20):
        renewals = [world.again(start) for start in live.values()]
        half = [world.again(start) for start in list(live.values())[: len(live) // 2]]
        batch = half if turn == 19 else renewals
        outcomes, *swept = await asyncio.gather(
            carried_out(commands.renew_leases, renewer, batch, world.at(LEASE_MS - 1)),
            sweep(one, world, LEASE_MS),
            sweep(two, world, LEASE_MS),
        )
        gone = {attempt_id for found in swept for attempt_id in found}
        for renewal, outcome in zip(batch, outcomes, strict=True):
            assert outcome.active == (renewal.attempt_id not in gone)
        assert sum(map(len, swept)) == len(gone)
        for attempt_id in gone:
            del live[attempt_id]
        if not live:
            break
        world.wait(LEASE_MS - 1)
    kept = {r["attempt_id"] for r in await world.connection.fetch("SELECT attempt_id FROM lease")}
    assert kept == set(live)


@pytest.mark.parametrize("act", ["renew", "start", "finish"])
async def test_b06_a_command_is_judged_by_the_clock_after_its_lock(world: World, act: str) -> None:
    """INV-4, INV-34: it waited for the row until the lease was over, so it comes too late."""
    rounds = max(5, CHEAP // 20)
    width = CHEAP // rounds
    side, watcher = Side(await world.other()), await world.other()
    connections = [await world.other() for _ in range(width)]
    for _ in range(rounds):
        held = await _nearly_over(world, width, running=act != "start")
        ids = [item.attempt_id for item in held]
        async with side.holding(
            "SELECT count(*) FROM (SELECT 1 FROM lease WHERE attempt_id = ANY ($1::uuid[])"
            " ORDER BY attempt_id FOR UPDATE) k",
            ids,
        ):
            asked = await blocked(
                watcher,
                width,
                *(
                    _really(act, db, world, item)
                    for db, item in zip(connections, held, strict=True)
                ),
            )
            await wait_until(partial(_still_valid, watcher, ids), lambda count: count == 0, 10)
        for outcome in await asyncio.gather(*asked):
            assert outcome.code == "ok", outcome
            assert (outcome.active, outcome.disposition) == (False, "EVIDENCE_ONLY")
            assert outcome.lease_until <= outcome.server_time


async def test_b24_eight_dispatchers_want_the_same_thousand_tasks(world: World) -> None:
    """INV-1, INV-14: on a barrier, over the same candidates: one lease a task."""
    workers = [await world.worker(capacity=256) for _ in range(8)]
    tasks = await world.submitted(1_000)
    connections = [await world.other() for _ in workers]
    barrier = asyncio.Barrier(len(workers))

    async def grab(db: Db, session_id: str) -> list[str]:
        await barrier.wait()
        won = await dispatch.claim_tasks(
            db, [ClaimPair(task, session_id, world.id()) for task in tasks], LEASE_MS, now=world.now
        )
        return [assignment.task_id for assignment in won]

    won = await asyncio.gather(
        *(grab(db, w.session_id) for db, w in zip(connections, workers, strict=True))
    )
    granted = [task for tasks_won in won for task in tasks_won]
    assert len(granted) == len(set(granted)) == await world.count("lease")
    assert max(map(len, won)) <= 256
    assert len(granted) >= 256


async def test_b77_four_promoters_over_5000_tasks_due_in_the_same_second(world: World) -> None:
    """INV-1, INV-9, INV-14: due means claimed, once; there is no second step to repeat."""
    due = world.at(1_000)
    tasks = [task for _ in range(10) for task in await world.submitted(500, available_at=due)]
    workers = [await world.worker(capacity=256) for _ in range(20)]
    assert await dispatch.peek_ready(world.connection, [(world.route_id, 10)], now=world.now) == []
    world.wait(1_000)
    connections = [await world.other() for _ in range(4)]
    barrier = asyncio.Barrier(len(connections))

    async def promote(db: Db, mine: Sequence[Any]) -> list[str]:
        won: list[str] = []
        await barrier.wait()
        for worker in mine:
            ready = await dispatch.peek_ready(db, [(world.route_id, 256)], now=world.now)
            pairs = [ClaimPair(task.task_id, worker.session_id, world.id()) for task in ready]
            granted = await dispatch.claim_tasks(db, pairs, LEASE_MS, now=world.now)
            won += [assignment.task_id for assignment in granted]
        return won

    # The four want the same candidates; who loses some peeks again.
    won = await asyncio.gather(
        *(promote(db, workers[place::4]) for place, db in enumerate(connections))
    )
    granted = [task for part in won for task in part]
    while len(granted) < len(tasks):
        more = await promote_rest(world, workers)
        assert more
        granted += more
    assert sorted(granted) == sorted(tasks)
    early = await world.connection.fetchval("SELECT count(*) FROM lease WHERE granted_at < $1", due)
    assert early == 0


async def promote_rest(world: World, workers: Sequence[Any]) -> list[str]:
    """One more pass over what the racers left."""
    won: list[str] = []
    for worker in workers:
        ready = await dispatch.peek_ready(world.connection, [(world.route_id, 256)], now=world.now)
        pairs = [ClaimPair(task.task_id, worker.session_id, world.id()) for task in ready]
        granted = await dispatch.claim_tasks(world.connection, pairs, LEASE_MS, now=world.now)
        won += [assignment.task_id for assignment in granted]
    return won


async def _nearly_over(world: World, count: int, *, running: bool) -> list[AttemptCommand]:
    """Attempts of a new session, by the database's own clock, whose leases end in a moment."""
    hello = world.hello(capacity=count, node_id=world.node_id)
    await commands.open_sessions(world.connection, [hello])
    items = [world.task() for _ in range(count)]
    await commands.submit_tasks(world.connection, items)
    pairs = [ClaimPair(item.task_id, hello.session_id, world.id()) for item in items]
    won = await dispatch.claim_tasks(world.connection, pairs, LEASE_MS)
    assert len(won) == count
    held = [world.command(assignment) for assignment in won]
    if running:
        started = await commands.start_attempts(world.connection, held)
        assert all(outcome.active for outcome in started)
    await world.connection.execute(
        "UPDATE lease SET lease_until = clock_timestamp() + interval '300 ms'"
        " WHERE session_id = $1",
        hello.session_id,
    )
    return held


async def _really(act: str, db: Db, world: World, held: AttemptCommand) -> CommandOutcome:
    if act == "finish":
        return (await commands.finish_attempts(db, [world.finish_of(held)]))[0]
    function = commands.renew_leases if act == "renew" else commands.start_attempts
    return (await function(db, [world.again(held)]))[0]


async def _still_valid(watcher: "asyncpg.Connection[Any]", ids: list[str]) -> int:
    return int(
        await watcher.fetchval(
            "SELECT count(*) FROM lease WHERE attempt_id = ANY ($1::uuid[])"
            " AND lease_until > clock_timestamp()",
            ids,
        )
    )
