"""A whole Orbit cluster on one machine: stores, migrations, gateways, dispatchers, a balancer.

For `orbit dev`, the demo and the tests that break things. Each part is its own process and can be
killed, frozen and started again on its own. All methods block; call them through
`asyncio.to_thread` where a loop must go on.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from devcluster.balancer import ThreadedBalancer
from devcluster.homes import erase, kept_secret
from devcluster.postgres import EmbeddedPostgres
from devcluster.processes import (
    LOOPBACK,
    Process,
    ProcessFailed,
    answers_ok,
    free_port,
    stop_all,
)
from devcluster.valkey import EmbeddedValkey

LOGS = "logs"
CLUSTER_KEY = "cluster-key"
CREDENTIAL = "credential"
# The balancer notices a closed port at once, so nobody needs the usual notice.
DRAIN_GRACE_MS = "500"
POSTGRES_SETTINGS = {"autovacuum_naptime": "3s"}
"""For a server with one busy database: what a queue leaves behind is in the way of its readers."""
READY_PATH = "/health/ready"
READY_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 150.0


@dataclass(frozen=True, slots=True)
class Node:
    """One gateway or dispatcher process and the port on which it tells its health."""

    process: Process
    port: int

    @property
    def name(self) -> str:
        return self.process.name

    def start(self) -> None:
        """Start and wait until it is ready. Raises ProcessFailed with its last output."""
        self.process.start()
        self.wait_ready()

    def wait_ready(self) -> None:
        self.process.wait_until(lambda: answers_ok(self.port, READY_PATH), READY_TIMEOUT_S)

    def stop(self) -> None:
        """Let it drain, then end it."""
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()


class LocalCluster:
    """Give `database_url` and `redis_url` to use stores that run already, else both are embedded.

    With `faults`, every gateway and dispatcher reaches the stores through `database_link` and
    `redis_link`, two balancers that can stall, cut and refuse. `settings` are more ORBIT_*
    variables for the processes.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        gateways: int = 2,
        dispatchers: int = 1,
        port: int = 0,
        cluster: str = "dev",
        database_url: str | None = None,
        redis_url: str | None = None,
        faults: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.cluster = cluster
        self.postgres = (
            None
            if database_url
            else EmbeddedPostgres(self.data_dir / "postgres", settings=POSTGRES_SETTINGS)
        )
        self.valkey = None if redis_url else EmbeddedValkey(self.data_dir / "valkey")
        self.database_url = database_url or ""
        self.redis_url = redis_url or ""
        self.gateways: list[Node] = []
        self.dispatchers: list[Node] = []
        self.database_link: ThreadedBalancer | None = None
        self.redis_link: ThreadedBalancer | None = None
        self._counts = (gateways, dispatchers)
        self._port = port
        self._faults = faults
        self._settings = dict(settings or {})
        self._balancer: ThreadedBalancer | None = None
        self._started = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """The address of the cluster: the balancer before all gateways."""
        return f"http://{LOOPBACK}:{self.balancer.port}"

    @property
    def balancer(self) -> ThreadedBalancer:
        """What stands before all gateways."""
        if self._balancer is None:
            raise ProcessFailed("the cluster is not started")
        return self._balancer

    @property
    def nodes(self) -> list[Node]:
        return [*self.gateways, *self.dispatchers]

    def start(self) -> Self:
        """Start everything and return when all of it is ready; stop what was started if not."""
        with contextlib.ExitStack() as started:
            # Readable by the owner alone but for passing through: Postgres may run as another user.
            self.data_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            # First, so that a busy port is told at once; it turns everybody away until the end.
            self._balancer = ThreadedBalancer([], self._port)
            started.callback(self._balancer.stop)
            self._balancer.start()
            self._start_stores(started)
            self._start_links(started)
            self.run("migrate")
            self._start_nodes(started)
            self._balancer.set_backends([node.port for node in self.gateways])
            self._started = started.pop_all()
        return self

    def stop(self) -> None:
        """Stop everything, last started first. Data stays."""
        self._started.close()

    def kept_credential(self, name: str, *queues: str) -> str:
        """The credential that the data folder keeps; made at the first call, with `create_app`."""
        return kept_secret(self.data_dir / CREDENTIAL, make=lambda: self.create_app(name, *queues))

    def create_app(self, name: str, *queues: str) -> str:
        """A new credential of an application, which is made with these queues if need be."""
        chosen = [word for queue in queues for word in ("--queue", queue)]
        made = json.loads(self.run("app", "create", name, *chosen, "--json"))
        return str(made["credential"])

    def add_gateway(self, settings: Mapping[str, str] | None = None) -> Node:
        """Start one more gateway behind the balancer, with further settings of its own."""
        node = self._make_gateway(settings)
        self.gateways.append(node)
        node.start()
        if self._balancer is not None:
            self._balancer.set_backends([gateway.port for gateway in self.gateways])
        return node

    def run(self, *arguments: str) -> str:
        """Run an `orbit` command that needs the database; its output. Raises ProcessFailed."""
        done = subprocess.run(
            [*orbit_command(), *arguments],
            env=self._environment({"ORBIT_DATABASE_URL": self.database_url}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            said = done.stdout + done.stderr
            raise ProcessFailed(f"orbit {arguments[0]} ended with {done.returncode}\n{said}")
        return done.stdout

    def revive(self) -> list[str]:
        """Start again whatever has died; the names of those parts. Does not wait for nodes."""
        revived = []
        if self.postgres is not None and self.postgres.pid is None:
            self.postgres.start()
            revived.append("postgres")
        if self.valkey is not None and self.valkey.pid is None:
            self.valkey.start()
            revived.append("valkey")
        for node in self.nodes:
            if not node.process.alive:
                node.process.start()
                revived.append(node.name)
        return revived

    def erase(self) -> None:
        """Stop and delete all data and secrets of the folder. Other files in it stay."""
        self.stop()
        if self.postgres is not None:
            self.postgres.erase()
        if self.valkey is not None:
            self.valkey.erase()
        erase(self.data_dir / LOGS)
        for name in (CLUSTER_KEY, CREDENTIAL):
            (self.data_dir / name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_stores(self, started: contextlib.ExitStack) -> None:
        if self.postgres is not None:
            started.callback(self.postgres.stop)
            self.database_url = self.postgres.start().url()
        if self.valkey is not None:
            started.callback(self.valkey.stop)
            self.redis_url = self.valkey.start().url()

    def _start_links(self, started: contextlib.ExitStack) -> None:
        if not self._faults:
            return
        self.database_link = ThreadedBalancer([urlsplit(self.database_url).port or 5432]).start()
        started.callback(self.database_link.stop)
        self.redis_link = ThreadedBalancer([urlsplit(self.redis_url).port or 6379]).start()
        started.callback(self.redis_link.stop)

    def _make_gateway(self, settings: Mapping[str, str] | None = None) -> Node:
        port = free_port()
        name = f"gateway-{len(self.gateways) + 1}"
        own = {**(settings or {}), "ORBIT_PORT": str(port)}
        return self._make_node(name, ["gateway"], own, port)

    def _make_dispatcher(self) -> Node:
        port = free_port()
        name = f"dispatcher-{len(self.dispatchers) + 1}"
        return self._make_node(name, ["dispatcher"], {"ORBIT_PROBE_PORT": str(port)}, port)

    def _make_node(self, name: str, command: list[str], own: dict[str, str], port: int) -> Node:
        logs = self.data_dir / LOGS
        logs.mkdir(exist_ok=True)
        settings = {
            "ORBIT_DATABASE_URL": _through(self.database_url, self.database_link),
            "ORBIT_REDIS_URL": _through(self.redis_url, self.redis_link),
            "ORBIT_CLUSTER": self.cluster,
            "ORBIT_CLUSTER_KEYS": f"1:{kept_secret(self.data_dir / CLUSTER_KEY)}",
            "ORBIT_HOST": LOOPBACK,
            "ORBIT_DRAIN_GRACE_MS": DRAIN_GRACE_MS,
            **self._settings,
            **own,
        }
        process = Process(
            name=name,
            argv=[*orbit_command(), *command],
            log_path=logs / f"{name}.log",
            env=self._environment(settings),
        )
        return Node(process, port)

    def _start_nodes(self, started: contextlib.ExitStack) -> None:
        started.callback(self._stop_nodes)
        self.gateways, self.dispatchers = [], []
        for _ in range(self._counts[0]):
            self.gateways.append(self._make_gateway())
        for _ in range(self._counts[1]):
            self.dispatchers.append(self._make_dispatcher())
        for node in self.nodes:
            node.process.start()
        for node in self.nodes:
            node.wait_ready()

    def _stop_nodes(self) -> None:
        stop_all([node.process for node in self.nodes])

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        ours = {name: text for name, text in os.environ.items() if not name.startswith("ORBIT_")}
        return {**ours, **settings}


def orbit_command() -> list[str]:
    """The command line of this very installation, whatever PATH says."""
    script = Path(sys.executable).with_name("orbit")
    if script.is_file():
        return [str(script)]
    return [sys.executable, "-c", "from orbit_sdk.cli.main import main; main()"]


def _through(url: str, link: ThreadedBalancer | None) -> str:
    """The same address, reached through the link."""
    if link is None:
        return url
    parts = urlsplit(url)
    account = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{account}@{LOOPBACK}:{link.port}").geturl()
