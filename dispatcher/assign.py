"""Rounds: read what is ready, match, claim, send. The hop from Postgres to a gateway's stream.

Where: the assign loop of a dispatcher; every decision is in `View`, every proof in `claim_tasks`.
Promise: a hint starts a round at once, without a timer; what comes meanwhile waits for the next
round, so a burst becomes batches by itself. The claim is committed before anything is sent. If
Redis is away the assignments are not sent: their gateways find them in Postgres. If Postgres is
away the round fails, the beliefs stay, and the loop's backoff paces the next try.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg

from dispatcher.limits import (
    ENTRY_ASSIGNMENTS_MAX,
    ENTRY_PAYLOAD_BYTES_MAX,
    ROUND_PAIRS_MAX,
    ROUND_WORKERS,
)
from dispatcher.metrics import DispatcherMetrics
from dispatcher.view import Plan, Proposal, View
from orbit_sdk.protocol.ids import IdSource
from runtime import failpoints
from runtime.loops import Loop
from store.bus import Bus, BusUnavailable
from store.dispatch import Assignment, ClaimPair, claim_tasks, load_sessions, peek_ready

STORE_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that was cut in the middle of a call
    OSError,
    BusUnavailable,
)
"""What an absent or restarting store raises; expected, and retried by the loops."""

ROUND_INTERVAL_S = 1.0  # the loop's own safety net; rounds are started by hints
ROUND_DEADLINE_S = 30.0
ACQUIRE_S = 5.0


class Rounds:
    """A few workers that run rounds whenever the view has something to do."""

    def __init__(
        self,
        pool: "asyncpg.Pool[Any]",
        bus: Bus,
        ids: IdSource,
        metrics: DispatcherMetrics,
        *,
        node_id: str,
        lease_ms: int,
        pairs_max: int = ROUND_PAIRS_MAX,
    ) -> None:
        self.view = View(node_id, self._on_work, pairs_max)
        self.bus_is_well = True
        self._pool = pool
        self._bus = bus
        self._ids = ids
        self._metrics = metrics
        self._lease_ms = lease_ms
        self._wakes = [asyncio.Event() for _ in range(ROUND_WORKERS)]
        self._rests = [True] * ROUND_WORKERS
        self._running = 0
        self._closed = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._timer: asyncio.TimerHandle | None = None

    def loops(self) -> list[Loop]:
        """The workers, to be run by `run_loops`."""
        return [
            Loop(
                f"assign-{number}",
                self._ticker(number),
                ROUND_INTERVAL_S,
                wake=wake,
                deadline_s=ROUND_DEADLINE_S,
                backoff_max_s=1.0,
                expected=STORE_ERRORS,
            )
            for number, wake in enumerate(self._wakes)
        ]

    async def close(self, timeout_s: float) -> None:
        """Start no more rounds and wait for those in flight, so that what is claimed is sent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._quiet.wait()

    async def run_round(self) -> int:
        """One round, if there is anything to do; returns how many tasks were granted."""
        plan = None if self._closed else self.view.plan(time.monotonic())
        if plan is None:
            return 0
        began = time.perf_counter()
        won = await self._read_and_claim(plan)
        self._metrics.round_seconds.observe(time.perf_counter() - began)
        self._rest()
        return won

    def _on_work(self) -> None:
        """Wake one worker that rests; if there is none, they look again when their round ends."""
        for wake, rests in zip(self._wakes, self._rests, strict=True):
            if rests:
                wake.set()
                return

    def _ticker(self, number: int) -> Callable[[], Any]:
        async def tick() -> int:
            self._rests[number] = False  # and after a failure, until its backoff is over
            self._running += 1
            self._quiet.clear()
            try:
                won = await self.run_round()
            finally:
                self._running -= 1
                if not self._running:
                    self._quiet.set()
            self._rests[number] = True
            if self.view.has_work():
                self._wakes[number].set()
            return won

        return tick

    async def _read_and_claim(self, plan: Plan) -> int:
        proposal: Proposal | None = None
        is_settled = False
        try:
            async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
                if failpoints.armed:
                    await failpoints.reach("dispatcher.peek.before")
                ready = await peek_ready(connection, [(w.route_id, w.limit) for w in plan.wanted])
                proposal = self.view.propose(plan, ready, time.monotonic())
                if not proposal.pairs:
                    is_settled = True
                    return 0
                pairs = [
                    ClaimPair(task.task_id, session_id, self._ids.next())
                    for task, session_id in proposal.pairs
                ]
                if failpoints.armed:
                    await failpoints.reach("dispatcher.claim.before")
                won = await claim_tasks(connection, pairs, self._lease_ms)
                if failpoints.armed:
                    await failpoints.reach("dispatcher.claim.after")
                doubted = self.view.settle(proposal, {a.task_id for a in won}, time.monotonic())
                is_settled = True
        finally:
            if proposal is None:
                self.view.unread(plan)
            elif not is_settled:
                self.view.abandon(proposal, time.monotonic())
        self._count(proposal, len(won))
        await self._send(won, proposal)
        if doubted:
            await self._correct(doubted)
        return len(won)

    async def _send(self, won: Sequence[Assignment], proposal: Proposal) -> None:
        entries = entries_of(won)
        if not self.bus_is_well:
            self._metrics.unsent.inc(len(won))
            return
        try:
            if failpoints.armed:
                await failpoints.reach("dispatcher.bus.assign.before", BusUnavailable)
            entry_ids = await self._bus.assign_many(entries)
            if failpoints.armed:
                await failpoints.reach("dispatcher.bus.assign.after", BusUnavailable)
        except BusUnavailable:
            self.bus_is_well = False
            self._metrics.bus_up.set(0)
            self._metrics.unsent.inc(len(won))
            return
        for (_, assignments), entry_id in zip(entries, entry_ids, strict=True):
            for session_id in {assignment.session_id for assignment in assignments}:
                self.view.ledger.sent(proposal.promises[session_id], entry_id)

    async def _correct(self, doubted: Sequence[str]) -> None:
        """Ask Postgres what the sessions that refused can really take."""
        mark = self.view.ledger.mark()
        async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
            levels = await load_sessions(connection, doubted)
        self.view.correct_levels(doubted, levels, mark, time.monotonic())

    def _count(self, proposal: Proposal, won: int) -> None:
        slow = min(proposal.slow_pairs, won)
        self._metrics.assigned_by_twin.inc(slow)
        self._metrics.assigned_by_stream.inc(won - slow)
        self._metrics.refused.inc(len(proposal.pairs) - won)

    def _rest(self) -> None:
        """Set the timer that lets queues go on which rest after claims that won nothing."""
        seconds = self.view.next_hold(time.monotonic())
        if seconds is None or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._rested)

    def _rested(self) -> None:
        self._timer = None
        self.view.wake_rested(time.monotonic())
        self._rest()


def entries_of(won: Sequence[Assignment]) -> list[tuple[str, list[Assignment]]]:
    """Assignments by node, in entries that a gateway can take in one read."""
    entries: list[tuple[str, list[Assignment]]] = []
    open_entries: dict[str, tuple[list[Assignment], int]] = {}
    for assignment in won:
        entry, size = open_entries.get(assignment.node_id, ([], 0))
        size += len(assignment.task)
        is_full = len(entry) >= ENTRY_ASSIGNMENTS_MAX or size > ENTRY_PAYLOAD_BYTES_MAX
        if not entry or is_full:
            entry, size = [], len(assignment.task)
            entries.append((assignment.node_id, entry))
        entry.append(assignment)
        open_entries[assignment.node_id] = (entry, size)
    return entries
