"""However many peers send without end, a turn of the loop takes in no more than its bound.

Told by bytes between turns, not by times: a beat takes so many turns, and nothing longer.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway import limits
from gateway.intake import Intake
from tests.gateway.harness import App, Gateway, eventually, ids
from tests.gateway.raw_socket import PONG, TEXT, RawSocket, frame, raw_socket
from tests.gateway.test_transport import hello, welcomed

SHARE = limits.TURN_SHARE_BYTES
SHARES_A_TURN = limits.TURN_BYTES // SHARE


class Waiting:
    """Somebody with so many shares to take in, into a log of who took one."""

    def __init__(self, name: str, shares: int, log: list[str]) -> None:
        self.name = name
        self.left = shares
        self._log = log

    @property
    def waits(self) -> bool:
        return self.left > 0

    def take_share(self) -> int:
        self.left -= 1
        self._log.append(self.name)
        if self.name == "bad":
            raise ValueError(self.name)
        return SHARE


async def test_what_comes_while_nobody_waits_is_taken_at_once_up_to_the_bound() -> None:
    intake = Intake()
    assert not intake.admits(SHARE + 1)
    for _ in range(SHARES_A_TURN):
        assert intake.admits(SHARE)
    assert not intake.admits(1)
    await asyncio.sleep(0)
    assert intake.admits(SHARE)


async def test_those_who_wait_take_turns_and_a_late_one_waits_for_one_round() -> None:
    log: list[str] = []
    intake = Intake()
    crowd = [Waiting(str(n), 30, log) for n in range(4 * SHARES_A_TURN)]
    for peer in crowd:
        intake.wait(peer)
    intake.wait(Waiting("late", 1, log))
    for turn in range(1, 5):
        await asyncio.sleep(0)
        assert len(log) == turn * SHARES_A_TURN
        assert not intake.admits(1), "nobody overtakes those who wait"
    assert log == [peer.name for peer in crowd]
    await asyncio.sleep(0)
    assert log[len(crowd)] == "late"
    await eventually(lambda: not any(peer.waits for peer in crowd))
    assert len(log) == 1 + 30 * len(crowd)
    await asyncio.sleep(0)
    assert intake.admits(SHARE)


async def test_one_that_raises_holds_up_nobody() -> None:
    log: list[str] = []
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    intake = Intake()
    for name, shares in (("bad", 2), ("good", 2)):
        intake.wait(Waiting(name, shares, log))
    for _ in range(4):
        await asyncio.sleep(0)
    assert log == ["bad", "good", "good"]
    assert len(raised) == 1


@asynccontextmanager
async def counted_by_turns(
    monkeypatch: pytest.MonkeyPatch, method: str, size: Callable[..., int]
) -> AsyncIterator[list[int]]:
    """The sum of what the calls of a method of the protocol take, turn by turn of the loop."""
    taken, turns = 0, [0]
    take = getattr(WebSocketsSansIOProtocol, method)

    def counted(self: WebSocketsSansIOProtocol, *args: Any) -> None:
        nonlocal taken
        taken += size(*args)
        take(self, *args)

    async def count() -> None:
        nonlocal taken
        while True:
            turns.append(taken)
            taken = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(WebSocketsSansIOProtocol, method, counted)
    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await counting


async def test_a_crowd_that_floods_makes_no_turn_longer(
    gateway: Gateway, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-37, INV-40: their sum is bounded, and each is answered frame by frame, in order."""
    peers, frames = 20, 500

    async def flood(peer: RawSocket, begin: asyncio.Event) -> None:
        await peer.upgrade(app.credential)
        await peer.send(frame(TEXT, hello(app)))
        session_id = (await peer.read_json())["session_id"]
        sent = [ids.next() for _ in range(frames)]
        flood = b"".join(frame(TEXT, _unproven(session_id, message_id)) for message_id in sent)
        await begin.wait()
        await peer.send(flood)
        assert [(await peer.read_json())["reply_to"] for _ in sent] == sent

    with ExitStack() as stack:
        port = urlsplit(gateway.url).port or 0
        opened = [stack.enter_context(raw_socket(port)) for _ in range(peers)]
        begin = asyncio.Event()
        floods = [asyncio.create_task(flood(peer, begin)) for peer in opened]
        await eventually(lambda: len(gateway.node.sockets) == peers)
        async with counted_by_turns(monkeypatch, "data_received", len) as turns:
            begin.set()
            await asyncio.gather(*floods)
    whole = peers * frames * len(_unproven("0" * 32, "0" * 32))
    assert sum(turns) >= whole > 8 * limits.TURN_BYTES
    # What came while nobody waited, and what those who waited took in the turn behind it.
    assert max(turns) <= 2 * limits.TURN_BYTES


async def test_a_crowd_of_pings_makes_no_turn_longer(
    gateway: Gateway, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest frames there are: by their bytes alone a turn would be a hundred thousand."""
    peers, pings = 10, 10_000
    with ExitStack() as stack:
        port = urlsplit(gateway.url).port or 0
        opened = [stack.enter_context(raw_socket(port)) for _ in range(peers)]
        for peer in opened:
            await welcomed(peer, app)
        async with counted_by_turns(monkeypatch, "handle_pong", lambda _: 1) as turns:
            await asyncio.gather(*(peer.send(frame(PONG) * pings) for peer in opened))
            await eventually(lambda: sum(turns) == peers * pings, 30)
    # The last share of a turn, and one that came while nobody waited.
    assert max(turns) <= 2 * (SHARE // len(frame(PONG)) + 1)


def _unproven(session_id: str, message_id: str) -> bytes:
    names = {"task_id": "0" * 32, "attempt_id": "0" * 32, "epoch": "1", "lease_secret": "A" * 43}
    head = {"protocol_version": "1", "type": "task.start", "message_id": message_id}
    return json.dumps(head | {"session_id": session_id, "body": names}).encode()
