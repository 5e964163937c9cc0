"""The dispatcher process: stores, loops, probe, and a way out in good order.

Where: `orbit dispatcher` runs it; nothing here decides anything.
Promise: it keeps no state that anybody would miss, so any number may run and each may die at any
time (INV-44). It waits for a database that is away or not migrated yet, and for a Redis that is
away it does not even wait. On a stop it starts no more rounds, sends what it has claimed, and
leaves both lists of nodes.
"""

import asyncio
import os
import time
from typing import Any

import asyncpg
from prometheus_client import CollectorRegistry

from dispatcher.assign import STORE_ERRORS, Rounds
from dispatcher.expire import Expiry
from dispatcher.hints import Hints
from dispatcher.metrics import DispatcherMetrics
from dispatcher.nodes import Nodes
from dispatcher.upkeep import Upkeep
from dispatcher.waking import Waking
from orbit_sdk.protocol.ids import IdSource
from runtime.logs import get_logger
from runtime.loops import Loop, late_loops, run_loops
from runtime.metrics import LoopMetrics, new_registry
from runtime.probe import NotReady, probe_app, serve_probe
from runtime.settings import DispatcherSettings
from store.bus import Bus
from store.migrate import check_version
from store.pool import Pools, connect, open_pools
from store.proven_reader import ProvenReader

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
LAST_ROUNDS_S = 3.0  # for rounds in flight at a stop; the rest of the grace time is not ours
# Late without Redis, which costs only time.
BUS_LOOPS = frozenset({"hints", "probe", "peers", "waking"})

_log = get_logger(__name__)


class Dispatcher:
    """One dispatcher of a cluster."""

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self._registry: CollectorRegistry = new_registry()
        self._loops: list[Loop] = []
        self._waits_for: str | None = "starting"
        ids = IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)
        self._ids = ids
        self.node_id = ids.next()

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises OSError if the probe's address cannot be had."""
        settings = self._settings
        async with asyncio.TaskGroup() as group:
            if settings.probe_port is not None:
                app = probe_app(self._registry, self.readiness)
                group.create_task(serve_probe(app, settings.probe_host, settings.probe_port, stop))
            pools = await self._open_database(stop)
            if pools is not None:
                bus = Bus(settings.redis_url.get_secret_value(), settings.cluster)
                try:
                    await self._dispatch(pools, bus, stop)
                finally:
                    await bus.close()
                    await pools.close()
        _log.info("dispatcher_stopped", node_id=self.node_id)

    def readiness(self) -> dict[str, Any]:
        """Facts for /health/ready; raises NotReady while Postgres or a duty is away (OP-48)."""
        if self._waits_for is not None:
            raise NotReady(self._waits_for)
        late = late_loops(self._loops)
        failed = [name for name in late if name not in BUS_LOOPS]
        if failed:
            raise NotReady(f"late: {', '.join(failed)}")
        return {"node_id": self.node_id, "degraded": bool(late)}

    async def _dispatch(self, pools: Pools, bus: Bus, stop: asyncio.Event) -> None:
        settings, metrics = self._settings, DispatcherMetrics(self._registry)
        pool = pools.background
        rounds = Rounds(
            pool,
            bus,
            self._ids,
            metrics,
            node_id=self.node_id,
            lease_ms=settings.lease_duration_ms,
            pairs_max=settings.round_pairs_max,
        )
        waking = Waking(rounds.view, bus)
        reader = ProvenReader(lambda _: bus.dispatch_reader(), bus.probe_hints)
        hints = Hints(rounds.view, reader, pool, metrics)
        nodes = Nodes(
            pool,
            bus,
            rounds,
            waking,
            metrics,
            node_id=self.node_id,
            beat_ms=settings.node_beat_ms,
            on_new_shares=hints.scan_now,
        )
        self._loops = [
            *nodes.loops(),
            *hints.loops(settings.route_scan_ms / 1000, settings.level_scan_ms / 1000),
            *rounds.loops(),
            waking.loop(),
            Expiry(pool, waking, metrics).loop(settings.expire_interval_ms / 1000),
            *Upkeep(pool).loops(),
        ]
        self._waits_for = None
        _log.info("dispatcher_started", node_id=self.node_id, cluster=settings.cluster)
        try:
            loops_stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(run_loops(self._loops, LoopMetrics(self._registry), loops_stop))
                await stop.wait()
                self._waits_for = "stopping"
                await rounds.close(LAST_ROUNDS_S)
                loops_stop.set()
        finally:
            await reader.close()
        await nodes.leave()

    async def _open_database(self, stop: asyncio.Event) -> Pools | None:
        """Pools of a database of this build's version; None if the stop came first."""
        dsn = self._settings.database_url.get_secret_value()
        wait_s = RETRY_FIRST_S
        while not stop.is_set():
            problem = await self._problem_of(dsn)
            if problem is None:
                try:
                    return await open_pools(
                        dsn, submit=1, lease=1, renew=1, background=self._settings.background_pool
                    )
                except STORE_ERRORS as error:
                    problem = f"Postgres: {type(error).__name__}"
            if problem != self._waits_for:
                _log.warning("waiting_for_database", reason=problem)
                self._waits_for = problem
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                wait_s = min(RETRY_MAX_S, 2 * wait_s)
        return None

    @staticmethod
    async def _problem_of(dsn: str) -> str | None:
        try:
            connection: asyncpg.Connection[Any] = await connect(dsn)
            try:
                return await check_version(connection)
            finally:
                await connection.close()
        except STORE_ERRORS as error:
            return f"Postgres: {type(error).__name__}"
