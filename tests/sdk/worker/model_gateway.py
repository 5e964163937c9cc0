"""A gateway as the contract describes it, small enough to be read: the worker's test partner.

Pure: time comes from a clock, ids from a counter. Every frame that comes in is checked against
`clientFrame` of the schema and every frame that goes out against `serverFrame`, so the SDK is
tested against the contract and not against its own reading of it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from math import inf
from typing import Literal

import msgspec
import orjson
from msgspec import Raw

from orbit_sdk.protocol import frames, frames_v2
from orbit_sdk.protocol.frames import (
    AckFrame,
    AssignBody,
    AssignedTask,
    AssignFrame,
    CapacityBody,
    CapacityFrame,
    ClientFrame,
    CommandResult,
    ErrorBody,
    ErrorFrame,
    FinishFrame,
    HelloFrame,
    LeaseBody,
    Receipt,
    RenewFrame,
    ResumeFrame,
    Retry,
    ServerFrame,
    StartFrame,
    WelcomeBody,
    WelcomeFrame,
    encode_frame,
)
from orbit_sdk.protocol.states import AttemptState, Outcome, RecoverySafety, TaskState
from orbit_sdk.protocol.times import time_text
from tests.contract.oracle import VALIDATORS, Version
from tests.sdk.worker.versions import frame_id_of, in_v2, joined, operations_in

START_OF_TIME = datetime(2030, 1, 1, tzinfo=UTC)

A = AttemptState
_OUTCOME_STATES = {
    Outcome.SUCCEEDED: A.SUCCEEDED,
    Outcome.FAILED: A.FAILED,
    Outcome.UNKNOWN: A.UNKNOWN,
    Outcome.CANCELLED: A.CANCELLED,
}
_LIVE = (A.LEASED, A.RUNNING)


@dataclass
class ModelAttempt:
    """An attempt as the gateway knows it."""

    task: AssignedTask
    attempt_id: str
    epoch: int
    secret: str
    session_id: str
    lease_until: float
    state: AttemptState = A.LEASED
    intent: Literal["caller", "deadline"] | None = None
    deadline: float = inf
    starts: list[str] = field(default_factory=list)
    receipts: dict[str, Receipt] = field(default_factory=dict)
    finish: bytes | None = None
    finish_receipt: Receipt | None = None
    error_code: str = ""
    evidence: int = 0


class ModelGateway:
    """One cluster with any number of connections; only the newest session of an instance counts.

    It thinks in frames of v1; under v2 the operations of a frame are answered together.
    """

    def __init__(
        self, clock: Callable[[], float], lease_s: float = 30.0, version: Version = "1"
    ) -> None:
        self.clock = clock
        self.version: Version = version
        self.lease_s = lease_s
        self.attempts: dict[str, ModelAttempt] = {}
        self.session_id = ""
        self.session_epoch = 0
        self.capacity = 0
        self.sequence = 0
        self.declared: CapacityBody | None = None
        self.draining = False
        self.node_draining = False
        self.assigned_after_drain = 0
        self.trouble: Callable[[ClientFrame], str | None] = lambda frame: None
        self.seen: list[ClientFrame] = []
        self.messages = 0
        self._numbers = count(1)
        self._epochs = count(1)

    # Towards the worker

    def new_id(self) -> str:
        return f"{next(self._numbers):032x}"

    def now_text(self) -> str:
        return self.instant(self.clock())

    def instant(self, at: float) -> str:
        return time_text(START_OF_TIME + timedelta(seconds=at))

    def out(self, frame: ServerFrame | frames_v2.ServerFrame) -> bytes:
        if self.version == "1":
            data = encode_frame(frame)  # type: ignore[arg-type]
        else:
            is_v1 = frame.protocol_version == "1"
            data = frames_v2.encode_frame(in_v2(frame) if is_v1 else frame)  # type: ignore[arg-type]
        VALIDATORS[self.version, "serverFrame"].validate(orjson.loads(data))
        return data

    def free(self) -> int:
        """How many assignments the session would take."""
        if self.draining or not self.session_id:
            return 0
        self.settle_lapsed()
        return self.capacity - sum(a.state in _LIVE for a in self.attempts.values())

    def assign(
        self,
        handler: str = "work",
        payload: bytes = b'{"n":1}',
        recovery_safety: RecoverySafety = RecoverySafety.IDEMPOTENT,
        attempt_timeout_ms: int = 3_600_000,
        task_id: str | None = None,
        deadline_s: float = 86_400,
    ) -> bytes:
        """A new attempt for the current session, and the frame that says so."""
        task = AssignedTask(
            id=task_id or self.new_id(),
            namespace_id="a" * 32,
            queue_id="b" * 32,
            state="LEASED",
            revision="2",
            handler=handler,
            handler_version="1",
            payload_version="1",
            payload=Raw(payload),
            available_at=self.now_text(),
            deadline_at=self.instant(self.clock() + deadline_s),
            recovery_safety=recovery_safety,
            retry=Retry(3, 1_000, 60_000, attempt_timeout_ms),
            attempt_count=1,
            created_at=self.now_text(),
            updated_at=self.now_text(),
        )
        attempt = ModelAttempt(
            task,
            self.new_id(),
            next(self._epochs),
            f"{next(self._numbers):042d}A",
            self.session_id,
            min(self.clock() + self.lease_s, self.clock() + deadline_s),
            deadline=self.clock() + deadline_s,
        )
        self.attempts[attempt.attempt_id] = attempt
        return self.assignment(attempt)

    def assign_many(self, count: int) -> bytes:
        """New attempts in one frame of v2."""
        before = set(self.attempts)
        for _ in range(count):
            self.assign()
        bodies = tuple(self._body(a) for key, a in self.attempts.items() if key not in before)
        given = frames_v2.AssignmentsBody(bodies)
        return self.out(frames_v2.AssignFrame("2", self.new_id(), self.session_id, given))

    def assignment(self, attempt: ModelAttempt) -> bytes:
        return self.out(AssignFrame("1", self.new_id(), attempt.session_id, self._body(attempt)))

    def _body(self, attempt: ModelAttempt) -> AssignBody:
        return AssignBody(
            attempt.task,
            attempt.attempt_id,
            str(attempt.epoch),
            attempt.secret,
            self.instant(attempt.lease_until),
            self.now_text(),
        )

    def fatal(self, code: str) -> bytes:
        return self.out(
            ErrorFrame("1", self.new_id(), ErrorBody(code, code), session_id=self.session_id)
        )

    def cancellation(self, attempt_id: str) -> bytes:
        """What v2 says of an intent as soon as it is saved (R-127)."""
        attempt = self.attempts[attempt_id]
        reason = attempt.intent or "caller"
        body = frames_v2.CancelBody(attempt_id, attempt.task.id, str(attempt.epoch), reason)
        return self.out(frames_v2.CancelFrame("2", self.new_id(), attempt.session_id, body))

    def drain(self) -> bytes:
        """What v2 says of a node that leaves (R-129)."""
        self.node_draining = True
        body = frames_v2.DrainBody("shutdown")
        return self.out(frames_v2.DrainFrame("2", self.new_id(), self.session_id, body))

    def cancel(self, attempt_id: str) -> None:
        """Save a caller's intent (OP-03)."""
        attempt = self.attempts[attempt_id]
        self.settle_lapsed()
        if attempt.state is A.LEASED:
            attempt.state = A.CANCELLED
        elif attempt.state is A.RUNNING and not attempt.intent:
            attempt.intent = "caller"
            attempt.lease_until = max(attempt.lease_until, self.clock() + self.lease_s)

    def socket_closed(self, session_id: str) -> None:
        """Unstarted leases of a closed session go back at once."""
        for attempt in self.attempts.values():
            if attempt.session_id == session_id and attempt.state is A.LEASED:
                attempt.state = A.EXPIRED
        if session_id == self.session_id:
            self.session_id = ""

    # From the worker

    def receive(self, data: bytes) -> list[bytes]:
        """The answers to one message."""
        VALIDATORS[self.version, "clientFrame"].validate(orjson.loads(data))
        operations = operations_in(data, self.version)
        self.seen += operations
        self.messages += 1
        answers = [answer for frame in operations for answer in self._answers(frame)]
        first = operations[0]
        if self.version == "1" or isinstance(first, HelloFrame | CapacityFrame):
            return [self.out(answer) for answer in answers]
        if first.session_id != self.session_id:
            whole = msgspec.structs.replace(first, message_id=frame_id_of(data))
            return [self.out(self._error(whole, "session_superseded"))]
        return [self.out(joined(self.new_id(), frame_id_of(data), answers))]

    def _answers(self, frame: ClientFrame) -> Iterator[ServerFrame]:
        trouble = self.trouble(frame)
        if trouble is not None:
            yield self._error(frame, trouble)
        elif isinstance(frame, HelloFrame):
            yield self._hello(frame)
        elif frame.session_id != self.session_id:
            yield self._error(frame, "session_superseded")
        elif isinstance(frame, CapacityFrame):
            yield self._capacity(frame)
        else:
            yield self._operation(frame)

    def _hello(self, frame: HelloFrame) -> ServerFrame:
        self.session_id = self.new_id()
        self.session_epoch += 1
        self.sequence, self.declared = 0, None
        self.capacity = frame.body.capacity
        return WelcomeFrame(
            "1", self.new_id(), self.session_id, frame.message_id, self._welcome_body()
        )

    def _welcome_body(self) -> WelcomeBody:
        return WelcomeBody(
            self.session_id,
            str(self.session_epoch),
            self.now_text(),
            self.instant(self.clock() + 86_400),
            int(self.lease_s * 1000),
            self.draining or self.node_draining,
        )

    def _capacity(self, frame: CapacityFrame) -> ServerFrame:
        if frame.body != self.declared:
            if int(frame.body.sequence) <= self.sequence:
                return self._error(frame, "stale_sequence")
            self.declared = frame.body
            self.sequence = int(frame.body.sequence)
            self.capacity = frame.body.capacity
            self.draining = self.draining or frame.body.drain
        return self._ack(frame, self._welcome_body())

    def _operation(self, frame: ResumeFrame | StartFrame | RenewFrame | FinishFrame) -> ServerFrame:
        ref = frame.body.ref if isinstance(frame, FinishFrame) else frame.body
        attempt = self.attempts.get(ref.attempt_id)
        if attempt is None or ref.lease_secret != attempt.secret:
            return self._error(frame, "attempt_not_found")
        assert (ref.task_id, ref.epoch) == (attempt.task.id, str(attempt.epoch))
        self.settle_lapsed()
        if isinstance(frame, ResumeFrame):
            if attempt.state in _LIVE:
                attempt.session_id = self.session_id
            return self._ack(frame, self.lease_of(attempt))
        if isinstance(frame, FinishFrame):
            return self._finish(frame, attempt)
        if attempt.state in _LIVE and attempt.session_id != self.session_id:
            return self._error(frame, "resume_required")
        if isinstance(frame, StartFrame):
            return self._start(frame, attempt)
        return self._renew(frame, attempt)

    def _start(self, frame: StartFrame, attempt: ModelAttempt) -> ServerFrame:
        repeat = bool(attempt.starts)
        if not repeat and attempt.state is A.LEASED:
            attempt.state = A.RUNNING
            self._extend(attempt)
            attempt.starts.append(frame.message_id)
        return self.result(frame, attempt, "start", applied=bool(attempt.starts), repeat=repeat)

    def _renew(self, frame: RenewFrame, attempt: ModelAttempt) -> ServerFrame:
        known = attempt.receipts.get(frame.message_id)
        if known is not None:
            return self._ack(frame, CommandResult(known, self.lease_of(attempt), True))
        applied = attempt.state is A.RUNNING and not attempt.intent
        if applied:
            self._extend(attempt)
        answer = self.result(frame, attempt, "renew", applied=applied, repeat=False)
        assert isinstance(answer.body, CommandResult)
        attempt.receipts[frame.message_id] = answer.body.receipt
        return answer

    def _finish(self, frame: FinishFrame, attempt: ModelAttempt) -> ServerFrame:
        meaning = msgspec.json.encode(frame.body)
        if attempt.finish == meaning and attempt.finish_receipt is not None:
            return self._ack(
                frame, CommandResult(attempt.finish_receipt, self.lease_of(attempt), True)
            )
        if attempt.state in _LIVE and attempt.session_id != self.session_id:
            return self._error(frame, "resume_required")
        applied = attempt.state is A.RUNNING
        if applied and frame.body.outcome is Outcome.CANCELLED and not attempt.intent:
            return self._error(frame, "operation_conflict")
        if applied:
            attempt.state = _OUTCOME_STATES[frame.body.outcome]
            attempt.error_code = frame.body.error_code or ""
            attempt.finish = meaning
            if attempt.intent == "caller" and attempt.error_code == "cancelled":
                attempt.state = A.CANCELLED
            elif attempt.state is A.CANCELLED:
                attempt.state = A.FAILED
        else:
            attempt.evidence += 1
        answer = self.result(frame, attempt, "finish", applied=applied, repeat=False)
        assert isinstance(answer.body, CommandResult)
        if applied:
            attempt.finish_receipt = answer.body.receipt
        return answer

    def settle_lapsed(self) -> None:
        """Settle every lease that is over, as any operation would (OP-23)."""
        for attempt in self.attempts.values():
            running = attempt.state is A.RUNNING and attempt.intent is None
            if running and attempt.lease_until >= attempt.deadline <= self.clock():
                attempt.intent = "deadline"
                attempt.lease_until = attempt.deadline + self.lease_s
            if attempt.state in _LIVE and self.clock() >= attempt.lease_until:
                reconcile = attempt.task.recovery_safety is RecoverySafety.RECONCILE_ONLY
                started = attempt.state is A.RUNNING
                attempt.state = A.UNKNOWN if started and reconcile else A.EXPIRED

    def _extend(self, attempt: ModelAttempt) -> None:
        attempt.lease_until = min(self.clock() + self.lease_s, attempt.deadline)

    def lease_of(self, attempt: ModelAttempt) -> LeaseBody:
        active = attempt.state in _LIVE and not attempt.intent
        return LeaseBody(active, attempt.state, self.instant(attempt.lease_until), self.now_text())

    def result(
        self,
        frame: StartFrame | RenewFrame | FinishFrame,
        attempt: ModelAttempt,
        operation: str,
        *,
        applied: bool,
        repeat: bool,
    ) -> AckFrame:
        receipt = msgspec.convert(
            {
                "operation": operation,
                "task_state": TaskState.RUNNING,
                "attempt_state": attempt.state,
                "task_revision": "3",
                "lease_until": self.instant(attempt.lease_until),
                "disposition": "APPLIED" if applied else "EVIDENCE_ONLY",
            },
            Receipt,
        )
        return self._ack(frame, CommandResult(receipt, self.lease_of(attempt), repeat))

    def _ack(self, frame: ClientFrame, body: frames.AckBody) -> AckFrame:
        return AckFrame("1", self.new_id(), self.session_id, frame.message_id, body)

    def _error(self, frame: ClientFrame, code: str) -> ErrorFrame:
        body = ErrorBody(code, f"the model says {code}")
        if isinstance(frame, HelloFrame):
            return ErrorFrame("1", self.new_id(), body, reply_to=frame.message_id)
        return ErrorFrame(
            "1", self.new_id(), body, session_id=frame.session_id, reply_to=frame.message_id
        )
