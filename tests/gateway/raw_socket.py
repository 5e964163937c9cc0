"""A WebSocket client of bytes: it frames what it is told to, right or wrong, and hides nothing."""

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
ANSWER_S = 10.0


def frame(
    opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = True, rsv: int = 0
) -> bytes:
    """One frame of RFC 6455, section 5.2; the mask is zero, so the payload can be seen."""
    size = len(payload)
    mark = 0x80 if masked else 0
    if size < 126:
        length = bytes([mark | size])
    elif size < 65_536:
        length = bytes([mark | 126]) + struct.pack("!H", size)
    else:
        length = bytes([mark | 127]) + struct.pack("!Q", size)
    first = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    return first + length + (bytes(4) if masked else b"") + payload


def fragments(payload: bytes, *at: int) -> bytes:
    """One text message, cut at these places."""
    bounds = [0, *at, len(payload)]
    parts = [payload[a:b] for a, b in pairwise(bounds)]
    return b"".join(
        frame(CONT if number else TEXT, part, fin=number == len(parts) - 1)
        for number, part in enumerate(parts)
    )


class RawSocket:
    """One TCP connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._read = b""

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def upgrade(self, credential: str) -> None:
        """The handshake of a worker connection; it must be accepted."""
        await self.send(upgrade_request(credential))
        head = b""
        while b"\r\n\r\n" not in head:
            head += await self.read(1)
        assert head.startswith(b"HTTP/1.1 101 "), head

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes. Raises EOFError at the end of the connection."""
        while len(self._read) < size:
            async with asyncio.timeout(ANSWER_S):
                data = await self._loop.sock_recv(self.sock, 65_536)
            if not data:
                raise EOFError
            self._read += data
        data, self._read = self._read[:size], self._read[size:]
        return data

    async def read_frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame."""
        first, second = await self.read(2)
        size = second & 127
        if size == 126:
            (size,) = struct.unpack("!H", await self.read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.read(8))
        return first & 15, await self.read(size)

    async def read_json(self) -> dict[str, Any]:
        """The next text frame; pings on the way are left unanswered."""
        while True:
            opcode, payload = await self.read_frame()
            if opcode == TEXT:
                value: dict[str, Any] = json.loads(payload)
                return value
            assert opcode == PING, (opcode, payload)

    async def close_code(self) -> int | None:
        """Read to the end; the code of the close frame, None if there was none."""
        try:
            while True:
                opcode, payload = await self.read_frame()
                if opcode == CLOSE:
                    return int.from_bytes(payload[:2]) if payload else None
        except (EOFError, ConnectionResetError):
            return None


@contextmanager
def raw_socket(port: int, receive_bytes: int | None = None) -> Iterator[RawSocket]:
    """A connection to a local port, with a receive buffer as small as the system allows."""
    sock = socket.socket()
    try:
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.connect(("127.0.0.1", port))
        sock.setblocking(False)
        yield RawSocket(sock)
    finally:
        sock.close()


def upgrade_request(credential: str) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        "GET /v1/worker/connect HTTP/1.1\r\nHost: orbit\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: pulse.worker.v1\r\nAuthorization: Bearer {credential}\r\n\r\n"
    ).encode()
