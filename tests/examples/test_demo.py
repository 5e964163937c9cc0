"""The demo as `make demo` runs it, only shorter: it passes, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from tests.arch.tree import ROOT
from tests.devcluster.gone import assert_gone

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

DEMO = [sys.executable, str(Path("examples", "demo.py")), "--plain", "--tasks", "300"]
DEMO_TIMEOUT_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some files that nobody changes meanwhile."""
    folder = tmp_path / "files"
    (folder / "deep").mkdir(parents=True)
    (folder / "README.md").write_text("Read me first.\n")
    for number in range(40):
        text = f"line {number}\n" * (number + 1)
        (folder / "deep" / f"{number:02}.txt").write_text(text)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "secret.txt").write_text("left alone\n" * 1_000)
    return folder


@pytest.fixture
def home() -> Iterator[Path]:
    """Where the demo makes its temporary folder; the account of its Postgres must get through."""
    with TemporaryDirectory(prefix="orbit-demo-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_the_demo_loses_a_gateway_and_nothing_else(folder: Path, home: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--json", str(folder)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary["passed"]
    assert summary["tasks"] == 300
    assert summary["lost"] == 0
    assert summary["double_starts"] == 0
    assert summary["retries"] > 0
    assert summary["renewals"] > 0
    killed = summary["gateway_killed"]
    assert killed["worker_sessions"] == len(killed["resumed"]) > 0
    assert all(back["gateway"] != killed["name"] for back in killed["resumed"])
    facts = {fact["name"]: fact["from_tasks"] for fact in summary["facts"]}
    assert facts["largest file"] == "deep/39.txt (320 bytes)"
    assert all(check["passed"] for check in summary["checks"])
    assert list(home.iterdir()) == []


def test_ctrl_c_leaves_nothing_running(folder: Path, home: Path) -> None:
    demo = subprocess.Popen(
        [*DEMO, str(folder)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with demo:
        assert demo.stdout is not None
        try:
            for line in demo.stdout:
                if line.startswith("Act 2"):
                    break
            family = psutil.Process(demo.pid).children(recursive=True)
            assert family
            demo.send_signal(signal.SIGINT)
            said = demo.stdout.read()
            assert demo.wait(30) == 130, said
        finally:
            demo.kill()
    assert "nothing is left running" in said
    assert_gone(family)
    assert list(home.iterdir()) == []


def test_a_folder_without_files_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert f"{tmp_path} holds no files" in done.stderr
