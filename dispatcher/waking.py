"""Tells of what a sweep or the end of a node has brought: routes where tasks wait again (this
dispatcher at once, the others through Redis) and attempts past their deadline (to their gateways).

Where: a loop of its own does the telling, so that a Redis that does not answer never holds up a
sweep.
Promise: a route is told until Redis takes it, and once however often it was named meanwhile; the
slow twins do not wait for that. Of an attempt the answer to its next renewal tells as well (OP-03).
"""

import asyncio
from collections.abc import Collection

from dispatcher.assign import STORE_ERRORS
from dispatcher.limits import NOTICES_MAX
from dispatcher.view import Route, View
from runtime.loops import Loop
from store.bus import Bus
from store.dispatch import Unwanted

TELL_EVERY_S = 5.0  # only to try again; news wakes the loop


class Waking:
    """Routes to tell of, without doubles, so bounded by the routes that exist; and attempts."""

    def __init__(self, view: View, bus: Bus) -> None:
        self._view = view
        self._bus = bus
        self._untold: set[Route] = set()
        self._unwanted: dict[Unwanted, None] = {}
        self._news = asyncio.Event()

    def loop(self) -> Loop:
        """The loop, to be run by `run_loops`."""
        return Loop(
            "waking",
            self.tell,
            TELL_EVERY_S,
            wake=self._news,
            backoff_max_s=1.0,
            expected=STORE_ERRORS,
        )

    def wake(self, routes: Collection[Route]) -> None:
        """Tasks of these routes wait again."""
        if routes:
            self._view.hint_routes(routes)
            self._untold.update(routes)
            self._news.set()

    def stop(self, attempts: Collection[Unwanted]) -> None:
        """These attempts have passed their deadline: their workers are to stop."""
        if attempts:
            self._unwanted.update(dict.fromkeys(attempts))
            while len(self._unwanted) > NOTICES_MAX:
                del self._unwanted[next(iter(self._unwanted))]
            self._news.set()

    async def tell(self) -> int:
        """Tell the others of all that is untold; returns how many routes and attempts."""
        attempts = list(self._unwanted)
        await self._bus.cancelled(attempts)
        for attempt in attempts:
            self._unwanted.pop(attempt, None)
        routes = set(self._untold)
        await self._bus.wake(routes)
        self._untold -= routes
        return len(routes) + len(attempts)
