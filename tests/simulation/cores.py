"""The two pure cores as the simulation sees them: the one place that knows their calls and types.

`ServerCore` is one session of a gateway, `WorkerCore` one worker process over all its sessions.
Each carries out what its core decides through a port, in order, and says what crosses the wire as
plain `Asked` and `Told`, so that shells and checks know nothing of a dialect or of frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

from gateway.lanes import UNAVAILABLE, Refused
from gateway.worker import actions
from gateway.worker.attempts import Ask, Gathering
from gateway.worker.dialect import Operation
from gateway.worker.dialect_v1 import DialectV1
from gateway.worker.lease_secret import KeyRing
from gateway.worker.session import Phase as ServerPhase
from gateway.worker.session import Session
from orbit_sdk.protocol import frames
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.frames import Capability
from orbit_sdk.protocol.states import AttemptState, Outcome
from orbit_sdk.protocol.times import parse_time
from orbit_sdk.worker import dialect, effects
from orbit_sdk.worker.dialect import Event
from orbit_sdk.worker.effects import StopReason
from orbit_sdk.worker.limits import CONNECT_BACKOFF, SESSION_PROVEN_S
from orbit_sdk.worker.outcomes import CANCELLED, WORKER_STOPPED, Report
from orbit_sdk.worker.session import Identity, SessionCore
from orbit_sdk.worker.session import Phase as WorkerPhase
from store.commands import (
    AttemptCommand,
    CapacityOutcome,
    CommandOutcome,
    FinishCommand,
    OpenSession,
    ReturnLease,
    SessionOutcome,
    SetCapacity,
)
from store.dispatch import Assignment

__all__ = [
    "CANCELLED",
    "CONNECT_BACKOFF",
    "SESSION_PROVEN_S",
    "UNAVAILABLE",
    "WORKER_STOPPED",
    "Asked",
    "Lease",
    "Operation",
    "Refused",
    "ServerCore",
    "ServerPort",
    "StopReason",
    "Told",
    "WorkerCore",
    "WorkerPort",
]

NAMESPACE: Final = "9" * 32
QUEUE: Final = "8" * 32
HANDLER: Final = "work"
SECRET: Final = "A" * 43
_DIALECT: Final = dialect.DialectV1()
_RING: Final = KeyRing({1: bytes(range(32))})


@dataclass(frozen=True, slots=True)
class Asked:
    """A message of a worker. `epoch` is 0 where the message names no attempt."""

    kind: str
    message_id: str
    session_id: str = ""
    attempt_id: str = ""
    epoch: int = 0
    capacity: int = 0
    drain: bool = False
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Lease:
    """What an answer says of the lease as it is now; `left_s` by the server's own clock."""

    active: bool
    state: str
    left_s: float

    @property
    def authorises(self) -> bool:
        """Whether work may run on it (R-037)."""
        return self.active and self.state == AttemptState.RUNNING


@dataclass(frozen=True, slots=True)
class Told:
    """A message of a gateway. `event` is what the worker's core takes."""

    kind: str
    event: Event
    session_id: str = ""
    reply_to: str = ""
    receipt: tuple[str, str, str, str, str] | None = None
    deduplicated: bool = False
    lease: Lease | None = None
    draining: bool | None = None
    attempt_id: str = ""
    task_id: str = ""
    code: str = ""


# --- the server's half ---------------------------------------------------------------------------


class ServerPort(Protocol):
    """What a socket does for its session core."""

    def say(self, told: Told) -> None: ...
    def register(self, hello: OpenSession) -> None: ...
    def ask(self, operation: Operation, command: AttemptCommand | FinishCommand) -> None: ...
    def declare(self, command: SetCapacity) -> None: ...
    def give_back(self, command: ReturnLease) -> None: ...
    def close(self) -> None: ...


class ServerCore:
    """One session of a gateway, under a port."""

    def __init__(
        self,
        port: ServerPort,
        session_id: str,
        lease_ms: int,
        next_id: Callable[[], str],
        *,
        node_id: str,
        session_max_ms: int,
    ) -> None:
        self._port = port
        self._asked: dict[int, tuple[Gathering, int]] = {}
        self._session = Session(
            DialectV1(),
            session_id=session_id,
            namespace_id=NAMESPACE,
            ring=_RING,
            lease_ms=lease_ms,
            next_id=next_id,
        )
        self._node_id = node_id
        self._session_max_ms = session_max_ms
        self.id: Final = session_id
        self.instance_id = ""

    @property
    def is_ready(self) -> bool:
        return self._session.phase is ServerPhase.READY

    @property
    def has_ended(self) -> bool:
        return self._session.phase is ServerPhase.ENDED

    @property
    def is_silent(self) -> bool:
        """Still without a hello."""
        return self._session.phase is ServerPhase.AWAITING_HELLO

    @property
    def free(self) -> int:
        return self._session.free

    @property
    def held(self) -> int:
        return self._session.held

    @property
    def capacity(self) -> int:
        return self._session.capacity

    @property
    def open_commands(self) -> int:
        return self._session.open_commands

    @property
    def closed_to_work(self) -> bool:
        return self._session.closed_to_work

    def holds(self, attempt_id: str) -> bool:
        return self._session.holds(attempt_id)

    def heard(self, data: bytes, now: float) -> None:
        self._act(self._session.on_text(data.decode(), now))

    def answered(
        self,
        command: AttemptCommand | FinishCommand,
        outcome: CommandOutcome | Refused,
        now: float,
    ) -> None:
        gathering, place = self._asked.pop(id(command))
        self._act(self._session.attempt_answered(gathering, place, command, outcome, now))

    def declared(self, outcome: CapacityOutcome | Refused) -> None:
        self._act(self._session.capacity_answered(outcome))

    def opened(self, outcome: SessionOutcome, now: float) -> None:
        self._act(self._session.opened(outcome, now))

    def refused(self) -> None:
        """The hello could not be judged."""
        self._act(self._session.refused(ErrorCode.UNAVAILABLE))

    def assigned(self, assignment: Assignment, now: float) -> None:
        self._act(self._session.assigned([assignment], now))

    def give_back(self, attempt_id: str) -> None:
        self._act(self._session.give_back(attempt_id))

    def reserve(self, attempt_id: str, now: float) -> None:
        self._session.reserve(attempt_id, now)

    def release(self, attempt_id: str) -> None:
        self._session.release(attempt_id)

    def lapse(self, now: float) -> None:
        self._session.lapse(now)

    def drain_node(self) -> None:
        self._act(self._session.drain_node())

    def end(self, code: str) -> None:
        """End it for a reason of the platform's."""
        self._act(self._session.end(ErrorCode(code)))

    def ended(self) -> None:
        """The socket is gone."""
        self._session.ended()

    def _act(self, decided: Sequence[actions.Action]) -> None:
        port = self._port
        for action in decided:
            if isinstance(action, actions.Send):
                port.say(told_by(action.frame))
            elif isinstance(action, Ask):
                for place, command in action.commands:
                    self._asked[id(command)] = (action.gathering, place)
                    port.ask(action.gathering.operation, command)
            elif isinstance(action, actions.Declare):
                port.declare(action.command)
            elif isinstance(action, actions.Register):
                port.register(self._registration(action.hello))
            elif isinstance(action, actions.Return):
                port.give_back(action.command)
            elif isinstance(action, actions.Close):
                port.close()
            else:
                assert_never(action)

    def _registration(self, hello: frames.HelloBody) -> OpenSession:
        self.instance_id = hello.instance_id
        return OpenSession(
            self.id,
            NAMESPACE,
            hello.instance_id,
            hello.instance_secret.encode(),
            hello.queue_id,
            (1,),
            hello.capacity,
            self._node_id,
            self._session_max_ms,
            "key",
        )


def told_by(data: bytes) -> Told:
    """A gateway's message in plain words, read as the worker's shell reads it."""
    frame = frames.decode_server_frame(data)
    event = _DIALECT.read(data)
    match frame:
        case frames.AckFrame(body=frames.CommandResult(receipt, lease, deduplicated)):
            return Told(
                f"ack {receipt.operation}",
                event,
                frame.session_id,
                frame.reply_to,
                (
                    receipt.task_state,
                    receipt.attempt_state,
                    receipt.task_revision,
                    receipt.lease_until,
                    receipt.disposition,
                ),
                deduplicated,
                _lease(lease),
            )
        case frames.AckFrame(body=frames.LeaseBody() as lease):
            return Told("ack resume", event, frame.session_id, frame.reply_to, lease=_lease(lease))
        case frames.AckFrame(body=frames.WelcomeBody(draining=draining)):
            return Told("ack capacity", event, frame.session_id, frame.reply_to, draining=draining)
        case frames.WelcomeFrame(body=body):
            return Told("welcome", event, frame.session_id, frame.reply_to, draining=body.draining)
        case frames.AssignFrame(body=body):
            return Told(
                "assign",
                event,
                frame.session_id,
                attempt_id=body.attempt_id,
                task_id=body.task.id,
            )
        case frames.ErrorFrame():
            reply_to = frame.reply_to if isinstance(frame.reply_to, str) else ""
            return Told("error", event, reply_to=reply_to, code=frame.error.code)
    raise AssertionError(f"no reading for {frame}")


def _lease(body: frames.LeaseBody) -> Lease:
    left_s = (parse_time(body.lease_until) - parse_time(body.server_time)).total_seconds()
    return Lease(body.active, body.state, left_s)


# --- the worker's half ---------------------------------------------------------------------------


class WorkerPort(Protocol):
    """What a connection does for its worker core."""

    def send(self, asked: Asked) -> None: ...
    def run(self, attempt_id: str, task_id: str) -> None: ...
    def stop(self, attempt_id: str, reason: StopReason) -> None: ...
    def settled(self, attempt_id: str, applied: bool) -> None: ...
    def welcomed(self, session_id: str) -> None: ...
    def leave(self, code: str, final: bool) -> None: ...
    def noted(self, what: str, attempt_id: str) -> None: ...


class WorkerCore:
    """One worker process, under a port."""

    def __init__(
        self,
        port: WorkerPort,
        instance_id: str,
        slots: int,
        new_id: Callable[[], str],
        share: Callable[[], float],
    ) -> None:
        self._port = port
        identity = Identity(instance_id, SECRET, QUEUE, (Capability(HANDLER, "1", "1"),))
        self._core = SessionCore(identity, slots, new_id, share)

    @property
    def is_ready(self) -> bool:
        return self._core.phase is WorkerPhase.READY

    @property
    def draining(self) -> bool:
        return self._core.draining

    @property
    def held(self) -> int:
        return self._core.held

    def next_due(self) -> float:
        return self._core.next_due()

    def opened(self, now: float) -> None:
        self._carry_out(self._core.opened(_DIALECT, now))

    def closed(self) -> None:
        self._carry_out(self._core.closed())

    def received(self, told: Told, now: float) -> None:
        self._carry_out(self._core.received(told.event, now))

    def finished(self, attempt_id: str, outcome: str, code: str | None, now: float) -> None:
        report = Report(Outcome(outcome), b'{"n":1}', code)
        self._carry_out(self._core.finished(attempt_id, report, now))

    def abandoned(self, attempt_id: str, now: float) -> None:
        self._carry_out(self._core.abandoned(attempt_id, now))

    def drain(self, now: float) -> None:
        self._carry_out(self._core.drain(now))

    def stop(self, now: float) -> None:
        self._carry_out(self._core.stop(now))

    def tick(self, now: float) -> None:
        self._carry_out(self._core.tick(now))

    def _carry_out(self, decided: list[effects.Effect]) -> None:
        port = self._port
        for effect in [*decided, *self._core.flush()]:
            match effect:
                case effects.Send(data):
                    port.send(asked_by(data))
                case effects.Run(attempt_id, _, task):
                    port.run(attempt_id, task.id)
                case effects.Stop(attempt_id, reason):
                    port.stop(attempt_id, reason)
                case effects.Settled(attempt_id, applied):
                    port.settled(attempt_id, applied)
                case effects.Welcomed(session_id):
                    port.welcomed(session_id)
                case effects.Leave(code, _, final):
                    port.leave(code, final)
                case effects.Noted(what, attempt):
                    port.noted(what, attempt or "")
                case _:
                    assert_never(effect)


def asked_by(data: bytes) -> Asked:
    """A worker's message in plain words."""
    frame = frames.decode_client_frame(data)
    match frame:
        case frames.HelloFrame():
            return Asked("hello", frame.message_id, capacity=frame.body.capacity, data=data)
        case frames.CapacityFrame(body=body):
            return Asked(
                "capacity",
                frame.message_id,
                frame.session_id,
                capacity=body.capacity,
                drain=body.drain,
                data=data,
            )
        case frames.StartFrame() | frames.RenewFrame() | frames.ResumeFrame():
            return _about(_KINDS[type(frame)], frame.message_id, frame.session_id, frame.body, data)
        case frames.FinishFrame(body=body):
            return _about("finish", frame.message_id, frame.session_id, body.ref, data)
    assert_never(frame)


_KINDS: Final = {
    frames.StartFrame: "start",
    frames.RenewFrame: "renew",
    frames.ResumeFrame: "resume",
}


def _about(
    kind: str, message_id: str, session_id: str, ref: frames.AttemptRef, data: bytes
) -> Asked:
    return Asked(kind, message_id, session_id, ref.attempt_id, int(ref.epoch), data=data)


def forged(asked: Asked, message_id: str, attempt_id: str) -> bytes:
    """A renewal with a proof that is none, as a stranger on the line of `asked` would send it."""
    ref = frames.AttemptRef("7" * 32, attempt_id, "1", SECRET)
    return frames.encode_frame(frames.RenewFrame("1", message_id, asked.session_id, ref))
