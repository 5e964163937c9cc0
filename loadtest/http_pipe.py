"""A bare HTTP/1.1 client on kept connections: as little client cost as a benchmark can have.

One request at a time per connection; a pool of connections gives concurrency. Not a client for
anything but loopback load.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import httptools


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._body: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body = []
        status = self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        if self.answer is not None and not self.answer.done():
            self.answer.set_result((status, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError("the gateway closed the connection"))


class HttpPipe:
    """POST and GET over at most `connections` kept connections to one address."""

    def __init__(self, url: str, credential: str, connections: int) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {credential}\r\n"
        self._idle: asyncio.LifoQueue[_Connection | None] = asyncio.LifoQueue()
        for _ in range(connections):
            self._idle.put_nowait(None)

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: str = ""
    ) -> tuple[int, bytes]:
        """Send and wait for (status, body). Raises ConnectionError when the gateway goes."""
        connection = await self._idle.get()
        try:
            if connection is None or connection.transport is None:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, *self._address)
            connection.answer = asyncio.get_running_loop().create_future()
            head = (
                f"{method} {path} HTTP/1.1\r\n{self._head}{headers}"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            assert connection.transport is not None
            connection.transport.write(head.encode() + body)
            answer = await connection.answer
        except BaseException:
            self._idle.put_nowait(None)
            raise
        self._idle.put_nowait(connection)
        return answer

    def close(self) -> None:
        """Close the kept connections that no request is using."""
        while not self._idle.empty():
            connection = self._idle.get_nowait()
            if connection is not None and connection.transport is not None:
                connection.transport.close()
