"""What a refusal means for a worker: its end, or one more try. Pure.

Only the cluster itself may end a worker, and only one that it never welcomed. Whatever else stands
between the two (a redirect, the page of a proxy, a server that fails) may be gone in a moment
(R-153).
"""

from http import HTTPStatus

from websockets.exceptions import InvalidStatus

from orbit_sdk.client.answers import refusal
from orbit_sdk.client.steps import Answer
from orbit_sdk.errors import OrbitError, error_for_status
from orbit_sdk.protocol.errors import ERRORS
from orbit_sdk.worker.effects import Leave

_HTTP_STATUSES = {row.code.value: row.http_status for row in ERRORS.values()}
_ABOUT_THE_CREDENTIAL = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def is_final(error: OrbitError) -> bool:
    """Whether another try of the same worker would meet the same.

    That is said by 401 and 403, by any other 4xx in the cluster's own words, and by an error that
    needed no server: a credential of no shape, an address that is none.
    """
    if error.retryable:
        return False
    if error.status is None or error.status in _ABOUT_THE_CREDENTIAL:
        return True
    return 400 <= error.status < 500 and error.code in _HTTP_STATUSES


def handshake_error(url: str, error: InvalidStatus) -> OrbitError:
    """The handshake was answered with another status than 101."""
    status = error.response.status_code
    said = refusal(Answer(status, {}, bytes(error.response.body or b"")))
    text = f"{url} refused the worker's connection with {status}: {said.message}"
    return error_for_status(status, said.code, text, request_id=said.request_id)


def hello_error(left: Leave) -> OrbitError:
    """The hello was answered with an error that is final."""
    status = _HTTP_STATUSES.get(left.code) or HTTPStatus.CONFLICT
    return error_for_status(status, left.code, f"the cluster refused this worker: {left.message}")
