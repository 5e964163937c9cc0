"""What a log line may say of an unexpected error: its kind and its place, never its text.

A database error quotes rows, and rows hold what clients sent (INV-42).
"""

import traceback


def facts_of(error: BaseException) -> dict[str, str | None]:
    """Kind, SQL state and place of an error, as fields of a log line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames[-6:]))
    return {
        "error": type(error).__name__,
        "sqlstate": getattr(error, "sqlstate", None),
        "place": place,
    }
