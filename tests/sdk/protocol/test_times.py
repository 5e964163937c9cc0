"""Instants on the wire: one form, real dates, exact both ways."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.protocol.times import are_times, parse_time, time_text

OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
DAY = timedelta(days=1)
INSTANTS = st.datetimes(
    (datetime.min.replace(tzinfo=UTC) + DAY).replace(tzinfo=None),
    (datetime.max.replace(tzinfo=UTC) - DAY).replace(tzinfo=None),
    timezones=st.just(UTC) | OFFSETS,
)


@given(INSTANTS)
def test_every_instant_survives(instant: datetime) -> None:
    """R-004, INV-36: from any offset, to the microsecond."""
    text = time_text(instant)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?Z", text, re.ASCII)
    assert parse_time(text) == instant
    assert parse_time(text).utcoffset() == timedelta(0)


def test_a_whole_second_has_no_fraction() -> None:
    assert time_text(datetime(2026, 9, 17, 8, 0, 30, tzinfo=UTC)) == "2026-09-17T08:00:30Z"
    assert time_text(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"
    assert time_text(datetime(2026, 9, 17, 8, 0, 30, 5, UTC)) == "2026-09-17T08:00:30.000005Z"


def test_an_instant_without_a_zone_is_an_error() -> None:
    with pytest.raises(ValueError, match="time zone"):
        time_text(datetime(2026, 9, 17, tzinfo=UTC).replace(tzinfo=None))


@pytest.mark.parametrize(
    ("text", "microsecond"), [(".5", 500_000), (".05", 50_000), (".000001", 1), ("", 0)]
)
def test_a_fraction_may_have_up_to_six_digits(text: str, microsecond: int) -> None:
    """R-004."""
    assert parse_time(f"2026-09-17T08:00:30{text}Z").microsecond == microsecond


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "2026-01-32T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T23:60:00Z",
        "2026-06-30T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "2026-01-01T00:00:00.1234567Z",
        "2026-01-01T00:00:00.Z",
        "2026-01-01T00:00:00,5Z",
        "2026-01-01T00:00:00",
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:00:00-00:00",
        "2026-01-01T00:00:00z",
        "2026-01-01t00:00:00Z",
        "2026-01-01 00:00:00Z",
        "2026-01-01T00:00Z",
        "2026-01-01",
        "2026-W01-1T00:00:00Z",
        "20260101T000000Z",
        "2026-01-01T00:00:00Z\n",
        " 2026-01-01T00:00:00Z",
        "+2026-01-01T00:00:00Z",
        "12026-01-01T00:00:00Z",
        "\u0662026-01-01T00:00:00Z",
        "",
    ],
)
def test_every_other_form_is_refused(text: str) -> None:
    """R-004, and the month 99 of requirements section 18."""
    assert not are_times([text])
    assert not are_times(["2026-09-17T08:00:30Z", text])
    assert not are_times([f"2026-09-17T08:00:30Z,{text}"])
    with pytest.raises(ValueError, match=r"\w"):
        parse_time(text)


@given(st.lists(INSTANTS.map(time_text), min_size=1, max_size=4))
def test_times_may_be_checked_together(texts: list[str]) -> None:
    """R-004: all of them, and only as the texts they are."""
    assert are_times(texts)
    assert not are_times([*texts, "2026-02-30T00:00:00Z"])
    assert are_times([",".join(texts)]) == (len(texts) == 1)
