"""Ends as workers report them: settled once, in one transaction with the event (R-140)."""

from typing import Any

import msgspec
import pytest

from store import commands
from store.commands import CommandOutcome, FinishCommand
from tests.store.world import LEASE_MS, World


async def test_a_success_settles_task_and_attempt_with_an_event(world: World) -> None:
    start = await world.running(await world.worker())
    world.wait(1000)
    outcome = await world.finish(world.finish_of(start))
    assert outcome == CommandOutcome(
        code="ok",
        task_state="SUCCEEDED",
        attempt_state="SUCCEEDED",
        task_revision=4,
        receipt_lease_until=world.at(LEASE_MS - 1000),
        disposition="APPLIED",
        deduplicated=False,
        active=False,
        lease_state="SUCCEEDED",
        lease_until=world.at(LEASE_MS - 1000),
        server_time=world.now,
        settled=True,
    )
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.attempt_count) == ("SUCCEEDED", 4, 1)
    assert (view.result, view.attempt_id) == (b'{"sent":true}', start.attempt_id)
    assert (view.completed_at, view.error_code) == (world.now, None)
    [event] = await world.connection.fetch("SELECT type, revision, attempt_id FROM event")
    assert tuple(event) == ("task.succeeded", 4, start.attempt_id)
    assert await world.count("lease") == await world.count("ready") == 0


@pytest.mark.parametrize("safety", ["IDEMPOTENT", "RECONCILE_ONLY"])
async def test_a_start_that_came_too_late_to_run_has_used_its_unit(
    world: World, safety: str
) -> None:
    """OP-27: the start was granted, and only what was never started is free."""
    worker = await world.worker()
    start = await world.running(worker, max_attempts=2, recovery_safety=safety)
    outcome = await world.finish(world.failure_of(start, "started_too_late"))
    assert outcome.task_state == "WAITING"
    assert (await world.view(start.task_id)).attempt_count == 1
    world.wait(60_000)
    await world.granted(worker, [start.task_id])
    await world.close_session(worker.session_id)
    assert (await world.view(start.task_id)).attempt_count == 1, "nobody started this one"
    world.wait(60_000)
    [last] = await world.granted(await world.worker(), [start.task_id])
    await world.start(last)
    await world.finish(world.failure_of(last, "started_too_late"))
    view = await world.view(start.task_id)
    assert (view.state, view.error_code, view.attempt_count) == ("FAILED", "started_too_late", 2)


async def test_a_failure_waits_for_its_delay_doubling_up_to_the_maximum(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted(max_attempts=6, initial_delay_ms=1000, max_delay_ms=5000)
    for epoch, delay_ms in enumerate((1000, 2000, 4000, 5000, 5000), start=1):
        [start] = await world.granted(worker, [task_id])
        assert start.epoch == epoch
        await world.start(start)
        outcome = await world.finish(world.failure_of(start))
        assert (outcome.task_state, outcome.attempt_state) == ("WAITING", "FAILED")
        view = await world.view(task_id)
        assert (view.state, view.attempt_count) == ("WAITING", epoch)
        assert view.available_at == world.at(delay_ms)
        world.wait(delay_ms - 1)
        assert await world.claim([(task_id, worker.session_id)]) == []
        world.wait(1)
    [start] = await world.granted(worker, [task_id])
    await world.start(start)
    assert (await world.finish(world.failure_of(start))).task_state == "FAILED"
    view = await world.view(task_id)
    assert (view.attempt_count, view.error_code) == (6, "smtp.down")
    assert [a.state for a in await world.attempts(task_id)] == ["FAILED"] * 6


async def test_the_longest_delays_can_be_computed_and_end_at_the_deadline(world: World) -> None:
    longest = 9_223_372_036_854
    start = await world.running(
        await world.worker(), max_attempts=100, initial_delay_ms=longest, max_delay_ms=longest
    )
    assert (await world.finish(world.failure_of(start))).task_state == "FAILED"


async def test_the_hundredth_delay_is_still_the_maximum(world: World) -> None:
    delay = await world.connection.fetchval(
        "SELECT retry_delay_v1(9223372036854, 9223372036854, 99) = 9223372036854 * interval '1 ms'"
    )
    assert delay


async def test_a_retry_that_would_wait_past_the_deadline_fails(world: World) -> None:
    worker = await world.worker()
    fits = await world.running(worker, deadline_at=world.at(1001))
    late = await world.running(worker, deadline_at=world.at(1000))
    assert (await world.finish(world.failure_of(fits))).task_state == "WAITING"
    assert (await world.finish(world.failure_of(late))).task_state == "FAILED"


@pytest.mark.parametrize("code", ["fatal.schema", "invalid_input", "unsupported_capability"])
async def test_some_failures_are_not_retried(world: World, code: str) -> None:
    start = await world.running(await world.worker())
    outcome = await world.finish(world.failure_of(start, code))
    assert (outcome.task_state, outcome.attempt_state) == ("FAILED", "FAILED")
    assert (await world.view(start.task_id)).error_code == code


@pytest.mark.parametrize("code", ["fatal", "fatality.x", "not.fatal.x", "invalid_inputs"])
async def test_others_are(world: World, code: str) -> None:
    start = await world.running(await world.worker())
    assert (await world.finish(world.failure_of(start, code))).task_state == "WAITING"


@pytest.mark.parametrize("safety", ["IDEMPOTENT", "RECONCILE_ONLY"])
async def test_an_unknown_end_goes_to_review(world: World, safety: str) -> None:
    start = await world.running(await world.worker(), recovery_safety=safety)
    report = world.finish_of(start, outcome="UNKNOWN", error_code="link.cut")
    outcome = await world.finish(report)
    assert (outcome.task_state, outcome.attempt_state) == ("NEEDS_REVIEW", "UNKNOWN")
    view = await world.view(start.task_id)
    assert (view.state, view.error_code, view.result) == ("NEEDS_REVIEW", "link.cut", report.result)
    assert view.completed_at is None


@pytest.mark.parametrize(
    ("intent", "state", "task_code"),
    [("caller", "CANCELLED", None), ("deadline", "FAILED", "deadline_exceeded")],
)
async def test_a_stop_is_confirmed_under_an_intent(
    world: World, intent: str, state: str, task_code: str | None
) -> None:
    """OP-02, R-128: with the outcome of v2 as with the code of v1."""
    for ending in (
        {"outcome": "CANCELLED", "error_code": "cancelled"},
        {"outcome": "FAILED", "error_code": "cancelled"},
    ):
        start = await world.running(await world.worker())
        await world.intend(start, intent)
        report = world.finish_of(start, **ending)
        outcome = await world.finish(report)
        assert (outcome.task_state, outcome.attempt_state) == (state, state)
        view = await world.view(start.task_id)
        assert (view.state, view.error_code) == (state, task_code)
        assert await world.finish(report) == original(outcome, world)


async def test_no_stop_is_confirmed_that_nobody_asked_for(world: World) -> None:
    """INV-18: CANCELLED is written only with a stored intent."""
    start = await world.running(await world.worker())
    stopped = world.finish_of(start, outcome="CANCELLED", error_code="cancelled")
    assert (await world.finish(stopped)).code == "operation_conflict"
    assert (await world.view(start.task_id)).state == "RUNNING"
    assert (await world.finish(world.finish_of(start))).task_state == "SUCCEEDED"


def original(outcome: CommandOutcome, world: World) -> CommandOutcome:
    return msgspec.structs.replace(outcome, deduplicated=True, server_time=world.now)


async def test_repeats_get_the_original_receipt_for_ever(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    report = world.finish_of(start)
    first = await world.finish(report)
    other = await world.worker()
    repeats = [
        report,
        msgspec.structs.replace(report, message_id=world.id()),
        msgspec.structs.replace(report, session_id=other.session_id),
    ]
    for repeat in repeats:
        world.wait(3_600_000)
        assert await world.finish(repeat) == original(first, world)
    assert await world.count("receipt") == await world.count("evidence") == 0


async def test_a_repeat_is_recognised_whatever_became_of_its_session(world: World) -> None:
    worker = await world.worker(session_max_ms=LEASE_MS)
    start = await world.running(worker)
    report = world.failure_of(start)
    first = await world.finish(report)
    world.wait(LEASE_MS)
    assert await world.finish(report) == original(first, world)
    await world.close_session(worker.session_id)
    assert await world.finish(report) == original(first, world)
    never = msgspec.structs.replace(report, session_id=world.id(), message_id=world.id())
    assert await world.finish(never) == original(first, world)


async def test_a_repeat_shows_the_state_of_then(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    report = world.failure_of(start)
    first = await world.finish(report)
    world.wait(1000)
    [again] = await world.granted(worker, [start.task_id])
    await world.start(again)
    await world.finish(world.finish_of(again))
    assert await world.finish(report) == original(first, world)
    assert first.task_state == "WAITING"


async def test_the_same_message_with_another_meaning_conflicts(world: World) -> None:
    start = await world.running(await world.worker())
    report = world.finish_of(start)
    await world.finish(report)
    before = await world.snapshot()
    assert (await world.finish(msgspec.structs.replace(report, hash=b"x" * 32))).code == (
        "operation_conflict"
    )
    assert await world.snapshot() == before


async def test_another_report_of_a_finished_attempt_is_evidence(world: World) -> None:
    start = await world.running(await world.worker())
    first = await world.finish(world.finish_of(start))
    other = world.failure_of(start)
    outcome = await world.finish(other)
    assert (outcome.disposition, outcome.deduplicated) == ("EVIDENCE_ONLY", False)
    assert (outcome.task_state, outcome.attempt_state) == ("SUCCEEDED", "SUCCEEDED")
    assert outcome.task_revision == first.task_revision
    assert await world.finish(other) == original(outcome, world)
    assert (await world.view(start.task_id)).state == "SUCCEEDED"


async def test_a_late_report_is_answered_once_and_for_ever(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    world.wait(LEASE_MS)
    report = world.finish_of(start)
    outcome = await world.finish(report)
    assert (outcome.disposition, outcome.deduplicated) == ("EVIDENCE_ONLY", False)
    assert (outcome.task_state, outcome.attempt_state) == ("WAITING", "EXPIRED")
    assert (outcome.active, outcome.settled) == (False, True)
    world.wait(1000)
    [again] = await world.granted(worker, [start.task_id])
    await world.start(again)
    await world.finish(world.finish_of(again))
    assert await world.finish(report) == original(outcome, world)
    conflict = await world.finish(msgspec.structs.replace(report, hash=b"x" * 32))
    assert conflict.code == "operation_conflict"
    [row] = await world.connection.fetch(
        "SELECT operation, outcome, result, received_at FROM evidence"
    )
    assert tuple(row)[:3] == ("finish", "SUCCEEDED", report.result)


async def test_evidence_is_capped_and_every_report_keeps_its_answer(world: World) -> None:
    start = await world.ended(await world.worker())
    reports = [world.finish_of(start, hash=bytes([n] * 32)) for n in range(20)]
    first = [await world.finish(report) for report in reports]
    assert await world.count("evidence") == 16
    assert [await world.finish(report) for report in reports] == [
        original(outcome, world) for outcome in first
    ]


async def test_late_renewals_leave_room_for_a_late_result(world: World) -> None:
    """R-144, OP-22: what came beyond the room is counted."""
    start = await world.running(await world.worker())
    await world.intend(start, "caller")
    for _ in range(20):
        assert not (await world.renew(world.again(start))).active
    world.wait(LEASE_MS)
    report = world.finish_of(start)
    assert (await world.finish(report)).disposition == "EVIDENCE_ONLY"
    rows = await world.connection.fetch(
        "SELECT operation, result, further FROM evidence ORDER BY id DESC"
    )
    assert tuple(rows[0]) == ("finish", report.result, 0)
    assert {row["operation"] for row in rows[1:]} == {"renew"}
    assert len(rows) + sum(row["further"] for row in rows) == 20 + 1


async def test_an_unstarted_attempt_has_nothing_to_report(world: World) -> None:
    [start] = await world.leased(await world.worker())
    before = await world.snapshot()
    assert (await world.finish(world.finish_of(start))).code == "operation_conflict"
    assert await world.snapshot() == before


async def test_who_may_not_finish(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    brief = await world.worker(session_max_ms=1)
    over = await world.running(worker)
    await world.finish(world.finish_of(over))
    stranger = await world.worker()
    world.wait(1)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("resume_required", {"session_id": stranger.session_id}),
        ("session_expired", {"session_id": brief.session_id}),
        ("session_superseded", {"session_id": world.id()}),
        ("attempt_not_found", {"epoch": 2}),
        ("attempt_not_found", {"task_id": over.task_id}),
        ("attempt_not_found", {"namespace_id": world.id()}),
        ("attempt_not_found", {"attempt_id": world.id()}),
        ("attempt_not_found", {"attempt_id": over.attempt_id}),
        ("session_superseded", {"attempt_id": world.id(), "session_id": world.id()}),
        ("session_expired", {"attempt_id": world.id(), "session_id": brief.session_id}),
    ]
    before = await world.snapshot()
    for code, wrong in cases:
        assert (await world.finish(world.finish_of(start, **wrong))).code == code, wrong
    assert await world.snapshot() == before


OUTCOMES: list[tuple[str, str, str | None, str, str, str | None]] = [
    ("caller", "SUCCEEDED", None, "SUCCEEDED", "SUCCEEDED", None),
    ("caller", "FAILED", "cancelled", "CANCELLED", "CANCELLED", None),
    ("caller", "FAILED", "smtp.down", "FAILED", "CANCELLED", None),
    ("caller", "FAILED", "fatal.x", "FAILED", "CANCELLED", None),
    ("caller", "UNKNOWN", "link.cut", "UNKNOWN", "NEEDS_REVIEW", "link.cut"),
    ("deadline", "SUCCEEDED", None, "SUCCEEDED", "SUCCEEDED", None),
    ("deadline", "FAILED", "cancelled", "FAILED", "FAILED", "deadline_exceeded"),
    ("deadline", "FAILED", "smtp.down", "FAILED", "FAILED", "deadline_exceeded"),
    ("deadline", "UNKNOWN", "link.cut", "UNKNOWN", "NEEDS_REVIEW", "link.cut"),
    ("", "FAILED", "cancelled", "FAILED", "WAITING", None),
]


@pytest.mark.parametrize(
    ("intent", "outcome", "code", "attempt_state", "task_state", "task_code"), OUTCOMES
)
async def test_ends_under_an_intent(
    world: World,
    intent: str,
    outcome: str,
    code: str | None,
    attempt_state: str,
    task_state: str,
    task_code: str | None,
) -> None:
    start = await world.running(await world.worker())
    if intent:
        await world.intend(start, intent)
    ended = await world.finish(world.finish_of(start, outcome=outcome, error_code=code))
    assert (ended.attempt_state, ended.task_state) == (attempt_state, task_state)
    view = await world.view(start.task_id)
    assert (view.state, view.error_code) == (task_state, task_code)
    assert (view.cancel_requested_at is not None) == (intent == "caller")
    [attempt] = await world.attempts(start.task_id)
    assert attempt.error_code == code


async def test_a_batch_of_all_kinds_answers_each_in_its_place(world: World) -> None:
    worker = await world.worker()
    starts = [await world.running(worker) for _ in range(5)]
    done = world.finish_of(starts[0])
    await world.finish(done)
    [unstarted] = await world.leased(worker)
    batch: list[FinishCommand] = [
        done,
        world.finish_of(starts[1]),
        world.failure_of(starts[1]),
        world.finish_of(unstarted),
        world.failure_of(starts[2]),
        world.finish_of(starts[3], outcome="UNKNOWN", error_code="x"),
        world.finish_of(starts[0], hash=b"z" * 32),
        world.finish_of(starts[4], epoch=4),
    ]
    outcomes = await commands.finish_attempts(world.connection, batch, now=world.now)
    assert [(o.code, o.task_state if o.code == "ok" else None) for o in outcomes] == [
        ("ok", "SUCCEEDED"),
        ("ok", "SUCCEEDED"),
        ("again", None),
        ("operation_conflict", None),
        ("ok", "WAITING"),
        ("ok", "NEEDS_REVIEW"),
        ("again", None),
        ("attempt_not_found", None),
    ]
    assert [o.deduplicated for o in outcomes[:2]] == [True, False]
