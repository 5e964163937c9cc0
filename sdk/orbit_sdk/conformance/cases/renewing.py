"""Renewal: a persisted extension, each one an operation of its own (R-125, R-150, OP-12, OP-21)."""

from datetime import timedelta

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Frame, instant, new_id

SHORT = {
    "max_attempts": 3,
    "initial_delay_ms": 0,
    "max_delay_ms": 0,
    "attempt_timeout_ms": 5_000,
}


def until(result: Frame) -> str:
    text: str = result["lease"]["lease_until"]
    return text


@check
async def renew_extends(bench: Bench) -> None:
    """R-125: a renewal extends the lease, and that is persisted.

    A renewal of a running attempt; its new end over HTTP.
    """
    peer, attempt, started = await bench.running()
    renewed = await peer.renew(attempt)
    expect(instant(until(renewed)) > instant(until(started)), "it was not extended", renewed)
    expect_equal(renewed["receipt"]["disposition"], "APPLIED", "the disposition", renewed)
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal(instant(row["lease_until"]), instant(until(renewed)), "the persisted end", row)


@check
async def renew_lasts_the_lease_duration(bench: Bench) -> None:
    """OP-12, R-022: a renewed lease lasts the duration of the welcome, counted from now.

    lease_until less server_time of a renewal.
    """
    peer, attempt, _ = await bench.running()
    lease = (await peer.renew(attempt))["lease"]
    left = instant(lease["lease_until"]) - instant(lease["server_time"])
    whole = timedelta(milliseconds=peer.welcome["lease_duration_ms"])
    expect_equal(left, whole, "the length of the lease", lease)


@check
async def renew_stops_at_the_attempt_deadline(bench: Bench) -> None:
    """OP-12: no renewal goes past the attempt's own deadline.

    A renewal of an attempt that may last five seconds; its end must not move.
    """
    peer, attempt, started = await bench.running(retry=SHORT)
    renewed = await peer.renew(attempt)
    expect_equal(until(renewed), until(started), "the end of the lease", renewed)


@check
async def renew_before_the_start(bench: Bench) -> None:
    """OP-12, R-036: an unstarted lease may be renewed and stays LEASED.

    A renewal of a fresh assignment, then its start.
    """
    peer, attempt = await bench.assigned()
    renewed = await peer.renew(attempt)
    lease = renewed["lease"]
    expect_equal((lease["active"], lease["state"]), (True, "LEASED"), "the lease", renewed)
    later = instant(until(renewed)) >= instant(attempt.body["lease_until"])
    expect(later, "the lease became shorter", renewed)
    await peer.start(attempt)


@check
async def renew_again_with_the_same_message(bench: Bench) -> None:
    """OP-21, R-038: a repeated renewal returns its original receipt beside a fresh lease.

    A renewal, another one, then the first one again.
    """
    peer, attempt, _ = await bench.running()
    message = new_id()
    first = await peer.renew(attempt, message_id=message)
    second = await peer.renew(attempt)
    again = await peer.renew(attempt, message_id=message)
    expect_equal(again["receipt"], first["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)
    expect_equal(until(again), until(second), "the end of the lease, checked afresh", again)


@check
async def renew_with_a_new_message(bench: Bench) -> None:
    """OP-21: every renewal with a new message id is a new operation.

    Three renewals; each ends later than the one before.
    """
    peer, attempt, last = await bench.running()
    for _ in range(3):
        renewed = await peer.renew(attempt)
        expect_equal(renewed["deduplicated"], False, "deduplicated", renewed)
        expect(instant(until(renewed)) > instant(until(last)), "it was not extended", renewed)
        last = renewed


@check
async def renew_leaves_the_revision(bench: Bench) -> None:
    """OP-20: a renewal does not change the task's revision.

    A start and a renewal; the revision over HTTP.
    """
    peer, attempt, started = await bench.running()
    renewed = await peer.renew(attempt)
    revision = started["receipt"]["task_revision"]
    expect_equal(renewed["receipt"]["task_revision"], revision, "the revision", renewed)
    task = await bench.task(attempt.task["id"])
    expect_equal(task["revision"], revision, "the revision", task)


@check
async def pings_extend_nothing(bench: Bench) -> None:
    """R-150, R-151: pings show that a connection lives and extend no lease.

    Twenty pings while an attempt runs; the lease's end over HTTP.
    """
    peer, attempt, started = await bench.running()
    for _ in range(20):
        await (await peer.socket.ping())
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal(instant(row["lease_until"]), instant(until(started)), "the end of the lease", row)


@check
async def renew_after_the_end(bench: Bench) -> None:
    """OP-22, R-036: a renewal of a finished attempt is EVIDENCE_ONLY and its lease inactive.

    A finish, then a renewal.
    """
    peer, attempt, _ = await bench.running()
    await peer.finish(attempt)
    late = await peer.renew(attempt)
    expect_equal(late["receipt"]["disposition"], "EVIDENCE_ONLY", "the disposition", late)
    expect_equal(late["lease"]["active"], False, "the lease's active", late)
    expect_equal(late["lease"]["state"], "SUCCEEDED", "the lease's state", late)
