"""`make bench`: the figures, all in one run on embedded stores, with everything on this machine.

(a) the SQL functions alone; (b) full lives over WebSockets, in v1 and in v2, with HTTP batch
submission, through one and two gateways, in turns that go the other way each time, so that neither
has the emptier tables; (c) the time from a submission's answer to its assignment at a fixed rate;
(d) the time from a cancel request until the worker, which runs the task, is told of it.
Prints a summary and writes `loadtest/results/<date>-<commit>.json` with commit, machine, settings.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from devcluster.cluster import LocalCluster
from loadtest import sql_lives
from store import pool
from store.migrate import migrate

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent


def _machine() -> dict[str, object]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    edited = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+edited" if edited else "")


class _Cpu:
    """CPU seconds of the cluster's processes, by name; a store's children count as the store."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._roots: dict[str, int] = {node.name: _pid(node.process.pid) for node in cluster.nodes}
        if cluster.postgres is not None:
            self._roots["postgres"] = _pid(cluster.postgres.pid)
        if cluster.valkey is not None:
            self._roots["valkey"] = _pid(cluster.valkey.pid)

    def read(self) -> dict[str, float]:
        """Seconds used so far by each."""
        totals = {}
        for name, pid in self._roots.items():
            process = psutil.Process(pid)
            used = 0.0
            for member in (process, *process.children(recursive=True)):
                times = member.cpu_times()
                used += times.user + times.system
            totals[name] = used
        return totals


def _pid(pid: int | None) -> int:
    if pid is None:
        raise RuntimeError("a process of the cluster is not running")
    return pid


def _swarm(cluster: LocalCluster, credential: str, mode: str, args: list[str]) -> dict[str, Any]:
    """Run a swarm against every gateway; add CPU seconds per 1,000 lives of each process."""
    urls = [
        word for node in cluster.gateways for word in ("--url", f"http://127.0.0.1:{node.port}")
    ]
    command = [sys.executable, "-m", "loadtest.swarm", mode, *urls, "--credential", credential]
    cpu = _Cpu(cluster)
    marks: list[dict[str, float]] = []
    client: list[float] = []
    result: dict[str, Any] = {}
    with subprocess.Popen([*command, *args], stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        own = psutil.Process(child.pid)
        for line in child.stdout:
            if line.startswith("window-"):
                marks.append(cpu.read())
                times = own.cpu_times()
                client.append(times.user + times.system)
            elif line.startswith("{"):
                result = json.loads(line)
    if child.returncode != 0 or len(marks) != 2:
        raise RuntimeError(f"the swarm ended with status {child.returncode}")
    lives = result.get("lives") or result.get("count") or 1
    used = {name: marks[1][name] - marks[0][name] for name in marks[0]}
    used["swarm"] = client[1] - client[0]
    result["cpu_s_per_1000_lives"] = {name: value / lives * 1000 for name, value in used.items()}
    return result


def _lives(args: argparse.Namespace, gateways: int) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="orbit-bench-") as folder,
        LocalCluster(folder, gateways=gateways, settings={"ORBIT_LOG_LEVEL": "warning"}) as cluster,
    ):
        credential = cluster.create_app("bench", "default")
        window = ["--seconds", str(args.seconds)]
        sizes = ["--workers", str(args.workers), "--capacity", str(args.capacity), *window]
        rate = ["--rate", str(args.rate), *window]
        found: dict[str, Any] = {protocol: {"throughput": []} for protocol in args.protocol}
        for turn in range(args.turns):
            for protocol in args.protocol if turn % 2 == 0 else reversed(args.protocol):
                through = _swarm(
                    cluster, credential, "throughput", [*sizes, "--protocol", protocol]
                )
                found[protocol]["throughput"].append(through)
        for protocol in args.protocol:
            late = _swarm(cluster, credential, "latency", [*rate, "--protocol", protocol])
            found[protocol]["latency"] = late
        if "v2" in args.protocol:
            paced = ["--rate", str(args.cancel_rate), "--seconds", "8", "--protocol", "v2"]
            found["cancel"] = _swarm(cluster, credential, "cancel", paced)
        if gateways == args.gateways[0]:
            found["sql"] = asyncio.run(_sql(cluster.database_url, args.sql_rounds))
        return found


async def _sql(dsn: str, rounds: int) -> dict[str, Any]:
    """The functions alone, in a database that no dispatcher sweeps."""
    connection = await pool.connect(dsn)
    await connection.execute("CREATE DATABASE orbit_sql_lives")
    await connection.close()
    alone = urlsplit(dsn)._replace(path="/orbit_sql_lives").geturl()
    await migrate(alone)
    return {
        f"{count}_connections": await sql_lives.measure(alone, count, rounds // count)
        for count in (1, 2)
    }


def _print(report: dict[str, Any]) -> None:
    sql = report["runs"][0]["sql"]
    best = max(run["lives_per_s"] for run in sql.values())
    print(f"\n(a) SQL functions alone, batches of {sql_lives.BATCH}")
    for name, run in sql.items():
        steps = "  ".join(f"{step} {value:.0f}" for step, value in run["us_per_life"].items())
        print(f"    {name:<14} {run['lives_per_s']:8,.0f} lives/s   us a life: {steps}")
    protocols = report["settings"]["protocol"]
    print("(b) full lives over WebSockets, HTTP batch submission")
    for run in report["runs"]:
        for protocol in protocols:
            for through in run[protocol]["throughput"]:
                _print_throughput(run["gateways"], protocol, through, best)
        if "v2_over_v1" in run:
            print(f"    {run['gateways']} gateway(s)   v2 / v1 {run['v2_over_v1']:.2f}")
    print("(c) from the submission's answer to the assignment, single submissions, open loop")
    for run in report["runs"]:
        for protocol in protocols:
            _print_times(run["gateways"], protocol, run[protocol]["latency"])
    if "v2" in protocols:
        print("(d) from the cancel request to task.cancel at a worker of another gateway, if any")
        for run in report["runs"]:
            _print_times(run["gateways"], "v2", run["cancel"])


def _print_times(gateways: int, protocol: str, times: dict[str, Any]) -> None:
    print(
        f"    {gateways} gateway(s)   {protocol}   {times['rate_per_s']:.0f} a second"
        f"   p50 {times['p50_ms']:.2f}  p90 {times['p90_ms']:.2f}  p99 {times['p99_ms']:.2f}"
        f"  max {times['max_ms']:.2f} ms"
    )


def _print_throughput(
    gateways: int, protocol: str, through: dict[str, Any], sql_lives_per_s: float
) -> None:
    rate = through["lives_per_s"]
    print(
        f"    {gateways} gateway(s)   {protocol} {rate:8,.0f} lives/s   b/a"
        f" {rate / sql_lives_per_s:.2f}   lost {through['lost']}  doubled {through['doubled']}"
        f"  errors {through['errors']}"
    )
    used = {name: value * 1000 for name, value in through["cpu_s_per_1000_lives"].items()}
    for name, value in sorted({**used, "all": sum(used.values())}.items()):
        print(f"        {name:<14} {value:6.1f} CPU us a life")


def _ratio(run: dict[str, Any]) -> dict[str, float]:
    """How many lives of v2 there are for one of v1 over all windows, where both were measured."""
    if "v1" not in run or "v2" not in run:
        return {}
    v2, v1 = (
        sum(through["lives_per_s"] for through in run[protocol]["throughput"])
        for protocol in ("v2", "v1")
    )
    return {"v2_over_v1": v2 / v1}


def main() -> None:
    """Run all parts and write the report."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each window")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=64)
    parser.add_argument("--rate", type=float, default=500.0, help="tasks a second of part (c)")
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--protocol", choices=("v1", "v2"), nargs="+", default=["v1", "v2"])
    parser.add_argument("--cancel-rate", type=float, default=100.0, help="cancels a second of (d)")
    parser.add_argument("--turns", type=int, default=2, help="windows of (b) for each protocol")
    parser.add_argument("--sql-rounds", type=int, default=200, help="batches of part (a)")
    parser.add_argument("--output", type=Path, help="where to write the report")
    args = parser.parse_args()
    now = datetime.datetime.now(datetime.UTC)
    report: dict[str, Any] = {
        "at": now.isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _machine(),
        "settings": {key: value for key, value in vars(args).items() if key != "output"},
        "runs": [],
    }
    for gateways in args.gateways:
        print(f"measuring with {gateways} gateway(s) ...", flush=True)
        run = {"gateways": gateways, **_lives(args, gateways)}
        report["runs"].append(run | _ratio(run))
    _print(report)
    name = f"{now:%Y-%m-%d}-{report['commit']}.json"
    path = args.output or RESULTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    main()
