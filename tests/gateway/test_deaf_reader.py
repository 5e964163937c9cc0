"""A reader that hears nothing while its node beats is found by what is missing, and replaced."""

import asyncio

import httpx
import pytest

from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import App, Dispatcher, Gateway, eventually, submit, worker_on


class Deaf:
    """A reader's `read` that brings nothing: it returns at its time, or never."""

    def __init__(self, returns: bool) -> None:
        self.entered = asyncio.Event()
        self._returns = returns

    async def read(self, block_ms: int, _count: int) -> list[object]:
        self.entered.set()
        if not self._returns:
            await asyncio.Event().wait()
        await asyncio.sleep(block_ms / 1000)
        return []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("returns", [True, False], ids=["empty", "hanging"])
async def test_work_goes_on_by_the_twin_until_the_reader_is_replaced(
    returns: bool, gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-14, INV-39, B-31: beats go on all the while and prove nothing."""
    node = gateway.node
    dispatcher = Dispatcher(pools, bus)

    async def metric(name: str) -> float:
        lines = (await http.get("/metrics")).text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))

    async with worker_on(gateway, app) as worker:
        await eventually(lambda: node.stream.heard_count > 0)
        await submit(http)
        await dispatcher.dispatch(worker.session_id)
        await worker.assignment()
        assert await metric('orbit_gateway_assignments_total{path="stream"}') == 1
        assert await metric("orbit_stream_deaf") == 0
        deaf = Deaf(returns)
        node.stream._reader.read = deaf.read  # type: ignore[method-assign, assignment]
        async with asyncio.timeout(10):
            await deaf.entered.wait()  # the read under way, which still heard, is over
        heard = node.stream.heard_count
        await submit(http)
        await dispatcher.dispatch(worker.session_id)
        assert (await worker.assignment(timeout_s=10)).task["state"] == "LEASED"
        assert await metric('orbit_gateway_assignments_total{path="twin"}') == 1
        beats = await pools.background.fetchval(
            "SELECT clock_timestamp() - max(beat_at) < interval '3 s' FROM node"
        )
        assert beats is True
        await eventually(lambda: node.stream.restarts_count > 0, 15)
        assert await metric("orbit_stream_restarts_total") == 1
        await eventually(lambda: node.stream.heard_count > heard and not node.stream.is_deaf, 15)
        assert await metric("orbit_stream_deaf") == 0
        assert not node.readiness().degraded
        await submit(http)
        await dispatcher.dispatch(worker.session_id)
        await worker.assignment(timeout_s=4)
        assert await metric('orbit_gateway_assignments_total{path="stream"}') == 2
    # What the old reader had missed was read by the new one, and not handed over again.
    assert worker.assigned == []
