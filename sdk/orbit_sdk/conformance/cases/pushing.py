"""What the server says of its own accord in v2, and the outcome CANCELLED (R-127, R-128, OP-02)."""

from datetime import UTC, datetime, timedelta

from orbit_sdk.conformance import batch
from orbit_sdk.conformance.bench import Bench, wire_time
from orbit_sdk.conformance.cases.lapses import past_its_deadline
from orbit_sdk.conformance.cases.operations import cancel, cancelling, ended
from orbit_sdk.conformance.checks import check_v2, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, report

CANCELS = 3
"""One push may be lost on its way, by the contract; not all of so many."""
DEADLINE_S = 4.0
TOLD_S = DEADLINE_S + 10.0


def cancellation(attempt: Attempt, reason: str) -> Frame:
    """The body of a task.cancel about this attempt."""
    return {
        "attempt_id": attempt.body["attempt_id"],
        "task_id": attempt.task["id"],
        "epoch": attempt.body["epoch"],
        "reason": reason,
    }


@check_v2
async def cancel_is_pushed(bench: Bench) -> None:
    """R-127, OP-02: a saved intent is told to the worker by task.cancel, naming the attempt.

    Three running attempts, two of them cancelled; a push must come, and only about these two.
    """
    peer, attempts = await batch.running(bench, CANCELS)
    unwanted = attempts[1:]
    for attempt in unwanted:
        await cancel(bench, attempt.task["id"], 202)
    body = await peer.pushed(peer.cancels)
    # By then whatever else was pushed is here, or on its way before this answer.
    results = await batch.ask_each(peer, "task.renew", [batch.item(each) for each in attempts])
    active = [result["lease"]["active"] for result in results]
    expect_equal(active, [True, False, False], "the leases' active", results)
    known = [cancellation(each, "caller") for each in unwanted]
    for told in [body, *peer.cancels]:
        expect(told in known, "it names no attempt that was cancelled", told)


@check_v2
async def deadline_is_pushed(bench: Bench) -> None:
    """R-127, OP-26: a passed deadline is told by task.cancel as well, with its reason.

    Three running attempts past their tasks' deadline; a push must come, and name one of them.
    """
    soon = wire_time(datetime.now(UTC) + timedelta(seconds=DEADLINE_S))
    peer, attempts = await batch.running(bench, CANCELS, deadline_at=soon)
    body = await peer.pushed(peer.cancels, TOLD_S)
    results = await batch.ask_each(peer, "task.renew", [batch.item(each) for each in attempts])
    active = [result["lease"]["active"] for result in results]
    expect_equal(active, [False] * CANCELS, "the leases' active", results)
    known = [cancellation(each, "deadline") for each in attempts]
    for told in [body, *peer.cancels]:
        expect(told in known, "it names no attempt whose deadline has passed", told)


@check_v2
async def push_grants_and_takes_nothing(bench: Bench) -> None:
    """R-127, OP-28: after a task.cancel the worker still reports, and success still counts.

    A cancel, its push, a success.
    """
    peer, attempt = await cancelling(bench)
    await peer.pushed(peer.cancels)
    await ended(bench, attempt, await peer.finish(attempt), "SUCCEEDED", "SUCCEEDED")


@check_v2
async def confirmed_stop_by_outcome(bench: Bench) -> None:
    """OP-02, R-128: CANCELLED under a saved intent is CANCELLED, attempt and task.

    A cancel, then that outcome; then the same finish again.
    """
    peer, attempt = await cancelling(bench)
    result = await peer.finish(attempt, "CANCELLED", "stopped", "stopped_in_time")
    await ended(bench, attempt, result, "CANCELLED", "CANCELLED")
    again = await peer.finish(attempt, "CANCELLED", "stopped", "stopped_in_time")
    expect_equal(again["receipt"], result["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)


@check_v2
async def cancelled_without_an_intent(bench: Bench) -> None:
    """R-128, OP-02: CANCELLED without a saved intent is refused and changes nothing.

    That outcome for one of two running attempts, beside a success; then a renewal and a success.
    """
    peer, (one, two) = await batch.running(bench, 2)
    unasked = batch.report_item(one, "CANCELLED", "stopped", "stopped")
    results = await batch.ask_each(peer, "task.finish", [unasked, batch.report_item(two)])
    batch.expect_said(results, ["operation_conflict", "APPLIED SUCCEEDED"])
    task = await bench.task(one.task["id"])
    expect_equal(task["state"], "RUNNING", "the task's state", task)
    expect_equal((await peer.renew(one))["lease"]["active"], True, "the lease's active")
    await ended(bench, one, await peer.finish(one), "SUCCEEDED", "SUCCEEDED")


@check_v2
async def cancelled_under_a_deadline(bench: Bench) -> None:
    """OP-28, OP-26: CANCELLED after the deadline fails the task as deadline_exceeded.

    A running attempt past its task's deadline, then that outcome.
    """
    peer, attempt = await past_its_deadline(bench)
    result = await peer.finish(attempt, "CANCELLED", "stopped", "stopped")
    await ended(bench, attempt, result, "FAILED", "FAILED")
    task = await bench.task(attempt.task["id"])
    expect_equal(task["error_code"], "deadline_exceeded", "the task's error code", task)


@check_v2
async def cancelled_needs_a_code(bench: Bench) -> None:
    """R-035, OP-02: with CANCELLED an error code is required, as with FAILED.

    A cancel, then that outcome without a code and with an empty one: bad_frame; then with one.
    """
    peer, attempt = await cancelling(bench)
    for code in (None, ""):
        body = report(attempt, "CANCELLED", "stopped", code)
        await peer.refused("bad_frame", "task.finish", body)
    result = await peer.finish(attempt, "CANCELLED", "stopped", "stopped")
    await ended(bench, attempt, result, "CANCELLED", "CANCELLED")
