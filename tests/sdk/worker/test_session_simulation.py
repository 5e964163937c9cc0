"""The session core under loss, repeats, cuts, refusals, cancellations and drains."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbit_sdk.protocol.states import AttemptState
from tests.contract.oracle import VERSIONS, Version
from tests.sdk.worker.simulation import Faults, Simulation

SCENES = {
    "quiet": Faults(),
    "answers and requests lost": Faults(lose=0.3),
    "everything twice": Faults(double=0.5),
    "cut every few seconds": Faults(cut_per_s=0.2),
    "half of all refused": Faults(refuse=0.5),
    "cancellations": Faults(cancel_per_s=0.3),
    "handlers that do not stop": Faults(lose=0.4, cut_per_s=0.1, stubborn=0.7),
    "slow": Faults(latency_max_s=3.0, cut_per_s=0.05),
    "short lease": Faults(lease_s=4.0, latency_max_s=0.3, lose=0.1, cut_per_s=0.05),
    "all at once": Faults(0.15, 0.2, 0.1, 0.2, 0.1, 0.3, latency_max_s=1.0, drain_at=200.0),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scene", SCENES)
def test_what_must_hold_holds(scene: str, seed: int, version: Version) -> None:
    run = Simulation(seed, SCENES[scene], version)
    run.run()
    assert run.runs >= 5


@pytest.mark.parametrize("version", VERSIONS)
def test_a_quiet_network_loses_no_lease_and_settles_every_run(version: Version) -> None:
    run = Simulation(7, Faults(), version)
    run.run()
    states = {attempt.state for attempt in run.gateway.attempts.values() if attempt.starts}
    assert states == {AttemptState.SUCCEEDED}
    assert len(run.settled) == run.runs
    assert all(settled.applied for settled in run.settled.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_cuts_shorter_than_the_lease_cost_no_running_attempt(version: Version) -> None:
    # INV-22: down for at most 8 s and a welcome, with a lease of 60 s.
    run = Simulation(11, Faults(cut_per_s=0.1, lease_s=60.0), version)
    run.run()
    ended = [attempt.state for attempt in run.gateway.attempts.values() if attempt.starts]
    assert len(ended) > 20
    assert set(ended) == {AttemptState.SUCCEEDED}


@pytest.mark.parametrize("version", VERSIONS)
def test_cancelled_attempts_are_confirmed_as_cancelled(version: Version) -> None:
    run = Simulation(3, Faults(cancel_per_s=0.5), version)
    run.run()
    intended = [attempt for attempt in run.gateway.attempts.values() if attempt.intent]
    assert len(intended) > 10
    assert {attempt.state for attempt in intended} <= {
        AttemptState.CANCELLED,
        AttemptState.SUCCEEDED,
    }


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    version=st.sampled_from(VERSIONS),
    faults=st.builds(
        Faults,
        lose=st.floats(0, 0.5),
        double=st.floats(0, 0.5),
        cut_per_s=st.floats(0, 0.4),
        refuse=st.floats(0, 0.6),
        cancel_per_s=st.floats(0, 0.5),
        stubborn=st.floats(0, 1),
        latency_max_s=st.floats(0.002, 4.0),
        lease_s=st.sampled_from([3.0, 10.0, 30.0, 120.0]),
        drain_at=st.none() | st.floats(0, 290),
    ),
)
def test_it_holds_for_any_mixture(seed: int, faults: Faults, version: Version) -> None:
    Simulation(seed, faults, version).run()
