"""Reading what a client sent: bodies within their bounds, keys, and the query of a paged list.

Limits are enforced while reading, so a body that never ends costs no more than its bound (R-053).
"""

import asyncio
import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode

from starlette.requests import Request

from gateway import limits
from gateway.http.answers import ApiError
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.bodies import is_key
from orbit_sdk.protocol.errors import ErrorCode


async def read_json_body(request: Request, bytes_max: int) -> bytes:
    """The body of an `application/json` request.

    Raises ApiError `unsupported_media_type`, `payload_too_large`, or `bad_request` when it is late.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(ErrorCode.UNSUPPORTED_MEDIA_TYPE)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise ApiError(ErrorCode.PAYLOAD_TOO_LARGE)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise ApiError(ErrorCode.PAYLOAD_TOO_LARGE)
                parts.append(part)
    except TimeoutError:
        raise ApiError(ErrorCode.BAD_REQUEST, "The body did not arrive in time.") from None
    return b"".join(parts)


def key_of(request: Request) -> str:
    """The one Idempotency-Key of a request (OP-41). Raises ApiError `key_required`."""
    keys = request.headers.getlist("idempotency-key")
    if len(keys) != 1 or not is_key(keys[0]):
        raise ApiError(ErrorCode.KEY_REQUIRED)
    return keys[0]


def page_of(request: Request) -> tuple[int, str | None]:
    """The `limit` and `cursor` of a list request (OP-46); anything else in the query is refused."""
    query = request.query_params
    unknown = set(query) - {"limit", "cursor"}
    if unknown or len(query) != len(query.multi_items()):
        raise ApiError(ErrorCode.BAD_REQUEST, "The query has an unknown or a repeated parameter.")
    text = query.get("limit", str(wire.PAGE_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) <= 4):
        raise ApiError(ErrorCode.BAD_REQUEST, details={"field": "limit"})
    limit = int(text)
    if not 1 <= limit <= wire.PAGE_MAX:
        raise ApiError(ErrorCode.VALIDATION_FAILED, details={"field": "limit"})
    return limit, query.get("cursor")


def cursor_text(position: str) -> str:
    """An opaque cursor that leads on from this position."""
    return urlsafe_b64encode(position.encode()).decode().rstrip("=")


def cursor_position(cursor: str) -> str:
    """The position of a cursor made by `cursor_text`. Raises ApiError for any other text."""
    try:
        position = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except (binascii.Error, ValueError):
        position = ""
    if not position or cursor_text(position) != cursor:
        raise ApiError(ErrorCode.BAD_REQUEST, "The cursor is not valid.", {"field": "cursor"})
    return position
