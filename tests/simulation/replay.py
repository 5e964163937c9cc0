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


def run_seed(
    seed: int,
    make: Callable[[int], Simulation] = Simulation,
    trace_lines: int = TRACE_LINES,
) -> Failure | None:
    """Run one seed; None when everything held. A core that raises has failed as well."""
    simulation = make(seed)
    try:
        simulation.run()
    except Violation as broken:
        reason = str(broken)
    except Exception:
        reason = f"a core raised:\n{traceback.format_exc()}"
    else:
        return None
    trace = [*simulation.world.told()[-trace_lines:], str(simulation.weather)]
    return Failure(seed, reason, tuple(trace))


def run_seeds(seeds: Sequence[int]) -> list[Failure]:
    """Run several; the failures among them."""
    return [failure for seed in seeds if (failure := run_seed(seed)) is not None]
