"""So many connections that stand still, all the time: whoever is closed has a successor.

Most of them ask just until the answers lie in the gateway's kernel, and are closed since they
answer no ping. Some ask until all buffers are full, and are closed since they take no write.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from tests.races.arena import Arena
from tests.races.standing import NOTHING, kernel_queues, standing_on
from tests.waiting import wait_until

FULL_EVERY = 10
FILL_FRAMES = 4_000
"""Their answers fill every buffer below a session's queue, and not the longest queue."""

AT_A_TIME = 8
"""Connections that begin at once: what is measured is how they stand, not how they come."""

FOLLOW_S = 0.5
"""How soon somebody follows; asking more often would be felt itself."""

BEGUN_S = 120.0
_CLOSED = (
    "SELECT k.place, s.close_reason AS reason, extract(epoch FROM s.closed_at - k.since)::float8"
    " AS stood_s FROM unnest($1::int[], $2::uuid[], $3::timestamptz[]) k (place, id, since)"
    " JOIN session s ON s.id = k.id WHERE s.closed_at IS NOT NULL"
)


@dataclass
class _Place:
    """One connection after the other."""

    number: int
    port: int
    session_id: str = ""
    ports: tuple[int, int] = (0, 0)
    since: datetime | None = None
    has_stood: bool = False
    stack: ExitStack = field(default_factory=ExitStack)


class Stall:
    """All of them, spread over some gateways."""

    def __init__(self, arena: Arena, ports: Sequence[int], queue_id: str, count: int) -> None:
        self.stood_s: list[float] = []
        """From standing still to the close of the session, by the database."""
        self.reasons: Counter[str] = Counter()
        self._arena = arena
        self._queue_id = queue_id
        self._places = [_Place(number, ports[number % len(ports)]) for number in range(count)]
        self._turn = asyncio.Semaphore(AT_A_TIME)
        self._beginning: set[asyncio.Task[None]] = set()
        self._to_follow = True

    @property
    def standing(self) -> int:
        """How many stand now."""
        return sum(place.since is not None for place in self._places)

    async def all_stand(self) -> None:
        """Have them all come, and wait until each stands still."""
        for place in self._places:
            self._begin(place)
        await wait_until(self._shut, lambda count: count == len(self._places), BEGUN_S)

    async def keep_standing(self, done: asyncio.Event) -> None:
        """Let others follow the closed ones until `done`."""
        while not done.is_set():
            await self._follow()
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), FOLLOW_S)

    async def all_closed(self, timeout_s: float) -> None:
        """Let nobody follow, and wait until the last one is closed."""
        self._to_follow = False
        if self._beginning:
            await asyncio.wait(self._beginning)
        await wait_until(self._follow, lambda count: count == 0, timeout_s)

    def leave(self) -> None:
        """Close what is left."""
        for task in self._beginning:
            task.cancel()
        for place in self._places:
            place.stack.close()

    async def _shut(self) -> int:
        """How many have stood so far: the gateway's kernel held what ours did not take."""
        await self._follow()
        waiting = kernel_queues()
        for place in self._places:
            if place.since is not None and waiting.get(place.ports[::-1], NOTHING).sending:
                place.has_stood = True
        return sum(place.has_stood for place in self._places)

    async def _follow(self) -> int:
        """Note whom a gateway has closed, and have others follow them; how many stand."""
        standing = [place for place in self._places if place.since is not None]
        names = [(place.number, place.session_id, place.since) for place in standing]
        for row in (
            await self._arena.fetch(_CLOSED, *map(list, zip(*names, strict=True))) if names else []
        ):
            place = self._places[row["place"]]
            self.stood_s.append(row["stood_s"])
            self.reasons[row["reason"]] += 1
            place.since = None
            place.stack.close()
            if self._to_follow:
                self._begin(place)
        for task in [task for task in self._beginning if task.done()]:
            self._beginning.remove(task)
            task.result()
        return self.standing

    def _begin(self, place: _Place) -> None:
        self._beginning.add(asyncio.create_task(self._stand(place)))

    async def _stand(self, place: _Place) -> None:
        async with self._turn:
            peer = place.stack.enter_context(standing_on(place.port))
            place.ports = peer.ports
            await peer.hello(self._queue_id, self._arena.credential)
            # From here on it reads nothing; on a slow machine it is closed while it still asks.
            since = await self._arena.fetchval("SELECT clock_timestamp()")
            if place.number % FULL_EVERY == 0:
                await peer.fill(FILL_FRAMES)
            else:
                await peer.shut()
            place.session_id, place.since = peer.session_id, since


@asynccontextmanager
async def stall_on(
    arena: Arena, ports: Sequence[int], queue_id: str, count: int, closed_within_s: float
) -> AsyncIterator[Stall]:
    """They all stand while the body runs, and each is closed by a gateway in the end."""
    stall = Stall(arena, ports, queue_id, count)
    done = asyncio.Event()
    try:
        await stall.all_stand()
        keeping = asyncio.create_task(stall.keep_standing(done))
        try:
            yield stall
        finally:
            done.set()
            await keeping
        await stall.all_closed(closed_within_s)
    finally:
        stall.leave()
