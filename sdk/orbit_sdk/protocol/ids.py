"""Identifiers (R-001): 32 lowercase hexadecimal characters, made as UUIDv7.

A UUIDv7 opens with its millisecond, so rows made together lie together in an index. Nothing else
may be read from the order of two ids.
"""

from collections.abc import Callable, Iterator
from struct import iter_unpack
from typing import Final

ENTROPY_BYTES: Final = 10
_BLOCK_IDS: Final = 256
_TIME_MAX: Final = (1 << 48) - 1
_HEX: Final = b"0123456789abcdef"


def new_id(now_ms: int, rand: bytes) -> str:
    """The UUIDv7 of this millisecond (Unix epoch, below 2**48) and these 10 random bytes.

    Raises ValueError for a time or a length outside that. (RFC 9562 section 5.7)
    """
    if len(rand) != ENTROPY_BYTES:
        raise ValueError(f"an id needs {ENTROPY_BYTES} random bytes")
    return _id_text(now_ms, int.from_bytes(rand[:2], "big"), int.from_bytes(rand[2:], "big"))


def is_id(text: str) -> bool:
    """Whether the text is exactly 32 lowercase hexadecimal characters."""
    return len(text) == 32 and text.isascii() and not text.encode().translate(None, _HEX)


def are_ids(joined: str) -> bool:
    """Whether texts already known to be 32 characters each, joined, are all ids."""
    return joined.isascii() and not joined.encode().translate(None, _HEX)


class IdSource:
    """A stream of new ids from a clock (Unix milliseconds) and a source of random bytes.

    Entropy is drawn for many ids at once. `next` may be called from any thread; a source must not
    be used on both sides of a fork, where the two processes would hold the same entropy.
    """

    __slots__ = ("_clock_ms", "_entropy", "_random_bytes")

    def __init__(self, clock_ms: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes
        self._entropy: Iterator[tuple[int, int]] = iter(())

    def next(self) -> str:
        """A new id of the present millisecond."""
        drawn = next(self._entropy, None)
        while drawn is None:
            block = self._random_bytes(ENTROPY_BYTES * _BLOCK_IDS)
            fresh: Iterator[tuple[int, int]] = iter_unpack(">HQ", block)
            drawn = next(fresh, None)
            self._entropy = fresh
        return _id_text(self._clock_ms(), *drawn)


def _id_text(now_ms: int, high: int, low: int) -> str:
    if not 0 <= now_ms <= _TIME_MAX:
        raise ValueError("an id needs a time between 1970 and year 10889")
    return (
        f"{now_ms << 16 | 0x7000 | high & 0x0FFF:016x}"
        f"{0x8000_0000_0000_0000 | low & 0x3FFF_FFFF_FFFF_FFFF:016x}"
    )
