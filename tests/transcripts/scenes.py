"""The scenes of the transcript. A docstring is a scene's heading and its text."""

import asyncio
from collections.abc import Awaitable, Callable

from orbit_sdk.conformance.peer import instant, new_id, report
from tests.transcripts.stage import Line, Stage

Scene = Callable[[Stage], Awaitable[None]]


async def hello(stage: Stage) -> None:
    """hello and welcome

    The first frame of every connection. The session id of the welcome goes into every later frame.
    The other scenes begin after it.
    """
    await stage.worker(shown=True)


async def capacity(stage: Stage) -> None:
    """capacity

    A level with a rising sequence. The same update again is acknowledged again; a lower sequence,
    or an equal one with another content, is `stale_sequence`.
    """
    peer = await stage.worker()
    await peer.declare(1, 4)
    await peer.declare(1, 4)
    await peer.refused(
        "stale_sequence", "worker.capacity", {"sequence": "1", "capacity": 8, "drain": False}
    )


async def drain(stage: Stage) -> None:
    """drain

    One-way: `draining` stays true whatever is declared afterwards.
    """
    peer = await stage.worker()
    await peer.declare(1, 1, drain=True)
    await peer.declare(2, 4)


async def life(stage: Stage) -> None:
    """assign, start, renew, finish

    The whole life of an attempt. Run the handler after the answer to start, not before.
    """
    peer = await stage.worker()
    attempt = await stage.started(peer, business_key="4711")
    await peer.renew(attempt)
    await peer.finish(attempt, result={"sent": True})


async def failure(stage: Stage) -> None:
    """a failure, and the next attempt

    Within the budget the task waits again. The next attempt has a higher epoch.
    """
    peer = await stage.worker()
    once_more = {
        "max_attempts": 2,
        "initial_delay_ms": 200,
        "max_delay_ms": 200,
        "attempt_timeout_ms": 60_000,
    }
    attempt = await stage.started(peer, retry=once_more)
    await peer.finish(attempt, "FAILED", {"smtp": 451}, "mailbox_busy")
    again = await peer.assignment()
    await peer.start(again)
    await peer.finish(again, result={"sent": True})


async def repeats(stage: Stage) -> None:
    """repeats

    start, renew and finish, each sent twice with one message id: the receipt is the original, the
    lease beside it is checked afresh. A finish with another message id and the same meaning is a
    repeat too.
    """
    peer = await stage.worker()
    await stage.submit()
    attempt = await peer.assignment()
    for send in (peer.start, peer.renew, peer.finish):
        message_id = new_id()
        await send(attempt, message_id=message_id)
        await send(attempt, message_id=message_id)
    await peer.finish(attempt)


async def conflict(stage: Stage) -> None:
    """conflicts

    Another result under the message id of an applied finish is `operation_conflict`. Another result
    under a new message id is kept as evidence and changes nothing.
    """
    peer = await stage.worker()
    attempt = await stage.started(peer)
    message_id = new_id()
    await peer.finish(attempt, result="first", message_id=message_id)
    other = report(attempt, "SUCCEEDED", "second")
    await peer.refused("operation_conflict", "task.finish", other, message_id=message_id)
    await peer.finish(attempt, result="second")


async def resume(stage: Stage) -> None:
    """resume on another node

    The connection to gateway A ends while an attempt runs. On gateway B the attempt must be resumed
    before anything else is accepted; the lease keeps its end.
    """
    first = await stage.worker(gateway="gateway A")
    attempt = await stage.started(first)
    await stage.close(first, "worker → gateway A")
    second = await stage.worker(gateway="gateway B", node=1, shown=True)
    await second.refused("resume_required", "task.renew", attempt.ref)
    await second.resume(attempt)
    await second.finish(attempt, result={"sent": True})
    await second.resume(attempt)


async def superseded(stage: Stage) -> None:
    """superseded

    Two connections of one instance: the newest hello wins, the older connection is told and closed.
    """
    old = await stage.worker(worker="old connection", shown=True)
    await stage.worker(worker="new connection", shown=True)
    await old.fatal("session_superseded", 4409)
    await stage.closed(old, 4409, "gateway → old connection")


async def lapse(stage: Stage) -> None:
    """lapse and late finish

    An attempt that may last 300 ms and says nothing. Its task may not simply be tried again, so it
    is for review; the late report is proven, kept, and changes nothing.
    """
    peer = await stage.worker()
    moment = {
        "max_attempts": 3,
        "initial_delay_ms": 0,
        "max_delay_ms": 0,
        "attempt_timeout_ms": 300,
    }
    await stage.submit(retry=moment, recovery_safety="RECONCILE_ONLY")
    attempt = await peer.assignment()
    lease = (await peer.start(attempt))["lease"]
    left = instant(lease["lease_until"]) - instant(lease["server_time"])
    await asyncio.sleep(left.total_seconds() + 0.05)  # the lease itself is what must pass
    stage.lines.append(Line("worker", "(says nothing until its lease is over)"))
    await peer.finish(attempt, result={"sent": True})


async def stop(stage: Stage) -> None:
    """a stop that somebody asked for

    There is no message for it: the answer to the next renewal is inactive, with time to report.
    """
    peer = await stage.worker()
    attempt = await stage.started(peer)
    await stage.cancel(attempt.task["id"])
    await peer.renew(attempt)
    await peer.finish(attempt, "FAILED", "stopped in time", "cancelled")


async def malformed(stage: Stage) -> None:
    """malformed frames

    With a readable message id the answer names it, and the session goes on. Without one the session
    ends.
    """
    peer = await stage.worker()
    await peer.refused("bad_frame", "task.cancel", {})
    await peer.send_text("not JSON")
    frame = await peer.receive()
    assert frame["error"]["code"] == "bad_frame"
    await stage.closed(peer, 1008)


async def before_hello(stage: Stage) -> None:
    """before hello

    Every fault closes.
    """
    peer = await stage.connect()
    body = {"sequence": "1", "capacity": 1, "drain": False}
    await peer.refused("hello_required", "worker.capacity", body, session_id=new_id())
    await stage.closed(peer, 1008)


SCENES: tuple[Scene, ...] = (
    hello,
    capacity,
    drain,
    life,
    failure,
    repeats,
    conflict,
    resume,
    superseded,
    lapse,
    stop,
    malformed,
    before_hello,
)
