"""The slots of one connection: which attempts it holds, and until when at the latest.

Pure, under the session core. A slot is taken when an assignment is on its way to the socket or a
resume was asked for, taken anew with every confirmed lease, and freed when the attempt is over or
its lease must be: a worker that says nothing more gives no other sign. A slot also remembers what
was handed over with it, so that a start or finish need not derive the secret again.
"""

from hmac import compare_digest
from typing import NamedTuple


class Grant(NamedTuple):
    """What the worker knows of an attempt, as the wire carries it; a resumed one has no secret
    here, so that it is proven anew each time."""

    task_id: str
    epoch: str
    secret: str


_NOTHING: tuple[float, Grant | None] = (0.0, None)


class Slots:
    """Attempts held, the one whose slot lapses first in front."""

    __slots__ = ("_held", "_hold_s")

    def __init__(self, hold_s: float) -> None:
        """`hold_s`: how long a confirmed lease keeps its slot. Equal for all, so oldest first."""
        self._hold_s = hold_s
        self._held: dict[str, tuple[float, Grant | None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._held

    def take(self, attempt_id: str, now: float, grant: Grant | None = None) -> None:
        """Hold a slot from now on; a grant known before is kept."""
        former = self._held.pop(attempt_id, None)
        if former is not None and former[1] is not None:
            grant = former[1]
        self._held[attempt_id] = (now + self._hold_s, grant)

    def grant(self, attempt_id: str) -> Grant | None:
        """What the worker was given with this attempt, if it was."""
        held = self._held.get(attempt_id)
        return None if held is None else held[1]

    def free(self, attempt_id: str) -> None:
        """Give a slot back; no harm if there is none."""
        self._held.pop(attempt_id, None)

    def proves(self, attempt_id: str, epoch: str, secret: str) -> bool:
        """Whether this is the proof that was handed over here with the attempt; constant time."""
        _, grant = self._held.get(attempt_id, _NOTHING)
        return grant is not None and grant[1] == epoch and compare_digest(grant[2], secret)

    def lapse(self, now: float) -> bool:
        """Free the slots whose lease must be over. True when there were any."""
        lapsed = False
        while self._held:
            attempt_id, (until, _) = next(iter(self._held.items()))
            if until > now:
                break
            del self._held[attempt_id]
            lapsed = True
        return lapsed
