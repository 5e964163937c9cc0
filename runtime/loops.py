"""Supervised loops: every background duty of a process is one `Loop` that `run_loops` keeps alive.

Where: under each process's start; the duties themselves are `tick` coroutines elsewhere.
Promise (INV-39): a tick that raises, hangs past its deadline or is cancelled from outside counts as
one failure, is logged at a bounded rate and runs again within `backoff_max_s`; only `run_loops`
itself ends a loop. Setting the wake event any number of times while a tick runs gives one more tick
at once, so a wake is never lost and never waits for a timer.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from runtime.logs import LogLimiter, get_logger
from runtime.metrics import LoopMetrics

FIRST_BACKOFF_S = 0.05  # a passing fault should not cost a visible pause
FAILURE_LOG_QUIET_S = 5.0  # a store that is down for an hour must not fill the log
JITTER = 0.1  # part of the interval by which ticks of many processes spread
LATE_AFTER_S = 5.0  # INV-40: readiness must notice within 5 s

_log = get_logger(__name__)


@dataclass(slots=True)
class Loop:
    """One duty. `tick` does one bounded piece of it and returns how many things it did.

    interval_s: rest between ticks, spread by a tenth; 0 means that `tick` itself waits.
    wake: ends the rest at once.
    deadline_s: a tick that takes longer is cancelled and counts as failed.
    backoff_max_s: longest rest after failures, never above 5 s.
    expected: errors of an absent store, logged as one line; others come with their trace.
    """

    name: str
    tick: Callable[[], Awaitable[int]]
    interval_s: float
    wake: asyncio.Event | None = None
    deadline_s: float = 30.0
    backoff_max_s: float = 5.0
    expected: tuple[type[Exception], ...] = ()
    last_good: float = field(default_factory=time.monotonic, init=False)
    failures_in_row: int = field(default=0, init=False)
    failing_since: float = field(default=float("inf"), init=False)

    def __post_init__(self) -> None:
        assert self.interval_s >= 0
        assert 0 < self.backoff_max_s <= 5.0

    def lag_s(self) -> float:
        """Seconds since the last good tick ended (since the loop was made, before the first)."""
        return time.monotonic() - self.last_good


def late_loops(loops: Iterable[Loop]) -> list[str]:
    """Names of the loops that have failed for a while, or hang (for readiness)."""
    now = time.monotonic()
    return [
        loop.name
        for loop in loops
        if now - loop.failing_since > LATE_AFTER_S
        or loop.lag_s() > LATE_AFTER_S + 2 * loop.interval_s
    ]


async def run_loops(loops: Sequence[Loop], metrics: LoopMetrics, stop: asyncio.Event) -> None:
    """Run all loops until `stop` is set or the caller is cancelled; returns when all have ended.

    A tick in hand is cancelled at its current await, so ticks must be safe to cancel.
    """
    runs = [_Run(loop, metrics) for loop in loops]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run.run(), name=f"loop-{run.loop.name}") for run in runs]
        try:
            await stop.wait()
        finally:
            for run, task in zip(runs, tasks, strict=True):
                run.ending = True
                task.cancel()


class _Run:
    """One loop at work."""

    def __init__(self, loop: Loop, metrics: LoopMetrics) -> None:
        self.loop = loop
        self.ending = False
        self._begun = False
        self._limiter = LogLimiter(FAILURE_LOG_QUIET_S)
        self._log = _log.bind(loop=loop.name)
        self._ticks = metrics.ticks.labels(loop.name)
        self._failures = metrics.failures.labels(loop.name)
        self._items = metrics.items.labels(loop.name)
        metrics.lag_seconds.labels(loop.name).set_function(loop.lag_s)

    async def run(self) -> None:
        while not self.ending:  # a library may swallow our cancel
            try:
                await self._rest()
                async with asyncio.timeout(self.loop.deadline_s):
                    done = await self.loop.tick()
            except asyncio.CancelledError as error:
                if self.ending:
                    raise
                self._forgive_cancel()
                self._failed(error)
            except Exception as error:
                self._failed(error)
            else:
                self._succeeded(done)

    async def _rest(self) -> None:
        loop = self.loop
        if not self._begun:
            self._begun = True
        elif loop.failures_in_row:
            longest = min(
                loop.backoff_max_s, FIRST_BACKOFF_S * 2 ** min(loop.failures_in_row - 1, 10)
            )
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))
        elif loop.wake is None:
            await asyncio.sleep(loop.interval_s * random.uniform(1 - JITTER, 1 + JITTER))
        elif loop.wake.is_set():
            await asyncio.sleep(0)
        else:
            try:
                async with asyncio.timeout(
                    loop.interval_s * random.uniform(1 - JITTER, 1 + JITTER)
                ):
                    await loop.wake.wait()
            except TimeoutError:
                pass
        if loop.wake is not None:
            loop.wake.clear()

    def _succeeded(self, done: int) -> None:
        loop = self.loop
        loop.last_good = time.monotonic()
        self._ticks.inc()
        self._items.inc(done)
        if loop.failures_in_row:
            if (held := self._limiter.held_back()) is not None:
                self._log.info("loop_recovered", failures=loop.failures_in_row, held_back=held)
            loop.failures_in_row = 0
            loop.failing_since = float("inf")

    def _failed(self, error: BaseException) -> None:
        loop = self.loop
        loop.failures_in_row += 1
        loop.failing_since = min(loop.failing_since, time.monotonic())
        self._failures.inc()
        held = self._limiter.held_back()
        if held is None:
            return
        known = isinstance(error, (*loop.expected, TimeoutError))
        self._log.warning(
            "loop_failed",
            error=f"{type(error).__name__}: {error}",
            held_back=held,
            failures=loop.failures_in_row,
            exc_info=None if known else error,
        )

    @staticmethod
    def _forgive_cancel() -> None:
        """A cancel that is not ours must not stick to the task and end its next await."""
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
