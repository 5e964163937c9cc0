"""History by days: new rows land in their day, and looking up an id reads one day's partition."""

import asyncio

import asyncpg
import pytest

from dispatcher.assign import STORE_ERRORS
from orbit_sdk.protocol.ids import new_id
from store import dispatch, queries
from tests.store.world import DAY_MS, LEASE_MS, START, World


@pytest.fixture
async def own_world(database_url: str) -> World:
    """A world in a database of its own, since partitions stay."""
    return await World.create(database_url)


async def partitions(world: World, table: str = "task") -> dict[str, int]:
    rows = await world.connection.fetch(
        f"SELECT tableoid::regclass::text AS name, count(*) FROM {table} GROUP BY 1"
    )
    return {row[0]: row[1] for row in rows}


async def test_rows_land_in_the_partition_of_their_day(own_world: World) -> None:
    world = own_world
    assert await dispatch.ensure_partitions(world.connection, 3, now=world.now) == 6
    assert await dispatch.ensure_partitions(world.connection, 3, now=world.now) == 0
    world.wait(DAY_MS)
    assert await dispatch.ensure_partitions(world.connection, 3, now=world.now) == 2
    midnight = START.replace(hour=0, minute=0)
    names = {}
    for moment in (-0.001, 0, 86_399.999, 86_400, 86_400 * 4 - 0.001, 86_400 * 4):
        at_ms = round((midnight.timestamp() + moment) * 1000)
        await world.submit(world.task(task_id=new_id(at_ms, bytes(10))))
        names[moment] = set(await partitions(world))
    assert await partitions(world) == {
        "task_default": 2,
        "task_p20310517": 2,
        "task_p20310518": 1,
        "task_p20310520": 1,
    }


async def test_attempts_land_in_the_partition_of_their_grant(own_world: World) -> None:
    world = own_world
    await dispatch.ensure_partitions(world.connection, 2, now=world.now)
    await world.ended(await world.worker())
    assert await partitions(world, "attempt") == {"attempt_p20310517": 1}


async def test_a_day_that_has_rows_already_is_left_to_the_default(own_world: World) -> None:
    world = own_world
    await world.submitted()
    assert await dispatch.ensure_partitions(world.connection, 1, now=world.now) == 1
    assert await partitions(world) == {"task_default": 1}
    assert await dispatch.ensure_partitions(world.connection, 2, now=world.now) == 2


async def test_a_life_crosses_midnight(own_world: World) -> None:
    world = own_world
    await dispatch.ensure_partitions(world.connection, 3, now=world.now)
    worker = await world.worker()
    [task_id] = await world.submitted(deadline_at=world.at(3 * DAY_MS))
    world.wait(DAY_MS - LEASE_MS)
    worker = await world.worker()
    [start] = await world.granted(worker, [task_id])
    await world.start(start)
    await world.finish(world.finish_of(start))
    assert await partitions(world) == {"task_p20310517": 1}
    assert await partitions(world, "attempt") == {"attempt_p20310518": 1}
    assert (await world.view(task_id)).result == b'{"sent":true}'


async def test_looking_up_an_id_reads_one_partition(own_world: World) -> None:
    world = own_world
    await dispatch.ensure_partitions(world.connection, 10, now=world.now)
    [task_id] = await world.submitted()
    reader = await world.other()
    async with reader.transaction():
        assert await queries.get_task(reader, world.namespace_id, task_id)
        rows = await reader.fetch(
            "SELECT relname FROM pg_stat_xact_user_tables"
            " WHERE relname LIKE 'task%' AND idx_scan > 0"
        )
    assert [row[0] for row in rows] == ["task_p20310517"]


async def test_a_long_reader_costs_nobody_more_than_a_moment(own_world: World) -> None:
    """INV-20, INV-24: a dump reads for an hour; a partition wants its table alone."""
    world = own_world
    start = await world.running(await world.worker())
    reader = await world.other()
    maker = await world.other()
    async with reader.transaction():
        await reader.fetch("SELECT count(*) FROM task")
        await reader.fetch("SELECT count(*) FROM attempt")
        # Long before the 10 s for which everybody else would stand in its queue.
        with pytest.raises(asyncpg.LockNotAvailableError):
            async with asyncio.timeout(5):
                await dispatch.ensure_partitions(maker, 3, now=world.now)
        assert (await world.finish(world.finish_of(start))).task_state == "SUCCEEDED"
    assert await dispatch.ensure_partitions(maker, 3, now=world.now) > 0
    assert issubclass(asyncpg.LockNotAvailableError, STORE_ERRORS), "its loop tries again"
