"""A worker connection that stands still: it asks without end, reads nothing, and may wake later."""

import asyncio
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.gateway.raw_socket import TEXT, RawSocket, frame, raw_socket
from tests.waiting import wait_until

SMALL_BYTES = 4_096
AWAKE_BYTES = 1_048_576
FLOOD_FRAMES = 8_000
"""Their answers are twice what fits into all buffers and the longest queue of a session."""

SHUT_FRAMES = 60
"""Their answers are three times what our kernel takes with a buffer of SMALL_BYTES."""
FILL_STEP = 50
FILL_STEP_S = 0.05
SWALLOWED_S = 60.0
_NAMES = {"task_id": "0" * 32, "attempt_id": "0" * 32, "epoch": "1", "lease_secret": "A" * 43}


class Standing:
    """One raw connection with a receive buffer as small as the system allows."""

    def __init__(self, peer: RawSocket) -> None:
        self.session_id = ""
        self._peer = peer

    async def hello(self, queue_id: str, credential: str) -> None:
        """Have a session, for tasks that nobody submits."""
        await self._peer.upgrade(credential)
        capability = {"handler": "nothing", "handler_version": "1", "payload_version": "1"}
        body = {
            "instance_id": secrets.token_hex(16),
            "instance_secret": secrets.token_urlsafe(32),
            "queue_id": queue_id,
            "capabilities": [capability],
            "capacity": 1,
        }
        await self._send("worker.hello", body)
        self.session_id = str((await self._peer.read_json())["session_id"])

    async def flood(self, frames: int) -> None:
        """Ask so often for what is refused; return when the gateway has read all of it."""
        with suppress(OSError):
            for _ in range(frames // 100):
                await self._send("task.start", _NAMES, times=100)

            async def left() -> int:
                return self._unread()

            await wait_until(left, lambda count: count == 0, SWALLOWED_S)

    async def shut(self) -> None:
        """Ask until the window is shut."""
        await self._send("task.start", _NAMES, times=SHUT_FRAMES)

    async def fill(self, frames: int) -> None:
        """Ask so often, by and by, as a worker whose answers pile up."""
        with suppress(OSError):
            for _ in range(frames // FILL_STEP):
                await self._send("task.start", _NAMES, times=FILL_STEP)
                await asyncio.sleep(FILL_STEP_S)

    async def wake(self) -> int | None:
        """Read everything that comes; the code of the close frame."""
        self._peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, AWAKE_BYTES)
        return await self._peer.close_code()

    async def _send(self, kind: str, body: object, times: int = 1) -> None:
        head = {"protocol_version": "1", "type": kind, "message_id": secrets.token_hex(16)}
        if self.session_id:
            head["session_id"] = self.session_id
        await self._peer.send(frame(TEXT, json.dumps(head | {"body": body}).encode()) * times)
        await asyncio.sleep(0)

    @property
    def ports(self) -> tuple[int, int]:
        """Ours and theirs."""
        sock = self._peer.sock
        return sock.getsockname()[1], sock.getpeername()[1]

    def _unread(self) -> int:
        """Bytes of ours that the other process has not read."""
        waiting = kernel_queues()
        own, port = self.ports
        return (
            waiting.get((own, port), NOTHING).sending + waiting.get((port, own), NOTHING).received
        )


class Waiting(NamedTuple):
    """Bytes that wait in the kernel at one end of a connection."""

    sending: int
    received: int


NOTHING = Waiting(0, 0)


def kernel_queues() -> dict[tuple[int, int], Waiting]:
    """Of every connection of this machine over IPv4, by local and remote port."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues = line.split()[:5]
        ports = (int(local.rpartition(":")[2], 16), int(remote.rpartition(":")[2], 16))
        found[ports] = Waiting(*(int(part, 16) for part in queues.split(":")))
    return found


@contextmanager
def standing_on(port: int) -> Iterator[Standing]:
    """A connection to a local port, closed at the end."""
    with raw_socket(port, SMALL_BYTES) as peer:
        yield Standing(peer)
