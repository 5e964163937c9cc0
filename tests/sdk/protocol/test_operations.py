"""Bodies of operations: shape is 400, meaning 422, and each meaning has its own hash."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from orbit_sdk.protocol.bodies import BodyError
from orbit_sdk.protocol.operations import (
    CancelBody,
    decode_cancel,
    decode_gate,
    decode_resolve,
    decode_retry,
    operation_hash,
)

RETRY = {"reason": "again", "expected_revision": "4"}
RESOLVE = {**RETRY, "outcome": "FAILED", "evidence": {"ticket": 7}}
GATE = {"reason": "incident", "expected_version": "1"}


def text(body: object) -> bytes:
    return json.dumps(body).encode()


def refusal(decode: Any, data: bytes) -> tuple[str, str]:
    with pytest.raises(BodyError) as refused:
        decode(data)
    return refused.value.code.value, refused.value.field


def test_what_is_said_is_read() -> None:
    assert decode_cancel(text({"reason": "sold out"})) == CancelBody(reason="sold out")
    retry = decode_retry(text({**RETRY, "deadline_at": "2030-01-01T00:00:00Z"}))
    assert (retry.expected_revision, retry.deadline_at) == ("4", datetime(2030, 1, 1, tzinfo=UTC))
    resolve = decode_resolve(text(RESOLVE))
    assert (resolve.outcome, bytes(resolve.evidence)) == ("FAILED", b'{"ticket": 7}')
    assert decode_gate(text(GATE)).expected_version == "1"


SHAPE, MEANING = "bad_request", "validation_failed"
REVISION, VERSION = "expected_revision", "expected_version"


@pytest.mark.parametrize(
    ("decode", "body", "expected"),
    [
        (decode_cancel, {}, (SHAPE, "reason")),
        (decode_cancel, {"reason": 1}, (SHAPE, "reason")),
        (decode_cancel, {"reason": "x", "why": "y"}, (SHAPE, "why")),
        (decode_cancel, {"reason": " "}, (MEANING, "reason")),
        (decode_cancel, {"reason": "a\0b"}, (MEANING, "reason")),
        (decode_cancel, {"reason": "x" * 1025}, (MEANING, "reason")),
        (decode_cancel, {**RETRY, REVISION: 4}, (SHAPE, REVISION)),
        (decode_cancel, {**RETRY, REVISION: "0"}, (MEANING, REVISION)),
        (decode_retry, {"reason": "x"}, (SHAPE, REVISION)),
        (decode_retry, {**RETRY, REVISION: str(2**63)}, (MEANING, REVISION)),
        (decode_retry, {**RETRY, "deadline_at": "soon"}, (MEANING, "deadline_at")),
        (decode_retry, {**RETRY, "deadline_at": "1969-01-01T00:00:00Z"}, (MEANING, "deadline_at")),
        (decode_resolve, {**RESOLVE, "outcome": "WAITING"}, (SHAPE, "outcome")),
        (decode_resolve, {**RESOLVE, "evidence": None}, (SHAPE, "evidence")),
        (decode_resolve, RETRY, (SHAPE, "outcome")),
        (decode_gate, {"reason": "x"}, (SHAPE, VERSION)),
        (decode_gate, {**GATE, VERSION: "01"}, (MEANING, VERSION)),
    ],
)
def test_shape_and_meaning_are_told_apart(
    decode: Any, body: object, expected: tuple[str, str]
) -> None:
    assert refusal(decode, text(body)) == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b'{"reason":"a","reason":"b"}', b'{"reason":"\\ud800"}', b"[" * 90],
)
def test_hostile_text_is_refused(data: bytes) -> None:
    assert refusal(decode_cancel, data)[0] == "bad_request"


def test_a_body_has_an_end() -> None:
    data = text({**RESOLVE, "evidence": "x" * 262_144})
    assert refusal(decode_resolve, data) == ("payload_too_large", "")


def test_each_meaning_has_its_own_hash() -> None:
    bodies = [
        ("task.cancel", decode_cancel(text({"reason": "a"}))),
        ("task.cancel", decode_cancel(text({"reason": "b"}))),
        ("task.cancel", decode_cancel(text({"reason": "a", "expected_revision": "1"}))),
        ("task.retry", decode_retry(text({"reason": "a", "expected_revision": "1"}))),
        ("task.retry", decode_retry(text({**RETRY, "deadline_at": "2030-01-01T00:00:00Z"}))),
        ("task.resolve", decode_resolve(text(RESOLVE))),
        ("task.resolve", decode_resolve(text({**RESOLVE, "outcome": "CANCELLED"}))),
        ("task.resolve", decode_resolve(text({**RESOLVE, "evidence": {"ticket": 8}}))),
        ("queue.pause", decode_gate(text(GATE))),
        ("queue.resume", decode_gate(text(GATE))),
    ]
    assert len({operation_hash(name, body) for name, body in bodies}) == len(bodies)


def test_spelling_is_not_meaning() -> None:
    one = decode_resolve(text({**RESOLVE, "evidence": {"a": 1.0, "b": [2]}}))
    other = decode_resolve(
        b'{"evidence":{"b":[2.0],"a":1},"outcome":"FAILED",'
        b'"expected_revision":"4","reason":"again"}'
    )
    assert operation_hash("task.resolve", one) == operation_hash("task.resolve", other)
    absent = decode_cancel(text({"reason": "a"}))
    null = decode_cancel(text({"reason": "a", "expected_revision": None}))
    assert operation_hash("task.cancel", absent) == operation_hash("task.cancel", null)
