"""The last question of every race: is each accepted task settled, and does every invariant hold?"""

from datetime import timedelta
from typing import Any

from store import dispatch
from store.commands import Connection
from store.invariants import violations
from tests.store.world import World
from tests.waiting import wait_until

_OPEN = (
    "SELECT count(*) FROM submission s JOIN task t ON t.id = s.resource_id"
    " WHERE s.operation = 'task.submit' AND t.state IS NULL"
)
FAR = timedelta(days=3)


async def open_tasks(connection: Connection) -> int:
    """Accepted tasks that are not settled."""
    return int(await connection.fetchval(_OPEN))


async def balanced(connection: Connection, acked: int, timeout_s: float = 30.0) -> None:
    """Acknowledged submissions = settled tasks, each invariant kept (INV-9)."""
    await wait_until(lambda: open_tasks(connection), lambda count: count == 0, timeout_s)
    kept = int(await connection.fetchval("SELECT count(*) FROM task WHERE state IS NOT NULL"))
    assert kept >= acked
    assert await violations(connection) == []


async def finish_off(world: World) -> None:
    """Let so much time pass that everything ends, then balance the books."""
    assert await violations(world.connection) == []
    world.now += FAR
    while await dispatch.expire_leases(world.connection, 1000, now=world.now):
        pass
    world.now += FAR
    while await dispatch.expire_ready(world.connection, 1000, now=world.now):
        pass
    assert await open_tasks(world.connection) == 0
    assert await violations(world.connection) == []


async def rows(connection: Connection, statement: str, *args: Any) -> list[Any]:
    """Short for a fetch."""
    return list(await connection.fetch(statement, *args))
