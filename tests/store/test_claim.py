"""Grants: only what can be proven, never beyond capacity (INV-1, INV-12, INV-15, INV-17)."""

import asyncio
from datetime import timedelta

import msgspec

from orbit_sdk.protocol.times import parse_time
from store import commands, dispatch
from store.dispatch import ClaimPair
from tests.store.waits import lock_waiters
from tests.store.world import LEASE_MS, START, World


async def test_a_claim_moves_a_task_from_ready_to_lease(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted(priority=5, business_key="order-1", payload=b'{"n": 1.50}')
    world.wait(100)
    [won] = await world.claim([(task_id, worker.session_id)])
    assert (won.task_id, won.session_id, won.node_id) == (task_id, worker.session_id, world.node_id)
    assert won.epoch == 1
    assert parse_time(won.lease_until) == world.at(LEASE_MS)
    assert parse_time(won.server_time) == world.now
    task = msgspec.json.decode(won.task)
    assert b'"payload":{"n": 1.50}' in won.task
    assert (task["id"], task["state"], task["revision"]) == (task_id, "LEASED", "2")
    assert (task["attempt_count"], task["business_key"]) == (1, "order-1")
    assert parse_time(task["created_at"]) == START
    assert not {"result", "cancel_requested_at", "completed_at"} & task.keys()
    view = await world.view(task_id)
    assert (view.state, view.revision, view.attempt_count) == ("LEASED", 2, 1)
    assert await world.count("ready") == 0


async def test_a_lease_ends_no_later_than_the_deadlines(world: World) -> None:
    worker = await world.worker()
    ends = (
        {"start_deadline_at": world.at(1000)},
        {"deadline_at": world.at(2000)},
        {"deadline_at": world.at(9_000_000)},
    )
    tasks = [world.task(**end) for end in ends]
    await world.submit(*tasks)
    won = await world.claim([(t.task_id, worker.session_id) for t in tasks])
    assert [parse_time(w.lease_until) - world.now for w in won] == [
        timedelta(seconds=1),
        timedelta(seconds=2),
        timedelta(milliseconds=LEASE_MS),
    ]


async def test_what_cannot_be_proven_is_not_granted(world: World) -> None:
    worker = await world.worker()
    session_id = worker.session_id
    closed = await world.worker()
    await world.close_session(closed.session_id)
    expired = await world.worker(session_max_ms=1)
    superseded = await world.worker()
    await world.worker(instance_id=superseded.instance_id)
    drained = await world.worker()
    await world.set_capacity(drained.session_id, 1, 10, drain=True)
    full = await world.worker(capacity=1)
    await world.leased(full)
    none = await world.worker()
    await world.set_capacity(none.session_id, 1, 0)
    [good, *rest] = await world.submitted(10)
    [wrong_route] = await world.submitted(route_id=world.other_route_id)
    [tomorrow] = await world.submitted(available_at=world.at(86_400_000))
    [over] = await world.submitted(deadline_at=world.at(2))
    world.wait(2)
    sessions = [closed, expired, superseded, drained, full, none]
    refused = [
        *((task_id, s.session_id) for task_id, s in zip(rest, sessions, strict=False)),
        (rest[-1], world.id()),  # no such session
        (world.id(), session_id),  # no such task
        (wrong_route, session_id),
        (tomorrow, session_id),
        (over, session_id),
    ]
    before = await world.snapshot()
    for pair in refused:
        assert await world.claim([pair]) == []
    assert await world.snapshot() == before
    won = await world.claim([*refused, (good, session_id)])
    assert [w.task_id for w in won] == [good]


async def test_another_queue_is_not_served(world: World) -> None:
    queue_id, gate_id = world.id(), world.gate_id
    await world.connection.execute(
        "INSERT INTO queue (id, namespace_id, name, gate_id) VALUES ($1, $2, 'other', $3)",
        queue_id,
        world.namespace_id,
        gate_id,
    )
    worker = await world.worker()
    [task_id] = await world.submitted(queue_id=queue_id)
    assert await world.claim([(task_id, worker.session_id)]) == []


async def test_a_paused_gate_grants_nothing(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted()
    await world.pause()
    assert await world.claim([(task_id, worker.session_id)]) == []
    await world.pause(False)
    assert len(await world.claim([(task_id, worker.session_id)])) == 1


async def test_one_task_twice_in_a_batch_is_granted_once(world: World) -> None:
    first, second = await world.worker(), await world.worker()
    [task_id] = await world.submitted()
    won = await world.claim([(task_id, s.session_id) for s in (first, second, first)])
    assert [w.session_id for w in won] == [first.session_id]


async def test_a_batch_stops_at_capacity_in_the_order_asked(world: World) -> None:
    worker = await world.worker(capacity=3)
    other = await world.worker(capacity=1)
    task_ids = await world.submitted(8)
    sessions = [worker, worker, other, worker, worker, other, other, worker]
    pairs = [(t, s.session_id) for t, s in zip(task_ids, sessions, strict=True)]
    won = await world.claim(pairs)
    assert [w.task_id for w in won] == [task_ids[i] for i in (0, 1, 2, 3)]


async def test_attempts_of_older_sessions_count_against_capacity(world: World) -> None:
    old = await world.worker(capacity=2)
    await world.running(old)
    new = await world.worker(instance_id=old.instance_id, capacity=2)
    won = await world.claim([(t, new.session_id) for t in await world.submitted(3)])
    assert len(won) == 1


async def test_a_refused_task_does_not_use_a_slot(world: World) -> None:
    worker = await world.worker(capacity=1)
    [tomorrow] = await world.submitted(available_at=world.at(86_400_000))
    [today] = await world.submitted()
    won = await world.claim([(t, worker.session_id) for t in (tomorrow, today)])
    assert [w.task_id for w in won] == [today]


async def test_two_claims_at_once_never_pass_capacity(world: World) -> None:
    other = await world.other()
    for _ in range(20):
        worker = await world.worker(capacity=3)
        mine = await world.submitted(2)
        theirs = [ClaimPair(t, worker.session_id, world.id()) for t in await world.submitted(2)]
        transaction = world.connection.transaction()
        await transaction.start()
        won = await world.claim([(t, worker.session_id) for t in mine])
        second = asyncio.create_task(dispatch.claim_tasks(other, theirs, LEASE_MS, now=world.now))
        await lock_waiters(world.url, 1)
        await transaction.commit()
        assert [len(won), len(await second)] == [2, 1]


async def test_two_dispatchers_on_one_task_make_one_lease(world: World) -> None:
    other = await world.other()
    for _ in range(20):
        first, second = await world.worker(), await world.worker()
        [task_id] = await world.submitted()
        transaction = world.connection.transaction()
        await transaction.start()
        assert len(await world.claim([(task_id, first.session_id)])) == 1
        pair = ClaimPair(task_id, second.session_id, world.id())
        assert await dispatch.claim_tasks(other, [pair], LEASE_MS, now=world.now) == []
        await transaction.commit()
        assert await dispatch.claim_tasks(other, [pair], LEASE_MS, now=world.now) == []


async def test_a_grant_does_not_wait_for_the_disk_and_a_start_does(world: World) -> None:
    worker = await world.worker()
    async with world.connection.transaction():
        [start] = await world.leased(worker)
        assert await world.connection.fetchval("SHOW synchronous_commit") == "off"
    async with world.connection.transaction():
        await world.start(start)
        assert await world.connection.fetchval("SHOW synchronous_commit") == "on"


async def test_a_large_payload_stays_away_and_can_be_loaded(world: World) -> None:
    worker = await world.worker()
    small = b'"' + b"x" * (dispatch.INLINE_PAYLOAD_BYTES_MAX - 2) + b'"'
    large = small[:-1] + b'x"'
    tasks = [world.task(payload=small), world.task(payload=large)]
    await world.submit(*tasks)
    with_small, with_large = await world.claim([(t.task_id, worker.session_id) for t in tasks])
    assert small in with_small.task
    assert with_large.task == b""
    loaded = await dispatch.load_assignments(
        world.connection, [with_small.attempt_id, with_large.attempt_id, world.id()], now=world.now
    )
    by_task = {a.task_id: a for a in loaded}
    assert by_task[with_small.task_id] == with_small
    assert large in by_task[with_large.task_id].task


async def test_only_unstarted_leases_are_loaded(world: World) -> None:
    start = await world.running(await world.worker())
    assert await dispatch.load_assignments(world.connection, [start.attempt_id]) == []


async def test_levels_say_how_many_more_a_session_may_hold(world: World) -> None:
    worker = await world.worker(capacity=3)
    await world.running(worker)
    drained = await world.worker()
    await world.set_capacity(drained.session_id, 1, 5, drain=True)
    over = await world.worker(capacity=2)
    await world.leased(over, 2)
    await world.set_capacity(over.session_id, 1, 1)
    await world.worker(session_max_ms=1)
    await world.close_session((await world.worker()).session_id)
    lost = await world.worker(node_id=world.id())
    world.wait(1)
    levels = await dispatch.open_session_levels(world.connection, [world.queue_id], now=world.now)
    free = {level.session_id: level.free for level in levels}
    assert free == {worker.session_id: 2, drained.session_id: 0, over.session_id: 0}
    named = await dispatch.load_sessions(
        world.connection, [worker.session_id, lost.session_id, world.id()], now=world.now
    )
    assert named == [level for level in levels if level.session_id == worker.session_id]
    assert named[0].routes == (world.route_id,)


async def test_a_draining_node_has_no_free_slots(world: World) -> None:
    worker = await world.worker()
    await dispatch.beat_node(world.connection, world.node_id, "gateway", True, now=world.now)
    [level] = await dispatch.load_sessions(world.connection, [worker.session_id], now=world.now)
    assert level.free == 0


async def test_unsent_leases_are_old_unstarted_ones_of_the_node(world: World) -> None:
    # unsent_leases reads the database clock, so this world lives in its present
    world.now = await world.connection.fetchval("SELECT clock_timestamp()") - timedelta(seconds=5)
    worker = await world.worker()
    elsewhere = await world.worker(node_id=world.id())
    [start] = await world.leased(worker)
    await world.leased(elsewhere)
    await world.running(worker)
    found = await dispatch.unsent_leases(world.connection, world.node_id, 4000, 60_000)
    assert found == [(start.attempt_id, worker.session_id)]
    for older, younger in ((60_000, 90_000), (1000, 4000)):
        assert not await dispatch.unsent_leases(world.connection, world.node_id, older, younger)


async def test_active_queues_have_an_open_session(world: World) -> None:
    assert await dispatch.active_queues(world.connection) == []
    worker = await world.worker()
    assert await dispatch.active_queues(world.connection) == [world.queue_id]
    await commands.close_sessions(
        world.connection, [commands.CloseSession(worker.session_id, "gone")]
    )
    assert await dispatch.active_queues(world.connection) == []
