"""What must hold in the store and on the wire, looked at after every call and every message.

The judge keeps books of its own: what was granted, started, accepted, answered. It believes neither
the model nor the cores, and names the invariant that is broken. Workers are judged in `overseer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from orbit_sdk.protocol.states import ATTEMPT_MOVES, TASK_MOVES, AttemptState, TaskState
from store.commands import CommandOutcome
from tests.simulation.cores import Asked, Result, Told
from tests.simulation.world import Violation, World, short
from tests.store.model import Attempt, Model, Task

EXTENDING: Final = ("start", "renew")
UNSTARTED_END: Final = ("hello", "close", "cancel", "return")
STRANGERS_HEAR: Final = ("attempt_not_found", "session_superseded", "rate_limited")
"""Whoever proves nothing learns nothing, about attempts that there are or are not."""
STRANGERS_POSTING_HEAR: Final = ("attempt_not_found", "rate_limited", "unavailable")
ECHOES_HEAR: Final = ("session_superseded", "rate_limited")


@dataclass(frozen=True, slots=True)
class Cause:
    """The call after which the judge looks. `instance_id`: it came past the sockets."""

    kind: str
    session_id: str = ""
    attempt_id: str = ""
    message_id: str = ""
    instance_id: str = ""


@dataclass(slots=True)
class _Seen:
    """An attempt as it was when the judge looked last."""

    state: str
    until: int
    session_id: str
    intent: str | None


@dataclass(slots=True)
class _Level:
    """What a session has declared: the highest accepted sequence and its level."""

    sequence: int
    capacity: int


Identity = tuple[str, str, str]
"""Operation, attempt and message."""


@dataclass(slots=True)
class _Books:
    grants: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    grant_of: dict[str, str] = field(default_factory=dict)
    receipts: dict[Identity, tuple[object, ...]] = field(default_factory=dict)
    firsts: set[Identity] = field(default_factory=set)
    frames: dict[str, Asked] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    wire: dict[Identity, tuple[str, ...]] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)
    said: set[tuple[str, str]] = field(default_factory=set)
    """Sessions and the frames that their workers have sent in them."""
    echoes: set[tuple[str, str]] = field(default_factory=set)
    returned: set[str] = field(default_factory=set)
    impostors: set[str] = field(default_factory=set)
    """Messages that prove a lease, and not the instance that holds it."""
    reports: dict[str, tuple[object, ...]] = field(default_factory=dict)
    """By attempt: the receipt of the report that ended it."""


class Judge:
    """Looks at one store model and at what gateways say."""

    def __init__(self, world: World, model: Model) -> None:
        self.world = world
        self.model = model
        self.books = _Books()
        self.drained: set[str] = set()
        """Instances whose drain the store has accepted."""
        self.unwanted: set[str] = set()
        """Tasks that somebody has cancelled."""
        self.unclear: set[str] = set()
        """Tasks that may have taken effect and must not be repeated by the platform alone."""
        self.paused = False
        self.lapses = 0
        """Started attempts that nobody renewed in time; those that reached their own end aside."""
        self.resumed = 0
        """Attempts that were moved to a newer session."""
        self.relayed = {"renew": 0, "finish": 0}
        """What took effect past the sockets."""
        self._tasks: dict[str, tuple[str, int, int, int]] = {}
        self._held: dict[str, _Seen] = {}
        self._over: dict[str, tuple[str, int]] = {}
        self._levels: dict[str, _Level] = {}
        self._epochs: dict[str, int] = {}
        self._closed: set[str] = set()
        self._cautious: set[str] = set()
        self._before: _Seen | None = None

    def fail(self, invariant: str, what: str) -> None:
        """Something is broken."""
        raise Violation(f"{invariant}: {what}")

    # -- what the store was asked -----------------------------------------------------------

    def submitted(self, task_id: str) -> None:
        task = self.model.tasks[task_id]
        self._tasks[task_id] = (task.state, task.revision, task.epoch, task.started)
        if task.safety == "RECONCILE_ONLY":
            self._cautious.add(task_id)

    def cancelled(self, task_id: str) -> None:
        self.world.note("store", "cancels", task_id)
        self.unwanted.add(task_id)

    def gate_set(self, paused: bool) -> None:
        self.world.note("store", "gate paused" if paused else "gate open")
        self.paused = paused

    def opened(self, session_id: str, instance_id: str, capacity: int) -> None:
        session = self.model.sessions[session_id]
        self.world.note("store", "opens", session_id, "of", instance_id, "epoch", session.epoch)
        if session.epoch <= self._epochs.get(instance_id, 0):
            self.fail("INV-19", f"the session epoch of {short(instance_id)} did not rise")
        self._epochs[instance_id] = session.epoch
        self._levels[session_id] = _Level(0, capacity)

    def declared(
        self, session_id: str, code: str, sequence: int, capacity: int, drain: bool
    ) -> None:
        level, session = self._levels[session_id], self.model.sessions[session_id]
        self.world.note("store", "level", session_id, sequence, capacity, drain, "->", code)
        if code == "ok" and sequence > level.sequence:
            level.sequence, level.capacity = sequence, capacity
            if drain:
                self.drained.add(session.instance.id)
        if session.capacity != level.capacity:
            self.fail("INV-12", f"{short(session_id)} declared {level.capacity}, counts as more")

    def granted(self, attempt_id: str, task_id: str, session_id: str) -> None:
        """A claim was won."""
        books, attempt = self.books, self.model.attempts[attempt_id]
        session = attempt.session
        self.world.note("store", "grants", attempt_id, "of", task_id, "to", session_id)
        books.grants[task_id] = books.grants.get(task_id, 0) + 1
        books.grant_of[attempt_id] = session_id
        if attempt.epoch != books.grants[task_id]:
            self.fail("INV-2", f"epoch {attempt.epoch} for grant {books.grants[task_id]}")
        if session.closed or session.instance.current is not session:
            self.fail("INV-17", f"granted to {short(session_id)}, which is not current")
        if session.instance.id in self.drained:
            self.fail("INV-15", f"granted to the drained {short(session.instance.id)}")
        if task_id in self.unwanted:
            self.fail("INV-18", f"{short(task_id)} was cancelled and is granted again")
        if task_id in self.unclear:
            self.fail("INV-10", f"{short(task_id)} may have taken effect and is granted again")
        if self.paused:
            self.fail("INV-18", "granted under a closed gate")
        mine = sum(a.held and a.session.instance is session.instance for a in self._all())
        if mine > self._levels[session_id].capacity:
            self.fail("INV-12", f"{short(session_id)} holds {mine}, more than it declared")

    def returned(self, attempt_id: str) -> None:
        """A gateway gives an assignment back."""
        self.world.note("store", "takes back", attempt_id)
        if attempt_id in self.books.assigned:
            self.fail("INV-15", f"{short(attempt_id)} was handed over and is given back")

    def _all(self) -> list[Attempt]:
        return list(self.model.attempts.values())

    def looking(self, attempt_id: str) -> None:
        """A command about this attempt is about to be judged."""
        self._before = self._held.get(attempt_id)

    def commanded(self, cause: Cause, epoch: int, outcome: CommandOutcome) -> None:
        """The store has answered a command about an attempt."""
        if cause.message_id in self.books.strangers:
            self.fail("INV-21", f"{cause.kind} without a proof reached the store")
        self.world.note(
            "store",
            cause.kind,
            cause.attempt_id,
            "by",
            cause.instance_id or cause.session_id,
            "message",
            cause.message_id,
            "->",
            outcome.code,
            outcome.disposition or "",
            "active" if outcome.active else outcome.lease_state or "",
        )
        if outcome.code != "ok":
            return
        if cause.message_id in self.books.impostors:
            self.fail("INV-21", f"{cause.kind} by {short(cause.instance_id)} needed no proof")
        attempt = self.model.attempts[cause.attempt_id]
        if outcome.disposition == "APPLIED" and not outcome.deduplicated:
            self._took_effect(cause, epoch, attempt)
        if outcome.active and not self._is_valid(attempt):
            self.fail("INV-8", f"{short(attempt.id)} is called active and is not")
        if outcome.lease_until is None or self._ms(outcome) != attempt.until:
            self.fail("INV-8", "the lease beside the receipt is not the one of now")
        if cause.kind != "resume":
            self._keep_receipt(cause, outcome)

    def _ms(self, outcome: CommandOutcome) -> int:
        assert outcome.lease_until is not None
        left = outcome.lease_until - outcome.server_time
        return self.model.now + round(left.total_seconds() * 1000)

    def _is_valid(self, attempt: Attempt) -> bool:
        return attempt.held and attempt.intent is None and attempt.until > self.model.now

    def _keep_receipt(self, cause: Cause, outcome: CommandOutcome) -> None:
        identity = (cause.kind, cause.attempt_id, cause.message_id)
        receipt = (
            outcome.task_state,
            outcome.attempt_state,
            outcome.task_revision,
            outcome.receipt_lease_until,
            outcome.disposition,
        )
        known = self.books.receipts.setdefault(identity, receipt)
        if known != receipt:
            self.fail("INV-8", f"the receipt of {cause.kind} {short(cause.message_id)} changed")
        is_end = cause.kind == "finish" and outcome.disposition == "APPLIED"
        # Whatever its name, and whichever way it came: an attempt ends once.
        if is_end and self.books.reports.setdefault(cause.attempt_id, receipt) != receipt:
            self.fail("INV-8", f"{short(cause.attempt_id)} has two receipts of its end")
        if outcome.deduplicated:
            return
        if identity in self.books.firsts:
            self.fail("INV-8", f"{cause.kind} {short(cause.message_id)} took effect twice")
        self.books.firsts.add(identity)

    def _took_effect(self, cause: Cause, epoch: int, attempt: Attempt) -> None:
        """A new operation was applied: whoever asked must have had the right."""
        task, before = attempt.task, self._before
        if epoch != task.epoch:
            self.fail("INV-2", f"{cause.kind} of epoch {epoch} applied at epoch {task.epoch}")
        if cause.instance_id:
            self.relayed[cause.kind] += 1
        else:
            self._look_at_asker(cause, before)
        if before is None:
            self.fail("INV-5", f"{cause.kind} applied to {short(attempt.id)}, which was over")
        elif before.until <= self.model.now and before.intent is None:
            late = self.model.now - before.until
            if not (before.state == "RUNNING" and before.until >= task.deadline):
                self.fail("INV-4", f"{cause.kind} applied {late} ms after the lease had ended")
        if cause.kind == "start":
            self.books.starts[task.id] = self.books.starts.get(task.id, 0) + 1
            if self.paused:
                self.fail("INV-18", "started under a closed gate")
            if task.id in self.unwanted:
                self.fail("INV-18", f"{short(task.id)} was cancelled and is started")

    def _look_at_asker(self, cause: Cause, before: _Seen | None) -> None:
        session = self.model.sessions[cause.session_id]
        if session.closed or session.instance.current is not session:
            self.fail("INV-19", f"{cause.kind} by {short(session.id)}, which is not current")
        is_over = before is None or (before.until <= self.model.now and before.intent is None)
        if before is not None and not is_over and before.session_id != session.id:
            self.fail("INV-19", f"{cause.kind} without a resume by {short(session.id)}")

    # -- what the store has become ----------------------------------------------------------

    def looked(self, cause: Cause) -> None:
        """Compare with what was seen last, and judge each change by its cause."""
        changed: set[str] = set()
        for attempt_id, seen in list(self._held.items()):
            attempt = self.model.attempts[attempt_id]
            now = (attempt.state, attempt.until, attempt.session.id, attempt.intent)
            if now != (seen.state, seen.until, seen.session_id, seen.intent):
                self._changed(attempt, seen, cause)
                changed.add(attempt.task.id)
        if cause.kind == "claim":
            for attempt in self._all():
                if attempt.held and attempt.id not in self._held:
                    self._held[attempt.id] = _seen(attempt)
                    changed.add(attempt.task.id)
        self._look_at_tasks(cause)
        self._look_at_sessions(cause)
        if cause.attempt_id in self._over:
            self._look_at_over(cause.attempt_id)

    def _changed(self, attempt: Attempt, seen: _Seen, cause: Cause) -> None:
        name = short(attempt.id)
        mine = cause.attempt_id == attempt.id
        if attempt.state != seen.state:
            move = (AttemptState(seen.state), AttemptState(attempt.state))
            if move not in ATTEMPT_MOVES:
                self.fail("INV-5", f"{name} went from {seen.state} to {attempt.state}")
        if attempt.until != seen.until and attempt.intent == seen.intent:
            if not (mine and cause.kind in EXTENDING):
                self.fail("INV-20", f"{cause.kind} moved the lease end of {name}")
            if attempt.until < seen.until and cause.kind == "renew":
                self.fail("INV-4", f"the lease end of {name} went back")
        if attempt.session.id != seen.session_id:
            if not (mine and cause.kind == "resume"):
                self.fail("INV-17", f"{cause.kind} moved {name} to another session")
            if attempt.session.instance.current is not attempt.session:
                self.fail("INV-19", f"{name} was moved to a session that is not current")
            self.resumed += 1
        if attempt.held:
            self._held[attempt.id] = _seen(attempt)
            return
        self._ended(attempt, seen, cause, mine)
        del self._held[attempt.id]
        self._over[attempt.id] = (attempt.state, attempt.until)

    def _ended(self, attempt: Attempt, seen: _Seen, cause: Cause, mine: bool) -> None:
        name = short(attempt.id)
        self.world.note("store", "ends", attempt.id, attempt.state, "task", attempt.task.state)
        if seen.until <= self.model.now:
            self.lapses += seen.state == "RUNNING" and not is_at_its_end(attempt)
            if seen.state == "RUNNING" and attempt.task.id in self._cautious:
                self.unclear.add(attempt.task.id)
            return
        if seen.state == "LEASED":
            if cause.kind not in UNSTARTED_END:
                self.fail("INV-6", f"{cause.kind} ended the unstarted {name} before its time")
        elif not (cause.kind == "finish" and mine):
            self.fail("INV-20", f"{cause.kind} ended the running {name} before its time")
        if attempt.state == "CANCELLED" and attempt.task.id not in self.unwanted:
            self.fail("INV-18", f"{name} is CANCELLED without an intent")

    def _look_at_tasks(self, cause: Cause) -> None:
        held: dict[str, str] = {}
        for attempt_id, seen in self._held.items():
            task_id = self.model.attempts[attempt_id].task.id
            if task_id in held:
                self.fail("INV-1", f"{short(task_id)} has two live attempts")
            held[task_id] = seen.state
        for task_id, task in self.model.tasks.items():
            now = (task.state, task.revision, task.epoch, task.started)
            then = self._tasks[task_id]
            if now != then:
                self._tasks[task_id] = now
                self._task_changed(task, then, cause)
                place = held.get(task_id, "WAITING" if task.state == "WAITING" else "")
                live = task.state if task.state in ("WAITING", "LEASED", "RUNNING") else ""
                if place != live:
                    self.fail("INV-11b", f"{short(task_id)} is {task.state}, its lease {place}")

    def _task_changed(self, task: Task, then: tuple[str, int, int, int], cause: Cause) -> None:
        name = short(task.id)
        state, revision, epoch, _ = then
        if task.state != state and (TaskState(state), TaskState(task.state)) not in TASK_MOVES:
            self.fail("INV-5", f"{name} went from {state} to {task.state}")
        if not revision < task.revision <= revision + 2:
            self.fail("INV-2", f"{name} went from revision {revision} to {task.revision}")
        if task.epoch != epoch and cause.kind != "claim":
            self.fail("INV-2", f"{cause.kind} changed the epoch of {name}")
        if task.epoch != self.books.grants.get(task.id, 0):
            self.fail("INV-11", f"{name} has epoch {task.epoch}, which is not its grants")
        if task.started != self.books.starts.get(task.id, 0):
            self.fail("INV-11", f"{name} counts {task.started} starts, which is not so")
        if task.attempt_count > task.max_attempts:
            self.fail("INV-11", f"{name} has used more than its budget")
        if task.state == "CANCELLED" and task.id not in self.unwanted:
            self.fail("INV-18", f"{name} is CANCELLED without an intent")
        if task.id in self.unwanted and task.state == "WAITING":
            self.fail("INV-18", f"{name} was cancelled and waits again")

    def _look_at_sessions(self, cause: Cause) -> None:
        if cause.kind not in ("hello", "close", "capacity"):
            return
        open_of: dict[str, str] = {}
        for session in self.model.sessions.values():
            if session.closed:
                self._closed.add(session.id)
                continue
            if session.id in self._closed:
                self.fail("INV-17", f"{short(session.id)} was closed and is open again")
            if session.instance.id in open_of:
                self.fail("INV-19", f"{short(session.instance.id)} has two open sessions")
            open_of[session.instance.id] = session.id
        for instance_id in self.drained:
            if not self.model.instances[instance_id].draining:
                self.fail("INV-15", f"the drain of {short(instance_id)} was cleared")

    def look_at_all_over(self) -> None:
        """What has ended must be as it was at its end."""
        for attempt_id in self._over:
            self._look_at_over(attempt_id)

    def _look_at_over(self, attempt_id: str) -> None:
        attempt = self.model.attempts[attempt_id]
        if (attempt.state, attempt.until) != self._over[attempt_id]:
            self.fail("INV-5", f"{short(attempt_id)} had ended and changed after it")

    # -- what is said on the wire -----------------------------------------------------------

    def worker_said(self, asked: Asked) -> None:
        """A worker has sent a message."""
        self.books.frames[asked.frame_id] = asked
        self.books.said.add((asked.session_id, asked.frame_id))

    def stranger_said(self, asked: Asked, message_id: str) -> None:
        """Somebody without a proof has sent a message about an attempt, in this frame."""
        self.world.note("stranger", "sends", message_id)
        self.books.frames[asked.frame_id] = asked
        self.books.strangers.add(message_id)

    def echoed(self, session_id: str, frame_id: str) -> None:
        """A frame of an earlier session has come to this one."""
        self.world.note("echo", "of", frame_id, "in", session_id)
        self.books.echoes.add((session_id, frame_id))

    def impostor_said(self, message_ids: Sequence[str]) -> None:
        """Somebody has posted who proves the leases, and not the instance that holds them."""
        self.books.impostors.update(message_ids)

    def strangers_said(self, message_ids: Sequence[str]) -> None:
        """Somebody has posted who proves nothing."""
        self.books.strangers.update(message_ids)

    def freed(self, attempt_id: str) -> None:
        """A session was told that an attempt has ended past its socket."""
        if self.model.attempts[attempt_id].held:
            self.fail("INV-12", f"the slot of {short(attempt_id)} is given away and it is held")

    def handed(self, attempt_id: str) -> None:
        """A session that takes work was given an attempt: it must have been sent, or be on its
        way back."""
        if attempt_id not in self.books.assigned and attempt_id not in self.books.returned:
            self.fail("INV-16", f"{short(attempt_id)} was given to a session and lies there")

    def counted(self, attempt_id: str, outcome: CommandOutcome, is_held: bool) -> None:
        """A session has heard of an attempt: does it count the slot as the store does?"""
        if outcome.code == "ok" and is_held is outcome.settled:
            held = "held" if is_held else "free"
            self.fail("INV-12", f"the slot of {short(attempt_id)} is {held}, which is not so")

    def gateway_said(
        self, told: Told, session_id: str, instance_id: str, drain_heard: bool
    ) -> None:
        """A gateway has queued a message for its worker."""
        about = (session_id, told.reply_to)
        # An operation may go on in a newer session under its old name.
        if about in self.books.echoes and about not in self.books.said:
            if told.code not in ECHOES_HEAR:
                self.fail("INV-19", f"an echo of an earlier session heard {told.kind} {told.code}")
        elif told.reply_to in self.books.strangers and told.code:
            if told.code not in STRANGERS_HEAR:
                self.fail("INV-21", f"a stranger heard {told.code}")
        elif told.results:
            self._look_at_results(told)
        elif told.given:
            for attempt_id, _ in told.given:
                self._look_at_assignment(attempt_id, told, session_id, drain_heard)
        elif told.draining is False and instance_id in self.drained:
            current = self.model.instances[instance_id].current
            if current is not None and current.id == session_id:
                self.fail("INV-15", f"{short(instance_id)} is drained and hears that it is not")

    def _look_at_assignment(
        self, attempt_id: str, told: Told, session_id: str, drain_heard: bool
    ) -> None:
        name = short(attempt_id)
        if drain_heard:
            self.fail("INV-15", f"{name} was sent after a drain was heard")
        if told.session_id != session_id or self.books.grant_of.get(attempt_id) != session_id:
            self.fail("INV-17", f"{name} was sent to another session")
        if attempt_id in self.books.assigned:
            self.fail("INV-17", f"{name} was sent twice")
        self.books.assigned.add(attempt_id)

    def _look_at_results(self, told: Told) -> None:
        asked = self.books.frames[told.reply_to]
        if len(asked.items) != len(told.results):
            self.fail("R-039", f"{short(told.reply_to)} has not one result an item")
        for item, result in zip(asked.items, told.results, strict=True):
            if item.message_id in self.books.strangers:
                if result.code not in STRANGERS_HEAR:
                    self.fail("INV-21", f"a stranger heard {result}")
            elif result.receipt is not None:
                identity = (asked.kind, item.attempt_id, item.message_id)
                self._look_at_receipt(identity, result.receipt)

    def gateway_answered(
        self, kind: str, names: Sequence[tuple[str, str]], results: Sequence[Result]
    ) -> None:
        """A gateway has answered a request that came past the sockets."""
        if len(results) != len(names):
            self.fail("R-039", f"{len(names)} items were posted, {len(results)} are answered")
        for (attempt_id, message_id), result in zip(names, results, strict=True):
            if message_id in self.books.strangers or message_id in self.books.impostors:
                if result.code not in STRANGERS_POSTING_HEAR:
                    self.fail("INV-21", f"a stranger heard {result}")
            elif result.receipt is not None:
                self._look_at_receipt((kind, attempt_id, message_id), result.receipt)

    def _look_at_receipt(self, identity: Identity, said: tuple[str, str, str, str, str]) -> None:
        name = f"the answer to {identity[0]} {short(identity[2])}"
        receipt = self.books.receipts.get(identity)
        if receipt is None:
            self.fail("INV-7", f"{name}: nothing was committed")
            return
        if said[:2] != receipt[:2] or said[2] != str(receipt[2]) or said[4] != receipt[4]:
            self.fail("INV-8", f"{name} differs from the store")
        if said != self.books.wire.setdefault(identity, said):
            self.fail("INV-8", f"{name} changed on the wire")


def is_at_its_end(attempt: Attempt) -> bool:
    """Whether the lease reaches as far as the attempt may last, so that no renewal extends it."""
    return attempt.ends_by is not None and attempt.until >= attempt.ends_by


def _seen(attempt: Attempt) -> _Seen:
    return _Seen(attempt.state, attempt.until, attempt.session.id, attempt.intent)
