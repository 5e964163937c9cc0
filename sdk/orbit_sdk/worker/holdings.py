"""Which attempts a worker holds, and which tasks have a handler at work here. Pure.

Under `desk`, which decides what becomes of each; the session asks here before it takes more.
"""

from collections.abc import Iterator
from math import inf

from orbit_sdk.worker.attempt import Held, Step


class Holdings:
    """The attempts of one worker process, over all its sessions."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._at_work: set[str] = set()
        self._lost = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        """Each attempt held now; whatever happens to them meanwhile."""
        return iter(list(self._held.values()))

    @property
    def busy(self) -> int:
        """Handlers that run or are about to."""
        return len(self._at_work)

    @property
    def lost(self) -> int:
        """Attempts that are still here although the server may count them no more."""
        return self._lost

    def works_on(self, task_id: str) -> bool:
        """Whether a handler of this task runs here or is about to, under whatever lease."""
        return task_id in self._at_work

    def find(self, attempt_id: str | None) -> Held | None:
        """The attempt, if it is here."""
        return None if attempt_id is None else self._held.get(attempt_id)

    def add(self, held: Held) -> None:
        """An attempt whose handler is about to run."""
        self._held[held.ref.attempt_id] = held
        self._at_work.add(held.ref.task_id)

    def ended(self, held: Held) -> None:
        """Its handler has ended, or never will begin; the attempt is still here."""
        self._at_work.discard(held.ref.task_id)

    def hasten(self, by_s: float) -> float:
        """What is to be renewed is due so much sooner. When the first of it is."""
        found = [held for held in self._held.values() if not held.untold]
        for held in found:
            held.renew_at -= by_s
        return min((held.renew_at for held in found), default=inf)

    def lose(self, held: Held) -> None:
        """The server may count it no more, and so give its slot away."""
        held.lost = True
        self._lost += 1

    def remove(self, held: Held) -> None:
        """Nothing more is to be done for it."""
        del self._held[held.ref.attempt_id]
        self._lost -= held.lost
        if held.step is not Step.FINISHING:
            self._at_work.discard(held.ref.task_id)
