"""Leases that run out, by recovery class, and what comes too late (OP-22 to OP-26).

Attempts that may last only a moment stand in for long leases: the rule is the same.
"""

import asyncio
from datetime import timedelta

from orbit_sdk.conformance.bench import Bench, wire_time
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, instant

MOMENT_MS = 300


def retry(max_attempts: int = 3, **changes: int) -> Frame:
    return {
        "max_attempts": max_attempts,
        "initial_delay_ms": 0,
        "max_delay_ms": 0,
        "attempt_timeout_ms": MOMENT_MS,
        **changes,
    }


async def past(peer: Peer, result: Frame) -> None:
    """Let the lease run out by the server's clock."""
    lease = result["lease"]
    left = instant(lease["lease_until"]) - instant(lease["server_time"])
    await asyncio.sleep(left.total_seconds() + 0.05)


async def lapsed(bench: Bench, **changes: object) -> tuple[Peer, Attempt]:
    """A worker whose running attempt has run out in silence."""
    peer, attempt, started = await bench.running(**{"retry": retry(), **changes})
    await past(peer, started)
    return peer, attempt


def is_evidence(result: Frame, state: str) -> None:
    receipt, lease = result["receipt"], result["lease"]
    expect_equal(receipt["disposition"], "EVIDENCE_ONLY", "the disposition", result)
    expect_equal((lease["active"], lease["state"]), (False, state), "active and state", result)


@check
async def idempotent_is_tried_again(bench: Bench) -> None:
    """OP-25, OP-10: a lapsed IDEMPOTENT attempt is EXPIRED, and its task is tried again.

    A worker that falls silent; the next assignment has a higher epoch and counts as the second.
    """
    peer, attempt = await lapsed(bench)
    again = await peer.assignment()
    expect_equal(again.task["id"], attempt.task["id"], "the assigned task", again.body)
    expect(again.epoch > attempt.epoch, f"the epoch before was {attempt.epoch}", again.body)
    expect_equal(again.task["attempt_count"], 2, "attempt_count", again.body)
    first, _ = await bench.attempts(attempt.task["id"])
    expect_equal(first["state"], "EXPIRED", "the first attempt's state", first)


@check
async def reconcile_only_goes_to_review(bench: Bench) -> None:
    """OP-25: a lapsed RECONCILE_ONLY attempt is UNKNOWN, its task NEEDS_REVIEW.

    A worker that falls silent.
    """
    _, attempt = await lapsed(bench, recovery_safety="RECONCILE_ONLY")
    await bench.until(attempt.task["id"], "NEEDS_REVIEW")
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal(row["state"], "UNKNOWN", "the attempt's state", row)


@check
async def lapse_uses_the_budget(bench: Bench) -> None:
    """OP-25, OP-27: a lapse with no attempt left fails the task as attempts_exhausted.

    max_attempts 1 and a worker that falls silent.
    """
    _, attempt = await lapsed(bench, retry=retry(1))
    task = await bench.until(attempt.task["id"], "FAILED")
    expect_equal(task["error_code"], "attempts_exhausted", "the task's error code", task)


@check
async def late_finish_is_evidence(bench: Bench) -> None:
    """R-144, OP-22, OP-23: a finish after the lapse is EVIDENCE_ONLY and changes nothing.

    A finish just after the lease's end, whether or not a sweep has run.
    """
    peer, attempt = await lapsed(bench, recovery_safety="RECONCILE_ONLY")
    late = await peer.finish(attempt, result="too late")
    is_evidence(late, "UNKNOWN")
    expect_equal(late["receipt"]["task_state"], "NEEDS_REVIEW", "the task's state", late)
    task = await bench.task(attempt.task["id"])
    expect_equal((task["state"], task["result"]), ("NEEDS_REVIEW", None), "the task", task)


@check
async def late_finish_repeated(bench: Bench) -> None:
    """R-143, OP-21, OP-22: a late finish repeated returns the receipt it was given.

    One late finish frame sent twice.
    """
    peer, attempt = await lapsed(bench, retry=retry(1))
    frame = peer.frame("task.finish", {"ref": attempt.ref, "outcome": "SUCCEEDED", "result": 1})
    answers = []
    for _ in range(2):
        await peer.send_text(peer.text_of(frame), frame)
        answers.append((await peer.answer(frame["message_id"]))["body"])
    expect_equal(answers[1]["receipt"], answers[0]["receipt"], "the receipt", answers[1])
    expect_equal(answers[1]["deduplicated"], True, "deduplicated", answers[1])


@check
async def old_holder_cannot_touch_the_new_attempt(bench: Bench) -> None:
    """R-144, OP-10: after a lapse the old reference is fenced off from the new attempt.

    The old attempt reports success while the new one runs; then the new one finishes.
    """
    peer, attempt = await lapsed(bench, retry=retry(attempt_timeout_ms=3_000))
    again = await peer.assignment()
    await peer.start(again)
    is_evidence(await peer.finish(attempt, result="old"), "EXPIRED")
    finished = await peer.finish(again, result="new")
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
    task = await bench.task(attempt.task["id"])
    expect_equal((task["state"], task["result"]), ("SUCCEEDED", "new"), "the task", task)


@check
async def late_renew_is_evidence(bench: Bench) -> None:
    """OP-22, R-151: a renewal after the lapse revives nothing.

    A renewal just after the lease's end.
    """
    peer, attempt = await lapsed(bench, retry=retry(1))
    is_evidence(await peer.renew(attempt), "EXPIRED")


@check
async def resume_revives_nothing(bench: Bench) -> None:
    """R-155, OP-14: a lapsed attempt is not revived by a reconnect.

    A reconnect and a resume after the lease's end.
    """
    peer, attempt = await lapsed(bench, retry=retry(1))
    again = await bench.reconnected(peer)
    lease = await again.resume(attempt)
    expect_equal((lease["active"], lease["state"]), (False, "EXPIRED"), "the lease", lease)


@check
async def late_start_is_evidence(bench: Bench) -> None:
    """OP-22, OP-26: a start after start_deadline_at authorises nothing.

    An assignment left alone until its start deadline, then a start.
    """
    peer = await bench.worker()
    soon = instant(peer.welcome["server_time"]) + timedelta(seconds=3)
    await bench.submit(start_deadline_at=wire_time(soon))
    attempt = await peer.assignment()
    left = soon - instant(attempt.body["server_time"])
    await asyncio.sleep(left.total_seconds() + 0.05)
    late = await peer.start(attempt)
    is_evidence(late, "EXPIRED")
    task = await bench.until(attempt.task["id"], "FAILED")
    expect_equal(task["error_code"], "start_deadline_exceeded", "the task's error code", task)


@check
async def start_deadline_without_a_worker(bench: Bench) -> None:
    """OP-26: a task not started by its start_deadline_at fails as start_deadline_exceeded.

    A task that no worker takes.
    """
    peer = await bench.worker(capabilities=[_nothing(bench)])
    soon = instant(peer.welcome["server_time"]) + timedelta(seconds=1)
    task_id = await bench.submit(start_deadline_at=wire_time(soon))
    task = await bench.until(task_id, "FAILED")
    expect_equal(task["error_code"], "start_deadline_exceeded", "the task's error code", task)


@check
async def deadline_without_a_worker(bench: Bench) -> None:
    """OP-26: a task still waiting at its deadline_at fails as deadline_exceeded.

    A task that no worker takes.
    """
    peer = await bench.worker(capabilities=[_nothing(bench)])
    soon = instant(peer.welcome["server_time"]) + timedelta(seconds=1)
    task_id = await bench.submit(deadline_at=wire_time(soon))
    task = await bench.until(task_id, "FAILED")
    expect_equal(task["error_code"], "deadline_exceeded", "the task's error code", task)


async def past_its_deadline(bench: Bench) -> tuple[Peer, Attempt]:
    """A running attempt whose task has reached its deadline."""
    peer = await bench.worker()
    soon = instant(peer.welcome["server_time"]) + timedelta(seconds=3)
    await bench.submit(deadline_at=wire_time(soon))
    attempt = await peer.assignment()
    started = await peer.start(attempt)
    left = soon - instant(started["lease"]["server_time"])
    await asyncio.sleep(left.total_seconds() + 0.05)
    return peer, attempt


@check
async def deadline_tells_the_worker_to_stop(bench: Bench) -> None:
    """OP-26, OP-03: at deadline_at a running attempt hears of it: inactive, with time to report.

    A renewal after the deadline, then FAILED: the task fails as deadline_exceeded.
    """
    peer, attempt = await past_its_deadline(bench)
    lease = (await peer.renew(attempt))["lease"]
    expect_equal((lease["active"], lease["state"]), (False, "RUNNING"), "the lease", lease)
    ahead = instant(lease["lease_until"]) > instant(lease["server_time"])
    expect(ahead, "there is no time left to report", lease)
    finished = await peer.finish(attempt, "FAILED", "stopped", "cancelled")
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
    task = await bench.task(attempt.task["id"])
    expect_equal(
        (task["state"], task["error_code"]), ("FAILED", "deadline_exceeded"), "the task", task
    )


@check
async def success_under_a_deadline_stays_success(bench: Bench) -> None:
    """OP-28, OP-26: a success reported within the window after the deadline counts.

    A SUCCEEDED finish after the deadline.
    """
    peer, attempt = await past_its_deadline(bench)
    finished = await peer.finish(attempt)
    expect_equal(finished["receipt"]["task_state"], "SUCCEEDED", "the task's state", finished)


def _nothing(bench: Bench) -> Frame:
    return {"handler": f"{bench.handler}.nothing", "handler_version": "1", "payload_version": "1"}
