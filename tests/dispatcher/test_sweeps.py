"""Leases that lapse, nodes that die, partitions and receipts: the duties beside the rounds."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from dispatcher.metrics import DispatcherMetrics
from dispatcher.nodes import Nodes
from dispatcher.upkeep import Upkeep
from dispatcher.view import View
from dispatcher.waking import Waking
from store import dispatch
from store.bus import Bus, BusUnavailable
from store.messages import Wake
from store.pool import Pools
from tests.dispatcher.conftest import FakeGateway, RunningDispatcher, StartDispatcher, ids, until
from tests.dispatcher.test_assign import counts, submit, wait_for_reader
from tests.store.world import World


async def test_a_lease_that_ran_out_is_settled_and_its_task_goes_out_again(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    worker = await world.worker(capacity=1)
    async with start_dispatcher(lease_ms=1_000) as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(worker, 1)
        await submit(world, bus)
        [first] = await fake_gateway.take(1)
        assert await dispatcher.expiry.sweep() == 0, "never before its end (INV-6)"
        await until(lambda: swept(dispatcher.expiry.sweep))
        await until(lambda: dispatcher.value("orbit_expired_leases_total") == 1)
        await fake_gateway.report(worker, 1)
        [second] = await fake_gateway.take(1)
    assert (second.task_id, second.epoch) == (first.task_id, first.epoch + 1)


async def swept(sweep: Callable[[], Awaitable[int]]) -> bool:
    return await sweep() > 0


async def test_tasks_past_their_deadline_are_settled(
    world: World, start_dispatcher: StartDispatcher
) -> None:
    world.now = datetime.now(UTC) - timedelta(hours=2)
    await world.submitted(3, deadline_at=world.at(3_600_000))
    async with start_dispatcher() as dispatcher:
        assert await dispatcher.expiry.sweep() == 3
        await until(lambda: dispatcher.value("orbit_expired_tasks_total") == 3)
    assert await counts(world, "ready", 0)


async def test_a_silent_node_is_given_up_and_its_unstarted_work_goes_elsewhere(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    dead_node = ids.next()
    world.now = datetime.now(UTC) - timedelta(seconds=30)
    await dispatch.beat_node(world.connection, dead_node, "gateway", False, now=world.now)
    lost = await world.worker(capacity=5, node_id=dead_node)
    started, _ = await world.leased(lost, 2)
    assert (await world.start(started)).code == "ok"
    alive = await world.worker(capacity=5)
    async with start_dispatcher() as dispatcher:
        await wait_for_reader(dispatcher)
        await fake_gateway.report(alive, 5)
        assert await beaten(dispatcher, 7) == 1
        [assignment] = await fake_gateway.take(1)
        assert assignment.session_id == alive.session_id
        assert assignment.task_id != started.task_id, "what runs keeps its lease"
        assert await dispatcher.nodes.beat_and_reap() == 0
    assert await counts(world, "lease", 2)


async def beaten(dispatcher: RunningDispatcher, seconds: int) -> int:
    """Beat once a second for so long; how many nodes were given up."""
    given_up = 0
    for _ in range(seconds):
        given_up += await dispatcher.nodes.beat_and_reap()
        dispatcher.now += 1.0
    return given_up


async def test_after_an_outage_of_postgres_nobody_is_given_up_at_once(
    world: World, start_dispatcher: StartDispatcher
) -> None:
    silent = datetime.now(UTC) - timedelta(seconds=30)
    await dispatch.beat_node(world.connection, ids.next(), "gateway", False, now=silent)
    async with start_dispatcher() as dispatcher:
        assert await beaten(dispatcher, 6) == 0, "at its start it knows nothing of the silence"
        dispatcher.now += 20.0
        assert await beaten(dispatcher, 6) == 0, "it could not beat itself"
        assert await beaten(dispatcher, 1) == 1


async def test_a_route_is_told_until_redis_takes_it(world: World, bus: Bus) -> None:
    nowhere = Bus("redis://127.0.0.1:1/0", "nowhere")
    waking = Waking(View(ids.next(), lambda: None, 1), nowhere)
    route = (world.queue_id, world.route_id)
    waking.wake([route])
    for _ in range(2):
        with pytest.raises(BusUnavailable):
            await waking.tell()
    waking._bus = bus
    reader = bus.reader("wake")
    await reader.read(1, 1)
    waking.wake([route])
    assert await waking.tell() == 1
    assert [message for _, message in await reader.read(1_000, 10)] == [Wake((route,))]
    assert await waking.tell() == 0
    await reader.close()
    await nowhere.close()


async def test_peers_share_queues_and_one_that_leaves_is_missed_at_once(
    world: World, bus: Bus, start_dispatcher: StartDispatcher
) -> None:
    async with start_dispatcher() as one:
        async with start_dispatcher() as two:
            await until(lambda: one.rounds.view.shares.nodes == {one.node_id, two.node_id})
            await until(lambda: two.rounds.view.shares.nodes == {one.node_id, two.node_id})
            queues = [ids.next() for _ in range(50)]
            assert all(
                one.rounds.view.shares.is_mine(queue) != two.rounds.view.shares.is_mine(queue)
                for queue in queues
            )
        await two.nodes.leave()
        await one.nodes.meet_peers()
        assert one.rounds.view.shares.nodes == {one.node_id}


async def test_without_redis_everybody_looks_after_everything(
    pools: Pools, start_dispatcher: StartDispatcher
) -> None:
    nowhere = Bus("redis://127.0.0.1:1/0", "nowhere")
    async with start_dispatcher(over=nowhere) as dispatcher:
        dispatcher.rounds.view.share_out(["1" * 32])
        await until(lambda: dispatcher.rounds.view.shares.nodes == frozenset())
        assert not dispatcher.rounds.bus_is_well
        metrics = DispatcherMetrics(CollectorRegistry())
        leaving = Nodes(
            pools.background,
            nowhere,
            dispatcher.rounds,
            dispatcher.waking,
            metrics,
            node_id=ids.next(),
            beat_ms=2_000,
            on_new_shares=lambda: None,
        )
        await leaving.leave()
    await nowhere.close()


async def test_upkeep_makes_partitions_and_prunes_receipts(world: World, pools: Pools) -> None:
    upkeep = Upkeep(pools.background)
    await upkeep.make_partitions()
    assert await upkeep.make_partitions() == 0
    world.now = datetime.now(UTC) - timedelta(hours=1)
    running = await world.running(await world.worker())
    for _ in range(3):
        assert (await world.renew(world.again(running))).code == "ok"
        world.wait(1_000)
    assert await upkeep.prune() == 3
    assert await upkeep.prune() == 0
