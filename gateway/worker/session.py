"""The session core: one worker connection as a pure state machine (no IO, no clock, no random).

Frames, store outcomes and assignments go in; actions come out, for the shell in `socket.py` to
carry out in order. Times are monotonic seconds given by the caller, ids come from a function.

    AWAITING_HELLO ── hello ──► OPENING ── opened ──► READY ── end ──► ENDED
          └────────────── any fault, or a refusal of the store ─────────►┘

Promises: never raises, whatever the peer sends (INV-32); every answer is a valid server frame;
the proof of a lease secret comes before any database work; no assignment is written after a
drain was asked for (INV-15) or twice for one attempt; `free` is the declared capacity less the
attempts that this connection holds (INV-12).
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias, assert_never

from gateway import limits
from gateway.lanes import Refused
from gateway.worker import answers
from gateway.worker.actions import Action, Ask, Close, Declare, Operation, Register, Return, Send
from gateway.worker.lease_secret import KeyRing
from gateway.worker.slots import Slots
from orbit_sdk.protocol import bodies, frames
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ERRORS, CloseCode, ErrorCode
from orbit_sdk.protocol.states import ATTEMPT_ACTIVE
from orbit_sdk.protocol.times import time_text
from store.commands import (
    AttemptCommand,
    CapacityOutcome,
    CommandOutcome,
    FinishCommand,
    ReturnLease,
    SessionOutcome,
    SetCapacity,
)
from store.dispatch import Assignment


class Phase(Enum):
    AWAITING_HELLO = "awaiting hello"
    OPENING = "opening"
    READY = "ready"
    ENDED = "ended"


Actions: TypeAlias = Sequence[Action]
_NO_ACTIONS: Final[Actions] = ()


class Session:
    """One connection, from the accepted upgrade to its end."""

    def __init__(
        self,
        *,
        session_id: str,
        namespace_id: str,
        ring: KeyRing,
        lease_ms: int,
        next_id: Callable[[], str],
    ) -> None:
        self.session_id: Final = session_id
        self.namespace_id: Final = namespace_id
        self.phase = Phase.AWAITING_HELLO
        self.draining = False
        self.capacity = 0
        self.gate_id = 0
        self.open_commands = 0
        """Commands given to the lanes and not yet answered."""
        self._ring = ring
        self._lease_ms = lease_ms
        self._next_id = next_id
        self._hello_id: str | None = None
        self._node_draining = False
        self._bad_frames = 0
        self._slots = Slots((lease_ms + limits.LEASE_SLACK_MS) / 1000)
        self._capacity_asked: deque[tuple[str, bool]] = deque()
        self._drains_asked = 0
        self._early: list[Assignment] = []

    # --- what the socket brings ----------------------------------------------------------------

    def on_text(self, text: str, now: float) -> Actions:
        """One text message from the worker."""
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        try:
            frame = frames.decode_client_frame(text)
        except frames.FrameError as fault:
            return self._bad_frame(fault.message_id)
        if self.phase is not Phase.READY:
            return self._before_ready(frame)
        if isinstance(frame, frames.HelloFrame):
            return self._bad_frame(frame.message_id)
        if frame.session_id != self.session_id:
            return [self._error(ErrorCode.SESSION_SUPERSEDED, frame.message_id)]
        if self.open_commands >= limits.SESSION_COMMANDS_MAX:
            return [self._error(ErrorCode.RATE_LIMITED, frame.message_id)]
        if isinstance(frame, frames.StartFrame):
            return self._ask(Operation.START, frame.message_id, frame.body, now)
        if isinstance(frame, frames.FinishFrame):
            return self._finish(frame)
        if isinstance(frame, frames.RenewFrame):
            return self._ask(Operation.RENEW, frame.message_id, frame.body, now)
        if isinstance(frame, frames.ResumeFrame):
            return self._ask(Operation.RESUME, frame.message_id, frame.body, now)
        if isinstance(frame, frames.CapacityFrame):
            return self._declare(frame)
        assert_never(frame)

    def on_binary(self) -> Actions:
        """A binary message: not part of the protocol (OP-07)."""
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        self.phase = Phase.ENDED
        return [Close(CloseCode.UNSUPPORTED_DATA, "text frames only")]

    def _before_ready(self, frame: frames.ClientFrame) -> Actions:
        if self.phase is Phase.AWAITING_HELLO and isinstance(frame, frames.HelloFrame):
            self.phase = Phase.OPENING
            self._hello_id = frame.message_id
            self.capacity = frame.body.capacity
            return [Register(frame.body)]
        return self._end_unregistered(ErrorCode.HELLO_REQUIRED, frame.message_id)

    def _bad_frame(self, message_id: str | None) -> Actions:
        """OP-08: answered and counted inside a session; the end of it otherwise."""
        if self.phase is not Phase.READY:
            return self._end_unregistered(ErrorCode.BAD_FRAME, message_id)
        self._bad_frames += 1
        if message_id is None or self._bad_frames > wire.BAD_FRAMES_MAX:
            return self.end(ErrorCode.BAD_FRAME)
        return [self._error(ErrorCode.BAD_FRAME, message_id)]

    # --- attempt commands ----------------------------------------------------------------------

    def _ask(
        self, operation: Operation, message_id: str, ref: frames.AttemptRef, now: float
    ) -> Actions:
        if not self._proves(ref):
            return [self._error(ErrorCode.ATTEMPT_NOT_FOUND, message_id)]
        self.open_commands += 1
        if operation is Operation.RESUME:
            # Counted as held from here on, so that no twin takes it for one never handed over.
            self._slots.take(ref.attempt_id, now)
        command = AttemptCommand(
            self.namespace_id,
            self.session_id,
            self.gate_id,
            ref.task_id,
            ref.attempt_id,
            int(ref.epoch),
            message_id,
        )
        return [Ask(operation, command)]

    def _finish(self, frame: frames.FinishFrame) -> Actions:
        body = frame.body
        ref = body.ref
        if not self._proves(ref):
            return [self._error(ErrorCode.ATTEMPT_NOT_FOUND, frame.message_id)]
        self.open_commands += 1
        result = bytes(body.result)
        error_code = body.error_code or ""
        command = FinishCommand(
            self.namespace_id,
            self.session_id,
            ref.task_id,
            ref.attempt_id,
            int(ref.epoch),
            frame.message_id,
            bodies.finish_hash(body.outcome, error_code, result),
            body.outcome,
            error_code or None,
            result,
        )
        return [Ask(Operation.FINISH, command)]

    def _proves(self, ref: frames.AttemptRef) -> bool:
        """Whether the caller holds the attempt's secret; remembered for attempts given here."""
        if self._slots.proves(ref.attempt_id, ref.epoch, ref.lease_secret):
            return True
        return self._ring.verify(ref.attempt_id, ref.epoch, ref.lease_secret)

    def attempt_answered(
        self,
        operation: Operation,
        command: AttemptCommand | FinishCommand,
        outcome: CommandOutcome | Refused,
        now: float,
    ) -> Actions:
        """What the store said; the lanes never overlap two commands of one attempt."""
        self.open_commands -= 1
        if isinstance(outcome, Refused):
            return self._answer_error(outcome.code, command.message_id)
        if outcome.code != "ok":
            if outcome.code == ErrorCode.ATTEMPT_NOT_FOUND or operation is Operation.RESUME:
                self._slots.free(command.attempt_id)
            return self._refusal(outcome.code, command.message_id)
        if outcome.settled or outcome.lease_state not in ATTEMPT_ACTIVE:
            self._slots.free(command.attempt_id)
        else:
            self._slots.take(command.attempt_id, now)
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        if operation is Operation.RESUME:
            frame = answers.lease_ack(self._next_id(), self.session_id, command.message_id, outcome)
        else:
            frame = answers.result_ack(
                self._next_id(), self.session_id, command.message_id, _WORDS[operation], outcome
            )
        return [Send(frame)]

    def _refusal(self, code: str, message_id: str) -> Actions:
        known = _ERROR_CODES.get(code, ErrorCode.INTERNAL)
        if known in _SESSION_OVER:
            return [*self._answer_error(known, message_id), *self.end(known)]
        return self._answer_error(known, message_id)

    # --- capacity ------------------------------------------------------------------------------

    def _declare(self, frame: frames.CapacityFrame) -> Actions:
        body = frame.body
        self.open_commands += 1
        self._capacity_asked.append((frame.message_id, body.drain))
        # From here on nothing is assigned, however late the store answers (INV-15).
        self._drains_asked += body.drain
        return [
            Declare(SetCapacity(self.session_id, int(body.sequence), body.capacity, body.drain))
        ]

    def capacity_answered(self, outcome: CapacityOutcome | Refused) -> Actions:
        """The store's word on the oldest capacity update still unanswered."""
        self.open_commands -= 1
        message_id, drain = self._capacity_asked.popleft()
        self._drains_asked -= drain
        if isinstance(outcome, Refused):
            return self._answer_error(outcome.code, message_id)
        if outcome.code != "ok":
            return self._refusal(outcome.code, message_id)
        assert outcome.capacity is not None
        self.capacity = outcome.capacity
        self.draining = self.draining or bool(outcome.draining)
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        body = self._welcome_body(outcome)
        return [Send(answers.capacity_ack(self._next_id(), message_id, body))]

    @property
    def free(self) -> int:
        """How many more attempts this connection will take now."""
        if self.phase is not Phase.READY or self.closed_to_work:
            return 0
        return max(0, self.capacity - len(self._slots))

    @property
    def held(self) -> int:
        """Attempts whose slot is in use."""
        return len(self._slots)

    def lapse(self, now: float) -> bool:
        """Free the slots whose lease must be over. True when there were any."""
        return self._slots.lapse(now)

    @property
    def closed_to_work(self) -> bool:
        """Whether nothing may be assigned any more."""
        return self.draining or self._drains_asked > 0 or self._node_draining

    # --- assignments ---------------------------------------------------------------------------

    def holds(self, attempt_id: str) -> bool:
        """Whether this attempt was handed to the socket, or is on its way there."""
        return attempt_id in self._slots

    def reserve(self, attempt_id: str, now: float) -> None:
        """Count a slot as used for an assignment that is still to be loaded."""
        self._slots.take(attempt_id, now)

    def release(self, attempt_id: str) -> None:
        """Free the slot of an assignment that will not come."""
        self._slots.free(attempt_id)

    def assigned(self, assignment: Assignment, now: float) -> Actions:
        """A claimed task for this worker, never handed to its socket before."""
        if self.phase not in _TAKING:
            self._slots.free(assignment.attempt_id)
            return _NO_ACTIONS  # The end of the session gives the lease back.
        if self.closed_to_work:
            return self.give_back(assignment.attempt_id)
        if self.phase is Phase.OPENING:
            # Claimed after the store opened the session, before this node heard of it.
            self._slots.take(assignment.attempt_id, now)
            self._early.append(assignment)
            return _NO_ACTIONS
        epoch = str(assignment.epoch)
        secret = self._ring.derive(assignment.attempt_id, epoch)
        self._slots.take(assignment.attempt_id, now, (epoch, secret))
        return [Send(answers.assign(self._next_id(), assignment, epoch, secret))]

    def give_back(self, attempt_id: str) -> Actions:
        """Return an assignment that came after a drain: no right was handed out (OP-25)."""
        self._slots.free(attempt_id)
        return [Return(ReturnLease(attempt_id, self.session_id))]

    # --- beginning and end ---------------------------------------------------------------------

    def opened(self, outcome: SessionOutcome, now: float) -> Actions:
        """The store judged the hello: welcome and what was assigned meanwhile, or a refusal."""
        if outcome.code != "ok":
            return self.refused(_ERROR_CODES.get(outcome.code, ErrorCode.INTERNAL))
        if self.phase is not Phase.OPENING or self._hello_id is None:
            return _NO_ACTIONS
        self.phase = Phase.READY
        self.draining = bool(outcome.draining)
        body = self._welcome_body(outcome)
        actions: list[Action] = [
            Send(answers.welcome(self._next_id(), self._hello_id, body)),
        ]
        for attempt_id in outcome.held:
            # Not resumed so far, and counted all the same until it is or lapses (OP-14).
            self._slots.take(attempt_id, now)
        early, self._early = self._early, []
        for assignment in early:
            actions += self.assigned(assignment, now)
        return actions

    def refused(self, code: ErrorCode) -> Actions:
        """The registration failed: say why and close (R-016)."""
        if self.phase is not Phase.OPENING:
            return _NO_ACTIONS
        return self._end_unregistered(code, self._hello_id)

    def drain_node(self) -> None:
        """This node is leaving: take nothing more, and say so in what is answered (OP-04)."""
        self._node_draining = True

    def end(self, code: ErrorCode) -> Actions:
        """End for a reason of the platform's: a fatal error, then the close (OP-07)."""
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        session_id = self.session_id if self.phase is Phase.READY else None
        self.phase = Phase.ENDED
        frame = answers.error(self._next_id(), code, session_id=session_id, reply_to=None)
        return [Send(frame), Close(_close_code(code), code.value)]

    def ended(self) -> None:
        """The socket is gone."""
        self.phase = Phase.ENDED

    def _end_unregistered(self, code: ErrorCode, reply_to: str | None) -> Actions:
        self.phase = Phase.ENDED
        frame = answers.error(self._next_id(), code, session_id=None, reply_to=reply_to)
        return [Send(frame), Close(_close_code(code), code.value)]

    # --- frames --------------------------------------------------------------------------------

    def _error(self, code: ErrorCode, reply_to: str) -> Send:
        return Send(
            answers.error(self._next_id(), code, session_id=self.session_id, reply_to=reply_to)
        )

    def _answer_error(self, code: ErrorCode, reply_to: str) -> Actions:
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        return [self._error(code, reply_to)]

    def _welcome_body(self, outcome: SessionOutcome | CapacityOutcome) -> frames.WelcomeBody:
        assert outcome.expires_at is not None
        return frames.WelcomeBody(
            session_id=self.session_id,
            epoch=str(outcome.epoch),
            server_time=time_text(outcome.server_time),
            expires_at=time_text(outcome.expires_at),
            lease_duration_ms=self._lease_ms,
            draining=self.draining or self._node_draining,
        )


_WORDS: Final[dict[Operation, Literal["start", "renew", "finish"]]] = {
    Operation.START: "start",
    Operation.RENEW: "renew",
    Operation.FINISH: "finish",
}
_TAKING: Final = (Phase.OPENING, Phase.READY)
_SESSION_OVER: Final = (ErrorCode.SESSION_SUPERSEDED, ErrorCode.SESSION_EXPIRED)
_ERROR_CODES: Final = {code.value: code for code in ErrorCode}


def _close_code(code: ErrorCode) -> int:
    return ERRORS[code].close_code or CloseCode.POLICY_VIOLATION
