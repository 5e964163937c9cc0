"""Whether processes have ended: a zombie has, however late init reaps it."""

import time

import psutil

DEADLINE_S = 10.0
POLL_INTERVAL_S = 0.02


def assert_gone(processes: list[psutil.Process]) -> None:
    """Wait until none of them runs; fail at the deadline with those that do."""
    deadline = time.monotonic() + DEADLINE_S
    while running := [process for process in processes if _runs(process)]:
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(POLL_INTERVAL_S)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
