"""Who lives: this dispatcher's own beats, the view of its peers, and the end of dead nodes.

Where: two loops of every dispatcher. The beat in Redis shares out queues; the beat in Postgres and
the reaping decide which sessions are over (architecture, section 7).
Promise: a node is given up after three missed beats, if Postgres could be reached all the while;
its sessions are closed, what they had not started is woken, and its stream is deleted. Without
Redis every dispatcher looks after every queue: wasteful, never wrong.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import asyncpg

from dispatcher.assign import ACQUIRE_S, STORE_ERRORS, Rounds
from dispatcher.limits import BEATS_MISSED_MAX
from dispatcher.metrics import DispatcherMetrics
from dispatcher.waking import Waking
from runtime import failpoints
from runtime.logs import get_logger
from runtime.loops import Loop
from store.bus import Bus, BusUnavailable
from store.dispatch import beat_node, leave_node, reap_nodes

PEER_BEAT_S = 1.0  # in Redis: a dispatcher that dies leaves its queues alone for three of these
VIEW_KEEP_S = 3.0  # how long the last view holds while Redis is away

_log = get_logger(__name__)


class Nodes:
    """Beats of this dispatcher and what it makes of the beats of others."""

    def __init__(
        self,
        pool: "asyncpg.Pool[Any]",
        bus: Bus,
        rounds: Rounds,
        waking: Waking,
        metrics: DispatcherMetrics,
        *,
        node_id: str,
        beat_ms: int,
        on_new_shares: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._bus = bus
        self._rounds = rounds
        self._waking = waking
        self._clock = clock
        self._metrics = metrics
        self._node_id = node_id
        self._beat_ms = beat_ms
        self._on_new_shares = on_new_shares
        self._viewed_at = float("-inf")
        self._beaten_at = float("-inf")
        self._beats_since = float("-inf")

    def loops(self) -> list[Loop]:
        """Both loops, to be run by `run_loops`."""
        return [
            Loop("peers", self.meet_peers, PEER_BEAT_S, backoff_max_s=1.0, expected=STORE_ERRORS),
            Loop(
                "nodes",
                self.beat_and_reap,
                self._beat_ms / 1000,
                backoff_max_s=1.0,
                expected=STORE_ERRORS,
            ),
        ]

    async def meet_peers(self) -> int:
        """Beat in Redis and take the view of who else does; returns how many live."""
        try:
            await self._bus.beat("dispatcher", self._node_id)
            nodes = await self._bus.live_nodes(
                "dispatcher", int(BEATS_MISSED_MAX * PEER_BEAT_S * 1000)
            )
        except BusUnavailable:
            self._rounds.bus_is_well = False
            self._metrics.bus_up.set(0)
            if self._clock() - self._viewed_at > VIEW_KEEP_S:
                self._share_out([])
            raise
        self._viewed_at = self._clock()
        self._rounds.bus_is_well = True
        self._metrics.bus_up.set(1)
        self._share_out(nodes)
        return len(nodes)

    async def beat_and_reap(self) -> int:
        """Beat in Postgres and give up silent nodes; returns how many."""
        dead_after_ms = BEATS_MISSED_MAX * self._beat_ms
        async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
            await beat_node(connection, self._node_id, "dispatcher", False)
            if not self._could_others_beat(dead_after_ms / 1000):
                return 0
            if failpoints.armed:
                await failpoints.reach("dispatcher.reap.before")
            dead, routes = await reap_nodes(connection, dead_after_ms)
            if failpoints.armed:
                await failpoints.reach("dispatcher.reap.after")
        self._metrics.reaped_nodes.inc(len(dead))
        self._waking.wake(set(routes))
        if dead:
            _log.warning("nodes_given_up", nodes=dead)
            with contextlib.suppress(BusUnavailable):  # then the streams end by their TTL
                await self._bus.bury(dead)
        return len(dead)

    async def leave(self) -> None:
        """Say goodbye in both stores; a store that is away will notice the silence instead."""
        try:
            await self._bus.leave("dispatcher", self._node_id)
        except BusUnavailable:
            _log.info("left_without_goodbye", store="redis")
        try:
            async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
                await leave_node(connection, self._node_id)
        except STORE_ERRORS:
            _log.info("left_without_goodbye", store="postgres")

    def _could_others_beat(self, dead_after_s: float) -> bool:
        """Whether Postgres took our own beats all the while that a dead node would have missed.

        After an outage of the database everybody is silent, and nobody is dead.
        """
        now = self._clock()
        if now - self._beaten_at > dead_after_s / 2:
            self._beats_since = now
        self._beaten_at = now
        return now - self._beats_since >= dead_after_s

    def _share_out(self, nodes: list[str]) -> None:
        self._metrics.live_dispatchers.set(len(nodes))
        if self._rounds.view.share_out(nodes):
            _log.info("shares_changed", dispatchers=len(nodes))
            self._on_new_shares()
