"""Hellos and goodbyes: one current session an instance, the newest wins (OP-13, INV-17, INV-19)."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from store import commands
from tests.store.waits import lock_waiters
from tests.store.world import DAY_MS, World


async def test_a_first_hello_binds_the_instance(world: World) -> None:
    worker = await world.worker(capacity=7)
    assert worker.outcome == commands.SessionOutcome(
        code="ok",
        epoch=1,
        draining=False,
        expires_at=world.at(DAY_MS),
        server_time=world.now,
        capacity=7,
        superseded_session_id=None,
        superseded_node_id=None,
    )


async def test_the_newest_hello_wins_and_names_whom_it_replaced(world: World) -> None:
    first = await world.worker()
    other_node = world.id()
    second = await world.worker(instance_id=first.instance_id, node_id=other_node, capacity=3)
    third = await world.worker(instance_id=first.instance_id)
    assert [w.outcome.epoch for w in (first, second, third)] == [1, 2, 3]
    assert second.outcome.superseded_session_id == first.session_id
    assert second.outcome.superseded_node_id == world.node_id
    assert third.outcome.superseded_node_id == other_node
    rows = await world.connection.fetch("SELECT close_reason FROM session ORDER BY epoch")
    assert [row[0] for row in rows] == ["superseded", "superseded", None]


@pytest.mark.parametrize(
    "change",
    [
        {"secret_hash": b"x" * 32},
        {"routes": (1, 2)},
        {"routes": ()},
        {"namespace_id": "0" * 32},
        {"queue_id": "0" * 32},
    ],
    ids=str,
)
async def test_an_instance_keeps_secret_queue_routes_and_namespace(
    world: World, change: dict[str, Any]
) -> None:
    first = await world.worker()
    hello = world.hello(instance_id=first.instance_id, **change)
    before = await world.snapshot()
    fresh = world.hello()
    refused, good = await commands.open_sessions(world.connection, [hello, fresh], now=world.now)
    assert (refused.code, refused.epoch, refused.expires_at) == ("instance_conflict", None, None)
    assert (good.code, good.epoch) == ("ok", 1)
    after = await world.snapshot()
    kept = [row for row in after["session"] if row["id"] != fresh.session_id]
    assert kept == before["session"]


async def test_a_hello_may_change_capacity_and_node(world: World) -> None:
    first = await world.worker(capacity=7)
    second = await world.worker(instance_id=first.instance_id, capacity=200, node_id=world.id())
    assert second.outcome.code == "ok"


async def test_a_session_ends_with_its_credential(world: World) -> None:
    await world.connection.execute("UPDATE credential SET expires_at = $1", world.at(5000))
    worker = await world.worker()
    assert worker.outcome.expires_at == world.at(5000)
    [task_id] = await world.submitted()
    world.wait(5000)
    assert await world.claim([(task_id, worker.session_id)]) == []


async def test_a_hello_sent_again_gets_its_own_session(world: World) -> None:
    worker = await world.worker(capacity=4)
    await world.running(worker)
    world.wait(1000)
    [again] = await commands.open_sessions(world.connection, [worker.hello], now=world.now)
    assert again == msgspec.structs.replace(worker.outcome, server_time=world.now)
    await world.worker(instance_id=worker.instance_id)
    [late] = await commands.open_sessions(world.connection, [worker.hello], now=world.now)
    assert late.code == "session_superseded"


async def test_a_session_id_belongs_to_one_instance(world: World) -> None:
    first = await world.worker()
    thief = world.hello(session_id=first.session_id)
    [outcome] = await commands.open_sessions(world.connection, [thief], now=world.now)
    assert outcome.code == "instance_conflict"
    await world.connection.execute("DELETE FROM worker_instance WHERE id = $1", thief.instance_id)


async def test_two_hellos_of_one_instance_in_a_batch(world: World) -> None:
    first = world.hello()
    second = world.hello(instance_id=first.instance_id)
    liar = world.hello(instance_id=first.instance_id, secret_hash=b"x" * 32)
    outcomes = await commands.open_sessions(world.connection, [first, second, liar], now=world.now)
    assert [(o.code, o.epoch) for o in outcomes] == [
        ("ok", 1),
        ("ok", 2),
        ("instance_conflict", None),
    ]
    assert outcomes[1].superseded_session_id == first.session_id


async def test_two_hellos_at_once_are_one_after_the_other(world: World) -> None:
    other = await world.other()
    for _ in range(20):
        hello = world.hello()
        rival = world.hello(instance_id=hello.instance_id)
        transaction = world.connection.transaction()
        await transaction.start()
        [first] = await commands.open_sessions(world.connection, [hello], now=world.now)
        racing = asyncio.create_task(commands.open_sessions(other, [rival], now=world.now))
        await lock_waiters(world.url, 1)
        await transaction.commit()
        [second] = await racing
        assert (first.epoch, second.epoch) == (1, 2)
        assert second.superseded_session_id == hello.session_id


async def test_batches_of_hellos_in_other_orders_never_deadlock(world: World) -> None:
    other = await world.other()
    instances = [world.id() for _ in range(30)]
    for _ in range(10):
        mine = [world.hello(instance_id=i) for i in instances]
        theirs = [world.hello(instance_id=i) for i in reversed(instances)]
        for outcomes in await asyncio.gather(
            commands.open_sessions(world.connection, mine, now=world.now),
            commands.open_sessions(other, theirs, now=world.now),
        ):
            assert {o.code for o in outcomes} == {"ok"}


async def test_closing_gives_unstarted_attempts_back_and_keeps_running_ones(world: World) -> None:
    worker = await world.worker()
    unstarted = await world.leased(worker, 2)
    running = await world.running(worker)
    world.wait(1000)
    routes = await world.close_session(worker.session_id)
    assert routes == [(world.queue_id, world.route_id)] * 2
    for start in unstarted:
        view = await world.view(start.task_id)
        assert (view.state, view.attempt_count, view.revision) == ("WAITING", 0, 3)
        assert view.available_at == world.now
        assert [a.state for a in await world.attempts(start.task_id)] == ["EXPIRED"]
    assert (await world.view(running.task_id)).state == "RUNNING"
    assert await world.close_session(worker.session_id) == []
    assert await world.connection.fetchval("SELECT closed_at FROM session") == world.now


async def test_closing_keeps_the_first_reason_and_time(world: World) -> None:
    worker = await world.worker()
    await world.close_session(worker.session_id, reason="socket")
    closed_at = world.now
    world.wait(1000)
    await world.close_session(worker.session_id, world.id(), reason="node_lost")
    [row] = await world.connection.fetch("SELECT closed_at, close_reason FROM session")
    assert tuple(row) == (closed_at, "socket")


async def test_a_closed_session_does_not_come_back(world: World) -> None:
    worker = await world.worker()
    await world.close_session(worker.session_id)
    outcome = await world.set_capacity(worker.session_id, 1, 5)
    assert outcome.code == "session_superseded"
    [late] = await commands.open_sessions(world.connection, [worker.hello], now=world.now)
    assert late.code == "session_superseded"


async def test_what_goes_back_past_its_deadline_fails(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker, start_deadline_at=world.at(1000))
    world.wait(1000)
    assert await world.close_session(worker.session_id) == []
    view = await world.view(start.task_id)
    assert (view.state, view.error_code) == ("FAILED", "start_deadline_exceeded")


async def test_assignments_that_never_start_are_slowed_down(world: World) -> None:
    [task_id] = await world.submitted(deadline_at=world.at(DAY_MS))
    waits = []
    for _ in range(11):
        worker = await world.worker()
        await world.granted(worker, [task_id])
        await world.close_session(worker.session_id)
        delay = (await world.view(task_id)).available_at - world.now
        waits.append(delay / timedelta(seconds=1))
        world.now += max(delay, timedelta(0))
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    worker = await world.worker()
    [start] = await world.granted(worker, [task_id])
    await world.start(start)
    await world.finish(world.failure_of(start))
    world.wait(1000)
    await world.granted(worker, [task_id])
    await world.close_session(worker.session_id)
    assert (await world.view(task_id)).available_at == world.now
