"""Gateways, dispatchers and workers in one process and one event loop, on real stores.

For races that need the whole path and no kill: failpoints are armed from the test itself, and a
lease that is to be over is put over in the database instead of waiting for it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
from pydantic import SecretStr

import orbit_sdk
from dispatcher.main import Dispatcher
from runtime import failpoints
from runtime.settings import DispatcherSettings
from store.bus import Bus
from store.pool import Pools, open_pools
from tests.gateway.harness import App, Assigned, Gateway, Worker, ids, make_app, submission
from tests.gateway.harness import running_gateway as run_gateway
from tests.races.books import balanced
from tests.waiting import wait_until

LONG_LEASE_MS = 30_000
AT_ONCE = {
    "max_attempts": 9,
    "initial_delay_ms": 0,
    "max_delay_ms": 0,
    "attempt_timeout_ms": 60_000,
}
SOON_S = 2.0
"""At once, on a busy machine. A lease is fifteen times as long: nothing can have waited for one."""


FRESH = httpx.Limits(keepalive_expiry=1.0)
"""No request goes out on a connection that the gateway may be about to close as idle."""

_CUT = (asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError)


@dataclass
class House:
    """All of it. `acked` counts what was accepted, for the books."""

    url: str
    gateways: list[Gateway]
    pools: Pools
    app: App
    lease_ms: int
    settings: DispatcherSettings
    acked: int = 0
    https: list[httpx.AsyncClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = _in_turn(self.https)

    async def submit(self, count: int, **changes: Any) -> list[str]:
        """Submit so many that are alike; every one is accepted."""
        return await self.submit_all([submission(self.app.queue, **changes)] * count)

    async def submit_all(self, items: Sequence[dict[str, object]]) -> list[str]:
        """Submit these, through one gateway after the other; every one is accepted."""
        made: list[str] = []
        for start in range(0, len(items), 500):
            part = [item | {"submission_key": ids.next()} for item in items[start : start + 500]]
            http = next(self._turns)
            answer = await http.post("/v1/tasks:batchSubmit", json={"items": part})
            assert answer.status_code == 200, answer.text
            made += [row["id"] for row in answer.json()["data"]["results"]]
        self.acked += len(items)
        return made

    async def fetchval(self, statement: str, *args: Any) -> Any:
        """What the database says, whatever happens to connections."""
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(OSError, asyncpg.InterfaceError, *_CUT):
                    return await self.pools.background.fetchval(statement, *args)

    async def rows(self, statement: str, *args: Any) -> list[Any]:
        """What the database says, when nothing is wrong with it."""
        return list(await self.pools.background.fetch(statement, *args))

    async def until(self, statement: str, wanted: Any, *args: Any, timeout_s: float = 20) -> None:
        """Wait until the database answers so."""
        await wait_until(
            lambda: self.fetchval(statement, *args), lambda got: bool(got == wanted), timeout_s
        )

    async def put_over(self, attempt_ids: Sequence[str]) -> None:
        """These leases end now."""
        await self.pools.background.execute(
            "UPDATE lease SET lease_until = clock_timestamp() WHERE attempt_id = ANY ($1::uuid[])",
            list(attempt_ids),
        )

    @asynccontextmanager
    async def dispatching(self, count: int = 1) -> AsyncIterator[None]:
        """So many more dispatchers."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(Dispatcher(self.settings).run(stop))
            try:
                yield
            finally:
                stop.set()

    @asynccontextmanager
    async def crew(
        self,
        count: int = 3,
        capacity: int = 16,
        work_s: float = 0.0,
        gate: asyncio.Event | None = None,
    ) -> AsyncIterator[Counter[str]]:
        """Workers of the SDK, each on a gateway in turn; how often a task really began, by id.

        What has begun ends after `work_s`, and not while the gate is there and not set.
        """
        runs: Counter[str] = Counter()

        async def send(context: orbit_sdk.TaskContext) -> None:
            runs[context.task_id] += 1
            await asyncio.sleep(work_s)
            if gate is not None:
                await gate.wait()

        workers = []
        for place in range(count):
            url = self.gateways[place % len(self.gateways)].url
            worker = orbit_sdk.Worker(url, self.app.credential, self.app.queue, capacity)
            worker.handler("send")(send)
            workers.append(worker)
        serving = [asyncio.create_task(worker.serve()) for worker in workers]
        try:
            yield runs
        finally:
            for worker in workers:
                worker.stop()
            await asyncio.wait_for(asyncio.gather(*serving), 60)

    async def balanced(self) -> None:
        async with self.pools.background.acquire() as connection:
            await balanced(connection, self.acked)


def _in_turn(https: list[httpx.AsyncClient]) -> Iterator[httpx.AsyncClient]:
    while True:
        yield from tuple(https)


async def take(worker: Worker, count: int, timeout_s: float = 15.0) -> list[Assigned]:
    """The next `count` assignments of a worker."""
    async with asyncio.timeout(timeout_s):
        return [await worker.assignment(timeout_s) for _ in range(count)]


async def run(worker: Worker, given: Assigned) -> None:
    """Start and finish one assignment."""
    started = await worker.ask("task.start", given.ref)
    assert started["type"] == "ack", started
    assert started["body"]["lease"]["active"], started
    await finish(worker, given)


async def finish(worker: Worker, given: Assigned) -> dict[str, Any]:
    frame = await worker.ask("task.finish", report(given))
    assert frame["type"] == "ack", frame
    return frame


def report(given: Assigned) -> dict[str, Any]:
    return {"ref": given.ref, "outcome": "SUCCEEDED", "result": {}}


async def work_off(worker: Worker, house: House) -> None:
    """Run whatever comes until every accepted task is settled."""
    statement = "SELECT count(*) FROM task WHERE state IS NULL"
    while await house.fetchval(statement):
        with contextlib.suppress(TimeoutError):
            await run(worker, await worker.assignment(0.2))


@asynccontextmanager
async def open_house(
    database_url: str,
    redis_url: str,
    cluster: str,
    *,
    gateways: int = 3,
    dispatchers: int = 1,
    lease_ms: int = LONG_LEASE_MS,
) -> AsyncIterator[House]:
    """A running house; at its end the failpoints are off again and the books balanced."""
    pools = await open_pools(database_url, submit=1, lease=1, background=4)
    settings = DispatcherSettings(
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url),
        cluster=cluster,
        lease_duration_ms=lease_ms,
        expire_interval_ms=100,
        background_pool=4,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pools.close)
        app = await make_app(pools)
        house = House(database_url, [], pools, app, lease_ms, settings)
        for _ in range(gateways):
            running = run_gateway(database_url, Bus(redis_url, cluster), lease_ms=lease_ms)
            gateway = await stack.enter_async_context(running)
            house.gateways.append(gateway)
            client = httpx.AsyncClient(
                base_url=gateway.url, headers=app.headers, timeout=15, limits=FRESH
            )
            house.https.append(await stack.enter_async_context(client))
        await stack.enter_async_context(house.dispatching(dispatchers))
        try:
            yield house
            failpoints.arm([])
            await house.balanced()
        finally:
            failpoints.arm([])


OpenHouse = Callable[..., AbstractAsyncContextManager[House]]
