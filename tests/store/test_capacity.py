"""Capacity: a level with a sequence, and a drain that cannot be taken back (OP-29, R-024)."""

from store import commands, dispatch
from store.commands import CapacityOutcome, SetCapacity
from tests.store.world import World

UINT64_MAX = 18_446_744_073_709_551_615


async def test_a_higher_sequence_overwrites(world: World) -> None:
    worker = await world.worker(capacity=10)
    outcome = await world.set_capacity(worker.session_id, 5, 3)
    assert outcome == CapacityOutcome("ok", False, 1, worker.outcome.expires_at, world.now, 3)
    task_ids = await world.submitted(5)
    assert len(await world.claim([(t, worker.session_id) for t in task_ids])) == 3


async def test_an_equal_sequence_confirms_only_an_equal_body(world: World) -> None:
    worker = await world.worker()
    first = await world.set_capacity(worker.session_id, 5, 3)
    assert await world.set_capacity(worker.session_id, 5, 3) == first
    before = await world.snapshot()
    for capacity, drain in ((4, False), (3, True)):
        outcome = await world.set_capacity(worker.session_id, 5, capacity, drain)
        assert (outcome.code, outcome.capacity) == ("stale_sequence", 3)
    assert await world.snapshot() == before


async def test_a_lower_sequence_changes_nothing(world: World) -> None:
    worker = await world.worker()
    await world.set_capacity(worker.session_id, 5, 3)
    before = await world.snapshot()
    outcome = await world.set_capacity(worker.session_id, 4, 9, drain=True)
    assert (outcome.code, outcome.draining) == ("stale_sequence", False)
    assert await world.snapshot() == before


async def test_no_capacity_counts_for_more_than_the_quota(world: World) -> None:
    """OP-29, R-116: at hello and at an update; what was declared still tells repeats apart."""
    await world.connection.execute("UPDATE credential SET capacity_max = 2")
    worker = await world.worker(capacity=10)
    assert worker.outcome.capacity == 2
    task_ids = await world.submitted(5)
    assert len(await world.claim([(t, worker.session_id) for t in task_ids])) == 2
    assert (await world.set_capacity(worker.session_id, 1, 9)).capacity == 2
    again = await world.set_capacity(worker.session_id, 1, 9)
    assert (again.code, again.capacity) == ("ok", 2)
    assert (await world.set_capacity(worker.session_id, 1, 2)).code == "stale_sequence"
    assert await world.claim([(t, worker.session_id) for t in task_ids]) == []
    assert (await world.set_capacity(worker.session_id, 2, 1)).capacity == 1
    sessions = await dispatch.open_session_levels(world.connection, [world.queue_id], now=world.now)
    assert [(level.session_id, level.free) for level in sessions] == [(worker.session_id, 0)]


async def test_sequences_reach_the_largest_uint64(world: World) -> None:
    worker = await world.worker()
    for sequence in (1, 2**53 + 1, 2**63, UINT64_MAX - 1, UINT64_MAX):
        assert (await world.set_capacity(worker.session_id, sequence, 1)).code == "ok"
    outcome = await world.set_capacity(worker.session_id, UINT64_MAX - 1, 1)
    assert outcome.code == "stale_sequence"


async def test_lowering_revokes_nothing(world: World) -> None:
    worker = await world.worker()
    starts = await world.leased(worker, 3)
    await world.set_capacity(worker.session_id, 1, 0)
    for start in starts:
        assert (await world.start(start)).active


async def test_drain_sticks_to_the_instance(world: World) -> None:
    worker = await world.worker()
    running = await world.running(worker)
    assert (await world.set_capacity(worker.session_id, 1, 5, drain=True)).draining
    outcome = await world.set_capacity(worker.session_id, 2, 6, drain=False)
    assert (outcome.code, outcome.draining, outcome.capacity) == ("ok", True, 6)
    again = await world.worker(instance_id=worker.instance_id)
    assert again.outcome.draining is True
    [task_id] = await world.submitted()
    assert await world.claim([(task_id, again.session_id)]) == []
    moved = world.again(running, session_id=again.session_id)
    assert (await world.resume(moved)).active
    assert (await world.finish(world.finish_of(moved))).task_state == "SUCCEEDED"


async def test_sequences_begin_anew_with_each_session(world: World) -> None:
    worker = await world.worker()
    await world.set_capacity(worker.session_id, 9, 3)
    again = await world.worker(instance_id=worker.instance_id)
    assert (await world.set_capacity(again.session_id, 1, 4)).code == "ok"
    assert (await world.set_capacity(worker.session_id, 10, 5)).code == "session_superseded"


async def test_an_expired_session_is_told_so(world: World) -> None:
    worker = await world.worker(session_max_ms=1000)
    world.wait(1000)
    assert (await world.set_capacity(worker.session_id, 1, 4)).code == "session_expired"
    unknown = await world.set_capacity(world.id(), 1, 4)
    assert (unknown.code, unknown.draining, unknown.epoch) == ("session_superseded", None, None)


async def test_a_batch_goes_in_order(world: World) -> None:
    first, second = await world.worker(), await world.worker()
    batch = [
        SetCapacity(first.session_id, 2, 2, False),
        SetCapacity(second.session_id, 1, 7, False),
        SetCapacity(first.session_id, 1, 1, False),
        SetCapacity(first.session_id, 3, 3, True),
    ]
    outcomes = await commands.set_capacity(world.connection, batch, now=world.now)
    assert [(o.code, o.capacity, o.draining) for o in outcomes] == [
        ("ok", 2, False),
        ("ok", 7, False),
        ("stale_sequence", 2, False),
        ("ok", 3, True),
    ]
