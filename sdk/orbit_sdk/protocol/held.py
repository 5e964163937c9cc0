"""Bodies of the way past a socket that is bad: what an instance renews or reports over HTTP.

Written by the SDK, read by the gateway. A request names its instance and proves it; each item names
an attempt, proves it and says what the frame of the same message id would say, under the same
rules and in the words of the newest version, so the operation is one whichever way it comes
(OP-21). Failures are BodyError.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from . import body_rules as rules
from .bodies import BodyError
from .errors import ErrorCode
from .faults import describe
from .ids import is_id
from .limits import BATCH_BODY_BYTES_MAX, HELD_ITEMS_MAX, HTTP_BODY_BYTES_MAX
from .scalars import is_secret
from .shapes import AttemptRef, LeaseBody, Receipt
from .states import Outcome
from .strict_json import JsonError, JsonFault, refuse_repeated_keys


class HeldBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The top of a request; each item is read on its own."""

    instance_id: str
    instance_secret: str
    items: list[Raw]

    def __repr__(self) -> str:
        return f"HeldBody(instance_id={self.instance_id!r}, instance_secret=…)"


class RenewItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A renewal: the body of a `task.renew`, and its message id."""

    message_id: str
    task_id: str
    attempt_id: str
    epoch: str
    lease_secret: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}(attempt_id={self.attempt_id!r}, lease_secret=…)"


class FinishItem(RenewItem, frozen=True, kw_only=True):
    """A report: the body of a `task.finish`, and its message id."""

    outcome: Outcome
    result: Raw
    error_code: str | UnsetType = UNSET


class HeldError(Struct, frozen=True):
    """Why an item was refused."""

    code: str
    message: str = ""
    details: dict[str, str] = {}


class HeldResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to one item: what the ack of the frame would say, or an error."""

    index: int
    status: int
    receipt: Receipt | None = None
    lease: LeaseBody | None = None
    deduplicated: bool = False
    error: HeldError | None = None


class HeldResults(Struct, frozen=True):
    """The answer to a request: one result an item, in order."""

    results: list[HeldResult]


def decode_held(data: bytes) -> HeldBody:
    """The top of a request with 1 to 256 items, not yet looked into, or BodyError."""
    if len(data) > BATCH_BODY_BYTES_MAX:
        raise BodyError(ErrorCode.PAYLOAD_TOO_LARGE, "the body is too large")
    try:
        body = _held(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError(ErrorCode.BAD_REQUEST, *describe(error)) from None
    # Outside the items: three keys, and two texts in which no mark is escaped.
    if data.count(b'"') != 10 + sum(bytes(item).count(b'"') for item in body.items):
        raise BodyError(ErrorCode.BAD_REQUEST, JsonFault.DUPLICATE_KEY.value)
    if not 1 <= len(body.items) <= HELD_ITEMS_MAX:
        raise BodyError(ErrorCode.BAD_REQUEST, f"not 1 to {HELD_ITEMS_MAX} items", "items")
    if not is_id(body.instance_id):
        raise _invalid("instance_id", "not 32 lowercase hexadecimal characters")
    if not is_secret(body.instance_secret):
        raise _invalid("instance_secret", "not 32 bytes in strict base64url")
    return body


def decode_renew_item(raw: Raw | bytes) -> RenewItem:
    """One renewal, or BodyError."""
    return _read(bytes(raw), _renew, _renewal)


def decode_finish_item(raw: Raw | bytes) -> FinishItem:
    """One report, or BodyError."""
    return _read(bytes(raw), _finish, _report)


def is_sound(result: HeldResult) -> bool:
    """Whether what a result says obeys the rules of an ack, so that it can be relied on."""
    try:
        if result.receipt is not None:
            rules.uint64(result.receipt.task_revision)
            rules.times(result.receipt.lease_until)
        if result.lease is not None:
            rules.lease(result.lease)
    except rules.Refused:
        return False
    return True


_Item = TypeVar("_Item", bound=RenewItem)

_held: Final = msgspec.json.Decoder(HeldBody).decode
_renew: Final = msgspec.json.Decoder(RenewItem)
_finish: Final = msgspec.json.Decoder(FinishItem)


def _read(
    data: bytes, decoder: msgspec.json.Decoder[_Item], rule: Callable[[_Item], None]
) -> _Item:
    try:
        item = decoder.decode(data)
        rule(item)
        refuse_repeated_keys(data, msgspec.json.encode(item), bytes_max=HTTP_BODY_BYTES_MAX)
    except rules.Refused as error:
        raise BodyError(ErrorCode.VALIDATION_FAILED, str(error)) from None
    except JsonError as error:
        raise BodyError(ErrorCode.BAD_REQUEST, error.reason.value) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BodyError(ErrorCode.BAD_REQUEST, *describe(error)) from None
    return item


def _renewal(item: RenewItem) -> None:
    ref = AttemptRef(item.task_id, item.attempt_id, item.epoch, item.lease_secret)
    rules.refs([item.message_id], (ref,))


def _report(item: FinishItem) -> None:
    _renewal(item)
    rules.report(item.outcome, item.error_code, item.result)


def _invalid(field: str, reason: str) -> BodyError:
    return BodyError(ErrorCode.VALIDATION_FAILED, reason, field)
