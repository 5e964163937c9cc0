"""What an HTTP answer means: the data of a success, or the exception of a refusal. Pure (R-100)."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar

import msgspec

from orbit_sdk.client.models import Attempt, Queue, Submitted
from orbit_sdk.client.steps import Answer
from orbit_sdk.errors import OrbitError, ServerError, error_for_status

T = TypeVar("T")

# What msgspec raises for bytes of whatever kind; deep nesting is the last.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Envelope(msgspec.Struct, Generic[T], frozen=True):
    """A success as it travels."""

    data: T
    request_id: str = ""


class AttemptPage(msgspec.Struct, frozen=True):
    """One page of attempts; `next_cursor` leads to the next."""

    items: list[Attempt]
    next_cursor: str | None = None


class QueuePage(msgspec.Struct, frozen=True):
    """One page of queues."""

    items: list[Queue]
    next_cursor: str | None = None


class ErrorPart(msgspec.Struct, frozen=True):
    """The error of a refusal, of a whole request or of one batch item."""

    code: str
    message: str = ""
    details: dict[str, Any] = {}


class BatchItem(msgspec.Struct, frozen=True):
    """The answer to one batch item as it travels."""

    index: int
    status: int
    id: str | None = None
    state: str | None = None
    revision: str | int | None = None
    deduplicated: bool = False
    error: ErrorPart | None = None


class BatchPage(msgspec.Struct, frozen=True):
    """The answer to a whole batch."""

    results: list[BatchItem]


class _Refusal(msgspec.Struct, frozen=True):
    error: ErrorPart
    request_id: str = ""


def data_of(answer: Answer, kind: type[T]) -> T:
    """The `data` of a 2xx answer. Raises the OrbitError of any other, and ServerError for a body
    that is not what this SDK knows."""
    if not 200 <= answer.status < 300:
        raise refusal(answer)
    try:
        # Lax, since uint64 travels as text and is an int here.
        envelope = msgspec.json.decode(answer.content, type=Envelope[kind], strict=False)  # type: ignore[valid-type]
    except _UNREADABLE as error:
        raise ServerError(
            "bad_answer",
            f"the answer cannot be read ({error}); is ORBIT_URL the address of a gateway?",
            status=answer.status,
        ) from None
    return envelope.data


def refusal(answer: Answer) -> OrbitError:
    """The exception of an answer that is not a success, its body readable or not."""
    try:
        body = msgspec.json.decode(answer.content, type=_Refusal)
    except _UNREADABLE:
        # A load balancer or a proxy answered; its page is of no use to a caller.
        return error_for_status(
            answer.status, f"http_{answer.status}", f"the server answered {answer.status}"
        )
    return error_for_status(
        answer.status,
        body.error.code,
        body.error.message,
        request_id=body.request_id or None,
        details=body.error.details,
    )


def submitted_of(item: BatchItem, key: str) -> Submitted | OrbitError:
    """What became of one batch item."""
    if item.error is None and item.status in (200, 201):
        try:
            return msgspec.convert(
                {
                    "id": item.id,
                    "state": item.state,
                    "revision": item.revision,
                    "deduplicated": item.deduplicated,
                    "key": key,
                },
                Submitted,
                strict=False,
            )
        except msgspec.ValidationError as error:
            return ServerError("bad_answer", f"item {item.index} cannot be read ({error})")
    part = item.error or ErrorPart(f"http_{item.status}", "the item was refused")
    return error_for_status(item.status, part.code, part.message, details=part.details)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that a Retry-After asks for, in seconds or as a date (RFC 9110, 10.2.3).

    A date is measured against the answer's own Date, so no local clock is needed.
    """
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(int(text.strip())))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(text)
        since = parsedate_to_datetime(headers.get("date") or "")
        return max(0.0, (until - since).total_seconds())
    except (ValueError, TypeError):
        return None
