"""What the bodies of all requests in flight may hold together, whoever sends them (INV-37).

Around the HTTP application. Each body is bounded where it is read (`requests.py`), but a crowd of
the largest ones would still be more than a process has. The first bytes of each are free, so that
an ordinary request passes however many large ones are on their way.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import limits
from gateway.http.answers import ApiError
from orbit_sdk.protocol.errors import ErrorCode


class BodyRoom:
    """Counts what requests have sent until they are answered, and refuses what has no room."""

    def __init__(self, app: ASGIApp) -> None:
        self.held = 0
        """Bytes of bodies beyond the free ones."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = counted = 0

        async def receive_counted() -> Message:
            nonlocal size, counted
            message = await receive()
            size += len(message.get("body", b""))
            more = max(0, size - limits.BODY_BYTES_FREE) - counted
            if self.held + more > limits.BODIES_BYTES_MAX:
                raise ApiError(ErrorCode.UNAVAILABLE, "Too many large requests are on their way.")
            self.held += more
            counted += more
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self.held -= counted
