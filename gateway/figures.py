"""What a gateway shows of itself on the metrics page; read when asked, so it costs nothing else."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.commands import Commands
from gateway.worker.outlet import Outlet
from store.proven_reader import ProvenReader


class _Figures(Collector):
    def __init__(
        self, commands: Commands, sessions: Collection[object], connections: Collection[object]
    ) -> None:
        self._commands = commands
        self._sessions = sessions
        self._connections = connections

    def collect(self) -> list[Metric]:
        waiting = GaugeMetricFamily(
            "orbit_gateway_commands_open", "Commands not yet answered.", labels=["kind"]
        )
        stuck = GaugeMetricFamily(
            "orbit_gateway_call_wait_seconds",
            "How long the oldest batch in flight has waited for the store.",
            labels=["kind"],
        )
        answered = CounterMetricFamily(
            "orbit_gateway_commands", "Commands answered.", labels=["kind"]
        )
        batches = CounterMetricFamily(
            "orbit_gateway_batches", "Calls to the store that answered.", labels=["kind"]
        )
        for lane in self._commands.lanes():
            waiting.add_metric([lane.name], lane.open)
            stuck.add_metric([lane.name], lane.stuck_s())
            answered.add_metric([lane.name], lane.answered)
            batches.add_metric([lane.name], lane.batches)
        sockets = GaugeMetricFamily(
            "orbit_gateway_worker_sockets", "Open worker connections.", len(self._connections)
        )
        sessions = GaugeMetricFamily(
            "orbit_gateway_sessions", "Registered worker sessions.", len(self._sessions)
        )
        unproven = CounterMetricFamily(
            "orbit_gateway_unproven_commands",
            "Commands for an attempt that their sender could not prove to hold.",
        )
        unproven.add_metric([], self._commands.unproven.count)
        return [waiting, stuck, answered, batches, sockets, sessions, unproven]


class _Paths(Collector):
    """Which path brings the assignments, and whether the fast one is heard at all."""

    def __init__(self, outlet: Outlet, stream: ProvenReader) -> None:
        self._outlet = outlet
        self._stream = stream

    def collect(self) -> list[Metric]:
        assigned = CounterMetricFamily(
            "orbit_gateway_assignments",
            "Assignments handed to sockets, by the path that brought them.",
            labels=["path"],
        )
        assigned.add_metric(["stream"], self._outlet.by_stream)
        assigned.add_metric(["twin"], self._outlet.by_twin)
        deaf = GaugeMetricFamily(
            "orbit_stream_deaf",
            "Whether the last probe of the own stream was not heard.",
            float(self._stream.is_deaf),
        )
        heard = CounterMetricFamily(
            "orbit_stream_probes_heard", "Probes that came back.", self._stream.heard_count
        )
        restarts = CounterMetricFamily(
            "orbit_stream_restarts", "Readers replaced as deaf.", self._stream.restarts_count
        )
        return [assigned, deaf, heard, restarts]


def watch_paths(registry: CollectorRegistry, outlet: Outlet, stream: ProvenReader) -> None:
    """Add what is known of the way of assignments."""
    registry.register(_Paths(outlet, stream))


def watch(
    registry: CollectorRegistry,
    commands: Commands,
    sessions: Collection[object],
    connections: Collection[object],
) -> None:
    """Add a gateway's figures to its registry."""
    registry.register(_Figures(commands, sessions, connections))
