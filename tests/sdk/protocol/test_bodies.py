"""Submission bodies: what is taken, what is refused with which code, and what they mean."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.protocol.bodies import (
    RETRY_DEFAULT,
    BatchSubmitItem,
    BodyError,
    SubmitBody,
    decode_batch,
    decode_batch_item,
    decode_submit,
    finish_hash,
    is_key,
    submit_hash,
)
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.limits import DELAY_MS_MAX, YEAR_END
from orbit_sdk.protocol.shapes import Retry
from orbit_sdk.protocol.states import Outcome, RecoverySafety
from orbit_sdk.protocol.times import time_text
from tests.contract.made_frames import business, written

LEAST: dict[str, Any] = {
    "queue": "reports",
    "handler": "report.make",
    "handler_version": "1",
    "payload_version": "1",
    "payload": {"n": 1},
    "recovery_safety": "IDEMPOTENT",
}
RETRY = {
    "max_attempts": 5,
    "initial_delay_ms": 10,
    "max_delay_ms": 20,
    "attempt_timeout_ms": 30,
}
FULL: dict[str, Any] = {
    **LEAST,
    "retry": RETRY,
    "priority": -7,
    "business_key": "order-7",
    "available_at": "2026-09-17T08:00:00Z",
    "start_deadline_at": "2026-09-17T09:00:00Z",
    "deadline_at": "2026-09-17T10:00:00.5Z",
}


def body(**changes: Any) -> bytes:
    return json.dumps({**FULL, **changes}).encode()


def refused(data: bytes, code: ErrorCode, field: str | None = None) -> BodyError:
    """The refusal, the same for a submission of its own and for an item of a batch."""
    with pytest.raises(BodyError) as alone:
        decode_submit(data)
    assert alone.value.code is code
    if field is not None:
        assert alone.value.field == field
    with pytest.raises(BodyError) as item:
        decode_batch_item(data.replace(b"{", b'{"submission_key":"k",', 1))
    assert (item.value.code, item.value.field) == (alone.value.code, alone.value.field)
    return alone.value


def test_defaults_are_filled_in() -> None:
    """OP-40."""
    taken = decode_submit(json.dumps(LEAST).encode())
    assert taken.retry == RETRY_DEFAULT == Retry(3, 1_000, 60_000, 3_600_000)
    assert (taken.priority, taken.business_key) == (0, None)
    assert (taken.available_at, taken.start_deadline_at, taken.deadline_at) == (None, None, None)
    assert taken.recovery_safety is RecoverySafety.IDEMPOTENT


def test_everything_given_is_kept() -> None:
    """OP-40, INV-33."""
    taken = decode_submit(body())
    assert (taken.queue, taken.handler) == ("reports", "report.make")
    assert (taken.handler_version, taken.payload_version) == ("1", "1")
    assert taken.retry == Retry(5, 10, 20, 30)
    assert (taken.priority, taken.business_key) == (-7, "order-7")
    assert taken.available_at == datetime(2026, 9, 17, 8, tzinfo=UTC)
    assert taken.start_deadline_at == datetime(2026, 9, 17, 9, tzinfo=UTC)
    assert taken.deadline_at == datetime(2026, 9, 17, 10, 0, 0, 500_000, UTC)


@given(business.map(written))
def test_the_payload_is_the_bytes_that_came(payload: str) -> None:
    """INV-33: never re-encoded."""
    text = json.dumps({**LEAST, "payload": "HERE"}).replace('"HERE"', f" {payload} ")
    assert bytes(decode_submit(text.encode()).payload) == payload.encode()


@pytest.mark.parametrize("field", LEAST)
def test_a_missing_field_is_a_bad_request(field: str) -> None:
    """OP-40, R-103."""
    shortened = {name: value for name, value in FULL.items() if name != field}
    refused(json.dumps(shortened).encode(), ErrorCode.BAD_REQUEST, field)


@pytest.mark.parametrize("field", RETRY)
def test_a_retry_policy_is_given_whole(field: str) -> None:
    """R-033."""
    part = {name: value for name, value in RETRY.items() if name != field}
    refused(body(retry=part), ErrorCode.BAD_REQUEST, f"retry.{field}")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"more": 1}, "more"),
        ({"retry": {**RETRY, "more": 1}}, "retry.more"),
        ({"submission_key\n": "x"}, None),
        ({"priority": 1.0}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": "1"}, "priority"),
        ({"priority": None}, "priority"),
        ({"queue": 1}, "queue"),
        ({"queue": None}, "queue"),
        ({"retry": []}, "retry"),
        ({"retry": {**RETRY, "max_attempts": "3"}}, "retry.max_attempts"),
        ({"business_key": 1}, "business_key"),
        ({"available_at": 1}, "available_at"),
        ({"recovery_safety": "SAFE"}, "recovery_safety"),
        ({"recovery_safety": None}, "recovery_safety"),
        ({"payload": None}, "payload"),
    ],
)
def test_another_shape_is_a_bad_request(changes: dict[str, Any], field: str | None) -> None:
    """OP-40, OP-47, R-103."""
    refused(body(**changes), ErrorCode.BAD_REQUEST, field)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{",
        body() + b"x",
        b"\xef\xbb\xbf" + body(),
        body().replace(b'"priority": -7', b'"priority": -7, "priority": -7'),
        body().replace(b'"priority": -7', rb'"priority": -7, "priorit\u0079": -7'),
        body(business_key="HERE")
        .replace(b"HERE", rb"\u0022\u0022")
        .replace(b'"priority": -7', b'"priority": -7, "priority": -7'),
        body().replace(b'{"n": 1}', b'{"n": 1, "n": 1}'),
        body().replace(b'{"n": 1}', b'{"n": NaN}'),
        body().replace(b'{"n": 1}', rb'"\ud800"'),
        body().replace(b'{"n": 1}', b'"\xff"'),
        body().replace(b'"order-7"', rb'"\ud800"'),
        body().replace(b'"order-7"', b'"\xff"'),
        body().replace(b'{"n": 1}', b"[" * 62 + b"]" * 62),
        body().replace(b'{"n": 1}', b"[" * 200_000),
        body().replace(b'"max_attempts": 5', b'"max_attempts": 5, "max_attempts": 5'),
    ],
)
def test_what_is_not_strict_json_is_a_bad_request(data: bytes) -> None:
    """R-103, B-45, B-47."""
    assert data != body()
    refused(data, ErrorCode.BAD_REQUEST)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": "a b"}, "queue"),
        ({"queue": "q" * 129}, "queue"),
        ({"handler": "-x"}, "handler"),
        ({"handler": "x" * 129}, "handler"),
        ({"handler": "x\n"}, "handler"),
        ({"handler_version": "x" * 65}, "handler_version"),
        ({"payload_version": "x" * 33}, "payload_version"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"priority": 10**30}, "priority"),
        ({"business_key": "k" * 192}, "business_key"),
        ({"business_key": "\0"}, "business_key"),
        ({"retry": {**RETRY, "max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {**RETRY, "max_attempts": 101}}, "retry.max_attempts"),
        ({"retry": {**RETRY, "initial_delay_ms": -1}}, "retry.initial_delay_ms"),
        ({"retry": {**RETRY, "max_delay_ms": DELAY_MS_MAX + 1}}, "retry.max_delay_ms"),
        ({"retry": {**RETRY, "attempt_timeout_ms": 0}}, "retry.attempt_timeout_ms"),
        ({"retry": {**RETRY, "attempt_timeout_ms": 2592000001}}, "retry.attempt_timeout_ms"),
        ({"retry": {**RETRY, "initial_delay_ms": 21}}, "retry.initial_delay_ms"),
        ({"available_at": "2026-02-29T00:00:00Z"}, "available_at"),
        ({"available_at": "2026-09-17T08:00:00+00:00"}, "available_at"),
        ({"available_at": "1969-12-31T23:59:59Z"}, "available_at"),
        ({"available_at": "2200-01-01T00:00:00Z"}, "available_at"),
        ({"deadline_at": "9999-12-31T23:59:59Z"}, "deadline_at"),
        ({"start_deadline_at": ""}, "start_deadline_at"),
    ],
)
def test_a_value_out_of_bounds_fails_validation(changes: dict[str, Any], field: str) -> None:
    """R-103, R-006, R-031, R-033, OP-27, OP-30, INV-36."""
    refused(body(**changes), ErrorCode.VALIDATION_FAILED, field)


@pytest.mark.parametrize("number", ["1e1024", "1e-1023", "1e99999999999", "9" * 65])
def test_a_number_that_cannot_be_kept_fails_validation(number: str) -> None:
    """B-47: refused once and finally, never stored as infinity, zero or null."""
    data = body().replace(b'{"n": 1}', f'{{"n": {number}}}'.encode())
    refused(data, ErrorCode.VALIDATION_FAILED, "payload")
    kept = decode_submit(body().replace(b'{"n": 1}', b'{"n": 1e400}'))
    assert bytes(kept.payload) == b'{"n": 1e400}'


@pytest.mark.parametrize(
    "changes",
    [
        {"queue": "q" * 128},
        {"handler": "x" * 128, "handler_version": "x" * 64, "payload_version": "x" * 32},
        {"priority": 100},
        {"priority": -100},
        {"business_key": "\U0001f600" * 191},
        {"business_key": ""},
        {"business_key": 'a"\\\n"'},
        {"business_key": None, "available_at": None, "start_deadline_at": None},
        {"retry": {**RETRY, "initial_delay_ms": 20}},
        {"retry": dict(zip(RETRY, (100, 0, DELAY_MS_MAX, 2592000000), strict=True))},
        {"available_at": "2026-09-17T10:00:00.5Z", "start_deadline_at": "2026-09-17T10:00:00.5Z"},
        {"available_at": "1970-01-01T00:00:00Z"},
    ],
)
def test_values_at_their_bounds_are_taken(changes: dict[str, Any]) -> None:
    """R-006, R-031, R-033, OP-30."""
    assert decode_submit(body(**changes)).queue


INSTANTS = st.none() | st.integers(0, 4).map(lambda hour: datetime(2026, 9, 17, hour, tzinfo=UTC))


@given(INSTANTS, INSTANTS, INSTANTS)
def test_times_must_lie_in_order(
    available_at: datetime | None, start: datetime | None, end: datetime | None
) -> None:
    """OP-40: each pair that is given; equal is in order."""
    names = ("available_at", "start_deadline_at", "deadline_at")
    given_times = [at for at in (available_at, start, end) if at is not None]
    texts = {
        name: time_text(at) if at else None
        for name, at in zip(names, (available_at, start, end), strict=True)
    }
    if given_times == sorted(given_times):
        taken = decode_submit(body(**texts))
        assert (taken.available_at, taken.start_deadline_at) == (available_at, start)
    else:
        refused(body(**texts), ErrorCode.DEADLINE_ORDER)


def test_every_instant_leaves_room_for_every_delay() -> None:
    """INV-36."""
    last = decode_submit(
        body(
            available_at=f"{YEAR_END - 1}-12-31T23:59:59.999999Z",
            start_deadline_at=None,
            deadline_at=None,
        )
    )
    assert last.available_at is not None
    assert (last.available_at + timedelta(milliseconds=DELAY_MS_MAX)).year < 9999


def test_a_body_may_have_1_mib_and_a_payload_256_kib() -> None:
    """R-053, OP-47."""
    padded = body() + b" " * (1_048_576 - len(body()))
    assert decode_submit(padded) == decode_submit(body())
    with pytest.raises(BodyError) as too_large:
        decode_submit(padded + b" ")
    assert too_large.value.code is ErrorCode.PAYLOAD_TOO_LARGE
    assert len(bytes(decode_submit(body(payload="x" * 262_142)).payload)) == 262_144
    refused(body(payload="x" * 262_143), ErrorCode.PAYLOAD_TOO_LARGE, "payload")


def test_what_a_client_encodes_is_what_the_server_takes() -> None:
    """R-097: both sides share the struct; defaults stay unwritten."""
    sent = SubmitBody(
        queue="q",
        handler="h",
        handler_version="1",
        payload_version="1",
        payload=msgspec.Raw(b'{"n":1.50}'),
        recovery_safety=RecoverySafety.RECONCILE_ONLY,
        available_at=datetime(2026, 9, 17, 8, 0, 0, 5, UTC),
    )
    data = msgspec.json.encode(sent)
    assert b"priority" not in data
    taken = decode_submit(data)
    assert taken.available_at == sent.available_at
    assert meaning(taken) == meaning(sent)


# The batch


def test_a_batch_is_split_into_its_items() -> None:
    """OP-45."""
    assert [bytes(item) for item in decode_batch(b'{"items":[{"a":1}, 2 ,null]}')] == [
        b'{"a":1}',
        b"2",
        b"null",
    ]
    assert len(decode_batch(b'{ "items" : [' + b"1," * 999 + b"1]}")) == 1000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"items":[]}',
        b'{"items":{}}',
        b'{"items":null}',
        b'{"items":[1],"items":[1]}',
        b'{"items":[{"a":"b"}],"items":[{"a":"b"}]}',
        rb'{"items":[1],"item\u0073":[1]}',
        b'{"items":[1],"more":1}',
        b'{"items":[1]}x',
        b'{"items":[1,]}',
        b'{"items":[' + b"1," * 1000 + b"1]}",
        b'{"items":[' + b"[" * 200_000,
    ],
)
def test_a_broken_top_level_is_a_bad_request(data: bytes) -> None:
    """OP-45."""
    with pytest.raises(BodyError) as broken:
        decode_batch(data)
    assert broken.value.code is ErrorCode.BAD_REQUEST


def test_a_batch_may_have_16_mib() -> None:
    """Section 17."""
    batch = b'{"items":[1]}'
    assert decode_batch(batch + b" " * (16_777_216 - len(batch)))
    with pytest.raises(BodyError) as too_large:
        decode_batch(batch + b" " * (16_777_217 - len(batch)))
    assert too_large.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_one_bad_item_does_not_spoil_another() -> None:
    """OP-45, R-108."""
    good = {**LEAST, "submission_key": "k-1"}
    items = decode_batch(json.dumps({"items": [good, {"submission_key": "k-2"}, 7]}).encode())
    assert decode_batch_item(items[0]).submission_key == "k-1"
    for item in items[1:]:
        with pytest.raises(BodyError) as bad:
            decode_batch_item(item)
        assert bad.value.code is ErrorCode.BAD_REQUEST


def test_an_item_means_what_the_same_submission_means() -> None:
    """R-093: the key is the identity, not the meaning."""
    item = decode_batch_item(body(submission_key="k"))
    assert isinstance(item, BatchSubmitItem)
    assert item.submission_key == "k"
    assert meaning(item) == meaning(decode_submit(body()))


@given(st.text(max_size=4) | st.text("a~! \x7f\n\u00e9", max_size=130))
def test_a_key_is_visible_ascii(text: str) -> None:
    """OP-41."""
    visible = 1 <= len(text) <= 128 and all("!" <= char <= "~" for char in text)
    assert is_key(text) == visible
    item = body(submission_key=text)
    if visible:
        assert decode_batch_item(item).submission_key == text
    else:
        with pytest.raises(BodyError) as bad:
            decode_batch_item(item)
        assert bad.value.code is ErrorCode.VALIDATION_FAILED
        assert bad.value.field == "submission_key"


# The meaning


def meaning(item: SubmitBody) -> bytes:
    return submit_hash(item, "b" * 32)


def test_a_queue_is_what_it_was_found_as() -> None:
    """OP-42: its name and its id mean the same, another queue does not."""
    named, known = decode_submit(body(queue="mail")), decode_submit(body(queue="b" * 32))
    assert meaning(named) == meaning(known)
    assert submit_hash(named, "c" * 32) != meaning(named)


@pytest.mark.parametrize(
    "changes",
    [
        {"handler": "other"},
        {"handler_version": "2"},
        {"payload_version": "2"},
        {"payload": {"n": 2}},
        {"recovery_safety": "RECONCILE_ONLY"},
        *({"retry": {**RETRY, name: value - 1}} for name, value in RETRY.items()),
        {"priority": 0},
        {"business_key": None},
        {"business_key": ""},
        {"available_at": None},
        {"available_at": "2026-09-17T08:00:00.000001Z"},
        {"start_deadline_at": None},
        {"deadline_at": None},
        {"deadline_at": "2026-09-17T10:00:00.6Z"},
    ],
)
def test_each_field_is_part_of_the_meaning(changes: dict[str, Any]) -> None:
    """R-092, OP-42: the same key with any of these is a conflict."""
    assert meaning(decode_submit(body(**changes))) != meaning(decode_submit(body()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"available_at": "2026-09-17T08:00:00.000Z"}),
        ({}, {"deadline_at": "2026-09-17T10:00:00.500000Z"}),
        ({"deadline_at": None}, {"deadline_at": "2026-09-18T08:00:00Z"}),
        ({"payload": 1}, {"payload": 1.0}),
    ],
)
def test_two_spellings_of_one_meaning(one: dict[str, Any], other: dict[str, Any]) -> None:
    """R-091, OP-42: a default, a fraction of zero, another form of a number."""
    assert meaning(decode_submit(body(**one))) == meaning(decode_submit(body(**other)))


def test_defaults_written_out_change_nothing() -> None:
    """OP-42: the order of fields and white space neither."""
    spelled = {
        "priority": 0,
        "retry": dict(zip(RETRY, (3, 1_000, 60_000, 3_600_000), strict=True)),
        "business_key": None,
        "available_at": None,
        "start_deadline_at": None,
        "deadline_at": None,
        **dict(reversed(LEAST.items())),
    }
    one = decode_submit(json.dumps(LEAST, separators=(",", ":")).encode())
    assert meaning(decode_submit(json.dumps(spelled, indent=2).encode())) == meaning(one)


def test_the_meaning_of_a_finish() -> None:
    """OP-21: outcome, code and canonical result; nothing of the session."""
    one = finish_hash(Outcome.FAILED, "e", b'{"n":1.0}')
    assert finish_hash(Outcome.FAILED, "e", b'{ "n" : 1 }') == one
    assert one not in {
        finish_hash(Outcome.UNKNOWN, "e", b'{"n":1}'),
        finish_hash(Outcome.FAILED, "f", b'{"n":1}'),
        finish_hash(Outcome.FAILED, "e", b'{"n":2}'),
    }


def test_a_confirmed_stop_means_the_same_in_either_version() -> None:
    """OP-02: made as FAILED with the code under v1, repeated as CANCELLED under v2."""
    one = finish_hash(Outcome.FAILED, "cancelled", b"{}")
    assert finish_hash(Outcome.CANCELLED, "cancelled", b"{}") == one
    assert finish_hash(Outcome.CANCELLED, "e", b"{}") != finish_hash(Outcome.FAILED, "e", b"{}")
