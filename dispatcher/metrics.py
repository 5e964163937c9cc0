"""What a dispatcher shows of its work, and which path served it: the fast one or the slow twin.

Where: made once by the process, counted by rounds, hints and sweeps.
Promise: a dead fast path is seen and not merely survived: `path="twin"` grows, `bus_up` is 0 or
`stream_deaf` is 1.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

ROUND_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class DispatcherMetrics:
    """Children are kept, since a look-up by label costs four times the count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        assigned = Counter(
            "orbit_assigned_tasks_total",
            "Tasks granted, by the path that told of them.",
            ["path"],
            registry=registry,
        )
        self.assigned_by_stream = assigned.labels("stream")
        self.assigned_by_twin = assigned.labels("twin")
        levels = Counter(
            "orbit_session_levels_total",
            "Capacity levels taken, by path; by the twin only where they were news.",
            ["path"],
            registry=registry,
        )
        self.levels_by_stream = levels.labels("stream")
        self.levels_by_twin = levels.labels("twin")
        self.refused = Counter(
            "orbit_refused_claims_total", "Proposed grants that were refused.", registry=registry
        )
        self.unsent = Counter(
            "orbit_unsent_assignments_total",
            "Granted tasks that could not be sent; their gateway finds them in Postgres.",
            registry=registry,
        )
        self.round_seconds = Histogram(
            "orbit_round_seconds",
            "A round from the read to the last assignment sent.",
            buckets=ROUND_SECONDS,
            registry=registry,
        )
        self.bus_up = Gauge("orbit_bus_up", "Whether Redis answered last.", registry=registry)
        self.stream_deaf = Gauge(
            "orbit_stream_deaf",
            "Whether the last probe of the hint streams was not heard.",
            registry=registry,
        )
        self.stream_restarts = Counter(
            "orbit_stream_restarts_total", "Readers replaced as deaf.", registry=registry
        )
        self.skipped_entries = Gauge(
            "orbit_skipped_entries", "Stream entries that were no message.", registry=registry
        )
        self.expired_leases = Counter(
            "orbit_expired_leases_total", "Leases settled by the sweep.", registry=registry
        )
        self.expired_tasks = Counter(
            "orbit_expired_tasks_total", "Tasks that waited past a deadline.", registry=registry
        )
        self.reaped_nodes = Counter(
            "orbit_reaped_nodes_total", "Nodes given up as dead.", registry=registry
        )
        self.backlog_routes = Gauge(
            "orbit_backlog_routes", "Routes that may have ready tasks.", registry=registry
        )
        self.sessions = Gauge("orbit_known_sessions", "Sessions in the ledger.", registry=registry)
        self.free_slots = Gauge("orbit_free_slots", "Slots free in the ledger.", registry=registry)
        self.live_dispatchers = Gauge(
            "orbit_live_dispatchers", "Dispatchers in this one's view.", registry=registry
        )
