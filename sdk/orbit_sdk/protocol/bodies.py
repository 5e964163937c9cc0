"""Submission bodies of the HTTP API (OP-40, OP-45) and the meaning of a submission and a finish.

Read by the gateway, built by clients. What decodes can be stored, hashed and delivered; instants
leave room for every accepted delay (INV-36). A text of another shape (not JSON, a missing or
unknown field, a wrong type) is `bad_request`; a value of the right type that cannot be accepted is
`validation_failed`; times out of order are `deadline_order`; too many bytes `payload_too_large`.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec
from msgspec import Raw, Struct

from .canonical import semantic_hash
from .errors import ErrorCode
from .faults import describe
from .limits import (
    ATTEMPT_TIMEOUT_MS_MAX,
    ATTEMPTS_MAX,
    BATCH_BODY_BYTES_MAX,
    BATCH_ITEMS_MAX,
    BUSINESS_KEY_CHARS_MAX,
    DEADLINE_DEFAULT_S,
    DELAY_MS_MAX,
    HANDLER_CHARS_MAX,
    HANDLER_VERSION_CHARS_MAX,
    HTTP_BODY_BYTES_MAX,
    KEY_CHARS_MAX,
    PAYLOAD_VERSION_CHARS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    QUEUE_NAME_CHARS_MAX,
    YEAR_END,
    YEAR_MIN,
)
from .scalars import is_token
from .shapes import Retry
from .states import Outcome, RecoverySafety
from .strict_json import JsonError, JsonFault, check_json, refuse_repeated_keys
from .times import parse_time, time_text

STOP_CONFIRMED: Final = "cancelled"
"""The error code by which a worker of v1 says that it has stopped as it was told to."""

RETRY_DEFAULT: Final = Retry(
    max_attempts=3, initial_delay_ms=1_000, max_delay_ms=60_000, attempt_timeout_ms=3_600_000
)
"""What a submission without a retry policy means."""


class BodyError(ValueError):
    """A body or an item is refused; `reason` quotes no value, `field` is a dotted path or ''."""

    def __init__(self, code: ErrorCode, reason: str, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.code = code
        self.reason = reason
        self.field = field


class _Submission(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    queue: str
    handler: str
    handler_version: str
    payload_version: str
    payload: Raw
    recovery_safety: RecoverySafety
    retry: Retry = RETRY_DEFAULT
    priority: int = 0
    business_key: str | None = None


class SubmitBody(_Submission, frozen=True, kw_only=True):
    """One submission. `payload` is the accepted bytes; instants are aware, in UTC.

    An optional field may be absent or null; both mean the default. Encoding one with msgspec
    gives a body that decodes to it.
    """

    available_at: datetime | None = None
    start_deadline_at: datetime | None = None
    deadline_at: datetime | None = None


class BatchSubmitItem(SubmitBody, frozen=True, kw_only=True):
    """One submission of a batch; its key has the form and the meaning of an Idempotency-Key."""

    submission_key: str


class BatchBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The top level of a batch; each item is read on its own."""

    items: list[Raw]


class _SubmitWire(_Submission, frozen=True, kw_only=True):
    available_at: str | None = None
    start_deadline_at: str | None = None
    deadline_at: str | None = None


class _ItemWire(_SubmitWire, frozen=True, kw_only=True):
    submission_key: str


def decode_submit(data: bytes) -> SubmitBody:
    """The submission, or BodyError."""
    wire = _read(data, _submit_wire)
    available_at, start_deadline_at, deadline_at = _check(wire)
    return SubmitBody(
        queue=wire.queue,
        handler=wire.handler,
        handler_version=wire.handler_version,
        payload_version=wire.payload_version,
        payload=wire.payload,
        recovery_safety=wire.recovery_safety,
        retry=wire.retry,
        priority=wire.priority,
        business_key=wire.business_key,
        available_at=available_at,
        start_deadline_at=start_deadline_at,
        deadline_at=deadline_at,
    )


def decode_batch_item(raw: Raw | bytes) -> BatchSubmitItem:
    """The submission of one item, or BodyError; the same rules as for a body of its own."""
    wire = _read(bytes(raw), _item_wire)
    if not is_key(wire.submission_key):
        raise _invalid("submission_key", "not 1 to 128 visible ASCII characters")
    available_at, start_deadline_at, deadline_at = _check(wire)
    return BatchSubmitItem(
        queue=wire.queue,
        handler=wire.handler,
        handler_version=wire.handler_version,
        payload_version=wire.payload_version,
        payload=wire.payload,
        recovery_safety=wire.recovery_safety,
        retry=wire.retry,
        priority=wire.priority,
        business_key=wire.business_key,
        available_at=available_at,
        start_deadline_at=start_deadline_at,
        deadline_at=deadline_at,
        submission_key=wire.submission_key,
    )


def decode_batch(data: bytes) -> list[Raw]:
    """The items of a batch, 1 to 1000, not yet looked into; BodyError if the top is broken.

    The items keep the whole body alive.
    """
    if len(data) > BATCH_BODY_BYTES_MAX:
        raise BodyError(ErrorCode.PAYLOAD_TOO_LARGE, "the body is too large")
    try:
        items = _batch_shape(data).items
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError(ErrorCode.BAD_REQUEST, *describe(error)) from None
    # Quotation marks outside the items belong to keys, and only one key is allowed.
    if data.count(b'"') != 2 + sum(bytes(item).count(b'"') for item in items):
        raise BodyError(ErrorCode.BAD_REQUEST, JsonFault.DUPLICATE_KEY.value)
    if not 1 <= len(items) <= BATCH_ITEMS_MAX:
        raise BodyError(ErrorCode.BAD_REQUEST, "not 1 to 1000 items", "items")
    return items


def is_key(text: str) -> bool:
    """Whether the text may be an Idempotency-Key or a submission_key (OP-41)."""
    return (
        1 <= len(text) <= KEY_CHARS_MAX
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


def submit_hash(body: SubmitBody, queue_id: str) -> bytes:
    """The meaning of a submission (OP-42), 32 bytes; the key is its name and not part of it.

    A queue's name and its id mean the same, so what counts is the id that it was found under.
    Defaults are filled in, so leaving one out and writing it down mean the same. Without
    `available_at` the task is due at its acceptance, whenever that is: the hash holds a word.
    """
    available_at, deadline_at = body.available_at, body.deadline_at
    if deadline_at is None and available_at is not None:
        deadline_at = available_at + timedelta(seconds=DEADLINE_DEFAULT_S)
    retry = body.retry
    parts: dict[str, object] = {
        "queue": queue_id,
        "handler": body.handler,
        "handler_version": body.handler_version,
        "payload_version": body.payload_version,
        "recovery_safety": body.recovery_safety.value,
        "retry": {
            "max_attempts": retry.max_attempts,
            "initial_delay_ms": retry.initial_delay_ms,
            "max_delay_ms": retry.max_delay_ms,
            "attempt_timeout_ms": retry.attempt_timeout_ms,
        },
        "priority": body.priority,
        "available_at": "now" if available_at is None else time_text(available_at),
        "deadline_at": "default" if deadline_at is None else time_text(deadline_at),
    }
    if body.business_key is not None:
        parts["business_key"] = body.business_key
    if body.start_deadline_at is not None:
        parts["start_deadline_at"] = time_text(body.start_deadline_at)
    return semantic_hash("task.submit", parts, {"payload": bytes(body.payload)})


def finish_hash(outcome: Outcome, error_code: str, result: bytes) -> bytes:
    """The meaning of a finish (OP-21), 32 bytes; `error_code` is '' where none was given.

    A confirmed stop means the same in the words of v1, which has no CANCELLED (OP-02): a worker may
    repeat a report in another version than the one it was made in.
    """
    if outcome is Outcome.CANCELLED and error_code == STOP_CONFIRMED:
        outcome = Outcome.FAILED
    parts = {"outcome": outcome.value, "error_code": error_code}
    return semantic_hash("task.finish", parts, {"result": result})


_WireT = TypeVar("_WireT", bound=_SubmitWire)

_batch_shape: Final = msgspec.json.Decoder(BatchBody).decode
_submit_wire: Final = msgspec.json.Decoder(_SubmitWire)
_item_wire: Final = msgspec.json.Decoder(_ItemWire)
_FIRST: Final = datetime(YEAR_MIN, 1, 1, tzinfo=UTC)
_END: Final = datetime(YEAR_END, 1, 1, tzinfo=UTC)


def _invalid(field: str, reason: str) -> BodyError:
    return BodyError(ErrorCode.VALIDATION_FAILED, reason, field)


def _json_error(error: JsonError, field: str) -> BodyError:
    code = _JSON_CODES.get(error.reason, ErrorCode.BAD_REQUEST)
    return BodyError(code, error.reason.value, field)


_JSON_CODES: Final = {
    JsonFault.TOO_LARGE: ErrorCode.PAYLOAD_TOO_LARGE,
    JsonFault.NUMBER_TOO_LONG: ErrorCode.VALIDATION_FAILED,
    JsonFault.NUMBER_OUT_OF_RANGE: ErrorCode.VALIDATION_FAILED,
}


def _read(data: bytes, decoder: msgspec.json.Decoder[_WireT]) -> _WireT:
    if len(data) > HTTP_BODY_BYTES_MAX:
        raise BodyError(ErrorCode.PAYLOAD_TOO_LARGE, "the body is too large")
    try:
        wire = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError(ErrorCode.BAD_REQUEST, *describe(error)) from None
    try:
        check_json(bytes(wire.payload))
    except JsonError as error:
        raise _json_error(error, "payload") from None
    try:
        refuse_repeated_keys(data, msgspec.json.encode(wire), bytes_max=HTTP_BODY_BYTES_MAX)
    except JsonError as error:
        raise _json_error(error, "") from None
    return wire


def _check(wire: _SubmitWire) -> tuple[datetime | None, datetime | None, datetime | None]:
    """The meaning of a well-shaped submission; its three instants, in the order of their names."""
    _token(wire.queue, QUEUE_NAME_CHARS_MAX, "queue")
    _token(wire.handler, HANDLER_CHARS_MAX, "handler")
    _token(wire.handler_version, HANDLER_VERSION_CHARS_MAX, "handler_version")
    _token(wire.payload_version, PAYLOAD_VERSION_CHARS_MAX, "payload_version")
    _range(wire.priority, PRIORITY_MIN, PRIORITY_MAX, "priority")
    key = wire.business_key
    if key is not None and (len(key) > BUSINESS_KEY_CHARS_MAX or "\0" in key):
        raise _invalid("business_key", "more than 191 characters, or holds U+0000")
    retry = wire.retry
    _range(retry.max_attempts, 1, ATTEMPTS_MAX, "retry.max_attempts")
    _range(retry.initial_delay_ms, 0, DELAY_MS_MAX, "retry.initial_delay_ms")
    _range(retry.max_delay_ms, 0, DELAY_MS_MAX, "retry.max_delay_ms")
    _range(retry.attempt_timeout_ms, 1, ATTEMPT_TIMEOUT_MS_MAX, "retry.attempt_timeout_ms")
    if retry.initial_delay_ms > retry.max_delay_ms:
        raise _invalid("retry.initial_delay_ms", "more than max_delay_ms")
    return _instants(wire)


def _token(text: str, chars_max: int, field: str) -> None:
    if not is_token(text, chars_max):
        raise _invalid(
            field, f"not 1 to {chars_max} letters, digits or '_.:-', a letter or digit first"
        )


def _range(value: int, low: int, high: int, field: str) -> None:
    if not low <= value <= high:
        raise _invalid(field, f"not between {low} and {high}")


def _instants(
    wire: _SubmitWire,
) -> tuple[datetime | None, datetime | None, datetime | None]:
    available_at = read_instant(wire.available_at, "available_at")
    start_deadline_at = read_instant(wire.start_deadline_at, "start_deadline_at")
    deadline_at = read_instant(wire.deadline_at, "deadline_at")
    latest = _FIRST
    for instant in (available_at, start_deadline_at, deadline_at):
        if instant is not None:
            if instant < latest:
                raise BodyError(
                    ErrorCode.DEADLINE_ORDER,
                    "available_at, start_deadline_at and deadline_at are not in this order",
                )
            latest = instant
    return available_at, start_deadline_at, deadline_at


def read_instant(text: str | None, field: str) -> datetime | None:
    """An instant that a client may name, or BodyError; None for none."""
    if text is None:
        return None
    try:
        instant = parse_time(text)
    except ValueError as error:
        raise _invalid(field, str(error)) from None
    if not _FIRST <= instant < _END:
        raise _invalid(field, f"not in the years {YEAR_MIN} to {YEAR_END - 1}")
    return instant
