"""uint64, secret and token texts, against their definitions."""

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.protocol.scalars import is_secret, is_token, is_uint64


@given(st.integers(-5, 2**64 + 5) | st.integers(2**64 - 3, 2**64 + 3) | st.integers())
def test_a_uint64_is_1_to_2_64_minus_1(value: int) -> None:
    """R-002."""
    assert is_uint64(str(value)) == (1 <= value < 2**64)


@given(st.text("0123456789", max_size=22) | st.text("019+-. \n\u0661\u00b2", max_size=5))
def test_a_uint64_is_written_canonically(text: str) -> None:
    """R-002: no leading zero, no sign, ASCII digits, no newline."""
    canonical = re.fullmatch("[0-9]+", text) and text == str(int(text)) and 0 < int(text) < 2**64
    assert is_uint64(text) == bool(canonical)


@given(st.binary(min_size=32, max_size=32))
def test_32_bytes_make_a_secret(secret: bytes) -> None:
    """R-003."""
    assert is_secret(base64.urlsafe_b64encode(secret).decode().rstrip("="))


@given(st.text("AEBaz09-_+/= \n\u00e9", min_size=41, max_size=44))
def test_a_secret_is_the_one_spelling_of_its_bytes(text: str) -> None:
    """R-003: strict, unpadded base64url."""
    assert is_secret(text) == (spelling(text) == text)


def spelling(text: str) -> str | None:
    if not re.fullmatch("[A-Za-z0-9_-]{43}", text):
        return None
    return base64.urlsafe_b64encode(base64.urlsafe_b64decode(text + "=")).decode().rstrip("=")


@pytest.mark.parametrize("last", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
def test_the_last_character_of_a_secret_has_two_zero_bits(last: str) -> None:
    """R-003: exactly 16 letters may end it."""
    assert is_secret("A" * 42 + last) == (last in "AEIMQUYcgkosw048")


@given(st.text("aZ09_.:- \n/\u00e9", max_size=12), st.integers(1, 12))
def test_a_token_starts_with_a_letter_or_digit(text: str, chars_max: int) -> None:
    """R-006."""
    plain = set("aZ09_.:-")
    expected = (
        0 < len(text) <= chars_max and text[0] not in "_.:-" and all(char in plain for char in text)
    )
    assert is_token(text, chars_max) == expected
