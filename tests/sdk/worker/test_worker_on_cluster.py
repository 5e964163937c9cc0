"""The SDK against real gateways: whole lives, a killed gateway, a drain, the command line."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from orbit_sdk import AsyncClient, RetryPolicy, Submission, TaskContext, Worker
from orbit_sdk.errors import Conflict
from orbit_sdk.protocol.states import TaskState
from orbit_sdk.worker.worker import EXIT_CLEAN

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

MODULE = """
from orbit_sdk import TaskContext, Worker

worker = Worker(capacity=2)

@worker.handler("echo")
def echo(payload: dict[str, int], ctx: TaskContext) -> dict[str, int]:
    return payload

@worker.handler("slow")
def slow(ctx: TaskContext) -> str:
    print("slow has begun", flush=True)
    ctx.cancelled.wait(2)
    return "stopped" if ctx.cancelled.is_set() else "whole"
"""


@pytest.fixture
async def credential(cluster: "LocalCluster") -> str:
    return await asyncio.to_thread(cluster.create_app, "sdk", "default")


@pytest.fixture
async def client(cluster: "LocalCluster", credential: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.url, credential) as opened:
        yield opened


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        assert await asyncio.wait_for(task, 60) == EXIT_CLEAN


async def test_many_lives_are_lived_once(
    cluster: "LocalCluster", credential: str, client: AsyncClient
) -> None:
    worker = Worker(cluster.url, credential, capacity=64)
    calls: list[int] = []

    @worker.handler("square")
    async def square(number: int) -> int:
        calls.append(number)
        return number * number

    items = [Submission(handler="square", payload=n, key=f"square-{n}") for n in range(300)]
    async with serving(worker):
        first = await client.submit_batch(items)
        again = await client.submit_batch(items)
        tasks = [await client.wait(r.submitted.id) for r in first if r.submitted]
    assert [task.result for task in tasks] == [n * n for n in range(300)]
    assert sorted(calls) == list(range(300))
    assert all(r.submitted and r.submitted.deduplicated for r in again)
    assert [r.submitted and r.submitted.id for r in again] == [task.id for task in tasks]
    with pytest.raises(Conflict):
        await client.submit("square", -1, key="square-1")


async def test_a_killed_gateway_costs_no_running_attempt(
    cluster: "LocalCluster", credential: str, client: AsyncClient
) -> None:
    worker = Worker(cluster.url, credential, capacity=16)
    running: set[str] = set()
    all_run, go_on = asyncio.Event(), asyncio.Event()

    @worker.handler("hold")
    async def hold(ctx: TaskContext) -> dict[str, int]:
        running.add(ctx.task_id)
        if len(running) == 8:
            all_run.set()
        await go_on.wait()
        return {"epoch": ctx.epoch}

    async with serving(worker):
        submitted = [await client.submit("hold", {}) for _ in range(8)]
        async with asyncio.timeout(30):
            await all_run.wait()
        for gateway in cluster.gateways:
            await asyncio.to_thread(gateway.kill)
        for gateway in cluster.gateways:
            await asyncio.to_thread(gateway.start)
        go_on.set()
        tasks = [await client.wait(each.id, 60) for each in submitted]
    assert {task.state for task in tasks} == {TaskState.SUCCEEDED}
    assert {task.attempt_count for task in tasks} == {1}


async def test_a_failure_is_retried_as_the_submission_says(
    cluster: "LocalCluster", credential: str, client: AsyncClient
) -> None:
    worker = Worker(cluster.url, credential)

    @worker.handler("twice")
    def twice(ctx: TaskContext) -> int:
        if ctx.attempt_count == 1:
            raise RuntimeError("the first one never works")
        return ctx.attempt_count

    async with serving(worker):
        retry = RetryPolicy(max_attempts=2, initial_delay_ms=10, max_delay_ms=10)
        submitted = await client.submit("twice", {}, retry=retry)
        task = await client.wait(submitted.id)
        attempts = await client.attempts(submitted.id)
    assert (task.state, task.result, task.attempt_count) == (TaskState.SUCCEEDED, 2, 2)
    assert [attempt.error_code for attempt in attempts] == ["handler_error", None]
    assert attempts[0].result == {"error": "RuntimeError", "message": "the first one never works"}


@contextmanager
def command_line(cluster: "LocalCluster", credential: str, folder: Path) -> Iterator["CommandLine"]:
    (folder / "shop.py").write_text(MODULE)
    environment = {**os.environ, "ORBIT_URL": cluster.url, "ORBIT_CREDENTIAL": credential}
    line = CommandLine(folder, environment)
    try:
        yield line
    finally:
        for process in line.started:
            process.kill()
            process.communicate()


class CommandLine:
    """`orbit` as a user calls it, in a folder with a module of handlers."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", "from orbit_sdk.cli.main import main; main()", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, out + err
        assert "Traceback" not in err
        return out if code == 0 else err


async def test_the_command_line_submits_runs_and_drains(
    cluster: "LocalCluster", credential: str, tmp_path: Path
) -> None:
    await asyncio.to_thread(submit_run_and_drain, cluster, credential, tmp_path)


def submit_run_and_drain(cluster: "LocalCluster", credential: str, tmp_path: Path) -> None:
    with command_line(cluster, credential, tmp_path) as orbit:
        worker = orbit.start("worker", "shop:worker", "--capacity", "3")
        shown = orbit.run("task", "submit", "echo", "--payload", '{"n":7}', "--wait", "--json")
        task = orjson.loads(shown)
        assert (task["state"], task["result"]) == ("SUCCEEDED", {"n": 7})
        assert "SUCCEEDED" in orbit.run("task", "attempts", task["id"])
        assert "SUCCEEDED" in orbit.run("task", "watch", task["id"])
        assert "default" in orbit.run("queue", "list")
        assert "not_found" in orbit.run("task", "get", "0" * 32, code=4)

        slow = orjson.loads(orbit.run("task", "submit", "slow", "--json"))
        assert worker.stdout is not None
        assert worker.stdout.readline() == "slow has begun\n"
        worker.send_signal(signal.SIGTERM)
        out, log = worker.communicate(timeout=30)
        assert worker.returncode == 0, out + log
        assert "draining" in log
        assert orjson.loads(orbit.run("task", "get", slow["id"], "--json"))["result"] == "whole"
