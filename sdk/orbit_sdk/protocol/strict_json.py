"""Business JSON at the door: what is let in can be stored, hashed, delivered and read back equal.

Refused: null, more bytes or more nesting than allowed, a repeated key, NaN and Infinity, half a
surrogate pair, bytes that are not UTF-8, a BOM, a number written with more than 64 characters or
whose plain decimal form passes 1024, and anything that is not one JSON value (INV-32, INV-33).

A compiled parser proves the ordinary text; whatever it cannot prove is read again by the plain
one, whose answer counts. `canonical_text` is both the proof and the canonical form (OP-42).
"""

import json
import math
import re
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import Final, NoReturn

import msgspec
import orjson

from .limits import (
    DECIMAL_CHARS_MAX,
    JSON_BYTES_MAX,
    JSON_DEPTH_MAX,
    NUMBER_CHARS_MAX,
    PAYLOAD_DEPTH_MAX,
)


class JsonFault(StrEnum):
    """Why a text was refused; the value is fit to be shown."""

    TOO_LARGE = "the JSON text is too large"
    TOO_DEEP = "the JSON text is nested too deep"
    DUPLICATE_KEY = "an object repeats a key"
    NUMBER_TOO_LONG = "a number is written with too many characters"
    NUMBER_OUT_OF_RANGE = "a number is too large or too small to be kept exactly"
    LONE_SURROGATE = "a string holds half a surrogate pair"
    BAD_UTF8 = "the text is not UTF-8"
    MALFORMED = "the text is not one JSON value"
    NULL = "the value is null"


class JsonError(ValueError):
    """The text is refused; `reason` says why and quotes nothing of it."""

    def __init__(self, reason: JsonFault) -> None:
        super().__init__(reason.value)
        self.reason = reason


def check_json(
    data: bytes, *, bytes_max: int = JSON_BYTES_MAX, depth_max: int = PAYLOAD_DEPTH_MAX
) -> None:
    """Return if the bytes are one acceptable JSON value; else raise JsonError.

    Without other bounds: a value that may be a payload or a result.
    """
    canonical_text(data, bytes_max=bytes_max, depth_max=depth_max)


def parse_json(data: bytes) -> object:
    """The value of an acceptable text; raises JsonError.

    Integers are exact; a fraction is a float, or a Decimal where a float would be infinite.
    """
    canonical_text(data)
    return _decode_python(data)


def canonical_text(
    data: bytes, *, bytes_max: int = JSON_BYTES_MAX, depth_max: int = JSON_DEPTH_MAX
) -> bytes:
    """The canonical form of OP-42, or JsonError if `check_json` would raise it."""
    if len(data) > bytes_max:
        raise JsonError(JsonFault.TOO_LARGE)
    if is_deeper(data, depth_max):
        raise JsonError(JsonFault.TOO_DEEP)
    # A value is checked when it is read and again when it is hashed: a short one is kept meanwhile.
    return _short_text(data) if len(data) <= _SHORT_BYTES else _text(data)


def _text(data: bytes) -> bytes:
    try:
        text = orjson.dumps(_decode_exact(data), option=orjson.OPT_SORT_KEYS)
    except (msgspec.DecodeError, TypeError):
        return _plain_canonical_text(data)
    # The parser keeps the last of two equal keys. Every key brings one colon; unless one is written
    # as an escape no colon of the result is new, so equal counts prove that no key was dropped.
    if text.count(b":") != data.count(b":") or b"\\u003a" in data or b"\\u003A" in data:
        text = _plain_canonical_text(data)
    if text == b"null":
        raise JsonError(JsonFault.NULL)
    return text


def refuse_repeated_keys(
    data: bytes, again: bytes, *, bytes_max: int, depth_max: int = JSON_DEPTH_MAX
) -> None:
    """Raise JsonError if an object repeats a key in a text that a typed decoder has taken.

    `again` is what was read, written by msgspec without white space. That is the shortest text
    for it, so a text of equal length has room for nothing else. A longer one has white space, or
    escapes, or a default spelled out, or a repeated key; unless one is written as \\u0022 each
    quotation mark of `again` is one of the text, and a repeated key, which brings two, shows in
    their number. What that does not prove is read whole.
    """
    if len(again) == len(data):
        return
    if again.count(b'"') != data.count(b'"') or b"\\u0022" in data:
        canonical_text(data, bytes_max=bytes_max, depth_max=depth_max)


def is_deeper(data: bytes, depth_max: int) -> bool:
    """Whether containers nest deeper than this, for any bytes, in linear time."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return False
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    return depth_max + 1 in accumulate(map(_STEP.__getitem__, brackets))


def decimal_text(number: str) -> str:
    """A JSON number as an exact decimal: no exponent, no trailing zeros, `0` for every zero.

    Raises JsonError if it was written too long or its decimal form would be.
    """
    if len(number) > NUMBER_CHARS_MAX:
        raise JsonError(JsonFault.NUMBER_TOO_LONG)
    mantissa, _, exponent = number.lower().partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent or "0")
    digits = digits.rstrip("0")
    if not digits:
        return "0"
    if max(point, len(digits) - point + 2) + len(sign) > DECIMAL_CHARS_MAX:
        raise JsonError(JsonFault.NUMBER_OUT_OF_RANGE)
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"


_SHORT_BYTES: Final = 256
_SHORT_KEPT: Final = 1_024
_short_text: Final = lru_cache(_SHORT_KEPT)(_text)
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEP: Final = [1 if chr(byte) in "[{" else -1 for byte in range(256)]
_INT64_DIGITS: Final = 18


def _exact_float(number: str) -> orjson.Fragment:
    return orjson.Fragment(decimal_text(number).encode())


def _exact_int(number: str) -> int | orjson.Fragment:
    return int(number) if len(number) <= _INT64_DIGITS else _exact_float(number)


def _python_float(number: str) -> float | Decimal:
    value = float(number)
    return Decimal(number) if math.isinf(value) else value


_decode_exact = msgspec.json.Decoder(float_hook=_exact_float).decode
_decode_python = msgspec.json.Decoder(float_hook=_python_float).decode


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise JsonError(JsonFault.DUPLICATE_KEY)
    return value


def _refuse_constant(_name: str) -> NoReturn:
    raise JsonError(JsonFault.MALFORMED)


_plain_decode = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_int=_exact_int,
    parse_float=_exact_float,
    parse_constant=_refuse_constant,
).decode


def _plain_canonical_text(data: bytes) -> bytes:
    try:
        value = _plain_decode(data.decode())
    except UnicodeDecodeError:
        raise JsonError(JsonFault.BAD_UTF8) from None
    except json.JSONDecodeError:
        raise JsonError(JsonFault.MALFORMED) from None
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        raise JsonError(JsonFault.LONE_SURROGATE) from None
