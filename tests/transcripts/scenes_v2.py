"""The scenes of pulse.worker.v2. A docstring is a scene's heading and its text."""

from orbit_sdk.conformance.batch import ask_each, item, report_item
from orbit_sdk.conformance.contract import V1, V2
from orbit_sdk.conformance.peer import Peer, new_id
from tests.transcripts.scenes import Scene
from tests.transcripts.stage import Stage

ROOM = 3


async def worker(stage: Stage) -> Peer:
    return await stage.worker(version=V2, capacity=ROOM)


async def negotiation(stage: Stage) -> None:
    """both versions offered

    The worker offers both, the gateway takes the newer one. From here on every frame says "2".
    """
    await stage.worker(version=V2, capacity=ROOM, shown=True)


async def life(stage: Stage) -> None:
    """assign, start, renew, finish in batches

    One frame for several attempts, one answer with one result an item, in the order of the items.
    """
    peer = await worker(stage)
    one, two, three = await stage.assigned_at_once(peer, ROOM)
    await ask_each(peer, "task.start", [item(each) for each in (one, two, three)])
    await ask_each(peer, "task.renew", [item(one), item(two)])
    await ask_each(
        peer,
        "task.finish",
        [
            report_item(three, result={"sent": True}),
            report_item(one, "FAILED", {"smtp": 550}, "fatal.no_such_mailbox"),
            report_item(two, "UNKNOWN", {"smtp": "cut off"}, "connection_lost"),
        ],
    )


async def alone(stage: Stage) -> None:
    """each item judged alone

    A right start, one of an attempt that is over, one whose attempt nobody has, and another right
    one: what is wrong with one is nothing to the others.
    """
    peer = await worker(stage)
    over, one, two = await stage.assigned_at_once(peer, ROOM)
    await peer.start(over)
    await peer.finish(over, result={"sent": True})
    stage.lines.clear()
    unknown = item(one, attempt_id=new_id(), task_id=new_id())
    await ask_each(peer, "task.start", [item(one), item(over), unknown, item(two)])


async def operations(stage: Stage) -> None:
    """repeats among other items

    The item's message id is the operation. Here the answer to the first frame was lost, as far as
    the worker knows: it reports again, in a new frame, beside what has ended since.
    """
    peer = await worker(stage)
    one, two, three = await stage.started_at_once(peer, ROOM)
    reports = [report_item(each, result={"sent": True}) for each in (one, two, three)]
    await ask_each(peer, "task.finish", reports[:2])
    await ask_each(peer, "task.finish", [*reports[1:], report_item(one, result="another")])


async def cancel(stage: Stage) -> None:
    """a stop that is pushed

    `task.cancel` comes as soon as the intent is saved, between any two answers, and answers
    nothing. The worker stops and says so with `CANCELLED`. Where no intent is saved that outcome is
    `operation_conflict`, and nothing has changed.
    """
    peer = await worker(stage)
    one, two = await stage.started_at_once(peer, 2)
    await stage.cancel(two.task["id"])
    await peer.pushed(peer.cancels)
    stopped = [
        report_item(each, "CANCELLED", "stopped in time", "cancelled") for each in (one, two)
    ]
    await ask_each(peer, "task.finish", stopped)
    await ask_each(peer, "task.renew", [item(one)])


async def malformed(stage: Stage) -> None:
    """a malformed item

    The whole frame is `bad_frame`, and no item of it was judged: here the second one has no message
    id of its own.
    """
    peer = await worker(stage)
    one, two = await stage.assigned_at_once(peer, 2)
    stage.lines.clear()
    message_id = await peer.send("task.start", {"items": [item(one), two.ref]})
    frame = await peer.answer(message_id)
    assert frame["error"]["code"] == "bad_frame"
    await ask_each(peer, "task.start", [item(one), item(two)])


async def resume(stage: Stage) -> None:
    """resume of what the other version began

    A session of v1 ends with attempts in hand; the next one speaks v2. One answer says which to go
    on with, which to stop, and which is for review.
    """
    first = await stage.worker(gateway="gateway A", capacity=ROOM)
    await stage.submit()
    running = await first.assignment()
    await first.start(running)
    settled = await stage.started(first)
    await first.finish(settled, result={"sent": True})
    unclear = await stage.started(first)
    await first.finish(unclear, "UNKNOWN", {"smtp": "cut off"}, "connection_lost")
    stage.lines.clear()
    assert first.version is V1
    await stage.close(first, "worker → gateway A")
    second = await stage.worker(gateway="gateway B", node=1, version=V2, capacity=ROOM, shown=True)
    await ask_each(second, "worker.resume", [item(each) for each in (running, settled, unclear)])
    await ask_each(second, "task.finish", [report_item(running, result={"sent": True})])


async def drain(stage: Stage) -> None:
    """a gateway that leaves

    `worker.drain` says that nothing more is assigned here. Some time later the session ends with
    `draining`, the connection with 1012. What runs is resumed on another gateway.
    """
    peer = await stage.worker(gateway="gateway B", node=1, version=V2, capacity=ROOM)
    (attempt,) = await stage.started_at_once(peer, 1)
    await stage.leave()
    await peer.pushed(peer.drains)
    await peer.fatal("draining", 1012, LEAVES_S)
    await stage.closed(peer, 1012, "gateway B → worker")
    again = await stage.worker(gateway="gateway A", version=V2, capacity=ROOM, shown=True)
    await ask_each(again, "worker.resume", [item(attempt)])
    await ask_each(again, "task.finish", [report_item(attempt, result={"sent": True})])


LEAVES_S = 30.0

SCENES_V2: tuple[Scene, ...] = (
    negotiation,
    life,
    alone,
    operations,
    cancel,
    malformed,
    resume,
    drain,
)
"""The last one stops the second gateway."""
