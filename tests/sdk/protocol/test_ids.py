"""Identifiers: form, time, randomness, and a source that never repeats itself."""

import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.protocol.ids import IdSource, are_ids, is_id, new_id


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_new_id_is_a_uuid7_of_its_millisecond(now_ms: int, rand: bytes) -> None:
    """R-001, RFC 9562 section 5.7."""
    text = new_id(now_ms, rand)
    value = uuid.UUID(text)
    assert is_id(text)
    assert value.version == 7
    assert value.variant == uuid.RFC_4122
    assert value.int >> 80 == now_ms


@given(st.binary(min_size=10, max_size=10), st.integers(0, 79))
def test_74_of_the_80_random_bits_count(rand: bytes, bit: int) -> None:
    """Changing one of them changes the id; the other six are those of version and variant."""
    drawn = int.from_bytes(rand, "big")
    other = (drawn ^ 1 << bit).to_bytes(10, "big")
    unused = {0, 1, 2, 3, 66, 67}
    assert (new_id(0, rand) == new_id(0, other)) == (bit in unused)


@pytest.mark.parametrize("length", [0, 9, 11])
def test_another_amount_of_entropy_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match="10 random bytes"):
        new_id(0, bytes(length))


@pytest.mark.parametrize("now_ms", [-1, 2**48])
def test_a_time_that_does_not_fit_is_an_error(now_ms: int) -> None:
    with pytest.raises(OverflowError):
        new_id(now_ms, bytes(10))
    with pytest.raises(OverflowError):
        IdSource(lambda: now_ms, bytes).next()


ID_TEXTS = st.text("0123456789abcdefABCDEFg \n_\uff11", min_size=30, max_size=34) | st.text(
    "0123456789abcdef", min_size=31, max_size=33
)


@given(ID_TEXTS)
def test_an_id_is_32_lowercase_hex_digits(text: str) -> None:
    """R-001."""
    plain = len(text) == 32 and all(char in "0123456789abcdef" for char in text)
    assert is_id(text) == plain
    if len(text) == 32:
        assert are_ids(text + "a" * 32) == plain


@pytest.mark.parametrize("spoil", [str.upper, lambda text: text + "\n", lambda text: text[1:]])
def test_a_spoiled_id_is_none(spoil: Callable[[str], str]) -> None:
    """R-001, and the trailing newline of requirements section 18."""
    assert is_id("ab" * 16)
    assert not is_id(spoil("ab" * 16))


def test_a_source_draws_each_bit_of_entropy_once() -> None:
    """Ids of one millisecond differ because no entropy serves two of them."""
    asked: list[int] = []

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    source = IdSource(lambda: 1_790_000_000_000, random_bytes)
    made = [source.next() for _ in range(1_000)]
    assert len(set(made)) == 1_000
    assert len(asked) == 4
    assert sum(asked) >= 10 * 1_000
    assert {text[:12] for text in made} == {f"{1_790_000_000_000:012x}"}


def test_a_source_reads_the_clock_for_every_id() -> None:
    """Ids made later sort later."""
    clock = iter(range(1_000, 1_600))
    source = IdSource(lambda: next(clock), os.urandom)
    made = [source.next() for _ in range(600)]
    assert made == sorted(made)
    assert [int(text[:12], 16) for text in made] == list(range(1_000, 1_600))


def test_threads_may_share_a_source() -> None:
    source = IdSource(lambda: 0, os.urandom)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: [source.next() for _ in range(2_000)], range(8)))
    assert len({text for part in made for text in part}) == 16_000
