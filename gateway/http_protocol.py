"""The HTTP protocol class: a request's head has a time and a size, an early answer arrives.

Under the web framework, before any credential is known. uvicorn waits for ever for the rest of a
head and keeps however much of one comes (INV-37); bodies are bounded where they are read. And it
closes with bytes unread, which becomes a reset that overtakes the refusal of a large body.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway import limits
from gateway.lingering import LingeringTransport

_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with bounds on a request's head, the upgrade's included."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._lingering: LingeringTransport | None = None

    @property
    def body_is_unread(self) -> bool:
        """Whether the request that is answered has not come to its end."""
        return bool(getattr(self.cycle, "more_body", False))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection owes a whole head."""
        real = cast(asyncio.Transport, transport)
        self._lingering = LingeringTransport(real, self.loop, lambda: self.body_is_unread)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is owed any more."""
        self._head_is_whole()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a head count until it is whole; what follows an early answer is thrown away."""
        if self._lingering is not None and self._lingering.lingers:
            return
        if self._head_timer is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_timer is not None and self._head_bytes > limits.HEAD_BYTES_MAX:
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def handle_websocket_upgrade(self) -> None:
        """A socket's protocol takes the connection over as it is."""
        if self._lingering is not None:
            self.transport = self._lingering.real
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """The first byte of a request, maybe not the first one of its connection."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """The head is whole: whatever follows has bounds of its own."""
        self._head_is_whole()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(limits.HEAD_TIMEOUT_S, self._head_late)

    def _head_is_whole(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
