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
from dispatcher.view import Route, View
from runtime.loops import Loop
from store.bus import Bus
from store.messages import Cancelled
from store.notices import Notices

TELL_EVERY_S = 5.0  # only to try again; news wakes the loop


class Waking:
    """Routes to tell of, without doubles, so bounded by the routes that exist; and attempts."""

    def __init__(self, view: View, bus: Bus) -> None:
        self._view = view
        self._bus = bus
        self._untold: set[Route] = set()
        self._notices = Notices(bus)
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

    def stop(self, node_id: str, session_id: str, attempt_id: str) -> None:
        """This attempt has passed its deadline: its worker is to stop."""
        self._notices.put(node_id, Cancelled(session_id, attempt_id, "deadline"))
        self._news.set()

    async def tell(self) -> int:
        """Tell the others of all that is untold; returns how many routes and attempts."""
        stopped = await self._notices.send()
        routes = set(self._untold)
        await self._bus.wake(routes)
        self._untold -= routes
        return len(routes) + stopped
