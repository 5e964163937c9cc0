"""An item over HTTP is taken exactly where the frame of the same words is (OP-21)."""

import json

import pytest

from orbit_sdk.protocol.bodies import BodyError
from orbit_sdk.protocol.frames import FrameError, decode_client_frame
from orbit_sdk.protocol.held import decode_finish_item, decode_held, decode_renew_item

ID, OTHER_ID = "0123456789abcdef" * 2, "f" * 32
SECRET = "A" * 43
REF = {"task_id": ID, "attempt_id": OTHER_ID, "epoch": "7", "lease_secret": SECRET}
REPORT = {"outcome": "FAILED", "result": {"n": 1}, "error_code": "smtp.down"}
DEEP = "[" * 64 + "]" * 64

REF_FAULTS = [
    {"task_id": ID.upper()},
    {"task_id": ID + "0"},
    {"attempt_id": "g" * 32},
    {"epoch": "07"},
    {"epoch": "0"},
    {"epoch": "18446744073709551616"},
    {"epoch": 7},
    {"lease_secret": "A" * 42 + "B"},
    {"lease_secret": "A" * 44},
    {"surplus": 1},
]
REPORT_FAULTS = [
    {"outcome": "STOPPED"},
    {"outcome": "SUCCEEDED"},
    {"outcome": "SUCCEEDED", "error_code": ""},
    {"outcome": "UNKNOWN"},
    {"error_code": ""},
    {"error_code": "x" * 65},
    {"error_code": None},
    {"result": None},
    {"result": "\ud800"},
    {"result": "x" * 262_144},
    {"result": json.loads(DEEP)},
    {"result": [json.loads(DEEP)]},
    {"result": 10**70},
]


def frame_is_taken(kind: str, body: object) -> bool:
    frame = {"protocol_version": "1", "type": kind, "message_id": ID, "session_id": ID}
    try:
        decode_client_frame(json.dumps(frame | {"body": body}))
    except FrameError:
        return False
    return True


@pytest.mark.parametrize("change", [{}, *REF_FAULTS])
def test_a_renewal_is_taken_where_its_frame_is(change: dict[str, object]) -> None:
    ref = REF | change
    try:
        decode_renew_item(json.dumps({"message_id": ID} | ref).encode())
        taken = True
    except BodyError:
        taken = False
    assert taken is frame_is_taken("task.renew", ref) is (not change)


@pytest.mark.parametrize("change", [{}, *REPORT_FAULTS])
def test_a_report_is_taken_where_its_frame_is(change: dict[str, object]) -> None:
    report = REPORT | change
    try:
        decode_finish_item(json.dumps({"message_id": ID} | REF | report).encode())
        taken = True
    except BodyError:
        taken = False
    assert taken is frame_is_taken("task.finish", {"ref": REF} | report)


def test_a_confirmed_stop_is_taken_as_in_the_newest_version() -> None:
    """OP-02: v1 has no word for it."""
    report = REPORT | {"outcome": "CANCELLED", "error_code": "cancelled"}
    item = decode_finish_item(json.dumps({"message_id": ID} | REF | report).encode())
    assert item.outcome == "CANCELLED"


def test_a_repeated_key_is_found_at_every_level() -> None:
    item = json.dumps({"message_id": ID} | REF | REPORT)
    with pytest.raises(BodyError):
        decode_finish_item((item[:-1] + ',"outcome":"FAILED"}').encode())
    with pytest.raises(BodyError):
        decode_finish_item(item.replace('"n": 1', '"n":1,"n":2').encode())
    top = f'{{"instance_id":"{ID}","instance_secret":"{SECRET}","items":[{item}]'
    assert len(decode_held((top + "}").encode()).items) == 1
    with pytest.raises(BodyError):
        decode_held((top + f',"instance_id":"{ID}"}}').encode())


def test_no_secret_shows_in_a_repr() -> None:
    item = json.dumps({"message_id": ID} | REF | REPORT).encode()
    body = f'{{"instance_id":"{ID}","instance_secret":"{SECRET}","items":[{item.decode()}]}}'
    shown = repr(decode_finish_item(item)) + repr(decode_held(body.encode()))
    assert SECRET not in shown
