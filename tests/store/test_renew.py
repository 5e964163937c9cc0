"""Renewals: each new message extends once, repeats show the same receipt (R-125, OP-12, OP-21)."""

import msgspec

from store import commands, dispatch
from tests.store.world import LEASE_MS, World


async def test_a_renewal_extends_from_now(world: World) -> None:
    start = await world.running(await world.worker())
    world.wait(10_000)
    outcome = await world.renew(world.again(start))
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
    assert (await world.view(start.task_id)).revision == 3


async def test_an_unstarted_lease_is_renewed_up_to_its_start_deadline(world: World) -> None:
    [start] = await world.leased(await world.worker(), start_deadline_at=world.at(40_000))
    world.wait(5_000)
    first = await world.renew(world.again(start))
    assert (first.task_state, first.lease_until) == ("LEASED", world.at(LEASE_MS))
    world.wait(20_000)
    assert (await world.renew(world.again(start))).lease_until == world.at(15_000)


async def test_a_renewal_never_passes_the_attempt_deadline(world: World) -> None:
    start = await world.running(await world.worker(), attempt_timeout_ms=45_000)
    world.wait(20_000)
    assert (await world.renew(world.again(start))).lease_until == world.at(25_000)
    world.wait(24_999)
    assert (await world.renew(world.again(start))).lease_until == world.at(1)
    world.wait(1)
    outcome = await world.renew(world.again(start))
    assert (outcome.disposition, outcome.attempt_state) == ("EVIDENCE_ONLY", "EXPIRED")


async def test_a_repeat_shows_its_receipt_beside_the_lease_of_now(world: World) -> None:
    start = await world.running(await world.worker())
    renewal = world.again(start)
    first = await world.renew(renewal)
    world.wait(5_000)
    later = await world.renew(world.again(start))
    world.wait(1_000)
    repeat = await world.renew(renewal)
    assert repeat == msgspec.structs.replace(
        first, deduplicated=True, lease_until=later.lease_until, server_time=world.now
    )
    lease_until = await world.connection.fetchval("SELECT lease_until FROM lease")
    assert lease_until == later.lease_until


async def test_a_repeat_shows_its_receipt_after_the_attempt_is_over(world: World) -> None:
    start = await world.running(await world.worker())
    renewal = world.again(start)
    first = await world.renew(renewal)
    finished = await world.finish(world.finish_of(start))
    repeat = await world.renew(renewal)
    assert repeat == msgspec.structs.replace(
        first,
        deduplicated=True,
        active=False,
        lease_state="SUCCEEDED",
        lease_until=finished.lease_until,
        settled=True,
    )
    assert await world.count("evidence") == 0


async def test_a_renewal_of_an_attempt_that_is_over_is_evidence(world: World) -> None:
    start = await world.ended(await world.worker())
    late = world.again(start)
    outcome = await world.renew(late)
    assert (outcome.disposition, outcome.task_state) == ("EVIDENCE_ONLY", "WAITING")
    assert (outcome.active, outcome.lease_state) == (False, "EXPIRED")
    assert not outcome.deduplicated
    assert (await world.renew(late)).deduplicated
    assert await world.count("evidence") == 1


async def test_under_an_intent_nothing_extends_and_the_answer_is_inactive(world: World) -> None:
    start = await world.running(await world.worker())
    applied = world.again(start)
    first = await world.renew(applied)
    world.wait(1_000)
    await world.intend(start, "caller")
    window = world.at(LEASE_MS)
    for _ in range(2):
        world.wait(1_000)
        outcome = await world.renew(world.again(start))
        assert (outcome.code, outcome.disposition) == ("ok", "EVIDENCE_ONLY")
        assert (outcome.active, outcome.settled) == (False, False)
        assert (outcome.lease_state, outcome.lease_until) == ("RUNNING", window)
    repeat = await world.renew(applied)
    assert (repeat.disposition, repeat.active, repeat.deduplicated) == ("APPLIED", False, True)
    assert repeat.receipt_lease_until == first.receipt_lease_until


async def test_who_may_not_renew(world: World) -> None:
    worker = await world.worker()
    start = await world.running(worker)
    await world.renew(world.again(start))
    stranger = await world.worker()
    brief = await world.worker(session_max_ms=1)
    world.wait(1)
    cases = {
        "resume_required": world.again(start, session_id=stranger.session_id),
        "session_expired": world.again(start, session_id=brief.session_id),
        "session_superseded": world.again(start, session_id=world.id()),
        "attempt_not_found": world.again(start, epoch=2),
    }
    before = await world.snapshot()
    for code, command in cases.items():
        assert (await world.renew(command)).code == code
    assert (await world.renew(world.again(start, namespace_id=world.id()))).code == (
        "attempt_not_found"
    )
    assert await world.snapshot() == before


async def test_a_batch_answers_each_of_its_own(world: World) -> None:
    worker = await world.worker()
    starts = [await world.running(worker) for _ in range(3)]
    batch = [
        world.again(starts[0]),
        world.again(starts[1], epoch=7),
        world.again(starts[0]),
        world.again(starts[2]),
    ]
    outcomes = await commands.renew_leases(world.connection, batch, now=world.now)
    assert [o.code for o in outcomes] == ["ok", "attempt_not_found", "again", "ok"]


async def test_old_renew_receipts_are_forgotten_in_portions(world: World) -> None:
    worker = await world.worker()
    over = await world.ended(worker)
    await world.renew(world.again(over))
    start = await world.running(worker)
    for _ in range(5):
        await world.renew(world.again(start))
    world.wait(600_000)
    assert await dispatch.prune_receipts(world.connection, 600_000, 10, now=world.now) == 0
    world.wait(1)
    portions = [
        await dispatch.prune_receipts(world.connection, 600_000, 2, now=world.now) for _ in range(4)
    ]
    assert portions == [2, 2, 2, 0], "whatever they answered, so that none pile up (INV-37)"
    assert await world.count("receipt") == 0
