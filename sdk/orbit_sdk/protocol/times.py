"""Instants on the wire (R-004): UTC, RFC 3339, ending in `Z`, at most six fractional digits."""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

_SHAPE: Final = (
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-[0-3][0-9]T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:\.[0-9]{1,6})?Z"
)
_encode: Final = msgspec.json.Encoder().encode
"""A quoted text, in a fifth of the time of `isoformat`."""
_time = re.compile(_SHAPE).fullmatch
_times = re.compile(f"{_SHAPE}(?:,{_SHAPE})*").fullmatch


def time_text(instant: datetime) -> str:
    """The wire text of an aware instant; a fraction only if there is one.

    Raises ValueError for a naive one.
    """
    if instant.tzinfo is not UTC:
        if instant.utcoffset() is None:
            raise ValueError("an instant needs a time zone")
        instant = instant.astimezone(UTC)
    return _encode(instant)[1:-1].decode()


def parse_time(text: str) -> datetime:
    """The instant, in UTC. Raises ValueError for any other form and for dates no calendar has.

    A leap second (`:60`) and year 0 are refused too: neither Python nor Postgres can hold them.
    """
    if _time(text) is None:
        raise ValueError("not a UTC instant of RFC 3339 with at most six fractional digits")
    return datetime.fromisoformat(text)


def are_times(texts: list[str]) -> bool:
    """Whether `parse_time` takes each of one or more texts."""
    if _times(",".join(texts)) is None:
        return False
    try:
        for text in texts:
            datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
