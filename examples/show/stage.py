"""The demo's cluster: embedded stores, two gateways behind a balancer, a dispatcher, two workers.

All of it are real processes on the loopback address, in one data folder. Promise: leaving `stage`
stops every one of them, in order, also after Ctrl-C in the middle of starting.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster.cluster import LocalCluster, Node, orbit_command
from devcluster.postgres import EmbeddedPostgres
from devcluster.processes import Process, ProcessFailed
from devcluster.valkey import EmbeddedValkey
from examples.show.notebook import VARIABLE
from examples.show.screen import Screen

ROOT = Path(__file__).resolve().parents[2]
APPLICATION = "dev"
QUEUE = "default"
LEASE_MS = 3_000
WORKERS = 2
DRAIN_S = 1.0
HARD_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A running cluster with its workers."""

    cluster: LocalCluster
    credential: str
    workers: list[Process]
    notes: Path

    def gateway_names(self) -> dict[str, str]:
        """Gateway names by node id, as each gateway wrote it into its log."""
        names = {}
        for gateway in self.cluster.gateways:
            for line in gateway.process.log_path.read_text().splitlines():
                if "gateway_listening" in line and line.startswith("{"):
                    names[str(json.loads(line)["node_id"])] = gateway.name
        return names

    def gateway(self, name: str) -> Node:
        return next(node for node in self.cluster.gateways if node.name == name)


@contextmanager
def stage(data: Path, screen: Screen, *, keep: bool) -> Iterator[Stage]:
    """Start everything in `data`, step by step; stop it at the end, and erase it unless `keep`.

    Raises ProcessFailed with the last output of what did not start.
    """
    with ExitStack() as started:
        postgres = EmbeddedPostgres(data / "postgres")
        started.callback(postgres.stop if keep else postgres.erase)
        with screen.step("starting a Postgres of its own"):
            postgres.start()
        valkey = EmbeddedValkey(data / "valkey")
        started.callback(valkey.stop if keep else valkey.erase)
        with screen.step("starting a Valkey of its own"):
            valkey.start()
        cluster = LocalCluster(
            data,
            gateways=2,
            dispatchers=1,
            database_url=postgres.url(),
            redis_url=valkey.url(),
            settings={"ORBIT_LEASE_DURATION_MS": str(LEASE_MS)},
        )
        started.callback(cluster.stop)
        with screen.step("making the schema, starting two gateways, a dispatcher, a balancer"):
            cluster.start()
        with screen.step("making an application, its queue and a credential"):
            credential = cluster.kept_credential(APPLICATION, QUEUE)
        notes = data / f"notes-{os.getpid()}"
        notes.mkdir(mode=0o700)
        workers = [_worker(n, cluster, credential, notes) for n in range(1, WORKERS + 1)]
        started.callback(_stop_workers, workers)
        for worker in workers:
            worker.start()
        yield Stage(cluster, credential, workers, notes)


def check_alive(workers: list[Process]) -> None:
    """Raises ProcessFailed with the last output of a worker that has ended by itself."""
    for worker in workers:
        if not worker.alive:
            raise ProcessFailed(
                f"{worker.name} ended with status {worker.exit_status}\n{worker.log_tail()}"
            )


def _worker(number: int, cluster: LocalCluster, credential: str, notes: Path) -> Process:
    """A worker process: the command that anybody would use, on the demo's handlers."""
    own = {"ORBIT_URL": cluster.url, "ORBIT_CREDENTIAL": credential, VARIABLE: str(notes)}
    return Process(
        name=f"worker-{number}",
        argv=[*orbit_command(), "worker", "examples.handlers:worker"],
        log_path=cluster.data_dir / "logs" / f"worker-{number}.log",
        env={**os.environ, **own},
        cwd=ROOT,
    )


def _stop_workers(workers: list[Process]) -> None:
    """Drain all at once; whoever still works after a moment is told again, which stops hard."""
    for worker in workers:
        worker.signal(signal.SIGTERM)
    deadline = time.monotonic() + DRAIN_S
    while any(worker.alive for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    for worker in workers:
        worker.stop(HARD_STOP_S)
