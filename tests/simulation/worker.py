"""A simulated worker process: what `connection.py` and `runner.py` do around the worker core.

It connects through a balancer to any gateway, runs handlers on a clock of its own that is off and
drifts, stops them when told, and may be killed, frozen, drained or stopped.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from orbit_sdk.protocol.limits import LEASE_MS_MAX
from tests.simulation.cores import (
    CANCELLED,
    NO_SECRET,
    SESSION_PROVEN_S,
    V1,
    WORKER_STOPPED,
    Asked,
    Parcel,
    StopReason,
    Told,
    WorkerCore,
    connect_backoff,
    forged,
    look_after_s,
    passed_off,
    patience_s,
    results_of,
    secret_of,
)
from tests.simulation.gateway import Cluster, Node
from tests.simulation.link import Link
from tests.simulation.overseer import Overseer
from tests.simulation.post import Post
from tests.simulation.world import Clock

STOP_LATENCY_S: Final = 0.4
HEALED_WORK_S: Final = (0.01, 0.5)
WORK_S: Final = (0.005, 0.3, 2.0, 15.0, 45.0, 90.0)
REPORTS: Final = (
    *[("SUCCEEDED", None)] * 6,
    ("FAILED", "smtp.down"),
    ("FAILED", "fatal.x"),
    ("UNKNOWN", "link.cut"),
)
TURN_S: Final = (0.0, 0.001, 0.01)
"""How long a turn of the worker's loop takes, before what came up in it is sent."""
TIMER_SLIP_S: Final = 1e-6
"""A timer fires a little late, never early, whatever floats do."""


class Worker:
    """One worker process from its start to its end."""

    def __init__(self, cluster: Cluster, overseer: Overseer, slots: int) -> None:
        world = cluster.world
        self.cluster = cluster
        self.world = world
        self.weather = cluster.weather
        self.overseer = overseer
        self.id = world.new_id("e")
        drift = self.weather.drift
        self.clock = Clock(world.rng.uniform(0, 1e6), world.rng.uniform(1 - drift, 1 + drift))
        self.core = WorkerCore(
            self, self.id, slots, lambda: world.new_id("b"), lambda: world.rng.random()
        )
        self.slots = slots
        self.is_alive = True
        self.frozen_until = 0.0
        self.session_id = ""
        self.lease_s = LEASE_MS_MAX / 1000
        self.link: Link | None = None
        self._connections = 0
        self._version = V1
        self._spoken: dict[str, Asked] = {}
        """The last frame of a session, by version."""
        self._tries = 0
        self._welcomed_at = inf
        self._flushing = False
        self._looking = False
        self._timer = 0
        self._timer_at = inf
        self._handlers: dict[str, StopReason | None] = {}
        world.note("worker", self.id, "starts with", slots, "slots")
        self._connect_in(world.rng.uniform(0.0, 0.2))

    def shown(self) -> float:
        """This worker's own clock."""
        return self.clock.at(self.world.now)

    def do(self, act: Callable[[], None]) -> None:
        """Do something in this process: never when it is dead, later when it is frozen."""
        if self.frozen_until > self.world.now:
            self.world.at(self.frozen_until, lambda: self.do(act))
        elif self.is_alive:
            act()
            self._settle()

    def _flush(self) -> None:
        """Those operations that came up in one turn travel together."""
        self._flushing = False
        if self.link is not None:
            self.core.flush()

    def _settle(self) -> None:
        """After anything the core did: set the timer, and end once all is done."""
        due = self.core.next_due()
        if due < self._timer_at:
            self._arm(due)
        if self.core.unsent and not self._flushing:
            self._flushing = True
            delay_s = self.world.rng.choice(TURN_S)
            self.world.after(delay_s, lambda: self.do(self._flush))
        if self.core.held and not self._looking:
            # Without anything held there is nothing to be seen.
            self._looking = True
            look_s = look_after_s(self.lease_s) / self.clock.rate
            self.world.after(look_s, lambda: self.do(self._look))
        if self.core.draining and self.core.held == 0:
            self._exit()

    def _arm(self, due: float) -> None:
        self._timer += 1
        self._timer_at = due
        number = self._timer
        when = max(self.world.now, self.clock.when(due)) + TIMER_SLIP_S
        self.world.at(when, lambda: self.do(lambda: self._ticked(number)))

    def _ticked(self, number: int) -> None:
        if number == self._timer:
            self._timer_at = inf
            self.core.tick(self.shown())

    def _exit(self) -> None:
        self.world.note("worker", self.id, "ends")
        self.is_alive = False
        if self.link is not None:
            self.link.worker_closes()
            self.link = None

    # -- connecting -------------------------------------------------------------------------

    def _connect_in(self, delay_s: float) -> None:
        self.world.after(delay_s, lambda: self.do(self._connect))

    def _connect(self) -> None:
        """Through the balancer, to whoever takes workers now."""
        if self.link is not None:
            return
        rng = self.world.rng
        nodes = [node for node in self.cluster.nodes.values() if node.accepts()]
        if not nodes:
            self._welcomed_at = inf
            self._again()
            return
        node = rng.choice(nodes)
        self._connections += 1
        name = f"{self.id[0]}{int(self.id[1:], 16)}.{self._connections}"
        link = self.link = Link(self.world, self.weather, name, self)
        self._welcomed_at = inf
        self.world.note("worker", self.id, "connects to", node.id, "as", name)
        self.world.after(rng.uniform(0.001, 0.05), lambda: self.do(lambda: self._up(link, node)))

    def _up(self, link: Link, node: Node) -> None:
        if self.link is not link:
            return
        if not node.accepts() or self.cluster.is_shut:
            self._lose(link)
            return
        node.accept(link)
        self._version = node.version
        self.core.opened(node.version, self.shown())

    def heard(self, link: Link, told: Told) -> None:
        def take() -> None:
            if self.link is link:
                self.overseer.heard(told, link.name)
                self.core.received(told, self.shown())

        self.do(take)

    def hung_up(self, link: Link) -> None:
        self.do(lambda: self._lose(link))

    def _lose(self, link: Link) -> None:
        """The connection is over, whoever ended it."""
        if self.link is not link:
            return
        self.world.note("worker", self.id, "is disconnected")
        link.worker_closes()
        self.link = None
        self.session_id = ""
        self.core.closed()
        self._again()

    def _again(self) -> None:
        proven = self.shown() - self._welcomed_at >= SESSION_PROVEN_S
        self._tries = 1 if proven else self._tries + 1
        backoff = connect_backoff(self.core.held, self.lease_s)
        self._connect_in(backoff.delay_s(self._tries, self.world.rng.random()))

    # -- past the socket --------------------------------------------------------------------

    def _look(self) -> None:
        """Post what the socket does not serve."""
        self._looking = False
        for parcel in self.core.look_for_relays(self.shown()):
            self._post(parcel)

    def _post(self, parcel: Parcel) -> None:
        world, shown = self.world, self.shown()
        named = [name for names in parcel.names for name in names]
        world.note("worker", self.id, "posts", parcel.operation.value, *named)

        def done(answer: bytes | None) -> None:
            self.do(lambda: self._posted(parcel, answer, shown))

        patience = patience_s(self.lease_s) / self.clock.rate
        Post(self.cluster, parcel, patience, done).send()
        if world.strikes(self.weather.double):
            # As one that has forgotten the names of what it said: a report is still the same one.
            own, new_id = secret_of(self.id), partial(world.new_id, "b")
            renamed = passed_off(parcel, self.id, own, new_id, proven=True)
            Post(self.cluster, renamed, patience, lambda _: None).send()
        if world.strikes(self.weather.stranger):
            Post(self.cluster, self._strange(parcel), patience, lambda _: None).send()

    def _posted(self, parcel: Parcel, answer: bytes | None, sent_at: float) -> None:
        self.world.note("worker", self.id, "is answered" if answer else "has no answer")
        if answer is not None:
            self.overseer.relayed(parcel.names, results_of(answer), sent_at)
        self.core.relayed(parcel, answer, self.shown())

    def _strange(self, parcel: Parcel) -> Parcel:
        """What a stranger posts: as somebody else, as nobody, or without proofs of the leases."""
        world, judge = self.world, self.overseer.judge
        others = [name for name in judge.model.instances if name != self.id]
        kind = world.rng.choice(["other", "nobody", "unproven"])
        name = world.rng.choice(others) if kind == "other" and others else self.id
        secret = secret_of(name) if name != self.id or kind == "unproven" else NO_SECRET
        proven = kind != "unproven"
        strange = passed_off(parcel, name, secret, partial(world.new_id, "7"), proven=proven)
        message_ids = [message_id for _, message_id in strange.names]
        if proven:
            judge.impostor_said(message_ids)
        else:
            judge.strangers_said(message_ids)
        return strange

    # -- what the owner and fate want -------------------------------------------------------

    def drain(self) -> None:
        self.world.note("worker", self.id, "drains")
        self.do(lambda: self.core.drain(self.shown()))

    def shut_down(self) -> None:
        self.world.note("worker", self.id, "is stopped")
        self.do(lambda: self.core.stop(self.shown()))

    def die(self, seen: bool) -> None:
        """Killed; its handlers are gone with it."""
        self.world.note("worker", self.id, "dies", "with a reset" if seen else "in silence")
        self.is_alive = False
        for attempt_id in self._handlers:
            self.overseer.ended(attempt_id)
        if self.link is not None:
            if seen:
                self.link.cut()
            else:
                self.link.darken(True, True)

    def freeze(self, seconds: float) -> None:
        """The process and all its handlers stand still."""
        self.world.note("worker", self.id, "freezes for", seconds)
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)
        until = self.frozen_until
        self.overseer.froze(self.id, True)
        self.world.at(until, lambda: self.world.at(until, self._woken))

    def _woken(self) -> None:
        """All that has waited was done; from here on the handlers count again."""
        if self.frozen_until <= self.world.now and self.is_alive:
            self.do(lambda: self.core.tick(self.shown()))
            self.overseer.froze(self.id, False)

    def drift(self) -> None:
        """The clock goes on at another rate."""
        drift = self.weather.drift
        self.clock.drift(self.world.now, self.world.rng.uniform(1 - drift, 1 + drift))
        self._arm(self.core.next_due())

    # -- what the core decides --------------------------------------------------------------

    def send(self, asked: Asked) -> None:
        link = self.link
        assert link is not None, "nothing is sent without a connection"
        world, weather = self.world, self.weather
        named = [name for item in asked.items for name in (item.message_id, item.attempt_id)]
        world.note("worker", self.id, "sends", asked.kind, asked.frame_id, *named)
        self.overseer.sent(asked, link.name, self.shown())
        self.overseer.judge.worker_said(asked)
        link.up(asked)
        if asked.kind == "hello":
            return
        if world.strikes(weather.double):
            link.up(asked)
        if world.strikes(weather.stranger):
            self._be_strange(link, asked)
        self._spoken[self._version.name] = asked

    def _be_strange(self, link: Link, asked: Asked) -> None:
        """What a stranger says, or an echo of an earlier session, on this worker's line."""
        judge, former = self.overseer.judge, self._spoken.get(self._version.name)
        if former is not None and former.session_id != asked.session_id:
            judge.echoed(asked.session_id, former.frame_id)
            link.up(former)
            return
        attempt_id = asked.items[0].attempt_id if asked.items else self.world.new_id("a")
        message_id = self.world.new_id("7")
        strange = forged(self._version, asked, message_id, attempt_id)
        judge.stranger_said(strange, message_id)
        link.up(strange)

    def run(self, attempt_id: str, task_id: str) -> None:
        world, healed = self.world, self.world.healed
        deaf = world.strikes(self.weather.deaf)
        self._handlers[attempt_id] = None
        self.overseer.began(self.id, self.slots, attempt_id, task_id, self.clock, deaf)
        length_s = world.rng.uniform(*HEALED_WORK_S) if healed else world.rng.choice(WORK_S)
        outcome, code = world.rng.choice(REPORTS)
        world.after(length_s, lambda: self.do(lambda: self._end(attempt_id, outcome, code)))

    def stop(self, attempt_id: str, reason: StopReason) -> None:
        """A handler that listens returns soon; a lost lease outweighs a cancellation."""
        if attempt_id not in self._handlers:
            return
        former = self._handlers[attempt_id]
        if former is None or reason is StopReason.LEASE_LOST:
            self._handlers[attempt_id] = reason
        running = self.overseer.told_to_stop(attempt_id, reason.value)
        if not running.deaf:
            delay_s = self.world.rng.uniform(0.0, STOP_LATENCY_S)
            self.world.after(delay_s, lambda: self.do(lambda: self._stopped(attempt_id)))

    def _stopped(self, attempt_id: str) -> None:
        """What can be said of a handler that has stopped because it was told to."""
        reason = self._handlers.get(attempt_id)
        if reason in (StopReason.CANCELLED, StopReason.DEADLINE):
            self._end(attempt_id, "FAILED", CANCELLED)
        elif reason is StopReason.SHUTDOWN:
            self._end(attempt_id, "FAILED", WORKER_STOPPED)
        elif reason is StopReason.LEASE_LOST:
            del self._handlers[attempt_id]
            self.overseer.ended(attempt_id)
            self.core.abandoned(attempt_id, self.shown())

    def _end(self, attempt_id: str, outcome: str, code: str | None) -> None:
        if attempt_id not in self._handlers:
            return
        del self._handlers[attempt_id]
        self.overseer.ended(attempt_id)
        self.core.finished(attempt_id, outcome, code, self.shown())

    def settled(self, attempt_id: str, applied: bool) -> None:
        self.world.note("worker", self.id, "has settled", attempt_id, "applied" if applied else "")
        self.overseer.settled(attempt_id, applied)

    def welcomed(self, session_id: str, lease_s: float) -> None:
        self.session_id = session_id
        self.lease_s = lease_s
        self._welcomed_at = self.shown()

    def leave(self, code: str, final: bool) -> None:
        link = self.link
        self.world.note("worker", self.id, "leaves", code)
        self.overseer.left(self.id, code, final)
        delay_s = self.world.rng.uniform(0.0, 0.1)
        if link is not None:
            self.world.after(delay_s, lambda: self.do(lambda: self._lose(link)))

    def noted(self, what: str, attempt_id: str) -> None:
        self.world.note("worker", self.id, "notes", what, attempt_id)
