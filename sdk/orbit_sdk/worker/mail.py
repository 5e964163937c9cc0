"""The messages of one session that wait for an answer, and how they are written. Pure.

A message keeps its id over every repeat (R-117), so a repeat is harmless; its `sent_at` is that of
the first time in this session, so whatever is counted from it errs towards too early.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from msgspec import UNSET, Raw

from orbit_sdk.protocol.frames import (
    PROTOCOL_VERSION,
    CapacityBody,
    CapacityFrame,
    ClientFrame,
    FinishBody,
    FinishFrame,
    HelloBody,
    HelloFrame,
    RenewFrame,
    ResumeFrame,
    StartFrame,
    encode_frame,
)
from orbit_sdk.worker.attempt import Held
from orbit_sdk.worker.effects import Effect, Send
from orbit_sdk.worker.limits import WELCOME_TIMEOUT_S
from orbit_sdk.worker.outcomes import Report


class Operation(StrEnum):
    """What a message asks for."""

    HELLO = "hello"
    CAPACITY = "capacity"
    RESUME = "resume"
    START = "start"
    RENEW = "renew"
    FINISH = "finish"


@dataclass(slots=True)
class Pending:
    """A message without an answer so far; `attempt_id` is None for the session's own."""

    operation: Operation
    attempt_id: str | None
    frame: bytes
    sent_at: float
    repeat_at: float


class Mail:
    """Writes messages of the current session into `out` and remembers them until answered."""

    def __init__(self, out: list[Effect]) -> None:
        self._out = out
        self._pending: dict[str, Pending] = {}
        self._session_id = ""
        self._repeat_s = inf
        self._sequence = 0
        self._due = inf

    def begin_session(self, session_id: str, repeat_s: float) -> None:
        """Start a session: nothing of an earlier one waits any more."""
        self._pending.clear()
        self._session_id = session_id
        self._repeat_s = repeat_s
        self._sequence = 0
        self._due = inf

    def end_session(self) -> None:
        """The session is gone; answers to its messages will not come."""
        self._pending.clear()
        self._due = inf

    @property
    def session_id(self) -> str:
        return self._session_id

    def hello(self, message_id: str, body: HelloBody, now: float) -> None:
        """Ask for a session. It is not repeated: one hello a connection."""
        frame = HelloFrame(PROTOCOL_VERSION, message_id, body)
        self._post(Operation.HELLO, None, frame, now, WELCOME_TIMEOUT_S)

    def capacity(self, message_id: str, capacity: int, *, drain: bool, now: float) -> None:
        """Declare a level; its sequence is higher than any before in this session (OP-29)."""
        self._sequence += 1
        body = CapacityBody(str(self._sequence), capacity, drain)
        frame = CapacityFrame(PROTOCOL_VERSION, message_id, self._session_id, body)
        self._post(Operation.CAPACITY, None, frame, now, self._repeat_s)

    def post(self, operation: Operation, message_id: str, held: Held, now: float) -> None:
        """Send an operation of an attempt."""
        frame = _attempt_frame(operation, message_id, self._session_id, held)
        self._post(operation, held.ref.attempt_id, frame, now, self._repeat_s)

    def repeat(self, pending: Pending, now: float) -> None:
        """Send the very same message again; it counts as sent when it was sent first."""
        pending.repeat_at = now + self._repeat_s
        self._due = min(self._due, pending.repeat_at)
        self._out.append(Send(pending.frame))

    def answered(self, reply_to: str) -> Pending | None:
        """The message that this answers, once; None for a late, repeated or foreign answer."""
        return self._pending.pop(reply_to, None)

    def forget(self, message_id: str) -> None:
        """No answer to this message matters any more."""
        self._pending.pop(message_id, None)

    def overdue(self, now: float) -> list[tuple[str, Pending]]:
        """Messages whose answer has been missing for too long; each is to be repeated or forgotten
        by the caller, for it is named here once."""
        if now < self._due:
            return []
        found = [(mid, p) for mid, p in self._pending.items() if p.repeat_at <= now]
        later = (p.repeat_at for p in self._pending.values() if p.repeat_at > now)
        self._due = min(later, default=inf)
        return found

    def next_due(self) -> float:
        """No message is overdue before this instant; there may be none at it either."""
        return self._due

    def _post(
        self,
        operation: Operation,
        attempt_id: str | None,
        frame: ClientFrame,
        now: float,
        patience_s: float,
    ) -> None:
        data = encode_frame(frame)
        self._pending[frame.message_id] = Pending(
            operation, attempt_id, data, now, now + patience_s
        )
        self._due = min(self._due, now + patience_s)
        self._out.append(Send(data))


def _attempt_frame(
    operation: Operation, message_id: str, session_id: str, held: Held
) -> ClientFrame:
    match operation:
        case Operation.START:
            return StartFrame(PROTOCOL_VERSION, message_id, session_id, held.ref)
        case Operation.RENEW:
            return RenewFrame(PROTOCOL_VERSION, message_id, session_id, held.ref)
        case Operation.RESUME:
            return ResumeFrame(PROTOCOL_VERSION, message_id, session_id, held.ref)
        case Operation.FINISH:
            assert held.report is not None, "a finish is sent only for a known outcome"
            return FinishFrame(
                PROTOCOL_VERSION, message_id, session_id, _finish_body(held, held.report)
            )
        case Operation.HELLO | Operation.CAPACITY:
            raise AssertionError(f"{operation} is no operation of an attempt")


def _finish_body(held: Held, report: Report) -> FinishBody:
    code = report.error_code if report.error_code is not None else UNSET
    return FinishBody(held.ref, report.outcome, Raw(report.result), code)
