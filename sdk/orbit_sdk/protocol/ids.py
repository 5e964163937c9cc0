"""Identifiers (R-001): 32 lowercase hexadecimal characters, made as UUIDv7.

A UUIDv7 opens with its millisecond, so rows made together lie together in an index. Nothing else
may be read from the order of two ids.
"""

from collections.abc import Callable, Iterator
from typing import Final

ENTROPY_BYTES: Final = 10
_BLOCK_IDS: Final = 256
_VARIANT: Final = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
_HEX: Final = b"0123456789abcdef"


def new_id(now_ms: int, rand: bytes) -> str:
    """The UUIDv7 of this millisecond (Unix epoch) and these 10 random bytes. (RFC 9562 section 5.7)

    Raises ValueError for another number of bytes, OverflowError for a time before 1970 or from
    2**48 on (year 10889).
    """
    if len(rand) != ENTROPY_BYTES:
        raise ValueError(f"an id needs {ENTROPY_BYTES} random bytes")
    return now_ms.to_bytes(6, "big").hex() + _endings(rand)[0]


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

    __slots__ = ("_clock_ms", "_random_bytes", "_ready")

    def __init__(self, clock_ms: Callable[[], int], random_bytes: Callable[[int], bytes]) -> None:
        self._clock_ms = clock_ms
        self._random_bytes = random_bytes
        self._ready: Iterator[str] = iter(())

    def next(self) -> str:
        """A new id of the present millisecond."""
        ending = next(self._ready, None)
        while ending is None:
            fresh = iter(_endings(self._random_bytes(ENTROPY_BYTES * _BLOCK_IDS)))
            ending = next(fresh, None)
            self._ready = fresh
        return self._clock_ms().to_bytes(6, "big").hex() + ending


def _endings(entropy: bytes) -> list[str]:
    """The last 20 digits of as many ids: version 7, 12 random bits, variant 10, 62 random bits."""
    digits = entropy.hex()
    return [
        f"7{digits[at : at + 3]}{_VARIANT[digits[at + 3]]}{digits[at + 4 : at + 19]}"
        for at in range(0, len(digits), 2 * ENTROPY_BYTES)
    ]
