"""WebSocket connections whose frames of one turn of the event loop leave in one write.

Under the socket shell, in place of uvicorn's own protocol class. A batch of the store answers many
commands of one socket at once, and uvicorn writes each frame by itself: a system call a frame, the
largest single cost of a busy gateway. Here frames gather until the loop's next turn, or until there
are enough of them for the transport's flow control to judge.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gateway import limits


class JoiningTransport:
    """A transport whose `write` joins what is written in one turn; the rest is the transport's."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._bytes = 0
        self.peer_may_send = False
        """Set before a close that the peer does not expect: bytes that nobody reads become a reset,
        and that overtakes the frame which says why (RFC 6455, 7.1.1)."""
        self.lingers = False
        """Whether only the peer's half is open, for a moment; what it sends is thrown away."""

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= limits.JOINED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self.lingers or self._transport.is_closing():
            return
        if not self.peer_may_send or not self._transport.can_write_eof():
            self._transport.close()
            return
        self.lingers = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(limits.LINGER_S, self._transport.close)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def _flush(self) -> None:
        if self._parts and not self._transport.is_closing():
            self._transport.write(b"".join(self._parts))
        self._parts.clear()
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class JoinedWritesProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol over a joining transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over from the HTTP protocol."""
        self.joining = JoiningTransport(cast(asyncio.Transport, transport), self.loop)
        super().connection_made(cast(asyncio.Transport, self.joining))
