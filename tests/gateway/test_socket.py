"""The socket shell: bounded, on time, and gone when the peer takes nothing (R-157, R-158)."""

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import limits
from gateway.faults import Fault
from gateway.lanes import Lane
from gateway.worker.registration import Registration
from gateway.worker.socket import WorkerSocket
from orbit_sdk.protocol import limits as wire
from tests.gateway.cores import (
    NOW,
    QUEUE,
    an_id,
    assignment,
    done,
    frame,
    hello,
    new_session,
    opened,
    ref,
    sent,
)
from tests.gateway.harness import eventually


class Peer:
    """The other end: what it was sent, and whether it takes more."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.close_code: int = 0
        self.takes = asyncio.Event()
        self.takes.set()
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def say(self, text: str) -> None:
        self._in.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1005})

    async def receive(self) -> MutableMapping[str, Any]:
        return await self._in.get()

    async def write(self, message: MutableMapping[str, Any]) -> None:
        await self.takes.wait()
        if message["type"] == "websocket.close":
            self.close_code = message["code"]
            self.leave()
        else:
            self.texts.append(message["text"])


class Surroundings:
    """The node as the shell sees it: hints, registrar and lanes that answer at once."""

    key_id = "0" * 16

    def __init__(self) -> None:
        self.grant = self
        self.changed = 0
        self.closed: list[str] = []
        self.admitted: list[WorkerSocket] = []
        self.opens: Callable[[Any], Any] = lambda hello: opened(capacity=hello.capacity)

        def lane(answer: Callable[[Any], Any]) -> Lane[Any, Any]:
            async def execute(items: Any) -> Any:
                return [answer(item) for item in items]

            return Lane("fake", execute, judge=lambda _: Fault.GUILTY)

        self.open = lane(lambda item: self.opens(item))
        self.capacity = lane(lambda _: None)
        self.close = lane(lambda item: self.closed.append(item.session_id))
        answering = lane(lambda _: done())
        self.attempts = dict.fromkeys(("start", "renew", "finish", "resume"), answering)
        self.lanes: tuple[Lane[Any, Any], ...] = (self.open, self.close, answering)

    async def look_up(self, _hello: object) -> Registration:
        return Registration(an_id(5), QUEUE, 1, (7,), self.key_id, 3_600_000)

    def admit(self, socket: WorkerSocket) -> None:
        self.admitted.append(socket)

    def dismiss(self, socket: WorkerSocket) -> None:
        self.admitted.remove(socket)

    def opened(self, _outcome: object) -> None:
        pass

    def level_changed(self, _socket: object) -> None:
        self.changed += 1

    def level_used(self, _socket: object) -> None:
        pass


@asynccontextmanager
async def connected(
    around: Surroundings, peer: Peer, *, ready: bool = True
) -> AsyncIterator[tuple[WorkerSocket, asyncio.Task[None]]]:
    parts: Any = around
    socket = WorkerSocket(
        new_session(),
        registrar=parts,
        commands=parts,
        hints=parts,
        receive=peer.receive,
        write=peer.write,
    )
    lanes = [asyncio.create_task(lane.run()) for lane in around.lanes]
    task = asyncio.create_task(socket.run(5.0))
    try:
        if ready:
            peer.say(hello(capacity=256))
            await eventually(lambda: len(peer.texts) == 1)
        yield socket, task
    finally:
        peer.takes.set()
        peer.leave()
        await asyncio.wait([task])
        await eventually(lambda: not any(lane.open for lane in around.lanes))
        for lane in lanes:
            lane.cancel()
        await asyncio.wait(lanes)


def level(socket: WorkerSocket) -> int:
    found = socket.level("0-0")
    assert found is not None
    return found.free


async def test_a_session_is_opened_reported_and_closed() -> None:
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (socket, task):
        assert level(socket) == 256
        assert around.admitted == [socket]
        peer.leave()
        await task
    assert around.closed == [socket.session.session_id]
    assert around.admitted == []
    assert level(socket) == 0


async def test_a_blocked_socket_with_a_full_queue_gets_no_further_dispatch() -> None:
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (socket, _):
        peer.takes.clear()
        for number in range(wire.SEND_QUEUE_FRAMES_MAX + 5):
            socket.assign([assignment(900 + number)])
            await asyncio.sleep(0)
        assert level(socket) == 0
        changed = around.changed
        peer.takes.set()
        await eventually(lambda: len(peer.texts) == 1 + wire.SEND_QUEUE_FRAMES_MAX + 5)
        await eventually(lambda: around.changed > changed)
        assert level(socket) == 256 - wire.SEND_QUEUE_FRAMES_MAX - 5


async def test_a_burst_to_a_healthy_socket_is_not_taken_for_a_full_queue() -> None:
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (socket, _):
        for number in range(200):
            socket.assign([assignment(900 + number)])
        assert level(socket) == 56
        await eventually(lambda: len(peer.texts) == 201)


async def test_a_queue_full_for_too_long_closes_with_4429(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (socket, task):
        peer.takes.clear()
        for number in range(100):
            socket.assign([assignment(900 + number)])
            await asyncio.sleep(0)
        now = asyncio.get_running_loop().time()
        # It takes a frame now and then, too slowly to empty the queue.
        monkeypatch.setattr(wire, "WRITE_DEADLINE_S", 1_000)
        socket.sweep(now + wire.SEND_QUEUE_FULL_S - 1)
        assert peer.close_code == 0
        socket.sweep(now + wire.SEND_QUEUE_FULL_S + 1)
        peer.takes.set()
        await task
    assert peer.close_code == 4429
    assert '"slow_consumer"' in peer.texts[-1]


async def test_the_hard_bound_of_the_queue_closes_with_4429(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-37, B-40: a flood of requests whose answers are not read costs bounded memory."""
    monkeypatch.setattr(limits, "SEND_FRAMES_MAX", 100)
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (_, task):
        peer.takes.clear()
        for number in range(300):
            peer.say(frame("task.start", ref(), 1000 + number, session_id=an_id(9)))
        await eventually(lambda: len(around.admitted) == 1)
        await asyncio.sleep(0.05)
        peer.takes.set()
        await task
    assert peer.close_code == 4429
    assert len(peer.texts) < 110


async def test_a_peer_that_takes_nothing_within_the_deadline_is_gone() -> None:
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (socket, task):
        peer.takes.clear()
        socket.assign([assignment()])
        await asyncio.sleep(0.01)
        now = asyncio.get_running_loop().time()
        socket.sweep(now + wire.WRITE_DEADLINE_S - 1)
        await asyncio.sleep(0)
        assert not task.done()
        socket.sweep(now + wire.WRITE_DEADLINE_S + 1)
        async with asyncio.timeout(5):
            await task
    assert around.closed == [socket.session.session_id]


async def test_an_end_of_the_link_while_the_hello_is_judged_still_closes_the_session() -> None:
    around, peer = Surroundings(), Peer()
    judged = asyncio.Event()

    async def slow(items: Any) -> Any:
        await judged.wait()
        return [opened(capacity=item.capacity) for item in items]

    around.open = Lane("slow", slow, judge=lambda _: Fault.GUILTY)
    around.lanes = (around.open, *around.lanes[1:])
    async with connected(around, peer, ready=False) as (socket, task):
        peer.say(hello())
        await eventually(lambda: around.open.open == 1)
        peer.leave()
        await asyncio.sleep(0)
        judged.set()
        await task
        await eventually(lambda: around.closed == [socket.session.session_id])


async def test_the_session_is_closed_only_after_its_commands_are_answered() -> None:
    around, peer = Surroundings(), Peer()
    answered = asyncio.Event()

    async def slow(items: Any) -> Any:
        await answered.wait()
        return [done() for _ in items]

    finishing = Lane("slow", slow, judge=lambda _: Fault.GUILTY)
    around.attempts["finish"] = finishing
    around.lanes = (*around.lanes, finishing)
    async with connected(around, peer) as (_, task):
        body = {"ref": ref(), "outcome": "SUCCEEDED", "result": 1}
        peer.say(frame("task.finish", body, 600))
        await eventually(lambda: finishing.open == 1)
        peer.leave()
        await asyncio.sleep(0.05)
        assert not task.done()
        assert around.closed == []
        answered.set()
        await task


async def test_every_frame_the_shell_wrote_is_a_server_frame() -> None:
    around, peer = Surroundings(), Peer()
    async with connected(around, peer) as (socket, _):
        peer.say(frame("task.start", ref(), 700))
        peer.say("{}")
        await eventually(lambda: peer.close_code != 0)
    from gateway.worker.actions import Send

    kinds = [item["type"] for item in sent(Send(text.encode()) for text in peer.texts)]
    assert kinds[0] == "worker.welcome"
    assert "error" in kinds
    assert socket.ends_at < float("inf")
    assert NOW.tzinfo is not None
