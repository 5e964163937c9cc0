"""Races that need a process to die or to freeze: B-02, B-05, B-13, B-14, B-17, B-41, B-77."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from devcluster.processes import Process
from tests.races.arena import LEASE_MS, Arena, open_arena
from tests.stores import Stores
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GATEWAY_STEPS = [
    "gateway.submit_tasks.before", "gateway.submit_tasks.after", "gateway.bus.read.after",
    "gateway.frame.before", "gateway.start_attempts.before", "gateway.start_attempts.after",
    "gateway.renew_leases.after", "gateway.finish_attempts.before", "gateway.finish_attempts.after",
    "gateway.frame.after", "gateway.bus.levels.after", "gateway.open_sessions.after",
]  # fmt: skip
DISPATCHER_STEPS = [
    "dispatcher.bus.read.after", "dispatcher.peek.before", "dispatcher.claim.before",
    "dispatcher.claim.after", "dispatcher.bus.assign.before", "dispatcher.bus.assign.after",
    "dispatcher.expire.after",
]  # fmt: skip


@pytest.fixture(scope="module")
def shared_arena(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with open_arena(stores, tmp_path_factory.mktemp("arena"), LEASE_MS) as opened:
        yield opened


@pytest.fixture
def patient_arena(stores: Stores, tmp_path: Path) -> Iterator[Arena]:
    """One of this test's own, whose leases outlive a slow start of all gateways."""
    with open_arena(stores, tmp_path, 5 * LEASE_MS) as opened:
        yield opened


@pytest.fixture
async def arena(shared_arena: Arena) -> AsyncIterator[Arena]:
    await shared_arena.heal()
    await shared_arena.workers_ready(2)
    yield shared_arena
    for worker in shared_arena.workers:
        worker.signal(signal.SIGCONT)


@pytest.mark.parametrize("step", GATEWAY_STEPS)
async def test_b17_a_gateway_killed_at_any_step_loses_and_doubles_nothing(
    arena: Arena, step: str, seed: int
) -> None:
    """INV-7, INV-9, INV-13, INV-22: SIGKILL right there, under load; the other one goes on."""
    victim, other = arena.cluster.gateways[seed % 2], arena.cluster.gateways[1 - seed % 2]
    # Both workers may say hello in one call, so that one is the only one.
    nth = 1 if "open_sessions" in step else 1 + seed % 3
    await arena.restart(victim, f"{step}=kill@{nth}+", seed)
    await arena.gather_at(victim, other)
    long = LEASE_MS / 1000 if "renew" in step else 0.05
    tasks = await _load_until_dead(arena, [victim.process], long)
    assert victim.process.exit_status == -signal.SIGKILL
    await arena.settle(tasks)
    assert set(arena.runs().values()) == {1}
    assert await _all_succeeded(arena, tasks)


async def _load_until_dead(arena: Arena, victims: list[Process], seconds: float) -> list[str]:
    """Submit batch after batch until one of the victims has died."""
    tasks: list[str] = []
    for _ in range(20):
        batch = await arena.submit(20, seconds=seconds)
        tasks += batch

        async def is_over(batch: list[str] = batch) -> bool:
            return not all(v.alive for v in victims) or await arena.open_of(batch) == 0

        await wait_until(is_over, bool, 30)
        if not all(victim.alive for victim in victims):
            return tasks
    raise AssertionError("the step was never reached")


@pytest.mark.parametrize("step", DISPATCHER_STEPS)
async def test_b17_a_dispatcher_killed_at_any_step_loses_and_doubles_nothing(
    arena: Arena, step: str, seed: int
) -> None:
    """INV-9, INV-13, INV-14, INV-44: SIGKILL right there; its peer takes its queues over."""
    first, second = arena.cluster.dispatchers
    for victim in (first, second):
        await arena.restart(victim, f"{step}=kill@{1 + seed % 5}+", seed)
    long = 2 * LEASE_MS / 1000 if "expire" in step else 0.02
    tasks = await _load_until_dead(arena, [first.process, second.process], long)
    dead = [node for node in (first, second) if not node.process.alive]
    assert dead
    assert dead[0].process.exit_status == -signal.SIGKILL
    await arena.heal_nodes()
    await arena.settle(tasks)
    assert set(arena.runs().values()) == {1}
    assert await _all_succeeded(arena, tasks)


async def _all_succeeded(arena: Arena, tasks: list[str]) -> bool:
    count = "SELECT count(*) FROM task WHERE id = ANY ($1::uuid[]) AND state = 'SUCCEEDED'"
    return bool(await arena.fetchval(count, tasks) == len(tasks))


async def test_b02_a_frozen_worker_that_wakes_overwrites_nothing(arena: Arena, seed: int) -> None:
    """INV-2, INV-5, INV-6: SIGSTOP after the start, until others have finished its tasks."""
    tasks = await arena.submit(8, seconds=1.5)
    await arena.began(8)
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
    assert max(row["epoch"] for row in before) == 2
    frozen.signal(signal.SIGCONT)
    # It is awake when it has said hello anew.
    sessions = await arena.fetchval("SELECT count(*) FROM session")
    more = await arena.submit(64, seconds=0.2)
    await arena.settle(more)
    await arena.until("SELECT count(*) FROM session", lambda found: found >= sessions)
    assert await arena.fetch(results, tasks) == before
    assert await _all_succeeded(arena, tasks)


async def test_b05_a_sweeper_that_slept_expires_nothing_that_was_renewed(
    arena: Arena, seed: int
) -> None:
    """INV-5, INV-6, INV-44: SIGSTOP a dispatcher for two leases while 24 attempts renew."""
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
    await arena.settle(tasks)
    assert await arena.attempts(tasks) == {1: 24}
    assert set(arena.runs().values()) == {1}


async def test_b13_workers_of_a_killed_gateway_get_work_through_the_other(
    arena: Arena, seed: int
) -> None:
    """INV-14, INV-17, INV-22: within five seconds, and nothing is left on the dead one's list."""
    victim = arena.cluster.gateways[seed % 2]
    tasks = await arena.submit(200, seconds=0.1)
    await arena.began(20)
    dead = await arena.fetch(
        "SELECT s.id FROM session s WHERE s.closed_at IS NULL ORDER BY s.opened_at"
    )
    await asyncio.to_thread(victim.kill)
    began = time.monotonic()
    await arena.workers_ready(1)
    probe = await arena.submit(32, seconds=0.0, priority=9)
    await arena.settle(probe)
    assert time.monotonic() - began < 2 * LEASE_MS / 1000
    await arena.settle(tasks)
    assert dead
    assert await arena.attempts(tasks) == {1: 200}
    assert set(arena.runs().values()) == {1}


async def test_b14_all_gateways_restarted_within_a_lease_run_nothing_twice(
    patient_arena: Arena, seed: int
) -> None:
    """INV-1, INV-22: what runs is resumed, not given out again."""
    arena = patient_arena
    await arena.workers_ready(2)
    tasks = await arena.submit(24, seconds=1.5 * LEASE_MS / 1000)
    await arena.began(24)
    gateways = arena.cluster.gateways
    for node in gateways:
        await asyncio.to_thread(node.kill if seed % 2 else node.stop)
    await asyncio.gather(*(asyncio.to_thread(node.start) for node in gateways))
    await arena.settle(tasks)
    assert await arena.attempts(tasks) == {1: 24}
    assert set(arena.runs().values()) == {1}


async def test_b41_a_gateway_told_to_stop_under_load_loses_no_answer(
    arena: Arena, seed: int
) -> None:
    """INV-7, INV-41: SIGTERM in full traffic; it ends by itself, in time, with status 0."""
    leaving = arena.cluster.gateways[seed % 2]
    tasks = await arena.submit(100, seconds=0.05)
    await arena.began(10)
    leaving.process.signal(signal.SIGTERM)
    tasks += await arena.submit(100, seconds=0.05)
    status = await asyncio.to_thread(leaving.process.wait_end, 20)
    assert status == 0
    await arena.settle(tasks)
    assert await arena.attempts(tasks) == {1: 200}
    assert set(arena.runs().values()) == {1}


async def test_b77_promoters_killed_between_claim_and_send(arena: Arena, seed: int) -> None:
    """INV-1, INV-9, INV-14: tasks due in one second; each dispatcher dies once on its way."""
    due = datetime.now(UTC) + timedelta(seconds=3)
    for place, node in enumerate(arena.cluster.dispatchers):
        step = "dispatcher.claim.after" if place else "dispatcher.bus.assign.before"
        await arena.restart(node, f"{step}=kill@{1 + seed % 2}", seed)
    tasks = await arena.submit(300, available_at=due)

    async def alive() -> int:
        return sum(node.process.alive for node in arena.cluster.dispatchers)

    await wait_until(alive, lambda count: count < 2, 30)
    await arena.heal_nodes()
    await arena.settle(tasks)
    assert set(arena.runs().values()) == {1}
    early = "SELECT count(*) FROM attempt WHERE task_id = ANY ($1::uuid[]) AND granted_at < $2"
    assert await arena.fetchval(early, tasks, due) == 0
