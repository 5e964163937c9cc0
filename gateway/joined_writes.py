"""WebSocket connections whose frames of one turn of the event loop leave in one write.

Under the socket shell, in place of uvicorn's own protocol class. A batch of the store answers many
commands of one socket at once, and uvicorn writes each frame by itself: a system call a frame, the
largest single cost of a busy gateway. Here frames gather until the loop's next turn, or until there
are enough of them for the transport's flow control to judge.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from gateway import limits
from gateway.lingering import LingeringTransport


class JoiningTransport(LingeringTransport):
    """A transport whose `write` joins what is written in one turn."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        peer_may_send: Callable[[], bool],
    ) -> None:
        super().__init__(transport, loop, peer_may_send)
        self._parts: list[bytes] = []
        self._bytes = 0

    def write(self, data: bytes) -> None:
        if not self._parts:
            self.loop.call_soon(self._flush)
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= limits.JOINED_BYTES_MAX:
            self._flush()

    def close(self) -> None:
        self._flush()
        super().close()

    def _flush(self) -> None:
        if self._parts and not self.real.is_closing():
            self.real.write(b"".join(self._parts))
        self._parts.clear()
        self._bytes = 0


class JoinedWritesProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol over a joining transport."""

    framing_is_broken = False
    """Set before a close that the peer does not expect: it may be in the middle of a message."""

    def __init__(self, config: Config, server_state: ServerState, **options: Any) -> None:
        super().__init__(config, server_state, **options)
        # At the level of debugging `websockets` writes headers and frames to the log, and with them
        # the credential and secrets (INV-42).
        self.conn.debug = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over from the HTTP protocol."""
        real = cast(asyncio.Transport, transport)
        self.joining = JoiningTransport(real, self.loop, lambda: self.framing_is_broken)
        super().connection_made(cast(asyncio.Transport, self.joining))
