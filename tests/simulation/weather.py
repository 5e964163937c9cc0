"""What a seed brings: how many of everything, and which faults with which chances.

Swarm testing: each fault is absent from about half of the runs, so that no fault hides another. One
run in eight is gentle: short cuts and nothing else, after which no started attempt may be lost.
One in six is an upgrade: both versions of the socket side by side, unquiet links, many cancels.
"""

import random
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances are per event, or per second and thing where a name ends with `_per_s`."""

    gentle: bool
    faults_s: float
    nodes: int
    workers: int
    slots: int
    tasks: int
    latency_s: float
    store_s: float
    stream_s: float
    old_nodes: float
    """The share of gateways that speak only the first version."""
    drift: float
    deaf: float
    session_max_s: float
    cut_per_s: float
    dark_per_s: float
    stall_per_s: float
    shut_per_s: float
    """For a while no new socket gets through, as behind a proxy that knows plain HTTP alone."""
    post_lost: float
    """A relayed request, or its answer, is never seen again."""
    post_cut: float
    """Its connection breaks at once, whatever has become of it by then."""
    post_late: float
    """It takes longer than its sender waits."""
    double: float
    stranger: float
    node_kill_per_s: float
    node_freeze_per_s: float
    node_drain_per_s: float
    worker_kill_per_s: float
    worker_drain_per_s: float
    worker_freeze_per_s: float
    store_pause_per_s: float
    call_lost: float
    answer_lost: float
    stream_lost: float
    stale_level: float
    cancel: float
    gate_per_s: float


def drawn(rng: random.Random) -> Weather:
    """The weather of a run."""
    gentle = rng.random() < 1 / 8

    def maybe(*levels: float) -> float:
        return rng.choice(levels) if rng.random() < 0.5 and not gentle else 0.0

    weather = Weather(
        gentle=gentle,
        faults_s=rng.choice([40.0, 80.0, 120.0]),
        nodes=rng.randint(1, 3),
        workers=rng.randint(1, 4),
        slots=rng.randint(1, 4),
        tasks=rng.randint(3, 24),
        latency_s=0.05 if gentle else rng.choice([0.005, 0.05, 0.5, 2.0]),
        store_s=0.02 if gentle else rng.choice([0.02, 0.02, 0.5]),
        stream_s=0.05 if gentle else rng.choice([0.05, 0.05, 1.5]),
        old_nodes=rng.choice([0.0, 0.5, 1.0]),
        drift=rng.choice([0.0, 0.01, 0.06]),
        deaf=maybe(0.3),
        session_max_s=3600.0 if gentle else rng.choice([3600.0, 3600.0, 35.0]),
        cut_per_s=1 / 15 if gentle else maybe(0.02, 0.1, 0.3),
        dark_per_s=maybe(0.01, 0.05),
        stall_per_s=maybe(0.05, 0.2),
        shut_per_s=maybe(0.01, 0.03),
        post_lost=maybe(0.1, 0.4),
        post_cut=maybe(0.1, 0.4),
        post_late=maybe(0.1, 0.4),
        double=maybe(0.1, 0.5),
        stranger=maybe(0.05),
        node_kill_per_s=maybe(0.01, 0.04),
        node_freeze_per_s=maybe(0.02, 0.05),
        node_drain_per_s=maybe(0.02, 0.04),
        worker_kill_per_s=maybe(0.005, 0.02),
        worker_drain_per_s=maybe(0.005, 0.02),
        worker_freeze_per_s=maybe(0.02, 0.05),
        store_pause_per_s=maybe(0.02, 0.05),
        call_lost=maybe(0.02, 0.1),
        answer_lost=maybe(0.05, 0.2),
        stream_lost=maybe(0.1, 0.5),
        stale_level=maybe(0.3, 1.0),
        cancel=maybe(0.2, 0.8),
        gate_per_s=maybe(0.02, 0.1),
    )
    if gentle or rng.random() >= 1 / 6:
        return weather
    return replace(weather, nodes=3, old_nodes=0.5, latency_s=0.5, cut_per_s=0.3, cancel=0.8)
