"""A dispatcher whose streams bring nothing is told by its own probes, and serves by the twins."""

import asyncio

import pytest

from store.bus import Bus
from tests.dispatcher.conftest import FakeGateway, StartDispatcher, until
from tests.dispatcher.test_assign import counts, submit, wait_for_reader
from tests.store.world import World


@pytest.mark.timeout(60)
async def test_a_deaf_reader_of_hints_is_replaced_and_nothing_waits_for_it(
    world: World, bus: Bus, fake_gateway: FakeGateway, start_dispatcher: StartDispatcher
) -> None:
    """INV-14, INV-39, B-31: its loops turn, its beats go on, and it hears nothing."""
    fake_gateway.worker = await world.worker(capacity=10)
    async with start_dispatcher(scan_s=0.2) as dispatcher:
        await wait_for_reader(dispatcher)
        await until(lambda: dispatcher.reader.heard_count > 0)
        entered = asyncio.Event()

        async def hears_nothing(block_ms: int, _count: int) -> list[object]:
            entered.set()
            await asyncio.sleep(block_ms / 1000)
            return []

        dispatcher.reader._reader.read = hears_nothing  # type: ignore[method-assign, assignment]
        await entered.wait()
        heard = dispatcher.reader.heard_count
        await submit(world, bus, 3)
        await until(lambda: counts(world, "lease", 3))
        await until(lambda: dispatcher.value("orbit_assigned_tasks_total", path="twin") == 3)
        await until(lambda: dispatcher.value("orbit_stream_restarts_total") == 1)
        await until(lambda: dispatcher.reader.heard_count > heard)
        assert not dispatcher.reader.is_deaf
