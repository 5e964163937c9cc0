"""What a gateway shows of itself on the metrics page; read when asked, so it costs nothing else."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.commands import Commands


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
        return [waiting, stuck, answered, batches, sockets, sessions]


def watch(
    registry: CollectorRegistry,
    commands: Commands,
    sessions: Collection[object],
    connections: Collection[object],
) -> None:
    """Add a gateway's figures to its registry."""
    registry.register(_Figures(commands, sessions, connections))
