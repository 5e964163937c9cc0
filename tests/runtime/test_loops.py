"""Supervised loops: whatever a tick does, it runs again; only the end of the run ends it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from runtime.loops import Loop, late_loops, run_loops
from runtime.metrics import LoopMetrics, metrics_text, new_registry


@asynccontextmanager
async def running(*loops: Loop) -> AsyncIterator[CollectorRegistry]:
    registry, stop = CollectorRegistry(), asyncio.Event()
    run = asyncio.create_task(run_loops(loops, LoopMetrics(registry), stop))
    try:
        yield registry
    finally:
        stop.set()
        async with asyncio.timeout(2):
            await run


def counting(
    goal: int, each: Callable[[int], Awaitable[None] | None]
) -> tuple[Callable[[], Awaitable[int]], asyncio.Event]:
    """A tick that calls `each` with its number, and an event set once `goal` ticks have begun."""
    reached, count = asyncio.Event(), 0

    async def tick() -> int:
        nonlocal count
        count += 1
        if count >= goal:
            reached.set()
        if (waiting := each(count)) is not None:
            await waiting
        return 2

    return tick, reached


async def within(event: asyncio.Event, seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()


def value(registry: CollectorRegistry, name: str, loop: str) -> float:
    found = registry.get_sample_value(name, {"loop": loop})
    assert found is not None
    return found


async def test_ticks_repeat_and_are_counted() -> None:
    tick, reached = counting(3, lambda _: None)
    async with running(loop := Loop("work", tick, 0.001)) as registry:
        await within(reached)
        assert loop.lag_s() < 1.0
        assert late_loops([loop]) == []
    assert value(registry, "orbit_loop_ticks_total", "work") >= 2
    assert value(registry, "orbit_loop_items_total", "work") >= 4
    assert value(registry, "orbit_loop_lag_seconds", "work") < 5.0


async def test_the_first_tick_does_not_wait_for_the_interval() -> None:
    tick, reached = counting(1, lambda _: None)
    async with running(Loop("work", tick, 3_600)):
        await within(reached)


@pytest.mark.parametrize("fault", [ValueError("x"), asyncio.CancelledError(), TimeoutError()])
async def test_a_failing_tick_runs_again(fault: BaseException) -> None:
    def each(number: int) -> None:
        if number <= 3:
            raise fault

    tick, reached = counting(4, each)
    async with running(loop := Loop("work", tick, 0.001)) as registry:
        await within(reached)
    assert value(registry, "orbit_loop_failures_total", "work") == 3
    assert loop.failures_in_row in (0, 3)


async def test_a_hanging_tick_is_cut_at_its_deadline() -> None:
    tick, reached = counting(2, lambda _: asyncio.sleep(3_600))
    async with running(Loop("work", tick, 0.001, deadline_s=0.05)) as registry:
        await within(reached)
        assert value(registry, "orbit_loop_failures_total", "work") >= 1


async def test_a_loop_cancelled_from_outside_goes_on() -> None:
    begun: asyncio.Queue[asyncio.Task[None] | None] = asyncio.Queue()

    async def tick() -> int:
        begun.put_nowait(asyncio.current_task())
        await asyncio.sleep(3_600)
        return 0

    async with running(Loop("work", tick, 0.001)) as registry, asyncio.timeout(3):
        for _ in range(2):
            task = await begun.get()
            assert task is not None
            task.cancel()
        assert await begun.get() is task
        assert value(registry, "orbit_loop_failures_total", "work") == 2


async def test_a_wake_ends_the_rest_at_once_and_many_are_one() -> None:
    wake = asyncio.Event()
    begun: list[float] = []

    async def tick() -> int:
        begun.append(time.monotonic())
        return 0

    async with running(Loop("work", tick, 3_600, wake=wake)):
        await asyncio.sleep(0.01)
        for _ in range(100):
            wake.set()
        await asyncio.sleep(0.01)
    assert len(begun) == 2


async def test_a_wake_during_a_tick_is_not_lost() -> None:
    wake = asyncio.Event()

    async def each(number: int) -> None:
        if number == 1:
            wake.set()

    tick, reached = counting(2, each)
    async with running(Loop("work", tick, 3_600, wake=wake)):
        await within(reached)


async def test_a_busy_loop_lets_others_run() -> None:
    tick, reached = counting(50, lambda _: None)
    async with running(Loop("busy", tick, 0), Loop("other", tick, 0)):
        await within(reached)


async def test_a_silent_loop_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.loops.LATE_AFTER_S", 0.01)
    tick, reached = counting(1, lambda _: asyncio.sleep(3_600))
    async with running(loop := Loop("work", tick, 0)):
        await within(reached)
        await asyncio.sleep(0.02)
        assert late_loops([loop]) == ["work"]


async def test_a_rare_duty_is_not_late_at_its_first_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.loops.LATE_AFTER_S", 0.05)

    def each(_: int) -> None:
        raise ValueError("x")

    tick, reached = counting(3, each)
    loop = Loop("rare", tick, 3_600)
    loop.last_good -= 3_600
    async with running(loop):
        assert late_loops([loop]) == []
        await within(reached)
        assert loop.failing_since + 0.05 < time.monotonic()
        assert late_loops([loop]) == ["rare"]


async def test_cancelling_the_run_ends_every_loop() -> None:
    tick, reached = counting(1, lambda _: asyncio.sleep(3_600))
    run = asyncio.create_task(
        run_loops([Loop("work", tick, 0)], LoopMetrics(CollectorRegistry()), asyncio.Event())
    )
    await within(reached)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not [t for t in asyncio.all_tasks() if t.get_name() == "loop-work"]


def test_the_registry_shows_the_process() -> None:
    assert b"process_resident_memory_bytes" in metrics_text(new_registry())


async def test_a_tick_that_swallows_the_cancel_is_the_last_one() -> None:
    async def each(_: int) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)

    tick, reached = counting(1, each)
    async with running(Loop("work", tick, 0)):
        await within(reached)
