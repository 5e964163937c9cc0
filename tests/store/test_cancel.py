"""Taking tasks back where they wait, are leased or run (OP-43, OP-28, OP-03)."""

from datetime import timedelta

import msgspec
import pytest

from store import operations
from tests.store.world import LEASE_MS, World


async def test_what_waits_is_cancelled_at_once(world: World) -> None:
    [task_id] = await world.submitted()
    outcome = await world.cancel(task_id, reason="sold out")
    assert (outcome.code, outcome.task_state, outcome.task_revision) == ("done", "CANCELLED", 2)
    assert (outcome.attempt_id, outcome.deduplicated) == (None, False)
    view = await world.view(task_id)
    assert (view.state, view.revision, view.attempt_count) == ("CANCELLED", 2, 0)
    assert (view.cancel_reason, view.cancel_requested_at) == ("sold out", world.now)
    assert (view.completed_at, view.error_code) == (world.now, None)
    worker = await world.worker()
    assert await world.claim([(task_id, worker.session_id)]) == []


async def test_what_is_leased_is_cancelled_at_once_and_cannot_start(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker)
    outcome = await world.cancel(start.task_id)
    assert (outcome.code, outcome.task_state, outcome.task_revision) == ("done", "CANCELLED", 3)
    told = (outcome.attempt_id, outcome.session_id, outcome.node_id)
    assert told == (start.attempt_id, worker.session_id, worker.node_id)
    [attempt] = await world.attempts(start.task_id)
    assert (attempt.state, attempt.intent, attempt.forced_at) == ("CANCELLED", "caller", None)
    started = await world.start(start)
    assert (started.disposition, started.attempt_state) == ("EVIDENCE_ONLY", "CANCELLED")
    assert (started.active, started.settled) == (False, True)
    assert (await world.view(start.task_id)).attempt_count == 0


async def test_what_runs_gets_an_intent_and_one_window(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    world.wait(20_000)
    outcome = await world.cancel(start.task_id, reason="too late")
    assert (outcome.code, outcome.task_state, outcome.task_revision) == ("intent", "RUNNING", 4)
    assert outcome.attempt_id == start.attempt_id
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.cancel_reason) == ("RUNNING", 4, "too late")
    assert view.cancel_requested_at == world.now
    window = world.at(LEASE_MS)
    world.wait(5_000)
    renewed = await world.renew(world.again(start))
    assert (renewed.active, renewed.lease_state, renewed.lease_until) == (False, "RUNNING", window)
    finished = await world.finish(world.failure_of(start, "cancelled"))
    assert (finished.attempt_state, finished.task_state) == ("CANCELLED", "CANCELLED")
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.cancel_reason) == ("CANCELLED", 5, "too late")


async def test_a_longer_lease_is_not_shortened_by_an_intent(world: World) -> None:
    start = await world.running(await world.worker())
    until = world.at(LEASE_MS)
    await world.cancel(start.task_id)
    assert (await world.attempts(start.task_id))[0].lease_until == until


async def test_the_first_reason_stays(world: World) -> None:
    start = await world.running(await world.worker())
    await world.cancel(start.task_id, reason="first")
    [before] = await world.attempts(start.task_id)
    world.wait(1_000)
    outcome = await world.cancel(start.task_id, reason="second")
    assert (outcome.code, outcome.task_revision) == ("intent", 4)
    assert (outcome.attempt_id, outcome.intent) == (start.attempt_id, "caller"), "told again"
    assert (await world.view(start.task_id)).cancel_reason == "first"
    assert await world.attempts(start.task_id) == [before]
    reasons = await world.connection.fetch("SELECT reason FROM audit WHERE action = 'task.cancel'")
    assert [row["reason"] for row in reasons] == ["first", "second"]


@pytest.mark.parametrize("end", ["SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW"])
async def test_what_is_settled_is_left_alone(world: World, end: str) -> None:
    start = await world.running(await world.worker(), max_attempts=1)
    if end == "CANCELLED":
        await world.cancel(start.task_id)
    report = {"SUCCEEDED": ("SUCCEEDED", None), "NEEDS_REVIEW": ("UNKNOWN", "x")}
    outcome, code = report.get(end, ("FAILED", "cancelled"))
    await world.finish(world.finish_of(start, outcome=outcome, error_code=code))
    before = await world.snapshot()
    refused = await world.cancel(start.task_id)
    assert (refused.code, refused.task_state) == ("state_conflict", end)
    assert await world.snapshot() == before


async def test_only_the_own_namespaces_tasks_exist(world: World) -> None:
    [task_id] = await world.submitted()
    before = await world.snapshot()
    for stranger in ({"namespace_id": world.id()}, {"task_id": world.id()}):
        refused = await world.cancel_as(
            msgspec.structs.replace(world.cancellation(task_id), **stranger)
        )
        assert refused.code == "not_found"
    assert await world.snapshot() == before


async def test_a_stale_revision_changes_nothing(world: World) -> None:
    [start] = await world.leased(await world.worker())
    before = await world.snapshot()
    refused = await world.cancel(start.task_id, expected_revision=1)
    assert (refused.code, refused.task_state, refused.task_revision) == (
        "state_conflict",
        "LEASED",
        2,
    )
    assert await world.snapshot() == before
    assert (await world.cancel(start.task_id, expected_revision=2)).code == "done"


async def test_a_repeat_gets_the_first_answer_whatever_came_since(world: World) -> None:
    """R-094, INV-31."""
    start = await world.running(await world.worker())
    wish = world.cancellation(start.task_id)
    first = await world.cancel_as(wish)
    again = await world.cancel_as(wish)
    await world.finish(world.failure_of(start, "cancelled"))
    later = await world.cancel_as(wish)
    await world.retry(start.task_id)
    before = await world.snapshot()
    last = await world.cancel_as(wish)
    assert await world.snapshot() == before
    assert (await world.view(start.task_id)).state == "WAITING"
    for repeat in (again, later, last):
        assert repeat.deduplicated
        assert (repeat.code, repeat.task_state, repeat.task_revision) == (
            first.code,
            first.task_state,
            first.task_revision,
        )
    told = [(outcome.attempt_id, outcome.intent) for outcome in (first, again, later, last)]
    asked = (start.attempt_id, "caller")
    assert told == [asked, asked, (None, None), (None, None)], "who runs is told once more"
    other = await world.cancel_as(msgspec.structs.replace(wish, hash=b"o" * 32))
    assert other.code == "idempotency_conflict"


async def test_one_key_on_two_tasks_is_two_operations(world: World) -> None:
    for task_id in await world.submitted(2):
        outcome = await world.cancel(task_id, key="same")
        assert (outcome.code, outcome.deduplicated) == ("done", False)


async def test_a_refusal_binds_no_key(world: World) -> None:
    start = await world.running(await world.worker())
    wish = world.cancellation(start.task_id, expected_revision=1)
    assert (await world.cancel_as(wish)).code == "state_conflict"
    assert await world.connection.fetchval("SELECT count(*) FROM submission") == 1


async def test_a_batch_answers_each_command_in_its_place(world: World) -> None:
    worker = await world.worker()
    waiting, leased, running, settled = (
        (await world.submitted())[0],
        (await world.leased(worker))[0],
        await world.running(worker),
        await world.running(worker),
    )
    await world.finish(world.finish_of(settled))
    ids = [settled.task_id, running.task_id, world.id(), waiting, leased.task_id, waiting]
    outcomes = await operations.cancel_tasks(
        world.connection, [world.cancellation(task_id) for task_id in ids], now=world.now
    )
    assert [(o.code, o.task_state) for o in outcomes[:2]] == [
        ("state_conflict", "SUCCEEDED"),
        ("intent", "RUNNING"),
    ]
    assert [o.code for o in outcomes[2:]] == ["not_found", "done", "done", "again"]
    assert [o.attempt_id for o in outcomes] == [
        None,
        running.attempt_id,
        None,
        None,
        leased.attempt_id,
        None,
    ]


async def test_a_lease_that_is_over_is_settled_before_the_cancel_is_judged(world: World) -> None:
    """OP-23: no answer depends on when the sweep ran."""
    worker = await world.worker()
    [unstarted] = await world.leased(worker)
    again = await world.running(worker)
    never = await world.running(worker, recovery_safety="RECONCILE_ONLY")
    last = await world.running(worker, max_attempts=1)
    world.wait(LEASE_MS)
    codes = [
        (outcome.code, outcome.task_state, outcome.attempt_id)
        for outcome in [
            await world.cancel(start.task_id) for start in (unstarted, again, never, last)
        ]
    ]
    assert codes == [
        ("done", "CANCELLED", None),
        ("done", "CANCELLED", None),
        ("state_conflict", "NEEDS_REVIEW", None),
        ("state_conflict", "FAILED", None),
    ]


async def test_a_task_past_its_deadline_has_failed_before_it_is_cancelled(world: World) -> None:
    [task_id] = await world.submitted(deadline_at=world.now + timedelta(seconds=5))
    world.wait(5_000)
    outcome = await world.cancel(task_id)
    assert (outcome.code, outcome.task_state) == ("state_conflict", "FAILED")
    assert (await world.view(task_id)).error_code == "deadline_exceeded"


async def test_under_a_deadline_intent_nothing_is_added(world: World) -> None:
    start = await world.running(
        await world.worker(), deadline_at=world.now + timedelta(milliseconds=LEASE_MS)
    )
    world.wait(LEASE_MS)
    await world.sweep()
    outcome = await world.cancel(start.task_id, reason="mine")
    assert (outcome.code, outcome.task_state) == ("intent", "RUNNING")
    [attempt] = await world.attempts(start.task_id)
    assert attempt.intent == "deadline"
    finished = await world.finish(world.failure_of(start, "cancelled"))
    assert (finished.attempt_state, finished.task_state) == ("FAILED", "FAILED")


async def test_a_refused_cancel_says_whom_to_tell_of_the_deadline_that_it_found_passed(
    world: World,
) -> None:
    """OP-26: the call itself has opened the window, so no sweep will tell of it."""
    worker = await world.worker()
    start = await world.running(worker, deadline_at=world.at(20_000))
    seen = (await world.view(start.task_id)).revision
    world.wait(20_000)
    outcome = await world.cancel(start.task_id, expected_revision=seen)
    assert (outcome.code, outcome.task_revision) == ("state_conflict", seen + 1)
    told = (outcome.intent, outcome.attempt_id, outcome.session_id, outcome.node_id)
    assert told == ("deadline", start.attempt_id, worker.session_id, worker.node_id)
    await world.sweep()
    assert (await world.view(start.task_id)).state == "RUNNING", "one window, as after a sweep"


@pytest.mark.parametrize(
    ("safety", "attempt_state", "task_state"),
    [("IDEMPOTENT", "EXPIRED", "CANCELLED"), ("RECONCILE_ONLY", "UNKNOWN", "NEEDS_REVIEW")],
)
async def test_a_silent_worker_is_stopped_by_force(
    world: World, safety: str, attempt_state: str, task_state: str
) -> None:
    """OP-25: the window closes, and the mark says that nobody confirmed the stop."""
    start = await world.running(await world.worker(), recovery_safety=safety)
    await world.cancel(start.task_id)
    asked_at = world.now
    world.wait(LEASE_MS)
    await world.sweep()
    [attempt] = await world.attempts(start.task_id)
    assert (attempt.state, attempt.forced_at) == (attempt_state, world.now)
    assert (attempt.intent_at, attempt.acknowledged_at) == (asked_at, None)
    assert (await world.view(start.task_id)).state == task_state


async def test_the_news_is_acknowledged_by_the_next_frame(world: World) -> None:
    """OP-68: told by an answer, acknowledged by whatever comes after it."""
    start = await world.running(await world.worker())
    await world.cancel(start.task_id)
    world.wait(1_000)
    await world.renew(world.again(start))
    assert (await world.attempts(start.task_id))[0].acknowledged_at is None
    world.wait(1_000)
    await world.renew(world.again(start))
    heard_at = world.now
    assert (await world.attempts(start.task_id))[0].acknowledged_at == heard_at
    world.wait(1_000)
    await world.finish(world.failure_of(start, "cancelled"))
    [attempt] = await world.attempts(start.task_id)
    assert (attempt.acknowledged_at, attempt.finished_at) == (heard_at, world.now)
    assert attempt.forced_at is None


async def test_the_answer_to_a_repeated_start_is_news_too(world: World) -> None:
    """OP-03, OP-68: it says inactive, so the next word is an acknowledgement."""
    start = await world.running(await world.worker())
    await world.cancel(start.task_id)
    world.wait(1_000)
    repeat = await world.start(start)
    assert (repeat.deduplicated, repeat.active, repeat.disposition) == (True, False, "APPLIED")
    assert (await world.attempts(start.task_id))[0].acknowledged_at is None
    world.wait(1_000)
    await world.finish(world.failure_of(start))
    assert (await world.attempts(start.task_id))[0].acknowledged_at == world.now


async def test_a_report_after_the_news_acknowledges_it(world: World) -> None:
    told = await world.running(await world.worker())
    untold = await world.running(await world.worker())
    for start in (told, untold):
        await world.cancel(start.task_id)
    await world.renew(world.again(told))
    world.wait(1_000)
    for start in (told, untold):
        await world.finish(world.finish_of(start))
    assert (await world.attempts(told.task_id))[0].acknowledged_at == world.now
    assert (await world.attempts(untold.task_id))[0].acknowledged_at is None
    for start in (told, untold):
        view = await world.view(start.task_id)
        assert (view.state, view.cancel_reason) == ("SUCCEEDED", "not needed")


@pytest.mark.parametrize("intent", ["caller", "deadline"])
@pytest.mark.parametrize(("outcome", "code"), [("CANCELLED", "stop.done"), ("FAILED", "cancelled")])
async def test_a_confirmed_stop_acknowledges_by_itself(
    world: World, intent: str, outcome: str, code: str
) -> None:
    """OP-68: nobody confirms what he has not heard of, by a push or otherwise."""
    start = await world.running(await world.worker())
    await world.intend(start, intent)
    asked_at = world.now
    world.wait(1_000)
    await world.finish(world.finish_of(start, outcome=outcome, error_code=code))
    [attempt] = await world.attempts(start.task_id)
    assert (attempt.intent, attempt.intent_at) == (intent, asked_at)
    assert attempt.acknowledged_at == attempt.finished_at == world.now
    assert attempt.forced_at is None


async def test_a_stop_that_is_refused_acknowledges_nothing(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    await world.cancel(start.task_id)
    back = await world.worker(instance_id=worker.instance_id)
    stop = world.finish_of(start, outcome="CANCELLED", error_code="x", session_id=back.session_id)
    assert (await world.finish(stop)).code == "resume_required"
    await world.resume(world.again(start, session_id=back.session_id))
    assert (await world.attempts(start.task_id))[0].acknowledged_at is None


async def test_a_passed_deadline_is_an_event(world: World) -> None:
    start = await world.running(await world.worker(), deadline_at=world.at(20_000))
    world.wait(20_000)
    await world.sweep()
    await world.sweep()
    rows = await world.connection.fetch(
        "SELECT type, revision, attempt_id FROM event WHERE resource_id = $1", start.task_id
    )
    assert [tuple(row) for row in rows] == [("task.deadline_passed", 4, start.attempt_id)]
    assert (await world.view(start.task_id)).revision == 4


async def test_a_resume_tells_and_acknowledges_too(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    await world.cancel(start.task_id)
    back = await world.worker(instance_id=worker.instance_id)
    moved = world.again(start, session_id=back.session_id)
    resumed = await world.resume(moved)
    assert (resumed.active, resumed.lease_state) == (False, "RUNNING")
    assert (await world.attempts(start.task_id))[0].acknowledged_at is None
    world.wait(1_000)
    await world.resume(world.again(moved))
    assert (await world.attempts(start.task_id))[0].acknowledged_at == world.now


async def test_a_cancelled_slot_is_free_again(world: World) -> None:
    """B-22: what was taken back holds no capacity."""
    worker = await world.worker(capacity=2)
    starts = await world.leased(worker, 2)
    for start in starts:
        await world.cancel(start.task_id)
    assert len(await world.leased(worker, 2)) == 2


async def test_every_step_of_a_cancel_is_an_event(world: World) -> None:
    start = await world.running(await world.worker())
    await world.cancel(start.task_id)
    await world.finish(world.failure_of(start, "cancelled"))
    rows = await world.connection.fetch(
        "SELECT type, revision, attempt_id FROM event WHERE resource_id = $1 ORDER BY id",
        start.task_id,
    )
    assert [tuple(row) for row in rows] == [
        ("task.cancel_requested", 4, start.attempt_id),
        ("task.cancelled", 5, start.attempt_id),
    ]
