"""The pool of free slots against a plain model of it."""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatcher.slots import SlotPool

sessions = st.integers(0, 5).map(lambda number: f"session-{number}")
routes_sets = st.sets(st.integers(1, 3)).map(lambda routes: tuple(sorted(routes)))


class Pools(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool()
        self.model: dict[str, tuple[tuple[int, ...], int]] = {}

    @rule(session_id=sessions, routes=routes_sets, free=st.integers(0, 6))
    def put(self, session_id: str, routes: tuple[int, ...], free: int) -> None:
        self.pool.put(session_id, routes, free)
        self.model[session_id] = (routes, free)

    @rule(session_id=sessions)
    def remove(self, session_id: str) -> None:
        self.pool.remove(session_id)
        self.model.pop(session_id, None)

    @rule(route=st.integers(1, 4))
    def take(self, route: int) -> None:
        free = {s: free for s, (routes, free) in self.model.items() if route in routes and free}
        taken = self.pool.take(route)
        if taken is None:
            assert not free
        else:
            assert free[taken] == max(free.values())
            routes, count = self.model[taken]
            self.model[taken] = (routes, count - 1)

    @invariant()
    def agrees(self) -> None:
        assert len(self.pool) == len(self.model)
        assert self.pool.total() == sum(free for _, free in self.model.values())
        for route in range(1, 5):
            expected = sum(free for routes, free in self.model.values() if route in routes)
            assert self.pool.free_of(route) == expected


TestPools = Pools.TestCase
