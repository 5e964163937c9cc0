"""Batch lanes on a scripted store: one call for many, halves, order, unknown commits, bounds."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import lanes, limits
from gateway.faults import Fault
from gateway.lanes import Lane, Order, Refused
from orbit_sdk.protocol.errors import ErrorCode
from tests.gateway.harness import eventually

Execute = Callable[[Sequence[str]], Awaitable[Sequence[str]]]


class Away(Exception):
    """The store cannot be reached."""


class Held(Exception):
    """Another transaction holds something of the batch."""


def fault_of(error: Exception) -> Fault:
    if isinstance(error, Away):
        return Fault.AWAY
    return Fault.LOCKED if isinstance(error, Held) else Fault.GUILTY


class Replies:
    """What was answered, in order."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []
        self._grew = asyncio.Event()

    def __call__(self, command: str, outcome: str | Refused) -> None:
        text = f"refused:{outcome.code}" if isinstance(outcome, Refused) else outcome
        self.got.append((command, text))
        self._grew.set()

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.got) < count:
                self._grew.clear()
                await self._grew.wait()


class Store:
    """Answers "<command>!" for each command; calls wait for `gate` when it is closed."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.fails: Callable[[Sequence[str]], Exception | None] = lambda _: None

    async def __call__(self, items: Sequence[str]) -> Sequence[str]:
        self.calls.append(list(items))
        self.called.set()
        await self.gate.wait()
        error = self.fails(items)
        if error is not None:
            raise error
        return [f"{item}!" for item in items]


@asynccontextmanager
async def running(*lanes: Lane[Any, Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(lane.run()) for lane in lanes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def lane(store: Execute, **changes: Any) -> Lane[str, str]:
    return Lane("test", store, judge=fault_of, **changes)


async def test_a_lone_command_waits_for_nothing_and_a_burst_is_one_call() -> None:
    store, replies = Store(), Replies()
    one = lane(store, width=1)
    async with running(one):
        store.gate.clear()
        one.offer("a", replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        for name in "bcde":
            one.offer(name, replies)
        store.gate.set()
        await replies.wait(5)
    assert store.calls == [["a"], ["b", "c", "d", "e"]]
    assert replies.got == [(name, f"{name}!") for name in "abcde"]


async def test_a_batch_has_at_most_500_commands() -> None:
    store, replies = Store(), Replies()
    one = lane(store, width=1)
    for number in range(1201):
        one.offer(str(number), replies)
    async with running(one):
        await replies.wait(1201)
    assert [len(call) for call in store.calls] == [500, 500, 201]


async def test_few_commands_wait_beside_a_call_and_many_get_one_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call costs as much as many commands, so a second one needs enough of them."""
    monkeypatch.setattr(limits, "RELIEF_AFTER_S", 3600)
    store, replies = Store(), Replies()
    two = lane(store)
    store.gate.clear()
    async with running(two):
        two.offer("first", replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        store.called.clear()
        for number in range(limits.RELIEF_COMMANDS - 1):
            two.offer(str(number), replies)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(store.calls) == 1
        two.offer("enough", replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        assert [len(call) for call in store.calls] == [1, limits.RELIEF_COMMANDS]
        store.gate.set()
        await replies.wait(limits.RELIEF_COMMANDS + 1)


async def test_a_repeat_of_what_is_under_way_is_no_second_call() -> None:
    """B-04: it shares the answer, in flight or still waiting for its turn; afterwards it is a call
    of its own again, and so is at once what has no operation to share."""
    store, replies, order = Store(), Replies(), Order()
    operations: dict[str, str | None] = {"a": "a", "b": "b", "a, again": "a", "alone": None}
    one = lane(
        store,
        order=order,
        key=lambda _: "attempt",
        same=operations.get,
        repeated=lambda outcome: f"{outcome} repeated",
    )
    store.gate.clear()
    async with running(one):
        for name in ("a", "b", "a, again", "a, again", "b", "alone", "alone"):
            assert one.offer(name, replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        assert one.open == 7
        store.gate.set()
        await replies.wait(7)
        assert store.calls == [["a"], ["b"], ["alone"], ["alone"]]
        assert replies.got == [
            ("a", "a!"), ("a, again", "a! repeated"), ("a, again", "a! repeated"),
            ("b", "b!"), ("b", "b! repeated"), ("alone", "alone!"), ("alone", "alone!"),
        ]  # fmt: skip
        one.offer("a, again", replies)
        await replies.wait(8)
    assert replies.got[-1] == ("a, again", "a, again!")
    assert (one.open, len(order)) == (0, 0)


async def test_a_repeat_shares_a_refusal_too() -> None:
    store, replies = Store(), Replies()
    one = lane(store, same=lambda name: name, repeated=lambda _: "never", patience_s=-1)
    store.fails = lambda _: Away()
    async with running(one):
        one.offer("a", replies)
        one.offer("a", replies)
        await replies.wait(2)
    assert replies.got == [("a", f"refused:{ErrorCode.UNAVAILABLE}")] * 2


async def test_two_calls_of_one_kind_are_in_flight_at_once() -> None:
    store, replies = Store(), Replies()
    two = lane(store)
    store.gate.clear()
    async with running(two):
        two.offer("a", replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        store.called.clear()
        two.offer("b", replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        store.gate.set()
        await replies.wait(2)
    assert store.calls == [["a"], ["b"]]


async def test_a_wide_lane_begins_further_calls_apart_while_the_store_is_slow() -> None:
    """B-04: no command waits longer than the spacing while a place is free."""
    replies, store = Replies(), Store()
    began: list[float] = []

    async def timed(items: Sequence[str]) -> Sequence[str]:
        began.append(time.monotonic())
        return await store(items)

    wide = lane(timed, width=5, spacing_s=0.05)
    store.gate.clear()
    async with running(wide):
        for number in range(5):
            store.called.clear()
            wide.offer(str(number), replies)
            async with asyncio.timeout(5):
                await store.called.wait()
        wide.offer("no place", replies)
        assert len(store.calls) == 5
        store.gate.set()
        await replies.wait(6)
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert all(gap > 0.045 for gap in gaps[1:4]), "the second goes at once, others keep apart"


@pytest.mark.parametrize("turns", [1, 7])
async def test_a_wide_lane_makes_no_more_calls_of_a_quick_store(turns: int) -> None:
    """Batches stay as large as in a lane of the usual width: nobody else is ever woken."""
    replies = Replies()
    under_way = most = 0

    async def quick(items: Sequence[str]) -> Sequence[str]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(turns):
            await asyncio.sleep(0)
        under_way -= 1
        return [f"{item}!" for item in items]

    wide = lane(quick, width=9, spacing_s=3600)
    async with running(wide):
        for number in range(20_000):
            wide.offer(str(number), replies)
            if number % 90 == 0:
                await asyncio.sleep(0)
        await replies.wait(20_000)
    assert most == limits.LANE_WIDTH
    assert wide.batches < 20_000 / 80


async def test_a_runner_that_returns_keeps_apart_too_and_leaves_nothing_waiting() -> None:
    """Else two calls could begin together, and all places be taken sooner than a call may take."""
    replies, store = Replies(), Store()
    gates = [asyncio.Event() for _ in range(9)]

    async def one_by_one(items: Sequence[str]) -> Sequence[str]:
        gate = gates[len(store.calls)]
        answer = await store(items)
        await gate.wait()
        return answer

    wide = lane(one_by_one, width=4, spacing_s=0.0)
    async with running(wide):
        for number in range(3):
            store.called.clear()
            wide.offer(str(number), replies)
            async with asyncio.timeout(5):
                await store.called.wait()
        wide._spacing_s = 3600
        wide.offer("late", replies)
        gates[0].set()
        await replies.wait(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(store.calls) == 3, "two are still in flight, and one began just now"
        gates[3].set()
        gates[1].set()
        await replies.wait(3)
        gates[2].set()
        await replies.wait(4)
    assert store.calls[3] == ["late"]


@pytest.mark.parametrize("guilty", [0, 3, 99])
async def test_only_the_guilty_command_of_a_refused_batch_gets_internal(guilty: int) -> None:
    store, replies = Store(), Replies()
    bad = str(guilty)
    store.fails = lambda items: ValueError("22021") if bad in items else None
    one = lane(store, width=1)
    for number in range(100):
        one.offer(str(number), replies)
    async with running(one):
        await replies.wait(100)
    answers = dict(replies.got)
    assert len(replies.got) == len(answers) == 100
    assert answers.pop(bad) == "refused:internal"
    assert all(answers[name] == f"{name}!" for name in answers)


async def test_an_answer_of_the_wrong_length_is_no_answer() -> None:
    replies = Replies()

    async def short(items: Sequence[str]) -> Sequence[str]:
        return [f"{item}!" for item in items][: 1 if len(items) > 1 else 0]

    one = lane(short)
    one.offer("a", replies)
    one.offer("b", replies)
    async with running(one):
        await replies.wait(2)
    assert sorted(replies.got) == [("a", "refused:internal"), ("b", "refused:internal")]


async def test_the_same_batch_is_sent_again_after_a_lost_connection() -> None:
    """INV-7: an unknown commit is settled by sending the same commands again."""
    store, replies = Store(), Replies()
    failures = [Away(), Away(), None]
    store.fails = lambda _: failures.pop(0)
    one = lane(store, width=1)
    one.offer("a", replies)
    one.offer("b", replies)
    async with running(one):
        await replies.wait(2)
    assert store.calls == [["a", "b"]] * 3
    assert replies.got == [("a", "a!"), ("b", "b!")]


async def test_commands_wait_for_an_absent_store_only_so_long() -> None:
    store, replies = Store(), Replies()
    store.fails = lambda _: Away()
    one = lane(store, patience_s=0.2, width=1)
    async with running(one):
        one.offer("a", replies)
        one.offer("b", replies)
        await replies.wait(2)
        assert replies.got == [("a", "refused:unavailable"), ("b", "refused:unavailable")]
        store.fails = lambda _: None
        one.offer("c", replies)
        await replies.wait(3)
    assert replies.got[-1] == ("c", "c!")


async def test_commands_of_one_key_never_overlap_across_lanes() -> None:
    order, replies = Order(), Replies()
    starts, finishes = Store(), Store()
    starts.gate.clear()
    start = lane(starts, order=order, key=lambda item: item[0])
    finish = lane(finishes, order=order, key=lambda item: item[0])
    async with running(start, finish):
        start.offer("a-start", replies)
        finish.offer("a-finish", replies)
        finish.offer("b-finish", replies)
        await replies.wait(1)
        assert replies.got == [("b-finish", "b-finish!")]
        starts.gate.set()
        await replies.wait(3)
    assert replies.got[1:] == [("a-start", "a-start!"), ("a-finish", "a-finish!")]
    assert len(order) == 0


async def test_what_has_waited_for_too_long_is_not_carried_out_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-37: its caller has had an answer, and the store has enough to do."""
    store, replies = Store(), Replies()
    now = [100.0]
    monkeypatch.setattr(lanes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = lane(store, patience_s=5.0, width=1)
    store.gate.clear()
    async with running(one):
        one.offer("a", replies)
        await store.called.wait()
        one.offer("b", replies)
        now[0] += 6
        one.offer("c", replies)
        store.gate.set()
        await replies.wait(3)
    assert store.calls == [["a"], ["c"]]
    assert sorted(replies.got) == [("a", "a!"), ("b", "refused:unavailable"), ("c", "c!")]
    assert one.open == 0


async def test_again_goes_into_a_later_batch() -> None:
    replies, asked = Replies(), []

    async def store(items: Sequence[str]) -> Sequence[str]:
        asked.append(list(items))
        return ["again" if len(asked) == 1 and item == "b" else item for item in items]

    one = lane(store, again={"again": 0.0}.get, width=1)
    for name in "abc":
        one.offer(name, replies)
    async with running(one):
        await replies.wait(3)
    assert asked == [["a", "b", "c"], ["b"]]
    assert sorted(replies.got) == [("a", "a"), ("b", "b"), ("c", "c")]


async def test_a_command_whose_row_is_held_comes_again_and_costs_no_other_its_turn() -> None:
    """INV-39: it is asked for again and again until its row is free, and others go meanwhile."""
    replies, asked, is_free = Replies(), Counter[str](), asyncio.Event()

    async def store(items: Sequence[str]) -> Sequence[str]:
        asked.update(items)
        return ["locked" if item == "b" and not is_free.is_set() else item for item in items]

    one = lane(store, again={"locked": 0.001}.get, width=1)
    async with running(one):
        for number, name in enumerate(("a", "b", "c", "d", "e")):
            one.offer(name, replies)
            await replies.wait(number + (number < 1))
        assert [name for name, _ in replies.got] == ["a", "c", "d", "e"]
        await eventually(lambda: asked["b"] > 3)
        assert one.open == 1
        is_free.set()
        await replies.wait(5)
    assert (asked.pop("b") > 3, set(asked.values())) == (True, {1})


@pytest.mark.parametrize("held", [0, 3, 99])
async def test_a_lock_that_lasts_is_no_guilt_and_the_others_are_answered(held: int) -> None:
    """INV-39: a store that gives up waiting for one row of a batch."""
    store, replies = Store(), Replies()
    name, is_free = str(held), asyncio.Event()
    store.fails = lambda items: Held() if name in items and not is_free.is_set() else None
    one = lane(store, width=1)
    for number in range(100):
        one.offer(str(number), replies)
    async with running(one):
        await replies.wait(99)
        assert name not in dict(replies.got)
        one.offer("later", replies)
        await replies.wait(100)
        assert replies.got[-1] == ("later", "later!")
        is_free.set()
        await replies.wait(101)
    assert replies.got[-1] == (name, f"{name}!")


async def test_a_lock_that_outlasts_patience_is_unavailable_and_nothing_is_done_later() -> None:
    """INV-37."""
    store, replies = Store(), Replies()
    store.fails = lambda items: Held() if "a" in items else None
    one = lane(store, width=1, patience_s=0.2)
    async with running(one):
        one.offer("a", replies)
        await replies.wait(1)
        assert replies.got == [("a", "refused:unavailable")]
        assert one.open == 0
        calls = len(store.calls)
        one.offer("b", replies)
        await replies.wait(2)
    assert store.calls[calls:] == [["b"]]


async def test_a_store_that_answers_is_not_stuck_though_rows_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-40: halves are calls of their own; a node does not look stuck for one held row."""
    store, replies = Store(), Replies()
    now = [100.0]
    monkeypatch.setattr(lanes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    seen = []

    def fails(items: Sequence[str]) -> Exception | None:
        seen.append(one.stuck_s())
        now[0] += 2
        return Held() if "a" in items else None

    store.fails = fails
    one = lane(store, width=1)
    for name in "abcd":
        one.offer(name, replies)
    async with running(one):
        await replies.wait(3)
    assert seen[:5] == [0.0] * 5, "the whole, two halves, two single ones"


async def test_a_full_lane_refuses_and_takes_again_when_it_has_room() -> None:
    """INV-37: at the bound a command is refused at once, and no reply ever comes for it."""
    store, replies = Store(), Replies()
    small = lane(store, queue_max=2)
    store.gate.clear()
    async with running(small):
        assert [small.offer(name, replies) for name in "abc"] == [True, True, False]
        store.gate.set()
        await replies.wait(2)
        assert small.offer("d", replies)
        await replies.wait(3)
    assert [command for command, _ in replies.got] == ["a", "b", "d"]


async def test_a_reply_that_raises_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """INV-39: one session's fault is not the lane's."""
    store, replies = Store(), Replies()

    def broken(_command: str, _outcome: str | Refused) -> None:
        raise RuntimeError("no such session")

    order = Order()
    one = lane(store, order=order, key=lambda item: item)
    async with running(one):
        one.offer("a", broken)
        one.offer("b", replies)
        await replies.wait(1)
    assert len(order) == 0
    assert one.open == 0
    assert "reply_failed" in capsys.readouterr().out


async def test_a_lane_knows_how_long_the_store_has_kept_it_waiting() -> None:
    store, replies = Store(), Replies()
    one = lane(store)
    assert one.stuck_s() == 0.0
    store.gate.clear()
    async with running(one):
        one.offer("a", replies)
        async with asyncio.timeout(5):
            await store.called.wait()
        first = one.stuck_s()
        await asyncio.sleep(0)
        assert one.stuck_s() > first >= 0.0
        store.gate.set()
        await replies.wait(1)
    assert one.stuck_s() == 0.0


def test_the_codes_a_lane_may_answer_by_itself_are_retryable_or_final_as_they_say() -> None:
    from orbit_sdk.protocol.errors import ERRORS

    assert ERRORS[ErrorCode.UNAVAILABLE].retryable
    assert ERRORS[ErrorCode.RATE_LIMITED].retryable
    assert limits.BATCH_COMMANDS_MAX == 500
