"""The bounds that the specification names, by their numbers."""

import pytest

from orbit_sdk.protocol import limits

SECTION_17 = {
    "FRAME_BYTES_MAX": 1_048_576,
    "JSON_BYTES_MAX": 262_144,
    "JSON_DEPTH_MAX": 64,
    "NUMBER_CHARS_MAX": 64,
    "HTTP_BODY_BYTES_MAX": 1_048_576,
    "BATCH_BODY_BYTES_MAX": 16_777_216,
    "BATCH_ITEMS_MAX": 1000,
    "PAGE_DEFAULT": 50,
    "PAGE_MAX": 200,
    "SEND_QUEUE_FRAMES_MAX": 64,
    "SEND_QUEUE_BYTES_MAX": 4_194_304,
    "SEND_QUEUE_FULL_S": 30,
    "HELLO_TIMEOUT_S": 5,
    "PING_INTERVAL_S": 20,
    "WRITE_DEADLINE_S": 10,
    "KEY_CHARS_MAX": 128,
    "BAD_FRAMES_MAX": 8,
}


@pytest.mark.parametrize("name", SECTION_17)
def test_a_bound_has_its_number(name: str) -> None:
    """Requirements section 17, OP-08, OP-41: changing one is a decision."""
    assert getattr(limits, name) == SECTION_17[name]
