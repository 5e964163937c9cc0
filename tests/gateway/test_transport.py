"""Below the frames: fragments, broken framing, floods and peers that stand still.

Whatever one peer does here, a worker on the same gateway must go on as if nothing were.
"""

import asyncio
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from gateway import limits
from orbit_sdk.protocol.limits import FRAME_BYTES_MAX, HTTP_BODY_BYTES_MAX
from tests.gateway.harness import App, Gateway, Worker, capability, ids, new_secret, worker_on
from tests.gateway.raw_socket import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    RawSocket,
    fragments,
    frame,
    raw_socket,
    upgrade_request,
)

HALF = b" " * (FRAME_BYTES_MAX // 2)


@pytest.fixture
def port(gateway: Gateway) -> int:
    found = urlsplit(gateway.url).port
    assert found is not None
    return found


@pytest.fixture
async def peer(port: int) -> AsyncIterator[RawSocket]:
    with raw_socket(port) as opened:
        yield opened


def hello(app: App) -> bytes:
    body = {
        "instance_id": ids.next(),
        "instance_secret": new_secret(),
        "queue_id": app.queue_id,
        "capabilities": [capability()],
        "capacity": 1,
    }
    message = {"protocol_version": "1", "type": "worker.hello", "message_id": ids.next()}
    return json.dumps({**message, "body": body}).encode()


async def welcomed(peer: RawSocket, app: App) -> None:
    await peer.upgrade(app.credential)
    await peer.send(frame(TEXT, hello(app)))
    assert (await peer.read_json())["type"] == "worker.welcome"


async def goes_on(worker: Worker, sequence: int) -> None:
    body = {"sequence": str(sequence), "capacity": 1, "drain": False}
    assert (await worker.ask("worker.capacity", body))["type"] == "ack"


@asynccontextmanager
async def undisturbed(gateway: Gateway, app: App) -> AsyncIterator[None]:
    """Another worker's requests are answered while the body runs, and after it."""
    async with worker_on(gateway, app) as worker:
        sequence = 1
        done = asyncio.Event()

        async def keep_asking() -> None:
            nonlocal sequence
            while not done.is_set():
                await goes_on(worker, sequence)
                sequence += 1

        asking = asyncio.create_task(keep_asking())
        try:
            yield
        finally:
            done.set()
            await asking
        await goes_on(worker, sequence)


# --- framing -----------------------------------------------------------------------------------


async def test_one_frame_in_three_fragments_with_a_ping_between(peer: RawSocket, app: App) -> None:
    await peer.upgrade(app.credential)
    first, second, third = _cut(hello(app))
    await peer.send(first + frame(PING, b"between") + second + third)
    assert await peer.read_frame() == (PONG, b"between")
    assert (await peer.read_json())["type"] == "worker.welcome"


async def test_a_character_may_be_cut_by_a_fragment(peer: RawSocket, app: App) -> None:
    await welcomed(peer, app)
    message_id = ids.next()
    text = json.dumps({"message_id": message_id, "ä": 1}, ensure_ascii=False).encode()
    await peer.send(fragments(text, text.index("ä".encode()) + 1))
    answer = await peer.read_json()
    assert (answer["error"]["code"], answer["reply_to"]) == ("bad_frame", message_id)


async def test_the_smallest_tcp_segments_make_a_frame(peer: RawSocket, app: App) -> None:
    await peer.upgrade(app.credential)
    for byte in frame(TEXT, hello(app)):
        await peer.send(bytes([byte]))
    assert (await peer.read_json())["type"] == "worker.welcome"


BROKEN = {
    "reserved data opcode": (frame(3, b"x"), 1002),
    "reserved control opcode": (frame(11, b"x"), 1002),
    "reserved bit": (frame(TEXT, b"{}", rsv=4), 1002),
    "not masked": (frame(TEXT, b"{}", masked=False), 1002),
    "fragmented ping": (frame(PING, b"x", fin=False), 1002),
    "large ping": (frame(PING, b"x" * 126), 1002),
    "continuation of nothing": (frame(CONT, b"x"), 1002),
    "text inside a message": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
    "close of one byte": (frame(CLOSE, b"x"), 1002),
    "close with a reserved code": (frame(CLOSE, struct.pack("!H", 1005)), 1002),
    "binary": (frame(BINARY, b"{}"), 1003),
    "no UTF-8": (frame(TEXT, b'{"\xff": 1}'), 1007),
    "no UTF-8 in fragments": (fragments(b'{"\xc3(": 1}', 3), 1007),
    "too large": (frame(TEXT, b" " * (FRAME_BYTES_MAX + 1)), 1009),
    "too large by its head": (b"\x81\xff" + struct.pack("!Q", 2**40), 1009),
    "too large by a negative length": (b"\x81\xff" + struct.pack("!Q", 2**64 - 1), 1009),
    "too large in fragments": (fragments(HALF + HALF + b" ", len(HALF), 2 * len(HALF)), 1009),
    "too many fragments": (
        frame(TEXT, b"{", fin=False) + frame(CONT, fin=False) * limits.FRAGMENTS_MAX,
        1009,
    ),
}


@pytest.mark.parametrize(("data", "code"), BROKEN.values(), ids=BROKEN)
async def test_broken_framing_closes_with_its_code(
    gateway: Gateway, peer: RawSocket, app: App, data: bytes, code: int
) -> None:
    """OP-07; and nobody else hears of it."""
    async with undisturbed(gateway, app):
        await welcomed(peer, app)
        await peer.send(data)
        assert await peer.close_code() == code


async def test_a_peer_that_is_still_sending_learns_why_it_is_closed(
    peer: RawSocket, app: App
) -> None:
    """OP-07: bytes that nobody reads become a reset, ahead of the frame that says why."""
    await welcomed(peer, app)
    await peer.send(BROKEN["too large by its head"][0])
    for _ in range(64):
        await peer.send(b" " * 65_536)
    assert await peer.close_code() == 1009


async def test_garbage_after_the_upgrade_closes_the_connection(
    gateway: Gateway, app: App, port: int
) -> None:
    async with undisturbed(gateway, app):
        for _ in range(20):
            with raw_socket(port) as peer:
                await peer.upgrade(app.credential)
                # A length that is read as a long frame is waited for, until no hello came.
                await peer.send(b"\xff" + os.urandom(64))
                assert await peer.close_code() == 1002


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01" + bytes(200), b"GET\r\n\r\n", bytes(100)])
async def test_garbage_instead_of_a_request_closes_the_connection(
    gateway: Gateway, peer: RawSocket, app: App, garbage: bytes
) -> None:
    async with undisturbed(gateway, app):
        await peer.send(garbage)
        assert (await peer.read(12)).startswith(b"HTTP/1.1 400")


# --- floods ------------------------------------------------------------------------------------


async def test_ten_thousand_pings_are_answered_and_disturb_nobody(
    gateway: Gateway, peer: RawSocket, app: App
) -> None:
    """R-130, R-158: a pong answers a ping and no operation."""
    await welcomed(peer, app)
    async with undisturbed(gateway, app):
        count = 10_000
        sending = asyncio.create_task(peer.send(frame(PING) * count))
        for _ in range(count):
            assert await peer.read_frame() == (PONG, b"")
        await sending
    await peer.send(frame(TEXT, b"{}"))
    assert (await peer.read_json())["error"]["code"] == "bad_frame"


async def test_frames_that_come_all_at_once_keep_their_order(peer: RawSocket, app: App) -> None:
    """Reads are cut into slices; frames must not notice."""
    await peer.upgrade(app.credential)
    await peer.send(frame(TEXT, hello(app)))
    session_id = (await peer.read_json())["session_id"]
    sent = [ids.next() for _ in range(600)]
    await peer.send(
        b"".join(frame(TEXT, _capacity(session_id, id, n)) for n, id in enumerate(sent))
    )
    answers = [await peer.read_json() for _ in sent]
    assert [answer["reply_to"] for answer in answers] == sent
    assert {answer["type"] for answer in answers} == {"ack"}


async def test_a_peer_that_reads_no_pong_is_owed_only_the_last_one(
    gateway: Gateway, app: App, port: int
) -> None:
    count = 40_000
    with raw_socket(port, receive_bytes=4_096) as peer:
        await welcomed(peer, app)
        async with undisturbed(gateway, app):
            for number in range(count):
                await peer.send(frame(PING, str(number).encode().ljust(120)))
        pongs = 0
        last = b""
        while last.strip() != str(count - 1).encode():
            opcode, last = await peer.read_frame()
            pongs += opcode == PONG
    assert pongs < count


async def test_a_peer_that_asks_and_does_not_read_is_told_that_it_is_too_slow(
    gateway: Gateway, app: App, port: int
) -> None:
    """R-158: at the bound of its queue, with an error and 4429; what waited for it is dropped."""
    asked = 0
    with raw_socket(port, receive_bytes=4_096) as peer:
        await peer.upgrade(app.credential)
        await peer.send(frame(TEXT, hello(app)))
        session_id = (await peer.read_json())["session_id"]
        (flooded,) = gateway.node.connections
        async with undisturbed(gateway, app):
            while not flooded.gone:
                batch = [_unproven(session_id) for _ in range(100)]
                await peer.send(b"".join(frame(TEXT, message) for message in batch))
                asked += len(batch)
                assert asked < 20 * limits.SEND_FRAMES_MAX, "nothing bounds its queue"
            assert len(flooded._out) <= 2, "what waited is dropped; an error and a close remain"
            while (said := await peer.read_json())["error"]["code"] == "attempt_not_found":
                pass
            assert said["error"]["code"] == "slow_consumer"
            assert "reply_to" not in said
            assert await peer.close_code() == 4429


async def test_the_kernel_is_told_when_to_give_a_silent_peer_up(
    gateway: Gateway, peer: RawSocket, app: App
) -> None:
    """A frozen machine acknowledges nothing; its connection is not kept for quarter of an hour."""
    await welcomed(peer, app)
    connections = list(gateway.server.server_state.connections)
    assert connections
    for connection in connections:
        accepted = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
        timeout_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert timeout_ms == limits.TCP_USER_TIMEOUT_MS


# --- heads -------------------------------------------------------------------------------------


async def test_a_head_that_never_ends_is_given_up(
    gateway: Gateway, app: App, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slowloris: a byte now and then, before any credential; silence; a second request."""
    monkeypatch.setattr(limits, "HEAD_TIMEOUT_S", 0.5)
    async with undisturbed(gateway, app):
        for began in (b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\n", upgrade_request("x")[:-2]):
            with raw_socket(port) as peer:
                await peer.send(began)
                with pytest.raises((EOFError, OSError)):
                    await _drip(peer, b"x" if began else b"")
        with raw_socket(port) as peer:
            whole = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            await peer.send(whole)
            assert (await peer.read(12)) == b"HTTP/1.1 200"
            await peer.send(whole[:-2])
            with pytest.raises((EOFError, OSError)):
                await _drip(peer, b"x")


@pytest.mark.parametrize("line", [b"X-A: " + b"y" * 1_000 + b"\r\n", b"X-A: " + b"y" * 200_000])
async def test_a_head_over_the_limit_is_refused(
    gateway: Gateway, peer: RawSocket, app: App, line: bytes
) -> None:
    async with undisturbed(gateway, app):
        head = b"GET /health/live HTTP/1.1\r\nHost: x\r\n" + line * (200_000 // len(line))
        sending = asyncio.create_task(_endlessly(peer, head, line))
        # Unread bytes of ours may turn the close into a reset, which may overtake the answer.
        with pytest.raises((EOFError, OSError)):
            await _read_to_the_end(peer)
        with pytest.raises(OSError, match=r"reset|pipe"):
            await sending


async def test_a_large_body_is_no_head(gateway: Gateway, app: App) -> None:
    """One connection for all: the head's bounds start anew with each request."""
    async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http:
        body = {"queue": app.queue, **capability(), "recovery_safety": "IDEMPOTENT"}
        for number in range(5):
            answer = await http.post(
                "/v1/tasks",
                json={**body, "payload": "x" * 200_000},
                headers={"Idempotency-Key": str(number)},
            )
            assert answer.status_code == 201, answer.text


async def test_a_body_over_the_limit_gets_its_answer_however_much_follows(
    gateway: Gateway, app: App, port: int
) -> None:
    """A close with bytes unread would become a reset, and could overtake the 413."""
    async with undisturbed(gateway, app):
        for _ in range(10):
            with raw_socket(port) as peer:
                size = 4 * HTTP_BODY_BYTES_MAX
                await peer.send(
                    f"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
                    f"Content-Type: application/json\r\nIdempotency-Key: a\r\n"
                    f"Authorization: Bearer {app.credential}\r\n\r\n".encode()
                )
                await peer.send(bytes(size))
                assert (await peer.read(12)) == b"HTTP/1.1 413"
                with pytest.raises(EOFError):
                    await _read_to_the_end(peer)


async def test_a_body_that_never_ends_is_not_read_for_ever(
    gateway: Gateway, app: App, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINGER_S", 0.3)
    async with undisturbed(gateway, app):
        with raw_socket(port) as peer:
            head = (
                f"POST /v1/tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                f"Content-Type: application/json\r\nIdempotency-Key: a\r\n"
                f"Authorization: Bearer {app.credential}\r\n\r\n"
            ).encode()
            chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
            sending = asyncio.create_task(_endlessly(peer, head, chunk))
            assert (await peer.read(12)) == b"HTTP/1.1 413"
            with pytest.raises(OSError, match=r"reset|pipe"):
                await sending


def _cut(payload: bytes) -> tuple[bytes, bytes, bytes]:
    third = len(payload) // 3
    return (
        frame(TEXT, payload[:third], fin=False),
        frame(CONT, payload[third : 2 * third], fin=False),
        frame(CONT, payload[2 * third :]),
    )


def _unproven(session_id: str) -> bytes:
    """A renewal that is answered at once, without the store."""
    body = {"task_id": "0" * 32, "attempt_id": "0" * 32, "epoch": "1", "lease_secret": "A" * 43}
    head = {"protocol_version": "1", "type": "task.renew", "message_id": ids.next()}
    return json.dumps({**head, "session_id": session_id, "body": body}).encode()


def _capacity(session_id: str, message_id: str, number: int) -> bytes:
    body = {"sequence": str(number + 1), "capacity": 1, "drain": False}
    head = {"protocol_version": "1", "type": "worker.capacity", "message_id": message_id}
    return json.dumps({**head, "session_id": session_id, "body": body}).encode()


async def _endlessly(peer: RawSocket, head: bytes, line: bytes) -> None:
    await peer.send(head)
    while True:
        await peer.send(line)


async def _read_to_the_end(peer: RawSocket) -> None:
    while True:
        await peer.read(1)


async def _drip(peer: RawSocket, data: bytes) -> None:
    """Send a byte now and then, and read, until the other end has had enough."""
    reading = asyncio.create_task(_read_to_the_end(peer))
    while not reading.done():
        await peer.send(data)
        await asyncio.wait([reading], timeout=0.1)
    reading.result()
