"""What a gateway tells the dispatchers and its peers through Redis, coalesced and never relied on.

Three small outboxes: routes to wake, sessions whose free level changed, and notices to other nodes.
While one write is in flight the next gathers, so nothing waits for a timer and a burst is one
entry. When Redis is away the hints stay (sets, bounded by the routes and sessions that there are)
and go out when it is back; until then the dispatchers' slow twins do the work.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.commands import RouteKey
from runtime import failpoints
from store.bus import Bus, BusUnavailable, CapacityLevel
from store.messages import Notice
from store.notices import Notices


class HasLevel(Protocol):
    """A session, as the dispatchers need to know it."""

    @property
    def gone(self) -> bool:
        """Whether its socket is closed."""

    def level(self, seen: str) -> CapacityLevel | None:
        """Its free level now; None when it was never opened in the store."""


class Hints:
    """The outboxes of one node, each with a tick for a loop and an event that wakes it."""

    def __init__(self, bus: Bus, seen: Callable[[], str]) -> None:
        """`seen` tells the last entry of this node's stream that was handled."""
        self._bus = bus
        self._seen = seen
        self._routes: dict[RouteKey, None] = {}
        self._changed: dict[HasLevel, None] = {}
        self._quietly_changed: dict[HasLevel, None] = {}
        self._reported: dict[HasLevel, None] = {}
        self._notices = Notices(bus)
        self._reporting = asyncio.Lock()
        self.wake_due = asyncio.Event()
        self.level_due = asyncio.Event()
        self.notice_due = asyncio.Event()
        self.unwell = False
        """Whether the last write failed: the slow twins then hurry."""

    def wake(self, routes: Iterable[RouteKey]) -> None:
        """Tasks may be ready on these routes."""
        self._routes.update(dict.fromkeys(routes))
        if self._routes:
            self.wake_due.set()

    def level_changed(self, session: HasLevel) -> None:
        """A slot was freed, or the declaration changed: tell at once (INV-16)."""
        self._changed[session] = None
        self.level_due.set()

    def level_used(self, session: HasLevel) -> None:
        """An assignment arrived. Its dispatcher counts that itself; tell the others soon."""
        self._quietly_changed[session] = None

    def notify(self, node_id: str, notice: Notice) -> None:
        """Something became of a session of another node, or of an attempt that one holds."""
        self._notices.put(node_id, notice)
        self.notice_due.set()

    async def send_wakes(self) -> int:
        """One write of all routes gathered. Raises BusUnavailable, with nothing forgotten."""
        routes, self._routes = self._routes, {}
        if not routes:
            return 0
        try:
            if failpoints.armed:
                await failpoints.reach("gateway.bus.wake.before", BusUnavailable)
            await self._bus.wake(routes)
            if failpoints.armed:
                await failpoints.reach("gateway.bus.wake.after", BusUnavailable)
        except BaseException as error:
            self._routes = routes | self._routes
            self._note(error)
            raise
        self.unwell = False
        return len(routes)

    async def send_levels(self) -> int:
        """One write of all changed levels, as they are now."""
        sessions = self._quietly_changed | self._changed
        self._quietly_changed, self._changed = {}, {}
        return await self._report(sessions)

    async def repeat_levels(self) -> int:
        """Write again what changed since the last call, in case an entry was lost."""
        sessions = self._reported | self._quietly_changed
        self._reported, self._quietly_changed = {}, {}
        done = await self._report(sessions)
        self._reported = {}
        return done

    async def send_notices(self) -> int:
        """Write all notices. Raises BusUnavailable, with nothing forgotten."""
        return await self._notices.send()

    async def _report(self, sessions: dict[HasLevel, None]) -> int:
        # One write at a time, levels read just before it: no later entry holds an older level.
        async with self._reporting:
            seen = self._seen()
            levels = [level for session in sessions if (level := session.level(seen)) is not None]
            if not levels:
                return 0
            try:
                if failpoints.armed:
                    await failpoints.reach("gateway.bus.levels.before", BusUnavailable)
                await self._bus.report_capacity(levels)
                if failpoints.armed:
                    await failpoints.reach("gateway.bus.levels.after", BusUnavailable)
            except BaseException as error:
                # One that is gone is left to the slow twin, lest an outage collects them.
                waiting = {session: None for session in sessions if not session.gone}
                self._changed = waiting | self._changed
                self._note(error)
                raise
            self.unwell = False
            self._reported.update(sessions)
            return len(levels)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, BusUnavailable):
            self.unwell = True
