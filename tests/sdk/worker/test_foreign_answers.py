"""What is not the cluster's own word never ends a worker (R-153), and takes its credential nowhere.

A stranger stands before the gateway and answers the first requests for one path itself: a proxy
under maintenance, a login page, a server of another kind, a broken line.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from orbit_sdk.backoff import Backoff
from orbit_sdk.errors import NotFound, OrbitError
from orbit_sdk.worker.worker import EXIT_CLEAN, Worker
from tests.sdk.worker.served_gateway import CREDENTIAL, ServedGateway, served_gateway

QUEUE, UPGRADE = b"GET /v1/queues/default ", b"GET /v1/worker/connect "
RESET = b"reset"
TRIES = 2


def answer(status: int, *headers: str, body: bytes = b"<html></html>") -> bytes:
    lines = [f"HTTP/1.1 {status} So", *headers, f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def away(status: int, location: str) -> bytes:
    return answer(status, f"Location: {location}")


ANSWERS = {
    **{str(status): answer(status) for status in (400, 404, 405, 426, 429, 500, 502, 503)},
    "200": answer(200),
    "301 relative": away(301, "/login"),
    "302 https": away(302, "https://elsewhere.invalid/"),
    "302 http": away(302, "http://{elsewhere}/v1/worker/connect"),
    "303 ws": away(303, "ws://{elsewhere}/v1/worker/connect"),
    "307 no scheme": away(307, "//{elsewhere}/v1/worker/connect"),
    "308 no address": away(308, "http://[::1"),
    "300 no port": away(300, "ws://elsewhere.invalid:99999999/"),
    "302 nowhere": answer(302),
    "500 of the cluster": answer(500, body=b'{"error":{"code":"internal"},"request_id":"r"}'),
    "not HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "TLS alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "half an answer": b"HTTP/1.1 20",
    "no length": b"HTTP/1.1 503 So\r\nContent-Length: many\r\n\r\n",
    "broken coding": answer(200, "Content-Encoding: gzip", body=b"no gzip"),
    "deep": answer(404, body=b"[" * 100_000),
    "nothing": b"",
    "reset": RESET,
}


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow one another at once: here it is told what follows, not when."""
    hasty = Backoff(first_s=0.01, cap_s=0.01)
    monkeypatch.setattr("orbit_sdk.worker.connection.connect_backoff", lambda *_: hasty)
    monkeypatch.setattr("orbit_sdk.worker.worker.CONNECT_BACKOFF", hasty)


class Stranger:
    """Answers `path` with `said` for the first `tries` times and passes on all else."""

    def __init__(self, gateway: ServedGateway, path: bytes, said: bytes, tries: int) -> None:
        self._gateway = gateway
        self._path = path
        self._said = said
        self._left = tries
        self.asked: list[bytes] = []
        self.sent_elsewhere: list[bytes] = []
        self._pipes: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Its address; at the one it sends others to, what arrives is kept."""
        elsewhere = await asyncio.start_server(self._elsewhere, "127.0.0.1", 0)
        host = f"127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}"
        self._said = self._said.replace(b"{elsewhere}", host.encode())
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with elsewhere, server:
            try:
                yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            finally:
                for pipe in self._pipes:
                    pipe.cancel()

    async def _elsewhere(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sent_elsewhere.append(await reader.read(65_536))
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        self.asked.append(head.split(b"\r\n")[0])
        if head.startswith(self._path) and self._left:
            self._left -= 1
            if self._said is RESET:
                writer.transport.abort()
                return
            writer.write(self._said)
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._gateway.port)
        back.write(head)
        for source, target in ((reader, back), (there, writer)):
            pipe = asyncio.create_task(_pipe(source, target))
            self._pipes.add(pipe)


async def _pipe(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
    target.close()


def worker_at(url: str) -> Worker:
    worker = Worker(url, CREDENTIAL)
    worker.handler("work")(lambda: None)
    return worker


@pytest.mark.parametrize("path", [QUEUE, UPGRADE], ids=["queue", "upgrade"])
@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
async def test_a_foreign_answer_is_only_tried_again(path: bytes, said: bytes) -> None:
    """B-16, INV-22."""
    async with served_gateway() as gateway:
        stranger = Stranger(gateway, path, said, TRIES)
        async with stranger.open() as address:
            worker = worker_at(f"http://{address}")
            served = asyncio.create_task(worker.serve())
            ready = asyncio.create_task(gateway.ready())
            await asyncio.wait({served, ready}, return_when=asyncio.FIRST_COMPLETED)
            assert not served.done(), served.exception()
            await ready
            worker.stop()
            assert await served == EXIT_CLEAN
        assert sum(line.startswith(path) for line in stranger.asked) > TRIES
        assert {line.split()[1] for line in stranger.asked} == {
            QUEUE.split()[1],
            UPGRADE.split()[1],
        }
        assert stranger.sent_elsewhere == []


@pytest.mark.parametrize("path", [QUEUE, UPGRADE], ids=["queue", "upgrade"])
async def test_trouble_with_tls_is_only_tried_again(
    path: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    enough = asyncio.Event()

    async def no_tls(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        if tries > TRIES:
            enough.set()
        writer.write(answer(400))
        writer.close()

    async def known(*_: object) -> str:
        return "b" * 32

    if path is UPGRADE:
        monkeypatch.setattr(Worker, "_queue_id", known)
    async with await asyncio.start_server(no_tls, "127.0.0.1", 0) as server:
        worker = worker_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        served = asyncio.create_task(worker.serve())
        waiting = asyncio.create_task(enough.wait())
        await asyncio.wait({served, waiting}, return_when=asyncio.FIRST_COMPLETED)
        assert not served.done(), served.exception()
        waiting.cancel()
        served.cancel()
        await asyncio.wait({served})


@pytest.mark.parametrize(
    ("path", "status", "code", "kind"),
    [
        (QUEUE, 404, "queue_not_found", NotFound),
        (UPGRADE, 400, "bad_request", OrbitError),
        (UPGRADE, 404, "not_found", NotFound),
    ],
)
async def test_a_refusal_in_the_clusters_own_words_ends_a_new_worker(
    path: bytes, status: int, code: str, kind: type[OrbitError]
) -> None:
    body = b'{"request_id":"r7","error":{"code":"%s","message":"No.","details":{}}}' % code.encode()
    async with served_gateway() as gateway:
        stranger = Stranger(gateway, path, answer(status, body=body), 1_000_000)
        async with stranger.open() as address:
            with pytest.raises(kind, match=code) as caught:
                await asyncio.wait_for(worker_at(f"http://{address}").serve(), 30)
    assert (caught.value.status, caught.value.request_id) == (status, "r7")
