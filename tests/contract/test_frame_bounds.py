"""Sizes, depths and numbers of a frame, each at its bound and one past it (R-005, section 17)."""

import time
from typing import Any

import pytest

from orbit_sdk.protocol.frames import (
    FinishFrame,
    FrameError,
    HelloFrame,
    decode_client_frame,
    decode_server_frame,
)
from tests.contract.made_frames import written
from tests.contract.oracle import accepts
from tests.contract.samples import CLIENT_SAMPLES, ID, SECRET, SERVER_SAMPLES

HELLO, START, FINISH = (written(CLIENT_SAMPLES[index]) for index in (0, 3, 5))
ASSIGN = written(SERVER_SAMPLES[5])


def finish(result: str) -> str:
    assert '{"a":1}' in FINISH
    return FINISH.replace('{"a":1}', result, 1)


def verdict(text: str | bytes) -> bool:
    """What the decoder says, after the oracle said the same."""
    try:
        decode_client_frame(text)
    except FrameError:
        assert not accepts(text, "clientFrame")
        return False
    assert accepts(text, "clientFrame")
    return True


def test_a_result_may_have_256_kib() -> None:
    """R-005: UTF-8 bytes of the value as written."""
    assert verdict(finish('"' + "x" * 262_142 + '"'))
    assert not verdict(finish('"' + "x" * 262_143 + '"'))
    assert verdict(finish('"' + "\u00e9" * 131_071 + '"'))
    assert not verdict(finish('"' + "\u00e9" * 131_072 + '"'))
    assert not verdict(finish("[" + " " * 262_143 + "]"))


def test_a_frame_may_have_1_mib() -> None:
    """R-053: white space counts too."""
    assert verdict(START + " " * (1_048_576 - len(START)))
    with pytest.raises(FrameError) as refused:
        decode_client_frame(START + " " * (1_048_577 - len(START)))
    assert refused.value.message_id is None


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_a_frame_may_nest_64_deep(opening: str, closing: str) -> None:
    """R-005: the limit is over the whole frame, whose result starts at the third level."""
    assert verdict(finish(opening * 62 + "0" + closing * 62))
    assert not verdict(finish(opening * 63 + "0" + closing * 63))


@pytest.mark.parametrize("repeats", [65, 1_000, 200_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("place", ["result", "unknown field", "alone"])
def test_deep_nesting_is_refused_quickly(opening: str, repeats: int, place: str) -> None:
    """INV-32: no recursion, and little processor time for a frame of any size."""
    nest = opening * min(repeats, 1_040_000 // len(opening))
    text = {
        "result": finish(nest),
        "unknown field": START.replace('"body":', f'"more":{nest},"body":'),
        "alone": nest,
    }[place]
    began = time.process_time()
    with pytest.raises(FrameError) as refused:
        decode_client_frame(text)
    assert time.process_time() - began < 0.25
    assert refused.value.message_id is None


@pytest.mark.parametrize("number", ["9" * 64, "-" + "9" * 63, "0." + "1" * 62, "1e1023", "-0"])
def test_numbers_that_can_be_kept(number: str) -> None:
    """R-005, OP-42."""
    assert verdict(finish(number))


@pytest.mark.parametrize("number", ["9" * 65, "0." + "1" * 63, "1e1024", "1e-1023", "1e99999999"])
def test_numbers_that_cannot_be_kept(number: str) -> None:
    """R-005, OP-42: what could not be hashed is refused at the door (INV-33)."""
    assert not verdict(finish(f'{{"n":[{number}]}}'))


def test_the_message_id_of_a_malformed_frame_is_read() -> None:
    """OP-08: whatever else is wrong, an answer can be tied to the request."""
    message_id = "a1" * 16
    for text in (
        START.replace("task.start", "task.stop"),
        START.replace('"protocol_version":"1"', '"protocol_version":"2"'),
        START.replace('"body":', '"more":1e999,"body":'),
        START.replace(SECRET, "short"),
        finish("null"),
        finish('{"a":1,"a":1}'),
        '{"message_id":"' + message_id + '"}',
    ):
        with pytest.raises(FrameError) as refused:
            decode_client_frame(text)
        assert refused.value.message_id == message_id


def test_no_message_id_is_made_up() -> None:
    """OP-08: none, a malformed one, two, or no JSON at all."""
    message_id = "a1" * 16
    twice = START.replace('"body":', f'"message_id":"{message_id}","body":')
    for text in (
        START.replace(message_id, message_id.upper()),
        twice,
        START[:-1],
        START + "x",
        f"[{START}]",
        '{"body":' + START + "}",
    ):
        with pytest.raises(FrameError) as refused:
            decode_client_frame(text)
        assert refused.value.message_id is None


@pytest.mark.parametrize("version", ["2", "1.0", "0", ""])
def test_another_protocol_version_is_no_frame(version: str) -> None:
    """R-011, R-055."""
    text = START.replace('"protocol_version":"1"', f'"protocol_version":"{version}"')
    with pytest.raises(FrameError, match="protocol_version"):
        decode_client_frame(text)


def test_a_reason_quotes_no_value() -> None:
    """R-003, R-017: what the sender wrote stays out of logs and answers."""
    probe = "S3cretS3cret"
    for text in (
        HELLO.replace(SECRET, probe),
        FINISH.replace("SUCCEEDED", probe),
        START.replace("task.start", probe),
        finish(f'{{"{probe}":1,"{probe}":2}}'),
    ):
        assert probe in text
        with pytest.raises(FrameError) as refused:
            decode_client_frame(text)
        assert probe not in refused.value.reason


@pytest.mark.parametrize(
    ("text", "decode"),
    [(HELLO, decode_client_frame), (FINISH, decode_client_frame), (ASSIGN, decode_server_frame)],
)
def test_a_printed_frame_shows_no_secret(text: str, decode: Any) -> None:
    """R-003, R-118: not even by accident, in a log line or a failed assertion."""
    assert SECRET in text
    assert SECRET not in repr(decode(text))


def test_quotation_marks_in_a_message_hide_no_repeated_key() -> None:
    """R-009: however they are spelled."""
    error = written(SERVER_SAMPLES[7])
    twice = error.replace(f'"reply_to":"{ID}"', f'"reply_to":"{ID}", "reply_to":"{ID}"')
    for message in ("No.", r"\"\"\"\"", r"\u0022" * 4, r"\u0022\"" * 2):
        once = error.replace("No.", message)
        spaced = once.replace(",", " , ")
        assert decode_server_frame(once) == decode_server_frame(spaced)
        with pytest.raises(FrameError):
            decode_server_frame(twice.replace("No.", message))


def test_business_values_are_the_bytes_that_came() -> None:
    """INV-33: spelling, order and white space inside a value survive."""
    spelled = r'{ "b" : 1.50, "a" : "\u0041\/" }'
    frame = decode_client_frame(finish(spelled))
    assert isinstance(frame, FinishFrame)
    assert bytes(frame.body.result) == spelled.encode()


def test_capabilities_are_compared_as_values() -> None:
    """R-020: two equal ones are refused however they are written."""
    equal = r'{"payload_version":"1","handler":"\u0062","handler_version":"1"}'
    listed = '{"handler":"b","handler_version":"1","payload_version":"1"}'
    assert listed in HELLO
    assert not verdict(HELLO.replace(listed, f"{listed},{equal}"))
    frame = decode_client_frame(HELLO)
    assert isinstance(frame, HelloFrame)
    assert frame.body.instance_id == ID
    assert [capability.handler for capability in frame.body.capabilities] == ["report.make", "b"]


def test_a_hello_has_1_to_32_capabilities() -> None:
    """R-020."""

    def hello(count: int) -> str:
        start = HELLO.index('"capabilities":[') + len('"capabilities":[')
        many = ",".join(
            f'{{"handler":"h{index}","handler_version":"1","payload_version":"1"}}'
            for index in range(count)
        )
        return HELLO[:start] + many + HELLO[HELLO.index("]", start) :]

    assert [verdict(hello(count)) for count in (0, 1, 32, 33)] == [False, True, True, False]
