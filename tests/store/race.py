"""Two transactions on one thing, led by lock waits: no sleeping, Postgres says who waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from tests.store.waits import waiting
from tests.store.world import World

Act = Callable[["asyncpg.Connection[Any]"], Awaitable[Any]]


class Race:
    """Two connections and one that watches them."""

    def __init__(self, world: World, watcher: Any, first: Any, second: Any) -> None:
        self.world = world
        self.watcher = watcher
        self.first = first
        self.second = second

    @classmethod
    async def at(cls, world: World) -> "Race":
        return cls(world, await world.other(), await world.other(), await world.other())

    async def run(self, earlier: Act, later: Act) -> tuple[Any, Any]:
        """`later` meets the uncommitted `earlier`: it waits for it, or has answered before it."""
        transaction = self.first.transaction()
        await transaction.start()
        before = await earlier(self.first)
        racing = asyncio.ensure_future(later(self.second))
        blocked = asyncio.ensure_future(waiting(self.watcher, 1))
        await asyncio.wait({racing, blocked}, return_when=asyncio.FIRST_COMPLETED)
        blocked.cancel()
        await transaction.commit()
        return before, await racing
