"""Numbers of items, sizes and depths of a v2 frame, each at its bound and one past it."""

import json
from typing import Any

import pytest

from orbit_sdk.protocol import frames as v1
from orbit_sdk.protocol import frames_v2 as v2
from tests.contract.made_frames import written
from tests.contract.oracle import Direction, accepts
from tests.contract.samples import (
    ASSIGNMENT,
    CLIENT_SAMPLES_V2,
    ID,
    ITEM,
    REF,
    RESULT,
    SECRET,
    SERVER_SAMPLES_V2,
    sample,
)

FINISH, ASSIGN, CANCEL = (
    written(tree) for tree in (CLIENT_SAMPLES_V2[5], SERVER_SAMPLES_V2[4], SERVER_SAMPLES_V2[6])
)


def frame(kind: str, **fields: Any) -> str:
    return written(sample(kind, "2", session_id=ID, **fields))


def verdict(text: str | bytes, direction: Direction = "clientFrame") -> bool:
    """What the decoder says, after the oracle said the same."""
    decode = v2.decode_client_frame if direction == "clientFrame" else v2.decode_server_frame
    try:
        decode(text)
    except v2.FrameError:
        assert not accepts(text, direction, "2")
        return False
    assert accepts(text, direction, "2")
    return True


@pytest.mark.parametrize("count", [0, 1, 256, 257])
def test_a_frame_has_1_to_256_items(count: int) -> None:
    """OP-06: of every kind that has items, in both directions."""
    ends = [{"message_id": ID, "ref": REF, "outcome": "SUCCEEDED", "result": 1}] * count
    wanted = 1 <= count <= 256
    for kind in ("task.start", "task.renew", "worker.resume"):
        assert verdict(frame(kind, body={"items": [ITEM] * count})) is wanted
    assert verdict(frame("task.finish", body={"items": ends})) is wanted
    results = frame("ack", reply_to=ID, body={"results": [RESULT] * count})
    assert verdict(results, "serverFrame") is wanted
    given = frame("task.assign", body={"assignments": [ASSIGNMENT] * count})
    assert verdict(given, "serverFrame") is wanted


def test_every_value_that_v1_carries_v2_carries_too() -> None:
    """R-005: two levels of nesting more, for the array and the item around it."""
    for depth, wanted in ((62, True), (63, False)):
        nest = "[" * depth + "0" + "]" * depth
        assert verdict(FINISH.replace('{"a":1}', nest, 1)) is wanted
    for depth, wanted in ((61, True), (62, False)):
        nest = "[" * depth + "0" + "]" * depth
        assert verdict(ASSIGN.replace('{"n":1}', nest, 1), "serverFrame") is wanted


def test_each_result_may_have_256_kib_and_the_frame_1_mib() -> None:
    """R-005, R-053."""
    largest = '"' + "x" * 262_142 + '"'
    assert verdict(FINISH.replace('{"a":1}', largest))
    assert not verdict(FINISH.replace('{"a":1}', '"' + "x" * 262_143 + '"', 1))
    assert verdict(FINISH + " " * (1_048_576 - len(FINISH)))
    assert not verdict(FINISH + " " * (1_048_577 - len(FINISH)))


def test_a_key_repeated_in_any_item_is_found() -> None:
    """R-009: however many quotation marks the frame has."""
    many = frame("task.renew", body={"items": [ITEM] * 256})
    at = many.rindex('"epoch":"7"')
    for twice in ('"epoch":"7","epoch":"7"', r'"epoch":"7","\u0065poch":"7"'):
        assert not verdict(many[:at] + twice + many[at + len('"epoch":"7"') :])


def test_an_ack_is_one_of_its_shapes_and_no_mixture() -> None:
    """R-018."""
    lease = RESULT["lease"]
    assert isinstance(lease, dict)
    mixtures: list[dict[str, Any]] = [
        {"results": [{**RESULT, **lease}]},
        {"results": [{**RESULT, "error": {"code": "x", "message": ""}}]},
        {"results": [{"lease": lease, "deduplicated": True}]},
        {"results": [{}]},
        {"results": [RESULT], "draining": False},
        {"results": [RESULT], "session_id": ID},
        RESULT,
        lease,
    ]
    for body in mixtures:
        assert not verdict(frame("ack", reply_to=ID, body=body), "serverFrame")


def test_the_id_to_answer_to_is_that_of_the_frame() -> None:
    """OP-08: never one of an item."""
    with pytest.raises(v2.FrameError) as refused:
        v2.decode_client_frame(FINISH.replace('"outcome":"FAILED"', '"outcome":"LOST"'))
    assert refused.value.message_id == "a1" * 16
    bare = json.dumps({"body": {"items": [ITEM]}})
    with pytest.raises(v2.FrameError) as refused:
        v2.decode_client_frame(bare)
    assert refused.value.message_id is None


@pytest.mark.parametrize("text", [written(CLIENT_SAMPLES_V2[3]), FINISH])
def test_a_printed_frame_shows_no_secret(text: str) -> None:
    """R-003, R-118."""
    assert SECRET in text
    assert SECRET not in repr(v2.decode_client_frame(text))
    assert SECRET not in repr(v2.decode_server_frame(ASSIGN))


def test_v1_knows_nothing_of_what_v2_added() -> None:
    """OP-02: v1 stays closed."""
    stopped = '{"protocol_version":"1","type":"task.finish","message_id":"' + ID + '"'
    stopped += f',"session_id":"{ID}","body":{{"ref":{json.dumps(REF)},"outcome":"CANCELLED"'
    stopped += ',"result":{},"error_code":"cancelled"}}'
    assert not accepts(stopped, "clientFrame")
    with pytest.raises(v1.FrameError, match="outcome"):
        v1.decode_client_frame(stopped)
    with pytest.raises(v1.FrameError):
        v1.decode_server_frame(CANCEL.replace('"2"', '"1"', 1))
