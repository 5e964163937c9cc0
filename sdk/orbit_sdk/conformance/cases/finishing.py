"""The end of an attempt: receipts, repeats, conflicts (R-035, R-140 to R-145, OP-21 to OP-24)."""

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check, check_v1, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, new_id, report

ONCE = {
    "max_attempts": 1,
    "initial_delay_ms": 0,
    "max_delay_ms": 0,
    "attempt_timeout_ms": 60_000,
}
JSON_BYTES_MAX = 262_144


async def bad_report(peer: Peer, body: Frame) -> None:
    await peer.refused("bad_frame", "task.finish", body)


async def state_is(bench: Bench, attempt: Attempt, state: str, code: str | None = None) -> Frame:
    task = await bench.task(attempt.task["id"])
    expect_equal(task["state"], state, "the task's state", task)
    expect_equal(task.get("error_code"), code, "the task's error code", task)
    return task


@check
async def success_settles_the_task(bench: Bench) -> None:
    """R-140, R-141: once a SUCCEEDED finish is confirmed, task, attempt and result are durable.

    A finish, then the task and its attempt over HTTP.
    """
    peer, attempt, _ = await bench.running()
    result = {"text": "ä", "list": [1, {"deep": None}], "big": 2**60}
    finished = await peer.finish(attempt, result=result)
    receipt = finished["receipt"]
    expect_equal(
        (receipt["disposition"], receipt["task_state"], receipt["attempt_state"]),
        ("APPLIED", "SUCCEEDED", "SUCCEEDED"),
        "the receipt",
        finished,
    )
    expect_equal(finished["lease"]["active"], False, "the lease's active", finished)
    task = await state_is(bench, attempt, "SUCCEEDED")
    expect_equal(task["result"], result, "the result", task)
    expect_equal(task["revision"], receipt["task_revision"], "the revision", task)
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal((row["state"], row["result"]), ("SUCCEEDED", result), "the attempt", row)


@check
async def result_is_kept_as_it_was_written(bench: Bench) -> None:
    """R-005, R-052: numbers of a result lose nothing on the way.

    A result with thirty digits and a fraction with trailing zeros; the text of the answer.
    """
    peer, attempt, _ = await bench.running()
    frame = peer.frame("task.finish", report(attempt, "SUCCEEDED", "RESULT"))
    spelled = '{"n": 123456789012345678901234567890, "f": 1.500}'
    text = peer.text_of(frame).replace('"RESULT"', spelled)
    await peer.send_text(text, frame)
    answer = await peer.answer(frame["message_id"])
    expect_equal(answer["type"], "ack", "the answer", answer)
    read = await bench.call("GET", f"/v1/tasks/{attempt.task['id']}")
    for number in ("123456789012345678901234567890", "1.500"):
        expect(number in read.text, f"{number} is gone", read.text)


@check
async def finish_again_with_the_same_message(bench: Bench) -> None:
    """R-143, OP-21: the same finish again returns the original receipt, deduplicated.

    One finish frame sent twice.
    """
    peer, attempt, _ = await bench.running()
    message = new_id()
    first = await peer.finish(attempt, message_id=message)
    again = await peer.finish(attempt, message_id=message)
    expect_equal(again["receipt"], first["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)


@check
async def finish_again_with_a_new_message(bench: Bench) -> None:
    """R-143, OP-21: the same result under a new message id returns the original receipt too.

    Two finish frames with one meaning, spelled with keys in another order.
    """
    peer, attempt, _ = await bench.running()
    first = await peer.finish(attempt, result={"a": 1, "b": 2.0})
    again = await peer.finish(attempt, result={"b": 2, "a": 1})
    expect_equal(again["receipt"], first["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)


@check
async def same_message_with_another_result(bench: Bench) -> None:
    """OP-21: a message id used again for another content is operation_conflict.

    A finish, then another result under its message id.
    """
    peer, attempt, _ = await bench.running()
    message = new_id()
    await peer.finish(attempt, result="one", message_id=message)
    await peer.refused(
        "operation_conflict", "task.finish", report(attempt, "SUCCEEDED", "two"), message_id=message
    )
    task = await state_is(bench, attempt, "SUCCEEDED")
    expect_equal(task["result"], "one", "the result", task)


@check
async def another_result_changes_nothing(bench: Bench) -> None:
    """R-144, OP-22: a second, different result is EVIDENCE_ONLY and changes nothing.

    A finish, then a different one with a new message id; the task over HTTP.
    """
    peer, attempt, first = await bench.running()
    first = await peer.finish(attempt, result="one")
    other = await peer.finish(attempt, "FAILED", "two", "changed_its_mind")
    receipt = other["receipt"]
    expect_equal(receipt["disposition"], "EVIDENCE_ONLY", "the disposition", other)
    expect_equal(receipt["task_state"], "SUCCEEDED", "the receipt's task state", other)
    expect_equal(other["lease"]["active"], False, "the lease's active", other)
    task = await state_is(bench, attempt, "SUCCEEDED")
    expect_equal(task["result"], "one", "the result", task)
    expect_equal(task["revision"], first["receipt"]["task_revision"], "the revision", task)


@check
async def repeat_needs_no_current_session(bench: Bench) -> None:
    """R-143, R-145, R-117: a repeat is recognised first, in a later session too.

    A finish, a reconnect, the same finish without a resume.
    """
    peer, attempt, _ = await bench.running()
    message = new_id()
    first = await peer.finish(attempt, message_id=message)
    again = await bench.reconnected(peer)
    repeated = await again.finish(attempt, message_id=message)
    expect_equal(repeated["receipt"], first["receipt"], "the receipt", repeated)
    expect_equal(repeated["deduplicated"], True, "deduplicated", repeated)


@check
async def start_repeated_after_the_end(bench: Bench) -> None:
    """OP-21, R-038: the start's receipt outlives the attempt, and authorises nothing then.

    A start, a finish, the start again.
    """
    peer, attempt = await bench.assigned()
    message = new_id()
    first = await peer.start(attempt, message_id=message)
    await peer.finish(attempt)
    again = await peer.start(attempt, message_id=message)
    expect_equal(again["receipt"], first["receipt"], "the receipt", again)
    expect_equal(again["lease"]["active"], False, "the lease's active", again)
    fresh = await peer.start(attempt)
    expect_equal(fresh["receipt"]["disposition"], "EVIDENCE_ONLY", "the disposition", fresh)


@check
async def finish_before_the_start(bench: Bench) -> None:
    """OP-20: an attempt that never started cannot finish.

    A finish of a fresh assignment is refused; the start that follows is authorised.
    """
    peer, attempt = await bench.assigned()
    frame = await peer.ask("task.finish", report(attempt, "SUCCEEDED", 1))
    expect_equal(frame["type"], "error", "the answer", frame)
    result = await peer.start(attempt)
    expect_equal(result["lease"]["active"], True, "the lease's active", result)


@check
async def unknown_goes_to_review(bench: Bench) -> None:
    """OP-24: UNKNOWN leaves the attempt UNKNOWN and the task NEEDS_REVIEW, without a retry.

    A finish with UNKNOWN; what was reported is kept.
    """
    peer, attempt, _ = await bench.running()
    finished = await peer.finish(attempt, "UNKNOWN", {"sent": "perhaps"}, "bank_did_not_answer")
    receipt = finished["receipt"]
    expect_equal(
        (receipt["task_state"], receipt["attempt_state"]),
        ("NEEDS_REVIEW", "UNKNOWN"),
        "the states",
        finished,
    )
    task = await state_is(bench, attempt, "NEEDS_REVIEW", "bank_did_not_answer")
    expect_equal(task["result"], {"sent": "perhaps"}, "the result", task)


@check
async def failure_without_budget_fails_the_task(bench: Bench) -> None:
    """OP-27, R-126: FAILED with no attempt left fails the task, with the reported code.

    max_attempts 1 and a FAILED finish.
    """
    peer, attempt, _ = await bench.running(retry=ONCE)
    finished = await peer.finish(attempt, "FAILED", {"why": "x"}, "out_of_paper")
    expect_equal(finished["receipt"]["task_state"], "FAILED", "the task's state", finished)
    await state_is(bench, attempt, "FAILED", "out_of_paper")


@check
async def unretryable_codes(bench: Bench) -> None:
    """OP-27: fatal.*, invalid_input and unsupported_capability are not tried again.

    FAILED with each of them, with two attempts left.
    """
    peer = await bench.worker()
    for code in ("fatal.anything", "invalid_input", "unsupported_capability"):
        await bench.submit()
        attempt = await peer.assignment()
        await peer.start(attempt)
        finished = await peer.finish(attempt, "FAILED", code, code)
        expect_equal(finished["receipt"]["task_state"], "FAILED", "the task's state", finished)
        await state_is(bench, attempt, "FAILED", code)


@check
async def cancelled_without_an_intent_is_a_failure(bench: Bench) -> None:
    """OP-02: the code cancelled without a saved intent is an ordinary failure.

    FAILED with error_code cancelled and no attempt left.
    """
    peer, attempt, _ = await bench.running(retry=ONCE)
    finished = await peer.finish(attempt, "FAILED", "stopped", "cancelled")
    receipt = finished["receipt"]
    expect_equal(
        (receipt["task_state"], receipt["attempt_state"]), ("FAILED", "FAILED"), "states", finished
    )


@check_v1
async def outcome_cancelled_is_no_outcome(bench: Bench) -> None:
    """OP-02, R-035: the outcome CANCELLED does not exist on pulse.worker.v1.

    A finish with it is bad_frame; the attempt runs on.
    """
    peer, attempt, _ = await bench.running()
    await bad_report(peer, report(attempt, "CANCELLED", "x", "cancelled"))
    await peer.renew(attempt)


@check
async def error_code_belongs_to_the_outcome(bench: Bench) -> None:
    """R-035: SUCCEEDED has no error code, FAILED and UNKNOWN need one of the token form.

    Each wrong pair is bad_frame; SUCCEEDED with an empty code is accepted.
    """
    peer, attempt, _ = await bench.running()
    await bad_report(peer, report(attempt, "SUCCEEDED", 1, "oops"))
    await bad_report(peer, report(attempt, "FAILED", 1))
    await bad_report(peer, report(attempt, "FAILED", 1, ""))
    await bad_report(peer, report(attempt, "UNKNOWN", 1, "two words"))
    await bad_report(peer, report(attempt, "FAILED", 1, "c" * 65))
    finished = await peer.finish(attempt, "SUCCEEDED", 1, "")
    expect_equal(finished["receipt"]["task_state"], "SUCCEEDED", "the task's state", finished)


@check
async def result_is_not_null_and_not_missing(bench: Bench) -> None:
    """R-005, R-035: a result is any JSON value but null.

    Finishes with null and without a result are bad_frame; false is accepted.
    """
    peer, attempt, _ = await bench.running()
    await bad_report(peer, report(attempt, "SUCCEEDED", None))
    await bad_report(peer, {"ref": attempt.ref, "outcome": "SUCCEEDED"})
    await peer.finish(attempt, result=False)
    task = await state_is(bench, attempt, "SUCCEEDED")
    expect_equal(task["result"], False, "the result", task)


@check
async def result_has_a_limit(bench: Bench) -> None:
    """R-005, R-053: a result has at most 256 KiB.

    A result of one byte more is refused and the attempt runs on; one of 256 KiB is accepted.
    """
    peer, attempt, _ = await bench.running()
    large = report(attempt, "SUCCEEDED", "x" * (JSON_BYTES_MAX - 1))
    frame = await peer.ask("task.finish", large)
    expect_equal(frame["type"], "error", "the answer", frame)
    finished = await peer.finish(attempt, result="x" * (JSON_BYTES_MAX - 2))
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
