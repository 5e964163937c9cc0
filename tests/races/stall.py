"""So many connections that stand still, all the time: whoever is closed has a successor.

Most of them ask just until the answers lie in the gateway's kernel, and are closed since they
take nothing from there, or answer no ping. Some ask until all buffers are full, and are closed
since they take no write.

A process of its own, started by `stall_process`: it shares neither the loop nor the turn at the
processor of those who are measured beside it. And coming is cheap: what is measured is how they
stand. One after the other comes, so that they are not closed in one burst and come in one again;
a few more come than are asked for, since some who follow are always on their way. The database is
asked once a second, the kernel only until each has stood once. To fill all buffers takes thousands
of frames, which is a flood and not a shut window, so few do it, and not each time they come: floods
are measured elsewhere (tests/gateway/test_intake.py).

It is told its `Plan` in one line of JSON on its standard input, says when all stand, and at the
next line lets nobody follow, waits for the last close and ends with its `Report`. It ends at once
when that input ends, as it does with the process that started it.
"""

import asyncio
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from store import pool
from store.commands import Connection
from tests.races.standing import NOTHING, kernel_queues, standing_on
from tests.waiting import wait_until

NICE = 10
"""It gives way to servers and to those who are measured, and is not starved beside other work."""

FULL_EVERY = 50
FILL_FRAMES = 4_000
"""Their answers fill every buffer below a session's queue, and not the longest queue."""

FILL_AGAIN_S = 120.0
"""Until then who once filled all buffers comes as the others do."""

COME_EVERY_S = 0.1
"""A hundred come in half of the time that the first of them stands."""

SPARE_SHARE = 0.1

FOLLOW_S = 1.0
"""How soon somebody follows."""

BEGUN_S = 120.0
_CLOSED = (
    "SELECT id, close_reason AS reason, extract(epoch FROM closed_at - opened_at)::float8"
    " AS stood_s FROM session WHERE id = ANY ($1::uuid[]) AND closed_at IS NOT NULL"
)


@dataclass(frozen=True)
class Plan:
    """Who stands where, and until when the last one is to be closed."""

    database_url: str
    credential: str
    queue_id: str
    ports: Sequence[int]
    count: int
    closed_within_s: float


@dataclass
class Report:
    """What became of all of them."""

    looks: int = 0
    standing: int = 0
    """Of all looks together, while the crowd was to stand."""
    closed: int = 0
    filled: int = 0
    """So many of these had asked until all buffers were full."""
    reasons: Counter[str] = field(default_factory=Counter)
    stood_s_min: float = float("inf")
    stood_s_max: float = 0.0
    """From the opening to the close of a session, by the database."""


@dataclass
class _Place:
    """One connection after the other."""

    number: int
    port: int
    session_id: str = ""
    ports: tuple[int, int] = (0, 0)
    stands: bool = False
    fills: bool = False
    fills_from: float = 0.0
    """Loop time before which it does not fill all buffers."""
    has_stood: bool = False
    stack: ExitStack = field(default_factory=ExitStack)


class Stall:
    """All of them, spread over some gateways."""

    def __init__(self, plan: Plan, connection: Connection) -> None:
        self.report = Report()
        self._plan = plan
        self._connection = connection
        ports, count = plan.ports, math.ceil(plan.count * (1 + SPARE_SHARE))
        self._places = [_Place(number, ports[number % len(ports)]) for number in range(count)]
        self._coming: set[asyncio.Task[None]] = set()
        self._comes_at = 0.0
        self._to_follow = True

    async def all_stand(self) -> None:
        """Have them all come, and wait until each has stood still."""
        for place in self._places:
            self._come(place)
        await wait_until(self._shut, lambda count: count == len(self._places), BEGUN_S, FOLLOW_S)

    async def keep_standing(self, over: asyncio.Event) -> None:
        """Let others follow the closed ones until it is over."""

        async def is_over() -> bool:
            self.report.standing += await self._follow()
            self.report.looks += 1
            return over.is_set()

        await wait_until(is_over, bool, float("inf"), FOLLOW_S)

    async def all_closed(self) -> None:
        """Let nobody follow, and wait until the last one is closed."""
        self._to_follow = False
        if self._coming:
            await asyncio.wait(self._coming)
        within_s = self._plan.closed_within_s
        await wait_until(self._follow, lambda count: count == 0, within_s, FOLLOW_S)

    def leave(self) -> None:
        """Close what is left."""
        for task in self._coming:
            task.cancel()
        for place in self._places:
            place.stack.close()

    async def _shut(self) -> int:
        """How many have stood so far: the gateway's kernel held what ours did not take."""
        await self._follow()
        waiting = kernel_queues()
        for place in self._places:
            if place.stands and waiting.get(place.ports[::-1], NOTHING).sending:
                place.has_stood = True
        return sum(place.has_stood for place in self._places)

    async def _follow(self) -> int:
        """Note whom a gateway has closed, and have others follow them; how many stand."""
        standing = {place.session_id: place for place in self._places if place.stands}
        for row in await self._connection.fetch(_CLOSED, list(standing)):
            place = standing.pop(row["id"])
            self._note_closed(place, row["reason"], row["stood_s"])
            place.stands = False
            place.stack.close()
            if self._to_follow:
                self._come(place)
        for task in [task for task in self._coming if task.done()]:
            self._coming.remove(task)
            task.result()
        return len(standing)

    def _note_closed(self, place: _Place, reason: str, stood_s: float) -> None:
        report = self.report
        report.closed += 1
        report.filled += place.fills
        report.reasons[reason] += 1
        report.stood_s_min = min(report.stood_s_min, stood_s)
        report.stood_s_max = max(report.stood_s_max, stood_s)

    def _come(self, place: _Place) -> None:
        self._coming.add(asyncio.create_task(self._stand(place)))

    async def _stand(self, place: _Place) -> None:
        """Come in turn, and ask until enough is on its way; from its hello on it reads nothing."""
        loop = asyncio.get_running_loop()
        self._comes_at = max(self._comes_at + COME_EVERY_S, loop.time())
        await asyncio.sleep(self._comes_at - loop.time())
        place.fills = place.number % FULL_EVERY == 0 and loop.time() >= place.fills_from
        peer = place.stack.enter_context(standing_on(place.port))
        place.ports = peer.ports
        await peer.hello(self._plan.queue_id, self._plan.credential)
        if place.fills:
            place.fills_from = loop.time() + FILL_AGAIN_S
            await peer.fill(FILL_FRAMES)
        else:
            await peer.shut()
        place.session_id, place.stands = peer.session_id, True


async def _serve(orders: asyncio.StreamReader) -> None:
    """One crowd, from its plan to its report."""
    plan = Plan(**json.loads(await orders.readline()))
    over = asyncio.Event()
    ordering = asyncio.create_task(_heed(orders, over, asyncio.current_task()))
    connection = await pool.connect(plan.database_url)
    stall = Stall(plan, connection)
    try:
        await stall.all_stand()
        _say({"standing": plan.count})
        await stall.keep_standing(over)
        await stall.all_closed()
        _say(vars(stall.report))
    finally:
        ordering.cancel()
        stall.leave()
        await connection.close()


async def _heed(
    orders: asyncio.StreamReader, over: asyncio.Event, serving: "asyncio.Task[None] | None"
) -> None:
    while await orders.readline():
        over.set()
    if serving is not None:
        serving.cancel()  # who asked for this is gone


def _say(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def _main() -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    await _serve(orders)


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(_main())
