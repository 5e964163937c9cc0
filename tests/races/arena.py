"""A cluster of processes to kill and freeze, for the races that need a real death.

Three gateways, two dispatchers, two workers. One arena serves all tests of a module in one process
of the run. A test heals it first and has it to itself: what was hurt is started anew, with the
failpoints the test wants, and the tasks of earlier tests are gone.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devcluster.cluster import LocalCluster, Node, orbit_command
from devcluster.processes import Process, ProcessFailed
from orbit_sdk import AsyncClient
from orbit_sdk.client.models import RetryPolicy, Submission
from store import pool
from store.commands import Connection
from store.invariants import violations
from tests.arch.tree import ROOT
from tests.stores import Stores
from tests.waiting import wait_until

LEASE_MS = 4_000
GATEWAYS = 3
WORKERS = 2
SETTLE_S = 60.0
QUEUE = "default"
_FAULTS = ("ORBIT_FAILPOINTS", "ORBIT_FAILPOINTS_ALLOWED", "ORBIT_FAILPOINT_SEED")
_OF_TASKS = ("task", "submission", "attempt", "receipt", "evidence", "event")
OPEN_SESSIONS = "SELECT count(*) FROM session WHERE closed_at IS NULL"


@dataclass
class Arena:
    """The cluster, its workers, and what their handlers wrote down."""

    cluster: LocalCluster
    credential: str
    folder: Path
    lease_ms: int
    stack: ExitStack
    workers: list[Process] = field(default_factory=list)
    tests: int = 0
    _connection: "Connection | None" = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def log(self) -> Path:
        return self.folder / f"runs-{self.tests}.log"

    @asynccontextmanager
    async def entered(self) -> AsyncIterator["Arena"]:
        """For one test: nobody is left frozen or shut out behind it."""
        self.tests += 1
        self._turn = asyncio.Lock()
        self._connection = await pool.connect(self.cluster.database_url)
        try:
            yield self
        finally:
            await self._connection.close()
            for process in (*self.workers, *(node.process for node in self.cluster.nodes)):
                process.signal(signal.SIGCONT)
            self.cluster.balancer.set_refusing_upgrades(False)
            self.behind_balancer(self.cluster.gateways)

    async def heal(
        self, failpoints: Mapping[str, str] | None = None, seed: int = 0, at: Node | None = None
    ) -> None:
        """All runs and both workers are there, at one gateway if it is named; no task is left.

        The nodes that `failpoints` names are in a life with these.
        """
        await self._forget_tasks()
        await self.heal_nodes(failpoints, seed)
        for worker in self.workers:
            if not worker.alive:
                await asyncio.to_thread(worker.start)
        if at is None:
            await self.until(OPEN_SESSIONS, lambda found: found >= WORKERS)
        else:
            await self.gather_at(at)

    async def heal_nodes(self, failpoints: Mapping[str, str] | None = None, seed: int = 0) -> None:
        """The same for gateways and dispatchers alone."""
        wanted = failpoints or {}
        nodes = self.cluster.nodes
        await asyncio.gather(
            *(asyncio.to_thread(_heal, node, wanted.get(node.name, ""), seed) for node in nodes)
        )

    def victim(self, nodes: Sequence[Node], seed: int) -> Node:
        """The next to die: one that has to be started anew in any case, else by the seed."""
        hurt = [node for node in nodes if _is_hurt(node)]
        return (hurt or list(nodes))[seed % len(hurt or nodes)]

    def behind_balancer(self, gateways: Sequence[Node]) -> None:
        """New connections come to these gateways alone."""
        self.cluster.balancer.set_backends([node.port for node in gateways])

    async def gather_at(self, node: Node) -> None:
        """Have all workers on `node`, unless that dies of their hello; all are reached again."""
        statement = "SELECT count(*) FROM session"
        before = int(await self.fetchval(statement))
        self.behind_balancer([node])
        await asyncio.to_thread(self.cluster.balancer.cut)

        async def are_there() -> bool:
            opened = int(await self.fetchval(statement)) - before
            return opened >= len(self.workers) or not node.process.alive

        await wait_until(are_there, bool, SETTLE_S)
        self.behind_balancer(self.cluster.gateways)

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

    async def submit(
        self, count: int, seconds: float = 0.0, batch: int = 50, **changes: Any
    ) -> list[str]:
        """Every one acknowledged, through the balancer, whatever happens to its gateways."""
        made: list[str] = []
        async with AsyncClient(self.cluster.url, self.credential, timeout_s=60) as client:
            plan: dict[str, Any] = {
                "handler": "job",
                "payload": {"log": str(self.log), "seconds": seconds},
                "retry": RetryPolicy(max_attempts=9, initial_delay_ms=0, max_delay_ms=0),
            }
            for start in range(0, count, batch):
                results = await client.submit_batch(
                    [Submission(**(plan | changes)) for _ in range(min(batch, count - start))]
                )
                assert all(result.error is None for result in results), results
                made += [result.submitted.id for result in results if result.submitted]
        return made

    def runs(self) -> Counter[str]:
        """How often a handler really began in this test, by task."""
        if not self.log.exists():
            return Counter()
        return Counter(line.split()[0] for line in self.log.read_text().splitlines())

    def pids(self, tasks: list[str]) -> set[str]:
        """The workers in which handlers of these tasks began."""
        lines = self.log.read_text().splitlines() if tasks else []
        return {pid for task, _, pid in map(str.split, lines) if task in set(tasks)}

    async def began(self, count: int) -> None:
        """Wait until so many handlers have begun."""

        async def total() -> int:
            return self.runs().total()

        await wait_until(total, lambda found: found >= count, SETTLE_S)

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "only inside of `entered`"
        return self._connection

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        async with self._turn:
            return list(await self.connection.fetch(statement, *args))

    async def fetchval(self, statement: str, *args: Any) -> Any:
        async with self._turn:
            return await self.connection.fetchval(statement, *args)

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
        assert await violations(self.connection) == []

    async def succeeded(self, tasks: list[str], attempts: int | None = 1) -> None:
        """The same, each with success; by its first attempt unless `attempts` is None."""
        await self.settle(tasks)
        rows = await self.fetch(
            "SELECT state, attempt_count FROM task WHERE id = ANY ($1::uuid[])", tasks
        )
        assert Counter(row["state"] for row in rows) == {"SUCCEEDED": len(tasks)}
        if attempts is not None:
            assert Counter(row["attempt_count"] for row in rows) == {attempts: len(tasks)}

    async def _forget_tasks(self) -> None:
        """An empty house: every later question may be put to whole tables, and costs little."""
        unsettled = "SELECT count(*) FROM task WHERE state IS NULL"
        assert await self.fetchval(unsettled) == 0, "an earlier test has left work behind"
        async with self.connection.transaction():
            for table in _OF_TASKS:
                await self.connection.execute(f"DELETE FROM {table}")


@contextmanager
def open_arena(
    stores: Stores, folder: Path, lease_ms: int = LEASE_MS, **settings: str
) -> Iterator[Arena]:
    """An arena over the stores of this run."""
    with asyncio.Runner() as runner, ExitStack() as stack:
        database = stores.database()
        url = runner.run(database.__aenter__())
        stack.callback(lambda: runner.run(database.__aexit__(None, None, None)))
        cluster = LocalCluster(
            folder / "cluster",
            gateways=GATEWAYS,
            dispatchers=2,
            cluster=f"arena-{secrets.token_hex(8)}",
            database_url=url,
            redis_url=stores.redis_url,
            settings={
                "ORBIT_LEASE_DURATION_MS": str(lease_ms),
                "ORBIT_NODE_BEAT_MS": "500",
                "ORBIT_DRAIN_GRACE_MS": "2000",
                **settings,
            },
        )
        stack.enter_context(cluster)
        credential = cluster.create_app("races", QUEUE)
        arena = Arena(cluster, credential, folder, lease_ms, stack)
        for _ in range(WORKERS):
            runner.run(arena.add_worker())
        yield arena


def _is_hurt(node: Node) -> bool:
    return not node.process.alive or any(node.process.env.get(name) for name in _FAULTS)


def _heal(node: Node, failpoints: str, seed: int) -> None:
    if failpoints or _is_hurt(node):
        node.kill()
        plain = {name: text for name, text in node.process.env.items() if name not in _FAULTS}
        faults = dict(zip(_FAULTS, (failpoints, "1", str(seed)), strict=True))
        node.process.env = plain | (faults if failpoints else {})
        # Some failpoints lie so early that the node does not live to be ready.
        with contextlib.suppress(*((ProcessFailed,) if failpoints else ())):
            node.start()
