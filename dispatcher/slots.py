"""Free slots of a queue's sessions, so ordered that the freest one for a route is found at once.

Where: filled by the capacity ledger, emptied by `match`; pure.
Promise: `take` never gives more than was put; among sessions that serve the route it gives the one
with the most free slots, and of those the one that has waited longest. Costs do not grow with the
number of sessions, only with the number of different sets of routes (fleets have few).
"""

Routes = tuple[int, ...]


class _Fleet:
    """Sessions that declare the very same routes, by their number of free slots."""

    __slots__ = ("by_free", "members", "routes", "top", "total")

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.members = 0
        self.total = 0
        self.top = 0
        self.by_free: dict[int, dict[str, None]] = {}

    def add(self, session_id: str, free: int) -> None:
        self.total += free
        if free:
            self.by_free.setdefault(free, {})[session_id] = None
            self.top = max(self.top, free)

    def discard(self, session_id: str, free: int) -> None:
        self.total -= free
        if free:
            same = self.by_free[free]
            del same[session_id]
            if not same:
                del self.by_free[free]
                while self.top and self.top not in self.by_free:
                    self.top -= 1


class SlotPool:
    """The free slots of one queue."""

    def __init__(self) -> None:
        self._fleets: dict[Routes, _Fleet] = {}
        self._of_route: dict[int, dict[Routes, _Fleet]] = {}
        self._places: dict[str, tuple[_Fleet, int]] = {}

    def put(self, session_id: str, routes: Routes, free: int) -> None:
        """Set a session's free slots (an absolute level) and the routes it serves."""
        assert free >= 0
        place = self._places.get(session_id)
        if place is not None:
            fleet, before = place
            if fleet.routes == routes:
                if before != free:
                    fleet.discard(session_id, before)
                    fleet.add(session_id, free)
                    self._places[session_id] = (fleet, free)
                return
            self.remove(session_id)
        found = self._fleets.get(routes)
        if found is None:
            found = self._fleets[routes] = _Fleet(routes)
            for route in routes:
                self._of_route.setdefault(route, {})[routes] = found
        found.members += 1
        found.add(session_id, free)
        self._places[session_id] = (found, free)

    def remove(self, session_id: str) -> None:
        """Forget a session; unknown ones are ignored."""
        place = self._places.pop(session_id, None)
        if place is None:
            return
        fleet, free = place
        fleet.discard(session_id, free)
        fleet.members -= 1
        if not fleet.members:
            del self._fleets[fleet.routes]
            for route in fleet.routes:
                serving = self._of_route[route]
                del serving[fleet.routes]
                if not serving:
                    del self._of_route[route]

    def free_of(self, route: int) -> int:
        """How many slots are free for a route; slots that serve several routes count for each."""
        return sum(fleet.total for fleet in self._of_route.get(route, {}).values())

    def take(self, route: int) -> str | None:
        """Use up one slot for a route and say whose; None if there is none."""
        best = None
        for fleet in self._of_route.get(route, {}).values():
            if fleet.top and (best is None or fleet.top > best.top):
                best = fleet
        if best is None:
            return None
        free = best.top
        session_id = next(iter(best.by_free[free]))
        best.discard(session_id, free)
        best.add(session_id, free - 1)
        self._places[session_id] = (best, free - 1)
        return session_id

    def total(self) -> int:
        """All free slots."""
        return sum(fleet.total for fleet in self._fleets.values())

    def __len__(self) -> int:
        return len(self._places)
