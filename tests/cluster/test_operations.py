"""Operations on a running cluster: running work stops in time, and a pause holds under load."""

import asyncio
import json
import time

import pytest

from orbit_sdk import AsyncClient
from store import pool
from tests.cluster.conftest import LEASE_MS, Scene

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

RENEWAL_S = LEASE_MS / 3 / 1000
MARGIN_S = 3.0
"""What a busy machine may add to an answer's way and to a handler's look at its flag."""


async def test_running_work_is_stopped_and_says_so(scene: Scene) -> None:
    """OP-03, INV-18: told by the next renewal, stopped within a third of the lease."""
    await scene.add_worker()
    task_ids = await scene.submit(4, seconds=60)
    await scene.until("running handlers", scene.count_runs, 4)
    began = time.monotonic()
    for task_id in task_ids:
        change = await scene.client.cancel(task_id, "not needed any more")
        assert change.state == "RUNNING"
    tasks = [await scene.client.wait(task_id, 30) for task_id in task_ids]
    assert time.monotonic() - began < RENEWAL_S + MARGIN_S
    assert {task.state for task in tasks} == {"CANCELLED"}
    assert {task.cancel_reason for task in tasks} == {"not needed any more"}
    for task_id in task_ids:
        (attempt,) = await scene.client.attempts(task_id)
        assert attempt.state == "CANCELLED"
        marks = attempt.cancel
        assert marks is not None
        assert (marks.cause, marks.forced_at) == ("caller", None)
        assert marks.acknowledged_at is not None
        assert marks.acknowledged_at >= marks.requested_at
    assert set(scene.runs().values()) == {1}
    # The slots are free again, and a task that is wanted after all has another life.
    await scene.client.retry(task_ids[0], "needed after all")
    await scene.until("runs", scene.count_runs, 5)
    await scene.client.cancel(task_ids[0], "no")
    await scene.settle(4)
    assert await scene.states() == {"CANCELLED": 4}


async def test_a_silent_worker_is_stopped_by_its_lease(scene: Scene) -> None:
    """OP-25: nobody confirms, the window closes, nothing runs again."""
    worker = await scene.add_worker()
    (task_id,) = await scene.submit(1, seconds=60)
    await scene.until("running handlers", scene.count_runs, 1)
    await asyncio.to_thread(worker.kill)
    await scene.client.cancel(task_id, "gone")
    task = await scene.client.wait(task_id, 30)
    (attempt,) = await scene.client.attempts(task_id)
    assert (task.state, attempt.state) == ("CANCELLED", "EXPIRED")
    assert attempt.cancel is not None
    assert attempt.cancel.forced_at == attempt.finished_at
    await scene.settle(1)


async def manager_of(scene: Scene) -> AsyncClient:
    """A client that may pause queues, which workers and submitters may not."""
    scopes = ("--scope", "manage", "--scope", "read")
    made = await asyncio.to_thread(scene.cluster.run, "app", "create", "faults", *scopes, "--json")
    return AsyncClient(scene.cluster.url, json.loads(made)["credential"])


async def started_after(scene: Scene, event: str) -> int:
    """Attempts whose start the database stamped after the last such event."""
    connection = await pool.connect(scene.cluster.database_url)
    try:
        return int(
            await connection.fetchval(
                "SELECT count(*) FROM (SELECT started_at FROM attempt UNION ALL"
                " SELECT started_at FROM lease) a WHERE started_at >"
                " (SELECT occurred_at FROM event WHERE type = $1 ORDER BY id DESC LIMIT 1)",
                event,
            )
        )
    finally:
        await connection.close()


async def test_nothing_starts_after_a_pause_under_load(scene: Scene) -> None:
    """INV-18, OP-31: the answer to a pause is the end of all starts, until a resume."""
    for _ in range(2):
        await scene.add_worker()
    manager = await manager_of(scene)
    await scene.submit(400, seconds=0.05)
    await scene.until("running handlers", scene.count_runs, 40)
    for turn in range(1, 4):
        paused = await manager.pause_queue("default", f"incident {turn}")
        assert (paused.paused, paused.control_version) == (True, 2 * turn)
        assert await started_after(scene, "queue.paused") == 0
        runs = await scene.count_runs()
        await asyncio.sleep(0.5)  # a time in which about eighty would start
        assert await started_after(scene, "queue.paused") == 0
        # A start that was granted just before may still be on its way to its handler.
        assert await scene.count_runs() - runs <= 32
        resumed = await manager.resume_queue("default", "over")
        assert (resumed.paused, resumed.control_version) == (False, 2 * turn + 1)
        await scene.until("running handlers", scene.count_runs, runs + 40)
    await manager.aclose()
    await scene.settle(400)
    assert await scene.states() == {"SUCCEEDED": 400}
    assert await scene.attempt_counts() == {1: 400}
    assert set(scene.runs().values()) == {1}
