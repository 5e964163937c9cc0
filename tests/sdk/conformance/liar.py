"""A server that hands everything on to a real gateway, and lies about what passes on its sockets.

What is no upgrade goes to the gateway byte by byte. `hears` changes what the gateway is told and
`says` what the worker is told; either may drop a frame by returning None.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from orbit_sdk.conformance.contract import V1, V2, Version

Frame = dict[str, Any]
Lie = Callable[[Frame], Frame | None]
HEAD_END = b"\r\n\r\n"
NO_LIE = (b"", b"")
NARROW = 4_096


def truthful(frame: Frame) -> Frame | None:
    return frame


@dataclass(frozen=True)
class Liar:
    """`prefers`: the versions it knows, the one it takes first in front."""

    says: Lie = truthful
    hears: Lie = truthful
    prefers: Sequence[Version] = (V2, V1)
    answers: tuple[bytes, bytes] = (b"", b"")
    """What the API says instead of what; of equal length."""
    stands_s: float | None = None
    """The first upgrade is cut off, here and at the gateway, when it takes nothing for so long."""


@asynccontextmanager
async def lying_gateway(url: str, credential: str, liar: Liar) -> AsyncIterator[str]:
    """The URL of the liar in front of the gateway at `url`."""
    subprotocols = [Subprotocol(version.subprotocol) for version in liar.prefers]

    async def hand_on(socket: ServerConnection) -> None:
        assert socket.subprotocol is not None
        async with connect(
            url.replace("http", "ws") + "/v1/worker/connect",
            subprotocols=[socket.subprotocol],
            additional_headers={"Authorization": f"Bearer {credential}"},
            compression=None,
            max_size=None,
        ) as real:
            await _pump(socket, real, liar)

    async with serve(
        hand_on, "127.0.0.1", 0, subprotocols=subprotocols, compression=None, max_size=None
    ) as server:
        sockets_port = server.sockets[0].getsockname()[1]
        api_port = urlsplit(url).port
        assert api_port is not None

        workers = count()

        async def sort(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _sort(reader, writer, sockets_port, api_port, liar, workers)

        async with await asyncio.start_server(sort, "127.0.0.1", 0) as front:
            yield f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"


async def _pump(socket: ServerConnection, real: ClientConnection, liar: Liar) -> None:
    async def up() -> None:
        with suppress(ConnectionClosed):
            async for text in socket:
                told = liar.hears(json.loads(text))
                if told is not None:
                    await real.send(json.dumps(told))
        await real.close()

    ups = asyncio.create_task(up())
    try:
        async for text in real:
            told = liar.says(json.loads(text))
            if told is not None:
                await socket.send(json.dumps(told))
    except ConnectionClosed:
        pass
    finally:
        closed = real.protocol.close_rcvd
        await socket.close(1000 if closed is None else closed.code)
        ups.cancel()
        await asyncio.wait([ups])


async def _sort(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    sockets_port: int,
    api_port: int,
    liar: Liar,
    workers: Iterator[int],
) -> None:
    """Lead a connection to the sockets or to the API, by its first request."""
    try:
        head = await reader.readuntil(HEAD_END)
    except asyncio.IncompleteReadError:
        writer.close()
        return
    is_upgrade = b"upgrade: websocket" in head.lower()
    port, lie = (sockets_port, NO_LIE) if is_upgrade else (api_port, liar.answers)
    back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
    back_writer.write(head)
    stands_s = liar.stands_s if is_upgrade and next(workers) == 0 else None
    if stands_s is not None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW)
    up = asyncio.create_task(_copy(reader, back_writer, NO_LIE))
    down = asyncio.create_task(_copy(back_reader, writer, lie, stands_s))
    await asyncio.wait([down])
    if stands_s is not None:
        back_writer.transport.abort()
    await asyncio.wait([up])


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    lie: tuple[bytes, bytes],
    stands_s: float | None = None,
) -> None:
    truth, told = lie
    try:
        while data := await reader.read(65_536):
            writer.write(data.replace(truth, told) if truth else data)
            async with asyncio.timeout(stands_s):
                await writer.drain()
    except TimeoutError:
        writer.transport.abort()
    except OSError:
        pass
    finally:
        writer.close()
