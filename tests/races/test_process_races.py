"""Races that need a process to die or to freeze at one step: B-02, B-05, B-17, B-77."""

import signal
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from devcluster.processes import Process
from tests.races.arena import LEASE_MS, SETTLE_S, Arena, open_arena
from tests.races.repeats import sharing_repeats
from tests.stores import Stores
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GATEWAY_STEPS = [
    "gateway.submit_tasks.before", "gateway.submit_tasks.after", "gateway.bus.wake.before",
    "gateway.bus.wake.after", "gateway.bus.read.after", "gateway.frame.before",
    "gateway.frame.after", "gateway.start_attempts.before", "gateway.start_attempts.after",
    "gateway.renew_leases.before", "gateway.renew_leases.after", "gateway.finish_attempts.before",
    "gateway.finish_attempts.after", "gateway.bus.levels.before", "gateway.bus.levels.after",
    "gateway.open_sessions.before", "gateway.open_sessions.after",
]  # fmt: skip
DISPATCHER_STEPS = [
    "dispatcher.bus.read.after", "dispatcher.peek.before", "dispatcher.claim.before",
    "dispatcher.claim.after", "dispatcher.bus.assign.before", "dispatcher.bus.assign.after",
    "dispatcher.expire.before", "dispatcher.expire.after", "dispatcher.reap.before",
    "dispatcher.reap.after",
]  # fmt: skip
STEPS = len(GATEWAY_STEPS) + len(DISPATCHER_STEPS)


@pytest.fixture(scope="module")
def shared_arena(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with open_arena(stores, tmp_path_factory.mktemp("arena")) as opened:
        yield opened


@pytest.fixture
async def arena(shared_arena: Arena) -> AsyncIterator[Arena]:
    async with shared_arena.entered():
        yield shared_arena


@sharing_repeats(STEPS)
@pytest.mark.parametrize("step", GATEWAY_STEPS)
async def test_b17_a_gateway_killed_at_any_step_loses_and_doubles_nothing(
    arena: Arena, step: str, seed: int
) -> None:
    """INV-7, INV-9, INV-13, INV-22: SIGKILL right there, under load; the others go on."""
    victim = arena.victim(arena.cluster.gateways, seed)
    # Both workers may say hello in one call, so that one is the only one.
    nth = 1 if "open_sessions" in step else 1 + seed % 3
    await arena.heal({victim.name: f"{step}=kill@{nth}+"}, seed, at=victim)
    long = LEASE_MS / 2000 if "renew" in step else 0.05
    tasks = await _load_until_dead(arena, [victim.process], long)
    assert victim.process.exit_status == -signal.SIGKILL
    await arena.succeeded(tasks, attempts=None)
    assert set(arena.runs().values()) == {1}


async def _load_until_dead(arena: Arena, victims: list[Process], seconds: float) -> list[str]:
    """Submit batch after batch until one of the victims has died. Some steps come with the load,
    others with the clock."""
    tasks: list[str] = []
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        batch = await arena.submit(20, seconds, batch=5)
        tasks += batch

        async def is_over(batch: list[str] = batch) -> bool:
            return not all(v.alive for v in victims) or await arena.open_of(batch) == 0

        await wait_until(is_over, bool, 30)
        if not all(victim.alive for victim in victims):
            return tasks
    raise AssertionError("the step was never reached")


@sharing_repeats(STEPS)
@pytest.mark.parametrize("step", DISPATCHER_STEPS)
async def test_b17_a_dispatcher_killed_at_any_step_loses_and_doubles_nothing(
    arena: Arena, step: str, seed: int
) -> None:
    """INV-9, INV-13, INV-14, INV-44: SIGKILL right there; its peer takes its queues over."""
    nodes = arena.cluster.dispatchers
    await arena.heal({node.name: f"{step}=kill@{1 + seed % 5}+" for node in nodes}, seed)
    long = LEASE_MS / 1000 if "expire" in step else 0.02
    tasks = await _load_until_dead(arena, [node.process for node in nodes], long)
    dead = [node for node in nodes if not node.process.alive]
    assert dead
    assert dead[0].process.exit_status == -signal.SIGKILL
    await arena.heal_nodes()
    await arena.succeeded(tasks, attempts=None)
    assert set(arena.runs().values()) == {1}


async def test_b02_a_frozen_worker_that_wakes_overwrites_nothing(arena: Arena, seed: int) -> None:
    """INV-2, INV-5, INV-6: SIGSTOP after the start, until others have finished its tasks."""
    await arena.heal()
    tasks = await arena.submit(24, seconds=1.5)
    await arena.began(24)
    frozen = arena.workers[seed % 2]
    frozen.signal(signal.SIGSTOP)
    held = await arena.fetchval("SELECT count(*) FROM lease")
    await arena.settle(tasks)
    results = (
        "SELECT t.id, a.result, t.revision, t.epoch FROM task t JOIN attempt a"
        " ON a.id = t.attempt_id WHERE t.id = ANY ($1::uuid[]) ORDER BY t.id"
    )
    before = await arena.fetch(results, tasks)
    assert held > 0
    assert max(row["epoch"] for row in before) >= 2
    frozen.signal(signal.SIGCONT)
    # It is awake when it runs new tasks.
    more: list[str] = []
    while str(frozen.pid) not in arena.pids(more):
        more += await arena.submit(40, seconds=0.2)
        await arena.settle(more)
    assert await arena.fetch(results, tasks) == before
    await arena.succeeded(tasks + more, attempts=None)


async def test_b05_a_sweeper_that_slept_expires_nothing_that_was_renewed(
    arena: Arena, seed: int
) -> None:
    """INV-5, INV-6, INV-44: SIGSTOP a dispatcher for two leases while 24 attempts renew."""
    await arena.heal()
    sweeper = arena.cluster.dispatchers[seed % 2].process
    tasks = await arena.submit(24, seconds=3.5 * LEASE_MS / 1000)
    await arena.began(24)
    granted = await arena.fetchval("SELECT max(lease_until) FROM lease")
    sweeper.signal(signal.SIGSTOP)
    try:
        far = granted + timedelta(milliseconds=2 * LEASE_MS)
        await arena.until("SELECT clock_timestamp()", lambda now: now > far)
    finally:
        sweeper.signal(signal.SIGCONT)
    await arena.succeeded(tasks)
    assert set(arena.runs().values()) == {1}


async def test_b77_promoters_killed_between_claim_and_send(arena: Arena, seed: int) -> None:
    """INV-1, INV-9, INV-14: tasks due in one second; each dispatcher dies once on its way."""
    steps = ("dispatcher.bus.assign.before", "dispatcher.claim.after")
    armed = {
        node.name: f"{step}=kill@{1 + seed % 2}"
        for node, step in zip(arena.cluster.dispatchers, steps, strict=True)
    }
    await arena.heal(armed, seed)
    due = datetime.now(UTC) + timedelta(seconds=2)
    tasks = await arena.submit(300, available_at=due)

    async def alive() -> int:
        return sum(node.process.alive for node in arena.cluster.dispatchers)

    await wait_until(alive, lambda count: count < 2, 30)
    await arena.heal_nodes()
    await arena.succeeded(tasks, attempts=None)
    assert set(arena.runs().values()) == {1}
    early = "SELECT count(*) FROM attempt WHERE task_id = ANY ($1::uuid[]) AND granted_at < $2"
    assert await arena.fetchval(early, tasks, due) == 0
