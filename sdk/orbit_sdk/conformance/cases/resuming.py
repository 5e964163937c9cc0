"""Reconnects: what moves to the new session, and what does not (R-121, R-155, OP-14)."""

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Frame, instant, report


def lease_is(lease: Frame, active: bool, state: str) -> None:
    expect_equal((lease["active"], lease["state"]), (active, state), "active and state", lease)


@check
async def resume_continues(bench: Bench) -> None:
    """R-121, R-155, OP-14: a running attempt moves to the new session and goes on.

    A reconnect, a resume, a renewal, a finish.
    """
    peer, attempt, _ = await bench.running()
    again = await bench.reconnected(peer)
    lease_is(await again.resume(attempt), True, "RUNNING")
    await again.renew(attempt)
    finished = await again.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)


@check
async def resume_on_another_node(bench: Bench) -> None:
    """R-155: a reconnect may reach any node.

    A reconnect to another node, a resume, a finish.
    """
    other = bench.need_other_url()
    peer, attempt, _ = await bench.running()
    await peer.socket.close()
    again = await bench.worker(1, peer.instance, url=other)
    lease_is(await again.resume(attempt), True, "RUNNING")
    finished = await again.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)


@check
async def resume_over_a_superseded_connection(bench: Bench) -> None:
    """OP-13, OP-14: a newer connection resumes what an older, still open one holds.

    A second connection of the instance while the first is open; the first cannot finish any more.
    """
    peer, attempt, _ = await bench.running()
    again = await bench.worker(1, peer.instance)
    lease_is(await again.resume(attempt), True, "RUNNING")
    await peer.fatal("session_superseded", 4409)
    await again.finish(attempt)


@check
async def commands_need_the_resume(bench: Bench) -> None:
    """OP-14: start, renew and a new finish of an attempt not yet moved are resume_required.

    A reconnect, then each of them, then the resume.
    """
    peer, attempt, _ = await bench.running()
    again = await bench.reconnected(peer)
    await again.refused("resume_required", "task.renew", attempt.ref)
    await again.refused("resume_required", "task.start", attempt.ref)
    await again.refused("resume_required", "task.finish", report(attempt, "SUCCEEDED", 1))
    lease_is(await again.resume(attempt), True, "RUNNING")


@check
async def resume_extends_nothing(bench: Bench) -> None:
    """OP-14: a resume never extends the lease.

    A reconnect and two resumes; the lease ends when the start said.
    """
    peer, attempt, started = await bench.running()
    again = await bench.reconnected(peer)
    for _ in range(2):
        lease = await again.resume(attempt)
        same = instant(lease["lease_until"]) == instant(started["lease"]["lease_until"])
        expect(same, "the end of the lease has moved", lease)


@check
async def resume_after_the_end(bench: Bench) -> None:
    """OP-14: a resume of a settled attempt says: stop, with its final state.

    A finish with SUCCEEDED, a reconnect, a resume.
    """
    peer, attempt, _ = await bench.running()
    await peer.finish(attempt)
    lease_is(await (await bench.reconnected(peer)).resume(attempt), False, "SUCCEEDED")


@check
async def resume_of_an_unknown_end(bench: Bench) -> None:
    """OP-14, R-121: a resume of an UNKNOWN attempt says: review.

    A finish with UNKNOWN, a reconnect, a resume.
    """
    peer, attempt, _ = await bench.running()
    await peer.finish(attempt, "UNKNOWN", "perhaps", "lost_track")
    lease_is(await (await bench.reconnected(peer)).resume(attempt), False, "UNKNOWN")


@check
async def another_instance_resumes_nothing(bench: Bench) -> None:
    """R-115: the whole proof in another instance's hands moves nothing.

    Another worker resumes a running attempt: attempt_not_found; its holder goes on.
    """
    peer, attempt, _ = await bench.running()
    thief = await bench.worker()
    await thief.refused("attempt_not_found", "worker.resume", attempt.ref)
    renewed = await peer.renew(attempt)
    expect_equal(renewed["lease"]["active"], True, "the holder's lease", renewed)


@check
async def unstarted_goes_back(bench: Bench) -> None:
    """OP-25, OP-27: what was assigned and not started goes back when its connection closes.

    An assignment, a close, another worker: a higher epoch and no unit of the budget used.
    """
    peer, attempt = await bench.assigned()
    await peer.socket.close()
    again = await (await bench.worker()).assignment()
    expect_equal(again.task["id"], attempt.task["id"], "the assigned task", again.body)
    expect(again.epoch > attempt.epoch, f"the epoch before was {attempt.epoch}", again.body)
    expect_equal(again.task["attempt_count"], 1, "attempt_count", again.body)


@check
async def unstarted_is_not_resumed(bench: Bench) -> None:
    """OP-14, OP-25: an assignment that went back is not revived by a resume.

    An assignment, a reconnect, a resume of the former assignment.
    """
    peer, attempt = await bench.assigned()
    again = await bench.reconnected(peer)
    lease_is(await again.resume(attempt), False, "EXPIRED")


@check
async def not_resumed_counts(bench: Bench) -> None:
    """OP-14, OP-29: an attempt not yet resumed counts against capacity.

    A reconnect with capacity 1 while one attempt runs; a task must go to another worker.
    """
    peer, _, _ = await bench.running()
    again = await bench.reconnected(peer)
    task_id = await bench.submit()
    other = await (await bench.worker()).assignment()
    expect_equal(other.task["id"], task_id, "the task that the other worker got", other.body)
    await again.nothing_was_assigned()
