"""The server process around the application: its listening socket, its loop, its way out.

uvicorn serves; this adds what it leaves open: a peer that is frozen with a full socket is dropped
by the kernel (TCP_USER_TIMEOUT), a send buffer is bounded, and a stop drains first instead of
cutting every connection at once (INV-41).
"""

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from gateway import limits
from gateway.http_protocol import BoundedHttpProtocol
from gateway.node import Node
from gateway.socket_protocol import SharedState, WorkerSocketProtocol
from orbit_sdk.protocol import limits as wire

_DENIED: Final = "ASGI callable returned without completing handshake."


class GatewayServer(uvicorn.Server):
    """A uvicorn server that drains its node before it closes connections."""

    def __init__(self, app: ASGIApp, node: Node, *, ping_interval_s: int, grace_s: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttpProtocol,
                ws=WorkerSocketProtocol,
                loop="uvloop",
                lifespan="off",
                log_config=None,
                access_log=False,
                backlog=limits.BACKLOG,
                ws_max_size=wire.FRAME_BYTES_MAX,
                ws_ping_interval=ping_interval_s,
                ws_ping_timeout=ping_interval_s,
                ws_per_message_deflate=False,
                timeout_graceful_shutdown=round(limits.DRAIN_FLUSH_S),
                server_header=False,
                proxy_headers=False,
            )
        )
        self.server_state = SharedState()
        self._node = node
        self._grace_s = grace_s

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The command owns the signals; this server stops when it is told to."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then close what is left."""
        await self._node.drain(self._grace_s)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections carry our kernel limits. Raises OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SOCKET_SEND_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.TCP_USER_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(limits.BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


async def serve(server: GatewayServer, node: Node, sock: socket.socket) -> None:
    """Run node and server until the server is told to exit and has drained."""
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    running = asyncio.create_task(node.run())
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await asyncio.wait([running, serving], return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        server.should_exit = True
    await asyncio.wait([serving])
    running.cancel()
    await asyncio.wait([running])
    serving.result()
    if not running.cancelled():
        running.result()


def _is_news(record: logging.LogRecord) -> bool:
    """A refused upgrade is answered as plain HTTP on purpose; uvicorn calls that an error."""
    return record.getMessage() != _DENIED
