"""A gateway's lanes to the store in the simulation: order, retries, and calls with unknown ends.

As `gateway/lanes.py` promises: commands of one key never overlap, a lost call is made again as it
was, nothing is answered before a call has returned, and patience has an end. A call that was given
up may still take effect later, as one does that hangs in a database.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from gateway import limits
from tests.simulation.cores import UNAVAILABLE
from tests.simulation.store import Store
from tests.simulation.weather import Weather
from tests.simulation.world import World

AFTER_PAUSE_S: Final = 0.05


class _Entry:
    """A command on its way to its answer."""

    __slots__ = ("deadline", "execute", "key", "reply", "tries")

    def __init__(
        self,
        key: str,
        execute: Callable[[], object],
        reply: Callable[[object], None],
        deadline: float,
    ) -> None:
        self.key = key
        self.execute = execute
        self.reply = reply
        self.deadline = deadline
        self.tries = 0
        """The call under way; -1 when the command is answered."""


class Lanes:
    """All lanes of one node. `do` runs something in the node, if that lives."""

    def __init__(
        self,
        world: World,
        weather: Weather,
        store: Store,
        do: Callable[[Callable[[], None]], None],
    ) -> None:
        self.world = world
        self.weather = weather
        self.store = store
        self._do = do
        self._busy: dict[str, deque[_Entry]] = {}

    def offer(
        self,
        key: str,
        execute: Callable[[], object],
        reply: Callable[[object], None],
        patience_s: float = limits.FRAME_PATIENCE_S,
    ) -> None:
        """Run `execute` at the store and give `reply` its outcome, or a `Refused`."""
        entry = _Entry(key, execute, reply, self.world.now + patience_s)
        if key in self._busy:
            self._busy[key].append(entry)
        else:
            self._busy[key] = deque()
            self._call(entry)

    def _call(self, entry: _Entry) -> None:
        world, weather = self.world, self.weather
        entry.tries += 1
        call = entry.tries
        arrives = world.now + world.delay_s(weather.store_s)
        if self.store.away_until > arrives:
            arrives = self.store.away_until + world.rng.uniform(0.0, AFTER_PAUSE_S)
        if arrives > world.now + limits.CALL_TIMEOUT_S:
            world.after(limits.CALL_TIMEOUT_S, lambda: self._do(lambda: self._lost(entry, call)))
        if world.strikes(weather.call_lost):
            world.at(arrives, lambda: self._do(lambda: self._lost(entry, call)))
        else:
            world.at(arrives, lambda: self._execute(entry, call))

    def _execute(self, entry: _Entry, call: int) -> None:
        world = self.world
        outcome = entry.execute()
        delay_s = world.delay_s(self.weather.store_s)
        if world.strikes(self.weather.answer_lost):
            world.note("store", "an answer is lost after the commit")
            world.after(delay_s, lambda: self._do(lambda: self._lost(entry, call)))
        else:
            world.after(delay_s, lambda: self._do(lambda: self._answer(entry, call, outcome)))

    def _lost(self, entry: _Entry, call: int) -> None:
        """Nobody knows what became of the call."""
        if entry.tries != call:
            return
        if self.world.now >= entry.deadline:
            self._answer(entry, call, UNAVAILABLE)
            return
        pause_s = min(limits.RETRY_MAX_S, limits.RETRY_FIRST_S * 2.0 ** (call - 1))
        self.world.after(pause_s, lambda: self._do(lambda: self._again(entry, call)))

    def _again(self, entry: _Entry, call: int) -> None:
        if entry.tries == call:
            self._call(entry)

    def _answer(self, entry: _Entry, call: int, outcome: object) -> None:
        if entry.tries != call:
            return
        entry.tries = -1
        entry.reply(outcome)
        waiting = self._busy[entry.key]
        if waiting:
            self._call(waiting.popleft())
        else:
            del self._busy[entry.key]
