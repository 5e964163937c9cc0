"""How often a race is run, from which seed, and how large.

Races that cost milliseconds are always run in full. Those that need processes are run
ORBIT_RACE_REPEATS times; each repeat is a test case of its own whose name carries its seed, so a
failure names what replays it: ORBIT_RACE_SEED=<seed> ORBIT_RACE_REPEATS=1 (100 and -k <seed> for a
repeat of full size). A race that is tried at each of many steps shares the repeats among them.
ORBIT_RACE_OUTAGE_S makes the one long outage of a release run that long; 600 is what a release
wants. ORBIT_RACE_STALL_S has a crowd of full size stand still for so long in all; 1800 is what a
release wants, in a run of its own.
"""

import os
import time
from zlib import crc32

import pytest

REPEATS = int(os.environ.get("ORBIT_RACE_REPEATS", "1"))
# One for all processes of a parallel run, else they would collect different tests.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(time.time_ns()))
SEED = int(os.environ.get("ORBIT_RACE_SEED", "0")) or crc32(_RUN.encode()) % 1_000_000
CHEAP = max(100, REPEATS)
"""Repeats of a race inside one process."""
IS_FULL = REPEATS >= 100
"""Whether races that could be smaller are run at their full size."""

STEP_REPEATS_MIN = 4
"""Repeats of one step of many, where there are so many repeats at all."""

OUTAGE_S = float(os.environ.get("ORBIT_RACE_OUTAGE_S", "0"))
"""How long the gateways stay away in the long outage; 0 leaves it out."""

STALL_S = float(os.environ.get("ORBIT_RACE_STALL_S", "0"))
"""How long a crowd of full size stands still; 0 has a small one stand still for seconds."""

_FULL_SIZE_EVERY = 10


def seeds(parts: int = 1) -> list[int]:
    """One for each repeat of one part of a race that has so many."""
    repeats = max(-(-REPEATS // parts), min(REPEATS, STEP_REPEATS_MIN))
    return list(range(SEED, SEED + repeats))


def sharing_repeats(parts: int) -> pytest.MarkDecorator:
    """Parametrizes `seed` for a test that is one of so many parts of its race."""
    chosen = seeds(parts)
    return pytest.mark.parametrize("seed", chosen, ids=[f"seed{seed}" for seed in chosen])


def size(seed: int, small: int, full: int) -> int:
    """How large this repeat is: every tenth of a full run has full size."""
    return full if IS_FULL and seed % _FULL_SIZE_EVERY == 0 else small
