"""Reads, and the rare writes of management."""

import asyncio
import math
from datetime import timedelta
from itertools import pairwise

from store import queries
from tests.store.world import World


async def test_a_credential_is_judged_by_the_database_clock(world: World) -> None:
    key_id = "0" * 16
    found = await queries.find_credential(world.connection, key_id)
    assert found is not None
    assert (found.namespace_id, found.scopes) == (world.namespace_id, frozenset({"work"}))
    assert (found.queue_ids, found.left_s, found.revoked) == (None, math.inf, False)
    await world.connection.execute(
        "UPDATE credential SET expires_at = clock_timestamp(), revoked_at = clock_timestamp(),"
        " queue_ids = ARRAY[$1::uuid]",
        world.queue_id,
    )
    found = await queries.find_credential(world.connection, key_id)
    assert found is not None
    assert (found.queue_ids, found.left_s <= 0, found.revoked) == (
        frozenset({world.queue_id}),
        True,
        True,
    )
    assert await queries.find_credential(world.connection, "f" * 16) is None


async def test_an_app_of_a_known_name_keeps_its_namespace(world: World) -> None:
    namespace_id = await queries.create_app(
        world.connection, world.id(), "shop", [(world.id(), "sms")], ("1" * 16, b"t" * 32, [])
    )
    assert namespace_id == world.namespace_id
    names = [q.name for q in await queries.list_queues(world.connection, namespace_id)]
    assert names == ["mail", "sms"]


async def test_a_queue_is_found_by_name_and_by_id_in_its_namespace(world: World) -> None:
    by_name = await queries.find_queue(world.connection, world.namespace_id, "mail")
    by_id = await queries.find_queue(world.connection, world.namespace_id, world.queue_id)
    assert by_name == by_id is not None
    assert await queries.find_queue(world.connection, world.id(), "mail") is None
    await world.pause()
    paused = await queries.find_queue(world.connection, world.namespace_id, "mail")
    assert paused is not None
    assert paused.paused


async def test_two_makers_of_one_queue_make_one(world: World) -> None:
    other = await world.other()
    for turn in range(10):
        (first, made), (second, made_too) = await asyncio.gather(
            queries.create_queue(world.connection, world.namespace_id, world.id(), f"q{turn}"),
            queries.create_queue(other, world.namespace_id, world.id(), f"q{turn}"),
        )
        assert first == second
        assert [made, made_too].count(True) == 1


async def test_routes_are_made_once_and_answered_in_order(world: World) -> None:
    other = await world.other()
    triples = [("a", "1", "1"), ("b", "1", "1"), ("a", "1", "1"), ("send", "1", "1")]
    mine, theirs = await asyncio.gather(
        queries.intern_routes(world.connection, world.queue_id, triples),
        queries.intern_routes(other, world.queue_id, triples[::-1]),
    )
    assert mine == theirs[::-1]
    assert mine[0] == mine[2]
    assert mine[3] == world.route_id
    assert await world.count("route") == 4


async def test_another_namespace_sees_no_task(world: World) -> None:
    start = await world.running(await world.worker())
    assert await queries.get_task(world.connection, world.id(), start.task_id) is None
    assert await queries.list_attempts(world.connection, world.id(), start.task_id, 0, 9) == []


async def test_attempts_are_paged_by_epoch_running_one_included(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted(max_attempts=5, initial_delay_ms=0)
    for _ in range(3):
        [start] = await world.granted(worker, [task_id])
        await world.start(start)
        await world.finish(world.failure_of(start))
    [start] = await world.granted(worker, [task_id])

    async def page(after: int) -> list[tuple[int, str]]:
        found = await queries.list_attempts(world.connection, world.namespace_id, task_id, after, 2)
        return [(attempt.epoch, attempt.state) for attempt in found]

    assert await page(0) == [(1, "FAILED"), (2, "FAILED")]
    assert await page(2) == [(3, "FAILED"), (4, "LEASED")]
    assert await page(4) == []


async def test_updated_at_follows_the_life(world: World) -> None:
    worker = await world.worker()
    [task_id] = await world.submitted(initial_delay_ms=0)
    seen = [(await world.view(task_id)).updated_at]
    world.wait(1000)
    [start] = await world.granted(worker, [task_id])
    seen.append((await world.view(task_id)).updated_at)
    world.wait(1000)
    await world.start(start)
    seen.append((await world.view(task_id)).updated_at)
    world.wait(1000)
    await world.finish(world.failure_of(start))
    world.wait(1000)
    [start] = await world.granted(worker, [task_id])
    await world.start(start)
    await world.finish(world.finish_of(start))
    seen.append((await world.view(task_id)).updated_at)
    steps = [b - a for a, b in pairwise(seen)]
    assert steps == [timedelta(seconds=1), timedelta(seconds=1), timedelta(seconds=2)]
