"""Both cores joined under seeded faults, and proof that what is checked can be found broken."""

import os
import subprocess
import sys

import pytest

from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.replay import run_seed, run_seeds
from tests.simulation.simulation import Simulation

SEEDS = 1000
PARTS = 4
SEEDS_UNTIL_FOUND_MAX = 1000


@pytest.mark.timeout(180)
@pytest.mark.parametrize("part", range(PARTS))
def test_what_must_hold_holds(part: int) -> None:
    found = run_seeds(range(part, SEEDS, PARTS))
    assert not found.failures, "\n\n".join(str(failure) for failure in found.failures)
    assert found.relayed > SEEDS / PARTS / 10, "the way past the sockets is hardly used"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.what)
def test_a_seeded_defect_is_found(defect: Defect) -> None:
    for seed in range(SEEDS_UNTIL_FOUND_MAX):
        failure = run_seed(seed, defect.make)
        if failure is not None and failure.broken in defect.found_by:
            assert run_seed(seed) is None
            assert failure.trace
            assert f"--seed {seed}" in str(failure)
            return
    pytest.fail("no seed has found it")


def test_a_seed_decides_everything() -> None:
    """In every process too, whatever its addresses and its hashes are."""
    script = (
        "from tests.simulation.simulation import Simulation\n"
        "for seed in range(24):\n"
        "    run = Simulation(seed)\n"
        "    run.run()\n"
        "    print(run.world.events, run.world.told())\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2", "3", "4")
    }
    assert len(told) == 1
    assert told != {""}


def test_seeds_reach_what_they_are_for() -> None:
    """Together, a few runs start, finish, lapse, resume, lose and cancel attempts, and renew and
    report them past the sockets."""
    states: set[str] = set()
    resumed = lapses = leases_lost = evidence = renewed_past = reported_past = 0
    for seed in range(120):
        run = Simulation(seed)
        run.run()
        states |= {attempt.state for attempt in run.model.attempts.values()}
        evidence += sum(attempt.evidence for attempt in run.model.attempts.values())
        resumed += run.judge.resumed
        lapses += run.judge.lapses
        leases_lost += run.overseer.leases_lost
        renewed_past += run.judge.relayed["renew"]
        reported_past += run.judge.relayed["finish"]
    assert states == {"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "UNKNOWN"}
    assert min(resumed, lapses, leases_lost, evidence, renewed_past, reported_past) > 5


def test_a_seed_is_replayed_from_the_command_line() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "seed 3: everything held\n"
