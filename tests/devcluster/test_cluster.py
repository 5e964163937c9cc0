"""A whole local cluster: it comes up, loses parts, and goes away without a trace."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest

from devcluster.cluster import READY_PATH, LocalCluster, orbit_command
from devcluster.processes import answers_ok, free_port
from tests.devcluster.gone import assert_gone

DEADLINE_S = 15.0

pytestmark = pytest.mark.cluster


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="orbit-dev-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o711)
        yield path / "data"


@contextmanager
def orbit_dev(*options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`orbit dev` and its first line, once it has said it."""
    process = subprocess.Popen(
        [*orbit_command(), "dev", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                pytest.fail(process.communicate()[1])
            yield process, line
        finally:
            if process.poll() is None:
                process.kill()


def test_a_task_gets_in_through_any_gateway_and_stays_when_one_dies(
    cluster: LocalCluster,
) -> None:
    facts = {
        "url": cluster.url,
        "credential": cluster.create_app("shop", "mail"),
        "queue": "mail",
    }
    made = submit(facts)
    assert made.status_code == 201, made.text
    cluster.gateways[0].kill()
    for _ in range(4):
        again = submit(facts)
        assert (again.status_code, again.json()["data"]["id"]) == (200, made.json()["data"]["id"])
    cluster.gateways[0].start()
    cluster.gateways[1].kill()
    assert submit(facts).json()["data"]["id"] == made.json()["data"]["id"]


def test_a_broken_database_link_makes_a_gateway_unready_and_it_recovers(
    cluster: LocalCluster,
) -> None:
    assert cluster.database_link is not None
    gateway = cluster.gateways[0]
    cluster.database_link.set_refusing(True)
    cluster.database_link.cut()
    gateway.process.wait_until(lambda: not answers_ok(gateway.port, READY_PATH), DEADLINE_S)
    assert answers_ok(gateway.port, "/health/live")
    cluster.database_link.set_refusing(False)
    gateway.wait_ready()


def test_orbit_dev_keeps_its_data_and_stops_clean(folder: Path) -> None:
    options = ("--data", str(folder), "--port", "0", "--gateways", "1", "--json")
    with orbit_dev(*options) as (process, line):
        family = psutil.Process(process.pid).children(recursive=True)
        made = submit(json.loads(line))
        assert made.status_code == 201, made.text
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
    assert family
    assert_gone(family)
    with orbit_dev(*options) as (process, line):
        assert submit(json.loads(line)).json()["data"]["id"] == made.json()["data"]["id"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


def test_the_example_that_orbit_dev_prints_works_as_it_is(folder: Path, tmp_path: Path) -> None:
    (folder / "postgres" / "data").mkdir(parents=True)
    (folder / "credential").write_text("of a time before the reset")
    (folder / "notes.txt").write_text("not ours")
    options = ("--data", str(folder), "--port", str(free_port()), "--gateways", "1", "--reset")
    with orbit_dev(*options) as (process, line):
        assert process.stdout is not None
        said = line
        while "Logs" not in said:
            said += process.stdout.readline()
        example = said.partition("another terminal:\n")[2].partition("\nPostgres")[0]
        done = subprocess.run(
            ["bash", "-euc", f"{example}\nkill %1; wait %1 || true"],
            env={"PATH": os.environ["PATH"]},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello, world!" in done.stdout
    assert (folder / "notes.txt").exists()


def test_a_busy_port_is_named_and_a_killed_orbit_dev_leaves_nothing_running(folder: Path) -> None:
    options = ("--data", str(folder), "--port", "0", "--gateways", "1", "--json")
    with orbit_dev(*options) as (process, line):
        port = json.loads(line)["url"].rpartition(":")[2]
        second = subprocess.run(
            [*orbit_command(), "dev", "--data", f"{folder}-2", "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert second.returncode == 1
    assert port in second.stderr
    assert "Traceback" not in second.stderr
    if sys.platform == "linux":
        assert_gone(family)


BODY = {
    "handler": "send",
    "handler_version": "1",
    "payload_version": "1",
    "payload": {},
    "recovery_safety": "IDEMPOTENT",
}


def submit(facts: dict[str, str]) -> httpx.Response:
    """Submit one and the same task, over a new connection."""
    return httpx.post(
        f"{facts['url']}/v1/tasks",
        json={**BODY, "queue": facts["queue"]},
        headers={"Authorization": f"Bearer {facts['credential']}", "Idempotency-Key": "one"},
    )
