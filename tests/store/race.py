"""Two transactions on one thing, led by lock waits: no sleeping, Postgres says who waits."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from tests.store.waits import waiting
from tests.store.world import World

Act = Callable[["asyncpg.Connection[Any]"], Awaitable[Any]]


async def carried_out(
    act: Callable[..., Awaitable[list[Any]]],
    db: "asyncpg.Connection[Any]",
    items: Sequence[Any],
    now: datetime,
) -> list[Any]:
    """The outcomes of a batch; what somebody else held meanwhile is sent again, as a lane does."""
    outcomes = await act(db, items, now=now)
    while held := [place for place, found in enumerate(outcomes) if found.code == "locked"]:
        again = await act(db, [items[place] for place in held], now=now)
        for place, found in zip(held, again, strict=True):
            outcomes[place] = found
    return outcomes


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
