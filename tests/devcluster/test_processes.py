"""Child processes: their end is honest, and none is left behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from devcluster.processes import LOOPBACK, Process, ProcessFailed, answers_ok, free_port, stop_all
from tests.devcluster.gone import DEADLINE_S, assert_gone

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel feature is Linux's")


def child(tmp_path: Path, program: str, name: str = "child") -> Process:
    return Process(
        name=name,
        argv=[sys.executable, "-u", "-c", program, name],
        log_path=tmp_path / f"{name}.log",
        env={"PATH": os.defpath, "SEEN": "yes"},
        cwd=tmp_path,
    )


def wait_for_log(process: Process, text: str) -> None:
    process.wait_until(lambda: text in process.log_tail(), DEADLINE_S)


def test_it_sees_its_own_environment_only_and_logs_gather(tmp_path: Path) -> None:
    process = child(tmp_path, "import os; print(sorted(k for k in os.environ if k != 'LC_CTYPE'))")
    for _ in range(2):
        process.start()
        with pytest.raises(ProcessFailed, match="status 0"):
            process.wait_until(lambda: False, DEADLINE_S)
    assert process.log_tail() == "['PATH', 'SEEN']\n" * 2


def test_a_child_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    program = "import signal; signal.signal(15, signal.SIG_IGN); print('up'); signal.pause()"
    process = child(tmp_path, program)
    process.start()
    wait_for_log(process, "up")
    assert process.stop(timeout_s=0.1) == -signal.SIGKILL
    assert not process.alive


def test_a_child_that_is_late_is_reported_with_its_output(tmp_path: Path) -> None:
    process = child(tmp_path, "import signal; print('nearly'); signal.pause()")
    process.start()
    wait_for_log(process, "nearly")
    with pytest.raises(ProcessFailed, match=r"not ready within 0\.05 s\nnearly"):
        process.wait_until(lambda: False, 0.05)
    process.stop()


def test_a_kill_takes_the_childs_children_with_it(tmp_path: Path) -> None:
    program = (
        "import subprocess, signal\n"
        "print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)\n"
        "signal.pause()\n"
    )
    process = child(tmp_path, program)
    process.start()
    wait_for_log(process, "\n")
    grandchild = psutil.Process(int(process.log_tail()))
    process.kill()
    assert process.exit_status == -signal.SIGKILL
    assert_gone([grandchild])


@on_linux
def test_a_child_ends_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, signal, threading\n"
        "from pathlib import Path\n"
        "from devcluster.processes import Process\n"
        "child = Process('sleeper', ['/bin/sleep', '60'], Path(sys.argv[1]), {})\n"
        # The thread that asks may end long before the process does.
        "asking = threading.Thread(target=child.start)\n"
        "asking.start(); asking.join()\n"
        "assert child.alive\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    with parent:
        try:
            assert parent.stdout is not None
            sleeper = psutil.Process(int(parent.stdout.readline()))
        finally:
            parent.kill()
    assert_gone([sleeper])


def test_all_are_asked_to_stop_before_any_is_waited_for(tmp_path: Path) -> None:
    # Each ends only once every other was asked too.
    program = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    pathlib.Path(f'asked-{own}').touch()\n"
        "    while len(list(pathlib.Path().glob('asked-*'))) < 3: time.sleep(0.01)\n"
        "    sys.exit()\n"
        "own = sys.argv[1]\n"
        "signal.signal(15, end); print('up'); signal.pause()\n"
    )
    processes = [child(tmp_path, program, name) for name in ("first", "second", "third")]
    for process in processes:
        process.start()
        wait_for_log(process, "up")
    stop_all(processes, DEADLINE_S)
    assert [process.exit_status for process in processes] == [0, 0, 0]


@on_linux
def test_a_port_is_given_once_and_its_server_may_start_again() -> None:
    port = free_port()
    for _ in range(2):
        with socket.create_server((LOOPBACK, port)), socket.create_connection((LOOPBACK, port)):
            """A server that reuses addresses gets in, twice."""
    with socket.socket() as probe, pytest.raises(OSError, match="Address already in use"):
        probe.bind((LOOPBACK, port))  # What `free_port` of any process does.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port))


def test_readiness_over_http(tmp_path: Path) -> None:
    port = free_port()
    program = (
        "from http.server import HTTPServer, SimpleHTTPRequestHandler as Handler\n"
        f"HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()\n"
    )
    process = child(tmp_path, program)
    assert not answers_ok(port, "/")
    process.start()
    process.wait_until(lambda: answers_ok(port, "/"), DEADLINE_S)
    assert not answers_ok(port, "/nothing-here")
    process.stop()
