"""One TCP connection between a worker and a gateway, as badly as networks treat it.

Each way is a stream: what arrives arrives in order. It may be slow, stand still for a while, be cut
(what is under way is lost, and each end learns of it in its own time), or go dark one way or both,
until the pings of either end have been missing for too long.
"""

from collections.abc import Callable
from typing import Final, Protocol

from tests.simulation.cores import Asked, Told
from tests.simulation.weather import Weather
from tests.simulation.world import World

PING_NOTICED_S: Final = (20.0, 40.0)


class ServerEnd(Protocol):
    """The gateway's end."""

    def heard(self, data: bytes) -> None: ...
    def hung_up(self) -> None: ...


class WorkerEnd(Protocol):
    """The worker's end. `link` tells it which of its connections speaks."""

    def heard(self, link: "Link", told: Told) -> None: ...
    def hung_up(self, link: "Link") -> None: ...


class Link:
    """Both ways of one connection."""

    def __init__(self, world: World, weather: Weather, name: str, worker: WorkerEnd) -> None:
        self.world = world
        self.weather = weather
        self.name = name
        self.is_cut = False
        self._worker: WorkerEnd = worker
        self._server: ServerEnd | None = None
        self._dark_up = self._dark_down = False
        self._up_at = self._down_at = 0.0
        self._server_gone = self._worker_gone = False

    def attach(self, server: ServerEnd) -> None:
        """The gateway has accepted."""
        self._server = server

    @property
    def is_dark(self) -> bool:
        return self._dark_up or self._dark_down

    # -- traffic ----------------------------------------------------------------------------

    def up(self, asked: Asked) -> None:
        """From the worker."""
        self._up(lambda: self._give_server(asked.data))

    def down(self, told: Told) -> None:
        """From the gateway."""
        self._down(lambda: self._give_worker(told))

    def worker_closes(self) -> None:
        """The worker says goodbye; the gateway hears it after what was sent before."""
        self._worker_gone = True
        self._up(self._end_server)

    def server_closes(self) -> None:
        """The gateway says goodbye; the worker hears it after what was sent before."""
        self._down(self._end_worker)

    def _up(self, act: Callable[[], None]) -> None:
        if not (self.is_cut or self._dark_up):
            self._up_at = max(self.world.now + self._latency(), self._up_at)
            self.world.at(self._up_at, lambda: None if self.is_cut or self._dark_up else act())

    def _down(self, act: Callable[[], None]) -> None:
        if not (self.is_cut or self._dark_down):
            self._down_at = max(self.world.now + self._latency(), self._down_at)
            self.world.at(self._down_at, lambda: None if self.is_cut or self._dark_down else act())

    def _latency(self) -> float:
        return self.world.delay_s(self.weather.latency_s)

    def _give_server(self, data: bytes) -> None:
        if self._server is not None and not self._server_gone:
            self._server.heard(data)

    def _give_worker(self, told: Told) -> None:
        if not self._worker_gone:
            self._worker.heard(self, told)

    def _end_server(self) -> None:
        if self._server is not None and not self._server_gone:
            self._server_gone = True
            self._server.hung_up()

    def _end_worker(self) -> None:
        if not self._worker_gone:
            self._worker_gone = True
            self._worker.hung_up(self)

    # -- faults -----------------------------------------------------------------------------

    def stall(self, seconds: float) -> None:
        """Nothing arrives for a while, and then all of it, in order."""
        self.world.note("link", self.name, "stands still for", seconds)
        self._up_at = max(self._up_at, self.world.now + seconds)
        self._down_at = max(self._down_at, self.world.now + seconds)

    def cut(self) -> None:
        """Both ends learn of it, each when it does."""
        if not self.is_cut:
            self.world.note("link", self.name, "is cut")
            self.is_cut = True
            self.world.after(self._latency(), self._end_server)
            self.world.after(self._latency(), self._end_worker)

    def darken(self, up: bool, down: bool) -> None:
        """Half open or worse: what is sent that way is gone, and nobody says so."""
        if self.is_dark or self.is_cut:
            return
        self.world.note("link", self.name, "goes dark", "up" if up else "", "down" if down else "")
        self._dark_up, self._dark_down = up, down
        self.world.after(self.world.rng.uniform(*PING_NOTICED_S), self._end_server)
        self.world.after(self.world.rng.uniform(*PING_NOTICED_S), self._end_worker)
