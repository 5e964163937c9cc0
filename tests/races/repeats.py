"""How often a race is run, and from which seed.

Races that cost milliseconds are always run in full. Those that need processes are run
ORBIT_RACE_REPEATS times; each repeat is a test case of its own whose name carries its seed, so a
failure names what replays it: ORBIT_RACE_SEED=<seed> ORBIT_RACE_REPEATS=1.
"""

import os
import time
from zlib import crc32

REPEATS = int(os.environ.get("ORBIT_RACE_REPEATS", "1"))
# One for all processes of a parallel run, else they would collect different tests.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(time.time_ns()))
SEED = int(os.environ.get("ORBIT_RACE_SEED", "0")) or crc32(_RUN.encode()) % 1_000_000
CHEAP = max(100, REPEATS)
"""Repeats of a race inside one process."""
IS_FULL = REPEATS >= 100
"""Whether races that could be smaller are run at their full size."""


def seeds() -> list[int]:
    """One for each repeat."""
    return list(range(SEED, SEED + REPEATS))
