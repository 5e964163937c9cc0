"""Handlers for the fault tests, run in processes of their own so that they can be killed.

Every run of a handler is written down as one line, appended by one system call: what really ran,
whatever the cluster believes.
"""

import os
import time
from dataclasses import dataclass

from orbit_sdk import TaskContext, Worker

worker = Worker(queue="default", capacity=16, name="fault-test")


@dataclass(frozen=True)
class Job:
    """A piece of work that takes some time; a line in `log` tells that it began."""

    log: str
    seconds: float


@worker.handler("job")
def job(job: Job, context: TaskContext) -> dict[str, int]:
    """Note the beginning, work until done or told to stop."""
    line = f"{context.task_id} {context.epoch} {os.getpid()}\n".encode()
    file = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(file, line)
    finally:
        os.close(file)
    end = time.monotonic() + job.seconds
    while (left := end - time.monotonic()) > 0 and not context.cancelled.wait(min(left, 0.1)):
        pass
    context.raise_if_cancelled()
    return {"epoch": context.epoch}
