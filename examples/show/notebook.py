"""What the handlers themselves write down: when each attempt really ran, and in which process.

The demo compares these notes with the database, so "nothing ran twice at the same time" rests on
what happened and not on what was recorded about it. Each worker process appends to a file of its
own in the folder that ORBIT_DEMO_NOTES names; without that variable nothing is written.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orbit_sdk import TaskContext

VARIABLE = "ORBIT_DEMO_NOTES"


@dataclass(frozen=True, slots=True)
class Run:
    """One call of a handler. Instants are nanoseconds of the machine's monotonic clock."""

    task_id: str
    attempt_id: str
    pid: int
    began_ns: int
    ended_ns: int


@contextmanager
def noted(ctx: TaskContext) -> Iterator[None]:
    """Write down the call of a handler once it has ended, however it ends."""
    began_ns = time.monotonic_ns()
    try:
        yield
    finally:
        _write(f"{ctx.task_id} {ctx.attempt_id} {began_ns} {time.monotonic_ns()}\n")


def read_notes(folder: Path) -> dict[str, list[Run]]:
    """Every call of every worker by task id, in order of beginning."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for path in folder.glob("*.notes"):
        for line in path.read_text().splitlines():
            task_id, attempt_id, began, ended = line.split()
            runs[task_id].append(Run(task_id, attempt_id, int(path.stem), int(began), int(ended)))
    for of_task in runs.values():
        of_task.sort(key=lambda run: run.began_ns)
    return runs


def _write(line: str) -> None:
    folder = os.environ.get(VARIABLE)
    if folder:
        # One write in append mode, so that lines of several threads never mix.
        os.write(_file(folder), line.encode())


@cache
def _file(folder: str) -> int:
    path = Path(folder) / f"{os.getpid()}.notes"
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
