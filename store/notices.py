"""Notices to gateways: what became of sessions and attempts that are theirs.

Where: gateways and dispatchers put them here, a loop of theirs sends them to the nodes' streams.
Promise: a hint (OP-95). A notice is kept until Redis has taken it, once however often it was put;
when there are too many the oldest leave first, since the store knows all of it: a session is told
by its next command, an attempt by the answer to its next renewal (OP-03).
"""

from itertools import islice

from store.bus import Bus
from store.messages import Notice

NOTICES_MAX = 10_000
"""Notices kept, so the memory that Redis being away can cost."""

WRITE_MAX = 500
"""Notices a write, so that none of them is long."""


class Notices:
    """The outbox of one process."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting: dict[tuple[str, Notice], None] = {}

    def put(self, node_id: str, notice: Notice) -> None:
        """Keep a notice for this node."""
        self._waiting[node_id, notice] = None
        if len(self._waiting) > NOTICES_MAX:
            del self._waiting[next(iter(self._waiting))]

    async def send(self) -> int:
        """Send all there are; returns how many. Raises BusUnavailable, with nothing forgotten."""
        sent = 0
        while part := list(islice(self._waiting, WRITE_MAX)):
            await self._bus.notify(part)
            for notice in part:
                self._waiting.pop(notice, None)
            sent += len(part)
        return sent
