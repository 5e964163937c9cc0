"""Every example runs on a real cluster, and says what it promises."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.arch.tree import ROOT

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

EXAMPLE_TIMEOUT_S = 60


async def run_example(name: str, cluster: "LocalCluster") -> list[str]:
    """What an example prints, as a reader would run it."""
    credential = await asyncio.to_thread(cluster.create_app, "examples", "default")
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(Path("examples", name))],
        cwd=ROOT,
        env={**os.environ, "ORBIT_URL": cluster.url, "ORBIT_CREDENTIAL": credential},
        capture_output=True,
        text=True,
        timeout=EXAMPLE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


async def test_hello_greets(cluster: "LocalCluster") -> None:
    accepted, settled = await run_example("hello.py", cluster)
    assert accepted.startswith("accepted  ")
    assert settled == "settled   SUCCEEDED  Hello, world!"


async def test_batch_is_the_same_batch_when_repeated(cluster: "LocalCluster") -> None:
    assert await run_example("batch.py", cluster) == [
        "accepted  200 of 200",
        "repeated  200 were known already",
        "same ids  True",
        f"sum       {sum(number * number for number in range(200))}",
    ]


async def test_retries_end_as_the_handlers_ask(cluster: "LocalCluster") -> None:
    assert [line.split() for line in await run_example("retries.py", cluster)] == [
        ["mail.send", "SUCCEEDED", "{'attempts':", "3}"],
        ["attempt", "1", "FAILED", "handler_error"],
        ["attempt", "2", "FAILED", "handler_error"],
        ["attempt", "3", "SUCCEEDED"],
        ["mail.check", "FAILED", "fatal.no_such_address"],
        ["attempt", "1", "FAILED", "fatal.no_such_address"],
        ["card.charge", "NEEDS_REVIEW", "bank_did_not_answer"],
        ["attempt", "1", "UNKNOWN", "bank_did_not_answer"],
    ]
