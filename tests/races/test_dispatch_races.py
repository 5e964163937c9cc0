"""Races on the way from a task to a worker: B-17 to B-19, B-21, B-25, B-27, B-31.

Workers are those of the SDK, so what is counted is how often a handler really began.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis.asyncio

from devcluster.valkey import EmbeddedValkey
from runtime import failpoints
from tests.gateway.harness import eventually, worker_on
from tests.races.house import AT_ONCE, House, OpenHouse, report, run, take
from tests.races.repeats import CHEAP, IS_FULL, SEED

pytestmark = pytest.mark.timeout(240)

STEPS = [
    "gateway.submit_tasks.before", "gateway.submit_tasks.after", "gateway.bus.wake.before",
    "gateway.bus.wake.after", "dispatcher.bus.read.before", "dispatcher.bus.read.after",
    "dispatcher.peek.before", "dispatcher.claim.before", "dispatcher.claim.after",
    "dispatcher.bus.assign.before", "dispatcher.bus.assign.after", "gateway.bus.read.before",
    "gateway.bus.read.after", "gateway.frame.before", "gateway.start_attempts.before",
    "gateway.start_attempts.after", "gateway.renew_leases.before", "gateway.renew_leases.after",
    "gateway.finish_attempts.before", "gateway.finish_attempts.after", "gateway.bus.levels.before",
    "gateway.bus.levels.after", "dispatcher.expire.before", "dispatcher.expire.after",
]  # fmt: skip
"""Every step from a submission to the freed slot."""


@pytest.fixture
def redis_url(own_redis: EmbeddedValkey) -> str:
    """A server of this module's own, since its tests wipe it and cut its connections."""
    return own_redis.url()


def arm(text: str, seed: int = SEED) -> None:
    failpoints.arm(failpoints.read_failpoints(text, seed))


@pytest.mark.parametrize("step", STEPS)
async def test_b17_whatever_step_is_lost_each_task_runs_once(
    house_of: OpenHouse, step: str
) -> None:
    """INV-7, INV-9, INV-13, INV-14: a quarter of all passes through one step is lost.

    Fewer of the frames: an assignment that is lost again and again waits longer each time.
    """
    of_frames = step == "gateway.frame.before"
    async with house_of(lease_ms=3_000) as house, house.crew(work_s=0.02) as runs:
        arm(f"{step}=drop@{0.15 if of_frames else 0.25}")
        tasks = []
        for _ in range(1 if of_frames else 3):
            tasks += await house.submit(40, retry=AT_ONCE)
            await settled(house, timeout_s=120 if of_frames else 45)
        assert {runs[task] for task in tasks} == {1}
        failpoints.arm([])
        await nothing_is_held(house)


@pytest.mark.parametrize(
    "step", [step for step in STEPS if "bus" not in step and "frame" not in step]
)
async def test_b17_whatever_step_fails_by_our_own_fault_no_task_is_lost(
    house_of: OpenHouse, step: str
) -> None:
    """INV-9, INV-39: an exception that no code expects, now and then, at one step."""
    async with house_of(lease_ms=3_000) as house, house.crew(work_s=0.02) as runs:
        tasks = await house.submit(40, retry=AT_ONCE)
        arm(f"{step}=error@0.2")
        await settled(house, timeout_s=45)
        assert {runs[task] for task in tasks} == {1}
        failpoints.arm([])
        await nothing_is_held(house)


async def test_a_session_that_somebody_holds_gets_nothing_and_stops_nobody(house: House) -> None:
    """INV-9, INV-39: though each claim would have something for it too."""
    async with house.crew(2, 4) as runs:
        await house.until("SELECT count(*) FROM session WHERE closed_at IS NULL", 2)
        async with house.pools.background.acquire() as side, side.transaction():
            await side.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            held = await side.fetchval("SELECT id FROM session ORDER BY id LIMIT 1 FOR UPDATE")
            tasks = await house.submit(40)
            await settled(house, timeout_s=60)
            used = await house.rows("SELECT DISTINCT session_id FROM attempt")
            assert len(used) == 1
            assert used[0][0] != held
        tasks += await house.submit(40)
        await settled(house)
        assert {runs[task] for task in tasks} == {1}


async def settled(house: House, timeout_s: float = 20) -> None:
    await house.until("SELECT count(*) FROM task WHERE state IS NULL", 0, timeout_s=timeout_s)


async def nothing_is_held(house: House, timeout_s: float = 5) -> None:
    """At rest no lease is left, and no gateway thinks that a worker holds one (INV-13)."""
    assert await house.fetchval("SELECT count(*) FROM lease") == 0
    await eventually(
        lambda: (
            not any(
                socket.session.held or socket.session.open_commands
                for gateway in house.gateways
                for socket in gateway.node.sockets.values()
            )
        ),
        timeout_s=timeout_s,
    )


async def test_b18_failing_calls_to_redis_leak_no_slot(house: House, seed: int) -> None:
    """INV-13: a tenth of all calls fails, reads of a node's own stream too, before or after they
    were carried out; after the healing every slot takes work at the same time."""
    sites = ("gateway.bus.levels", "gateway.bus.wake", "gateway.bus.read")
    sites += ("dispatcher.bus.read", "dispatcher.bus.assign")
    rules = [f"{site}.{side}=drop@0.1" for site in sites for side in ("before", "after")]
    gate = asyncio.Event()
    gate.set()
    async with house.crew(capacity=8, gate=gate) as runs:
        arm(";".join(rules), seed)
        tasks = [task for _ in range(6) for task in await house.submit(40)]
        await settled(house, 90)
        failpoints.arm([])
        await nothing_is_held(house, 10)
        gate.clear()
        last = await house.submit(3 * 8)
        await eventually(lambda: all(runs[task] for task in last))
        gate.set()
        await settled(house)
    assert {runs[task] for task in tasks + last} == {1}


async def test_b19_a_freed_slot_is_filled_by_event(
    by_event_alone: Callable[[], None], house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-16: one slot, many tasks, and no scan that could find the next one.

    A freed slot that woke nobody would end the test. How long it takes is told, not judged.
    """
    count = 2_000 if IS_FULL else 3 * CHEAP
    gaps = []
    async with worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=1)
        await house.submit(count)
        given = await worker.assignment()
        by_event_alone()
        for _ in range(count - 1):
            await run(worker, given)
            freed = time.monotonic()
            given = await worker.assignment()
            gaps.append(time.monotonic() - freed)
        await run(worker, given)
    shares = statistics.quantiles(gaps, n=100)
    with capsys.disabled():
        print(  # noqa: T201 - a figure for whoever runs it
            f"\nB-19: {count} tasks in turn; from the ack of a finish to the next assignment"
            f" p50 {1000 * shares[49]:.1f} ms, p99 {1000 * shares[98]:.1f} ms"
        )


async def test_b21_work_from_before_a_dispatchers_life_is_found(
    house_of: OpenHouse, own_redis: EmbeddedValkey, seed: int
) -> None:
    """INV-9, INV-14: nobody dispatches, no wake gets out, Redis is wiped; then one starts."""
    async with house_of(dispatchers=0) as house:
        arm("gateway.bus.wake.before=drop", seed)
        await house.submit(500)
        async with house.crew(capacity=64):
            await flush(own_redis)
            began = time.monotonic()
            async with house.dispatching():
                await settled(house)
            assert time.monotonic() - began < 10


async def test_b25_trimmed_assignments_are_found_again(
    house_of: OpenHouse, own_redis: EmbeddedValkey, tmp_path: Path
) -> None:
    """INV-14, INV-39: the stream is emptied under a reader that has not read it."""
    async with house_of() as house, worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=50)
        gate = tmp_path / "gate"
        arm(f"gateway.bus.read.before=pause:{gate}")
        await asyncio.to_thread(_until_exists, tmp_path / "gate.here")
        await house.submit(50)
        await house.until("SELECT count(*) FROM lease", 50)
        await flush(own_redis)
        failpoints.arm([])
        gate.touch()
        for given in await take(worker, 50, timeout_s=10):
            await worker.ask("task.start", given.ref)
            await worker.ask("task.finish", report(given))


def _until_exists(file: Path) -> None:
    deadline = time.monotonic() + 10
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def flush(server: EmbeddedValkey) -> None:
    connection = redis.asyncio.Redis.from_url(server.url(), protocol=2)
    await connection.flushall()
    await connection.aclose()


async def test_b27_redis_wiped_under_load_costs_seconds_only(
    house: House, own_redis: EmbeddedValkey, seed: int
) -> None:
    """INV-14, INV-39: ten wipes; after each one a new task is done within five seconds."""
    async with house.crew(capacity=16) as runs:
        tasks = []
        for _ in range(10):
            tasks += await house.submit(60)
            await flush(own_redis)
            began = time.monotonic()
            tasks += await house.submit(1)
            await settled(house, 10)
            assert time.monotonic() - began < 5
    assert {runs[task] for task in tasks} == {1}


async def test_b31_every_redis_connection_killed_again_and_again(
    house_of: OpenHouse, own_redis: EmbeddedValkey, seed: int
) -> None:
    """INV-39, INV-40: the readers come back by themselves and readiness never lies."""
    killer = redis.asyncio.Redis.from_url(own_redis.url(), protocol=2)
    async with house_of() as house, house.crew(capacity=16) as runs:
        tasks = []
        for _ in range(25):
            tasks += await house.submit(20)
            await killer.client_kill_filter(_type="normal", skipme=True)
            began = time.monotonic()
            tasks += await house.submit(1)
            await settled(house, 10)
            assert time.monotonic() - began < 3
            assert all(gateway.node.readiness().ready for gateway in house.gateways)
        assert {runs[task] for task in tasks} == {1}
    await killer.aclose()


@pytest.mark.parametrize("loop", ["gateway.bus.read.before", "dispatcher.bus.read.before"])
async def test_b31_a_reader_that_dies_of_our_own_fault_is_started_again(
    house_of: OpenHouse, loop: str
) -> None:
    """INV-39: the supervised loop goes on after any exception; meanwhile the twin serves."""
    async with house_of() as house, house.crew() as runs:
        arm(f"{loop}=error")
        tasks = await house.submit(20)
        await settled(house)
        failpoints.arm([])
        tasks += await house.submit(20)
        await settled(house)
        assert {runs[task] for task in tasks} == {1}
