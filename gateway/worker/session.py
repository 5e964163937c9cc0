"""The session core: one worker connection as a pure state machine (no IO, no clock, no random).

Frames, store outcomes and assignments go in; actions come out, for the shell in `socket.py` to
carry out in order. Times are monotonic seconds given by the caller, ids come from a function.

    AWAITING_HELLO ── hello ──► OPENING ── opened ──► READY ── end ──► ENDED
          └────────────── any fault, or a refusal of the store ─────────►┘

Promises: never raises, whatever the peer sends (INV-32); every answer is a valid server frame;
the proof of a lease secret comes before any database work; no assignment is written after a
drain was asked for (INV-15) or twice for one attempt; `free` is the capacity that counts less the
attempts that this connection holds (INV-12).
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias, assert_never

from gateway import limits
from gateway.lanes import Refused
from gateway.worker.actions import Action, Close, Declare, Register, Return, Send
from gateway.worker.answers import assign_body
from gateway.worker.attempts import ERROR_CODES, SESSION_OVER, Attempts, Command, Gathering
from gateway.worker.dialect import Batch, Declaration, Dialect, Hello, Request
from gateway.worker.lease_secret import KeyRing
from orbit_sdk.protocol import frames
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ERRORS, CloseCode, ErrorCode
from orbit_sdk.protocol.times import time_text
from store.commands import (
    CapacityOutcome,
    CommandOutcome,
    ReturnLease,
    SessionOutcome,
    SetCapacity,
)
from store.dispatch import Assignment, Intent


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
        dialect: Dialect,
        *,
        session_id: str,
        namespace_id: str,
        ring: KeyRing,
        lease_ms: int,
        next_id: Callable[[], str],
        unproven: Callable[[str], None] = lambda _attempt_id: None,
    ) -> None:
        """`unproven` hears of attempts for which the peer gave no valid proof (OP-22)."""
        self.session_id: Final = session_id
        self.namespace_id: Final = namespace_id
        self.phase = Phase.AWAITING_HELLO
        self.draining = False
        self.capacity = 0
        self.attempts: Final = Attempts(
            session_id, namespace_id, ring, (lease_ms + limits.LEASE_SLACK_MS) / 1000, unproven
        )
        self._dialect = dialect
        self._slots = self.attempts.slots
        self._lease_ms = lease_ms
        self._next_id = next_id
        self._hello_id: str | None = None
        self._node_draining = False
        self._bad_frames = 0
        self._capacity_asked = 0
        self._drains_asked = 0
        self._early: list[Assignment] = []

    @property
    def open_commands(self) -> int:
        """Commands given to the lanes and not yet answered."""
        return self.attempts.open_commands + self._capacity_asked

    # --- what the socket brings ----------------------------------------------------------------

    def on_text(self, text: str, now: float) -> Actions:
        """One text message from the worker."""
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        try:
            request = self._dialect.read(text)
        except frames.FrameError as fault:
            return self._bad_frame(fault.message_id)
        if self.phase is not Phase.READY:
            return self._before_ready(request)
        if isinstance(request, Hello):
            return self._bad_frame(request.message_id)
        if request.session_id != self.session_id:
            return [self._error(ErrorCode.SESSION_SUPERSEDED, request.message_id)]
        wanted = len(request.items) if isinstance(request, Batch) else 1
        if self.open_commands + wanted > limits.SESSION_COMMANDS_MAX:
            return [self._error(ErrorCode.RATE_LIMITED, request.message_id)]
        if isinstance(request, Batch):
            ask = self.attempts.ask(request, now)
            return [ask] if ask.commands else self._answer(ask.gathering)
        if isinstance(request, Declaration):
            return self._declare(request)
        assert_never(request)

    def on_binary(self) -> Actions:
        """A binary message: not part of the protocol (OP-07)."""
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        self.phase = Phase.ENDED
        return [Close(CloseCode.UNSUPPORTED_DATA, "text frames only")]

    def _before_ready(self, request: Request) -> Actions:
        if self.phase is Phase.AWAITING_HELLO and isinstance(request, Hello):
            self.phase = Phase.OPENING
            self._hello_id = request.message_id
            return [Register(request.body)]
        return self._end_unregistered(ErrorCode.HELLO_REQUIRED, request.message_id)

    def _bad_frame(self, message_id: str | None) -> Actions:
        """OP-08: answered and counted inside a session; the end of it otherwise."""
        if self.phase is not Phase.READY:
            return self._end_unregistered(ErrorCode.BAD_FRAME, message_id)
        self._bad_frames += 1
        if message_id is None or self._bad_frames > wire.BAD_FRAMES_MAX:
            return self.end(ErrorCode.BAD_FRAME)
        return [self._error(ErrorCode.BAD_FRAME, message_id)]

    # --- attempt commands ----------------------------------------------------------------------

    def attempt_answered(
        self,
        gathering: Gathering,
        place: int,
        command: Command,
        outcome: CommandOutcome | Refused,
        now: float,
    ) -> Actions:
        """What the store said of one command; the last one of its frame brings the answer."""
        self.attempts.answered(gathering, place, command, outcome, now)
        return _NO_ACTIONS if gathering.missing else self._answer(gathering)

    def _answer(self, gathering: Gathering) -> Actions:
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        results = [result for result in gathering.results if result is not None]
        answer = Send(
            self._dialect.answer(
                self._next_id(),
                self.session_id,
                gathering.message_id,
                gathering.operation,
                results,
            )
        )
        return [answer] if gathering.over is None else [answer, *self.end(gathering.over)]

    # --- capacity ------------------------------------------------------------------------------

    def _declare(self, request: Declaration) -> Actions:
        body = request.body
        self._capacity_asked += 1
        # From here on nothing is assigned, however late the store answers (INV-15).
        self._drains_asked += body.drain
        command = SetCapacity(self.session_id, int(body.sequence), body.capacity, body.drain)
        return [Declare(request.message_id, command)]

    def capacity_answered(self, asked: Declare, outcome: CapacityOutcome | Refused) -> Actions:
        """What became of a capacity update."""
        message_id = asked.message_id
        self._capacity_asked -= 1
        self._drains_asked -= asked.command.drain
        if isinstance(outcome, Refused):
            return self._answer_error(outcome.code, message_id)
        if outcome.code != "ok":
            code = ERROR_CODES.get(outcome.code, ErrorCode.INTERNAL)
            over = self.end(code) if code in SESSION_OVER else ()
            return [*self._answer_error(code, message_id), *over]
        assert outcome.capacity is not None
        self.capacity = outcome.capacity
        self.draining = self.draining or bool(outcome.draining)
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        body = self._welcome_body(outcome)
        return [Send(self._dialect.level(self._next_id(), message_id, body))]

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
        """Free the slot of an assignment that will not come, or that ended elsewhere."""
        self._slots.free(attempt_id)

    def assigned(self, assignments: Sequence[Assignment], now: float) -> Actions:
        """Claimed tasks for this worker, never handed to its socket before."""
        if self.phase not in _TAKING:
            for assignment in assignments:
                self._slots.free(assignment.attempt_id)
            return _NO_ACTIONS  # The end of the session gives the leases back.
        if self.closed_to_work:
            return [action for each in assignments for action in self.give_back(each.attempt_id)]
        if self.phase is Phase.OPENING:
            # Claimed after the store opened the session, before this node heard of it.
            for assignment in assignments:
                self._slots.take(assignment.attempt_id, now)
            self._early += assignments
            return _NO_ACTIONS
        given = []
        for item in assignments:
            grant = self.attempts.hand_over(item.attempt_id, item.task_id, item.epoch, now)
            given.append(assign_body(item, grant.epoch, grant.secret))
        return [
            Send(frame) for frame in self._dialect.assign(self._next_id, self.session_id, given)
        ]

    def cancelled(self, attempt_id: str, reason: Intent) -> Actions:
        """An attempt that is not wanted any more (R-127): tell the worker that holds it."""
        what = self.attempts.cancellation(attempt_id, reason)
        if what is None or self.phase is not Phase.READY:
            return _NO_ACTIONS
        return _sends(self._dialect.cancel(self._next_id(), self.session_id, what))

    def give_back(self, attempt_id: str) -> Actions:
        """Return an assignment that came after a drain: no right was handed out (OP-25)."""
        self._slots.free(attempt_id)
        return [Return(ReturnLease(attempt_id, self.session_id))]

    # --- beginning and end ---------------------------------------------------------------------

    def opened(self, outcome: SessionOutcome, now: float) -> Actions:
        """The store judged the hello: welcome and what was assigned meanwhile, or a refusal."""
        if outcome.code != "ok":
            return self.refused(ERROR_CODES.get(outcome.code, ErrorCode.INTERNAL))
        if self.phase is not Phase.OPENING or self._hello_id is None:
            return _NO_ACTIONS
        assert outcome.capacity is not None
        self.phase = Phase.READY
        self.capacity = outcome.capacity
        self.draining = bool(outcome.draining)
        body = self._welcome_body(outcome)
        actions: list[Action] = [
            Send(self._dialect.welcome(self._next_id(), self._hello_id, body)),
        ]
        for attempt_id in outcome.held:
            # Not resumed so far, and counted all the same until it is or lapses (OP-14).
            self._slots.take(attempt_id, now)
        early, self._early = self._early, []
        if early:
            actions += self.assigned(early, now)
        return actions

    def refused(self, code: ErrorCode) -> Actions:
        """The registration failed: say why and close (R-016)."""
        if self.phase is not Phase.OPENING:
            return _NO_ACTIONS
        return self._end_unregistered(code, self._hello_id)

    def drain_node(self) -> Actions:
        """This node is leaving: take nothing more, and say so, at the latest in what is answered
        (OP-04, R-129)."""
        self._node_draining = True
        if self.phase is not Phase.READY:
            return _NO_ACTIONS
        return _sends(self._dialect.drain(self._next_id(), self.session_id))

    def end(self, code: ErrorCode) -> Actions:
        """End for a reason of the platform's: a fatal error, then the close (OP-07)."""
        if self.phase is Phase.ENDED:
            return _NO_ACTIONS
        session_id = self.session_id if self.phase is Phase.READY else None
        self.phase = Phase.ENDED
        frame = self._dialect.error(self._next_id(), code, session_id=session_id, reply_to=None)
        return [Send(frame), Close(_close_code(code), code.value)]

    def ended(self) -> None:
        """The socket is gone."""
        self.phase = Phase.ENDED

    def _end_unregistered(self, code: ErrorCode, reply_to: str | None) -> Actions:
        self.phase = Phase.ENDED
        frame = self._dialect.error(self._next_id(), code, session_id=None, reply_to=reply_to)
        return [Send(frame), Close(_close_code(code), code.value)]

    # --- frames --------------------------------------------------------------------------------

    def _error(self, code: ErrorCode, reply_to: str) -> Send:
        frame = self._dialect.error(
            self._next_id(), code, session_id=self.session_id, reply_to=reply_to
        )
        return Send(frame)

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


_TAKING: Final = (Phase.OPENING, Phase.READY)


def _sends(frame: bytes | None) -> Actions:
    return _NO_ACTIONS if frame is None else [Send(frame)]


def _close_code(code: ErrorCode) -> int:
    return ERRORS[code].close_code or CloseCode.POLICY_VIOLATION
