"""What the worker sockets of one process take in between two turns of its loop, fairly shared out.

Under the socket protocol. The loop that serves sockets also beats, and answers everybody else. If
each peer that sends without end were given its piece in every turn, a hundred of them would make
one turn so long that the node misses its beats and is given up while it serves. So all of them
together have one bound a turn, and take it by small shares in rounds: more of them make a round
longer, never a turn. A share that comes while nobody waits is taken at once.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from gateway import limits


class Peer(Protocol):
    """A connection that has read more than it may take in now."""

    @property
    def waits(self) -> bool:
        """Whether there is more to take in."""

    def take_share(self) -> int:
        """Take in one share of what was read; how many bytes that was."""


class Intake:
    """One bound for all connections of a server."""

    def __init__(self) -> None:
        self._waiting: Final[deque[Peer]] = deque()
        self._taken = 0
        self._turn_due = False

    def admits(self, size: int) -> bool:
        """Whether so many bytes may be taken in at once; if so they are counted."""
        room = min(limits.TURN_SHARE_BYTES, limits.TURN_BYTES - self._taken)
        if self._waiting or size > room:
            return False
        self.count(size)
        return True

    def count(self, size: int) -> None:
        """Something taken in costs this turn as much as so many bytes."""
        self._taken += size
        self._call_turn()

    def wait(self, peer: Peer) -> None:
        """Have `peer` called in its turn, and again for as long as it waits."""
        self._waiting.append(peer)
        self._call_turn()

    def _call_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self._taken = 0
        waiting = self._waiting
        while waiting and self._taken < limits.TURN_BYTES:
            self._call_turn()  # before anything else: a peer that raises stops nobody but itself
            peer = waiting.popleft()
            size = peer.take_share()  # which may count something as well
            self._taken += size
            if peer.waits:
                waiting.append(peer)
