"""Virtual time, seeded chance, and a memory of what happened last: the ground of a simulation.

One heap of events; whatever runs draws from one generator, so a seed decides everything and replays
it. Notes are kept as they come and turned into text only when something failed.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from itertools import count

NOTES_MAX = 400
DELAY_MIN_S = 0.0002
HEALED_DELAY_S = 0.05


class Violation(AssertionError):
    """Something that must hold did not."""


class Clock:
    """A clock that is off and drifts: any offset, a rate near one that may change."""

    def __init__(self, offset: float, rate: float) -> None:
        self.rate = rate
        self._since = 0.0
        self._shown = offset

    def at(self, now: float) -> float:
        """What this clock shows at an instant of the world."""
        return self._shown + (now - self._since) * self.rate

    def when(self, shown: float) -> float:
        """The instant of the world at which this clock will show that, at its present rate."""
        return self._since + (shown - self._shown) / self.rate

    def drift(self, now: float, rate: float) -> None:
        """Go on at another rate."""
        self._shown, self._since, self.rate = self.at(now), now, rate


class World:
    """Time, chance, ids and notes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.healed = False
        """Faults have stopped."""
        self.events = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._ids: dict[str, int] = {}
        self._notes: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=NOTES_MAX)

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Do something later; things due at one instant go in the order they were asked for."""
        heapq.heappush(self._due, (when, next(self._order), act))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something in a while."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), act))

    def step(self) -> None:
        """The next event."""
        when, _, act = heapq.heappop(self._due)
        if when > self.now:
            self.now = when
        self.events += 1
        act()

    def strikes(self, chance: float) -> bool:
        """Whether a fault of this chance happens now; never after the world has healed."""
        return chance > 0.0 and not self.healed and self.rng.random() < chance

    def delay_s(self, most_s: float) -> float:
        """How long something is under way: at most so long, and not long once healed."""
        return self.rng.uniform(DELAY_MIN_S, min(most_s, HEALED_DELAY_S) if self.healed else most_s)

    def new_id(self, kind: str) -> str:
        """A fresh 32-digit id that opens with a hex letter for its kind."""
        number = self._ids[kind] = self._ids.get(kind, 0) + 1
        return f"{kind}{number:031x}"

    def note(self, *facts: object) -> None:
        """Remember what happened, for the trace of a failure."""
        self._notes.append((self.now, facts))

    def told(self) -> list[str]:
        """The last notes as lines, oldest first."""
        return [
            f"{now:9.3f}  {' '.join(spelled(fact) for fact in facts)}" for now, facts in self._notes
        ]


def spelled(fact: object) -> str:
    """A fact as text; ids lose their zeros."""
    if isinstance(fact, str):
        return short(fact)
    if isinstance(fact, float):
        return f"{fact:.3f}"
    return str(fact)


def short(text: str) -> str:
    """`a0000…01f` as `a1f`; other texts as they are."""
    if len(text) == 32 and text[1:8] == "0000000":
        return text[0] + text[1:].lstrip("0")
    return text
