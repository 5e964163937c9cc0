"""A close that lets the last word arrive, when the peer is still sending.

Under the HTTP and the socket protocol classes. Bytes that nobody reads become a reset, and that
overtakes the answer, or the frame, which says why the connection ends. So only our half is closed
first, and for a moment what the peer sends is thrown away (RFC 9112, 9.6; RFC 6455, 7.1.1).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway import limits


class LingeringTransport:
    """A transport whose `close` lingers if `peer_may_send` says so; the rest is the transport's."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        peer_may_send: Callable[[], bool],
    ) -> None:
        self.real = transport
        self.loop = loop
        self.lingers = False
        """Whether only the peer's half is open; the protocol is to throw away what comes."""
        self._peer_may_send = peer_may_send

    def close(self) -> None:
        if self.lingers or self.real.is_closing():
            return
        if not self._peer_may_send() or not self.real.can_write_eof():
            self.real.close()
            return
        self.lingers = True
        self.real.write_eof()
        self.real.resume_reading()
        self.loop.call_later(limits.LINGER_S, self.real.close)

    def is_closing(self) -> bool:
        return self.lingers or self.real.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
