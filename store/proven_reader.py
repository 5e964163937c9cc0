"""A stream reader that is known to hear, not merely to run.

Where: between `StreamReader` and the loops of gateways and dispatchers that read streams. A process
can beat, answer probes of its health and hold its connections while the one connection it reads
by brings nothing. So every few seconds it writes an entry that says nothing, which must come
back through this very reader. One that does not in time makes the reader deaf: it is replaced by a
new one, whatever the old one is doing, and the slow twins do the work until an entry is heard.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from store.messages import NOTHING_SEEN, Message, entry_order
from store.stream_reader import StreamReader

PROBE_INTERVAL_S = 2.0
DEAF_AFTER_S = 5.0  # longer than a read blocks and any batch of entries takes

Probes = Mapping[type, str]
"""Entry ids of one probe, by the kind of message that carries it."""


class ProvenReader:
    """Reads as its StreamReader does. `is_deaf`: a probe is overdue, so what is read is not all.

    restarts_count: how often the reader was replaced. heard_count: probes that came back.
    """

    def __init__(
        self,
        open_reader: Callable[[str], StreamReader],
        write_probe: Callable[[], Awaitable[Probes]],
    ) -> None:
        """`open_reader` is given the last entry read, which means something for one stream."""
        self._open_reader = open_reader
        self._write_probe = write_probe
        self._reader = open_reader(NOTHING_SEEN)
        self._reading: asyncio.Task[object] | None = None
        self._awaited: dict[type, tuple[str, float]] = {}
        self._last = NOTHING_SEEN
        self._newest: dict[type, str] = {}
        self._skipped = 0
        self.is_deaf = False
        self.restarts_count = 0
        self.heard_count = 0

    @property
    def skipped_count(self) -> int:
        """Entries that were no message, all readers together."""
        return self._skipped + self._reader.skipped_count

    async def read(self, block_ms: int, count: int) -> list[tuple[str, Message]]:
        """As `StreamReader.read`; cancelled when the reader is replaced meanwhile."""
        self._reading = asyncio.current_task()
        try:
            entries = await self._reader.read(block_ms, count)
        finally:
            self._reading = None
        if entries:
            self._last = entries[-1][0]
            for entry_id, message in entries:
                self._newest[type(message)] = entry_id
            self._compare()
        return entries

    async def probe(self) -> int:
        """Write a probe, or replace a reader that has missed one; returns how many were replaced.

        Raises BusUnavailable: a Redis that is away makes nobody deaf.
        """
        now = time.monotonic()
        if any(now - since > DEAF_AFTER_S for _, since in self._awaited.values()):
            await self._replace()
            return 1
        if not self._awaited:
            probes = await self._write_probe()
            self._awaited = {kind: (entry_id, now) for kind, entry_id in probes.items()}
            self._compare()  # it may have been read before its writer was told of it
        return 0

    async def close(self) -> None:
        """Close the connection."""
        await self._reader.close()

    def _compare(self) -> None:
        """See which awaited entries have been read."""
        if not self._awaited:
            return
        for kind, (awaited, _) in list(self._awaited.items()):
            newest = self._newest.get(kind, NOTHING_SEEN)
            if entry_order(newest) >= entry_order(awaited):
                del self._awaited[kind]
        if not self._awaited:
            self.is_deaf = False
            self.heard_count += 1

    async def _replace(self) -> None:
        deaf, self._reader = self._reader, self._open_reader(self._last)
        self._skipped += deaf.skipped_count
        self._awaited.clear()
        self.is_deaf = True
        self.restarts_count += 1
        if self._reading is not None:
            self._reading.cancel()
        await deaf.close()
