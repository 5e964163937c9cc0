"""Operations on what exists: cancel, retry, resolve, pause (OP-28, OP-31, OP-32, OP-43, OP-44).

Where the server does not offer one, or the credential lacks its scope, its checks are skipped.
"""

from orbit_sdk.conformance.bench import Answer, Bench, new_key
from orbit_sdk.conformance.checks import Skipped, check, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, instant

GATED_QUEUE = "conformance"
"""A queue of its own for the checks that pause one; made if need be, and left open."""

ONCE = {
    "max_attempts": 1,
    "initial_delay_ms": 0,
    "max_delay_ms": 0,
    "attempt_timeout_ms": 60_000,
}


async def operate(bench: Bench, path: str, key: str | None = None, **body: object) -> Answer:
    """One operation; the check is skipped where it cannot be tried."""
    answer = await bench.call(
        "POST", path, body={"reason": "a check", **body}, key=key or new_key()
    )
    verb = path.rpartition(":")[2]
    if answer.status in (404, 405):
        raise Skipped(f"the server does not offer :{verb}")
    if answer.status == 403:
        raise Skipped(f"the credential may not :{verb}")
    return answer


async def cancel(bench: Bench, task_id: str, status: int, key: str | None = None) -> Answer:
    answer = await operate(bench, f"/v1/tasks/{task_id}:cancel", key)
    expect_equal(answer.status, status, "the status", answer.body)
    return answer


async def cancelling(bench: Bench) -> tuple[Peer, Attempt]:
    """A running attempt whose task was asked to stop."""
    peer, attempt, _ = await bench.running()
    await cancel(bench, attempt.task["id"], 202)
    return peer, attempt


async def ended(
    bench: Bench, attempt: Attempt, result: Frame, task_state: str, attempt_state: str
) -> None:
    receipt = result["receipt"]
    expect_equal(receipt["disposition"], "APPLIED", "the disposition", result)
    expect_equal(
        (receipt["task_state"], receipt["attempt_state"]),
        (task_state, attempt_state),
        "the states",
        result,
    )
    task = await bench.task(attempt.task["id"])
    expect_equal(task["state"], task_state, "the task's state", task)


@check
async def cancel_of_a_waiting_task(bench: Bench) -> None:
    """OP-43: a waiting task is cancelled at once, with 200, and never assigned.

    A cancelled task, then one more; the worker must get the second.
    """
    task_id = await bench.submit()
    answer = await cancel(bench, task_id, 200)
    expect_equal(answer.data["state"], "CANCELLED", "the state", answer.body)
    other = await bench.submit()
    attempt = await (await bench.worker()).assignment()
    expect_equal(attempt.task["id"], other, "the assigned task", attempt.body)


@check
async def cancel_before_the_start(bench: Bench) -> None:
    """OP-43, OP-28: a leased task is cancelled at once, and its start comes too late.

    An assignment, a cancel, a start: EVIDENCE_ONLY and CANCELLED.
    """
    peer, attempt = await bench.assigned()
    await cancel(bench, attempt.task["id"], 200)
    late = await peer.start(attempt)
    expect_equal(late["receipt"]["disposition"], "EVIDENCE_ONLY", "the disposition", late)
    lease = late["lease"]
    expect_equal((lease["active"], lease["state"]), (False, "CANCELLED"), "the lease", late)


@check
async def cancel_of_a_running_task(bench: Bench) -> None:
    """OP-43, OP-03, R-127: a running task is asked to stop: 202, then an inactive lease.

    A cancel, then two renewals: inactive, RUNNING, and an end that does not move.
    """
    peer, attempt = await cancelling(bench)
    leases = [(await peer.renew(attempt))["lease"] for _ in range(2)]
    for lease in leases:
        expect_equal((lease["active"], lease["state"]), (False, "RUNNING"), "the lease", lease)
        ahead = instant(lease["lease_until"]) > instant(lease["server_time"])
        expect(ahead, "there is no time left to report", lease)
    expect_equal(leases[1]["lease_until"], leases[0]["lease_until"], "the end", leases[1])


@check
async def resume_under_an_intent(bench: Bench) -> None:
    """OP-14, OP-03: a resume under an intent says: stop, while the attempt is RUNNING.

    A cancel, a reconnect, a resume.
    """
    peer, attempt = await cancelling(bench)
    lease = await (await bench.reconnected(peer)).resume(attempt)
    expect_equal((lease["active"], lease["state"]), (False, "RUNNING"), "the lease", lease)


@check
async def confirmed_stop(bench: Bench) -> None:
    """OP-02, OP-28: FAILED with code cancelled under an intent is CANCELLED, attempt and task.

    A cancel, then that finish.
    """
    peer, attempt = await cancelling(bench)
    result = await peer.finish(attempt, "FAILED", "stopped", "cancelled")
    await ended(bench, attempt, result, "CANCELLED", "CANCELLED")


@check
async def failure_under_an_intent(bench: Bench) -> None:
    """OP-28: any other failure under an intent cancels the task and is not tried again.

    A cancel, then FAILED with another code.
    """
    peer, attempt = await cancelling(bench)
    result = await peer.finish(attempt, "FAILED", "broke", "it_broke")
    await ended(bench, attempt, result, "CANCELLED", "FAILED")


@check
async def success_under_an_intent(bench: Bench) -> None:
    """OP-28: a success under an intent stays a success; the intent remains to be seen.

    A cancel, then SUCCEEDED.
    """
    peer, attempt = await cancelling(bench)
    await ended(bench, attempt, await peer.finish(attempt), "SUCCEEDED", "SUCCEEDED")
    task = await bench.task(attempt.task["id"])
    expect(task["cancel_requested_at"] is not None, "the intent is gone", task)


@check
async def unknown_under_an_intent(bench: Bench) -> None:
    """OP-28: UNKNOWN under an intent goes to review.

    A cancel, then UNKNOWN.
    """
    peer, attempt = await cancelling(bench)
    result = await peer.finish(attempt, "UNKNOWN", "perhaps", "lost_track")
    await ended(bench, attempt, result, "NEEDS_REVIEW", "UNKNOWN")


@check
async def cancel_of_what_is_over(bench: Bench) -> None:
    """OP-43, R-106: a settled task, or one for review, cannot be cancelled: 409 state_conflict.

    Cancels after SUCCEEDED and after UNKNOWN.
    """
    peer = await bench.worker()
    for outcome, code in (("SUCCEEDED", None), ("UNKNOWN", "lost_track")):
        task_id = await bench.submit()
        attempt = await peer.assignment()
        await peer.start(attempt)
        await peer.finish(attempt, outcome, 1, code)
        (await cancel(bench, task_id, 409)).refused(409, "state_conflict")


@check
async def cancel_repeated(bench: Bench) -> None:
    """OP-43, OP-41: a cancel repeated with its key gets its first answer.

    A cancel of a running task twice with one key, a second cancel with another, after the end too.
    """
    peer, attempt, _ = await bench.running()
    task_id, key = attempt.task["id"], new_key()
    first = await cancel(bench, task_id, 202, key)
    again = await cancel(bench, task_id, 202, key)
    expect_equal(again.data["revision"], first.data["revision"], "the revision", again.body)
    expect_equal(again.data["deduplicated"], True, "deduplicated", again.body)
    await cancel(bench, task_id, 202)
    await peer.finish(attempt, "FAILED", "stopped", "cancelled")
    late = await cancel(bench, task_id, 202, key)
    expect_equal(late.data["revision"], first.data["revision"], "the revision", late.body)
    other = await operate(bench, f"/v1/tasks/{task_id}:cancel", key, expected_revision="1")
    other.refused(409, "idempotency_conflict")


@check
async def manual_retry(bench: Bench) -> None:
    """OP-44, R-066: a failed task can be given one more attempt by who saw its revision.

    max_attempts 1 and a failure; a retry with a stale revision is 409, with the right one 200.
    """
    peer, attempt, _ = await bench.running(retry=ONCE)
    failed = await peer.finish(attempt, "FAILED", "broke", "it_broke")
    path = f"/v1/tasks/{attempt.task['id']}:retry"
    revision = failed["receipt"]["task_revision"]
    (await operate(bench, path, expected_revision="1")).refused(409, "state_conflict")
    answer = await operate(bench, path, expected_revision=revision)
    expect_equal((answer.status, answer.data["state"]), (200, "WAITING"), "it", answer.body)
    again = await peer.assignment()
    expect_equal(again.task["id"], attempt.task["id"], "the assigned task", again.body)
    expect_equal(again.task["attempt_count"], 2, "attempt_count", again.body)
    expect(again.epoch > attempt.epoch, f"the epoch before was {attempt.epoch}", again.body)


@check
async def manual_retry_of_a_success(bench: Bench) -> None:
    """OP-44: what has succeeded is not tried again: 409.

    A success, then a retry with its revision.
    """
    peer, attempt, _ = await bench.running()
    revision = (await peer.finish(attempt))["receipt"]["task_revision"]
    path = f"/v1/tasks/{attempt.task['id']}:retry"
    (await operate(bench, path, expected_revision=revision)).refused(409, "state_conflict")


@check
async def review(bench: Bench) -> None:
    """OP-32, R-086: a review says how a task ended, with evidence, and only of a task for review.

    UNKNOWN, then a resolve as SUCCEEDED: without evidence 400, with it 200, once more 409.
    """
    peer, attempt, _ = await bench.running()
    finished = await peer.finish(attempt, "UNKNOWN", "perhaps", "lost_track")
    path = f"/v1/tasks/{attempt.task['id']}:resolve"
    said: Frame = {
        "expected_revision": finished["receipt"]["task_revision"],
        "outcome": "SUCCEEDED",
    }
    (await operate(bench, path, **said)).refused(400)
    answer = await operate(bench, path, **said, evidence={"receipt": 4711})
    expect_equal((answer.status, answer.data["state"]), (200, "SUCCEEDED"), "it", answer.body)
    (await operate(bench, path, **said, evidence={"receipt": 4711})).refused(409, "state_conflict")
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal(row["state"], "UNKNOWN", "the attempt's state", row)


async def gated_queue(bench: Bench) -> Frame:
    """The queue that may be paused, open."""
    await bench.call("POST", "/v1/queues", body={"name": GATED_QUEUE})
    answer = await bench.call("GET", f"/v1/queues/{GATED_QUEUE}")
    if answer.status != 200:
        raise Skipped(f"there is no queue {GATED_QUEUE} and the credential may not make one")
    return await gate(bench, answer.data, "resume") if answer.data["paused"] else answer.data


async def gate(bench: Bench, queue: Frame, verb: str) -> Frame:
    path = f"/v1/queues/{queue['id']}:{verb}"
    answer = await operate(bench, path, expected_version=queue["control_version"])
    expect_equal(answer.status, 200, "the status", answer.body)
    return answer.data


@check
async def pause(bench: Bench) -> None:
    """OP-31, R-132: while a queue is paused nothing is assigned and nothing starts.

    One attempt running and one assigned; a pause; a start, the old start again, a finish; a resume.
    """
    async with bench.one_at_a_time:
        await _pause(bench)


async def _pause(bench: Bench) -> None:
    queue = await gated_queue(bench)
    peer = await bench.worker(3, queue_id=queue["id"])
    ids = [await bench.submit(queue=queue["id"]) for _ in range(2)]
    running, assigned = await peer.assignment(), await peer.assignment()
    first = await peer.start(running)
    queue = await gate(bench, queue, "pause")
    try:
        await peer.refused("execution_gated", "task.start", assigned.ref)
        again = await peer.start(running)
        expect_equal(again["receipt"], first["receipt"], "the receipt", again)
        ids.append(await bench.submit(queue=queue["id"]))
        finished = await peer.finish(running)
        expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
        await peer.nothing_was_assigned()
        stale = f"/v1/queues/{queue['id']}:resume"
        (await operate(bench, stale, expected_version="999999")).refused(409, "state_conflict")
    finally:
        await gate(bench, queue, "resume")
    await peer.start(assigned)
    last = await peer.assignment()
    expect_equal(last.task["id"], ids[-1], "the assigned task", last.body)
