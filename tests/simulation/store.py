"""The store of a simulation: the pure model under the commands and outcomes of the real one.

One queue with one route. It may be away for a while; whoever calls it then waits or loses the call.
After each call the judge looks at what has changed.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from orbit_sdk.protocol.times import time_text
from store.commands import (
    AttemptCommand,
    CapacityOutcome,
    CommandOutcome,
    FinishCommand,
    InstanceProof,
    OpenSession,
    ReturnLease,
    SessionOutcome,
    SetCapacity,
)
from store.dispatch import Assignment
from tests.simulation.cores import HANDLER, NAMESPACE, QUEUE, Operation
from tests.simulation.judge import Cause, Judge
from tests.simulation.world import World
from tests.store.model import LEASE_MS, Answer, Attempt, Instance, Model, Session, Task

LEASE_S: Final = LEASE_MS / 1000
DEAD_AFTER_MS: Final = 6_000
UNSENT_AGE_MS: Final = 1_000
_START: Final = datetime(2030, 1, 1, tzinfo=UTC)

TASK_JSON: Final = (
    '{"id":"%s","namespace_id":"' + NAMESPACE + '","queue_id":"' + QUEUE + '","state":"LEASED",'
    '"revision":"%d","handler":"' + HANDLER + '","handler_version":"1","payload_version":"1",'
    '"payload":{"n":1},"available_at":"%s","deadline_at":"%s","recovery_safety":"%s",'
    '"retry":{"max_attempts":%d,"initial_delay_ms":%d,"max_delay_ms":%d,"attempt_timeout_ms":%d},'
    '"attempt_count":%d,"created_at":"%s","updated_at":"%s"}'
)


def instant(ms: int) -> datetime:
    """An instant of the model as the store hands it out."""
    return _START + timedelta(milliseconds=ms)


class Store:
    """The model behind the store's interface. Calls happen at the world's present instant."""

    def __init__(self, world: World, model: Model, judge: Judge) -> None:
        self.world = world
        self.model = model
        self.judge = judge
        self.away_until = 0.0
        self.nodes: dict[str, int] = {}
        """When each gateway beat last."""
        self.homes: dict[str, str] = {}
        """The node of each session."""
        self._granted: dict[str, int] = {}
        self.superseded: set[str] = set()
        """Sessions that a newer hello of their instance has closed."""
        self._hashes: dict[tuple[str, str], bytes] = {}
        self._secrets: dict[str, bytes] = {}
        """Of the instances, hashed."""

    @property
    def is_away(self) -> bool:
        return self.away_until > self.world.now

    def _now(self) -> Model:
        self.model.now = int(self.world.now * 1000)
        return self.model

    # -- clients ----------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        """Accept a task."""
        assert self._now().submit(task) == "created"
        self.judge.submitted(task.id)

    def cancel(self, task_id: str) -> tuple[str, str, str] | None:
        """A caller wants a task stopped (OP-43): node, session and attempt to tell, if any."""
        model = self._now()
        held = [a for a in model.attempts.values() if a.held and a.task.id == task_id]
        done = model.cancel(model.tasks[task_id]).code != "state_conflict"
        if done:
            self.judge.cancelled(task_id)
        self.judge.looked(Cause("cancel"))
        if not done or not held:
            return None
        session = held[0].session
        return self.homes[session.id], session.id, held[0].id

    def pause(self, paused: bool) -> None:
        """Close or open the gate."""
        self._now().paused = paused
        self.judge.gate_set(paused)

    # -- gateways ---------------------------------------------------------------------------

    def beat(self, node_id: str) -> bool:
        """A node says that it lives. False when it was not known, or given up."""
        known = node_id in self.nodes
        self.nodes[node_id] = int(self.world.now * 1000)
        return known

    def open(self, command: OpenSession) -> SessionOutcome:
        """Judge a hello (OP-13); sent again, it gets its own session or hears that it is over."""
        model = self._now()
        session = model.sessions.get(command.session_id)
        former: Session | None = None
        code = "ok"
        if session is None:
            instance = model.instances.get(command.instance_id)
            if instance is not None and instance.current is not None:
                former = None if instance.current.closed else instance.current
            session = model.hello(
                command.instance_id, command.session_id, command.capacity, command.session_max_ms
            )
            self.homes[session.id] = command.node_id
            self._secrets.setdefault(command.instance_id, command.secret_hash)
            if former is not None:
                self.superseded.add(former.id)
            self.judge.opened(session.id, command.instance_id, command.capacity)
        elif session.closed:
            code = "session_superseded"
        self.judge.looked(Cause("hello", session.id))
        held = [a.id for a in model.attempts.values() if a.state == "RUNNING"]
        mine = (aid for aid in held if model.attempts[aid].session.instance is session.instance)
        return SessionOutcome(
            code,
            session.epoch,
            session.instance.draining,
            instant(session.expires),
            instant(model.now),
            session.capacity,
            None if former is None else former.id,
            None if former is None else self.homes[former.id],
            tuple(aid for aid in mine if model.attempts[aid].session is not session),
        )

    def set_capacity(self, command: SetCapacity) -> CapacityOutcome:
        """Overwrite a level (OP-29)."""
        model = self._now()
        session = model.sessions[command.session_id]
        code = model.set_capacity(session, command.sequence, command.capacity, command.drain)
        self.judge.declared(session.id, code, command.sequence, command.capacity, command.drain)
        self.judge.looked(Cause("capacity", session.id))
        return CapacityOutcome(
            code,
            session.instance.draining,
            session.epoch,
            instant(session.expires),
            instant(model.now),
            session.capacity,
        )

    def close(self, session_id: str) -> None:
        """A socket is gone."""
        session = self._now().sessions.get(session_id)
        if session is not None and not session.closed:
            self.model.close(session)
            self.judge.looked(Cause("close", session_id))

    def give_back(self, command: ReturnLease) -> None:
        """An assignment was kept from its worker: the task waits again, unless it was started."""
        self._now()
        attempt = self.model.attempts[command.attempt_id]
        if attempt.state == "LEASED" and attempt.session.id == command.session_id:
            self.judge.returned(attempt.id)
            self.model._give_back([attempt])
            self.judge.looked(Cause("return", command.session_id, command.attempt_id))

    def sessions_of(self, node_id: str) -> set[str]:
        """The open sessions of a node."""
        sessions = self.model.sessions.values()
        return {s.id for s in sessions if not s.closed and self.homes[s.id] == node_id}

    def attempt(
        self, operation: Operation, command: AttemptCommand | FinishCommand
    ) -> CommandOutcome:
        """One command about one attempt, from a session or from an instance past its sessions."""
        model = self._now()
        self.judge.looking(command.attempt_id)
        answer = self._judged(operation, command)
        outcome = self._outcome(answer, model.now)
        cause = Cause(
            operation.value,
            command.session_id,
            command.attempt_id,
            command.message_id,
            "" if command.instance is None else command.instance.instance_id,
        )
        self.judge.commanded(cause, command.epoch, outcome)
        self.judge.looked(cause)
        return outcome

    def find(self, command: AttemptCommand | FinishCommand) -> Attempt | None:
        """The attempt that a command means, by id and epoch."""
        attempt = self.model.attempts.get(command.attempt_id)
        if attempt is None or attempt.epoch != command.epoch:
            return None
        return attempt if attempt.task.id == command.task_id else None

    def _judged(self, operation: Operation, command: AttemptCommand | FinishCommand) -> Answer:
        model = self.model
        if command.instance is not None:
            return self._judged_past(command, command.instance)
        session = model.sessions.get(command.session_id)
        if session is None:
            return Answer("session_superseded")
        attempt = self.find(command)
        if attempt is None:
            return Answer("attempt_not_found")
        if isinstance(command, FinishCommand):
            return self._finished(session, attempt, command)
        if operation is Operation.START:
            return model.start(session, attempt, command.message_id)
        if operation is Operation.RENEW:
            return model.renew(session, attempt, command.message_id)
        return model.resume(session, attempt)

    def _judged_past(self, command: AttemptCommand | FinishCommand, proof: InstanceProof) -> Answer:
        """A command that an instance sends for itself; unknown, foreign and unproven are one."""
        instance, attempt = self.proven(proof), self.find(command)
        if instance is None or attempt is None:
            return Answer("attempt_not_found")
        if isinstance(command, FinishCommand):
            return self._finished(instance, attempt, command)
        return self.model.renew(instance, attempt, command.message_id)

    def proven(self, proof: InstanceProof) -> Instance | None:
        """The instance that says who it is."""
        if self._secrets.get(proof.instance_id) != proof.secret_hash:
            return None
        return self.model.instances[proof.instance_id]

    def _finished(self, by: Session | Instance, attempt: Attempt, command: FinishCommand) -> Answer:
        """The model knows no CANCELLED, which is FAILED with a code (OP-02); the hash tells them
        apart if nothing else does."""
        outcome, code = command.outcome, command.error_code
        if outcome == "CANCELLED":
            mine = attempt.held and by in (attempt.session, attempt.session.instance)
            if mine and attempt.intent is None and attempt.until > self.model.now:
                return Answer("operation_conflict")
            outcome = "FAILED"
        known = self._hashes.setdefault((attempt.id, command.message_id), command.hash)
        if known != command.hash:
            return Answer("operation_conflict")
        return self.model.finish(by, attempt, command.message_id, outcome, code)

    def _outcome(self, answer: Answer, now: int) -> CommandOutcome:
        at, receipt = instant(now), answer.receipt
        if answer.code != "ok":
            return CommandOutcome(
                answer.code, None, None, None, None, None, False, False, None, None, at, False
            )
        known = receipt is not None
        return CommandOutcome(
            "ok",
            receipt.task_state if receipt is not None else None,
            receipt.attempt_state if receipt is not None else None,
            receipt.revision if receipt is not None else None,
            instant(receipt.until) if receipt is not None else None,
            receipt.disposition if receipt is not None else None,
            answer.deduplicated if known else False,
            answer.active,
            answer.lease_state,
            instant(answer.lease_until),
            at,
            answer.lease_state not in ("LEASED", "RUNNING"),
        )

    def holder_of_ended(self, attempt_id: str) -> tuple[str, str] | None:
        """Node and session of the open session that had this attempt until it ended, if any."""
        attempt = self._now().attempts[attempt_id]
        session = attempt.session
        return None if attempt.held or session.closed else (self.homes[session.id], session.id)

    # -- dispatchers ------------------------------------------------------------------------

    def levels(self) -> dict[str, int]:
        """How many more attempts each open session may hold."""
        found = {}
        held: dict[str, int] = {}
        for attempt in self.model.attempts.values():
            if attempt.held:
                instance = attempt.session.instance.id
                held[instance] = held.get(instance, 0) + 1
        for worker in self.model.instances.values():
            session = worker.current
            if session is not None and not session.closed and not worker.draining:
                found[session.id] = session.capacity - held.get(worker.id, 0)
        return found

    def claim(self, pairs: Sequence[tuple[str, str, str]]) -> list[Assignment]:
        """Grant (task, session, attempt id) as far as it can be proven."""
        model = self._now()
        known = [
            (task_id, model.sessions[session_id], attempt_id)
            for task_id, session_id, attempt_id in pairs
        ]
        won = model.claim(known)
        for attempt_id in won:
            self._granted[attempt_id] = model.now
            attempt = model.attempts[attempt_id]
            self.judge.granted(attempt_id, attempt.task.id, attempt.session.id)
        self.judge.looked(Cause("claim"))
        return [self._assignment(model.attempts[attempt_id]) for attempt_id in won]

    def unsent(self, node_id: str) -> list[str]:
        """Unstarted leases of a node's sessions that are no longer young."""
        young = int(self.world.now * 1000) - UNSENT_AGE_MS
        return [
            attempt.id
            for attempt in self.model.attempts.values()
            if attempt.state == "LEASED"
            and not attempt.session.closed
            and self.homes[attempt.session.id] == node_id
            and self._granted[attempt.id] <= young
        ]

    def load(self, attempt_ids: Sequence[str]) -> list[Assignment]:
        """Assignments of unstarted leases."""
        attempts = [self.model.attempts[attempt_id] for attempt_id in attempt_ids]
        self._now()
        return [self._assignment(a) for a in attempts if a.state == "LEASED"]

    def _assignment(self, attempt: Attempt) -> Assignment:
        task, now = attempt.task, time_text(instant(self.model.now))
        available = time_text(instant(task.available))
        data = TASK_JSON % (
            task.id,
            task.revision,
            available,
            time_text(instant(task.deadline)),
            task.safety,
            task.max_attempts,
            task.initial_ms,
            task.max_ms,
            task.timeout_ms,
            task.attempt_count,
            available,
            now,
        )
        return Assignment(
            attempt.session.id,
            self.homes[attempt.session.id],
            task.id,
            attempt.id,
            attempt.epoch,
            time_text(instant(attempt.until)),
            now,
            data.encode(),
        )

    def sweep(self) -> list[tuple[str, str, str]]:
        """What the dispatchers' loops do: settle what lapsed, close sessions of dead nodes. Returns
        what is past its deadline since, by node, session and attempt."""
        model = self._now()
        running = [a for a in model.attempts.values() if a.state == "RUNNING" and not a.intent]
        model.sweep()
        model.expire_ready()
        self.judge.looked(Cause("sweep"))
        dead = [node for node, beat in self.nodes.items() if beat < model.now - DEAD_AFTER_MS]
        for node in dead:
            del self.nodes[node]
        for session in list(model.sessions.values()):
            if not session.closed and self.homes[session.id] not in self.nodes:
                self.close(session.id)
        late = [attempt for attempt in running if attempt.held and attempt.intent == "deadline"]
        return [(self.homes[a.session.id], a.session.id, a.id) for a in late]
