"""A worker's session core against the model gateway, on a virtual clock and a bad network.

Everything is decided by one seeded generator, so a failure replays from its numbers. What must hold
is asserted at every event; `Simulation.run` ends with a healed network, after which every attempt
that the worker holds has to come to its end.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from orbit_sdk.protocol import frames
from orbit_sdk.protocol.frames import (
    Capability,
    CapacityFrame,
    FinishFrame,
    HelloFrame,
    RenewFrame,
    StartFrame,
)
from orbit_sdk.protocol.states import AttemptState, RecoverySafety
from orbit_sdk.worker.dialect import Welcome
from orbit_sdk.worker.effects import (
    Effect,
    Leave,
    Run,
    Send,
    Settled,
    Stop,
    StopReason,
    Welcomed,
)
from orbit_sdk.worker.outcomes import Report, failed, succeeded
from orbit_sdk.worker.session import Identity, Phase, SessionCore
from tests.contract.oracle import Version
from tests.sdk.worker.model_gateway import ModelGateway
from tests.sdk.worker.versions import DIALECTS, operations_in

ALLOWED_LEAVES = {"welcome_timeout", "draining", "session_superseded"}
HEALED_AFTER_S = 300.0
QUIET_WITHIN_LEASES = 5.0
STEPS_MAX = 200_000


@dataclass(frozen=True)
class Faults:
    """Chances, each per message or per second, of what goes wrong before the network heals."""

    lose: float = 0.0
    double: float = 0.0
    cut_per_s: float = 0.0
    refuse: float = 0.0
    cancel_per_s: float = 0.0
    stubborn: float = 0.0
    latency_max_s: float = 0.2
    lease_s: float = 30.0
    drain_at: float | None = None


@dataclass
class Handler:
    """A handler call; a stubborn one does not stop when it is told to."""

    stubborn: bool
    stopped: StopReason | None = None


class Simulation:
    """One run. `slots` attempts at once; tasks come whenever the gateway sees a free slot."""

    def __init__(self, seed: int, faults: Faults, version: Version = "1", slots: int = 4) -> None:
        self.version: Version = version
        self.rng = random.Random(seed)
        self.faults = faults
        self.slots = slots
        self.now = 0.0
        self.healed = False
        self.gateway = ModelGateway(lambda: self.now, faults.lease_s, version)
        self.gateway.trouble = self._trouble
        ids = count(1)
        identity = Identity("1" * 32, "A" * 43, "b" * 32, (Capability("work", "1", "1"),))
        self.core = SessionCore(
            identity, slots, lambda: f"{next(ids):08x}" + "f" * 24, self.rng.random
        )
        self.handlers: dict[str, Handler] = {}
        self.reported: dict[str, Report] = {}
        self.finish_ids: dict[str, set[str]] = {}
        self.settled: dict[str, Settled] = {}
        self.session_id = ""
        self.connection = 0
        self.runs = 0
        self.steps = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._last: dict[str, float] = {}
        self._flush_due = False

    def run(self) -> None:
        self.at(0.0, self._connect)
        self.at(0.5, self._second)
        if self.faults.drain_at is not None:
            self.at(self.faults.drain_at, lambda: self.apply(self.core.drain(self.now)))
        while self.now < HEALED_AFTER_S:
            self._step()
        self.healed = True
        self.apply(self.core.drain(self.now))
        # The longest handler takes three leases.
        quiet_by = HEALED_AFTER_S + 60.0 + QUIET_WITHIN_LEASES * self.faults.lease_s
        while self.core.held or self.handlers:
            assert self.now < quiet_by, "held attempts do not end"
            self._step()
        for attempt_id in self.reported:
            assert attempt_id in self.settled, "a report never got its final answer"
        for message_ids in self.finish_ids.values():
            assert len(message_ids) == 1, "a finish changed its message id"

    # Time

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _step(self) -> None:
        self.steps += 1
        assert self.steps < STEPS_MAX, "the simulation spins"
        due = self.core.next_due()
        if due <= self._events[0][0]:
            self.now = max(self.now, due)
            self.apply(self.core.tick(self.now))
            assert self.core.next_due() > self.now, "the core asks for the same instant for ever"
        else:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self._check()

    def _check(self) -> None:
        for attempt_id, handler in self.handlers.items():
            if handler.stopped is None:
                attempt = self.gateway.attempts[attempt_id]
                assert self.now < attempt.lease_until, "a handler outlived its lease"
        assert sum(h.stopped is None for h in self.handlers.values()) <= self.slots
        assert self.core.held <= 2 * self.slots

    # Once a second: tasks, cuts, cancellations

    def _second(self) -> None:
        if self.core.phase is Phase.READY:
            for _ in range(self.gateway.free()):
                self._to_worker(self.gateway.assign(recovery_safety=self._safety()))
        if not self.healed and self.rng.random() < self.faults.cut_per_s:
            self._cut()
        live = [a for a, h in self.handlers.items() if h.stopped is None]
        if live and not self.healed and self.rng.random() < self.faults.cancel_per_s:
            attempt_id = self.rng.choice(live)
            self.gateway.cancel(attempt_id)
            if self.version == "2" and self.rng.random() < 0.8:  # a hint, so it may be lost
                self._to_worker(self.gateway.cancellation(attempt_id))
        self.at(self.now + 1.0, self._second)

    def _safety(self) -> RecoverySafety:
        return self.rng.choice(list(RecoverySafety))

    def _trouble(self, frame: frames.ClientFrame) -> str | None:
        if self.healed or isinstance(frame, HelloFrame) or self.rng.random() >= self.faults.refuse:
            return None
        return self.rng.choice(["unavailable", "rate_limited", "internal"])

    # The network: first in, first out each way, until it is cut

    def _connect(self) -> None:
        self.connection += 1
        self.apply(self.core.opened(DIALECTS[self.version], self.now))

    def _cut(self) -> None:
        if self.core.phase is Phase.CONNECTING:
            return
        self.connection += 1
        self.gateway.socket_closed(self.session_id)
        self.apply(self.core.closed())
        self.at(self.now + self.rng.uniform(0.1, 8.0), self._connect)

    def _travel(self, way: str, deliver: Callable[[], None], *, opening: bool) -> None:
        """Carry one message. The hello and the welcome of a connection are never doubled."""
        connection = self.connection
        quiet = self.healed
        if not quiet and self.rng.random() < self.faults.lose:
            return
        twice = not quiet and not opening and self.rng.random() < self.faults.double
        for _ in range(1 + twice):
            arrival = self.now + self.rng.uniform(0.001, self.faults.latency_max_s)
            arrival = self._last[way] = max(arrival, self._last.get(way, 0.0))
            self.at(arrival, lambda: deliver() if connection == self.connection else None)

    def _to_worker(self, data: bytes) -> None:
        event = DIALECTS[self.version].read(data)
        self._travel(
            "down",
            lambda: self.apply(self.core.received(event, self.now)),
            opening=isinstance(event, Welcome),
        )

    def _to_gateway(self, data: bytes) -> None:
        def deliver() -> None:
            for answer in self.gateway.receive(data):
                self._to_worker(answer)

        self._travel("up", deliver, opening=b'"worker.hello"' in data)

    # What the core decides

    def apply(self, effects: list[Effect]) -> None:
        if self.core.unsent and not self._flush_due:
            self._flush_due = True
            self.at(self.now, self._flush)
        for effect in effects:
            match effect:
                case Send(data):
                    self._sent(data)
                case Run():
                    self._begin(effect)
                case Stop(attempt_id, reason):
                    self._stop(attempt_id, reason)
                case Settled(attempt_id):
                    assert attempt_id not in self.settled
                    self.settled[attempt_id] = effect
                case Welcomed(session_id):
                    self.session_id = session_id
                case Leave(code):
                    assert code in ALLOWED_LEAVES, (
                        f"an attempt's trouble closed the session: {code}"
                    )
                    self.at(self.now, self._cut)

    def _flush(self) -> None:
        self._flush_due = False
        self.apply(self.core.flush())

    def _sent(self, data: bytes) -> None:
        for frame in operations_in(data, self.version):
            self._check_sent(frame)
        self._to_gateway(data)

    def _check_sent(self, frame: frames.ClientFrame) -> None:
        if not isinstance(frame, HelloFrame):
            assert frame.session_id == self.session_id, "a message for an old session"
        match frame:
            case StartFrame(body=ref):
                assert not self.core.draining or ref.attempt_id in self.gateway.attempts
            case CapacityFrame(body=body):
                assert body.drain is self.core.draining
            case FinishFrame(message_id=message_id, body=body):
                self.finish_ids.setdefault(body.ref.attempt_id, set()).add(message_id)
            case RenewFrame(body=ref):
                assert ref.attempt_id in self.handlers, "a renewal for what does not run"

    def _begin(self, run: Run) -> None:
        attempt = self.gateway.attempts[run.attempt_id]
        assert attempt.state is AttemptState.RUNNING, "ran before its start"
        self.runs += 1
        self.handlers[run.attempt_id] = Handler(self.rng.random() < self.faults.stubborn)
        length_s = self.rng.choice([0.01, 1.0, 20.0, 3 * self.faults.lease_s])
        self.at(self.now + length_s, lambda: self._end(run.attempt_id))

    def _end(self, attempt_id: str) -> None:
        if self.handlers.pop(attempt_id, None) is not None:
            self._report(attempt_id, succeeded({"by": attempt_id}))

    def _stop(self, attempt_id: str, reason: StopReason) -> None:
        handler = self.handlers[attempt_id]
        handler.stopped = reason
        if not handler.stubborn:
            self.at(self.now, lambda: self._stopped(attempt_id, reason))

    def _stopped(self, attempt_id: str, reason: StopReason) -> None:
        if self.handlers.pop(attempt_id, None) is None:
            return
        if reason is StopReason.CANCELLED:
            self._report(attempt_id, failed("cancelled", "stopped"))
        else:
            self.apply(self.core.abandoned(attempt_id, self.now))

    def _report(self, attempt_id: str, report: Report) -> None:
        self.reported[attempt_id] = report
        self.apply(self.core.finished(attempt_id, report, self.now))
