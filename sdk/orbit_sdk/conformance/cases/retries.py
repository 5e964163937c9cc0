"""Retries: budget and delays (OP-27)."""

from datetime import timedelta

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, instant

LATE_S = 5.0
"""A retry that comes later than this after it was due is not the delay any more."""


def retry(initial_ms: int, max_ms: int, max_attempts: int = 5, timeout_ms: int = 60_000) -> Frame:
    return {
        "max_attempts": max_attempts,
        "initial_delay_ms": initial_ms,
        "max_delay_ms": max_ms,
        "attempt_timeout_ms": timeout_ms,
    }


async def fail(peer: Peer, attempt: Attempt) -> Frame:
    """Start and fail it; the server's time of the failure."""
    await peer.start(attempt)
    return await peer.finish(attempt, "FAILED", "again", "try_again")


def came_after(delay_ms: int, failed: Frame, again: Attempt) -> None:
    """The next attempt was granted after the delay, and not much later."""
    waited = instant(again.body["server_time"]) - instant(failed["lease"]["server_time"])
    least = timedelta(milliseconds=delay_ms)
    expect(waited >= least, f"it waited {waited}, less than {least}", again.body)
    most = least + timedelta(seconds=LATE_S)
    expect(waited <= most, f"it waited {waited}, more than {most}", again.body)


@check
async def failure_is_tried_again(bench: Bench) -> None:
    """R-126, OP-27: FAILED within the budget puts the task back to WAITING.

    A FAILED finish; the receipt, then the second attempt, which succeeds.
    """
    peer, attempt = await bench.assigned(retry=retry(0, 0))
    failed = await fail(peer, attempt)
    receipt = failed["receipt"]
    expect_equal(
        (receipt["task_state"], receipt["attempt_state"]), ("WAITING", "FAILED"), "states", failed
    )
    again = await peer.assignment()
    expect_equal(again.task["attempt_count"], 2, "attempt_count", again.body)
    expect(again.epoch > attempt.epoch, f"the epoch before was {attempt.epoch}", again.body)
    await peer.start(again)
    finished = await peer.finish(again)
    expect_equal(finished["receipt"]["task_state"], "SUCCEEDED", "the task's state", finished)


@check
async def budget_ends(bench: Bench) -> None:
    """OP-27: attempt_count never passes max_attempts.

    max_attempts 2 and two FAILED finishes.
    """
    peer, attempt = await bench.assigned(retry=retry(0, 0, max_attempts=2))
    await fail(peer, attempt)
    last = await fail(peer, await peer.assignment())
    expect_equal(last["receipt"]["task_state"], "FAILED", "the task's state", last)
    task = await bench.task(attempt.task["id"])
    expect_equal(task["attempt_count"], 2, "attempt_count", task)


@check
async def delay_doubles_up_to_its_maximum(bench: Bench) -> None:
    """OP-27: the delay before attempt n+1 is initial times 2^(n-1), at most max.

    initial 200 ms and max 300 ms: the waits must be at least 200, 300 and 300 ms.
    """
    peer, attempt = await bench.assigned(retry=retry(200, 300))
    for delay_ms in (200, 300, 300):
        failed = await fail(peer, attempt)
        attempt = await peer.assignment()
        came_after(delay_ms, failed, attempt)


@check
async def delay_after_a_lapse(bench: Bench) -> None:
    """OP-25, OP-27: a lapsed attempt waits the same delay.

    An attempt that may last 200 ms, with a delay of 500 ms.
    """
    peer, _, started = await bench.running(retry=retry(500, 500, timeout_ms=200))
    again = await peer.assignment()
    ended = instant(started["lease"]["lease_until"])
    waited = instant(again.body["server_time"]) - ended
    expect(waited >= timedelta(milliseconds=500), f"it waited {waited}", again.body)
    expect(waited <= timedelta(seconds=LATE_S), f"it waited {waited}", again.body)


@check
async def unstarted_costs_nothing(bench: Bench) -> None:
    """OP-27: an attempt that ends before its start uses no budget; the third in a row waits.

    max_attempts 1; three connections close on their assignment; the fourth gets it a second later.
    """
    task_id = await bench.submit(retry=retry(0, 0, max_attempts=1))
    epochs = []
    for _ in range(3):
        peer = await bench.worker()
        attempt = await peer.assignment()
        epochs.append(attempt.epoch)
        await peer.socket.close()
    last = await bench.worker()
    again = await last.assignment()
    waited = instant(again.body["server_time"]) - instant(attempt.body["server_time"])
    expect(waited >= timedelta(seconds=1), f"the next grant waited {waited}", again.body)
    expect_equal((again.task["id"], again.task["attempt_count"]), (task_id, 1), "it", again.body)
    expect(again.epoch > max(epochs), f"the epochs before were {epochs}", again.body)


@check
async def no_retry_past_the_deadline(bench: Bench) -> None:
    """OP-25, OP-27: a retry that could only come after deadline_at is not waited for.

    A delay of an hour with a deadline within minutes: FAILED settles the task at once.
    """
    peer, attempt = await bench.assigned(retry=retry(3_600_000, 3_600_000))
    failed = await fail(peer, attempt)
    expect_equal(failed["receipt"]["task_state"], "FAILED", "the task's state", failed)
