"""Redis wiped, restarted and cut off under a running dispatcher: time is lost, nothing else."""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import redis.asyncio as redis

from devcluster.valkey import EmbeddedValkey
from store.bus import Bus, BusUnavailable
from tests.dispatcher.conftest import FakeGateway, StartDispatcher, until
from tests.dispatcher.test_assign import counts, wait_for_reader
from tests.store.world import World

RECOVERY_S = 5.0  # INV-14


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    folder: Path = tmp_path_factory.mktemp("valkey")
    with EmbeddedValkey(folder) as server:
        yield server


@pytest.fixture
def redis_url(own_redis: EmbeddedValkey) -> str:
    """A server of this module's own, since its tests wipe and kill it."""
    return own_redis.url()


async def submit_and_wake(world: World, bus: Bus, count: int) -> list[str]:
    world.now = datetime.now(UTC)
    task_ids = await world.submitted(count)
    with contextlib.suppress(BusUnavailable):
        await bus.wake([(world.queue_id, world.route_id)])
    return task_ids


async def serve_until_settled(world: World, gateway: FakeGateway, worker_free: int) -> None:
    """Finish what comes, and report levels, until nothing waits or runs."""

    async def is_settled() -> bool:
        await gateway.find_unsent(500)
        got = []
        while not gateway.got.empty():
            got.append(gateway.got.get_nowait())
        if got:
            await gateway.finish(got)
            with contextlib.suppress(BusUnavailable):
                await gateway.report(gateway.worker, worker_free)
        return await counts(world, "ready", 0) and await counts(world, "lease", 0)

    await until(is_settled)


async def test_a_redis_wiped_again_and_again_loses_nothing(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher,
    redis_url: str,
) -> None:  # fmt: skip
    fake_gateway.worker = await world.worker(capacity=10)
    wiper = redis.Redis.from_url(redis_url, protocol=2)
    task_ids: list[str] = []
    async with start_dispatcher(scan_s=0.2) as dispatcher:
        await wait_for_reader(dispatcher)
        for _ in range(20):
            task_ids += await submit_and_wake(world, bus, 10)
            await wiper.flushall()
        began = time.monotonic()
        await serve_until_settled(world, fake_gateway, 10)
        assert time.monotonic() - began < 2 * RECOVERY_S
        keys = [key async for key in wiper.scan_iter()]
        assert keys
        assert all([await wiper.pttl(key) > 0 for key in keys]), "every key has a TTL"
    done = await world.connection.fetch("SELECT task_id, epoch FROM attempt")
    assert sorted(row[0] for row in done) == sorted(task_ids)
    assert {row[1] for row in done} == {1}
    await wiper.aclose()


async def test_the_fast_path_comes_back_by_itself_after_a_crash(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher,
    own_redis: EmbeddedValkey,
) -> None:  # fmt: skip
    fake_gateway.worker = await world.worker(capacity=10)
    async with start_dispatcher(scan_s=0.2) as dispatcher:
        await wait_for_reader(dispatcher)
        own_redis.kill()
        await until(lambda: dispatcher.value("orbit_bus_up") == 0)
        await submit_and_wake(world, bus, 5)
        await serve_until_settled(world, fake_gateway, 10)
        own_redis.start()
        began = time.monotonic()
        await until(lambda: dispatcher.value("orbit_bus_up") == 1)
        fast = dispatcher.value("orbit_assigned_tasks_total", path="stream")

        async def is_fast_again() -> bool:
            await submit_and_wake(world, bus, 1)
            await serve_until_settled(world, fake_gateway, 10)
            return dispatcher.value("orbit_assigned_tasks_total", path="stream") > fast

        await until(is_fast_again)
        assert time.monotonic() - began < RECOVERY_S
    assert await world.connection.fetchval("SELECT max(epoch) FROM attempt") == 1
