"""How often a race is run, and from which seed.

Races that cost milliseconds are always run in full. Those that need processes are run
ORBIT_RACE_REPEATS times; each repeat is a test case of its own whose name carries its seed, so a
failure names what replays it: ORBIT_RACE_SEED=<seed> ORBIT_RACE_REPEATS=1.
"""

import os
import time

REPEATS = int(os.environ.get("ORBIT_RACE_REPEATS", "2"))
SEED = int(os.environ.get("ORBIT_RACE_SEED", "0")) or int(time.time()) % 1_000_000
CHEAP = max(100, REPEATS)
"""Repeats of a race inside one process."""


def seeds() -> list[int]:
    """One for each repeat."""
    return list(range(SEED, SEED + REPEATS))
