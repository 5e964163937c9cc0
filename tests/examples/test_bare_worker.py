"""The contract is enough: a worker without the SDK does its tasks while gateways die under it."""

import ast
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from devcluster.processes import Process
from orbit_sdk import AsyncClient, Submission
from orbit_sdk.protocol.states import TaskState
from tests.arch.tree import ROOT, imported_modules, text_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster

EXAMPLE = Path("examples", "bare_worker.py")
TASKS = 80
SECONDS = 0.25
LINES_MAX = 150


def test_it_is_short_and_knows_no_sdk() -> None:
    text = text_of(EXAMPLE)
    assert len(text.splitlines()) < LINES_MAX
    third_party = imported_modules(ast.parse(text)) - sys.stdlib_module_names
    assert third_party == {"websockets"}


@pytest.mark.cluster
@pytest.mark.timeout(120)
async def test_it_finishes_every_task_once_though_gateways_are_killed(
    cluster: "LocalCluster", tmp_path: Path
) -> None:
    credential = await asyncio.to_thread(cluster.create_app, "bare", "default")
    worker = Process(
        name="bare-worker",
        argv=[sys.executable, str(EXAMPLE)],
        log_path=tmp_path / "worker.log",
        env={**os.environ, "ORBIT_URL": cluster.url, "ORBIT_CREDENTIAL": credential},
        cwd=ROOT,
    )
    await asyncio.to_thread(worker.start)
    try:
        async with AsyncClient(cluster.url, credential, timeout_s=30) as client:
            results = await client.submit_batch(
                [
                    Submission(handler="square", payload={"n": n, "seconds": SECONDS})
                    for n in range(TASKS)
                ]
            )
            ids = [result.submitted.id for result in results if result.submitted is not None]
            assert len(ids) == TASKS

            async def settled() -> int:
                return sum([(await client.get(task_id)).settled for task_id in ids])

            # The worker is on one of the two, so one of these kills cuts it off.
            for number, gateway in enumerate(cluster.gateways):
                least = (number + 1) * TASKS // 4
                await wait_until(settled, lambda got, least=least: got >= least, 60)
                await asyncio.to_thread(gateway.kill)
                await asyncio.to_thread(gateway.start)
            tasks = [await client.wait(task_id, 60) for task_id in ids]
    finally:
        await asyncio.to_thread(worker.kill)
    assert {task.state for task in tasks} == {TaskState.SUCCEEDED}
    assert [task.result for task in tasks] == [n * n for n in range(TASKS)]
    assert {task.attempt_count for task in tasks} == {1}, "what ran was resumed, never run again"
    assert "disconnected" in worker.log_tail()
