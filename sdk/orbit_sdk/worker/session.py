"""The worker's side of its socket as a pure machine: events and instants in, effects out.

    CONNECTING --opened--> HELLO_SENT --welcome--> READY --fatal error, bad peer--> LEAVING
         ^                     |                     |                                 |
         +------ closed -------+---------------------+---------------------------------+

No IO, no clock, no chance: `now` is monotonic seconds, ids and jitter come from the constructor.
Every public call returns the effects it causes, in order; operations on attempts gather until
`flush`, so that those of one turn of the shell's loop travel together. The core outlives its
connections: it keeps the held attempts and resumes them in the next session. Draining is one-way
(R-024, INV-15).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from orbit_sdk.protocol.errors import ERRORS, ErrorCode
from orbit_sdk.protocol.frames import (
    AssignBody,
    Capability,
    CommandResult,
    ErrorBody,
    HelloBody,
    LeaseBody,
    WelcomeBody,
)
from orbit_sdk.protocol.held import HeldResult
from orbit_sdk.worker.desk import Desk
from orbit_sdk.worker.dialect import (
    Answered,
    Assigned,
    Dialect,
    Draining,
    Event,
    Level,
    Operation,
    Refused,
    Unwanted,
    Welcome,
)
from orbit_sdk.worker.effects import Effect, Leave, Noted, Welcomed
from orbit_sdk.worker.lease import repeat_after_s
from orbit_sdk.worker.limits import DECLARE_AGAIN_S, LEAVE_DRAINING_S
from orbit_sdk.worker.mail import Mail, Pending
from orbit_sdk.worker.outcomes import RESULT_FAULTS, Report
from orbit_sdk.worker.relay import Parcel, Relay

_FATAL = frozenset(row.code.value for row in ERRORS.values() if row.fatal)
_RETRYABLE = frozenset(row.code.value for row in ERRORS.values() if row.retryable)
# Not fatal by the table, but a session that hears one is of no further use.
_SESSION_FAULTS = (_FATAL - {ErrorCode.INTERNAL.value}) | {ErrorCode.HELLO_REQUIRED.value}


class Phase(StrEnum):
    """Where the connection stands."""

    CONNECTING = "connecting"
    HELLO_SENT = "hello sent"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is, the same over every reconnect (R-113); the secret is never shown."""

    instance_id: str
    instance_secret: str
    queue_id: str
    capabilities: tuple[Capability, ...]

    def __repr__(self) -> str:
        return f"Identity(instance_id={self.instance_id!r}, instance_secret=…)"


class SessionCore:
    """Decides everything about one worker's sessions. `slots` handlers run at once at most."""

    def __init__(
        self,
        identity: Identity,
        slots: int,
        new_id: Callable[[], str],
        share: Callable[[], float],
    ) -> None:
        self._identity = identity
        self._slots = slots
        self._new_id = new_id
        self._out: list[Effect] = []
        self._mail = Mail(self._out, new_id)
        self._desk = Desk(self._out, self._mail, new_id, share)
        self._relay = Relay(
            identity.instance_id, identity.instance_secret, self._desk, new_id, share
        )
        self._routes = frozenset(identity.capabilities)
        self._phase = Phase.CONNECTING
        self._draining = False
        self._declared: tuple[int, bool] | None = None
        self._capacity_id = ""
        self._leave_at = inf
        self._declare_again_at = inf

    # What the shell may ask

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def held(self) -> int:
        """Attempts without a final answer."""
        return len(self._desk.attempts)

    @property
    def unsent(self) -> bool:
        """Whether operations wait for a `flush`; it is due before the shell waits for anything."""
        return self._mail.unsent

    def next_due(self) -> float:
        """Call `tick` at this instant; at no earlier one is there anything to do."""
        return min(
            self._desk.next_due(), self._mail.next_due(), self._leave_at, self._declare_again_at
        )

    # What happens to the connection

    def opened(self, dialect: Dialect, now: float) -> list[Effect]:
        """A new socket is up, and this is what it speaks: ask for a session."""
        assert self._phase is Phase.CONNECTING, "one connection at a time"
        self._phase = Phase.HELLO_SENT
        # A hello declares at least 1; the update that follows the welcome puts it right.
        capacity = max(1, self._level())
        self._declared = (capacity, False)
        identity = self._identity
        body = HelloBody(
            identity.instance_id,
            identity.instance_secret,
            identity.queue_id,
            identity.capabilities,
            capacity,
        )
        self._mail.hello(dialect, self._new_id(), body, now)
        return self._taken()

    def closed(self) -> list[Effect]:
        """The socket is gone, whoever closed it. What was held stays held."""
        self._phase = Phase.CONNECTING
        self._leave_at = self._declare_again_at = inf
        self._mail.end_session()
        self._desk.disconnected()
        return self._taken()

    def received(self, event: Event, now: float) -> list[Effect]:
        """What the server says, checked against the contract."""
        if self._phase in (Phase.HELLO_SENT, Phase.READY):
            match event:
                case Answered():
                    self._answered(event, now)
                case Assigned():
                    self._assigned(event, now)
                case Refused(reply_to, error):
                    self._refused(reply_to, error, now)
                case Unwanted(session_id, attempt_id, reason):
                    if session_id == self._mail.session_id:
                        self._desk.cancel(attempt_id, reason, now)
                case Welcome(reply_to, body):
                    self._welcomed(reply_to, body, now)
                case Level(reply_to, body):
                    self._levelled(reply_to, body, now)
                case Draining(session_id):
                    if session_id == self._mail.session_id:
                        self._heard_draining(now)
        return self._taken(now)

    def flush(self) -> list[Effect]:
        """Send the operations that have gathered."""
        self._mail.flush()
        return self._taken()

    # What happens to the handlers

    def finished(self, attempt_id: str, report: Report, now: float) -> list[Effect]:
        """A handler has ended with something to say. Later reports of the same one are ignored."""
        self._desk.finished(attempt_id, report, now)
        return self._taken(now)

    def abandoned(self, attempt_id: str, now: float) -> list[Effect]:
        """A handler has ended and cannot say how far it came; its lease will lapse."""
        self._desk.abandoned(attempt_id)
        return self._taken(now)

    # What the owner wants

    def drain(self, now: float) -> list[Effect]:
        """Take no new task from here on, in this and every later session."""
        self._draining = True
        return self._taken(now)

    def stop(self, now: float) -> list[Effect]:
        """Drain, and stop what runs."""
        self._draining = True
        self._desk.stop()
        return self._taken(now)

    def tick(self, now: float) -> list[Effect]:
        """Do what time alone asks for."""
        self._desk.tick(now)
        for message_id, pending in self._mail.overdue(now):
            self._overdue(message_id, pending, now)
        if self._declare_again_at <= now:
            self._declare_again_at = inf
            self._declared = None
        if self._leave_at <= now:
            self._leave(ErrorCode.DRAINING, "the node is draining")
        return self._taken(now)

    # What goes past the socket

    def look_for_relays(self, now: float) -> list[Parcel]:
        """Requests to post over HTTP now, because the socket does not serve; often none."""
        return self._relay.parcels(self._phase is Phase.READY, now)

    def relayed(self, parcel: Parcel, results: list[HeldResult] | None, now: float) -> list[Effect]:
        """What came of a posted parcel; None when no answer came."""
        self._relay.answered(parcel, results, now)
        return self._taken(now)

    # Events

    def _welcomed(self, reply_to: str, body: WelcomeBody, now: float) -> None:
        (pending,) = self._mail.answered(reply_to) or (None,)
        if pending is None or pending.operation is not Operation.HELLO:
            self._leave("unexpected_welcome", "a welcome that answers no hello")
            return
        lease_s = body.lease_duration_ms / 1000
        self._phase = Phase.READY
        self._mail.begin_session(body.session_id, repeat_after_s(lease_s))
        self._out.append(Welcomed(body.session_id, lease_s, body.draining))
        if body.draining:
            self._heard_draining(now)
        self._desk.connected(lease_s, now)

    def _levelled(self, reply_to: str, body: WelcomeBody, now: float) -> None:
        (pending, *more) = self._mail.answered(reply_to) or (None,)
        if pending is None:
            return
        if more or pending.operation is not Operation.CAPACITY:
            self._leave("bad_answer", f"a level in answer to a {pending.operation}")
        elif body.draining:
            self._heard_draining(now)

    def _assigned(self, event: Assigned, now: float) -> None:
        if self._phase is not Phase.READY or event.session_id != self._mail.session_id:
            return
        for body in event.bodies:
            if not self._draining:
                self._desk.make_way(body.task.id, int(body.epoch))
            unfit = self._unfit(body)
            if unfit is None:
                self._desk.accept(body, now)
            else:
                # There is no way to decline: what is never started lapses unharmed (OP-05, OP-25).
                self._out.append(Noted(f"assignment left to lapse: {unfit}", body.attempt_id))

    def _unfit(self, body: AssignBody) -> str | None:
        task = body.task
        if self._draining:
            return "draining"
        if self._desk.attempts.find(body.attempt_id) is not None:
            return "already held"
        if self._desk.attempts.works_on(task.id):
            return "an earlier attempt of the task still runs here"
        if self._desk.attempts.busy >= self._slots or len(self._desk.attempts) >= 2 * self._slots:
            return "no free slot"
        route = Capability(task.handler, task.handler_version, task.payload_version)
        if route not in self._routes:
            return f"no handler for {task.handler} {task.handler_version} {task.payload_version}"
        return None

    def _answered(self, event: Answered, now: float) -> None:
        messages = self._mail.answered(event.reply_to)
        if messages is None:
            return  # The answer to a frame that was answered before.
        if len(messages) != len(event.results):
            self._leave("bad_answer", "an ack with another number of results than were asked for")
            return
        for pending, result in zip(messages, event.results, strict=True):
            if pending is None or self._phase is Phase.LEAVING:
                continue  # Dropped meanwhile, or answered through a repeat in another frame.
            if isinstance(result, ErrorBody):
                self._item_refused(pending, result, now)
            else:
                self._acked(pending, result, now)

    def _acked(self, pending: Pending, body: CommandResult | LeaseBody, now: float) -> None:
        match pending.operation, body:
            case Operation.RESUME, LeaseBody():
                self._desk.acked(pending, body, now)
            case ((Operation.START | Operation.RENEW | Operation.FINISH), CommandResult()) if (
                body.receipt.operation == pending.operation.value
            ):
                self._relay.served(pending.operation, now)
                self._desk.acked(pending, body, now)
            case _:
                self._leave("bad_answer", f"an ack that does not fit a {pending.operation}")

    def _refused(self, reply_to: str | None, error: ErrorBody, now: float) -> None:
        if reply_to is None:
            self._leave(error.code, error.message, final=self._final(error.code))
            return
        if error.code in RESULT_FAULTS and self._mail.split(reply_to, now):
            # Each operation is judged on its own (OP-06), so one must not cost the others.
            self._out.append(Noted(f"a frame was refused, its parts are sent alone: {error.code}"))
            return
        messages = self._mail.answered(reply_to)
        if messages is None:
            self._out.append(Noted(f"error {error.code} to an unknown message: {error.message}"))
        for pending in messages or ():
            if pending is not None and self._phase is not Phase.LEAVING:
                self._item_refused(pending, error, now)

    def _item_refused(self, pending: Pending, error: ErrorBody, now: float) -> None:
        code = error.code
        if pending.operation is Operation.HELLO or code in _SESSION_FAULTS:
            self._leave(code, error.message, final=self._final(code))
        elif pending.operation is Operation.CAPACITY:
            self._out.append(Noted(f"capacity refused: {code}"))
            self._declare_again_at = now + DECLARE_AGAIN_S
        else:
            self._desk.refused(pending, code, now)

    def _final(self, code: str) -> bool:
        return self._phase is Phase.HELLO_SENT and code not in _RETRYABLE

    # Decisions

    def _level(self) -> int:
        """How many attempts the server may count for us: the slots, less those taken by attempts
        that it counts no more (R-023)."""
        return 0 if self._draining else max(0, self._slots - self._desk.attempts.lost)

    def _heard_draining(self, now: float) -> None:
        """The node leaves, or our own drain has come back to us."""
        if not self._draining and self._leave_at == inf:
            self._leave_at = now + LEAVE_DRAINING_S

    def _overdue(self, message_id: str, pending: Pending, now: float) -> None:
        if pending.operation is Operation.HELLO:
            self._leave("welcome_timeout", "no answer to the hello")
        elif message_id != self._capacity_id and not self._desk.awaits(message_id, pending):
            self._mail.forget(message_id)
        elif now < (due := pending.sent_at + self._desk.pace.patience_s(self._desk.lease_s)):
            self._mail.wait(message_id, due)
        else:
            self._mail.repeat(message_id, pending, now)

    def _leave(self, code: str, message: str, *, final: bool = False) -> None:
        self._phase = Phase.LEAVING
        self._leave_at = self._declare_again_at = inf
        self._out.append(Leave(code, message, final))

    def _declare(self, now: float) -> None:
        wanted = (self._level(), self._draining)
        if self._phase is Phase.READY and wanted != self._declared:
            self._declared = wanted
            self._capacity_id = self._new_id()
            self._mail.capacity(self._capacity_id, wanted[0], drain=wanted[1], now=now)

    def _taken(self, now: float | None = None) -> list[Effect]:
        """The effects so far. Whatever has happened, the server is told of a changed level."""
        if now is not None:
            self._declare(now)
        effects = self._out[:]
        self._out.clear()
        return effects
