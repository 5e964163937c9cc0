"""One request over HTTP from a worker to whatever gateway takes it, as badly as networks treat it.

Beside `link`: no stream and no order, each request stands alone. It or its answer may be lost, come
later than its sender waits, or come twice, perhaps to two gateways; its connection may break when
nobody knows what became of it. Its sender hears once: an answer, or None.
"""

from collections.abc import Callable

from tests.simulation.cores import Parcel
from tests.simulation.gateway import Cluster
from tests.simulation.world import World

Done = Callable[[bytes | None], None]


class Post:
    """A parcel on its way, and its answer on the way back."""

    def __init__(self, cluster: Cluster, parcel: Parcel, patience_s: float, done: Done) -> None:
        self.world: World = cluster.world
        self.weather = cluster.weather
        self.cluster = cluster
        self.parcel = parcel
        self._patience_s = patience_s
        self._done: Done | None = done

    def send(self) -> None:
        """Through the balancer, to whoever takes requests now."""
        world, weather = self.world, self.weather
        world.after(self._patience_s, lambda: self._end(None))
        if world.strikes(weather.post_cut):
            cut_s = world.rng.uniform(0.0, 2 * weather.latency_s)
            world.after(cut_s, lambda: self._end(None))
        self._carry()
        if world.strikes(weather.double):
            self._carry()

    def _carry(self) -> None:
        world = self.world
        nodes = [node for node in self.cluster.nodes.values() if node.accepts()]
        if not nodes:
            world.after(self._latency(), lambda: self._end(None))
        elif not world.strikes(self.weather.post_lost):
            node = world.rng.choice(nodes)
            world.after(self._latency(), lambda: node.serve(self.parcel, self._answer))

    def _answer(self, answer: bytes) -> None:
        """A gateway has answered; nobody else has to."""
        if not self.world.strikes(self.weather.post_lost):
            self.world.after(self._latency(), lambda: self._end(answer))

    def _latency(self) -> float:
        latency_s = self.world.delay_s(self.weather.latency_s)
        if self.world.strikes(self.weather.post_late):
            latency_s += self.world.rng.uniform(0.0, 3 * self._patience_s)
        return latency_s

    def _end(self, answer: bytes | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(answer)
