"""A gateway node: the live state of one process, its loops, and whether it may be given work.

Everything here may vanish at any moment without loss: the truth is in Postgres, and this node only
holds sockets and the commands they asked for. Sessions of a node that stops beating are closed by
the dispatchers; a node that finds itself given up sends its workers elsewhere.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry

from gateway import limits
from gateway.catalog import Catalog
from gateway.commands import Commands
from gateway.credentials import Credentials
from gateway.faults import facts_of
from gateway.figures import watch, watch_paths
from gateway.hints import Hints
from gateway.http.health import Readiness
from gateway.store_calls import AWAY_ERRORS, Pool, StoreCalls
from gateway.worker.lease_secret import KeyRing
from gateway.worker.outlet import Outlet
from gateway.worker.registration import HasSession
from gateway.worker.session import Phase
from gateway.worker.socket import WorkerSocket
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.ids import IdSource
from runtime.logs import get_logger
from runtime.loops import Loop, run_loops
from runtime.metrics import LoopMetrics, new_registry
from store import dispatch
from store.bus import Bus, BusUnavailable
from store.commands import CloseSession, SessionOutcome
from store.messages import Notice, Superseded
from store.migrate import check_version
from store.pool import Pools
from store.proven_reader import PROBE_INTERVAL_S, ProvenReader

log = get_logger(__name__)
_LANE_RESTART_S: Final = 0.1
_DRAIN_POLL_S: Final = 0.02


class Node:
    """One process's gateway: `run` until cancelled, `drain` before that to stop in good order."""

    def __init__(
        self,
        *,
        open_pools: Callable[[], Awaitable[Pools]],
        bus: Bus,
        ring: KeyRing,
        lease_ms: int,
        session_max_ms: int,
        beat_interval_s: float,
    ) -> None:
        self.ids: Final = IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)
        self.node_id: Final = self.ids.next()
        self.ring: Final = ring
        self.lease_ms: Final = lease_ms
        self.session_max_ms: Final = session_max_ms
        self.registry: CollectorRegistry = new_registry()
        self.draining = False
        self.connections: set[WorkerSocket] = set()
        """Every open worker socket, registered or not."""
        self.sockets: dict[str, WorkerSocket] = {}
        """Worker sockets by session id, from the moment their session is sent to the store."""
        self.calls: Final = StoreCalls(open_pools)
        self.bus: Final = bus
        self.stream: Final = ProvenReader(
            lambda last: bus.reader("node", self.node_id, after=last),
            lambda: bus.probe_node(self.node_id),
        )
        self.outlet: Final = Outlet(
            self.sockets, self.calls, self.stream, self.node_id, lease_ms, revoked=self._doubt
        )
        self.hints: Final = Hints(bus, lambda: self.outlet.seen)
        self.commands: Final = Commands(
            self.calls,
            lease_ms / 1000,
            given_back=self.hints.wake,
            tell=self._tell,
        )
        self.credentials: Final = Credentials(self.calls)
        self.catalog: Final = Catalog(self.calls)
        self._credentials_due = asyncio.Event()
        self._beat_interval_s = min(beat_interval_s, limits.BEAT_INTERVAL_MAX_S)
        self._beat_at = float("-inf")
        self._beaten = False
        self._fault: str | None = "the database has not been reached yet"
        self._version_checked_at = float("-inf")
        self._bus_beats = True
        watch(self.registry, self.commands, self.sockets, self.connections)
        watch_paths(self.registry, self.outlet, self.stream)

    # --- running -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run lanes and loops until cancelled, then leave the cluster's books."""
        stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self.commands.lanes():
                    group.create_task(self._keep(lane.run, lane.name))
                group.create_task(run_loops(self._loops(), LoopMetrics(self.registry), stop))
        finally:
            await self._leave()

    def _loops(self) -> list[Loop]:
        hints, outlet = self.hints, self.outlet
        away = (BusUnavailable, *AWAY_ERRORS)

        def loop(
            name: str,
            tick: Callable[[], Awaitable[int]],
            interval_s: float = 1.0,
            wake: asyncio.Event | None = None,
        ) -> Loop:
            return Loop(name, tick, interval_s, wake=wake, backoff_max_s=1.0, expected=away)

        return [
            loop("beat", self.beat, self._beat_interval_s),
            loop("bus-beat", self._beat_bus, self._beat_interval_s),
            loop("stream", outlet.read_stream, 0.0),
            loop("probe", self.stream.probe, PROBE_INTERVAL_S),
            loop("large-assignments", outlet.load_large, wake=outlet.load_due),
            loop(
                "unsent-leases",
                lambda: outlet.find_unsent(self._redis_unwell),
                limits.UNSENT_TICK_S,
            ),
            loop("wakes", hints.send_wakes, wake=hints.wake_due),
            loop("levels", hints.send_levels, wake=hints.level_due),
            loop("levels-again", hints.repeat_levels),
            loop("notices", hints.send_notices, wake=hints.notice_due),
            loop("sweep", self._sweep, limits.SWEEP_INTERVAL_S),
            loop("sessions", self._check_sessions, limits.SESSION_CHECK_INTERVAL_S),
            loop(
                "credentials",
                self._check_credentials,
                limits.SWEEP_INTERVAL_S,
                wake=self._credentials_due,
            ),
        ]

    @staticmethod
    async def _keep(run: Callable[[], Awaitable[None]], name: str) -> None:
        while True:
            try:
                await run()
            except Exception as error:
                log.error("lane_failed", lane=name, **facts_of(error))
                await asyncio.sleep(_LANE_RESTART_S)

    async def _leave(self) -> None:
        async def quietly(work: Awaitable[Any]) -> None:
            try:
                async with asyncio.timeout(limits.BEAT_TIMEOUT_S):
                    await work
            except Exception as error:
                log.info("leaving_unseen", error=type(error).__name__)

        await quietly(self.bus.leave("gateway", self.node_id))
        await quietly(
            self.calls.run(
                Pool.BACKGROUND, limits.BEAT_TIMEOUT_S, dispatch.leave_node, self.node_id
            )
        )
        await quietly(self.stream.close())
        await quietly(self.bus.close())
        await self.calls.close()

    # --- readiness -----------------------------------------------------------------------------

    @property
    def _redis_unwell(self) -> bool:
        reads_badly = self.outlet.unwell or self.stream.is_deaf
        return self.hints.unwell or reads_badly or not self._bus_beats

    def readiness(self) -> Readiness:
        """Whether this node may be given work now (OP-48)."""
        if self.draining:
            return Readiness(False, "draining", self._redis_unwell)
        if self._fault is not None:
            return Readiness(False, self._fault, self._redis_unwell)
        if time.monotonic() - self._beat_at > limits.READY_STALE_S or self.is_stuck():
            return Readiness(False, "the database does not answer", self._redis_unwell)
        return Readiness(True, "", self._redis_unwell)

    def is_stuck(self) -> bool:
        """Whether work that waits for the store has waited too long to take more."""
        return self.commands.stuck_s() > limits.STUCK_S

    # --- loops ---------------------------------------------------------------------------------

    async def beat(self) -> int:
        """Say that this node lives, and learn whether the database is there and fits."""
        try:
            await self.calls.open()
            now = time.monotonic()
            if self._fault is not None or now - self._version_checked_at > (
                limits.VERSION_CHECK_INTERVAL_S
            ):
                self._fault = await self.calls.run(
                    Pool.BACKGROUND, limits.READ_TIMEOUT_S, check_version
                )
                self._version_checked_at = now
            if self._fault is not None:
                return 0
            known = await self.calls.run(
                Pool.BACKGROUND,
                limits.BEAT_TIMEOUT_S,
                dispatch.beat_node,
                self.node_id,
                "gateway",
                self.draining,
            )
        except Exception:
            self._beat_at = float("-inf")
            raise
        self._beat_at = time.monotonic()
        given_up = not known and self._beaten
        self._beaten = True
        if given_up:
            await self._check_sessions()
        return 1

    async def _check_sessions(self) -> int:
        """Agree with the store on the open sessions of this node.

        A socket whose session is closed there is ended, for the reason that the store has: a notice
        that it was superseded may be lost, or never sent (OP-13). A session without a socket here
        comes from a hello that was committed after its connection had given up; while this node
        beats, nobody else would close it, and dispatchers would go on granting to it.
        """
        if not self.calls.is_open:
            return 0
        ours = [socket for socket in self.sockets.values() if socket.session.phase is Phase.READY]
        still_open = await self.calls.run(
            Pool.BACKGROUND, limits.CALL_TIMEOUT_S, dispatch.sessions_of_node, self.node_id
        )
        open_ids = set(still_open)
        closed = [socket for socket in ours if socket.session.session_id not in open_ids]
        if closed:
            superseded = await self.calls.run(
                Pool.BACKGROUND,
                limits.CALL_TIMEOUT_S,
                dispatch.superseded_sessions,
                [socket.session.session_id for socket in closed],
            )
            for socket in closed:
                was_superseded = socket.session.session_id in superseded
                socket.end(
                    ErrorCode.SESSION_SUPERSEDED if was_superseded else ErrorCode.SESSION_EXPIRED
                )
        for session_id in open_ids - self.sockets.keys():
            self.commands.close.offer(CloseSession(session_id, "disconnected"), _ignore)
        return len(ours)

    async def _beat_bus(self) -> int:
        try:
            await self.bus.beat("gateway", self.node_id)
        except BusUnavailable:
            self._bus_beats = False
            raise
        self._bus_beats = True
        return 1

    async def _sweep(self) -> int:
        now = asyncio.get_running_loop().time()
        for socket in list(self.connections):
            socket.sweep(now)
        return len(self.connections)

    async def _check_credentials(self) -> int:
        """End the sessions of credentials that were revoked or have expired (OP-15)."""
        keys = list({socket.key_id for socket in self.connections})
        refused = await self.credentials.refused(keys)
        if refused:
            for socket in [each for each in self.connections if each.key_id in refused]:
                socket.end(ErrorCode.SESSION_EXPIRED)
        return len(keys)

    def _doubt(self, key_id: str) -> None:
        """A credential is said to be revoked: a hint, so the store is asked, and at once."""
        self.credentials.doubt(key_id)
        self._credentials_due.set()

    # --- sessions ------------------------------------------------------------------------------

    def admit(self, socket: HasSession) -> None:
        """A socket whose session is about to be opened in the store."""
        assert isinstance(socket, WorkerSocket)
        self.sockets[socket.session.session_id] = socket

    def dismiss(self, socket: HasSession) -> None:
        """A socket whose session will take nothing more."""
        self.sockets.pop(socket.session.session_id, None)

    def session_opened(self, outcome: SessionOutcome) -> None:
        """Tell the connection that a new session replaced, wherever it is (OP-13)."""
        session_id, node_id = outcome.superseded_session_id, outcome.superseded_node_id
        if session_id is not None and node_id is not None:
            self._tell(node_id, Superseded(session_id))

    def _tell(self, node_id: str, notice: Notice) -> None:
        """Tell the node that has the connection what became of its session or attempt."""
        if node_id == self.node_id:
            self.outlet.heed(notice)
        else:
            self.hints.notify(node_id, notice)

    # --- drain ---------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Leave in good order (INV-41): unready, no new work, answers flushed, then 1012.

        Attempts may go on renewing and finishing here for `grace_s`; what still runs then is
        resumed by its worker on another node.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.draining = True
        for socket in list(self.connections):
            socket.drain_node()
        try:
            await self.beat()
        except Exception as error:
            log.warning("drain_unseen", error=type(error).__name__)
        notice_s = min(limits.DRAIN_NOTICE_S, grace_s)
        while loop.time() - began < grace_s:
            busy = any(socket.session.held for socket in self.connections)
            if not busy and loop.time() - began >= notice_s:
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        await self.commands.idle(limits.DRAIN_FLUSH_S)
        for socket in list(self.connections):
            socket.end(ErrorCode.DRAINING)
        flushed_by = loop.time() + limits.DRAIN_FLUSH_S
        while loop.time() < flushed_by:
            if not self.connections:
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        await self.commands.idle(limits.DRAIN_FLUSH_S)


def _ignore(_command: object, _outcome: object) -> None:
    """Nobody waits for this answer."""
