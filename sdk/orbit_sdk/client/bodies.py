"""Submissions as request bodies, and the cutting of a long list into requests. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from orbit_sdk.business_json import NotSendable, encode_value
from orbit_sdk.client.models import Submission
from orbit_sdk.errors import BadRequest
from orbit_sdk.protocol.bodies import BatchSubmitItem, SubmitBody
from orbit_sdk.protocol.limits import BATCH_BODY_BYTES_MAX, BATCH_ITEMS_MAX
from orbit_sdk.protocol.shapes import Retry

_BATCH_OPEN = b'{"items":['
_BATCH_CLOSE = b"]}"


@dataclass(frozen=True, slots=True)
class Chunk:
    """The items `first` .. `first + count - 1` of a batch as one request body."""

    first: int
    count: int
    body: bytes


def submission_body(submission: Submission, *, submission_key: str | None = None) -> bytes:
    """The JSON body of one submission, or of one batch item if it gets a key (OP-40).

    Raises BadRequest if the payload cannot travel or a time has no zone.
    """
    try:
        payload = encode_value(submission.payload)
    except NotSendable as error:
        code = "payload_too_large" if error.too_large else "invalid_payload"
        raise BadRequest(code, f"payload of {submission.handler}: {error}") from None
    fields: dict[str, Any] = {
        "queue": submission.queue,
        "handler": submission.handler,
        "handler_version": submission.handler_version,
        "payload_version": submission.payload_version,
        "payload": msgspec.Raw(payload),
        "recovery_safety": submission.recovery_safety,
        "retry": msgspec.convert(submission.retry, Retry, from_attributes=True),
        "priority": submission.priority,
        "business_key": submission.business_key,
        "available_at": utc_instant("available_at", submission.available_at),
        "start_deadline_at": utc_instant("start_deadline_at", submission.start_deadline_at),
        "deadline_at": utc_instant("deadline_at", submission.deadline_at),
    }
    if submission_key is None:
        return msgspec.json.encode(SubmitBody(**fields))
    return msgspec.json.encode(BatchSubmitItem(submission_key=submission_key, **fields))


def utc_instant(name: str, instant: datetime | None) -> datetime | None:
    """An instant as it travels. Raises BadRequest for one without a zone."""
    if instant is None:
        return None
    if instant.utcoffset() is None:
        raise BadRequest("naive_time", f"{name} has no time zone; use datetime.now(UTC) and alike")
    return instant.astimezone(UTC)


def chunks(items: Sequence[bytes]) -> Iterator[Chunk]:
    """Cut item bodies, in order, into requests of at most 1000 items and 16 MiB each (OP-45)."""
    first = 0
    held: list[bytes] = []
    size = len(_BATCH_OPEN) + len(_BATCH_CLOSE)
    for index, item in enumerate(items):
        full = len(held) == BATCH_ITEMS_MAX or size + len(item) + 1 > BATCH_BODY_BYTES_MAX
        if held and full:
            yield _chunk(first, held)
            first, held = index, []
            size = len(_BATCH_OPEN) + len(_BATCH_CLOSE)
        held.append(item)
        size += len(item) + 1
    if held:
        yield _chunk(first, held)


def _chunk(first: int, items: list[bytes]) -> Chunk:
    return Chunk(first, len(items), _BATCH_OPEN + b",".join(items) + _BATCH_CLOSE)
