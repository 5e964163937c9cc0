"""Accepting tasks: each key once, whatever the batch and the race (R-090..R-094, INV-29)."""

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec
import pytest

from store import commands
from tests.store.waits import lock_waiters
from tests.store.world import World


async def test_a_first_submission_is_created_and_waits(world: World) -> None:
    item = world.task(priority=7, business_key="order-1", payload=b'{"a": 1.0, "a ": "\xc3\xa9"}')
    [outcome] = await world.submit(item)
    assert outcome == commands.SubmitOutcome("created", item.task_id, "WAITING", 1)
    view = await world.view(item.task_id)
    assert (view.state, view.revision, view.attempt_count) == ("WAITING", 1, 0)
    assert (view.payload, view.priority, view.business_key) == (item.payload, 7, "order-1")
    assert (view.available_at, view.created_at) == (world.now, world.now)
    assert view.deadline_at == world.now + timedelta(hours=24)


async def test_the_default_deadline_follows_available_at(world: World) -> None:
    due = world.at(7_200_000)
    [task_id] = await world.submitted(available_at=due)
    assert (await world.view(task_id)).deadline_at == due + timedelta(hours=24)


async def test_a_repeat_names_the_first_task_and_its_state_now(world: World) -> None:
    first = world.task()
    await world.submit(first)
    repeat = msgspec.structs.replace(first, task_id=world.id())
    assert await world.submit(repeat) == [
        commands.SubmitOutcome("repeat", first.task_id, "WAITING", 1)
    ]
    worker = await world.worker()
    [start] = await world.granted(worker, [first.task_id])
    assert await world.submit(repeat) == [
        commands.SubmitOutcome("repeat", first.task_id, "LEASED", 2)
    ]
    await world.start(start)
    await world.finish(world.finish_of(start))
    assert await world.submit(repeat) == [
        commands.SubmitOutcome("repeat", first.task_id, "SUCCEEDED", 4)
    ]
    assert await world.count("task") == 1


async def test_other_meaning_under_one_key_conflicts(world: World) -> None:
    first = world.task()
    await world.submit(first)
    [outcome] = await world.submit(
        msgspec.structs.replace(first, task_id=world.id(), hash=b"o" * 32)
    )
    assert outcome.code == "idempotency_conflict"
    assert await world.count("task") == await world.count("submission") == 1


async def test_a_key_belongs_to_its_namespace(world: World) -> None:
    first = world.task(key="k")
    other = world.task(key="k", namespace_id=world.id())
    assert [o.code for o in await world.submit(first, other)] == ["created", "created"]


async def test_equal_keys_in_one_batch(world: World) -> None:
    first = world.task(key="k")
    same = world.task(key="k")
    differs = world.task(key="k", hash=b"o" * 32)
    fresh = world.task()
    outcomes = await world.submit(first, same, differs, fresh)
    assert [o.code for o in outcomes] == ["created", "repeat", "idempotency_conflict", "created"]
    assert outcomes[1].task_id == first.task_id


async def test_a_batch_sent_again_answers_created_again(world: World) -> None:
    batch = [world.task() for _ in range(3)]
    first = await world.submit(*batch)
    assert await world.submit(*batch) == first
    assert await world.count("ready") == 3


LATE = {
    "start after deadline": {"start": 5000, "deadline": 4000},
    "available after start deadline": {"available": 6000, "start": 5000, "deadline": 9000},
    "available after deadline": {"available": 6000, "deadline": 5000},
    "deadline in the past": {"available": -9000, "deadline": -1},
    "deadline now": {"available": -9000, "deadline": 0},
    "start deadline in the past": {"available": -9000, "start": -1, "deadline": 9000},
}


@pytest.mark.parametrize("case", LATE)
async def test_deadlines_must_lie_in_order_and_ahead(world: World, case: str) -> None:
    times = {name: world.at(ms) for name, ms in LATE[case].items()}
    item = world.task(
        available_at=times.get("available"),
        start_deadline_at=times.get("start"),
        deadline_at=times["deadline"],
    )
    [outcome, fresh] = await world.submit(item, world.task())
    assert (outcome.code, outcome.task_id) == ("deadline_order", None)
    assert fresh.code == "created"
    assert await world.count("submission") == 1


async def test_a_deadline_leaves_room_in_the_years_that_can_be_written(world: World) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    items = [world.task(available_at=last), world.task(deadline_at=last)]
    assert [o.code for o in await world.submit(*items)] == ["deadline_order", "deadline_order"]


async def test_a_refused_item_does_not_take_its_key(world: World) -> None:
    refused = world.task(key="k", deadline_at=world.at(-1), hash=b"o" * 32)
    good = world.task(key="k")
    assert [o.code for o in await world.submit(refused, good)] == ["deadline_order", "created"]


async def test_a_repeat_is_recognised_after_its_deadline(world: World) -> None:
    item = world.task(deadline_at=world.at(1000))
    await world.submit(item)
    world.wait(5000)
    [outcome] = await world.submit(msgspec.structs.replace(item, task_id=world.id()))
    assert (outcome.code, outcome.task_id) == ("repeat", item.task_id)


async def test_two_firsts_at_once_make_one_task(world: World) -> None:
    other = await world.other()
    for _ in range(20):
        first = world.task()
        second = msgspec.structs.replace(first, task_id=world.id())
        transaction = world.connection.transaction()
        await transaction.start()
        [mine] = await world.submit(first)
        theirs = asyncio.create_task(commands.submit_tasks(other, [second], now=world.now))
        await lock_waiters(world.url, 1)
        await transaction.commit()
        assert mine.code == "created"
        assert await theirs == [commands.SubmitOutcome("repeat", first.task_id, "WAITING", 1)]
        world.wait(1000)


async def test_a_first_that_rolls_back_leaves_the_key_to_the_other(world: World) -> None:
    other = await world.other()
    first = world.task()
    second = msgspec.structs.replace(first, task_id=world.id())
    transaction = world.connection.transaction()
    await transaction.start()
    await world.submit(first)
    theirs = asyncio.create_task(commands.submit_tasks(other, [second], now=world.now))
    await lock_waiters(world.url, 1)
    await transaction.rollback()
    assert (await theirs)[0].code == "created"


async def test_batches_with_the_same_keys_in_other_orders_never_deadlock(world: World) -> None:
    other = await world.other()
    for turn in range(30):
        keys = [f"{turn}-{n}" for n in range(40)]
        mine = [world.task(key=key) for key in keys]
        theirs = [world.task(key=key) for key in reversed(keys)]
        outcomes = await asyncio.gather(
            world.submit(*mine), commands.submit_tasks(other, theirs, now=world.now)
        )
        by_key = sorted(
            (item.key, outcome.code)
            for items, batch in zip((mine, theirs), outcomes, strict=True)
            for item, outcome in zip(items, batch, strict=True)
        )
        assert by_key == sorted((key, code) for key in keys for code in ("created", "repeat"))


async def test_a_task_id_used_twice_fails_the_whole_batch(world: World) -> None:
    first = world.task()
    await world.submit(first)
    with pytest.raises(asyncpg.UniqueViolationError):
        await world.submit(world.task(), world.task(task_id=first.task_id))
    assert await world.count("submission") == 1
