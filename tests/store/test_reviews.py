"""What a person may do to settled tasks: another try (OP-44), the end of a review (OP-32)."""

from datetime import timedelta

import msgspec
import pytest

from store import dispatch, operations
from store.commands import AttemptCommand
from tests.store.world import DAY_MS, LEASE_MS, World


async def failed(world: World, **changes: object) -> AttemptCommand:
    start = await world.running(await world.worker(), **{"max_attempts": 1, **changes})
    await world.finish(world.failure_of(start))
    return start


async def reviewed(world: World) -> AttemptCommand:
    start = await world.running(await world.worker(), recovery_safety="RECONCILE_ONLY")
    await world.finish(world.finish_of(start, outcome="UNKNOWN", error_code="link.cut"))
    return start


# -- retry --------------------------------------------------------------------------------------


async def test_a_retry_lets_a_failed_task_wait_with_one_more_try(world: World) -> None:
    start = await failed(world)
    outcome = await world.retry(start.task_id, reason="mail is back")
    assert (outcome.code, outcome.task_state, outcome.task_revision) == ("done", "WAITING", 5)
    assert (outcome.queue_id, outcome.route_id) == (world.queue_id, world.route_id)
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.attempt_count, view.max_attempts) == (
        "WAITING",
        5,
        1,
        2,
    )
    assert (view.error_code, view.result, view.completed_at, view.attempt_id) == (None,) * 4
    assert view.updated_at == world.now
    [again] = await world.granted(await world.worker(), [start.task_id])
    assert again.epoch == 2
    assert (await world.start(again)).code == "ok"
    assert (await world.finish(world.finish_of(again))).task_state == "SUCCEEDED"


async def test_the_second_failure_after_a_retry_is_final_again(world: World) -> None:
    start = await failed(world)
    await world.retry(start.task_id)
    [again] = await world.granted(await world.worker(), [start.task_id])
    await world.start(again)
    assert (await world.finish(world.failure_of(again))).task_state == "FAILED"


async def test_a_cancelled_task_can_be_wanted_again(world: World) -> None:
    [task_id] = await world.submitted()
    await world.cancel(task_id, reason="sold out")
    assert (await world.retry(task_id)).code == "done"
    view = await world.view(task_id)
    assert (view.state, view.cancel_requested_at, view.cancel_reason) == ("WAITING", None, None)
    [start] = await world.granted(await world.worker(), [task_id])
    assert start.epoch == 1
    assert (await world.start(start)).active


async def test_a_running_task_that_was_stopped_starts_with_a_higher_epoch(world: World) -> None:
    start = await world.running(await world.worker(), recovery_safety="RECONCILE_ONLY")
    await world.cancel(start.task_id)
    await world.finish(world.failure_of(start, "cancelled"))
    await world.retry(start.task_id)
    [again] = await world.granted(await world.worker(), [start.task_id])
    assert again.epoch == 2
    assert (await world.start(again)).active


async def test_a_review_may_end_in_another_try(world: World) -> None:
    start = await reviewed(world)
    assert (await world.retry(start.task_id)).code == "done"
    [again] = await world.granted(await world.worker(), [start.task_id])
    assert (await world.start(again)).active


async def test_what_lives_or_succeeded_is_not_retried(world: World) -> None:
    worker = await world.worker()
    done = await world.running(worker)
    await world.finish(world.finish_of(done))
    [waiting] = await world.submitted()
    [leased] = await world.leased(worker)
    running = await world.running(worker)
    before = await world.snapshot()
    for task_id in (done.task_id, waiting, leased.task_id, running.task_id):
        state = (await world.view(task_id)).state
        refused = await world.retry(task_id)
        assert (refused.code, refused.task_state) == ("state_conflict", state)
    assert await world.snapshot() == before


async def test_a_retry_needs_the_revision_that_is(world: World) -> None:
    start = await failed(world)
    before = await world.snapshot()
    for revision in (3, 5):
        refused = await world.retry_as(world.another_try(start.task_id, revision))
        assert (refused.code, refused.task_revision) == ("state_conflict", 4)
    stranger = world.another_try(start.task_id, 4, namespace_id=world.id())
    assert (await world.retry_as(stranger)).code == "not_found"
    assert await world.snapshot() == before


async def test_a_retry_needs_a_deadline_to_come(world: World) -> None:
    start = await failed(world)
    world.wait(DAY_MS)
    before = await world.snapshot()
    assert (await world.retry(start.task_id)).code == "state_conflict"
    past = await world.retry(start.task_id, deadline_at=world.now)
    assert past.code == "deadline_order"
    assert await world.snapshot() == before
    later = world.at(60_000)
    assert (await world.retry(start.task_id, deadline_at=later)).code == "done"
    assert (await world.view(start.task_id)).deadline_at == later


async def test_a_start_deadline_that_has_passed_is_lifted(world: World) -> None:
    at = world.now
    [late] = await world.submitted(start_deadline_at=at + timedelta(seconds=5))
    [early] = await world.submitted(start_deadline_at=at + timedelta(seconds=50))
    await world.cancel(early)
    world.wait(5_000)
    await dispatch.expire_ready(world.connection, 100, now=world.now)
    assert (await world.view(late)).error_code == "start_deadline_exceeded"
    for task_id in (late, early):
        assert (await world.retry(task_id)).code == "done"
    assert (await world.view(late)).start_deadline_at is None
    assert (await world.view(early)).start_deadline_at == at + timedelta(seconds=50)
    refused = await world.cancel(early)
    assert refused.code == "done"
    short = await world.retry(early, deadline_at=world.at(1_000))
    assert short.code == "deadline_order"


async def test_no_task_is_tried_more_than_a_hundred_times(world: World) -> None:
    start = await failed(world)
    await world.connection.execute("UPDATE task SET max_attempts = 100")
    await world.retry(start.task_id)
    view = await world.view(start.task_id)
    assert (view.max_attempts, view.attempt_count) == (100, 1)
    await world.cancel(start.task_id)
    transaction = world.connection.transaction()
    await transaction.start()
    await world.connection.execute("UPDATE task SET attempt_count = 100")
    assert (await world.retry(start.task_id)).code == "state_conflict"
    await transaction.rollback()


async def test_a_repeated_retry_gets_the_first_answer(world: World) -> None:
    start = await failed(world)
    wish = world.another_try(start.task_id, 4)
    first = await world.retry_as(wish)
    [again] = await world.granted(await world.worker(), [start.task_id])
    await world.start(again)
    await world.finish(world.failure_of(again))
    before = await world.snapshot()
    repeat = await world.retry_as(wish)
    assert await world.snapshot() == before
    assert repeat.deduplicated
    assert (repeat.code, repeat.task_state, repeat.task_revision) == ("done", "WAITING", 5)
    assert (first.task_state, first.task_revision) == ("WAITING", 5)
    other = await world.retry_as(msgspec.structs.replace(wish, hash=b"o" * 32))
    assert other.code == "idempotency_conflict"


# -- resolve ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["SUCCEEDED", "FAILED", "CANCELLED"])
async def test_a_person_ends_a_review(world: World, outcome: str) -> None:
    start = await reviewed(world)
    [attempt] = await world.attempts(start.task_id)
    done = await world.resolve(start.task_id, outcome, reason="asked the bank")
    assert (done.code, done.task_state, done.task_revision) == ("done", outcome, 5)
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.completed_at) == (outcome, 5, world.now)
    assert (view.resolved_at, view.resolve_reason) == (world.now, "asked the bank")
    assert view.error_code == ("link.cut" if outcome == "FAILED" else None)
    assert view.cancel_reason == ("asked the bank" if outcome == "CANCELLED" else None)
    assert await world.attempts(start.task_id) == [attempt]
    audited = await world.connection.fetchrow(
        "SELECT actor, resource, reason, evidence FROM audit WHERE action = 'task.resolve'"
    )
    assert tuple(audited) == ("0" * 16, start.task_id, "asked the bank", b'{"ticket":7}')


async def test_only_a_review_is_resolved_and_only_once(world: World) -> None:
    start = await failed(world)
    [waiting] = await world.submitted()
    under_review = await reviewed(world)
    before = await world.snapshot()
    for task_id in (start.task_id, waiting):
        assert (await world.resolve(task_id, "SUCCEEDED")).code == "state_conflict"
    stale = await world.resolve_as(world.verdict(under_review.task_id, 3, "SUCCEEDED"))
    assert (stale.code, stale.task_state, stale.task_revision) == (
        "state_conflict",
        "NEEDS_REVIEW",
        4,
    )
    assert await world.snapshot() == before
    verdict = world.verdict(under_review.task_id, 4, "SUCCEEDED")
    assert (await world.resolve_as(verdict)).code == "done"
    assert (await world.resolve_as(verdict)).deduplicated
    assert (await world.resolve(under_review.task_id, "FAILED")).code == "state_conflict"
    other = msgspec.structs.replace(verdict, hash=b"o" * 32)
    assert (await world.resolve_as(other)).code == "idempotency_conflict"


async def test_a_review_resolved_as_failed_can_be_retried(world: World) -> None:
    start = await reviewed(world)
    await world.resolve(start.task_id, "FAILED")
    assert (await world.retry(start.task_id)).code == "done"
    view = await world.view(start.task_id)
    assert (view.resolved_at, view.resolve_reason) == (None, None)


async def test_batches_answer_in_place(world: World) -> None:
    one, two = await reviewed(world), await failed(world)
    retries = await operations.retry_tasks(
        world.connection,
        [
            world.another_try(two.task_id, 4),
            world.another_try(world.id(), 4),
            world.another_try(two.task_id, 4),
        ],
        now=world.now,
    )
    assert [outcome.code for outcome in retries] == ["done", "not_found", "again"]
    verdicts = await operations.resolve_tasks(
        world.connection,
        [
            world.verdict(two.task_id, 5, "FAILED"),
            world.verdict(one.task_id, 4, "FAILED"),
            world.verdict(one.task_id, 4, "FAILED"),
        ],
        now=world.now,
    )
    assert [outcome.code for outcome in verdicts] == ["state_conflict", "done", "again"]


async def test_a_late_report_about_a_retried_task_stays_evidence(world: World) -> None:
    """INV-5: the old attempt cannot touch the task's second life."""
    start = await world.ended(await world.worker(), max_attempts=1)
    assert (await world.view(start.task_id)).state == "FAILED"
    await world.retry(start.task_id)
    [again] = await world.granted(await world.worker(), [start.task_id])
    await world.start(again)
    late = await world.finish(world.finish_of(start))
    assert (late.disposition, late.task_state) == ("EVIDENCE_ONLY", "RUNNING")
    world.wait(LEASE_MS / 2)
    assert (await world.finish(world.failure_of(again))).task_state == "FAILED"
