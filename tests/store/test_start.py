"""Starts: authorised once, by the owner of a valid lease under an open gate (R-131, R-132)."""

from datetime import timedelta

import msgspec
import pytest

from store import commands
from tests.store.world import LEASE_MS, World


async def test_a_start_makes_the_attempt_run(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker)
    world.wait(1000)
    outcome = await world.start(start)
    assert outcome == commands.CommandOutcome(
        code="ok",
        task_state="RUNNING",
        attempt_state="RUNNING",
        task_revision=3,
        receipt_lease_until=world.at(LEASE_MS),
        disposition="APPLIED",
        deduplicated=False,
        active=True,
        lease_state="RUNNING",
        lease_until=world.at(LEASE_MS),
        server_time=world.now,
        settled=False,
    )
    view = await world.view(start.task_id)
    assert (view.state, view.revision, view.attempt_count) == ("RUNNING", 3, 1)


async def test_a_repeat_gets_the_original_receipt_and_a_fresh_lease(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker)
    first = await world.start(start)
    world.wait(5000)
    renewed = await world.renew(world.again(start))
    for repeat in (start, world.again(start)):
        outcome = await world.start(repeat)
        assert outcome == msgspec.structs.replace(
            first, deduplicated=True, lease_until=renewed.lease_until, server_time=world.now
        )


async def test_a_second_start_keeps_its_receipt_after_the_end(world: World) -> None:
    """INV-8: repeated under its own message id, it gets what it got first."""
    start = await world.running(await world.worker())
    second = world.again(start)
    first = await world.start(second)
    await world.finish(world.finish_of(start))
    assert await world.start(second) == msgspec.structs.replace(
        first, active=False, lease_state="SUCCEEDED", settled=True
    )
    assert (first.deduplicated, first.disposition, first.attempt_state) == (
        True,
        "APPLIED",
        "RUNNING",
    )


async def test_a_second_start_in_one_batch_waits_for_the_next(world: World) -> None:
    [one, two] = await world.leased(await world.worker(), 2)
    batch = [one, world.again(one), two]
    outcomes = await commands.start_attempts(world.connection, batch, now=world.now)
    assert [o.code for o in outcomes] == ["ok", "again", "ok"]
    assert (await world.start(batch[1])).deduplicated


async def test_a_lapsed_lease_starts_nothing_and_its_task_waits(world: World) -> None:
    [start] = await world.leased(await world.worker())
    world.wait(LEASE_MS)
    outcome = await world.start(start)
    assert (outcome.code, outcome.disposition) == ("ok", "EVIDENCE_ONLY")
    assert (outcome.task_state, outcome.attempt_state) == ("WAITING", "EXPIRED")
    assert (outcome.active, outcome.lease_state, outcome.settled) == (False, "EXPIRED", True)
    assert not outcome.deduplicated
    view = await world.view(start.task_id)
    assert (view.state, view.attempt_count) == ("WAITING", 0)
    again = await world.start(start)
    assert again == msgspec.structs.replace(outcome, deduplicated=True)
    assert await world.count("evidence") == 1


async def test_a_start_just_before_the_end_counts(world: World) -> None:
    [start] = await world.leased(await world.worker())
    world.wait(LEASE_MS - 0.001)
    assert (await world.start(start)).active


async def test_who_may_not_start(world: World) -> None:
    worker = await world.worker()
    [start, other] = await world.leased(worker, 2)
    brief = await world.worker(session_max_ms=5000)
    [of_brief] = await world.leased(brief)
    superseded = await world.worker()
    await world.worker(instance_id=superseded.instance_id)
    closed = await world.worker()
    await world.close_session(closed.session_id)
    stranger = await world.worker()
    world.wait(5000)
    cases = {
        "resume_required": [world.again(start, session_id=stranger.session_id)],
        "session_expired": [of_brief],
        "session_superseded": [
            world.again(start, session_id=superseded.session_id),
            world.again(start, session_id=closed.session_id),
            world.again(start, session_id=world.id()),
        ],
        "attempt_not_found": [
            world.again(start, namespace_id=world.id()),
            world.again(start, epoch=2),
            world.again(start, task_id=other.task_id),
            world.again(start, attempt_id=world.id()),
        ],
    }
    before = await world.snapshot()
    for code, wrong in cases.items():
        for command in wrong:
            assert (await world.start(command)).code == code, command
    assert await world.snapshot() == before
    mixed = [*cases["attempt_not_found"][2:], other]
    outcomes = await commands.start_attempts(world.connection, mixed, now=world.now)
    assert [o.code for o in outcomes] == ["attempt_not_found", "attempt_not_found", "ok"]


async def test_foreign_and_unknown_attempts_get_the_same_answer(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker)
    over = await world.ended(worker)
    unknown = await world.start(world.again(start, attempt_id=world.id()))
    for foreign in (world.again(start, namespace_id=world.id()), world.again(over, epoch=9)):
        found = await world.start(foreign)
        assert found.code == unknown.code == "attempt_not_found"


async def test_a_paused_gate_withholds_starts_and_changes_nothing(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker)
    running = await world.running(worker)
    await world.pause()
    before = await world.snapshot()
    assert (await world.start(start)).code == "execution_gated"
    assert await world.snapshot() == before
    repeat = await world.start(running)
    assert (repeat.code, repeat.active, repeat.deduplicated) == ("ok", True, True)
    await world.pause(False)
    assert (await world.start(start)).active


async def test_a_start_that_names_another_gate_is_withheld(world: World) -> None:
    [start] = await world.leased(await world.worker())
    before = await world.snapshot()
    assert (await world.start(world.again(start, gate_id=9_999))).code == "execution_gated"
    assert await world.snapshot() == before


@pytest.mark.parametrize(
    ("limits", "lease_ms", "attempt_ms"),
    [
        ({}, LEASE_MS, 3_600_000),
        ({"attempt_timeout_ms": 1000}, 1000, 1000),
        ({"attempt_timeout_ms": 2_592_000_000}, LEASE_MS, 86_400_000),
        ({"deadline": 2000}, 2000, 2000),
        ({"deadline": 45_000, "attempt_timeout_ms": 40_000}, LEASE_MS, 40_000),
    ],
)
async def test_deadlines_cap_the_attempt_and_its_lease(
    world: World, limits: dict[str, int], lease_ms: int, attempt_ms: int
) -> None:
    limits = dict(limits)
    deadline = limits.pop("deadline", None)
    [start] = await world.leased(
        await world.worker(),
        deadline_at=None if deadline is None else world.at(deadline),
        start_deadline_at=world.at(1000),
        **limits,
    )
    assert (await world.start(start)).lease_until == world.at(lease_ms)
    deadline_at = await world.connection.fetchval("SELECT attempt_deadline_at FROM lease")
    assert deadline_at - world.now == timedelta(milliseconds=attempt_ms)


async def test_an_intended_cancel_starts_nothing(world: World) -> None:
    [start] = await world.leased(await world.worker())
    await world.connection.execute("UPDATE lease SET intent = 'caller', intent_at = $1", world.now)
    outcome = await world.start(start)
    assert (outcome.disposition, outcome.active) == ("EVIDENCE_ONLY", False)
    assert outcome.task_state == "LEASED"


async def test_a_batch_holds_the_gates_over_all_of_it(world: World) -> None:
    starts = await world.leased(await world.worker(), 2)
    batch = [starts[0], world.again(starts[1], gate_id=world.gate_id + 1)]
    async with world.connection.transaction():
        await commands.start_attempts(world.connection, batch, now=world.now)
        held = await world.connection.fetch(
            "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory'"
            " AND pid = pg_backend_pid() AND mode = 'ShareLock' ORDER BY 1"
        )
    assert [row[0] for row in held] == [world.gate_id, world.gate_id + 1]
