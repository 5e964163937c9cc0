"""The shortest lease that the contract allows is enough for our own worker (R-022, R-152)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from orbit_sdk import TaskContext, Worker
from orbit_sdk.protocol.limits import LEASE_MS_MIN
from orbit_sdk.worker.lease import margin_s
from store import dispatch
from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import App, Dispatcher, running_gateway, submit

RENEWALS = 3


@pytest.mark.parametrize(
    ("lease_s", "expected_s"), [(1.0, 1 / 3), (2.4, 0.8), (3.0, 1.0), (10.0, 1.0), (120.0, 12.0)]
)
def test_the_margin_leaves_something_of_every_lease(lease_s: float, expected_s: float) -> None:
    assert margin_s(lease_s) == pytest.approx(expected_s)


@asynccontextmanager
async def dispatching(pools: Pools, bus: Bus) -> AsyncIterator[None]:
    """Grant what waits, and settle what lapses, as long as this lasts."""
    dispatcher = Dispatcher(pools, bus, LEASE_MS_MIN)

    async def run() -> None:
        while True:
            async with pools.background.acquire() as connection:
                await dispatch.expire_leases(connection, 100)
                sessions = await connection.fetch("SELECT id FROM session WHERE closed_at IS NULL")
            for session in sessions:
                with contextlib.suppress(ValueError):  # it was closed meanwhile
                    await dispatcher.dispatch(session[0])
            await asyncio.sleep(0.05)

    running = asyncio.create_task(run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_work_goes_on_under_a_lease_of_a_second(
    database_url: str, redis_url: str, cluster_name: str, app: App, pools: Pools, bus: Bus
) -> None:
    """Renewed again and again. A stall of the machine may lapse an attempt; the next one tries."""

    async def renewals(attempt_id: str) -> int:
        query = "SELECT count(*) FROM receipt WHERE attempt_id = $1 AND operation = 'renew'"
        return int(await pools.background.fetchval(query, attempt_id))

    own_bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, own_bus, lease_ms=LEASE_MS_MIN) as gateway:
        worker = Worker(gateway.url, app.credential, queue=app.queue, capacity=1)

        @worker.handler("send")
        async def send(ctx: TaskContext) -> int:
            while True:
                if (seen := await renewals(ctx.attempt_id)) >= RENEWALS:
                    return seen
                await asyncio.sleep(0.02)

        serving = asyncio.create_task(worker.serve())
        async with (
            httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http,
            dispatching(pools, bus),
        ):
            retry = {
                "max_attempts": 100,
                "initial_delay_ms": 0,
                "max_delay_ms": 0,
                "attempt_timeout_ms": 3_600_000,
            }
            answer = await submit(http, retry=retry)
            task_id = answer.json()["data"]["id"]
            async with asyncio.timeout(40):
                task = {"state": "WAITING"}
                while task["state"] not in ("SUCCEEDED", "FAILED"):
                    task = (await http.get(f"/v1/tasks/{task_id}")).json()["data"]
                    await asyncio.sleep(0.05)
            worker.stop()
            await asyncio.wait_for(serving, 20)
    assert task["state"] == "SUCCEEDED", task
    assert int(str(task["result"])) >= RENEWALS
