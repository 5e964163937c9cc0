"""The garbage collector of a process that serves: what exists at its start stays, scan seldom."""

import gc
from typing import Final

_THRESHOLDS: Final = (20_000, 20, 20)


def scan_seldom() -> None:
    """Leave what exists now out of every scan, and scan the rest rarely.

    Frames, rows and assignments leave no cycles behind, so a scan finds nothing, and looks through
    every session each time.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
