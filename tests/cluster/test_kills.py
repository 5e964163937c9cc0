"""Processes die without a word: what was acknowledged stays, and nothing runs twice by us."""

import asyncio

import httpx
import pytest

from tests.cluster.conftest import LEASE_MS, Scene

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

TASKS = 200


async def test_a_killed_gateway_costs_neither_a_task_nor_an_attempt(scene: Scene) -> None:
    """R-159, INV-9, INV-20, INV-22: workers resume on the other gateway what they run."""
    await scene.add_worker()
    await scene.add_worker()
    await scene.submit(TASKS, seconds=0.3)
    await scene.until("running handlers", scene.count_runs, 40)
    await asyncio.to_thread(scene.cluster.gateways[0].kill)
    await scene.settle(TASKS)
    assert await scene.states() == {"SUCCEEDED": TASKS}
    assert await scene.attempt_counts() == {1: TASKS}
    assert set(scene.runs().values()) == {1}


async def test_a_killed_dispatcher_is_missed_only_until_the_next_one(scene: Scene) -> None:
    """INV-9, INV-44: grants stop with the only dispatcher and go on with another."""
    await scene.add_worker()
    await scene.submit(TASKS // 2, seconds=0.05)
    await scene.until("running handlers", scene.count_runs, 10)
    await asyncio.to_thread(scene.cluster.dispatchers[0].kill)
    await scene.submit(TASKS // 2, seconds=0.05)
    await asyncio.to_thread(scene.cluster.dispatchers[0].start)
    await scene.settle(TASKS)
    assert await scene.states() == {"SUCCEEDED": TASKS}
    assert set(scene.runs().values()) == {1}


async def test_a_killed_workers_tasks_go_by_their_recovery_class(scene: Scene) -> None:
    """INV-6, INV-10, OP-25: idempotent work runs again elsewhere, the rest is for a person."""
    doomed = await scene.add_worker()
    again = await scene.submit(4, seconds=30)
    never = await scene.submit(4, seconds=30, recovery_safety="RECONCILE_ONLY")
    await scene.until("running handlers", scene.count_runs, 8)
    await asyncio.to_thread(doomed.kill)
    await scene.until("reviews", scene.count_settled, len(never))
    for task_id in never:
        assert (await scene.client.get(task_id)).state == "NEEDS_REVIEW"
    # The second life begins on another process, under a higher epoch.
    await scene.add_worker()
    await scene.until("second runs", scene.count_runs, 12)
    runs = scene.runs()
    assert [runs[task_id] for task_id in again] == [2] * 4
    assert [runs[task_id] for task_id in never] == [1] * 4
    assert await scene.states() == {"OPEN": 4, "NEEDS_REVIEW": 4}


async def test_work_longer_than_its_lease_is_renewed_and_runs_once(scene: Scene) -> None:
    """R-125, INV-20: three leases long, one attempt."""
    await scene.add_worker()
    await scene.submit(8, seconds=3 * LEASE_MS / 1000)
    await scene.settle(8)
    assert await scene.states() == {"SUCCEEDED": 8}
    assert await scene.attempt_counts() == {1: 8}
    assert set(scene.runs().values()) == {1}


async def test_live_gateways_take_over_the_balancers_traffic(scene: Scene) -> None:
    """R-155: any node serves; a dead one is passed over."""
    await asyncio.to_thread(scene.cluster.gateways[1].kill)
    async with httpx.AsyncClient(base_url=scene.cluster.url) as http:
        answers = [(await http.get("/health/ready")).status_code for _ in range(4)]
    assert answers == [200] * 4
