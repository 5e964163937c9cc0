"""A cluster to break: short leases, stores behind links, workers as processes."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from devcluster.cluster import LocalCluster, orbit_command
from devcluster.processes import Process
from orbit_sdk import AsyncClient
from orbit_sdk.client.models import RetryPolicy, Submission
from store import pool
from store.commands import Connection
from store.invariants import violations
from tests.arch.tree import ROOT
from tests.waiting import wait_until

LEASE_MS = 2_000
SETTLE_TIMEOUT_S = 60.0


class Scene:
    """A running cluster, its workers, a client, and the truth as the database has it."""

    def __init__(self, cluster: LocalCluster, credential: str, folder: Path) -> None:
        self.cluster = cluster
        self.log = folder / "runs.log"
        self.client = AsyncClient(cluster.url, credential, timeout_s=30)
        self.workers: list[Process] = []
        self.credential = credential
        self._folder = folder
        self._stack = ExitStack()

    async def add_worker(self) -> Process:
        """One more worker process; it connects through the balancer."""
        number = len(self.workers) + 1
        process = Process(
            name=f"worker-{number}",
            argv=[*orbit_command(), "worker", "tests.cluster.work:worker"],
            log_path=self._folder / f"worker-{number}.log",
            env={
                "ORBIT_URL": self.cluster.url,
                "ORBIT_CREDENTIAL": self.credential,
                "PYTHONPATH": str(ROOT),
                "PATH": os.environ.get("PATH", os.defpath),
                "PYTHONUNBUFFERED": "1",
            },
            cwd=Path(sys.prefix).parent,
        )
        self._stack.callback(process.kill)
        self.workers.append(process)
        before = await self.count_sessions()
        await asyncio.to_thread(process.start)
        await self.until("sessions", self.count_sessions, before + 1)
        return process

    async def submit(
        self, count: int, seconds: float = 0.0, recovery_safety: str = "IDEMPOTENT"
    ) -> list[str]:
        """Submit that many jobs; every one acknowledged, or the test fails here."""
        retry = RetryPolicy(max_attempts=5, initial_delay_ms=100, max_delay_ms=100)
        results = await self.client.submit_batch(
            [
                Submission(
                    handler="job",
                    payload={"log": str(self.log), "seconds": seconds},
                    recovery_safety=recovery_safety,
                    retry=retry,
                )
                for _ in range(count)
            ]
        )
        assert all(result.error is None for result in results), results
        return [result.submitted.id for result in results if result.submitted is not None]

    def runs(self) -> Counter[str]:
        """How often the handler really began, by task id."""
        if not self.log.exists():
            return Counter()
        return Counter(line.split()[0] for line in self.log.read_text().splitlines())

    async def count_runs(self) -> int:
        return self.runs().total()

    async def count_sessions(self) -> int:
        """Sessions ever opened."""
        return int(await self._ask("SELECT count(*) FROM session"))

    async def count_settled(self) -> int:
        return int(await self._ask("SELECT count(*) FROM task WHERE state IS NOT NULL"))

    async def states(self) -> Counter[str]:
        """Settled states by number of tasks."""
        connection = await self._connect()
        try:
            rows = await connection.fetch(
                "SELECT coalesce(state, 'OPEN') AS state, count(*) FROM task GROUP BY 1"
            )
        finally:
            await connection.close()
        return Counter({row["state"]: row["count"] for row in rows})

    async def attempt_counts(self) -> Counter[int]:
        """Started attempts by number of tasks."""
        connection = await self._connect()
        try:
            rows = await connection.fetch("SELECT attempt_count, count(*) FROM task GROUP BY 1")
        finally:
            await connection.close()
        return Counter({row["attempt_count"]: row["count"] for row in rows})

    async def until(self, what: str, ask: Callable[[], Awaitable[int]], at_least: int) -> None:
        """Wait until the asked number is reached, else fail saying what was missing."""
        try:
            await wait_until(ask, lambda got: got >= at_least, SETTLE_TIMEOUT_S)
        except TimeoutError as error:
            pytest.fail(f"waited for {at_least} {what}: {error}\n{self._logs()}")

    async def settle(self, count: int) -> None:
        """Wait until that many tasks are settled, then check every invariant (INV-9)."""
        await self.until("settled tasks", self.count_settled, count)
        connection = await self._connect()
        try:
            assert await violations(connection) == []
        finally:
            await connection.close()

    async def close(self) -> None:
        await self.client.aclose()
        await asyncio.to_thread(self._stack.close)

    def _logs(self) -> str:
        processes = [*self.workers, *(node.process for node in self.cluster.nodes)]
        return "\n".join(f"--- {process.name}\n{process.log_tail()}" for process in processes)

    async def _connect(self) -> Connection:
        return await pool.connect(self.cluster.database_url)

    async def _ask(self, statement: str) -> int:
        connection = await self._connect()
        try:
            return int(await connection.fetchval(statement))
        finally:
            await connection.close()


@pytest.fixture
async def scene(
    database_url: str, redis_url: str, cluster_name: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    """Two gateways and a dispatcher, leases of two seconds, both stores behind links."""
    cluster = LocalCluster(
        tmp_path / "cluster",
        cluster=cluster_name,
        database_url=database_url,
        redis_url=redis_url,
        faults=True,
        settings={"ORBIT_LEASE_DURATION_MS": str(LEASE_MS), "ORBIT_NODE_BEAT_MS": "500"},
    )
    await asyncio.to_thread(cluster.start)
    try:
        credential = await asyncio.to_thread(cluster.create_app, "faults", "default")
        scene = Scene(cluster, credential, tmp_path)
        try:
            yield scene
        finally:
            await scene.close()
    finally:
        await asyncio.to_thread(cluster.stop)
