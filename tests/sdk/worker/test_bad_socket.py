"""A worker whose socket is refused or cut while plain HTTP works keeps what it runs (R-154)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from devcluster.balancer import Balancer
from orbit_sdk import TaskFailed, Worker
from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import App, Dispatcher, Gateway, make_app, running_gateway, submit
from tests.waiting import wait_until

LEASE_MS = 4_000
SHORT_RETRY = {"max_attempts": 3, "initial_delay_ms": 60_000, "max_delay_ms": 60_000}


class Scene:
    """One gateway behind a balancer, and one worker whose handler ends when it is told to."""

    def __init__(self, gateway: Gateway, balancer: Balancer, app: App, pools: Pools, bus: Bus):
        self.gateway = gateway
        self.balancer = balancer
        self.app = app
        self.pools = pools
        self.dispatcher = Dispatcher(pools, bus, lease_ms=LEASE_MS)
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.runs = 0
        self.fails_with: str | None = None
        self.worker = Worker(
            f"http://127.0.0.1:{balancer.port}", app.credential, app.queue, capacity=2, grace_s=20
        )
        self.worker.handler("send")(self.handle)

    async def handle(self) -> dict[str, int]:
        self.runs += 1
        self.began.set()
        await self.may_end.wait()
        if self.fails_with is not None:
            raise TaskFailed(self.fails_with)
        return {"run": self.runs}

    async def give(self, http: httpx.AsyncClient, **changes: Any) -> str:
        """Submit a task and grant it to the worker's newest session; its id, once it runs."""
        answer = await submit(http, **changes)
        task_id: str = answer.json()["data"]["id"]
        await wait_until(self.open_sessions, lambda count: count == 1, 15)
        session_id = await self.pools.background.fetchval(
            "SELECT id FROM session WHERE closed_at IS NULL"
        )
        await self.dispatcher.dispatch(session_id)
        async with asyncio.timeout(10):
            await self.began.wait()
        return task_id

    async def open_sessions(self) -> int:
        return int(
            await self.pools.background.fetchval(
                "SELECT count(*) FROM session WHERE closed_at IS NULL"
            )
        )

    def break_sockets(self) -> None:
        self.balancer.refusing_upgrades = True
        self.balancer.cut()

    async def lease_until(self, task_id: str) -> object:
        return await self.pools.background.fetchval(
            "SELECT lease_until FROM lease WHERE task_id = $1", task_id
        )

    async def renewals(self, task_id: str) -> int:
        """Renewals that were kept so far."""
        return int(
            await self.pools.background.fetchval(
                "SELECT count(*) FROM receipt r JOIN lease l USING (attempt_id)"
                " WHERE l.task_id = $1 AND r.operation = 'renew'",
                task_id,
            )
        )

    async def state(self, task_id: str) -> tuple[str | None, int]:
        (row,) = await self.pools.background.fetch(
            "SELECT state, attempt_count FROM task WHERE id = $1", task_id
        )
        return row["state"], row["attempt_count"]


@asynccontextmanager
async def _scene(
    database_url: str, redis_url: str, cluster_name: str, pools: Pools, bus: Bus
) -> AsyncIterator[tuple[Scene, httpx.AsyncClient]]:
    app = await make_app(pools)
    own_bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, own_bus, lease_ms=LEASE_MS) as gateway:
        balancer = Balancer([int(gateway.url.rpartition(":")[2])])
        await balancer.start()
        scene = Scene(gateway, balancer, app, pools, bus)
        serving = asyncio.create_task(scene.worker.serve())
        try:
            async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http:
                yield scene, http
        finally:
            scene.may_end.set()
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
            await balancer.stop()


@pytest.fixture
async def scene(
    database_url: str, redis_url: str, cluster_name: str, pools: Pools, bus: Bus
) -> AsyncIterator[tuple[Scene, httpx.AsyncClient]]:
    async with _scene(database_url, redis_url, cluster_name, pools, bus) as both:
        yield both


@pytest.mark.timeout(90)
async def test_three_leases_without_a_socket_are_one_attempt(
    scene: tuple[Scene, httpx.AsyncClient],
) -> None:
    """R-125, R-154, INV-20: renewed and reported over HTTP; the socket comes back afterwards."""
    place, http = scene
    task_id = await place.give(http)
    place.break_sockets()
    await wait_until(place.open_sessions, lambda count: count == 0, 10)
    before = await place.lease_until(task_id)
    # Each renewal adds less than a lease to its end: so many of them span three leases.
    await wait_until(lambda: place.renewals(task_id), lambda count: count >= 7, 40)
    after = await place.lease_until(task_id)
    assert (after - before).total_seconds() > 2.5 * LEASE_MS / 1000  # type: ignore[operator]
    place.may_end.set()
    await wait_until(lambda: place.state(task_id), lambda found: found[0] is not None, 15)
    assert await place.state(task_id) == ("SUCCEEDED", 1)
    assert await place.open_sessions() == 0  # nothing of it came by a socket
    assert place.runs == 1
    place.balancer.refusing_upgrades = False
    place.began.clear()
    second = await place.give(http)
    await wait_until(lambda: place.state(second), lambda found: found[0] is not None, 15)
    assert place.runs == 2


@pytest.mark.timeout(60)
async def test_a_report_that_waits_for_a_socket_goes_over_http(
    scene: tuple[Scene, httpx.AsyncClient],
) -> None:
    """INV-9: a failure too, with its code."""
    place, http = scene
    place.fails_with = "smtp.down"
    retry = SHORT_RETRY | {"attempt_timeout_ms": 60_000}
    task_id = await place.give(http, retry=retry)
    place.break_sockets()
    await wait_until(place.open_sessions, lambda count: count == 0, 10)
    place.may_end.set()
    await wait_until(lambda: place.lease_until(task_id), lambda until: until is None, 15)
    (row,) = await place.pools.background.fetch("SELECT state, error_code FROM attempt")
    assert tuple(row) == ("FAILED", "smtp.down")
    assert await place.open_sessions() == 0


@pytest.mark.timeout(60)
async def test_a_cancellation_is_heard_without_a_socket(
    scene: tuple[Scene, httpx.AsyncClient],
) -> None:
    """OP-03: the answer to the next renewal says it, whichever way that went."""
    place, http = scene
    task_id = await place.give(http)
    place.break_sockets()
    await wait_until(place.open_sessions, lambda count: count == 0, 10)
    answer = await http.post(
        f"/v1/tasks/{task_id}:cancel",
        json={"reason": "not needed"},
        headers={"Idempotency-Key": "cancel-it"},
    )
    assert answer.status_code == 202, answer.text
    await wait_until(lambda: place.state(task_id), lambda found: found[0] is not None, 20)
    assert await place.state(task_id) == ("CANCELLED", 1)
    attempt = await place.pools.background.fetchval("SELECT state FROM attempt")
    assert attempt == "CANCELLED"  # it stopped and said so; no lapse was needed
