"""The closed list of error codes and close codes, for the sockets and for HTTP (OP-07, OP-47).

`fatal` errors carry no `reply_to` and are followed by a close with `close_code` (R-016). Any other
error answers one request and leaves the connection as it is; where the session's state asks for
a close all the same (every fault before hello, or more than BAD_FRAMES_MAX malformed frames,
OP-08) the close code is POLICY_VIOLATION.
"""

from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class CloseCode(IntEnum):
    """WebSocket close codes in use (RFC 6455 section 7.4; 4xxx are ours)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED_DATA = 1003
    INVALID_UTF8 = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    HELLO_TIMEOUT = 4408
    SESSION_SUPERSEDED = 4409
    SESSION_EXPIRED = 4410
    SLOW_CONSUMER = 4429


class ErrorCode(StrEnum):
    """Every code an error frame or an HTTP error may carry."""

    BAD_FRAME = "bad_frame"
    HELLO_REQUIRED = "hello_required"
    HELLO_TIMEOUT = "hello_timeout"
    UNSUPPORTED_VERSION = "unsupported_version"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    INSTANCE_CONFLICT = "instance_conflict"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    CAPABILITY_REFUSED = "capability_refused"
    SESSION_SUPERSEDED = "session_superseded"
    SESSION_EXPIRED = "session_expired"
    DRAINING = "draining"
    RESUME_REQUIRED = "resume_required"
    ATTEMPT_NOT_FOUND = "attempt_not_found"
    OPERATION_CONFLICT = "operation_conflict"
    STALE_SEQUENCE = "stale_sequence"
    EXECUTION_GATED = "execution_gated"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    RATE_LIMITED = "rate_limited"
    SLOW_CONSUMER = "slow_consumer"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"
    BAD_REQUEST = "bad_request"
    VALIDATION_FAILED = "validation_failed"
    KEY_REQUIRED = "key_required"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    STATE_CONFLICT = "state_conflict"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    QUEUE_NOT_FOUND = "queue_not_found"
    DEADLINE_ORDER = "deadline_order"


class ErrorRow(NamedTuple):
    """What one code means.

    `message` is the public default text. `retryable`: the same operation with the same identity
    may succeed later (on a new connection, if this one was closed) without being changed.
    `http_status` is None for codes that only exist inside a session.
    """

    code: ErrorCode
    message: str
    fatal: bool
    close_code: CloseCode | None
    retryable: bool
    http_status: int | None


_E, _C = ErrorCode, CloseCode


def _answer(
    code: ErrorCode, message: str, *, retryable: bool = False, http: int | None = None
) -> ErrorRow:
    return ErrorRow(code, message, False, None, retryable, http)


def _fatal(
    code: ErrorCode, message: str, close_code: CloseCode, *, http: int | None = None
) -> ErrorRow:
    return ErrorRow(code, message, True, close_code, True, http)


_ROWS: Final = (
    _fatal(_E.HELLO_TIMEOUT, "No hello arrived in time.", _C.HELLO_TIMEOUT),
    _fatal(
        _E.SESSION_SUPERSEDED,
        "A newer session of this instance has taken over.",
        _C.SESSION_SUPERSEDED,
    ),
    _fatal(
        _E.SESSION_EXPIRED,
        "The session has ended; connect again.",
        _C.SESSION_EXPIRED,
    ),
    _fatal(_E.SLOW_CONSUMER, "Messages are not read fast enough.", _C.SLOW_CONSUMER),
    _fatal(
        _E.DRAINING,
        "This node is shutting down; connect again.",
        _C.SERVICE_RESTART,
        http=503,
    ),
    _fatal(_E.INTERNAL, "An internal error occurred.", _C.INTERNAL_ERROR, http=500),
    _answer(_E.BAD_FRAME, "The frame is not a valid frame of this protocol."),
    _answer(_E.HELLO_REQUIRED, "The first frame must be a hello."),
    _answer(_E.UNSUPPORTED_VERSION, "The protocol version is not supported.", http=400),
    _answer(_E.UNAUTHENTICATED, "The credential is missing or not accepted.", http=401),
    _answer(_E.FORBIDDEN, "The credential does not permit this operation.", http=403),
    _answer(
        _E.INSTANCE_CONFLICT,
        "The instance is known with another secret, queue or capabilities.",
    ),
    _answer(_E.QUEUE_UNAVAILABLE, "The queue does not exist or is not open to work."),
    _answer(_E.CAPABILITY_REFUSED, "A declared capability is not accepted on this queue."),
    _answer(
        _E.RESUME_REQUIRED,
        "The attempt belongs to an earlier session; resume it first.",
        retryable=True,
    ),
    _answer(_E.ATTEMPT_NOT_FOUND, "No such attempt, or its proof is not valid.", http=404),
    _answer(
        _E.OPERATION_CONFLICT,
        "The message id was used before with another content, or the attempt is not ready for it.",
        http=409,
    ),
    _answer(_E.STALE_SEQUENCE, "The capacity sequence is not newer than the last."),
    _answer(_E.EXECUTION_GATED, "Starts are paused on this queue.", retryable=True),
    _answer(_E.PAYLOAD_TOO_LARGE, "The content is too large.", http=413),
    _answer(_E.RATE_LIMITED, "A limit is reached; try again later.", retryable=True, http=429),
    _answer(
        _E.UNAVAILABLE,
        "The service is temporarily unavailable; try again.",
        retryable=True,
        http=503,
    ),
    _answer(_E.BAD_REQUEST, "The request is malformed.", http=400),
    _answer(_E.VALIDATION_FAILED, "A value in the request is not valid.", http=422),
    _answer(_E.KEY_REQUIRED, "An Idempotency-Key of 1 to 128 visible ASCII is needed.", http=400),
    _answer(_E.NOT_FOUND, "There is no such resource.", http=404),
    _answer(_E.METHOD_NOT_ALLOWED, "The resource does not support this method.", http=405),
    _answer(
        _E.IDEMPOTENCY_CONFLICT,
        "The key was used before for a request of another meaning.",
        http=409,
    ),
    _answer(_E.STATE_CONFLICT, "The resource's state does not permit this.", http=409),
    _answer(_E.UNSUPPORTED_MEDIA_TYPE, "The body must be application/json.", http=415),
    _answer(_E.QUEUE_NOT_FOUND, "There is no such queue.", http=404),
    _answer(_E.DEADLINE_ORDER, "The given times are not in order.", http=422),
)

ERRORS: Final = MappingProxyType({row.code: row for row in _ROWS})
"""The row of each code."""

assert len(ERRORS) == len(_ROWS) == len(ErrorCode)
assert all(row.fatal == (row.close_code is not None) for row in _ROWS)
