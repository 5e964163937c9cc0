"""`make campaign`: kill every kind of process again and again under load, then balance the books.

A seed decides who dies when. Submissions go on at a fixed rate all the while; one that gets no
answer is sent again under its key until it has one. At the end nothing may be lost, doubled, held
twice at a time, or break an invariant. Recovery times are those of faults: never read them, or the
rate, as figures of a clean run.
"""

import argparse
import asyncio
import contextlib
import datetime
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from devcluster.cluster import LocalCluster, orbit_command
from devcluster.processes import Process
from orbit_sdk import AsyncClient, OrbitError
from orbit_sdk.client.models import RetryPolicy, Submission
from store import pool
from store.invariants import violations

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")
COMPONENTS = ("gateway", "dispatcher", "worker", "valkey", "postgres")
LEASE_MS = 5_000
BATCH = 20
SETTLE_S = 180.0
LONG_SHARE = 0.1  # tasks that outlive their first lease

_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)

# Grants of one task that were in force at the same time, by the database's clock.
OVERLAPS = """
SELECT count(*) FROM (
    SELECT granted_at, lag(finished_at) OVER (PARTITION BY task_id ORDER BY epoch) AS before
    FROM attempt) k WHERE k.granted_at < k.before
"""


@dataclass
class Campaign:
    """One run: the cluster, what was acknowledged, who was killed and how long that took."""

    cluster: LocalCluster
    credential: str
    folder: Path
    dice: random.Random
    workers: list[Process] = field(default_factory=list)
    acked: dict[str, str] = field(default_factory=dict)
    contradicted: int = 0
    resent: int = 0
    stopping: bool = False
    back_s: dict[str, list[float]] = field(default_factory=dict)

    async def submit(self, rate: float) -> None:
        """Batches at a fixed pace until told to stop; each is repeated until it is answered."""
        number = 0
        due = time.monotonic()
        waiting: set[asyncio.Task[None]] = set()
        async with AsyncClient(self.cluster.url, self.credential, timeout_s=30) as client:
            while not self.stopping:
                seconds = [
                    LEASE_MS / 1000 * 1.2 if self.dice.random() < LONG_SHARE else 0.02
                    for _ in range(BATCH)
                ]
                items = [self._item(number + place, s) for place, s in enumerate(seconds)]
                number += BATCH
                task = asyncio.create_task(self._until_answered(client, items))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                due += BATCH / rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.gather(*waiting)

    def _item(self, number: int, seconds: float) -> Submission:
        retry = RetryPolicy(max_attempts=20, initial_delay_ms=0, max_delay_ms=0)
        return Submission(
            handler="campaign", payload={"seconds": seconds}, key=f"campaign-{number}", retry=retry
        )

    async def _until_answered(self, client: AsyncClient, items: list[Submission]) -> None:
        while items:
            try:
                results = await client.submit_batch(items)
            except OrbitError:
                self.resent += len(items)
                await asyncio.sleep(0.2)
                continue
            left = []
            for item, result in zip(items, results, strict=True):
                if result.submitted is None:
                    left.append(item)
                    continue
                assert item.key is not None
                known = self.acked.setdefault(item.key, result.submitted.id)
                self.contradicted += known != result.submitted.id
            items = left
            self.resent += len(left)

    async def kill_all(self, kills: int) -> None:
        """So many of each, in an order drawn from the seed."""
        order = [name for name in COMPONENTS for _ in range(kills)]
        self.dice.shuffle(order)
        for place, name in enumerate(order, 1):
            await asyncio.sleep(self.dice.uniform(0.3, 1.5))
            began = time.monotonic()
            kill, start = self._victim(name)
            await asyncio.to_thread(kill)
            progress = asyncio.create_task(self._progress())
            await asyncio.sleep(self.dice.uniform(0.0, 0.5))
            await asyncio.to_thread(start)
            took = await progress - began
            self.back_s.setdefault(name, []).append(took)
            print(f"{place}/{len(order)} {name}: work went on after {took:.2f} s", flush=True)

    def _victim(self, name: str) -> tuple[Callable[[], object], Callable[[], object]]:
        cluster = self.cluster
        if name in ("gateway", "dispatcher"):
            node = self.dice.choice(cluster.gateways if name == "gateway" else cluster.dispatchers)
            return node.kill, node.start
        if name == "worker":
            worker = self.dice.choice(self.workers)
            return worker.kill, worker.start
        store = cluster.valkey if name == "valkey" else cluster.postgres
        assert store is not None
        return store.kill, store.start

    async def _progress(self) -> float:
        """Return when a task that was not settled before is settled now, and say when that was."""
        before = await self._settled()
        while await self._settled() <= before:  # noqa: ASYNC110 - only the database knows
            await asyncio.sleep(0.05)
        return time.monotonic()

    async def _settled(self) -> int:
        return int(await self.ask("SELECT count(*) FROM task WHERE state IS NOT NULL"))

    async def ask(self, statement: str, *args: object) -> Any:
        """One value from the database, however often it must be asked."""
        while True:
            with contextlib.suppress(*_AWAY):
                connection = await pool.connect(self.cluster.database_url)
                try:
                    return await connection.fetchval(statement, *args)
                finally:
                    await connection.close()
            await asyncio.sleep(0.1)

    async def settle(self) -> bool:
        """Wait until nothing is open; False when that takes too long."""
        deadline = time.monotonic() + SETTLE_S
        while await self.ask("SELECT count(*) FROM task WHERE state IS NULL"):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.2)
        return True


def judge_runs(log: Path) -> dict[str, int]:
    """What the handlers themselves wrote down: begun, begun twice in one epoch, two at a time."""
    begun: Counter[tuple[str, str]] = Counter()
    spans: dict[str, list[tuple[int, int]]] = {}
    ends: dict[tuple[str, str], int] = {}
    begins: dict[tuple[str, str], int] = {}
    for line in log.read_text().splitlines():
        what, task, epoch, at = line.split()
        if what == "begin":
            begun[task, epoch] += 1
            begins[task, epoch] = int(at)
        else:
            ends[task, epoch] = int(at)
    for (task, epoch), began in begins.items():
        # One without an end was killed with its process, so nobody knows how long it ran.
        spans.setdefault(task, []).append((began, ends.get((task, epoch), began)))
    at_once = 0
    for runs in spans.values():
        runs.sort()
        at_once += sum(later[0] < earlier[1] for earlier, later in itertools.pairwise(runs))
    return {
        "handler_runs": begun.total(),
        "begun_twice_under_one_epoch": sum(count - 1 for count in begun.values()),
        "ran_at_the_same_time": at_once,
        "ran_again_under_a_later_epoch": sum(len(runs) - 1 for runs in spans.values()),
    }


async def judge(campaign: Campaign) -> dict[str, Any]:
    """The books at rest."""
    settled = await campaign.settle()
    ids = list(campaign.acked.values())
    connection = await pool.connect(campaign.cluster.database_url)
    try:
        kept = await connection.fetchval(
            "SELECT count(*) FROM task WHERE id = ANY ($1::uuid[]) AND state IS NOT NULL", ids
        )
        tasks = await connection.fetchval("SELECT count(*) FROM task")
        states = await connection.fetch("SELECT state, count(*) FROM task GROUP BY 1")
        counts = await connection.fetch("SELECT attempt_count, count(*) FROM task GROUP BY 1")
        broken = await violations(connection)
        overlaps = await connection.fetchval(OVERLAPS)
    finally:
        await connection.close()
    return {
        "all_settled": settled,
        "acked": len(ids),
        "sent_again": campaign.resent,
        "lost": len(ids) - kept,
        "doubled_submissions": tasks - len(set(ids)) + campaign.contradicted,
        "overlapping_grants": overlaps,
        "invariants_broken": [str(item) for item in broken],
        "states": {str(row[0]): row[1] for row in states},
        "attempts": {str(row[0]): row[1] for row in counts},
        **judge_runs(campaign.folder / "runs.log"),
    }


def add_workers(campaign: Campaign, count: int, stack: ExitStack) -> None:
    """Worker processes of the SDK, through the balancer."""
    for number in range(1, count + 1):
        process = Process(
            name=f"worker-{number}",
            argv=[*orbit_command(), "worker", "loadtest.campaign_worker:worker"],
            log_path=campaign.folder / f"worker-{number}.log",
            env={
                "ORBIT_URL": campaign.cluster.url,
                "ORBIT_CREDENTIAL": campaign.credential,
                "CAMPAIGN_LOG": str(campaign.folder / "runs.log"),
                "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
                "PATH": os.environ.get("PATH", os.defpath),
            },
            cwd=ROOT,
        )
        stack.callback(process.kill)
        process.start()
        campaign.workers.append(process)


async def run(campaign: Campaign, kills: int, rate: float) -> dict[str, Any]:
    """Load, kills, rest, judgement."""
    began = time.monotonic()
    load = asyncio.create_task(campaign.submit(rate))
    try:
        await campaign.kill_all(kills)
    finally:
        campaign.stopping = True
        await load
    return {"seconds": round(time.monotonic() - began, 1), **await judge(campaign)}


def show(report: dict[str, Any]) -> bool:
    """Print the table; whether the books balance."""
    print(f"\nseed {report['seed']}   {report['rate_per_s']:g} tasks/s   lease {LEASE_MS} ms")
    print(f"{'killed':<12}{'times':>6}{'work went on after, s: median':>32}{'worst':>8}")
    for name, times in report["work_went_on_after_s"].items():
        print(f"{name:<12}{len(times):>6}{statistics.median(times):>32.2f}{max(times):>8.2f}")
    books = report["books"]
    bad = [
        "lost", "doubled_submissions", "overlapping_grants", "begun_twice_under_one_epoch",
        "ran_at_the_same_time",
    ]  # fmt: skip
    for name in ("acked", "sent_again", "handler_runs", "ran_again_under_a_later_epoch", *bad):
        print(f"{name.replace('_', ' '):<32}{books[name]:>8}")
    print(f"{'invariants broken':<32}{len(books['invariants_broken']):>8}")
    print("states", books["states"], " attempts", books["attempts"])
    return books["all_settled"] and not (any(books[k] for k in bad) or books["invariants_broken"])


def main() -> None:
    """Run a campaign and write its report; the exit status says whether the books balance."""
    parser = argparse.ArgumentParser(prog="make campaign", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each kind of process")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=50.0, help="tasks a second")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--output", type=Path, help="where to write the report")
    args = parser.parse_args()
    now = datetime.datetime.now(datetime.UTC)
    settings = {
        "ORBIT_LEASE_DURATION_MS": str(LEASE_MS),
        "ORBIT_NODE_BEAT_MS": "1000",
        "ORBIT_LOG_LEVEL": "warning",
    }
    with tempfile.TemporaryDirectory(prefix="orbit-campaign-") as name, ExitStack() as stack:
        folder = Path(name)
        cluster = LocalCluster(folder / "cluster", gateways=3, dispatchers=2, settings=settings)
        stack.enter_context(cluster)
        credential = cluster.create_app("campaign", "default")
        campaign = Campaign(cluster, credential, folder, random.Random(args.seed))
        add_workers(campaign, args.workers, stack)
        books = asyncio.run(run(campaign, args.kills, args.rate))
    report = {
        "at": now.isoformat(timespec="seconds"),
        "seed": args.seed,
        "kills_of_each": args.kills,
        "rate_per_s": args.rate,
        "workers": args.workers,
        "work_went_on_after_s": campaign.back_s,
        "books": books,
    }
    path = args.output or RESULTS / f"campaign-{now:%Y-%m-%d}-{args.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    balanced = show(report)
    print(f"\n{'the books balance' if balanced else 'THE BOOKS DO NOT BALANCE'}; report: {path}")
    sys.exit(not balanced)


if __name__ == "__main__":
    main()
