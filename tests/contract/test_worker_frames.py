"""The frame decoders accept exactly what the schema and the runtime rules accept (R-009 to R-039).

The schema is read by jsonschema-rs, the runtime rules by `oracle`; Hypothesis writes the frames.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbit_sdk.protocol import frames as v1
from orbit_sdk.protocol import frames_v2 as v2
from tests.contract import made_frames as made
from tests.contract import made_frames_v2 as made_v2
from tests.contract.oracle import Direction, Version, accepts, readable_message_id
from tests.contract.samples import (
    CLIENT_SAMPLES,
    CLIENT_SAMPLES_V2,
    SERVER_SAMPLES,
    SERVER_SAMPLES_V2,
)


@dataclass(frozen=True)
class Side:
    """One direction of one version: how it is read and written, made and shown."""

    version: Version
    direction: Direction
    decode: Callable[[str | bytes], Any]
    encode: Callable[[Any], bytes]
    frames: Any
    samples: list[made.Members]

    def accepts(self, text: str | bytes) -> bool:
        return accepts(text, self.direction, self.version)


CLIENT = Side(
    "1", "clientFrame", v1.decode_client_frame, v1.encode_frame, made.client_frames, CLIENT_SAMPLES
)
SERVER = Side(
    "1", "serverFrame", v1.decode_server_frame, v1.encode_frame, made.server_frames, SERVER_SAMPLES
)
CLIENT_V2 = Side(
    "2",
    "clientFrame",
    v2.decode_client_frame,
    v2.encode_frame,
    made_v2.client_frames,
    CLIENT_SAMPLES_V2,
)
SERVER_V2 = Side(
    "2",
    "serverFrame",
    v2.decode_server_frame,
    v2.encode_frame,
    made_v2.server_frames,
    SERVER_SAMPLES_V2,
)
SIDES = (CLIENT, SERVER, CLIENT_V2, SERVER_V2)
each_side = pytest.mark.parametrize(
    "side", [pytest.param(side, id=f"v{side.version}-{side.direction}") for side in SIDES]
)
many = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def agree(text: str | bytes, side: Side) -> bool:
    """Both readings have one verdict on the text, which is returned."""
    if not side.accepts(text):
        with pytest.raises(v1.FrameError) as refused:
            side.decode(text)
        assert refused.value.message_id == readable_message_id(text, side.version)
        assert len(refused.value.reason) <= 1024
        return False
    again = side.encode(side.decode(text))
    assert json.loads(again) == json.loads(text)
    assert side.encode(side.decode(again)) == again
    return True


@each_side
@many
@given(data=st.data())
def test_valid_frames_are_read_and_written_back(side: Side, data: st.DataObject) -> None:
    """R-011, R-012, R-013: every valid frame round-trips, as text and as bytes."""
    text = data.draw(made.texts(side.frames))
    assert agree(text, side)
    assert agree(text.encode(), side)


@each_side
@settings(many, max_examples=1000)
@given(data=st.data())
def test_one_change_is_judged_as_the_contract_judges_it(side: Side, data: st.DataObject) -> None:
    """R-009, R-013, R-019, OP-08."""
    agree(data.draw(made.nearly_valid(side.frames)), side)


@each_side
@many
@given(data=st.data())
def test_hostile_texts_get_the_same_verdict(side: Side, data: st.DataObject) -> None:
    """INV-32: any bytes give an answer of the documented kind."""
    agree(data.draw(made.hostile(side.frames)), side)


@each_side
@settings(many, max_examples=100)
@given(data=st.data())
def test_no_frame_passes_for_another_direction_or_version(side: Side, data: st.DataObject) -> None:
    """R-013, R-055."""
    text = made.written(data.draw(side.frames))
    for other in SIDES:
        if other is not side:
            with pytest.raises(v1.FrameError):
                other.decode(text)


@pytest.mark.parametrize("value", made.ODD_VALUES)
@each_side
def test_every_odd_value_at_every_place(side: Side, value: str) -> None:
    """R-001 to R-006, R-020 to R-039: each field of each kind, one odd value at a time."""
    refused = 0
    for sample in side.samples:
        for path in made.places(sample):
            text = made.written(made.changed(sample, path, "value", "", value))  # type: ignore[arg-type]
            refused += not agree(text, side)
    assert refused > 20


@pytest.mark.parametrize("change", ["drop", "repeat", "repeat changed", "add", "case", "escape"])
@each_side
def test_every_change_at_every_place(side: Side, change: str) -> None:
    """R-009, and repeated keys, at each place of a frame of each kind."""
    verdicts = []
    for sample in side.samples:
        assert agree(made.written(sample), side)
        for path in made.places(sample):
            tree = made.changed(sample, path, change, '"extra"', '"x"')
            verdicts += [agree(made.written(tree, space), side) for space in ("", " ")]  # type: ignore[arg-type]
    assert verdicts.count(False) > 20 or change == "escape"
    assert verdicts.count(True) > 0 or change.startswith("repeat")
