"""The model gateway behind a real socket: a WebSocket server and the one HTTP route a worker asks.

Runs on the test's own loop. Tests reach into `model` to assign, cancel and look, and wait for
conditions instead of sleeping.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from tests.contract.oracle import Version
from tests.sdk.worker.model_gateway import ModelGateway
from tests.sdk.worker.versions import DIALECTS

CREDENTIAL = f"orbit_{'0' * 16}_{'s' * 43}"


class ServedGateway:
    """A gateway at `url`. `refuse_with` answers every handshake with that status."""

    def __init__(self, lease_s: float, version: Version) -> None:
        start = time.monotonic()
        self.model = ModelGateway(lambda: time.monotonic() - start, lease_s, version)
        self.refuse_with: int | None = None
        self.refused = asyncio.Event()
        self.connections: list[ServerConnection] = []
        self.credentials: list[str] = []
        self.port = 0
        self._server: Server | None = None
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket(self) -> ServerConnection:
        return self.connections[-1]

    async def open(self) -> None:
        """Listen; again on the same port after `close`."""
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            process_request=self._request,
            subprotocols=[Subprotocol(DIALECTS[self.model.version].subprotocol)],
            compression=None,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def assign(self, payload: bytes = b"{}", handler: str = "work") -> str:
        """Hand out a new task; its attempt's id."""
        await self.socket.send(self.model.assign(handler, payload), text=True)
        return next(reversed(self.model.attempts))

    async def say(self, data: bytes) -> None:
        """Push a frame to the worker."""
        await self.socket.send(data, text=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that a message changes has become true."""
        async with asyncio.timeout(15), self._changed:
            await self._changed.wait_for(condition)

    async def ready(self) -> None:
        """Wait for a session."""
        await self.until(lambda: bool(self.model.session_id))

    async def _serve(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        session_id = ""
        try:
            async for data in connection:
                assert isinstance(data, str), "frames are text messages"
                for answer in self.model.receive(data.encode()):
                    await connection.send(answer, text=True)
                session_id = session_id or self.model.session_id
                await self._notify()
        except ConnectionClosed:
            pass
        finally:
            self.model.socket_closed(session_id)
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        self.credentials.append(request.headers.get("Authorization", ""))
        if request.path.startswith("/v1/queues/"):
            body = b'{"request_id":"r1","data":{"id":"' + b"b" * 32 + b'","name":"default"}}'
            headers = Headers(
                [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
            )
            return Response(HTTPStatus.OK, "OK", headers, body)
        if self.refuse_with is not None:
            self.refused.set()
            return connection.respond(HTTPStatus(self.refuse_with), "refused\n")
        return None


@asynccontextmanager
async def served_gateway(
    lease_s: float = 30.0, version: Version = "2"
) -> AsyncIterator[ServedGateway]:
    gateway = ServedGateway(lease_s, version)
    await gateway.open()
    try:
        yield gateway
    finally:
        await gateway.close()
