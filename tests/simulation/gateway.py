"""A simulated gateway: what `socket.py`, `outlet.py` and `node.py` do around the session core, and
`held.py` around the items of a request past the sockets.

It beats, accepts, drains, freezes and dies; it holds nothing that the cluster could miss.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from gateway import limits
from orbit_sdk.protocol.limits import HELLO_TIMEOUT_S
from store.commands import (
    AttemptCommand,
    CapacityOutcome,
    CommandOutcome,
    FinishCommand,
    OpenSession,
    ReturnLease,
    SessionOutcome,
    SetCapacity,
)
from store.dispatch import Assignment, Intent
from tests.simulation.cores import (
    V1,
    V2,
    Command,
    Operation,
    Parcel,
    Posted,
    Refused,
    ServerCore,
    Told,
    results_of,
)
from tests.simulation.judge import Judge
from tests.simulation.lanes import Lanes
from tests.simulation.link import Link
from tests.simulation.store import LEASE_S, Store
from tests.simulation.weather import Weather
from tests.simulation.world import Clock, World

DRAIN_GRACE_S: Final = 8.0
CLOSE_ECHO_S: Final = 2.0
READ_S: Final = 0.01
BEAT_EVERY: Final = 2
UNSENT_EVERY: Final = 3
CHECK_EVERY: Final = int(limits.SESSION_CHECK_INTERVAL_S)


class Cluster:
    """What the nodes share: the store, the streams between them, and the way to each."""

    def __init__(self, world: World, weather: Weather, store: Store, judge: Judge) -> None:
        self.world = world
        self.weather = weather
        self.store = store
        self.judge = judge
        self.nodes: dict[str, Node] = {}
        self.levels: dict[str, int] = {}
        """Free slots of sessions as their gateways last told."""
        self.shut_until = 0.0
        """Until then no new socket gets through."""

    @property
    def is_shut(self) -> bool:
        return self.shut_until > self.world.now

    def stream(self, node_id: str, act: Callable[["Node"], None]) -> None:
        """Send something through the stream of a node; it may be lost."""
        world = self.world
        if world.strikes(self.weather.stream_lost):
            world.note("stream", "an entry for", node_id, "is lost")
            return

        def deliver() -> None:
            node = self.nodes.get(node_id)
            if node is not None:
                node.do(lambda: act(node))

        world.after(world.delay_s(self.weather.stream_s), deliver)


class Node:
    """One gateway process."""

    def __init__(self, cluster: Cluster) -> None:
        world = cluster.world
        self.cluster = cluster
        self.world = world
        self.id = world.new_id("f")
        self.is_alive = True
        self.is_draining = False
        self.frozen_until = 0.0
        self.version = V1 if world.rng.random() < cluster.weather.old_nodes else V2
        self.clock = Clock(world.rng.uniform(0, 1e6), world.rng.uniform(0.99, 1.01))
        self.lanes = Lanes(world, cluster.weather, cluster.store, self.do)
        self.connections: dict[Socket, None] = {}
        self.sockets: dict[str, Socket] = {}
        self._sent_by_twin: set[str] = set()
        self._ticks = 0
        cluster.nodes[self.id] = self
        cluster.store.beat(self.id)
        world.note("node", self.id, "is up and speaks", self.version.name)

    def shown(self) -> float:
        """This node's own clock."""
        return self.clock.at(self.world.now)

    def do(self, act: Callable[[], None]) -> None:
        """Do something in this process: never when it is dead, later when it is frozen."""
        if self.frozen_until > self.world.now:
            self.world.at(self.frozen_until, lambda: self.do(act))
        elif self.is_alive:
            act()

    # -- life -------------------------------------------------------------------------------

    def accepts(self) -> bool:
        """Whether a balancer sends workers here."""
        return self.is_alive and not self.is_draining and self.frozen_until <= self.world.now

    def accept(self, link: Link) -> None:
        """A worker has connected."""
        socket = Socket(self, link)
        link.attach(socket)
        self.connections[socket] = None
        self.world.after(HELLO_TIMEOUT_S, lambda: self.do(socket.hello_late))

    def freeze(self, seconds: float) -> None:
        """The process stands still: a debugger, a pause, a starved machine."""
        self.world.note("node", self.id, "freezes for", seconds)
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    def die(self, seen: bool) -> None:
        """Killed. `seen`: its links are reset; otherwise the machine is gone and nobody says so."""
        self.world.note("node", self.id, "dies", "with a reset" if seen else "in silence")
        self.is_alive = False
        del self.cluster.nodes[self.id]
        for socket in self.connections:
            if seen:
                socket.link.cut()
            else:
                socket.link.darken(True, True)

    def drain(self) -> None:
        """Leave in good order; those who still work are resumed elsewhere (OP-04, INV-41)."""
        if self.is_draining:
            return
        self.world.note("node", self.id, "drains")
        self.is_draining = True
        for socket in list(self.connections):
            socket.core.drain_node()
        self.world.after(DRAIN_GRACE_S, lambda: self.do(self._drained))

    def _drained(self) -> None:
        for socket in list(self.connections):
            socket.end("draining")
        self.world.after(CLOSE_ECHO_S, lambda: self.do(self._leave))

    def _leave(self) -> None:
        if self.connections:
            self.world.after(CLOSE_ECHO_S, lambda: self.do(self._leave))
            return
        self.world.note("node", self.id, "has left")
        self.is_alive = False
        del self.cluster.nodes[self.id]

    # -- loops ------------------------------------------------------------------------------

    def second(self) -> None:
        """Once a second: beat, sweep, and the slow twin of the stream."""
        self._ticks += 1
        store, shown = self.cluster.store, self.shown()
        for socket in list(self.connections):
            socket.sweep(shown)
        if store.is_away:
            return
        given_up = self._ticks % BEAT_EVERY == 0 and not store.beat(self.id)
        if given_up or self._ticks % CHECK_EVERY == 0:
            self._check_sessions()
        if self._ticks % UNSENT_EVERY == 0:
            found = store.unsent(self.id)
            self.world.after(READ_S, lambda: self.do(lambda: self._find_unsent(found)))

    def _check_sessions(self) -> None:
        """Agree with the store on which sessions are open here."""
        ours = [socket for socket in self.sockets.values() if socket.core.is_ready]
        store = self.cluster.store
        still_open = store.sessions_of(self.id)

        def compare() -> None:
            for socket in ours:
                if socket.core.id not in still_open:
                    superseded = socket.core.id in store.superseded
                    socket.end("session_superseded" if superseded else "session_expired")
            for session_id in still_open - self.sockets.keys():
                self.close_in_store(session_id)

        self.world.after(READ_S, lambda: self.do(compare))

    def close_in_store(self, session_id: str) -> None:
        store = self.cluster.store
        self.lanes.offer(
            f"close {session_id}", lambda: store.close(session_id), lambda _: None, float("inf")
        )

    def _find_unsent(self, found: list[str]) -> None:
        model = self.cluster.store.model
        wanted = []
        for attempt_id in found:
            socket = self.sockets.get(model.attempts[attempt_id].session.id)
            if socket is None or not socket.core.is_ready or socket.core.holds(attempt_id):
                continue
            if socket.core.closed_to_work:
                socket.core.give_back(attempt_id)
                continue
            socket.core.reserve(attempt_id, self.shown())
            self._sent_by_twin.add(attempt_id)
            wanted.append((attempt_id, socket))
        if wanted:
            self.world.after(READ_S, lambda: self.do(lambda: self._load(wanted)))

    def _load(self, wanted: list[tuple[str, "Socket"]]) -> None:
        loaded = self.cluster.store.load([attempt_id for attempt_id, _ in wanted])
        found = {assignment.attempt_id: assignment for assignment in loaded}
        for attempt_id, socket in wanted:
            assignment = found.get(attempt_id)
            if self.sockets.get(socket.core.id) is not socket:
                continue
            if assignment is not None and assignment.session_id == socket.core.id:
                socket.assign([assignment])
            else:
                socket.core.release(attempt_id)

    def hand_over(self, won: Sequence[Assignment]) -> None:
        """Assignments came through the stream; those of one session travel together."""
        found: dict[str, list[Assignment]] = {}
        for assignment in won:
            socket, attempt_id = self.sockets.get(assignment.session_id), assignment.attempt_id
            if socket is None or socket.core.holds(attempt_id) or attempt_id in self._sent_by_twin:
                continue
            found.setdefault(assignment.session_id, []).append(assignment)
        for session_id, assignments in found.items():
            self.sockets[session_id].assign(assignments)

    def unwanted(self, session_id: str, attempt_id: str, reason: Intent) -> None:
        """An attempt that one of our sessions holds is to stop (R-127)."""
        socket = self.sockets.get(session_id)
        if socket is not None:
            socket.core.cancelled(attempt_id, reason)

    def serve(self, parcel: Parcel, respond: Callable[[bytes], None]) -> None:
        """A request past the sockets has come."""
        self.do(lambda: Request(self, parcel, respond).ask())

    def ended_past(self, attempt_id: str) -> None:
        """An attempt was reported past the socket of its session, which counts its slot."""
        store = self.cluster.store

        def tell(found: object) -> None:
            if isinstance(found, tuple):
                node_id, session_id = found
                if node_id == self.id:
                    self.freed(session_id, attempt_id)
                else:
                    self.cluster.stream(node_id, lambda node: node.freed(session_id, attempt_id))

        self.lanes.offer(
            f"over {attempt_id}",
            lambda: store.holder_of_ended(attempt_id),
            tell,
            limits.SUBMIT_PATIENCE_S,
        )

    def freed(self, session_id: str, attempt_id: str) -> None:
        """An attempt of one of our sessions has ended past its socket."""
        self.cluster.judge.freed(attempt_id)
        socket = self.sockets.get(session_id)
        if socket is not None:
            socket.release(attempt_id)

    def supersede(self, session_id: str) -> None:
        """A newer session has taken over from one of ours (OP-13)."""
        socket = self.sockets.get(session_id)
        if socket is not None:
            socket.end("session_superseded")


class Socket:
    """The server's end of one connection, around its session core."""

    def __init__(self, node: Node, link: Link) -> None:
        cluster = node.cluster
        self.node = node
        self.link = link
        self.world = node.world
        self.judge = cluster.judge
        self.store = cluster.store
        self.core = ServerCore(
            self,
            node.version,
            self.world.new_id("d"),
            int(LEASE_S * 1000),
            lambda: self.world.new_id("c"),
            node_id=node.id,
            session_max_ms=int(cluster.weather.session_max_s * 1000),
        )
        self.ends_at = float("inf")
        self.drain_heard = False
        self._early: list[str] = []
        self._opening = False
        self._was_open = False
        self._hung_up = False

    # -- what the link brings ---------------------------------------------------------------

    def heard(self, data: bytes) -> None:
        def take() -> None:
            if b'"drain":true' in data and self.core.is_ready:
                self.drain_heard = True
            self.core.heard(data, self.node.shown())

        self.node.do(take)

    def hung_up(self) -> None:
        self.node.do(self._gone)

    def _gone(self) -> None:
        self._hung_up = True
        self.core.ended()
        self.node.connections.pop(self, None)
        self._close_when_settled()

    def hello_late(self) -> None:
        if self.core.is_silent:
            self.end("hello_timeout")

    def end(self, code: str) -> None:
        """End it for a reason of the platform's."""
        if not self.core.has_ended:
            self.world.note("node", self.node.id, "ends", self.core.id, code)
            self.core.end(code)

    def sweep(self, shown: float) -> None:
        self.core.lapse(shown)
        self._tell_level()
        if shown >= self.ends_at:
            self.end("session_expired")

    def assign(self, assignments: Sequence[Assignment]) -> None:
        self.core.assigned(assignments, self.node.shown())
        self._early += [assignment.attempt_id for assignment in assignments]
        self._look_at_handed()
        self._tell_level()

    def release(self, attempt_id: str) -> None:
        self.core.release(attempt_id)
        self._tell_level()

    def _look_at_handed(self) -> None:
        if self.core.is_ready:
            for attempt_id in self._early:
                self.judge.handed(attempt_id)
            self._early.clear()

    def _tell_level(self) -> None:
        if self._was_open:
            self.node.cluster.levels[self.core.id] = self.core.free

    def _close_when_settled(self) -> None:
        """Once nothing is in flight, the store hears that the socket is gone."""
        if not self._hung_up or self._opening or self.core.open_commands:
            return
        self.node.sockets.pop(self.core.id, None)
        self.node.cluster.levels.pop(self.core.id, None)
        if self._was_open:
            self._was_open = False
            self.node.close_in_store(self.core.id)

    # -- what the core decides --------------------------------------------------------------

    def say(self, told: Told) -> None:
        about = told.code or told.reply_to
        self.world.note("node", self.core.id, "says", told.kind, about, *dict(told.given))
        self.judge.gateway_said(told, self.core.id, self.core.instance_id, self.drain_heard)
        self.link.down(told)

    def register(self, hello: OpenSession) -> None:
        node = self.node
        node.sockets[self.core.id] = self
        self._opening = True
        node.lanes.offer(hello.instance_id, lambda: self.store.open(hello), self._opened)

    def _opened(self, outcome: object) -> None:
        self._opening = False
        if isinstance(outcome, SessionOutcome):
            self._was_open = True
            shown = self.node.shown()
            assert outcome.expires_at is not None
            self.ends_at = shown + (outcome.expires_at - outcome.server_time).total_seconds()
            self._notify(outcome)
            self.core.opened(outcome, shown)
            self._look_at_handed()
        else:
            self.core.refused()
        self._tell_level()
        self._close_when_settled()

    def _notify(self, outcome: SessionOutcome) -> None:
        session_id, node_id = outcome.superseded_session_id, outcome.superseded_node_id
        if session_id is None or node_id is None:
            return
        if node_id == self.node.id:
            self.node.supersede(session_id)
        else:
            self.node.cluster.stream(node_id, lambda node: node.supersede(session_id))

    def ask(self, operation: Operation, command: AttemptCommand | FinishCommand) -> None:
        def reply(outcome: object) -> None:
            assert isinstance(outcome, CommandOutcome | Refused)
            self.core.answered(command, outcome, self.node.shown())
            if isinstance(outcome, CommandOutcome):
                is_held = self.core.holds(command.attempt_id)
                self.judge.counted(command.attempt_id, outcome, is_held)
            self._tell_level()
            self._close_when_settled()

        self.node.lanes.offer(
            command.attempt_id, lambda: self.store.attempt(operation, command), reply
        )

    def declare(self, command: SetCapacity) -> None:
        def reply(outcome: object) -> None:
            assert isinstance(outcome, CapacityOutcome | Refused)
            self.core.declared(outcome)
            if command.drain and not self.core.closed_to_work:
                self.drain_heard = False  # Refused; the worker knows that, and asks again.
            self._tell_level()
            self._close_when_settled()

        self.node.lanes.offer(command.session_id, lambda: self.store.set_capacity(command), reply)

    def give_back(self, command: ReturnLease) -> None:
        self.judge.books.returned.add(command.attempt_id)
        self.node.lanes.offer(
            f"back {command.attempt_id}",
            lambda: self.store.give_back(command),
            lambda _: None,
            limits.SUBMIT_PATIENCE_S,
        )

    def close(self) -> None:
        self.link.server_closes()
        # The echo of the close comes back, or the link has ended by itself.
        self.world.after(self.world.rng.uniform(0.001, CLOSE_ECHO_S), self.hung_up)


class Request:
    """A request past the sockets, while it is served."""

    def __init__(self, node: Node, parcel: Parcel, respond: Callable[[bytes], None]) -> None:
        self.node = node
        self.parcel = parcel
        self.operation = Operation(parcel.operation.value)
        self.posted = Posted(self.operation, parcel.body)
        self._respond: Callable[[bytes], None] | None = respond

    def ask(self) -> None:
        """Give the commands to the lanes, and wait for them, but not for long."""
        node = self.node
        for place, command in list(self.posted.commands.items()):
            execute = partial(node.cluster.store.attempt, self.operation, command)
            node.lanes.offer(command.attempt_id, execute, partial(self._take, place, command))
        if self.posted.missing:
            node.world.after(limits.SUBMIT_WAIT_S, lambda: node.do(self._answer))
        else:
            self._answer()

    def _take(self, place: int, command: Command, outcome: object) -> None:
        assert isinstance(outcome, CommandOutcome | Refused)
        self.posted.answered(place, outcome)
        is_over = isinstance(outcome, CommandOutcome) and outcome.code == "ok" and outcome.settled
        if isinstance(command, FinishCommand) and is_over:
            self.node.ended_past(command.attempt_id)
        if not self.posted.missing:
            self._answer()

    def _answer(self) -> None:
        respond, self._respond = self._respond, None
        if respond is not None:
            kind, names, answer = self.operation.value, self.parcel.names, self.posted.answer()
            self.node.cluster.judge.gateway_answered(kind, names, results_of(answer))
            respond(answer)
