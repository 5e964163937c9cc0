"""Runs seeds, and tells a failure so that it can be replayed and read."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.simulation.simulation import Simulation
from tests.simulation.world import Violation

TRACE_LINES = 60


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that broke something, why, and the last events before it."""

    seed: int
    reason: str
    trace: tuple[str, ...]

    @property
    def broken(self) -> str:
        """The invariant that it names."""
        return self.reason.partition(":")[0]

    def __str__(self) -> str:
        lines = "\n".join(self.trace)
        again = f"python -m tests.simulation --seed {self.seed}"
        return f"seed {self.seed}: {self.reason}\n{lines}\nreplay: {again}"


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of several seeds. `relayed`: in how many something took effect past the sockets."""

    failures: tuple[Failure, ...]
    relayed: int


def run_seed(
    seed: int,
    make: Callable[[int], Simulation] = Simulation,
    trace_lines: int = TRACE_LINES,
) -> Failure | None:
    """Run one seed; None when everything held. A core that raises has failed as well."""
    return _failure_of(make(seed), trace_lines)


def run_seeds(seeds: Sequence[int]) -> Tally:
    """Run several."""
    failures = []
    relayed = 0
    for seed in seeds:
        simulation = Simulation(seed)
        failure = _failure_of(simulation, TRACE_LINES)
        if failure is not None:
            failures.append(failure)
        relayed += any(simulation.judge.relayed.values())
    return Tally(tuple(failures), relayed)


def _failure_of(simulation: Simulation, trace_lines: int) -> Failure | None:
    try:
        simulation.run()
    except Violation as broken:
        reason = str(broken)
    except Exception:
        reason = f"a core raised:\n{traceback.format_exc()}"
    else:
        return None
    trace = [*simulation.world.told()[-trace_lines:], str(simulation.weather)]
    return Failure(simulation.seed, reason, tuple(trace))
