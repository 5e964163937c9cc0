"""The table of error codes is closed, and each code closes, repeats and answers as agreed."""

import pytest

from orbit_sdk.protocol.errors import ERRORS, CloseCode, ErrorCode
from orbit_sdk.protocol.scalars import is_token

WORKER_CODES = {
    *("bad_frame", "hello_required", "hello_timeout", "unsupported_version", "unauthenticated"),
    *("forbidden", "instance_conflict", "queue_unavailable", "capability_refused"),
    *("session_superseded", "session_expired", "draining", "resume_required"),
    *("attempt_not_found", "operation_conflict", "stale_sequence", "execution_gated"),
    *("payload_too_large", "rate_limited", "slow_consumer", "unavailable", "internal"),
}

FATAL = {
    "session_superseded": 4409,
    "session_expired": 4410,
    "hello_timeout": 4408,
    "slow_consumer": 4429,
    "draining": 1012,
    "internal": 1011,
}

HTTP_STATUS = {
    "unsupported_version": 400,
    "bad_request": 400,
    "key_required": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "attempt_not_found": 404,
    "queue_not_found": 404,
    "method_not_allowed": 405,
    "idempotency_conflict": 409,
    "operation_conflict": 409,
    "state_conflict": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "validation_failed": 422,
    "deadline_order": 422,
    "rate_limited": 429,
    "internal": 500,
    "draining": 503,
    "unavailable": 503,
}

RETRYABLE = {
    *FATAL,
    *("resume_required", "execution_gated", "rate_limited", "unavailable"),
}


def test_the_list_of_codes_is_closed() -> None:
    """OP-07, OP-47."""
    assert set(ErrorCode) == {*WORKER_CODES, *HTTP_STATUS}
    assert set(ERRORS) == set(ErrorCode)
    assert len(ErrorCode) == 32


def test_fatal_codes_close_with_their_code() -> None:
    """OP-07, R-016: six codes and no other."""
    assert {code: row.close_code for code, row in ERRORS.items() if row.fatal} == FATAL
    assert not [code for code, row in ERRORS.items() if row.close_code and not row.fatal]


def test_the_close_codes_are_closed() -> None:
    """OP-07: those of the fatal errors, the transport faults, and an ordinary end."""
    transport = {1003, 1007, 1009, 1008}
    assert set(CloseCode) == {1000, 1001, *transport, *FATAL.values()}


def test_each_code_has_its_http_status() -> None:
    """R-101 to R-107, OP-07, OP-47; the others exist inside a session only."""
    statuses = {code: row.http_status for code, row in ERRORS.items() if row.http_status}
    assert statuses == HTTP_STATUS


def test_which_codes_promise_that_a_repeat_may_help() -> None:
    """INV-8."""
    assert {code for code, row in ERRORS.items() if row.retryable} == RETRYABLE


@pytest.mark.parametrize("code", ErrorCode)
def test_a_code_and_its_message_fit_the_error_frame(code: ErrorCode) -> None:
    """R-017."""
    assert ERRORS[code].code is code
    assert is_token(code, 64)
    assert 0 < len(ERRORS[code].message) <= 1024
    assert ERRORS[code].message.isascii()
