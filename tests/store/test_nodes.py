"""Nodes that beat, nodes that fall silent, and what becomes of their sessions (section 7)."""

from store import dispatch
from tests.store.world import World


async def beat(world: World, node_id: str, draining: bool = False) -> bool:
    return await dispatch.beat_node(world.connection, node_id, "gateway", draining, now=world.now)


async def reap(world: World) -> tuple[list[str], list[tuple[str, int]]]:
    return await dispatch.reap_nodes(world.connection, 6000, now=world.now)


async def test_a_first_beat_is_not_known_and_the_next_is(world: World) -> None:
    node_id = world.id()
    assert await beat(world, node_id) is False
    assert await beat(world, node_id, draining=True) is True
    assert await world.connection.fetchval("SELECT draining FROM node WHERE id = $1", node_id)


async def test_a_silent_node_is_given_up_once_and_its_sessions_closed(world: World) -> None:
    lively = world.id()
    silent, other = await world.worker(), await world.worker(node_id=lively)
    [unstarted] = await world.leased(silent)
    running = await world.running(silent)
    [kept] = await world.leased(other)
    world.wait(6000)
    await beat(world, lively)
    assert await reap(world) == ([], [])
    world.wait(1)
    nodes, routes = await reap(world)
    assert (nodes, routes) == ([world.node_id], [(world.queue_id, world.route_id)])
    assert await reap(world) == ([], [])
    assert (await world.view(unstarted.task_id)).state == "WAITING"
    assert (await world.view(running.task_id)).state == "RUNNING"
    assert (await world.view(kept.task_id)).state == "LEASED"
    rows = await world.connection.fetch("SELECT id FROM session WHERE closed_at IS NULL")
    assert [row[0] for row in rows] == [other.session_id]
    assert await beat(world, world.node_id) is False


async def test_sessions_of_a_node_nobody_knows_are_closed_after_a_while(world: World) -> None:
    await world.worker(node_id=world.id())
    world.wait(6000)
    await beat(world, world.node_id)
    assert await reap(world) == ([], [])
    world.wait(1)
    await beat(world, world.node_id)
    await reap(world)
    reason = await world.connection.fetchval("SELECT close_reason FROM session")
    assert reason == "node_lost"


async def test_a_node_that_leaves_is_gone_at_once(world: World) -> None:
    await dispatch.leave_node(world.connection, world.node_id)
    assert await beat(world, world.node_id) is False
