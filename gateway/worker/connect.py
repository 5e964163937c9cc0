"""`GET /v1/worker/connect`: from the upgrade request to a running socket (R-110 to R-112).

Authenticate, negotiate the protocol, then accept. Whatever fails before the upgrade is a plain HTTP
answer in the API's envelope (OP-07): 401, 403, 400 without the right subprotocol, 503.
"""

from functools import partial
from typing import Final

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import limits
from gateway.credentials import Grant
from gateway.credentials import Scope as Permission
from gateway.http.answers import Answers, ApiError
from gateway.http.auth import Gate
from gateway.node import Node
from gateway.store_calls import is_passing
from gateway.worker.dialect import Dialect
from gateway.worker.dialect_v1 import DialectV1
from gateway.worker.dialect_v2 import DialectV2
from gateway.worker.registration import Registrar
from gateway.worker.session import Session
from gateway.worker.socket import WorkerSocket
from orbit_sdk.protocol.errors import ErrorCode

DIALECTS: Final[tuple[Dialect, ...]] = (DialectV2(), DialectV1())
"""The versions that are spoken, the one to be preferred first."""

PATH: Final = "/v1/worker/connect"


class WorkerEndpoint:
    """The ASGI application of worker connections."""

    def __init__(self, node: Node, gate: Gate, answers: Answers, hello_timeout_s: float) -> None:
        self._node = node
        self._gate = gate
        self._answers = answers
        self._hello_timeout_s = hello_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            grant, dialect = await self._admit(scope)
        except ApiError as error:
            await deny(send, self._answers.failure(error))
            return
        await send({"type": "websocket.accept", "subprotocol": dialect.subprotocol})
        await self._serve(grant, dialect, receive, send)

    async def _admit(self, scope: Scope) -> tuple[Grant, Dialect]:
        try:
            grant = await self._gate.require(HTTPConnection(scope), Permission.WORK)
        except Exception as error:
            if is_passing(error):
                raise ApiError(ErrorCode.UNAVAILABLE) from error
            raise
        offered = scope["subprotocols"]
        dialect = next((known for known in DIALECTS if known.subprotocol in offered), None)
        if dialect is None:
            names = " or ".join(known.subprotocol for known in DIALECTS)
            code = ErrorCode.UNSUPPORTED_VERSION if offered else ErrorCode.BAD_REQUEST
            raise ApiError(code, f"The subprotocol {names} is needed.")
        node = self._node
        if not node.readiness().ready or len(node.connections) >= limits.SESSIONS_MAX:
            raise ApiError(ErrorCode.UNAVAILABLE)
        return grant, dialect

    async def _serve(self, grant: Grant, dialect: Dialect, receive: Receive, send: Send) -> None:
        node = self._node
        session_id = node.ids.next()
        session = Session(
            dialect,
            session_id=session_id,
            namespace_id=grant.namespace_id,
            ring=node.ring,
            lease_ms=node.lease_ms,
            next_id=node.ids.next,
            unproven=partial(node.commands.unproven.note, session_id),
        )
        registrar = Registrar(
            grant,
            node_id=node.node_id,
            session_max_ms=node.session_max_ms,
            catalog=node.catalog,
            admit=node.admit,
            dismiss=node.dismiss,
            opened=node.session_opened,
        )
        socket = WorkerSocket(
            session,
            registrar=registrar,
            commands=node.commands,
            hints=node.hints,
            receive=receive,
            write=send,
        )
        if node.draining:
            session.drain_node()
        node.connections.add(socket)
        try:
            await socket.run(self._hello_timeout_s)
        finally:
            node.connections.discard(socket)


async def deny(send: Send, response: Response) -> None:
    """Answer an upgrade request with a plain HTTP response."""
    await send(
        {
            "type": "websocket.http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )
    await send({"type": "websocket.http.response.body", "body": bytes(response.body)})
