"""Where beliefs come from: the wake and capacity streams, and their slow twins in Postgres.

Where: loops of a dispatcher that write its `View`; rounds read it.
Promise: with the streams a round starts within a millisecond; without them every due task of an
owned queue is found by the next scan of routes, every free slot by the next scan of levels.
"""

import asyncio
import time
from typing import Any

import asyncpg

from dispatcher.assign import ACQUIRE_S, STORE_ERRORS
from dispatcher.limits import HINTS_BLOCK_MS, HINTS_READ_MAX
from dispatcher.metrics import DispatcherMetrics
from dispatcher.view import View
from runtime import failpoints
from runtime.loops import Loop
from store.bus import BusUnavailable
from store.dispatch import active_queues, due_routes, open_session_levels
from store.messages import Levels, Wake
from store.proven_reader import PROBE_INTERVAL_S, ProvenReader

LEVELS_STEP = 500  # sessions taken in one go: about two milliseconds
BUS_BACKOFF_S = 0.2  # the reader backs off by itself


class Hints:
    """Reads streams and scans, and tells the view."""

    def __init__(
        self,
        view: View,
        reader: ProvenReader,
        pool: "asyncpg.Pool[Any]",
        metrics: DispatcherMetrics,
    ) -> None:
        self._view = view
        self._reader = reader
        self._pool = pool
        self._metrics = metrics
        self._scan_routes_now = asyncio.Event()
        self._scan_levels_now = asyncio.Event()

    def loops(self, route_scan_s: float, level_scan_s: float) -> list[Loop]:
        """The four loops, to be run by `run_loops`."""
        return [
            Loop("hints", self.read_streams, 0, backoff_max_s=BUS_BACKOFF_S, expected=STORE_ERRORS),
            Loop("probe", self.probe, PROBE_INTERVAL_S, expected=STORE_ERRORS),
            Loop(
                "scan-routes",
                self.scan_routes,
                route_scan_s,
                wake=self._scan_routes_now,
                backoff_max_s=1.0,
                expected=STORE_ERRORS,
            ),
            Loop(
                "scan-levels",
                self.scan_levels,
                level_scan_s,
                wake=self._scan_levels_now,
                backoff_max_s=1.0,
                expected=STORE_ERRORS,
            ),
        ]

    def scan_now(self) -> None:
        """Run both scans at once: this dispatcher looks after other queues than before."""
        self._scan_levels_now.set()
        self._scan_routes_now.set()

    async def read_streams(self) -> int:
        """Take what the streams bring; waits up to a second for it."""
        if failpoints.armed:
            await failpoints.reach("dispatcher.bus.read.before", BusUnavailable)
        entries = await self._reader.read(HINTS_BLOCK_MS, HINTS_READ_MAX)
        if failpoints.armed:
            await failpoints.reach("dispatcher.bus.read.after", BusUnavailable)
        for _, message in entries:
            if isinstance(message, Wake):
                self._view.hint_routes(message.routes)
            elif isinstance(message, Levels):
                taken = self._view.hint_levels(message.levels, time.monotonic())
                self._metrics.levels_by_stream.inc(taken)
        self._metrics.skipped_entries.set(self._reader.skipped_count)
        return len(entries)

    async def probe(self) -> int:
        """See that the streams are heard; a deaf reader is replaced, and the twins run at once."""
        replaced = await self._reader.probe()
        self._metrics.stream_deaf.set(self._reader.is_deaf)
        if replaced:
            self._metrics.stream_restarts.inc()
            self.scan_now()
        return replaced

    async def scan_routes(self) -> int:
        """Slow twin of `wake`: every route of the owned queues with a due task."""
        mark = self._view.mark()
        async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
            queue_ids = [q for q in await active_queues(connection) if self._view.shares.is_mine(q)]
            due = await due_routes(connection, queue_ids) if queue_ids else []
        news = self._view.due_routes(due, mark)
        self._metrics.backlog_routes.set(self._view.route_count())
        return news

    async def scan_levels(self) -> int:
        """Slow twin of `capacity`: every open session of the owned queues."""
        ledger = self._view.ledger
        try:
            async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
                queue_ids = [
                    q for q in await active_queues(connection) if self._view.shares.is_mine(q)
                ]
                mark, began = ledger.mark(), time.monotonic()
                levels = await open_session_levels(connection, queue_ids) if queue_ids else []
            news = 0
            for start in range(0, len(levels), LEVELS_STEP):
                news += self._view.session_levels(levels[start : start + LEVELS_STEP], mark, began)
                await asyncio.sleep(0)  # thousands of sessions must not hold up a round
            ledger.forget_closed(queue_ids, began)
        finally:
            ledger.lapse(time.monotonic())
        self._metrics.levels_by_twin.inc(news)
        self._metrics.sessions.set(ledger.session_count())
        self._metrics.free_slots.set(ledger.free_count())
        return news
