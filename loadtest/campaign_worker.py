"""The handler of a kill campaign: it writes down when it began and when it ended, and nothing else.

Lines are `begin|end task epoch nanoseconds`, by the clock that all processes of a machine share,
appended by one system call each, so that a kill never leaves half a line.
"""

import os
import time

from orbit_sdk import TaskContext, Worker

worker = Worker(queue="default", capacity=16, name="campaign")
_log = os.open(os.environ["CAMPAIGN_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def _note(what: str, context: TaskContext) -> None:
    line = f"{what} {context.task_id} {context.epoch} {time.monotonic_ns()}\n"
    os.write(_log, line.encode())


@worker.handler("campaign")
def work(payload: dict[str, float], context: TaskContext) -> dict[str, int]:
    """Work for a while, or until told to stop."""
    _note("begin", context)
    context.cancelled.wait(payload["seconds"])
    _note("end", context)
    return {"epoch": context.epoch}
