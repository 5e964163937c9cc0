"""Coming back: attempts move to the new session one by one, never longer, never revived (OP-14)."""

import pytest

from store import commands
from tests.store.world import LEASE_MS, World


async def test_a_running_attempt_moves_and_its_lease_stays_as_it_was(world: World) -> None:
    old = await world.worker()
    start = await world.running(old)
    world.wait(10_000)
    new = await world.worker(instance_id=old.instance_id)
    moved = world.again(start, session_id=new.session_id)
    assert (await world.renew(moved)).code == "resume_required"
    outcome = await world.resume(moved)
    assert (outcome.code, outcome.active, outcome.lease_state) == ("ok", True, "RUNNING")
    assert outcome.lease_until == world.at(LEASE_MS - 10_000)
    assert not outcome.settled
    repeat = await world.start(world.again(moved, message_id=start.message_id))
    assert (repeat.code, repeat.deduplicated, repeat.active) == ("ok", True, True)
    assert (await world.renew(world.again(moved))).active
    assert (await world.finish(world.finish_of(moved))).task_state == "SUCCEEDED"
    assert (await world.view(start.task_id)).revision == 4


async def test_resume_twice_is_harmless(world: World) -> None:
    old = await world.worker()
    start = await world.running(old)
    new = await world.worker(instance_id=old.instance_id)
    moved = world.again(start, session_id=new.session_id)
    assert await world.resume(moved) == await world.resume(moved)


async def test_the_old_session_has_lost_its_attempts(world: World) -> None:
    old = await world.worker()
    start = await world.running(old)
    new = await world.worker(instance_id=old.instance_id)
    await world.resume(world.again(start, session_id=new.session_id))
    for answer in (
        await world.renew(world.again(start)),
        await world.finish(world.finish_of(start)),
        await world.resume(start),
        await world.start(start),
    ):
        assert answer.code == "session_superseded"


@pytest.mark.parametrize("outcome", ["SUCCEEDED", "FAILED", "UNKNOWN"])
async def test_what_is_over_is_told_and_stays_over(world: World, outcome: str) -> None:
    old = await world.worker()
    start = await world.running(old)
    await world.finish(world.finish_of(start, outcome=outcome, error_code="code"))
    new = await world.worker(instance_id=old.instance_id)
    answer = await world.resume(world.again(start, session_id=new.session_id))
    assert (answer.code, answer.active, answer.lease_state) == ("ok", False, outcome)
    assert answer.settled


async def test_a_lapsed_lease_is_not_revived(world: World) -> None:
    old = await world.worker()
    start = await world.running(old)
    certain = await world.running(old, recovery_safety="RECONCILE_ONLY")
    new = await world.worker(instance_id=old.instance_id)
    world.wait(LEASE_MS)
    answer = await world.resume(world.again(start, session_id=new.session_id))
    assert (answer.active, answer.lease_state, answer.settled) == (False, "EXPIRED", True)
    assert (await world.view(start.task_id)).state == "WAITING"
    review = await world.resume(world.again(certain, session_id=new.session_id))
    assert (review.active, review.lease_state) == (False, "UNKNOWN")


async def test_an_intent_is_heard_at_resume(world: World) -> None:
    old = await world.worker()
    start = await world.running(old)
    await world.intend(start, "caller")
    new = await world.worker(instance_id=old.instance_id)
    moved = world.again(start, session_id=new.session_id)
    answer = await world.resume(moved)
    assert (answer.active, answer.lease_state, answer.settled) == (False, "RUNNING", False)
    assert (await world.finish(world.failure_of(moved, "cancelled"))).task_state == "CANCELLED"


async def test_unstarted_attempts_go_back_when_their_instance_says_hello_again(
    world: World,
) -> None:
    old = await world.worker()
    [start] = await world.leased(old)
    new = await world.worker(instance_id=old.instance_id)
    answer = await world.resume(world.again(start, session_id=new.session_id))
    assert (answer.active, answer.lease_state, answer.settled) == (False, "EXPIRED", True)
    assert (await world.view(start.task_id)).state == "WAITING"
    [again] = await world.granted(new, [start.task_id])
    assert again.epoch == 2


async def test_others_cannot_take_an_attempt(world: World) -> None:
    owner = await world.worker()
    start = await world.running(owner)
    other = await world.worker()
    brief = await world.worker(session_max_ms=1)
    world.wait(1)
    wrong = [
        world.again(start, session_id=other.session_id),
        world.again(start, namespace_id=world.id()),
        world.again(start, epoch=2),
        world.again(start, task_id=world.id()),
        world.again(start, attempt_id=world.id()),
    ]
    before = await world.snapshot()
    answers = [await world.resume(command) for command in wrong]
    assert {a.code for a in answers} == {"attempt_not_found"}
    for session_id, code in (
        (brief.session_id, "session_expired"),
        (world.id(), "session_superseded"),
    ):
        assert (await world.resume(world.again(start, session_id=session_id))).code == code
    assert await world.snapshot() == before


async def test_a_refusal_says_nothing_about_the_attempt(world: World) -> None:
    owner = await world.worker()
    start = await world.running(owner)
    other = await world.worker()
    foreign = await world.resume(world.again(start, session_id=other.session_id))
    unknown = await world.resume(
        world.again(start, session_id=other.session_id, attempt_id=world.id())
    )
    assert (foreign.code, foreign.lease_state, foreign.lease_until) == (
        unknown.code,
        unknown.lease_state,
        unknown.lease_until,
    )


async def test_a_batch_is_judged_attempt_by_attempt(world: World) -> None:
    old = await world.worker()
    first, second = await world.running(old), await world.running(old)
    new = await world.worker(instance_id=old.instance_id)
    batch = [
        world.again(first, session_id=new.session_id),
        world.again(second, session_id=new.session_id, epoch=9),
        world.again(first, session_id=new.session_id),
    ]
    answers = await commands.resume_attempts(world.connection, batch, now=world.now)
    assert [a.code for a in answers] == ["ok", "attempt_not_found", "again"]
