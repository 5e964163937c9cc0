"""Seeded defects: each breaks one rule in one place, and some seed has to notice.

A checker that has never failed proves nothing. Defects of the store are models with a rule left
out; defects of gateways and workers, those of the way past the sockets too, are planted around the
cores, where the simulation meets them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any
from unittest.mock import patch

from orbit_sdk.worker.desk import Desk
from orbit_sdk.worker.relay import Relay
from store.commands import InstanceProof
from tests.simulation.cores import (
    Asked,
    Operation,
    Parcel,
    ServerCore,
    StopReason,
    Told,
    WorkerCore,
)
from tests.simulation.gateway import Request, Socket
from tests.simulation.lanes import Lanes
from tests.simulation.overseer import MARGIN_S, Overseer
from tests.simulation.simulation import Simulation
from tests.simulation.store import Store
from tests.simulation.worker import Worker
from tests.store.model import LEASE_MS, Answer, Attempt, Instance, Model, Session, Task


@dataclass(frozen=True, slots=True)
class Defect:
    """What is broken, how, and which of the broken invariants the first failure may name."""

    what: str
    found_by: tuple[str, ...]
    make: Callable[[int], Simulation]


# --- the store ---------------------------------------------------------------------------------


class _ResumeExtends(Model):
    def resume(self, session: Session, attempt: Attempt) -> Answer:
        answer = super().resume(session, attempt)
        if attempt.held and answer.code == "ok":
            attempt.until = self.now + LEASE_MS
            return answer._replace(lease_until=attempt.until)
        return answer


class _ReceiptOfNow(Model):
    def renew(self, by: Session | Instance, attempt: Attempt, message: str) -> Answer:
        attempt.receipts.pop(("renew", message), None)
        return super().renew(by, attempt, message)


class _DrainIsALevel(Model):
    def set_capacity(self, session: Session, sequence: int, capacity: int, drain: bool) -> str:
        code = super().set_capacity(session, sequence, capacity, drain)
        if code == "ok":
            session.instance.draining = drain
        return code

    def hello(self, instance_id: str, session_id: str, capacity: int, max_ms: int) -> Session:
        session = super().hello(instance_id, session_id, capacity, max_ms)
        session.instance.draining = False
        return session


class _LevelsAddUp(Model):
    def set_capacity(self, session: Session, sequence: int, capacity: int, drain: bool) -> str:
        before = session.capacity
        code = super().set_capacity(session, sequence, capacity, drain)
        if code == "ok":
            session.capacity = before + capacity
        return code


class _AnySessionIsGood(Model):
    def _refusal(self, session: Session) -> str:
        return ""


class _TwoSessions(Model):
    def hello(self, instance_id: str, session_id: str, capacity: int, max_ms: int) -> Session:
        instance = self.instances.get(instance_id)
        former = instance.current if instance is not None else None
        was_open = former is not None and not former.closed
        session = super().hello(instance_id, session_id, capacity, max_ms)
        if former is not None and was_open:
            former.closed = False
        return session


class _LapsedMayRenew(Model):
    def _settle_if_over(self, attempt: Attempt) -> None:
        """Only the sweep looks at the clock."""

    def sweep(self) -> int:
        for attempt in self.attempts.values():
            super()._settle_if_over(attempt)
        return 0


class _GateForgotten(Model):
    def start(self, session: Session, attempt: Attempt, message: str) -> Answer:
        paused, self.paused = self.paused, False
        try:
            return super().start(session, attempt, message)
        finally:
            self.paused = paused


class _LapseUsesBudget(Model):
    def _give_back(self, attempts: Any) -> int:
        given = list(attempts)
        for attempt in given:
            attempt.task.started += 1
        return super()._give_back(given)


class _CloseEndsAll(Model):
    def close(self, session: Session) -> int:
        for attempt in self._held(session.instance):
            attempt.until = min(attempt.until, self.now)
        self.sweep()
        return super().close(session)


class _CancelIsForgotten(Model):
    def intend(self, attempt: Attempt) -> None:
        super().intend(attempt)
        attempt.intent = None


class _OverCapacity(Model):
    def _is_free(self, session: Session) -> bool:
        return not self.paused and not self._refusal(session) and not session.instance.draining


class _GrantsWhatIsLeased(Model):
    def _is_due(self, task: Task) -> bool:
        return super()._is_due(task) or (task.state == "LEASED" and task.epoch % 3 == 0)


class _RepeatsWhatIsUnclear(Model):
    def claim(self, pairs: Any) -> list[str]:
        won = super().claim(pairs)
        for attempt_id in won:
            self.attempts[attempt_id].task.safety = "IDEMPOTENT"
        return won


class _StartsTwice(Model):
    def start(self, session: Session, attempt: Attempt, message: str) -> Answer:
        if attempt.state == "RUNNING" and attempt.start is not None:
            attempt.state = attempt.task.state = "LEASED"
            attempt.start = None
        return super().start(session, attempt, message)


class _ForgetsInstances(Model):
    def hello(self, instance_id: str, session_id: str, capacity: int, max_ms: int) -> Session:
        former = self.instances.pop(instance_id, None)
        session = super().hello(instance_id, session_id, capacity, max_ms)
        if former is not None and former.current is not None:
            former.current.closed = True
            session.instance = self._as_before(former, session)
        return session

    def _as_before(self, former: Instance, session: Session) -> Instance:
        former.current = session
        self.instances[former.id] = former
        session.epoch = 1
        return former


class _EndsAgainPastTheSocket(Model):
    def finish(
        self,
        by: Session | Instance,
        attempt: Attempt,
        message: str,
        outcome: str,
        code: str | None,
    ) -> Answer:
        if isinstance(by, Instance) and attempt.finish is not None:
            self._end_as_reported(attempt, outcome, code)
            receipt = self._receipt(attempt)
            attempt.finish = (message, f"{outcome} {code}", receipt)
            return self._answer(attempt, receipt)
        return super().finish(by, attempt, message, outcome, code)


class _ReportsGoByName(Model):
    def _late(self, operation: str, attempt: Attempt, message: str, meaning: str | None) -> Answer:
        finish = attempt.finish
        if operation == "finish" and finish is not None and finish[0] != message:
            attempt.finish = None
        answer = super()._late(operation, attempt, message, meaning)
        attempt.finish = finish
        return answer


class _ReceiptsGoByName(Model):
    def _late(self, operation: str, attempt: Attempt, message: str, meaning: str | None) -> Answer:
        answer = super()._late(operation, attempt, message, meaning)
        if operation != "finish" or attempt.finish is None or attempt.finish[0] == message:
            return answer
        if answer.receipt != attempt.finish[2]:
            return answer
        return answer._replace(receipt=answer.receipt._replace(revision=0))


def _broken(model: type[Model]) -> Callable[[int], Simulation]:
    return lambda seed: Simulation(seed, model)


# --- gateways and workers ----------------------------------------------------------------------


def _patched(*patches: Callable[[], Any]) -> Callable[[int], Simulation]:
    """A simulation that runs under patches."""

    class Patched(Simulation):
        def run(self) -> None:
            with _all(patches):
                super().run()

    return Patched


@contextmanager
def _all(patches: tuple[Callable[[], Any], ...]) -> Iterator[None]:
    started = [one() for one in patches]
    for one in started:
        one.start()
    try:
        yield
    finally:
        for one in started:
            one.stop()


def _no_epoch_test() -> Any:
    """The store takes any attempt of the task for the one that was meant."""

    def find(self: Store, command: Any) -> Attempt | None:
        newest = None
        for attempt in self.model.attempts.values():
            if attempt.task.id == command.task_id:
                newest = attempt
        return newest

    return patch.object(Store, "find", find)


def _ack_before_commit() -> Any:
    """A gateway answers with what the store would say, and calls it afterwards."""
    offer = Lanes.offer

    def early(self: Lanes, key: str, execute: Any, reply: Any, patience_s: float = 30.0) -> None:
        if not key.startswith("a"):
            offer(self, key, execute, reply, patience_s)
            return
        kept = Store.attempt

        def rehearse(store: Store, operation: Operation, command: Any) -> Any:
            model = store._now()
            answer = store._judged(operation, command)
            return store._outcome(answer, model.now)

        with patch.object(Store, "attempt", rehearse):
            outcome = execute()
        assert Store.attempt is kept
        reply(outcome)
        offer(self, key, execute, lambda _: None, patience_s)

    return patch.object(Lanes, "offer", early)


def _no_proof() -> Any:
    return patch("gateway.worker.attempts.Attempts._proves", lambda self, ref: True)


def _drain_by_store_alone() -> Any:
    """A session goes on handing out until the store has confirmed the drain."""
    return patch(
        "gateway.worker.session.Session.closed_to_work",
        property(lambda self: self.draining or self._node_draining),
    )


def _slots_leak() -> Any:
    """Slots are given back only by the clock, and the clock stands still."""

    def free(self: Any, attempt_id: str) -> None:
        """Nothing is freed."""

    return patch.multiple("gateway.worker.slots.Slots", free=free, lapse=lambda self, now: False)


def _versions_differ() -> Any:
    """A report does not mean the same when it is repeated in the other version."""

    def by_outcome(outcome: str, error_code: str, result: bytes) -> bytes:
        return f"{outcome} {error_code}".encode()

    return patch("gateway.worker.attempts.bodies.finish_hash", by_outcome)


def _early_is_lost() -> Any:
    """What was assigned while a session was being opened is forgotten."""

    def opened(self: ServerCore, outcome: Any, now: float) -> None:
        self._session._early.clear()
        kept(self, outcome, now)

    kept = ServerCore.opened
    return patch.object(ServerCore, "opened", opened)


def _deaf_to_boundaries() -> Any:
    def stop(self: Worker, attempt_id: str, reason: StopReason) -> None:
        if reason is not StopReason.LEASE_LOST:
            kept(self, attempt_id, reason)

    kept = Worker.stop
    return patch.object(Worker, "stop", stop)


def _counts_from_the_answer() -> Any:
    """The worker counts a lease from when the answer came, and leaves no margin."""

    def boundary(sent_at: float, lease: Any, lease_s: float) -> float:
        return kept(sent_at, lease, lease_s) + MARGIN_S + 1.0

    from orbit_sdk.worker import lease as leases

    kept = leases.stop_boundary
    return patch("orbit_sdk.worker.attempt.stop_boundary", boundary)


def _runs_unasked() -> Any:
    """A handler is called as soon as its assignment arrives."""

    def received(self: WorkerCore, told: Told, now: float) -> None:
        kept(self, told, now)
        for attempt_id, task_id in told.given:
            self._port.run(attempt_id, task_id)

    kept = WorkerCore.received
    return patch.object(WorkerCore, "received", received)


def _never_resumes() -> Any:
    """A worker forgets to resume what it holds; it goes on as if the lease had moved by itself."""

    def send(self: Worker, asked: Asked) -> None:
        if asked.kind != "resume":
            kept(self, asked)

    kept = Worker.send
    return patch.object(Worker, "send", send)


def _reports_once() -> Any:
    """A finish goes out once and is then believed to have arrived."""
    reported: set[str] = set()

    def send(self: Worker, asked: Asked) -> None:
        names = {item.message_id for item in asked.items}
        if asked.kind != "finish" or not names <= reported:
            kept(self, asked)
        if asked.kind == "finish":
            reported.update(names)

    kept = Worker.send
    return patch.object(Worker, "send", send)


def _waits_after_a_resume() -> Any:
    """A worker that has resumed an attempt never thinks of renewing it."""
    return patch("orbit_sdk.worker.desk.renew_due_after_resume", lambda *_: inf)


def _no_relay() -> Any:
    """Not a defect: takes the second way from a worker, which would make up for the first."""
    return patch.object(Relay, "parcels", lambda self, connected, now: [])


def _nobody_looks() -> Any:
    """Not a defect: leaves the finding of two handlers to the moment when the second begins."""
    return patch.object(Overseer, "look", lambda self: None)


def _secret_in_every_ear() -> Any:
    """A gateway says twice what it was given once."""

    def assign(self: Socket, assignments: Any) -> None:
        kept(self, assignments)
        for assignment in assignments:
            self.core.release(assignment.attempt_id)
        kept(self, assignments)

    kept = Socket.assign
    return patch.object(Socket, "assign", assign)


# --- past the sockets --------------------------------------------------------------------------


def _relay_counts_from_the_answer() -> Any:
    """A lease renewed past the socket is counted from when its answer came (R-152)."""

    def answered(self: Relay, parcel: Parcel, results: Any, now: float) -> None:
        kept(self, replace(parcel, sent_at=now), results, now)

    kept = Relay.answered
    return patch.object(Relay, "answered", answered)


def _relay_takes_all_for_final() -> Any:
    """A report that the store has not judged is taken for one that it will never take."""
    return patch("orbit_sdk.worker.relay._FINAL", frozenset({"attempt_not_found", "unavailable"}))


def _relay_never_lets_go() -> Any:
    """A settled report stays, and is settled again."""

    def settle(self: Desk, held: Any, answer: Any) -> None:
        kept(self, held, answer)
        self.attempts._held[held.ref.attempt_id] = held

    kept = Desk.settle
    return patch.object(Desk, "settle", settle)


def _no_epoch_test_past_the_socket() -> Any:
    """Whatever lease an instance proves, it speaks for the task's attempt of now."""

    def find(self: Store, command: Any) -> Attempt | None:
        found = kept(self, command)
        if found is None or command.instance is None:
            return found
        grants = (a for a in self.model.attempts.values() if a.task is found.task)
        return max(grants, key=lambda attempt: attempt.epoch)

    kept = Store.find
    return patch.object(Store, "find", find)


def _any_instance_will_do() -> Any:
    """The secret of a lease is proof enough, whoever holds it."""

    def judged(self: Store, command: Any, proof: Any) -> Answer:
        attempt = self.find(command)
        if attempt is None:
            return Answer("attempt_not_found")
        instance = attempt.session.instance
        return kept(self, command, InstanceProof(instance.id, self._secrets[instance.id]))

    kept = Store._judged_past
    return patch.object(Store, "_judged_past", judged)


def _ways_differ() -> Any:
    """A report does not mean the same when it is repeated past the socket."""

    def by_outcome(outcome: str, error_code: str, result: bytes) -> bytes:
        return f"{outcome} {error_code}".encode()

    return patch("gateway.http.held_items.finish_hash", by_outcome)


def _frees_what_is_renewed() -> Any:
    """A slot is given back whatever was asked past the socket."""

    def take(self: Request, place: int, command: Any, outcome: Any) -> None:
        kept(self, place, command, outcome)
        session = self.node.cluster.store.model.attempts[command.attempt_id].session
        self.node.freed(session.id, command.attempt_id)

    kept = Request._take
    return patch.object(Request, "_take", take)


DEFECTS = (
    Defect("the store forgets the epoch test", ("INV-2",), _patched(_no_epoch_test)),
    Defect("an ack goes out before its commit", ("INV-7", "INV-8"), _patched(_ack_before_commit)),
    Defect("a resume extends the lease", ("INV-20",), _broken(_ResumeExtends)),
    Defect("a repeated renewal gets a new receipt", ("INV-8",), _broken(_ReceiptOfNow)),
    Defect("a drain is cleared by a later level", ("INV-15",), _broken(_DrainIsALevel)),
    Defect("levels add up", ("INV-12",), _broken(_LevelsAddUp)),
    Defect("a leased task is granted again", ("INV-1", "INV-5"), _broken(_GrantsWhatIsLeased)),
    Defect("what is unclear is repeated", ("INV-10",), _broken(_RepeatsWhatIsUnclear)),
    Defect("a grant ignores capacity", ("INV-12",), _broken(_OverCapacity)),
    Defect("a superseded session may go on", ("INV-17", "INV-19"), _broken(_AnySessionIsGood)),
    Defect("a hello leaves the former session open", ("INV-19",), _broken(_TwoSessions)),
    Defect("a session epoch starts anew", ("INV-19",), _broken(_ForgetsInstances)),
    Defect("a lapsed lease may be renewed", ("INV-4", "INV-8"), _broken(_LapsedMayRenew)),
    Defect("a start ignores the gate", ("INV-18",), _broken(_GateForgotten)),
    Defect("a cancel is forgotten", ("INV-18", "INV-20"), _broken(_CancelIsForgotten)),
    Defect("a lapse before the start uses budget", ("INV-11",), _broken(_LapseUsesBudget)),
    Defect("a second start is a new start", ("INV-5", "INV-8"), _broken(_StartsTwice)),
    Defect("a disconnect ends leases", ("INV-20",), _broken(_CloseEndsAll)),
    Defect("a gateway wants no proof", ("INV-21",), _patched(_no_proof)),
    Defect("a gateway assigns after a drain", ("INV-15",), _patched(_drain_by_store_alone)),
    Defect("a gateway leaks slots", ("INV-12",), _patched(_slots_leak)),
    Defect("what came early is lost", ("INV-16",), _patched(_early_is_lost)),
    Defect("a gateway hands out twice", ("INV-17",), _patched(_secret_in_every_ear)),
    Defect("versions spell one report as two", ("INV-8",), _patched(_versions_differ)),
    Defect("a worker ignores the boundary", ("INV-20", "R-037"), _patched(_deaf_to_boundaries)),
    Defect("a worker counts from the answer", ("R-037",), _patched(_counts_from_the_answer)),
    Defect("a worker runs what was not started", ("R-124",), _patched(_runs_unasked)),
    Defect("a worker never resumes", ("INV-22", "liveness"), _patched(_never_resumes)),
    Defect("a worker reports once", ("liveness",), _patched(_reports_once)),
    Defect("a worker forgets to renew", ("INV-22",), _patched(_waits_after_a_resume, _no_relay)),
    Defect(
        "a relayed report ends an attempt twice",
        ("INV-2", "INV-5", "INV-8"),
        _broken(_EndsAgainPastTheSocket),
    ),
    Defect("a report goes by its name", ("INV-8",), _broken(_ReportsGoByName)),
    Defect("a report has two receipts", ("INV-8",), _broken(_ReceiptsGoByName)),
    Defect("a relay forgets the epoch test", ("INV-2",), _patched(_no_epoch_test_past_the_socket)),
    Defect("a relay wants no instance", ("INV-21",), _patched(_any_instance_will_do)),
    Defect("the ways spell one report as two", ("INV-8",), _patched(_ways_differ)),
    Defect("a relayed renewal frees its slot", ("INV-12",), _patched(_frees_what_is_renewed)),
    Defect("a relay counts from the answer", ("R-037",), _patched(_relay_counts_from_the_answer)),
    Defect("a relay gives up too soon", ("INV-7", "INV-8"), _patched(_relay_takes_all_for_final)),
    Defect("a report is settled twice", ("R-142",), _patched(_relay_never_lets_go)),
    Defect("two handlers of one task", ("INV-1",), _patched(_deaf_to_boundaries, _nobody_looks)),
)
