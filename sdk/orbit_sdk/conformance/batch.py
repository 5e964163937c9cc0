"""Frames of several items, and the results that come back for them (OP-06, R-125)."""

from collections.abc import Iterable, Sequence

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, new_id, report

ITEMS_MAX = 256


def item(attempt: Attempt, message_id: str | None = None, **changes: object) -> Frame:
    """A start, renewal or resume of an attempt, with the identity of its own that repeats keep."""
    return {"message_id": message_id or new_id(), **attempt.ref, **changes}


def report_item(
    attempt: Attempt,
    outcome: str = "SUCCEEDED",
    result: object = "done",
    error_code: str | None = None,
    message_id: str | None = None,
) -> Frame:
    """A finish of an attempt."""
    body = report(attempt, outcome, result, error_code)
    return {"message_id": message_id or new_id(), **body}


async def ask_each(peer: Peer, kind: str, items: Sequence[Frame]) -> list[Frame]:
    """Send one frame of these items; its results, one an item and of the shape of its kind."""
    message_id = await peer.send(kind, {"items": list(items)})
    return await results_of(peer, kind, message_id, len(items))


async def results_of(peer: Peer, kind: str, message_id: str, count: int) -> list[Frame]:
    """The results of a frame of so many items that was sent already."""
    frame = await peer.reply()
    expect_equal(frame.get("reply_to"), message_id, "reply_to", frame)
    expect_equal(frame["type"], "ack", "the answer", frame)
    expect("results" in frame["body"], "the ack of a batch holds no results (OP-06)", frame)
    results: list[Frame] = frame["body"]["results"]
    expect_equal(len(results), count, "the number of results (OP-06)", frame)
    for result in results:
        if "error" in result:
            continue
        if kind == "worker.resume":
            expect("active" in result, "a resume is answered by a lease body (R-040)", frame)
            continue
        expect("receipt" in result, "the result is no command result (R-039)", frame)
        wanted = kind.rpartition(".")[2]
        expect_equal(result["receipt"]["operation"], wanted, "the receipt's operation", frame)
    return results


def said(result: Frame) -> str:
    """A result in a word: its error's code, or its disposition and state, or its state."""
    if "error" in result:
        return str(result["error"]["code"])
    if "receipt" in result:
        receipt = result["receipt"]
        return f"{receipt['disposition']} {receipt['attempt_state']}"
    return ("active " if result["active"] else "inactive ") + str(result["state"])


def expect_said(results: Iterable[Frame], wanted: Sequence[str]) -> None:
    """Each item must have been judged like this, in this order."""
    results = list(results)
    expect_equal([said(result) for result in results], list(wanted), "the results", results)


async def assigned(bench: Bench, count: int, **changes: object) -> tuple[Peer, list[Attempt]]:
    """A worker with so many fresh assignments, in the order of their submission."""
    peer = await bench.worker(count)
    ids = [await bench.submit(**changes) for _ in range(count)]
    attempts = [await peer.assignment() for _ in ids]
    got = {attempt.task["id"]: attempt for attempt in attempts}
    expect_equal(set(got), set(ids), "the assigned tasks")
    return peer, [got[task_id] for task_id in ids]


async def running(bench: Bench, count: int, **changes: object) -> tuple[Peer, list[Attempt]]:
    """A worker with so many attempts started by one frame."""
    peer, attempts = await assigned(bench, count, **changes)
    results = await ask_each(peer, "task.start", [item(attempt) for attempt in attempts])
    expect_said(results, ["APPLIED RUNNING"] * count)
    return peer, attempts
