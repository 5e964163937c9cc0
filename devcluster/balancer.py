"""A small TCP load balancer that can also misbehave on purpose.

It stands before the gateways of a local cluster as a real balancer would: nothing is sticky, each
new connection goes to the next backend, one that does not answer is passed over. Put before one
backend it is a fault proxy: added latency, a stall with sockets open, cut connections, refusal.

`Balancer` is the asyncio form; `ThreadedBalancer` runs one in a thread, so that callers without
an event loop (or with a busy one) can use it.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from devcluster.processes import LOOPBACK

T = TypeVar("T")

CHUNK_BYTES = 65_536
# Chunks of one direction that wait for the other side; then its sender is no longer read.
CHUNKS_WAITING_MAX = 64
CONNECT_TIMEOUT_S = 2.0
# How long a backend that did not answer is tried last.
BACKEND_REST_S = 1.0


class Balancer:
    """Round robin over `backends`, ports of the loopback address.

    Attributes that may be set at any time: `backends`; `latency_s`, added to each direction;
    `refusing`, new connections are reset at once; `refusing_upgrades`, those are whose first bytes
    ask for a WebSocket, and plain HTTP passes.
    """

    def __init__(self, backends: Sequence[int], port: int = 0) -> None:
        self.backends = list(backends)
        self.latency_s = 0.0
        self.refusing = False
        self.refusing_upgrades = False
        self.port = port
        self._turn = 0
        self._rests_until: dict[int, float] = {}
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._sockets: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; `port` is the real one afterwards."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many client connections are open."""
        return len(self._connections)

    def stall(self) -> None:
        """Pass no more bytes in either direction; sockets stay open."""
        self._flows.clear()

    def resume(self) -> None:
        """Pass everything that waited, and go on."""
        self._flows.set()

    def cut(self) -> None:
        """Reset every open connection, both sides; bytes under way are lost."""
        for writer in list(self._sockets):
            _reset(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sockets.add(writer)
        try:
            first = await reader.read(CHUNK_BYTES) if self.refusing_upgrades else b""
            is_refused = self.refusing or b"upgrade: websocket" in first.lower()
            backend = None if is_refused else await self._connect()
            if backend is None:
                _reset(writer)
                return
            backend[1].write(first)
            self._sockets.add(backend[1])
            try:
                if await self._couple((reader, writer), backend):
                    # What still waits in the sockets is delivered.
                    writer.close()
                    backend[1].close()
            finally:
                self._sockets.discard(backend[1])
                _reset(backend[1])
        finally:
            self._sockets.discard(writer)
            _reset(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in self._order():
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(LOOPBACK, port)
            except (OSError, TimeoutError):
                self._rests_until[port] = time.monotonic() + BACKEND_REST_S
        return None

    def _order(self) -> list[int]:
        """Backends from the next in turn on, those that just failed last."""
        backends = self.backends
        if not backends:
            return []
        self._turn = (self._turn + 1) % len(backends)
        now = time.monotonic()
        turned = backends[self._turn :] + backends[: self._turn]
        return sorted(turned, key=lambda port: self._rests_until.get(port, 0.0) > now)

    async def _couple(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        backend: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> bool:
        """Pass bytes both ways until both ends have finished (True), or one is lost (False)."""
        in_order = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(client[0], backend[1]))
                group.create_task(self._pass_on(backend[0], client[1]))
        except* OSError:
            in_order = False
        return in_order

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_WAITING_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(source, waiting))
            group.create_task(self._write(waiting, sink))

    async def _read(
        self, source: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        data = b"first"
        while data:
            data = await source.read(CHUNK_BYTES)
            await waiting.put((time.monotonic() + self.latency_s, data))

    async def _write(
        self, waiting: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter
    ) -> None:
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._flows.wait()
            if not data:
                # One end has said its last word; the other may still speak.
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


class ThreadedBalancer:
    """A `Balancer` in a thread of its own, for callers that have no event loop to spare."""

    def __init__(self, backends: Sequence[int], port: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="devcluster-balancer", daemon=True
        )
        self._thread.start()

        async def make() -> Balancer:
            return Balancer(backends, port)

        self._balancer = self._run(make())

    def start(self) -> Self:
        self._run(self._balancer.start())
        return self

    def stop(self) -> None:
        """Cut every connection and end the thread. Stopping twice is no error."""
        if self._loop.is_closed():
            return
        self._run(self._balancer.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        return self._balancer.port

    @property
    def connections(self) -> int:
        return self._balancer.connections

    def set_backends(self, backends: Sequence[int]) -> None:
        self._balancer.backends = list(backends)

    def set_latency(self, seconds: float) -> None:
        self._balancer.latency_s = seconds

    def set_refusing(self, refusing: bool) -> None:
        self._balancer.refusing = refusing

    def set_refusing_upgrades(self, refusing: bool) -> None:
        self._balancer.refusing_upgrades = refusing

    def stall(self) -> None:
        self._call(self._balancer.stall)

    def resume(self) -> None:
        self._call(self._balancer.resume)

    def cut(self) -> None:
        self._call(self._balancer.cut)

    def _call(self, function: Callable[[], None]) -> None:
        async def call() -> None:
            function()

        self._run(call())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End the connection with RST, unless it is closing in order."""
    if writer.is_closing():
        return
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    writer.transport.abort()
