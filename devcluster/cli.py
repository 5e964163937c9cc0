"""`orbit dev`: a whole cluster in one command, on one's own machine.

It joins the command line through the entry-point group `orbit.commands`. Promises: everything
listens on the loopback address only; data stays in the folder until `--reset`; Ctrl-C (or SIGTERM)
stops all of it in order; a part that dies is started again and said so.
"""

import json
import shlex
import signal
import time
from pathlib import Path
from types import FrameType

import click

from devcluster.cluster import LocalCluster, orbit_command
from devcluster.homes import lock_home
from devcluster.processes import ProcessFailed

APPLICATION = "dev"
QUEUE = "default"
CHECK_INTERVAL_S = 0.5

READY = """\
Orbit is ready on {url}   (data in {data}; Ctrl-C stops it)

A first round, in another terminal:

export ORBIT_URL={url}
export ORBIT_CREDENTIAL={credential}
cat > hello.py <<'END'
from orbit_sdk import Worker

worker = Worker(queue="{queue}")


@worker.handler("hello")
def hello(payload):
    return {{"text": f"Hello, {{payload['name']}}!"}}
END
{orbit} worker hello:worker &
{orbit} task submit hello --payload '{{"name": "world"}}' --wait

Postgres  {database_url}
Redis     {redis_url}
Logs      {data}/logs
"""


@click.command()
@click.option(
    "--data",
    default=".orbit",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps the cluster's data between runs.",
)
@click.option("--port", default=8080, show_default=True, help="Port of the cluster; 0 picks one.")
@click.option("--gateways", default=2, show_default=True, type=click.IntRange(1, 16))
@click.option("--dispatchers", default=1, show_default=True, type=click.IntRange(1, 16))
@click.option("--reset", is_flag=True, help="Delete the folder's data first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line once it is ready.")
def dev(data: Path, port: int, gateways: int, dispatchers: int, reset: bool, as_json: bool) -> None:
    """Run a cluster on this machine: Postgres, Valkey, gateways, dispatchers, a load balancer.

    Needs no root and no Docker, nothing but the `embedded` extra. For development only.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        data.mkdir(mode=0o711, parents=True, exist_ok=True)
        with lock_home(data):
            cluster = LocalCluster(data, gateways=gateways, dispatchers=dispatchers, port=port)
            if reset:
                cluster.erase()
            click.echo("Starting Postgres, Valkey and Orbit ...", err=True)
            with cluster:
                click.echo(_announcement(cluster, as_json))
                _keep_alive(cluster)
    except KeyboardInterrupt:
        click.echo("Stopped.", err=True)
    except (ProcessFailed, OSError) as error:
        raise click.ClickException(str(error)) from None


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """The first Ctrl-C or SIGTERM begins the stop; it is not disturbed by another."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _keep_alive(cluster: LocalCluster) -> None:
    while True:
        time.sleep(CHECK_INTERVAL_S)
        for name in cluster.revive():
            click.echo(f"{name} had died and was started again", err=True)


def _announcement(cluster: LocalCluster, as_json: bool) -> str:
    facts = {
        "url": cluster.url,
        "credential": cluster.kept_credential(APPLICATION, QUEUE),
        "queue": QUEUE,
        "data": str(cluster.data_dir),
        "database_url": cluster.database_url,
        "redis_url": cluster.redis_url,
    }
    return (
        json.dumps(facts)
        if as_json
        else READY.format_map({**facts, "orbit": shlex.join(orbit_command())})
    )
