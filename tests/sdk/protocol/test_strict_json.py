"""Strict JSON: the quick way and the plain way agree, and what is refused is refused by name."""

import json
import time
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit_sdk.protocol import strict_json
from orbit_sdk.protocol.strict_json import (
    JsonError,
    JsonFault,
    canonical_text,
    check_json,
    decimal_text,
    is_deeper,
    parse_json,
)
from tests.contract.made_frames import business, spaces, written

EXACT = Context(prec=64)
QUICK = settings(max_examples=400, deadline=None)


def verdict(read: Any, data: bytes) -> bytes | JsonFault:
    try:
        text: bytes = read(data)
    except JsonError as error:
        return error.reason
    return text


def plain(data: bytes) -> bytes | JsonFault:
    """The answer of the plain reader alone."""
    return verdict(strict_json._plain_canonical_text, data)


TREES = st.builds(written, business, spaces)
REPEATS = st.sampled_from(
    [
        '{"a":%s,"a":%s}',
        r'{"a":%s,"\u0061":%s}',
        r'{":":%s,"\u003a":%s}',
        r'{"a":%s,"a":%s,"b":"\u003A"}',
        r'{"a":"\u003a","a":%s,"b":%s,"c":"\u003b"}',
        '{"b":%s,"a":{"c":1,"b":2,"c":%s}}',
        '[{"a":%s},{"a":%s}]',
        '{"a":{"b":%s},"a":{"b":%s}}',
        r'{"a":":::::","a":"\u003a\u003a",  "b":%s,"c":%s}',
        '{"a":%s,"b":%s}',
    ]
)
MIXED = st.one_of(
    TREES,
    st.builds(lambda form, a, b: form % (a, b), REPEATS, TREES, TREES),
    st.text('{}[]":,\\0123eE+-.untrflsa \u00e9', max_size=30),
)


@QUICK
@given(MIXED)
def test_the_quick_reader_agrees_with_the_plain_one(text: str) -> None:
    """OP-42: the short cut for repeated keys and exact numbers changes no verdict and no byte."""
    data = text.encode()
    assert verdict(canonical_text, data) == plain(data) or plain(data) == b"null"


@QUICK
@given(st.binary(max_size=24) | MIXED.map(lambda text: text.encode()[:-1] + b"\xff"))
def test_noise_is_refused_as_the_plain_reader_refuses_it(data: bytes) -> None:
    """INV-32."""
    assert verdict(canonical_text, data) == plain(data) or plain(data) == b"null"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"null", JsonFault.NULL),
        (b" null\n", JsonFault.NULL),
        (b'{"a":1,"a":1}', JsonFault.DUPLICATE_KEY),
        (rb'{"a":":","a":"\u003a"}', JsonFault.DUPLICATE_KEY),
        (rb'{"\u0061":1,"a":1}', JsonFault.DUPLICATE_KEY),
        (b"[" + b"9" * 65 + b"]", JsonFault.NUMBER_TOO_LONG),
        (b"0." + b"9" * 64, JsonFault.NUMBER_TOO_LONG),
        (b"1" * 5_000, JsonFault.NUMBER_TOO_LONG),
        (b"1e1024", JsonFault.NUMBER_OUT_OF_RANGE),
        (b"-1e-1023", JsonFault.NUMBER_OUT_OF_RANGE),
        (b"1e" + b"9" * 60, JsonFault.NUMBER_OUT_OF_RANGE),
        (rb'"\ud800"', JsonFault.LONE_SURROGATE),
        (rb'{"\udc00":1}', JsonFault.LONE_SURROGATE),
        (b'"\xed\xa0\x80"', JsonFault.BAD_UTF8),
        (b'"\xff"', JsonFault.BAD_UTF8),
        (b'"\xc0\x80"', JsonFault.BAD_UTF8),
        (b"NaN", JsonFault.MALFORMED),
        (b"[-Infinity]", JsonFault.MALFORMED),
        (b"\xef\xbb\xbf1", JsonFault.MALFORMED),
        (b"1 2", JsonFault.MALFORMED),
        (b'"\x00"', JsonFault.MALFORMED),
        (b"", JsonFault.MALFORMED),
        ('"1"'.encode("utf-16"), JsonFault.BAD_UTF8),
        (b"[" * 62 + b"]" * 62, JsonFault.TOO_DEEP),
        (b'{"a":' * 62 + b"0" + b"}" * 62, JsonFault.TOO_DEEP),
        (b"[" * 262_144, JsonFault.TOO_DEEP),
        (b'"' + b"a" * 262_143 + b'"', JsonFault.TOO_LARGE),
    ],
)
def test_what_is_refused_is_refused_by_name(text: bytes, reason: JsonFault) -> None:
    """R-005, B-45, B-47, and each trap of requirements section 18."""
    with pytest.raises(JsonError) as refused:
        check_json(text)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 61 + b"]" * 61,
        b'"' + b"a" * 262_142 + b'"',
        b"9" * 64,
        b"1e1023",
        b'"' + b"[{" * 500 + b'"',
        rb'"\\\"[{"',
        rb'"\u0000"',
        b'{"a":null}',
        b'[{"a":1},{"a":1}]',
        b'{"a":{"a":{"a":1}}}',
        b'"' + b"9" * 100 + b'"',
    ],
)
def test_what_is_allowed_is_allowed(text: bytes) -> None:
    """R-005, B-46."""
    check_json(text)
    parse_json(text)


@QUICK
@given(TREES)
def test_the_depth_is_that_of_the_containers(text: str) -> None:
    """R-005: brackets in strings do not count, whatever is escaped in them."""

    def depth(value: Any) -> int:
        if isinstance(value, dict):
            value = list(value.values())
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    deep = depth(json.loads(text))
    for bound in range(5):
        assert is_deeper(text.encode(), bound) == (deep > bound)


@pytest.mark.parametrize("text", [b'"' * 500_000, b'"\\' * 500_000, b'\\"' * 500_000, b'"[' * 9])
def test_the_depth_of_nonsense_is_found_in_linear_time(text: bytes) -> None:
    """B-45: open strings and odd escapes are no way to keep a gateway busy."""
    began = time.process_time()
    is_deeper(text, 64)
    assert time.process_time() - began < 0.25


NUMBERS = st.from_regex(
    r"-?(?:0|[1-9][0-9]{0,25})(?:\.[0-9]{1,25})?(?:[eE][+-]?[0-9]{1,4})?", fullmatch=True
).filter(str.isascii)


@QUICK
@given(NUMBERS)
def test_a_decimal_is_exact_and_canonical(number: str) -> None:
    """OP-42: no exponent, no trailing zeros, one zero; or out of range by its length."""
    mantissa, _, exponent = number.lower().partition("e")
    exact = Fraction(mantissa) * Fraction(10) ** int(exponent or "0")
    written_out = f"{Decimal(number).normalize(EXACT):f}" if exact else "0"
    if len(written_out) > 1024:
        with pytest.raises(JsonError) as refused:
            decimal_text(number)
        assert refused.value.reason is JsonFault.NUMBER_OUT_OF_RANGE
        return
    text = decimal_text(number)
    assert Fraction(text) == exact
    assert set(text) <= set("-.0123456789")
    assert not text.endswith(".")
    assert not ("." in text and text.endswith("0"))
    assert not text.startswith(("00", "-00", ".", "-."))
    assert not (exact == 0 and text != "0")


@given(NUMBERS)
def test_a_number_is_canonical_inside_a_value_too(number: str) -> None:
    """OP-42: integers inside and outside 64 bits, fractions, exponents."""
    try:
        expected = decimal_text(number)
    except JsonError:
        with pytest.raises(JsonError):
            canonical_text(f"[{number}]".encode())
        return
    assert canonical_text(f'{{"n":[{number}]}}'.encode()) == f'{{"n":[{expected}]}}'.encode()


def test_parsed_numbers_stay_exact_where_python_can() -> None:
    """B-47: no number becomes infinite or loses digits of an integer."""
    text = b"[1e400, -1e400, 123456789012345678901234567890, 1.5, -0]"
    assert parse_json(text) == [
        Decimal("1e400"),
        Decimal("-1e400"),
        123456789012345678901234567890,
        1.5,
        0,
    ]
    assert parse_json(rb'{"a":"\ud83d\ude00"}') == {"a": "\U0001f600"}
