"""Permission comes first: who is calling, and may they do this (R-054, R-104).

Every handler starts with `Gate.require`. The namespace of a request is the credential's own; no id
in a path or body ever stands in for it.
"""

from starlette.requests import HTTPConnection

from gateway.credentials import Credentials, Grant, Scope
from gateway.http.answers import ApiError
from orbit_sdk.protocol.errors import ErrorCode


class Gate:
    """Turns the Authorization header of a request into a grant."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def require(self, connection: HTTPConnection, *scopes: Scope) -> Grant:
        """The caller's grant, if it has one of these scopes. Raises ApiError `unauthenticated` or
        `forbidden`."""
        text = connection.headers.get("authorization")
        grant = await self._credentials.prove(None if text is None else text.encode("latin-1"))
        if grant is None:
            raise ApiError(ErrorCode.UNAUTHENTICATED)
        if grant.scopes.isdisjoint(scopes):
            raise ApiError(ErrorCode.FORBIDDEN)
        return grant
