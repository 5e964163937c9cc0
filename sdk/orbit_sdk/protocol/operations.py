"""Bodies of the operations on tasks and queues that exist, and what each means (R-086, R-087).

Read by the gateway, built by clients. Every operation says why; what it was decided on travels as
the revision or control version that its caller saw. Failures are BodyError, as for submissions.
"""

from datetime import datetime
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from .bodies import BodyError, read_instant
from .canonical import semantic_hash
from .errors import ErrorCode
from .faults import describe
from .limits import JSON_BYTES_MAX, REASON_CHARS_MAX, REVISION_MAX
from .scalars import is_uint64
from .strict_json import JsonError, JsonFault, check_json
from .times import time_text


class CancelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take a task back. Without `expected_revision`: whatever its state is."""

    reason: str
    expected_revision: str | None = None


class RetryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more attempt. `deadline_at` is needed when the task's own has passed."""

    reason: str
    expected_revision: str
    deadline_at: datetime | None = None


class ResolveBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a review. `evidence` is the accepted bytes: what it rests on."""

    reason: str
    expected_revision: str
    outcome: Literal["SUCCEEDED", "FAILED", "CANCELLED"]
    evidence: Raw


class GateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pause or a resume of a queue, at the control version that was seen."""

    reason: str
    expected_version: str


class _RetryWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str
    expected_revision: str
    deadline_at: str | None = None


def decode_cancel(data: bytes) -> CancelBody:
    """The wish to cancel, or BodyError."""
    body = _read(data, _cancel)
    _check(body.reason, body.expected_revision, "expected_revision")
    return body


def decode_retry(data: bytes) -> RetryBody:
    """The wish to retry, or BodyError."""
    wire = _read(data, _retry)
    _check(wire.reason, wire.expected_revision, "expected_revision")
    deadline_at = read_instant(wire.deadline_at, "deadline_at")
    return RetryBody(
        reason=wire.reason, expected_revision=wire.expected_revision, deadline_at=deadline_at
    )


def decode_resolve(data: bytes) -> ResolveBody:
    """The end of a review, or BodyError."""
    body = _read(data, _resolve)
    _check(body.reason, body.expected_revision, "expected_revision")
    if bytes(body.evidence) == b"null":
        raise BodyError(ErrorCode.BAD_REQUEST, JsonFault.NULL.value, "evidence")
    return body


def decode_gate(data: bytes) -> GateBody:
    """The pause or the resume, or BodyError."""
    body = _read(data, _gate)
    _check(body.reason, body.expected_version, "expected_version")
    return body


def operation_hash(operation: str, body: CancelBody | RetryBody | ResolveBody | GateBody) -> bytes:
    """The meaning of an operation (OP-42), 32 bytes; its resource and key are its name.

    An optional field left out and one that is null mean the same.
    """
    parts: dict[str, object] = {"reason": body.reason}
    json_parts: dict[str, bytes] = {}
    if isinstance(body, GateBody):
        parts["expected_version"] = body.expected_version
    elif body.expected_revision is not None:
        parts["expected_revision"] = body.expected_revision
    if isinstance(body, RetryBody) and body.deadline_at is not None:
        parts["deadline_at"] = time_text(body.deadline_at)
    if isinstance(body, ResolveBody):
        parts["outcome"] = body.outcome
        json_parts["evidence"] = bytes(body.evidence)
    return semantic_hash(operation, parts, json_parts)


_Body = TypeVar("_Body", bound=Struct)

_cancel: Final = msgspec.json.Decoder(CancelBody)
_retry: Final = msgspec.json.Decoder(_RetryWire)
_resolve: Final = msgspec.json.Decoder(ResolveBody)
_gate: Final = msgspec.json.Decoder(GateBody)


def _read(data: bytes, decoder: msgspec.json.Decoder[_Body]) -> _Body:
    if len(data) > JSON_BYTES_MAX:
        raise BodyError(ErrorCode.PAYLOAD_TOO_LARGE, "the body is too large")
    try:
        check_json(data)
    except JsonError as error:
        raise BodyError(ErrorCode.BAD_REQUEST, error.reason.value) from None
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise BodyError(ErrorCode.BAD_REQUEST, *describe(error)) from None


def _check(reason: str, expected: str | None, field: str) -> None:
    if not reason.strip() or len(reason) > REASON_CHARS_MAX or "\0" in reason:
        raise BodyError(
            ErrorCode.VALIDATION_FAILED,
            f"blank, more than {REASON_CHARS_MAX} characters, or holds U+0000",
            "reason",
        )
    if expected is not None and not (is_uint64(expected) and int(expected) <= REVISION_MAX):
        raise BodyError(
            ErrorCode.VALIDATION_FAILED, "not a decimal number from 1 to 2^63 - 1", field
        )
