"""Rounds on real stores: from a hint to an assignment in a gateway's stream, and what may fail."""

import time
from collections import Counter
from datetime import UTC, datetime

import asyncpg
import msgspec
import pytest

from dispatcher.assign import entries_of
from dispatcher.limits import ENTRY_ASSIGNMENTS_MAX, ENTRY_PAYLOAD_BYTES_MAX
from store.bus import Bus
from store.dispatch import Assignment
from store.pool import Pools
from tests.dispatcher.conftest import FakeGateway, RunningDispatcher, StartDispatcher, until
from tests.store.world import Worker, World


async def wait_for_reader(dispatcher: RunningDispatcher) -> None:
    """Until the dispatcher reads its streams, so that the next hint reaches it."""
    await until(lambda: bool(dispatcher.reader._reader._positions))


async def counts(world: World, table: str, count: int) -> bool:
    return await world.count(table) == count


async def submit(world: World, bus: Bus, count: int = 1, **changes: object) -> list[str]:
    world.now = datetime.now(UTC)
    task_ids = await world.submitted(count, **changes)
    await bus.wake([(world.queue_id, world.route_id)])
    return task_ids


async def test_a_hint_becomes_an_assignment_without_any_timer(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=4)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(worker, 4)
        [task_id] = await submit(world, bus, priority=3)
        [assignment] = await fake_gateway.take(1)
        assert (assignment.task_id, assignment.session_id) == (task_id, worker.session_id)
        assert msgspec.json.decode(assignment.task)["payload"] == {"to": "ada"}
        await until(lambda: dispatcher.value("orbit_assigned_tasks_total", path="stream") == 1)
        assert dispatcher.value("orbit_assigned_tasks_total", path="twin") == 0


async def test_capacity_is_never_passed_and_freed_slots_are_used_at_once(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=3)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        await submit(world, bus, 30)
        await fake_gateway.report(worker, 3)
        done: list[Assignment] = []
        while len(done) < 30:
            held = await fake_gateway.take(3)
            assert fake_gateway.got.empty()
            assert await world.count("lease") == 3
            await fake_gateway.finish(held)
            done += held
            await fake_gateway.report(worker, 3)
    assert len({assignment.task_id for assignment in done}) == 30
    assert dispatcher.value("orbit_refused_claims_total") == 0


async def test_priority_then_age_decides_and_sessions_share_evenly(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    workers = [await world.worker(capacity=2) for _ in range(3)]
    old = await submit(world, bus, 4)
    urgent = await submit(world, bus, 2, priority=9)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        dispatcher.hints.scan_now()
        got = await fake_gateway.take(6)
    assert [assignment.task_id for assignment in got] == urgent + old
    assert Counter(a.session_id for a in got) == {w.session_id: 2 for w in workers}


async def test_slow_twins_serve_alone_what_no_hint_told_of(
    world: World, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    await world.worker(capacity=5)
    world.now = datetime.now(UTC)
    async with start_dispatcher(scan_s=0.05) as dispatcher:
        await wait_for_reader(dispatcher)
        await until(lambda: dispatcher.rounds.view.ledger.session_count() == 1)
        task_ids = await world.submitted(3)
        got = await fake_gateway.take(3)
    assert {assignment.task_id for assignment in got} == set(task_ids)
    assert dispatcher.value("orbit_session_levels_total", path="twin") >= 1


async def test_a_pause_withholds_and_its_end_is_found(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=5)
    await world.pause()
    async with start_dispatcher(scan_s=0.05) as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(worker, 5)
        await submit(world, bus, 2)
        scans = dispatcher.value("orbit_loop_ticks_total", loop="scan-routes")
        await until(
            lambda: dispatcher.value("orbit_loop_ticks_total", loop="scan-routes") > scans + 2
        )
        assert fake_gateway.got.empty()
        assert await world.count("lease") == 0
        await world.pause(False)
        assert len(await fake_gateway.take(2)) == 2


async def test_levels_that_promise_too_much_cost_one_refusal(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    liar, honest = await world.worker(capacity=1), await world.worker(capacity=2)
    closed = await world.worker(capacity=9)
    await world.close_session(closed.session_id)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        for worker in (liar, closed, honest):
            await fake_gateway.report(worker, 9)
        await submit(world, bus, 40)
        got = await fake_gateway.take(3)
        assert Counter(a.session_id for a in got) == {liar.session_id: 1, honest.session_id: 2}
        await until(lambda: dispatcher.rounds.view.ledger.free_count() == 0)
        assert dispatcher.value("orbit_refused_claims_total") < 100, "it must not spin"
        assert fake_gateway.got.empty()
        await fake_gateway.finish(got)
        await fake_gateway.report(honest, 2)
        more: Counter[str] = Counter()
        while more[honest.session_id] < 2:
            more.update(a.session_id for a in await fake_gateway.take(1))
        # The correction after the refusal may have found the slot that the liar has freed since.
        assert more.keys() <= {honest.session_id, liar.session_id}
        assert more[liar.session_id] <= 1


async def test_two_dispatchers_on_one_queue_grant_each_task_once(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    workers = [await world.worker(capacity=20) for _ in range(4)]
    async with start_dispatcher() as one, start_dispatcher() as two:
        for dispatcher in (one, two):
            await wait_for_reader(dispatcher)
            dispatcher.rounds.view.share_out([])
            dispatcher.loops[-2].interval_s = 3_600
        task_ids = await submit(world, bus, 240)
        done: list[Assignment] = []
        while len(done) < 240:
            for worker in workers:
                await fake_gateway.report(worker, 20)
            got = await fake_gateway.take(1)
            while not fake_gateway.got.empty():
                got.append(fake_gateway.got.get_nowait())
            await fake_gateway.finish(got)
            done += got
            await bus.wake([(world.queue_id, world.route_id)])
    assert sorted(a.task_id for a in done) == sorted(task_ids)
    assert await world.count("lease") == 0


async def test_without_redis_claims_go_on_and_nothing_is_lost(
    world: World, start_dispatcher: StartDispatcher
) -> None:
    nowhere = Bus("redis://127.0.0.1:1/0", "nowhere")
    await world.worker(capacity=5)
    await world.submitted(5)
    async with start_dispatcher(scan_s=0.05, over=nowhere) as dispatcher:
        await until(lambda: counts(world, "lease", 5))
        assert dispatcher.value("orbit_bus_up") == 0
    assert dispatcher.value("orbit_unsent_assignments_total") == 5
    await nowhere.close()


async def test_lost_database_connections_delay_and_lose_nothing(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=50)
    killer = await world.other()
    async with start_dispatcher(scan_s=0.2) as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(worker, 50)
        task_ids = []
        for _ in range(10):
            task_ids += await submit(world, bus, 5)
            await killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
                " current_database() AND application_name = 'orbit'"
                " AND pid <> pg_backend_pid() AND pid <> $1",
                world.connection.get_server_pid(),
            )
        await until(lambda: counts(world, "ready", 0))
    leased = await world.connection.fetch("SELECT task_id FROM lease")
    assert sorted(row[0] for row in leased) == sorted(task_ids)


async def test_a_stop_sends_what_was_claimed(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=200)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(worker, 200)
        await submit(world, bus, 200)
        await until(lambda: not dispatcher.rounds._quiet.is_set())
    leases = await world.count("lease")
    assert len(await fake_gateway.take(leases)) == leases


async def test_a_locked_pool_fails_the_round_and_not_the_process(
    world: World, pools: Pools, bus: Bus, start_dispatcher: StartDispatcher,
    fake_gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dispatcher.assign.ACQUIRE_S", 0.05)
    worker: Worker = await world.worker(capacity=1)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        held: list[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]] = [
            await pools.background.acquire() for _ in range(4)
        ]
        await fake_gateway.report(worker, 1)
        await submit(world, bus, 1)
        await until(lambda: any(loop.failures_in_row for loop in dispatcher.loops))
        for connection in held:
            await pools.background.release(connection)
        assert len(await fake_gateway.take(1)) == 1


def test_entries_stay_small_enough_for_one_read() -> None:
    def assignment(node: str, size: int) -> Assignment:
        return Assignment("s", node, "t", "a", 1, "", "", b"x" * size)

    many = entries_of([assignment("n", 10)] * (ENTRY_ASSIGNMENTS_MAX + 1) + [assignment("m", 1)])
    assert [(node, len(entry)) for node, entry in many] == [
        ("n", ENTRY_ASSIGNMENTS_MAX), ("n", 1), ("m", 1),
    ]  # fmt: skip
    big = entries_of([assignment("n", 16_384)] * 40)
    assert all(sum(len(a.task) for a in entry) <= ENTRY_PAYLOAD_BYTES_MAX for _, entry in big)
    assert sum(len(entry) for _, entry in big) == 40
    assert entries_of([]) == []


async def test_a_lone_task_is_assigned_within_milliseconds(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=50)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(worker, 50)
        delays = []
        for _ in range(20):
            await submit(world, bus)
            began = time.perf_counter()
            await fake_gateway.take(1)
            delays.append(time.perf_counter() - began)
    assert sorted(delays)[10] < 0.1, "no timer stands between a hint and its assignment"
