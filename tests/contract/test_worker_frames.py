"""The frame decoders accept exactly what the schema and the runtime rules accept (R-009 to R-039).

The schema is read by jsonschema-rs, the runtime rules by `oracle`; Hypothesis writes the frames.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbit_sdk.protocol.frames import (
    FrameError,
    decode_client_frame,
    decode_server_frame,
    encode_frame,
)
from tests.contract import made_frames as made
from tests.contract.oracle import Direction, accepts, readable_message_id

Decode = Callable[[str | bytes], Any]

SIDES: list[Any] = [
    pytest.param("clientFrame", decode_client_frame, made.client_frames, id="client"),
    pytest.param("serverFrame", decode_server_frame, made.server_frames, id="server"),
]
DECODERS: dict[Direction, Decode] = {
    "clientFrame": decode_client_frame,
    "serverFrame": decode_server_frame,
}
many = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def agree(text: str | bytes, direction: Direction) -> bool:
    """Both readings have one verdict on the text, which is returned."""
    decode = DECODERS[direction]
    if not accepts(text, direction):
        with pytest.raises(FrameError) as refused:
            decode(text)
        assert refused.value.message_id == readable_message_id(text)
        assert len(refused.value.reason) <= 1024
        return False
    again = encode_frame(decode(text))
    assert json.loads(again) == json.loads(text)
    assert encode_frame(decode(again)) == again
    return True


@pytest.mark.parametrize(("direction", "_decode", "frames"), SIDES)
@many
@given(data=st.data())
def test_valid_frames_are_read_and_written_back(
    direction: Direction, _decode: Decode, frames: Any, data: st.DataObject
) -> None:
    """R-011, R-012, R-013: every valid frame round-trips, as text and as bytes."""
    text = data.draw(made.texts(frames))
    assert agree(text, direction)
    assert agree(text.encode(), direction)


@pytest.mark.parametrize(("direction", "_decode", "frames"), SIDES)
@settings(many, max_examples=1000)
@given(data=st.data())
def test_one_change_is_judged_as_the_contract_judges_it(
    direction: Direction, _decode: Decode, frames: Any, data: st.DataObject
) -> None:
    """R-009, R-013, R-019, OP-08."""
    agree(data.draw(made.nearly_valid(frames)), direction)


@pytest.mark.parametrize(("direction", "_decode", "frames"), SIDES)
@many
@given(data=st.data())
def test_hostile_texts_get_the_same_verdict(
    direction: Direction, _decode: Decode, frames: Any, data: st.DataObject
) -> None:
    """INV-32: any bytes give an answer of the documented kind."""
    agree(data.draw(made.hostile(frames)), direction)


@settings(many, max_examples=100)
@given(frame=made.server_frames, other=made.client_frames)
def test_no_frame_passes_for_the_other_direction(frame: made.Members, other: made.Members) -> None:
    """R-013."""
    with pytest.raises(FrameError):
        decode_client_frame(made.written(frame))
    with pytest.raises(FrameError):
        decode_server_frame(made.written(other))


@pytest.mark.parametrize("value", made.ODD_VALUES)
@pytest.mark.parametrize("direction", ["clientFrame", "serverFrame"])
def test_every_odd_value_at_every_place(direction: Direction, value: str) -> None:
    """R-001 to R-006, R-020 to R-039: each field of each kind, one odd value at a time."""
    samples = CLIENT_SAMPLES if direction == "clientFrame" else SERVER_SAMPLES
    refused = 0
    for sample in samples:
        for path in made.places(sample):
            text = made.written(made.changed(sample, path, "value", "", value))  # type: ignore[arg-type]
            refused += not agree(text, direction)
    assert refused > 20


@pytest.mark.parametrize("change", ["drop", "repeat", "repeat changed", "add", "case", "escape"])
@pytest.mark.parametrize("direction", ["clientFrame", "serverFrame"])
def test_every_change_at_every_place(direction: Direction, change: str) -> None:
    """R-009, and repeated keys, at each place of a frame of each kind."""
    samples = CLIENT_SAMPLES if direction == "clientFrame" else SERVER_SAMPLES
    verdicts = []
    for sample in samples:
        assert agree(made.written(sample), direction)
        for path in made.places(sample):
            tree = made.changed(sample, path, change, '"extra"', '"x"')
            verdicts += [agree(made.written(tree, space), direction) for space in ("", " ")]  # type: ignore[arg-type]
    assert verdicts.count(False) > 20 or change == "escape"
    assert verdicts.count(True) > 0 or change.startswith("repeat")


def _sample(kind: str, **fields: Any) -> made.Members:
    head = {"protocol_version": "1", "type": kind, "message_id": "a1" * 16}
    sample = tree({**head, **fields})
    assert isinstance(sample, made.Members)
    return sample


def tree(value: Any) -> Any:
    if isinstance(value, dict):
        return made.Members(tuple((json.dumps(key), tree(item)) for key, item in value.items()))
    if isinstance(value, list):
        return made.Items(tuple(tree(item) for item in value))
    return json.dumps(value)


ID, SECRET, TIME = "0f" * 16, "A" * 43, "2026-09-17T08:00:30.5Z"
NAMES = {"handler": "report.make", "handler_version": "1", "payload_version": "1"}
REF = {"task_id": ID, "attempt_id": ID, "epoch": "7", "lease_secret": SECRET}
WELCOME = {
    "session_id": ID,
    "epoch": "1",
    "server_time": TIME,
    "expires_at": TIME,
    "lease_duration_ms": 30000,
    "draining": False,
}
LEASE = {"active": True, "state": "RUNNING", "lease_until": TIME, "server_time": TIME}
RECEIPT = {
    "operation": "start",
    "task_state": "RUNNING",
    "attempt_state": "RUNNING",
    "task_revision": "3",
    "lease_until": TIME,
    "disposition": "APPLIED",
}
TASK = {
    "id": ID,
    "namespace_id": ID,
    "queue_id": ID,
    "state": "LEASED",
    "revision": "2",
    **NAMES,
    "payload": {"n": 1},
    "result": [1],
    "business_key": "order-7",
    "available_at": TIME,
    "start_deadline_at": TIME,
    "deadline_at": TIME,
    "recovery_safety": "IDEMPOTENT",
    "retry": {
        "max_attempts": 3,
        "initial_delay_ms": 0,
        "max_delay_ms": 0,
        "attempt_timeout_ms": 1,
    },
    "attempt_count": 1,
    "cancel_requested_at": TIME,
    "completed_at": TIME,
    "created_at": TIME,
    "updated_at": TIME,
}
ASSIGNMENT = {
    "task": TASK,
    "attempt_id": ID,
    "epoch": "1",
    "lease_secret": SECRET,
    "lease_until": TIME,
    "server_time": TIME,
}
CLIENT_SAMPLES = [
    _sample(
        "worker.hello",
        body={
            "instance_id": ID,
            "instance_secret": SECRET,
            "queue_id": ID,
            "capabilities": [NAMES, {**NAMES, "handler": "b"}],
            "capacity": 4,
        },
    ),
    _sample("worker.capacity", session_id=ID, body={"sequence": "1", "capacity": 0, "drain": True}),
    *(
        _sample(kind, session_id=ID, body=REF)
        for kind in ("worker.resume", "task.start", "task.renew")
    ),
    *(
        _sample("task.finish", session_id=ID, body={"ref": REF, "result": {"a": 1}, **ending})
        for ending in (
            {"outcome": "SUCCEEDED"},
            {"outcome": "SUCCEEDED", "error_code": ""},
            {"outcome": "FAILED", "error_code": "e.1"},
            {"outcome": "UNKNOWN", "error_code": "x"},
        )
    ),
]
SERVER_SAMPLES = [
    _sample("worker.welcome", session_id=ID, reply_to=ID, body=WELCOME),
    *(
        _sample("ack", session_id=ID, reply_to=ID, body=body)
        for body in (
            WELCOME,
            LEASE,
            {**LEASE, "active": False, "state": "EXPIRED"},
            {"receipt": RECEIPT, "lease": LEASE, "deduplicated": False},
        )
    ),
    _sample("task.assign", session_id=ID, body=ASSIGNMENT),
    _sample("error", error={"code": "bad_frame", "message": "No."}),
    _sample("error", session_id=ID, reply_to=ID, error={"code": "bad_frame", "message": "No."}),
]
