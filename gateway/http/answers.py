"""The envelope of every HTTP answer, and what each failure is allowed to say (R-100, R-017).

Success is `{request_id, data}`, failure `{request_id, error: {code, message, details}}`, for
unknown paths and methods too. Messages come from the table of codes or from a reader's own reasons,
never from an exception of a store or a library.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from gateway import limits
from gateway.faults import facts_of
from gateway.store_calls import is_passing
from orbit_sdk.protocol.bodies import BodyError
from orbit_sdk.protocol.errors import ERRORS, ErrorCode
from runtime.logs import get_logger

log = get_logger(__name__)
_encode: Final = msgspec.json.Encoder().encode


class ApiError(Exception):
    """A request is refused with this code; `message` defaults to the code's public text."""

    def __init__(
        self, code: ErrorCode, message: str | None = None, details: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(code.value)
        self.code = code
        self.message = ERRORS[code].message if message is None else message
        self.details = dict(details or {})


class ErrorPart(msgspec.Struct, frozen=True):
    """The `error` of an answer or of one batch item."""

    code: str
    message: str
    details: dict[str, str]


class _Success(msgspec.Struct, frozen=True):
    request_id: str
    data: Any


class _Failure(msgspec.Struct, frozen=True):
    request_id: str
    error: ErrorPart


class Answer(msgspec.Struct, frozen=True):
    """What a handler returns: the status and the data of a success."""

    data: Any
    status: int = 200


Handler = Callable[[Request], Awaitable[Answer]]


def error_part(code: ErrorCode, message: str | None = None, field: str = "") -> ErrorPart:
    """An error in words that may be shown."""
    details = {"field": field} if field else {}
    return ErrorPart(code.value, ERRORS[code].message if message is None else message, details)


def http_status(code: ErrorCode) -> int:
    """The HTTP status of a code (OP-47)."""
    return ERRORS[code].http_status or 500


class Answers:
    """Makes handlers into endpoints that always answer in the envelope."""

    def __init__(self, next_request_id: Callable[[], str]) -> None:
        self._next_request_id = next_request_id

    def endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that answers whatever the handler does."""

        async def answer(request: Request) -> Response:
            request_id = self._next_request_id()
            try:
                done = await handler(request)
            except Exception as error:
                return self._failed(request_id, request.url.path, error)
            return _respond(request_id, done.status, _Success(request_id, done.data))

        return answer

    async def on_http_exception(self, _request: Request, error: Exception) -> Response:
        """What the router itself refuses: unknown paths and methods."""
        assert isinstance(error, HTTPException)
        code = _ROUTER_CODES.get(error.status_code, ErrorCode.BAD_REQUEST)
        return self.failure(ApiError(code), headers=error.headers)

    async def on_exception(self, _request: Request, _error: Exception) -> Response:
        """What no handler caught; the server logs it."""
        return self.failure(ApiError(ErrorCode.INTERNAL))

    def failure(self, error: ApiError, *, headers: Mapping[str, str] | None = None) -> Response:
        """A refusal as a whole response."""
        return _failure(self._next_request_id(), error, headers)

    def _failed(self, request_id: str, path: str, error: Exception) -> Response:
        if isinstance(error, ApiError):
            return _failure(request_id, error)
        if isinstance(error, BodyError):
            details = {"field": error.field} if error.field else None
            return _failure(request_id, ApiError(error.code, error.reason, details))
        if isinstance(error, ClientDisconnect):
            return _failure(request_id, ApiError(ErrorCode.BAD_REQUEST))
        if is_passing(error):
            log.warning("request_unavailable", path=path, error=type(error).__name__)
            return _failure(request_id, ApiError(ErrorCode.UNAVAILABLE))
        log.error("request_failed", path=path, request_id=request_id, **facts_of(error))
        return _failure(request_id, ApiError(ErrorCode.INTERNAL))


_ROUTER_CODES: Final = {404: ErrorCode.NOT_FOUND, 405: ErrorCode.METHOD_NOT_ALLOWED}
_RETRY_LATER: Final = (ErrorCode.UNAVAILABLE, ErrorCode.RATE_LIMITED, ErrorCode.DRAINING)


def _failure(
    request_id: str, error: ApiError, headers: Mapping[str, str] | None = None
) -> Response:
    body = _Failure(request_id, ErrorPart(error.code.value, error.message, error.details))
    extra = dict(headers or {})
    if error.code in _RETRY_LATER:
        extra["Retry-After"] = str(limits.RETRY_AFTER_S)
    if error.code is ErrorCode.PAYLOAD_TOO_LARGE:
        extra["Connection"] = "close"  # the rest of the body is not read
    if error.code is ErrorCode.UNAUTHENTICATED:
        extra["WWW-Authenticate"] = "Bearer"
    return _respond(request_id, http_status(error.code), body, extra)


def _respond(
    request_id: str, status: int, body: object, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        _encode(body),
        status_code=status,
        headers={**(headers or {}), "X-Request-Id": request_id},
        media_type="application/json",
    )
