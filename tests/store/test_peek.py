"""Candidates in dispatch order, and never a row that is not due (OP-30)."""

from store import dispatch
from tests.store.world import World


async def peeked(world: World, limit: int = 10, routes: tuple[int, ...] = ()) -> list[str]:
    wanted = [(route_id, limit) for route_id in routes or (world.route_id,)]
    return [t.task_id for t in await dispatch.peek_ready(world.connection, wanted, now=world.now)]


async def test_higher_priority_first_then_longest_available_then_oldest(world: World) -> None:
    late, early = world.at(-1000), world.at(-2000)
    items = {
        "low": world.task(priority=-100, available_at=early),
        "high late": world.task(priority=100, available_at=late),
        "high early": world.task(priority=100, available_at=early),
        "plain 1": world.task(available_at=early),
        "plain 2": world.task(available_at=early),
        "plain late": world.task(available_at=late),
    }
    await world.submit(*reversed(items.values()))
    names = {item.task_id: name for name, item in items.items()}
    assert [names[task_id] for task_id in await peeked(world)] == [
        "high early",
        "high late",
        "plain 1",
        "plain 2",
        "plain late",
        "low",
    ]


async def test_a_row_is_due_at_its_very_instant(world: World) -> None:
    [task_id] = await world.submitted(available_at=world.at(1000))
    world.wait(999)
    assert await peeked(world) == []
    world.wait(1)
    assert await peeked(world) == [task_id]


async def test_rows_due_tomorrow_never_hide_rows_due_now(world: World) -> None:
    for priority in (100, 50, 7):
        await world.submitted(40, priority=priority, available_at=world.at(86_400_000))
    due = await world.submitted(3, priority=-3)
    assert await peeked(world, limit=5) == due
    assert await peeked(world, limit=2) == due[:2]


async def test_a_limit_is_spent_over_the_levels_of_one_route(world: World) -> None:
    top = await world.submitted(2, priority=2)
    middle = await world.submitted(2, priority=1)
    await world.submitted(2)
    assert await peeked(world, limit=3) == [*top, middle[0]]
    assert await peeked(world, limit=0) == []


async def test_each_route_has_its_own_limit(world: World) -> None:
    mine = await world.submitted(3)
    other = await world.submitted(3, route_id=world.other_route_id)
    both = (world.route_id, world.other_route_id)
    assert sorted(await peeked(world, 2, both)) == sorted([*mine[:2], *other[:2]])


async def test_rows_past_their_deadline_are_no_candidates(world: World) -> None:
    await world.submitted(2, deadline_at=world.at(1000))
    await world.submitted(2, start_deadline_at=world.at(1000))
    [task_id] = await world.submitted()
    world.wait(1000)
    assert await peeked(world) == [task_id]


async def test_a_paused_gate_shows_nothing(world: World) -> None:
    [task_id] = await world.submitted()
    await world.pause()
    assert await peeked(world) == []
    await world.pause(False)
    assert await peeked(world) == [task_id]


async def test_due_routes_are_those_with_a_due_row(world: World) -> None:
    assert await dispatch.due_routes(world.connection, [world.queue_id]) == []
    # due_routes reads the database clock: these are due on any day before the year 9000
    far = world.now.replace(year=9001)
    await world.submitted(available_at=world.now.replace(year=2001), deadline_at=far)
    await world.submitted(
        route_id=world.other_route_id, available_at=world.now.replace(year=9000), deadline_at=far
    )
    found = await dispatch.due_routes(world.connection, [world.queue_id, world.id()])
    assert found == [(world.queue_id, world.route_id)]
