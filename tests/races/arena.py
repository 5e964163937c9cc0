"""A cluster of processes to kill and freeze, for the races that need a real death.

One cluster serves all tests of a module: each test heals it first and counts only its own tasks.
"""

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.cluster import LocalCluster, Node, orbit_command
from devcluster.processes import Process
from orbit_sdk import AsyncClient
from orbit_sdk.client.models import RetryPolicy, Submission
from store import pool
from store.invariants import violations
from tests.arch.tree import ROOT
from tests.stores import Stores
from tests.waiting import wait_until

LEASE_MS = 4_000
SETTLE_S = 60.0
_FAULTS = ("ORBIT_FAILPOINTS", "ORBIT_FAILPOINTS_ALLOWED", "ORBIT_FAILPOINT_SEED")


@dataclass
class Arena:
    """The cluster, its workers, and what their handlers wrote down."""

    cluster: LocalCluster
    credential: str
    folder: Path
    stack: ExitStack
    workers: list[Process] = field(default_factory=list)
    tests: int = 0

    @property
    def log(self) -> Path:
        return self.folder / f"runs-{self.tests}.log"

    async def heal(self) -> None:
        """Everything runs, and nothing goes wrong on purpose any more."""
        self.tests += 1
        await self.heal_nodes()
        for worker in self.workers:
            if not worker.alive:
                await asyncio.to_thread(worker.start)

    async def heal_nodes(self) -> None:
        """The same for gateways and dispatchers alone."""
        await asyncio.gather(*(asyncio.to_thread(_heal, node) for node in self.cluster.nodes))

    async def restart(self, node: Node, failpoints: str = "", seed: int = 0) -> None:
        """The same node in a new life, with these failpoints."""
        await asyncio.to_thread(_restart, node, failpoints, seed)

    async def gather_at(self, node: Node, other: Node) -> None:
        """Have all workers on `node`, unless that dies of their hello; then `other` runs again."""
        before = int(await self.fetchval("SELECT count(*) FROM session"))
        await asyncio.to_thread(other.kill)

        async def are_there() -> bool:
            opened = int(await self.fetchval("SELECT count(*) FROM session")) - before
            return opened >= len(self.workers) or not node.process.alive

        await wait_until(are_there, bool, SETTLE_S)
        await asyncio.to_thread(other.start)

    async def add_worker(self) -> Process:
        number = len(self.workers) + 1
        process = Process(
            name=f"worker-{number}",
            argv=[*orbit_command(), "worker", "tests.cluster.work:worker"],
            log_path=self.folder / f"worker-{number}.log",
            env={
                "ORBIT_URL": self.cluster.url,
                "ORBIT_CREDENTIAL": self.credential,
                "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "sdk"))),
                "PATH": os.environ.get("PATH", os.defpath),
                "PYTHONUNBUFFERED": "1",
            },
            cwd=Path(sys.prefix).parent,
        )
        self.stack.callback(process.kill)
        self.workers.append(process)
        await asyncio.to_thread(process.start)
        return process

    async def workers_ready(self, count: int) -> None:
        """Wait for so many open sessions."""
        statement = "SELECT count(*) FROM session WHERE closed_at IS NULL"
        await self.until(statement, lambda found: found >= count, timeout_s=30)

    async def submit(self, count: int, seconds: float = 0.0, **changes: Any) -> list[str]:
        """Every one acknowledged, through the balancer, whatever happens to its gateways."""
        made: list[str] = []
        async with AsyncClient(self.cluster.url, self.credential, timeout_s=60) as client:
            plan = {"retry": RetryPolicy(max_attempts=9, initial_delay_ms=0, max_delay_ms=0)}
            payload = {"log": str(self.log), "seconds": seconds}
            for start in range(0, count, 20):
                results = await client.submit_batch(
                    [
                        Submission(handler="job", payload=payload, **(plan | changes))
                        for _ in range(min(20, count - start))
                    ]
                )
                assert all(result.error is None for result in results), results
                made += [result.submitted.id for result in results if result.submitted]
        return made

    def runs(self) -> Counter[str]:
        """How often a handler really began in this test, by task."""
        if not self.log.exists():
            return Counter()
        return Counter(line.split()[0] for line in self.log.read_text().splitlines())

    async def began(self, count: int) -> None:
        """Wait until so many handlers have begun."""

        async def total() -> int:
            return self.runs().total()

        await wait_until(total, lambda found: found >= count, SETTLE_S)

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        connection = await pool.connect(self.cluster.database_url)
        try:
            return list(await connection.fetch(statement, *args))
        finally:
            await connection.close()

    async def fetchval(self, statement: str, *args: Any) -> Any:
        return (await self.fetch(statement, *args))[0][0]

    async def until(
        self, statement: str, accept: Any, *args: Any, timeout_s: float = SETTLE_S
    ) -> None:
        await wait_until(lambda: self.fetchval(statement, *args), accept, timeout_s)

    async def open_of(self, tasks: list[str]) -> int:
        """How many of these are not settled, or not there at all."""
        statement = (
            "SELECT count(*) FROM unnest($1::uuid[]) k (id) WHERE NOT EXISTS"
            " (SELECT 1 FROM task t WHERE t.id = k.id AND t.state IS NOT NULL)"
        )
        return int(await self.fetchval(statement, tasks))

    async def settle(self, tasks: list[str]) -> None:
        """Each acknowledged task settles, every invariant holds, nothing is left over (INV-9)."""
        await wait_until(lambda: self.open_of(tasks), lambda found: found == 0, SETTLE_S)
        held = "SELECT count(*) FROM lease WHERE task_id = ANY ($1::uuid[])"
        assert await self.fetchval(held, tasks) == 0
        connection = await pool.connect(self.cluster.database_url)
        try:
            assert await violations(connection) == []
        finally:
            await connection.close()

    async def attempts(self, tasks: list[str]) -> Counter[int]:
        """Started attempts by number of tasks."""
        rows = await self.fetch("SELECT attempt_count FROM task WHERE id = ANY ($1::uuid[])", tasks)
        return Counter(row[0] for row in rows)


@contextmanager
def open_arena(stores: Stores, folder: Path, lease_ms: int) -> Iterator[Arena]:
    """Two gateways, two dispatchers and two workers over the stores of this run."""
    with asyncio.Runner() as runner, ExitStack() as stack:
        database = stores.database()
        url = runner.run(database.__aenter__())
        stack.callback(lambda: runner.run(database.__aexit__(None, None, None)))
        cluster = LocalCluster(
            folder / "cluster",
            gateways=2,
            dispatchers=2,
            cluster=f"arena-{secrets.token_hex(8)}",
            database_url=url,
            redis_url=stores.redis_url,
            settings={
                "ORBIT_LEASE_DURATION_MS": str(lease_ms),
                "ORBIT_NODE_BEAT_MS": "500",
                "ORBIT_DRAIN_GRACE_MS": "2000",
            },
        )
        stack.enter_context(cluster)
        arena = Arena(cluster, cluster.create_app("races", "default"), folder, stack)
        runner.run(arena.add_worker())
        runner.run(arena.add_worker())
        yield arena


def _heal(node: Node) -> None:
    if any(node.process.env.get(name) for name in _FAULTS):
        _restart(node, "", 0)
    elif not node.process.alive:
        node.start()


def _restart(node: Node, failpoints: str, seed: int) -> None:
    node.kill()
    plain = {name: text for name, text in node.process.env.items() if name not in _FAULTS}
    faults = dict(zip(_FAULTS, (failpoints, "1", str(seed)), strict=True)) if failpoints else {}
    node.process.env = plain | faults
    node.start()
