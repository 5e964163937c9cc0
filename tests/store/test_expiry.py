"""Lapses: by recovery class, at the lease's end, whoever comes to settle them (OP-23..27)."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from store import dispatch
from store.commands import AttemptCommand
from tests.store.world import LEASE_MS, World

Settle = Callable[[World, AttemptCommand], Awaitable[object]]


async def by_sweep(world: World, start: AttemptCommand) -> object:
    return await world.sweep()


async def by_renewal(world: World, start: AttemptCommand) -> object:
    return await world.renew(world.again(start))


async def by_finish(world: World, start: AttemptCommand) -> object:
    return await world.finish(world.finish_of(start))


async def by_resume(world: World, start: AttemptCommand) -> object:
    return await world.resume(start)


async def by_start(world: World, start: AttemptCommand) -> object:
    return await world.start(world.again(start))


SETTLERS = (by_sweep, by_renewal, by_finish, by_resume, by_start)
every_settler = pytest.mark.parametrize("settle", SETTLERS)


async def test_nothing_lapses_before_its_end(world: World) -> None:
    worker = await world.worker()
    await world.leased(worker)
    await world.running(worker)
    world.wait(LEASE_MS - 0.001)
    assert await world.sweep() == []
    world.wait(0.001)
    assert {(e.queue_id, e.route_id, e.waiting) for e in await world.sweep()} == {
        (world.queue_id, world.route_id, True)
    }
    assert await world.count("lease") == 0


@every_settler
async def test_an_idempotent_attempt_waits_for_its_delay(world: World, settle: Settle) -> None:
    start = await world.running(await world.worker(), initial_delay_ms=7000)
    world.wait(LEASE_MS)
    await settle(world, start)
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.attempt_count) == ("WAITING", 4, 1)
    assert view.available_at == world.at(7000)
    [attempt] = await world.attempts(start.task_id)
    assert (attempt.state, attempt.finished_at) == ("EXPIRED", world.now)


@every_settler
async def test_a_reconcile_only_attempt_goes_to_review(world: World, settle: Settle) -> None:
    start = await world.running(await world.worker(), recovery_safety="RECONCILE_ONLY")
    world.wait(LEASE_MS)
    await settle(world, start)
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.error_code) == ("NEEDS_REVIEW", 4, "lease_lapsed")
    [attempt] = await world.attempts(start.task_id)
    assert attempt.state == "UNKNOWN"


@pytest.mark.parametrize("safety", ["IDEMPOTENT", "RECONCILE_ONLY"])
@every_settler
async def test_an_unstarted_attempt_goes_back_unharmed(
    world: World, settle: Settle, safety: str
) -> None:
    [start] = await world.leased(await world.worker(), recovery_safety=safety, max_attempts=1)
    world.wait(LEASE_MS)
    await settle(world, start)
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.attempt_count) == ("WAITING", 3, 0)
    assert view.available_at == world.now
    [attempt] = await world.attempts(start.task_id)
    assert attempt.state == "EXPIRED"


async def test_the_budget_ends(world: World) -> None:
    start = await world.ended(await world.worker(), max_attempts=1)
    view = await world.view(start.task_id)
    assert (view.state, view.error_code) == ("FAILED", "attempts_exhausted")
    assert (view.attempt_count, view.attempt_id) == (1, start.attempt_id)
    assert view.completed_at == world.now


async def test_unstarted_lapses_use_no_budget_and_raise_the_epoch(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted(max_attempts=1)
    for epoch in (1, 2):
        [start] = await world.granted(worker, [task_id])
        assert start.epoch == epoch
        world.wait(LEASE_MS)
        await world.sweep()
    [start] = await world.granted(worker, [task_id])
    await world.start(start)
    assert (await world.finish(world.failure_of(start))).task_state == "FAILED"
    assert (await world.view(task_id)).attempt_count == 1


async def test_the_third_unstarted_lapse_waits_a_second(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted()
    waits = []
    for _ in range(4):
        await world.granted(worker, [task_id])
        world.wait(LEASE_MS)
        await world.sweep()
        delay = (await world.view(task_id)).available_at - world.now
        waits.append(delay / timedelta(seconds=1))
        world.now += delay
    assert waits == [0, 0, 1, 2]


async def test_a_retry_past_the_deadline_fails(world: World) -> None:
    start = await world.running(
        await world.worker(), deadline_at=world.at(LEASE_MS + 5000), initial_delay_ms=5000
    )
    world.wait(LEASE_MS)
    await world.sweep()
    view = await world.view(start.task_id)
    assert (view.state, view.error_code) == ("FAILED", "deadline_exceeded")


async def test_the_attempt_timeout_is_an_ordinary_lapse(world: World) -> None:
    start = await world.running(await world.worker(), attempt_timeout_ms=1500)
    world.wait(1500)
    await world.sweep()
    assert (await world.view(start.task_id)).state == "WAITING"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"start_deadline_at": 2000}, "start_deadline_exceeded"),
        ({"deadline_at": 2000}, "deadline_exceeded"),
        ({"start_deadline_at": 2000, "deadline_at": 2000}, "start_deadline_exceeded"),
    ],
    ids=str,
)
async def test_an_unstarted_attempt_past_its_deadline_fails(
    world: World, limits: dict[str, Any], code: str
) -> None:
    [start] = await world.leased(
        await world.worker(), 1, **{name: world.at(ms) for name, ms in limits.items()}
    )
    world.wait(2000)
    [expired] = await world.sweep()
    assert not expired.waiting
    view = await world.view(start.task_id)
    assert (view.state, view.error_code, view.attempt_count) == ("FAILED", code, 0)


@every_settler
async def test_a_deadline_opens_one_window_for_reporting(world: World, settle: Settle) -> None:
    start = await world.running(await world.worker(), deadline_at=world.at(20_000))
    world.wait(10_000)
    await world.renew(world.again(start))
    world.wait(12_000)
    if settle is by_finish:
        assert (await world.finish(world.finish_of(start))).task_state == "SUCCEEDED"
        return
    await settle(world, start)
    answer = await world.renew(world.again(start))
    assert (answer.active, answer.lease_state, answer.settled) == (False, "RUNNING", False)
    assert answer.lease_until == world.at(LEASE_MS - 2000)
    assert (await world.view(start.task_id)).revision == 4
    world.wait(LEASE_MS - 2001)
    outcome = await world.finish(world.failure_of(start))
    assert (outcome.task_state, outcome.attempt_state) == ("FAILED", "FAILED")
    assert (await world.view(start.task_id)).error_code == "deadline_exceeded"


@pytest.mark.parametrize(
    ("safety", "attempt_state", "task_state"),
    [("IDEMPOTENT", "EXPIRED", "FAILED"), ("RECONCILE_ONLY", "UNKNOWN", "NEEDS_REVIEW")],
)
@pytest.mark.parametrize("swept", ["in the window", "after it"])
async def test_a_silent_attempt_past_its_deadline(
    world: World, safety: str, attempt_state: str, task_state: str, swept: str
) -> None:
    start = await world.running(
        await world.worker(), deadline_at=world.at(20_000), recovery_safety=safety
    )
    world.wait(20_000)
    if swept == "in the window":
        [window] = await world.sweep()
        assert (window.attempt_id, window.waiting) == (start.attempt_id, False)
        assert (window.session_id, window.node_id) == (start.session_id, world.node_id)
        assert await world.sweep() == [], "it is told once"
    world.wait(LEASE_MS)
    [expired] = await world.sweep()
    assert not expired.waiting
    assert expired.node_id is None
    view = await world.view(start.task_id)
    assert (view.state, view.error_code) == (task_state, "deadline_exceeded")
    assert view.revision == 5
    [attempt] = await world.attempts(start.task_id)
    assert attempt.state == attempt_state


async def test_no_result_depends_on_when_the_sweep_ran(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker, deadline_at=world.at(20_000))
    world.wait(20_000 + LEASE_MS)
    outcome = await world.finish(world.finish_of(start))
    assert (outcome.disposition, outcome.task_state) == ("EVIDENCE_ONLY", "FAILED")


@pytest.mark.parametrize(
    ("safety", "attempt_state", "task_state"),
    [("IDEMPOTENT", "EXPIRED", "CANCELLED"), ("RECONCILE_ONLY", "UNKNOWN", "NEEDS_REVIEW")],
)
async def test_a_lapse_under_a_cancel(
    world: World, safety: str, attempt_state: str, task_state: str
) -> None:
    start = await world.running(await world.worker(), recovery_safety=safety, max_attempts=1)
    await world.intend(start, "caller")
    world.wait(LEASE_MS)
    await world.sweep()
    view = await world.view(start.task_id)
    assert view.state == task_state
    assert view.cancel_requested_at is not None
    [attempt] = await world.attempts(start.task_id)
    assert attempt.state == attempt_state


async def test_a_sweep_takes_a_portion(world: World) -> None:
    worker = await world.worker()
    await world.leased(worker, 5)
    world.wait(LEASE_MS)
    assert [len(await world.sweep(2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_waiting_tasks_fail_at_their_deadlines(world: World) -> None:
    async def swept(limit: int = 10) -> int:
        return await dispatch.expire_ready(world.connection, limit, now=world.now)

    [late] = await world.submitted(deadline_at=world.at(1000))
    [unstarted] = await world.submitted(
        start_deadline_at=world.at(1000), deadline_at=world.at(1000)
    )
    [patient] = await world.submitted()
    world.wait(999)
    assert await swept() == 0
    world.wait(1)
    assert [await swept(1), await swept(), await swept()] == [1, 1, 0]
    for task_id, code in ((late, "deadline_exceeded"), (unstarted, "start_deadline_exceeded")):
        view = await world.view(task_id)
        assert (view.state, view.error_code, view.revision) == ("FAILED", code, 2)
        assert (view.completed_at, view.attempt_count) == (world.now, 0)
    assert (await world.view(patient)).state == "WAITING"


async def test_a_start_deadline_is_over_once_an_attempt_started(world: World) -> None:
    start = await world.running(await world.worker(), start_deadline_at=world.at(5000))
    await world.finish(world.failure_of(start))
    world.wait(60_000)
    assert await dispatch.expire_ready(world.connection, 10, now=world.now) == 0
    assert (await world.view(start.task_id)).state == "WAITING"
    [again] = await world.granted(await world.worker(), [start.task_id])
    assert (await world.start(again)).active
