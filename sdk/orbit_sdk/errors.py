"""Every exception that a client or a worker raises, each with a stable code.

One class a reaction: a caller catches `Conflict` or `Unavailable`, never a status number. `code` is
the server's word (R-100) or one of this SDK's own: `unreachable`, `wait_timeout`, `bad_answer`,
`invalid_payload`, `no_credential`.
"""

from collections.abc import Mapping


class OrbitError(Exception):
    """Something the cluster refused, or that did not reach it.

    `retryable` says whether the very same call, with the same key, may succeed later.
    `status` is the HTTP status, or None when no answer came. `request_id` finds the answer in the
    server's log.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        details: Mapping[str, object] | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status
        self.request_id = request_id
        self.details: dict[str, object] = dict(details or {})
        self.retryable = retryable

    def __str__(self) -> str:
        trace = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {self.message}{trace}"


class BadRequest(OrbitError):
    """The request could not be read (400, 405, 413, 415), or a value cannot be sent at all."""


class ValidationFailed(OrbitError):
    """The request could be read but means nothing sensible (422)."""


class Unauthorized(OrbitError):
    """The credential is missing, unknown, expired or revoked (401)."""


class Forbidden(OrbitError):
    """The credential is good but does not permit this (403)."""


class NotFound(OrbitError):
    """The resource is absent, or hidden from this credential (404)."""


class Conflict(OrbitError):
    """The key was used with another meaning, or the state does not allow this (409)."""


class RateLimited(OrbitError):
    """The cluster asks for less (429), and still did when the deadline came."""


class Unavailable(OrbitError):
    """No usable answer before the deadline. What was sent may have been done all the same: repeat
    it with the same key (`details["idempotency_key"]`), never with a new one (R-096)."""


class ServerError(OrbitError):
    """The server failed in a way that a repeat will hardly mend (500), or answered nonsense."""


class WaitTimeout(OrbitError):
    """The task had not settled when the given time was over. The task itself goes on."""


_BY_STATUS: Mapping[int, type[OrbitError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    409: Conflict,
    413: BadRequest,
    415: BadRequest,
    422: ValidationFailed,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}

RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})


def error_for_status(
    status: int,
    code: str,
    message: str,
    *,
    request_id: str | None = None,
    details: Mapping[str, object] | None = None,
) -> OrbitError:
    """The exception for an answer that is not a success; its class follows from the status."""
    kind = _BY_STATUS.get(status, BadRequest if 400 <= status < 500 else ServerError)
    return kind(
        code,
        message,
        status=status,
        request_id=request_id,
        details=details,
        retryable=status in RETRYABLE_STATUSES,
    )
