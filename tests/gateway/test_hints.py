"""Hints to the dispatchers: coalesced, kept while Redis is away, never an older level last."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from gateway.hints import Hints
from store import notices
from store.bus import BusUnavailable, CapacityLevel
from store.messages import Cancelled, Notice, Superseded
from tests.gateway.cores import QUEUE, an_id


class FakeBus:
    """Takes everything down; fails when told to; waits when `gate` is closed."""

    def __init__(self) -> None:
        self.wakes: list[list[tuple[str, int]]] = []
        self.levels: list[list[int]] = []
        self.notices: list[list[tuple[str, Notice]]] = []
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def _pass(self) -> None:
        await self.gate.wait()
        if self.away:
            raise BusUnavailable("away")

    async def wake(self, routes: Collection[tuple[str, int]]) -> None:
        await self._pass()
        self.wakes.append(list(routes))

    async def report_capacity(self, levels: Sequence[CapacityLevel]) -> None:
        await self._pass()
        self.levels.append([level.free for level in levels])

    async def notify(self, notices: Collection[tuple[str, Notice]]) -> None:
        await self._pass()
        self.notices.append(list(notices))


class FakeSession:
    def __init__(self, free: int | None) -> None:
        self.free = free
        self.gone = False

    def level(self, seen: str) -> CapacityLevel | None:
        if self.free is None:
            return None
        return CapacityLevel(an_id(1), an_id(2), QUEUE, (1,), self.free, seen)


def parts() -> tuple[Hints, FakeBus]:
    bus: Any = FakeBus()
    return Hints(bus, lambda: "1-1"), bus


async def test_routes_are_sent_once_however_often_they_were_named() -> None:
    hints, bus = parts()
    hints.wake([(QUEUE, 1), (QUEUE, 2)])
    hints.wake([(QUEUE, 1)])
    assert hints.wake_due.is_set()
    assert await hints.send_wakes() == 2
    assert await hints.send_wakes() == 0
    assert bus.wakes == [[(QUEUE, 1), (QUEUE, 2)]]


async def test_nothing_is_forgotten_while_redis_is_away() -> None:
    hints, bus = parts()
    session = FakeSession(3)
    hints.wake([(QUEUE, 1)])
    hints.level_changed(session)
    hints.notify(an_id(8), Superseded(an_id(9)))
    bus.away = True
    for send in (hints.send_wakes, hints.send_levels, hints.send_notices):
        with pytest.raises(BusUnavailable):
            await send()
    assert [hints.unwell] == [True]
    hints.wake([(QUEUE, 2)])
    session.free = 1
    bus.away = False
    await hints.send_wakes()
    await hints.send_levels()
    await hints.send_notices()
    assert not hints.unwell
    assert bus.wakes == [[(QUEUE, 1), (QUEUE, 2)]]
    assert bus.levels == [[1]]
    assert bus.notices == [[(an_id(8), Superseded(an_id(9)))]]


async def test_an_outage_collects_no_sessions_that_are_gone() -> None:
    hints, bus = parts()
    gone = FakeSession(0)
    gone.gone = True
    hints.level_changed(gone)
    hints.level_changed(FakeSession(2))
    bus.away = True
    with pytest.raises(BusUnavailable):
        await hints.send_levels()
    bus.away = False
    await hints.send_levels()
    assert bus.levels == [[2]]


async def test_a_level_is_read_when_it_is_sent_and_a_session_never_opened_has_none() -> None:
    hints, bus = parts()
    session, never_opened = FakeSession(3), FakeSession(None)
    hints.level_changed(session)
    hints.level_changed(never_opened)
    session.free = 0
    assert await hints.send_levels() == 1
    assert bus.levels == [[0]]


async def test_an_arrived_assignment_tells_nobody_by_itself_but_rides_along() -> None:
    hints, bus = parts()
    used, changed = FakeSession(1), FakeSession(2)
    hints.level_used(used)
    assert not hints.level_due.is_set()
    hints.level_changed(changed)
    await hints.send_levels()
    assert bus.levels == [[1, 2]]


async def test_what_changed_is_told_once_more_and_then_rests() -> None:
    hints, bus = parts()
    hints.level_changed(FakeSession(1))
    await hints.send_levels()
    await hints.repeat_levels()
    await hints.repeat_levels()
    assert bus.levels == [[1], [1]]


async def test_a_later_entry_never_holds_an_older_level() -> None:
    hints, bus = parts()
    session = FakeSession(1)
    hints.level_used(session)
    bus.gate.clear()
    repeating = asyncio.create_task(hints.repeat_levels())
    await asyncio.sleep(0)
    session.free = 5
    hints.level_changed(session)
    sending = asyncio.create_task(hints.send_levels())
    await asyncio.sleep(0)
    bus.gate.set()
    await asyncio.gather(repeating, sending)
    assert bus.levels[-1] == [5]


async def test_notices_go_once_and_many_in_one_write() -> None:
    hints, bus = parts()
    for attempt in ("a", "b", "a"):
        hints.notify("node", Cancelled("session", attempt, "caller"))
    assert hints.notice_due.is_set()
    assert await hints.send_notices() == 2
    told = [("node", Cancelled("session", attempt, "caller")) for attempt in ("a", "b")]
    assert bus.notices == [told]
    assert await hints.send_notices() == 0
    assert bus.notices == [told]


async def test_notices_are_bounded_and_none_of_their_writes_is_long() -> None:
    """INV-37: what an outage of Redis can cost."""
    hints, bus = parts()
    for number in range(notices.NOTICES_MAX + 5):
        hints.notify("node", Cancelled("session", str(number), "caller"))
    assert await hints.send_notices() == notices.NOTICES_MAX
    assert {len(write) for write in bus.notices} == {notices.WRITE_MAX}
    assert bus.notices[0][0] == ("node", Cancelled("session", "5", "caller")), "the oldest left"
