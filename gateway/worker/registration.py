"""What a hello needs besides the session core: permission, queue, routes, and a place on the node.

Between the socket shell and the node. Permission comes from the credential of the handshake; the
worker's declaration never outranks it (R-116).
"""

import hashlib
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gateway.catalog import Catalog
from gateway.credentials import Grant
from gateway.store_calls import is_passing
from gateway.worker.session import Session
from orbit_sdk.protocol import frames
from orbit_sdk.protocol.errors import ErrorCode
from store.commands import OpenSession, SessionOutcome


class Registration(msgspec.Struct, frozen=True):
    """A hello that may be sent to the store."""

    node_id: str
    queue_id: str
    gate_id: int
    routes: tuple[int, ...]
    key_id: str
    session_max_ms: int

    def command(self, session: Session, hello: frames.HelloBody) -> OpenSession:
        """The command for the store; of the instance's secret only a hash goes on."""
        return OpenSession(
            session.session_id,
            session.namespace_id,
            hello.instance_id,
            hashlib.sha256(hello.instance_secret.encode()).digest(),
            self.queue_id,
            self.routes,
            hello.capacity,
            self.node_id,
            self.session_max_ms,
            self.key_id,
        )


class HasSession(Protocol):
    """A worker socket, as a place to register."""

    @property
    def session(self) -> Session: ...


class Registrar:
    """The part of the node that one connection may use to register."""

    def __init__(
        self,
        grant: Grant,
        *,
        node_id: str,
        session_max_ms: int,
        catalog: Catalog,
        admit: Callable[[HasSession], None],
        dismiss: Callable[[HasSession], None],
        opened: Callable[[SessionOutcome], None],
    ) -> None:
        self.grant: Final = grant
        self.admit: Final = admit
        self.dismiss: Final = dismiss
        self.opened: Final = opened
        self._node_id = node_id
        self._session_max_ms = session_max_ms
        self._catalog = catalog

    async def look_up(self, hello: frames.HelloBody) -> Registration | ErrorCode:
        """Queue and routes of a hello, or why it cannot be accepted."""
        grant = self.grant
        if not grant.allows_queue(hello.queue_id):
            return ErrorCode.FORBIDDEN
        try:
            queue = await self._catalog.queue(grant.namespace_id, hello.queue_id)
            if queue is None or queue.id != hello.queue_id:
                return ErrorCode.QUEUE_UNAVAILABLE
            triples = [
                (item.handler, item.handler_version, item.payload_version)
                for item in hello.capabilities
            ]
            routes = await self._catalog.routes(queue.id, triples)
        except Exception as error:
            return ErrorCode.UNAVAILABLE if is_passing(error) else ErrorCode.INTERNAL
        return Registration(
            self._node_id,
            queue.id,
            queue.gate_id,
            tuple(sorted(routes)),
            grant.key_id,
            self._session_max_ms,
        )
