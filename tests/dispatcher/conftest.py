"""A world on the database's own clock, a gateway that only reads, a running dispatcher."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from dispatcher.assign import Rounds
from dispatcher.expire import Expiry
from dispatcher.hints import Hints
from dispatcher.metrics import DispatcherMetrics
from dispatcher.nodes import Nodes
from dispatcher.waking import Waking
from orbit_sdk.protocol.ids import IdSource
from runtime.loops import Loop, run_loops
from runtime.metrics import LoopMetrics
from store import commands, dispatch
from store.bus import Bus, BusUnavailable, CapacityLevel
from store.dispatch import Assignment
from store.messages import Assigned
from store.pool import Pools
from store.proven_reader import ProvenReader
from tests.store.world import LEASE_MS, Worker, World

NEVER_S = 3_600.0
PATIENCE_S = 15.0
ids = IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    made = await World.create(database_url)
    made.now = datetime.now(UTC)
    yield made
    await made.close()


async def until(is_so: Callable[[], Awaitable[bool] | bool]) -> None:
    """Return once it is so; TimeoutError if it never is. Lets other tasks run between looks."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        answer = is_so()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0)
    raise TimeoutError("it never came to be so")


class FakeGateway:
    """Takes the assignments of the world's node, as they come."""

    def __init__(self, world: World, bus: Bus) -> None:
        self.world = world
        self.bus = bus
        self.worker: Worker
        self.seen = "0-0"
        self.got: asyncio.Queue[Assignment] = asyncio.Queue()
        self.delivered: set[str] = set()

    async def run(self) -> None:
        reader = self.bus.reader("node", self.world.node_id)
        try:
            while True:
                with contextlib.suppress(BusUnavailable):
                    for entry_id, message in await reader.read(500, 100):
                        assert isinstance(message, Assigned)
                        self.seen = entry_id
                        self._deliver(message.assignments)
        finally:
            await reader.close()

    async def find_unsent(self, older_than_ms: int) -> None:
        """The slow twin: what was granted to the node and never came."""
        connection = self.world.connection
        unsent = await dispatch.unsent_leases(
            connection, self.world.node_id, older_than_ms, LEASE_MS
        )
        missing = [attempt_id for attempt_id, _ in unsent if attempt_id not in self.delivered]
        if missing:
            self._deliver(await dispatch.load_assignments(connection, missing))

    def _deliver(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            if assignment.attempt_id not in self.delivered:
                self.delivered.add(assignment.attempt_id)
                self.got.put_nowait(assignment)

    async def take(self, count: int, seconds: float = 10.0) -> list[Assignment]:
        """The next `count` assignments."""
        async with asyncio.timeout(seconds):
            return [await self.got.get() for _ in range(count)]

    async def report(self, worker: Worker, free: int) -> None:
        level = CapacityLevel(
            worker.session_id, worker.node_id, self.world.queue_id, worker.hello.routes, free,
            self.seen,
        )  # fmt: skip
        await self.bus.report_capacity([level])

    async def finish(self, assignments: list[Assignment]) -> None:
        """Start and finish them in the store."""
        world = self.world
        world.now = datetime.now(UTC)
        starts = [world.command(assignment) for assignment in assignments]
        await commands.start_attempts(world.connection, starts)
        finishes = [world.finish_of(start) for start in starts]
        outcomes = await commands.finish_attempts(world.connection, finishes)
        assert {outcome.code for outcome in outcomes} == {"ok"}


class RunningDispatcher:
    """The parts of a dispatcher inside the test's event loop; scans run only when asked to."""

    def __init__(self, pools: Pools, bus: Bus, *, scan_s: float, lease_ms: int) -> None:
        self.node_id = ids.next()
        self.now = 0.0
        self.registry = CollectorRegistry()
        metrics = DispatcherMetrics(self.registry)
        self.rounds = Rounds(
            pools.background, bus, ids, metrics, node_id=self.node_id, lease_ms=lease_ms
        )
        self.waking = Waking(self.rounds.view, bus)
        self.reader = ProvenReader(lambda _: bus.dispatch_reader(), bus.probe_hints)
        self.hints = Hints(self.rounds.view, self.reader, pools.background, metrics)
        self.nodes = Nodes(
            pools.background,
            bus,
            self.rounds,
            self.waking,
            metrics,
            node_id=self.node_id,
            beat_ms=2_000,
            on_new_shares=self.hints.scan_now,
            clock=lambda: self.now,
        )
        self.expiry = Expiry(pools.background, self.waking, metrics)
        self.loops: list[Loop] = [
            *self.rounds.loops(),
            *self.hints.loops(scan_s, scan_s),
            self.nodes.loops()[0],
            self.waking.loop(),
        ]
        self.stop = asyncio.Event()

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def run(self) -> None:
        await run_loops(self.loops, LoopMetrics(self.registry), self.stop)


StartDispatcher = Callable[..., contextlib.AbstractAsyncContextManager[RunningDispatcher]]


@pytest.fixture
def start_dispatcher(pools: Pools, bus: Bus) -> StartDispatcher:
    """Start a dispatcher on this test's stores; `scan_s` is how often its slow twins run."""

    @asynccontextmanager
    async def start(
        scan_s: float = NEVER_S, lease_ms: int = LEASE_MS, over: Bus | None = None
    ) -> AsyncIterator[RunningDispatcher]:
        dispatcher = RunningDispatcher(pools, over or bus, scan_s=scan_s, lease_ms=lease_ms)
        running = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
        finally:
            await dispatcher.rounds.close(3.0)
            dispatcher.stop.set()
            await running
            await dispatcher.reader.close()

    return start


@pytest.fixture
async def fake_gateway(world: World, bus: Bus) -> AsyncIterator[FakeGateway]:
    gateway = FakeGateway(world, bus)
    running = asyncio.create_task(gateway.run())
    yield gateway
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
