"""The store as a pure machine: what every call must answer and what it leaves behind.

No clock, no chance, no IO: time is a number of milliseconds that the caller moves, ids come in as
arguments. It is written from the rules (OP-10..OP-31), not from the SQL, and knows one queue with
one route. Tests compare the two step by step; simulations may use it as the truth.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

LEASE_MS = 30_000
EVIDENCE_MAX = 16
UNRETRYABLE = ("invalid_input", "unsupported_capability")


@dataclass(slots=True)
class Task:
    """A task and its place: WAITING, LEASED, RUNNING or settled."""

    id: str
    safety: str
    max_attempts: int
    initial_ms: int
    max_ms: int
    timeout_ms: int
    priority: int
    available: int
    deadline: int
    start_deadline: int | None
    """None once an attempt was started."""
    state: str = "WAITING"
    revision: int = 1
    epoch: int = 0
    started: int = 0
    lapses: int = 0
    """Grants in a row that ended before their start."""
    error: str | None = None

    @property
    def attempt_count(self) -> int:
        """Started attempts, plus the one in hand (OP-27)."""
        return self.started + (self.state == "LEASED")

    @property
    def expiry(self) -> int:
        """When waiting ends: the nearest deadline in force (OP-26)."""
        return self.deadline if self.start_deadline is None else self.start_deadline

    def delay_ms(self) -> int:
        """Before the attempt that follows the last started one (OP-27)."""
        return min(self.initial_ms << (self.started - 1), self.max_ms)


class Receipt(NamedTuple):
    """What an operation did, for ever."""

    task_state: str
    attempt_state: str
    revision: int
    until: int
    disposition: str


class Change(NamedTuple):
    """What an operation on a task answered."""

    code: str
    state: str
    revision: int


class Answer(NamedTuple):
    """A code; after `ok` also the receipt (not for resume) and the lease as it is now."""

    code: str
    receipt: Receipt | None = None
    deduplicated: bool = False
    active: bool = False
    lease_state: str = ""
    lease_until: int = 0


@dataclass(slots=True)
class Attempt:
    """One grant of a task."""

    id: str
    task: Task
    session: "Session"
    epoch: int
    until: int
    state: str = "LEASED"
    ends_by: int | None = None
    """The attempt deadline, once started."""
    intent: str | None = None
    start: tuple[str, Receipt] | None = None
    finish: tuple[str, str, Receipt] | None = None
    """Message id, hash and receipt of the report that ended it."""
    receipts: dict[tuple[str, str], tuple[str | None, Receipt]] = field(default_factory=dict)
    """By operation and message id: renewals, and everything that came too late."""
    evidence: int = 0

    @property
    def held(self) -> bool:
        """Whether it is LEASED or RUNNING."""
        return self.state in ("LEASED", "RUNNING")


@dataclass(slots=True, eq=False)
class Instance:
    """A worker process."""

    id: str
    draining: bool = False
    epoch: int = 0
    current: "Session | None" = None


@dataclass(slots=True, eq=False)
class Session:
    """An accepted connection of an instance."""

    id: str
    instance: Instance
    epoch: int
    capacity: int
    expires: int
    sequence: int = 0
    drain: bool = False
    closed: bool = False


class Model:
    """All of it, at one instant."""

    def __init__(self) -> None:
        self.now = 0
        self.paused = False
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[str, Attempt] = {}
        self.instances: dict[str, Instance] = {}
        self.sessions: dict[str, Session] = {}

    # -- tasks ------------------------------------------------------------------------------

    def submit(self, task: Task) -> str:
        """Accept a task under a new key."""
        start = task.available if task.start_deadline is None else task.start_deadline
        if not task.available <= start <= task.deadline or task.expiry <= self.now:
            return "deadline_order"
        self.tasks[task.id] = task
        return "created"

    def peek(self, limit: int) -> list[str]:
        """Candidates in dispatch order (OP-30)."""
        if self.paused:
            return []
        due = [task for task in self.tasks.values() if self._is_due(task)]
        due.sort(key=lambda task: (-task.priority, task.available, task.id))
        return [task.id for task in due[:limit]]

    def expire_ready(self) -> int:
        """Fail what waited past its deadline."""
        late = [t for t in self.tasks.values() if t.state == "WAITING" and t.expiry <= self.now]
        for task in late:
            self._fail_late(task)
        return len(late)

    # -- sessions ---------------------------------------------------------------------------

    def hello(self, instance_id: str, session_id: str, capacity: int, max_ms: int) -> Session:
        """Accept a connection; the newest of an instance wins (OP-13)."""
        instance = self.instances.setdefault(instance_id, Instance(instance_id))
        if instance.current is not None:
            instance.current.closed = True
            self._give_back(a for a in self._held(instance) if a.state == "LEASED")
        instance.epoch += 1
        session = Session(session_id, instance, instance.epoch, capacity, self.now + max_ms)
        instance.current = self.sessions[session_id] = session
        return session

    def close(self, session: Session) -> int:
        """A socket is gone: unstarted attempts go back. How many wait again."""
        session.closed = True
        mine = [a for a in self._held(session.instance) if a.session is session]
        return self._give_back(a for a in mine if a.state == "LEASED")

    def set_capacity(self, session: Session, sequence: int, capacity: int, drain: bool) -> str:
        """Overwrite the level by sequence (OP-29)."""
        if refusal := self._refusal(session):
            return refusal
        if sequence > session.sequence:
            session.sequence, session.capacity, session.drain = sequence, capacity, drain
            session.instance.draining |= drain
            return "ok"
        same = (sequence, capacity, drain) == (session.sequence, session.capacity, session.drain)
        return "ok" if same else "stale_sequence"

    # -- attempts ---------------------------------------------------------------------------

    def claim(self, pairs: Iterable[tuple[str, Session, str]]) -> list[str]:
        """Grant (task, session, attempt id) as far as capacity goes; the attempts that were won."""
        asked: dict[str, tuple[Session, str]] = {}
        for task_id, session, attempt_id in pairs:
            asked.setdefault(task_id, (session, attempt_id))
        won = []
        for task_id, (session, attempt_id) in asked.items():
            task = self.tasks.get(task_id)
            if task is None or not self._is_due(task) or not self._is_free(session):
                continue
            task.state, task.epoch, task.revision = "LEASED", task.epoch + 1, task.revision + 1
            until = min(self.now + LEASE_MS, task.expiry)
            self.attempts[attempt_id] = Attempt(attempt_id, task, session, task.epoch, until)
            won.append(attempt_id)
        return won

    def start(self, session: Session, attempt: Attempt, message: str) -> Answer:
        """LEASED to RUNNING, once (R-131)."""
        self._settle_if_over(attempt)
        if refusal := self._refusal(session):
            return Answer(refusal)
        if not attempt.held:
            return self._late("start", attempt, message, None)
        if attempt.session is not session:
            return Answer("resume_required")
        if attempt.start is not None:
            if message != attempt.start[0]:
                attempt.receipts.setdefault(("start", message), (None, attempt.start[1]))
            return self._answer(attempt, attempt.start[1], deduplicated=True)
        if self.paused:
            return Answer("execution_gated")
        task = attempt.task
        task.state = attempt.state = "RUNNING"
        task.revision += 1
        task.started += 1
        task.lapses, task.start_deadline = 0, None
        attempt.ends_by = min(self.now + task.timeout_ms, task.deadline)
        attempt.until = min(self.now + LEASE_MS, attempt.ends_by)
        attempt.start = (message, self._receipt(attempt))
        return self._answer(attempt, attempt.start[1])

    def renew(self, by: Session | Instance, attempt: Attempt, message: str) -> Answer:
        """Extend a valid lease; under an intent only tell (OP-12, OP-03). An instance that has
        proven itself may ask as well, past its sessions (OP-21)."""
        self._settle_if_over(attempt)
        if refusal := self._refusal_to(by, attempt):
            return Answer(refusal)
        if attempt.held and by not in (attempt.session, attempt.session.instance):
            return Answer("resume_required")
        if not attempt.held or attempt.intent is not None:
            return self._late("renew", attempt, message, None)
        known = attempt.receipts.get(("renew", message))
        if known is not None:
            return self._answer(attempt, known[1], deduplicated=True)
        cap = attempt.task.expiry if attempt.ends_by is None else attempt.ends_by
        attempt.until = min(self.now + LEASE_MS, cap)
        receipt = self._receipt(attempt)
        attempt.receipts["renew", message] = (None, receipt)
        return self._answer(attempt, receipt)

    def finish(
        self,
        by: Session | Instance,
        attempt: Attempt,
        message: str,
        outcome: str,
        code: str | None,
    ) -> Answer:
        """Settle an attempt as reported (R-140, OP-27, OP-28), by a session or an instance as for
        `renew`. Equal reports have equal hashes."""
        self._settle_if_over(attempt)
        meaning = f"{outcome} {code}"
        refusal = self._refusal_to(by, attempt)
        if not attempt.held:
            repeats = attempt.finish is not None and attempt.finish[1] == meaning
            if refusal and not (repeats and isinstance(by, Session)):
                return Answer(refusal)
            return self._late("finish", attempt, message, meaning)
        if refusal:
            return Answer(refusal)
        if by not in (attempt.session, attempt.session.instance):
            return Answer("resume_required")
        if attempt.state == "LEASED":
            return Answer("operation_conflict")
        self._end_as_reported(attempt, outcome, code)
        receipt = self._receipt(attempt)
        attempt.finish = (message, meaning, receipt)
        return self._answer(attempt, receipt)

    def resume(self, session: Session, attempt: Attempt) -> Answer:
        """Move an attempt to its instance's new session (OP-14)."""
        self._settle_if_over(attempt)
        if refusal := self._refusal(session):
            return Answer(refusal)
        if attempt.session.instance is not session.instance:
            return Answer("attempt_not_found")
        if attempt.held:
            attempt.session = session
        return self._answer(attempt, None)

    def intend(self, attempt: Attempt) -> None:
        """Save a caller's intent on a running attempt, with one reporting window (OP-03)."""
        if attempt.state == "RUNNING" and attempt.intent is None and attempt.until > self.now:
            attempt.intent = "caller"
            attempt.task.revision += 1
            attempt.until = max(attempt.until, self.now + LEASE_MS)

    # -- operations -------------------------------------------------------------------------

    def cancel(self, task: Task, expected: int | None = None) -> Change:
        """Take a task back (OP-43): judged after what is over was settled (OP-23)."""
        attempt = self.settle_late(task)
        if expected not in (None, task.revision):
            return self._change("state_conflict", task)
        if task.state in ("WAITING", "LEASED"):
            if attempt is not None and attempt.held:
                attempt.state, attempt.intent = "CANCELLED", "caller"
            self._settle(task, "CANCELLED", None)
            return self._change("done", task)
        if task.state != "RUNNING" or attempt is None:
            return self._change("state_conflict", task)
        self.intend(attempt)
        return self._change("intent", task)

    def settle_late(self, task: Task) -> Attempt | None:
        """Settle what is over of a task (OP-23); the attempt that held it, if one did."""
        attempt = next((a for a in self.attempts.values() if a.task is task and a.held), None)
        if attempt is not None:
            self._settle_if_over(attempt)
        if task.state == "WAITING" and task.expiry <= self.now:
            self._fail_late(task)
        return attempt

    def retry(self, task: Task, expected: int, deadline: int | None) -> Change:
        """One more attempt by hand (OP-44)."""
        if task.state not in ("FAILED", "CANCELLED", "NEEDS_REVIEW") or task.revision != expected:
            return self._change("state_conflict", task)
        start = task.start_deadline
        start = None if start is None or start <= self.now else start
        if deadline is not None and (deadline <= self.now or deadline < (start or deadline)):
            return self._change("deadline_order", task)
        if deadline is None and task.deadline <= self.now:
            return self._change("state_conflict", task)
        task.start_deadline, task.deadline = start, deadline or task.deadline
        task.available, task.lapses = self.now, 0
        task.max_attempts += 1
        self._settle(task, "WAITING", None)
        return self._change("done", task)

    def resolve(self, task: Task, expected: int, outcome: str) -> Change:
        """The end of a review (OP-32)."""
        if task.state != "NEEDS_REVIEW" or task.revision != expected:
            return self._change("state_conflict", task)
        self._settle(task, outcome, task.error if outcome == "FAILED" else None)
        return self._change("done", task)

    def _change(self, code: str, task: Task) -> Change:
        return Change(code, task.state, task.revision)

    def sweep(self) -> tuple[set[str], set[tuple[str, str]]]:
        """Settle every lease that is over: the attempts that ended, and those that were given a
        window to report in, each with the session that is to hear of it (OP-26)."""
        held = [attempt for attempt in self.attempts.values() if attempt.held]
        over = [attempt for attempt in held if attempt.until <= self.now]
        for attempt in held:
            self._settle_if_over(attempt)
        ended = {attempt.id for attempt in held if not attempt.held}
        return ended, {(a.id, a.session.id) for a in over if a.held}

    # -- what they share --------------------------------------------------------------------

    def _is_due(self, task: Task) -> bool:
        return task.state == "WAITING" and task.available <= self.now < task.expiry

    def _is_free(self, session: Session) -> bool:
        if self.paused or self._refusal(session) or session.instance.draining:
            return False
        return len(self._held(session.instance)) < session.capacity

    def _held(self, instance: Instance) -> list[Attempt]:
        return [a for a in self.attempts.values() if a.held and a.session.instance is instance]

    def _refusal(self, session: Session) -> str:
        if session.closed:
            return "session_superseded"
        return "session_expired" if session.expires <= self.now else ""

    def _refusal_to(self, by: Session | Instance, attempt: Attempt) -> str:
        """A session may speak while it is open, an instance of what is its own."""
        if isinstance(by, Session):
            return self._refusal(by)
        return "" if attempt.session.instance is by else "attempt_not_found"

    def _receipt(self, attempt: Attempt, disposition: str = "APPLIED") -> Receipt:
        task = attempt.task
        return Receipt(task.state, attempt.state, task.revision, attempt.until, disposition)

    def _answer(
        self, attempt: Attempt, receipt: Receipt | None, deduplicated: bool = False
    ) -> Answer:
        active = attempt.held and attempt.intent is None
        return Answer("ok", receipt, deduplicated, active, attempt.state, attempt.until)

    def _late(self, operation: str, attempt: Attempt, message: str, meaning: str | None) -> Answer:
        """A proven command that cannot be applied (OP-21, OP-22)."""
        if operation == "start" and attempt.start is not None and attempt.start[0] == message:
            return self._answer(attempt, attempt.start[1], deduplicated=True)
        if operation == "finish" and attempt.finish is not None:
            if attempt.finish[1] == meaning:
                return self._answer(attempt, attempt.finish[2], deduplicated=True)
            if attempt.finish[0] == message:
                return Answer("operation_conflict")
        known = attempt.receipts.get((operation, message))
        if known is not None:
            if known[0] != meaning:
                return Answer("operation_conflict")
            return self._answer(attempt, known[1], deduplicated=True)
        receipt = self._receipt(attempt, "EVIDENCE_ONLY")
        attempt.receipts[operation, message] = (meaning, receipt)
        if attempt.evidence < (EVIDENCE_MAX if operation == "finish" else EVIDENCE_MAX // 2):
            attempt.evidence += 1
        return self._answer(attempt, receipt)

    def _settle(self, task: Task, state: str, error: str | None) -> None:
        task.state, task.error = state, error
        task.revision += 1

    def _fail_late(self, task: Task) -> None:
        over = "deadline_exceeded"
        if task.start_deadline is not None and task.start_deadline <= self.now:
            over = "start_deadline_exceeded"
        self._settle(task, "FAILED", over)

    def _end_as_reported(self, attempt: Attempt, outcome: str, code: str | None) -> None:
        task = attempt.task
        attempt.state = outcome
        if outcome == "SUCCEEDED":
            self._settle(task, "SUCCEEDED", None)
        elif outcome == "UNKNOWN":
            self._settle(task, "NEEDS_REVIEW", code)
        elif attempt.intent == "caller":
            attempt.state = "CANCELLED" if code == "cancelled" else "FAILED"
            self._settle(task, "CANCELLED", None)
        elif attempt.intent == "deadline":
            self._settle(task, "FAILED", "deadline_exceeded")
        elif (
            task.started >= task.max_attempts
            or self.now + task.delay_ms() >= task.deadline
            or (code or "").startswith("fatal.")
            or code in UNRETRYABLE
        ):
            self._settle(task, "FAILED", code)
        else:
            task.available = self.now + task.delay_ms()
            self._settle(task, "WAITING", None)

    def _settle_if_over(self, attempt: Attempt) -> None:
        """A lease that is over is settled before anything else is judged (OP-23..OP-26)."""
        task = attempt.task
        if not attempt.held or attempt.until > self.now:
            return
        if attempt.state == "LEASED":
            self._give_back([attempt])
            return
        if attempt.intent is None and attempt.until >= task.deadline:
            attempt.intent = "deadline"
            task.revision += 1
            attempt.until = task.deadline + LEASE_MS
            if attempt.until > self.now:
                return
        review = task.safety == "RECONCILE_ONLY"
        attempt.state = "UNKNOWN" if review else "EXPIRED"
        if review:
            over = "deadline_exceeded" if attempt.intent == "deadline" else "lease_lapsed"
            self._settle(task, "NEEDS_REVIEW", over)
        elif attempt.intent == "caller":
            self._settle(task, "CANCELLED", None)
        elif attempt.intent == "deadline":
            self._settle(task, "FAILED", "deadline_exceeded")
        elif task.started >= task.max_attempts:
            self._settle(task, "FAILED", "attempts_exhausted")
        elif self.now + task.delay_ms() >= task.deadline:
            self._settle(task, "FAILED", "deadline_exceeded")
        else:
            task.available = self.now + task.delay_ms()
            self._settle(task, "WAITING", None)

    def _give_back(self, attempts: Iterable[Attempt]) -> int:
        """Unstarted attempts end without using budget; how many of their tasks wait again."""
        waiting = 0
        for attempt in list(attempts):
            task = attempt.task
            attempt.state = "EXPIRED"
            task.lapses += 1
            if task.start_deadline is not None and task.start_deadline <= self.now:
                self._settle(task, "FAILED", "start_deadline_exceeded")
            elif task.deadline <= self.now:
                self._settle(task, "FAILED", "deadline_exceeded")
            else:
                pause_s = 0 if task.lapses < 3 else min(60, 2 ** (task.lapses - 3))
                task.available = self.now + pause_s * 1000
                self._settle(task, "WAITING", None)
                waiting += 1
        return waiting
