"""What an error of the store says of the commands it came for, and what a log line may say of it.

A line has its kind and its place, never its text: a database error quotes rows, and rows hold what
clients sent (INV-42).
"""

import traceback
from enum import Enum


class Fault(Enum):
    """What an exception says of the batch that it came for."""

    AWAY = "away"
    """Nothing: the same batch may succeed later."""
    LOCKED = "locked"
    """Another transaction holds something in it, and has for a while."""
    GUILTY = "guilty"
    """Something in it is refused for good."""


def facts_of(error: BaseException) -> dict[str, str | None]:
    """Kind, SQL state and place of an error, as fields of a log line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames[-6:]))
    return {
        "error": type(error).__name__,
        "sqlstate": getattr(error, "sqlstate", None),
        "place": place,
    }
