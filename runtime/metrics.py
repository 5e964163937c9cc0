"""The metrics registry of a process, and the names of what every supervised loop shows.

Where: each process makes one registry, hands it to its parts, and serves `metrics_text`.
Promise: names carry their unit (`_seconds`, `_total`), label values come from our own code and are
few, and no metric holds an id, a name given by a client, or a secret.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def new_registry() -> CollectorRegistry:
    """A registry with the process's own figures (memory, CPU, open files) in it."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


def metrics_text(registry: CollectorRegistry) -> bytes:
    """All metrics in the text form of METRICS_CONTENT_TYPE."""
    return generate_latest(registry)


class LoopMetrics:
    """What supervised loops show: how long since the last good tick, ticks, failures, work done."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.lag_seconds = Gauge(
            "orbit_loop_lag_seconds",
            "Seconds since the last good tick of a loop.",
            ["loop"],
            registry=registry,
        )
        self.ticks = Counter(
            "orbit_loop_ticks_total", "Good ticks of a loop.", ["loop"], registry=registry
        )
        self.failures = Counter(
            "orbit_loop_failures_total", "Failed ticks of a loop.", ["loop"], registry=registry
        )
        self.items = Counter(
            "orbit_loop_items_total",
            "Things a loop has done, as its ticks count them.",
            ["loop"],
            registry=registry,
        )
