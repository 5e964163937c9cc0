"""Frames of several items: each judged alone, all answered in one frame (OP-06, R-125, R-172)."""

from orbit_sdk.conformance.batch import (
    ITEMS_MAX,
    ask_each,
    assigned,
    expect_said,
    item,
    report_item,
    results_of,
    running,
)
from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check_v2, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, instant, new_id, new_secret

MANY = 12


def stranger(attempt: Attempt) -> Frame:
    """An item about an attempt that nobody has."""
    return item(attempt, attempt_id=new_id(), task_id=new_id())


async def refused_whole(peer: Peer, kind: str, items: object, what: str) -> None:
    """One error frame must speak for all items."""
    message_id = await peer.send(kind, {"items": items})
    frame = await peer.reply()
    expect_equal(frame.get("reply_to"), message_id, "reply_to", frame)
    expect_equal(frame["type"], "error", f"the answer to {what}", frame)
    expect_equal(frame["error"]["code"], "bad_frame", f"the answer to {what}", frame)


@check_v2
async def whole_life_in_batches(bench: Bench) -> None:
    """OP-06, R-125: a frame of items is answered by one frame, with one result an item, in order.

    Three attempts started, renewed and finished by one frame each, in another order each time.
    """
    peer, attempts = await assigned(bench, 3)
    one, two, three = attempts
    results = await ask_each(peer, "task.start", [item(each) for each in (three, one, two)])
    expect_said(results, ["APPLIED RUNNING"] * 3)
    results = await ask_each(peer, "task.renew", [item(each) for each in (two, three, one)])
    expect_said(results, ["APPLIED RUNNING"] * 3)
    results = await ask_each(
        peer,
        "task.finish",
        [
            report_item(two, "FAILED", "no", "fatal.no"),
            report_item(one),
            report_item(three, "UNKNOWN", "perhaps", "lost_track"),
        ],
    )
    expect_said(results, ["APPLIED FAILED", "APPLIED SUCCEEDED", "APPLIED UNKNOWN"])
    states = [(await bench.task(each.task["id"]))["state"] for each in attempts]
    expect_equal(states, ["SUCCEEDED", "FAILED", "NEEDS_REVIEW"], "the tasks' states")


@check_v2
async def starts_are_judged_alone(bench: Bench) -> None:
    """OP-06, R-172: in one frame of starts each item is judged alone.

    A fresh assignment, an unknown one, one with a wrong secret, one settled long ago, a fresh one.
    """
    peer, (fresh, forged, over, last) = await assigned(bench, 4)
    await peer.start(over)
    await peer.finish(over)
    results = await ask_each(
        peer,
        "task.start",
        [
            item(fresh),
            stranger(fresh),
            item(forged, lease_secret=new_secret()),
            item(over),
            item(last),
        ],
    )
    expect_said(
        results,
        [
            "APPLIED RUNNING",
            "attempt_not_found",
            "attempt_not_found",
            "EVIDENCE_ONLY SUCCEEDED",
            "APPLIED RUNNING",
        ],
    )
    active = [result["lease"]["active"] for result in results if "lease" in result]
    expect_equal(active, [True, False, True], "the leases' active", results)
    states = [(await bench.task(each.task["id"]))["state"] for each in (fresh, forged, last)]
    expect_equal(states, ["RUNNING", "LEASED", "RUNNING"], "the tasks' states")


@check_v2
async def renewals_are_judged_alone(bench: Bench) -> None:
    """OP-06, R-125: in one frame of renewals each item is judged alone.

    One that is over, one unknown, two that run: these are extended, over HTTP as well.
    """
    peer, (first, over, last) = await running(bench, 3)
    await peer.finish(over)
    before = [await lease_until(bench, each) for each in (first, last)]
    results = await ask_each(
        peer, "task.renew", [item(over), item(first), stranger(first), item(last)]
    )
    expect_said(
        results,
        ["EVIDENCE_ONLY SUCCEEDED", "APPLIED RUNNING", "attempt_not_found", "APPLIED RUNNING"],
    )
    after = [await lease_until(bench, each) for each in (first, last)]
    for was, became, result in zip(before, after, (results[1], results[3]), strict=True):
        expect(instant(became) > instant(was), "it was not extended", result)
        expect_equal(instant(result["lease"]["lease_until"]), instant(became), "its end", result)


async def lease_until(bench: Bench, attempt: Attempt) -> str:
    (row,) = await bench.attempts(attempt.task["id"])
    return str(row["lease_until"])


@check_v2
async def finishes_are_judged_alone(bench: Bench) -> None:
    """OP-06, R-144, R-172: in one frame of finishes each item is judged alone.

    A success, one never started, one without proof, another result for what is over, a failure.
    """
    peer, attempts = await assigned(bench, 5)
    good, unstarted, forged, over, failed = attempts
    runs = [item(each) for each in (good, forged, over, failed)]
    await ask_each(peer, "task.start", runs)
    await peer.finish(over, result="one")
    without_proof = report_item(forged)
    without_proof["ref"] = {**forged.ref, "lease_secret": new_secret()}
    results = await ask_each(
        peer,
        "task.finish",
        [
            report_item(good),
            report_item(unstarted),
            without_proof,
            report_item(over, result="two"),
            report_item(failed, "FAILED", "no", "fatal.no"),
        ],
    )
    expect_said(
        results,
        [
            "APPLIED SUCCEEDED",
            "operation_conflict",
            "attempt_not_found",
            "EVIDENCE_ONLY SUCCEEDED",
            "APPLIED FAILED",
        ],
    )
    states = [(await bench.task(each.task["id"]))["state"] for each in attempts]
    wanted = ["SUCCEEDED", "LEASED", "RUNNING", "SUCCEEDED", "FAILED"]
    expect_equal(states, wanted, "the tasks' states")


@check_v2
async def resumes_are_judged_alone(bench: Bench) -> None:
    """OP-06, R-121, OP-14: in one frame of resumes each item says: go on, stop, or review.

    One that runs, one that is over, an unknown one, one for review, and another that runs.
    """
    peer, (first, over, unclear, last) = await running(bench, 4)
    await peer.finish(over)
    await peer.finish(unclear, "UNKNOWN", "perhaps", "lost_track")
    again = await bench.reconnected(peer, 4)
    results = await ask_each(
        again,
        "worker.resume",
        [item(first), item(over), stranger(first), item(unclear), item(last)],
    )
    expect_said(
        results,
        [
            "active RUNNING",
            "inactive SUCCEEDED",
            "attempt_not_found",
            "inactive UNKNOWN",
            "active RUNNING",
        ],
    )
    results = await ask_each(again, "task.finish", [report_item(first), report_item(last)])
    expect_said(results, ["APPLIED SUCCEEDED"] * 2)


@check_v2
async def item_is_the_operation(bench: Bench) -> None:
    """OP-06, OP-21, R-143: an item's message id is the operation, in whatever frame it comes.

    Two finishes, then a new frame that repeats the second beside a third; then the first alone.
    """
    peer, (one, two, three) = await running(bench, 3)
    reports = [report_item(each) for each in (one, two, three)]
    first = await ask_each(peer, "task.finish", reports[:2])
    second = await ask_each(peer, "task.finish", [reports[2], reports[1]])
    expect_said(second, ["APPLIED SUCCEEDED"] * 2)
    repeats = [result["deduplicated"] for result in second]
    expect_equal(repeats, [False, True], "deduplicated", second)
    expect_equal(second[1]["receipt"], first[1]["receipt"], "the receipt", second)
    (third,) = await ask_each(peer, "task.finish", [reports[0]])
    expect_equal(third["receipt"], first[0]["receipt"], "the receipt", third)


@check_v2
async def item_twice_in_one_frame(bench: Bench) -> None:
    """OP-06, OP-21: of one operation twice in a frame the second is a repeat.

    A start twice under one id, then a finish twice under two ids, then one id with two results.
    """
    peer, (attempt, other) = await assigned(bench, 2)
    start = item(attempt)
    results = await ask_each(peer, "task.start", [start, start, item(other)])
    expect_said(results, ["APPLIED RUNNING"] * 3)
    repeats = [result["deduplicated"] for result in results]
    expect_equal(repeats, [False, True, False], "deduplicated", results)
    results = await ask_each(peer, "task.finish", [report_item(attempt), report_item(attempt)])
    expect_equal([r["deduplicated"] for r in results], [False, True], "deduplicated", results)
    expect_equal(results[1]["receipt"], results[0]["receipt"], "the receipt", results)
    message = new_id()
    torn = [report_item(other, result=word, message_id=message) for word in ("one", "two")]
    results = await ask_each(peer, "task.finish", torn)
    expect_said(results, ["APPLIED SUCCEEDED", "operation_conflict"])


@check_v2
async def batch_has_bounds(bench: Bench) -> None:
    """OP-06, R-053: a frame has 1 to 256 items; more or none is bad_frame and changes nothing.

    No items, 257 with a right one in front, then 256 with the right one at the end.
    """
    peer, attempt = await bench.assigned()
    for kind in ("task.start", "task.renew", "worker.resume", "task.finish"):
        await refused_whole(peer, kind, [], f"a {kind} without items")
    strangers = [stranger(attempt) for _ in range(ITEMS_MAX)]
    await refused_whole(peer, "task.start", [item(attempt), *strangers], "257 items")
    task = await bench.task(attempt.task["id"])
    expect_equal(task["state"], "LEASED", "the task's state", task)
    results = await ask_each(peer, "task.start", [*strangers[1:], item(attempt)])
    expect_said(results, ["attempt_not_found"] * (ITEMS_MAX - 1) + ["APPLIED RUNNING"])


@check_v2
async def malformed_item_spoils_its_frame(bench: Bench) -> None:
    """OP-08, R-009: a frame with an item of another form is bad_frame, and no item is judged.

    A right item beside one without a message id, with a field too many, in the form of v1, null.
    """
    peer, attempt = await bench.assigned()
    right = item(attempt)
    for wrong in ({**attempt.ref}, {**item(attempt), "more": 1}, {"ref": attempt.ref}, None):
        await refused_whole(peer, "task.start", [right, wrong], f"{wrong}")
    frame = peer.frame("task.start", {"items": [right]})
    frame["body"] = attempt.ref
    await peer.send_text(peer.text_of(frame), frame)
    answer = await peer.answer(frame["message_id"])
    expect_equal(answer.get("error", {}).get("code"), "bad_frame", "a body of v1", answer)
    task = await bench.task(attempt.task["id"])
    expect_equal(task["state"], "LEASED", "the task's state", task)
    await peer.start(attempt)


@check_v2
async def assignments_come_once_each(bench: Bench) -> None:
    """OP-06, R-156: every due task is assigned once, in frames of 1 to 256 assignments.

    Twelve tasks for a worker with as many slots, and one more, which must reach another worker.
    """
    peer, attempts = await assigned(bench, MANY)
    expect_equal(len({each.body["attempt_id"] for each in attempts}), MANY, "different attempts")
    task_id = await bench.submit()
    other = await (await bench.worker()).assignment()
    expect_equal(other.task["id"], task_id, "the task that the other worker got", other.body)
    await peer.nothing_was_assigned()


@check_v2
async def pipelined_batches_keep_their_order(bench: Bench) -> None:
    """OP-06: pipelined frames about the same attempts are judged in their order.

    start, renew and finish of two attempts in three frames sent without waiting.
    """
    peer, pair = await assigned(bench, 2)
    reports = [report_item(each) for each in pair]
    kinds = (
        ("task.start", [item(each) for each in pair], "APPLIED RUNNING"),
        ("task.renew", [item(each) for each in pair], "APPLIED RUNNING"),
        ("task.finish", reports, "APPLIED SUCCEEDED"),
    )
    sent = [await peer.send(kind, {"items": items}) for kind, items, _ in kinds]
    for message_id, (kind, _, wanted) in zip(sent, kinds, strict=True):
        results = await results_of(peer, kind, message_id, 2)
        expect_said(results, [wanted] * 2)


@check_v2
async def frames_in_flight_keep_their_results(bench: Bench) -> None:
    """OP-06, R-125: results of one frame are those of its own items, also between other frames.

    A frame of renewals and a frame of resumes in flight together; each gets its own shapes.
    """
    peer, pair = await running(bench, 2)
    renews = await peer.send("task.renew", {"items": [item(each) for each in pair]})
    resumes = await peer.send("worker.resume", {"items": [item(each) for each in pair[::-1]]})
    answers = {}
    for _ in range(2):
        frame = await peer.reply()
        expect_equal(frame["type"], "ack", "the answer", frame)
        answers[frame["reply_to"]] = frame["body"].get("results", [])
    expect_equal(set(answers), {renews, resumes}, "the answered frames")
    expect_said(answers[renews], ["APPLIED RUNNING"] * 2)
    expect_said(answers[resumes], ["active RUNNING"] * 2)
