"""The two pure cores as the simulation sees them: the one place that knows their calls and types.

`ServerCore` is one session of a gateway, `WorkerCore` one worker process over all its sessions.
Each carries out what its core decides through a port, in order, and says what crosses the wire as
plain `Asked` and `Told`, so that shells and checks know nothing of a dialect or of frames. `Posted`
is one request past the sockets as a gateway serves it, `Parcel` the same as a worker sends it.
"""

import hashlib
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

import msgspec

from gateway.http.held_items import Command, HeldItems
from gateway.lanes import UNAVAILABLE, Refused
from gateway.worker import actions
from gateway.worker import dialect as server_dialect
from gateway.worker.attempts import Ask, Gathering
from gateway.worker.dialect import Dialect as ServerDialect
from gateway.worker.dialect import Operation
from gateway.worker.dialect_v1 import DialectV1 as ServerV1
from gateway.worker.dialect_v2 import DialectV2 as ServerV2
from gateway.worker.lease_secret import KeyRing
from gateway.worker.session import Phase as ServerPhase
from gateway.worker.session import Session
from orbit_sdk.protocol import frames, frames_v2
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.frames import Capability
from orbit_sdk.protocol.frames_v2 import AttemptItem, FinishItem
from orbit_sdk.protocol.held import HeldBody, HeldResult, decode_held
from orbit_sdk.protocol.states import AttemptState, Outcome
from orbit_sdk.protocol.times import parse_time
from orbit_sdk.worker import dialect as worker_dialect
from orbit_sdk.worker import effects
from orbit_sdk.worker.dialect import Dialect as WorkerDialect
from orbit_sdk.worker.dialect import Event
from orbit_sdk.worker.effects import StopReason
from orbit_sdk.worker.limits import SESSION_PROVEN_S, connect_backoff
from orbit_sdk.worker.outcomes import CANCELLED, WORKER_STOPPED, Report
from orbit_sdk.worker.relay import Parcel, look_after_s, patience_s
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
from store.dispatch import Assignment, Intent

__all__ = [
    "CANCELLED",
    "NO_SECRET",
    "SESSION_PROVEN_S",
    "UNAVAILABLE",
    "V1",
    "V2",
    "WORKER_STOPPED",
    "Asked",
    "Lease",
    "Command",
    "Operation",
    "Parcel",
    "Posted",
    "Refused",
    "ServerCore",
    "ServerPort",
    "StopReason",
    "Told",
    "Version",
    "WorkerCore",
    "WorkerPort",
    "connect_backoff",
    "look_after_s",
    "passed_off",
    "patience_s",
    "results_of",
    "secret_of",
]

NAMESPACE: Final = "9" * 32
QUEUE: Final = "8" * 32
HANDLER: Final = "work"
NO_SECRET: Final = "A" * 43
"""A proof of nothing, neither of a lease nor of an instance."""
_RING: Final = KeyRing({1: bytes(range(32))})


@dataclass(frozen=True, slots=True)
class Item:
    """One operation of a frame: its own message id, and the attempt that it is about."""

    message_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A frame of a worker; only operations on attempts have items."""

    kind: str
    frame_id: str
    session_id: str = ""
    items: tuple[Item, ...] = ()
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
class Result:
    """What became of one item; a receipt is its states, revision, lease end and disposition."""

    receipt: tuple[str, str, str, str, str] | None = None
    lease: Lease | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """A frame of a gateway. `event` is what the worker's core takes; `given` are the attempt and
    task of each assignment."""

    kind: str
    event: Event
    session_id: str = ""
    reply_to: str = ""
    results: tuple[Result, ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    draining: bool | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the worker socket, as both ends spell it."""

    name: str
    of_server: ServerDialect
    of_worker: WorkerDialect


V1: Final = Version("v1", ServerV1(), worker_dialect.DialectV1())
V2: Final = Version("v2", ServerV2(), worker_dialect.DialectV2())


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
        version: Version,
        session_id: str,
        lease_ms: int,
        next_id: Callable[[], str],
        *,
        node_id: str,
        session_max_ms: int,
    ) -> None:
        self._port = port
        self._version = version
        self._asked: dict[int, tuple[Gathering, int]] = {}
        self._declared: deque[actions.Declare] = deque()
        self._session = Session(
            version.of_server,
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
        self._act(self._session.capacity_answered(self._declared.popleft(), outcome))

    def opened(self, outcome: SessionOutcome, now: float) -> None:
        self._act(self._session.opened(outcome, now))

    def refused(self) -> None:
        """The hello could not be judged."""
        self._act(self._session.refused(ErrorCode.UNAVAILABLE))

    def assigned(self, assignments: Sequence[Assignment], now: float) -> None:
        self._act(self._session.assigned(assignments, now))

    def cancelled(self, attempt_id: str, reason: Intent) -> None:
        self._act(self._session.cancelled(attempt_id, reason))

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
                port.say(told_by(self._version, action.frame))
            elif isinstance(action, Ask):
                for place, command in action.commands:
                    self._asked[id(command)] = (action.gathering, place)
                    port.ask(action.gathering.operation, command)
            elif isinstance(action, actions.Declare):
                self._declared.append(action)
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
            hashlib.sha256(hello.instance_secret.encode()).digest(),
            hello.queue_id,
            (1,),
            hello.capacity,
            self._node_id,
            self._session_max_ms,
            "key",
        )


class Posted:
    """One request past the sockets, at a gateway."""

    def __init__(self, operation: Operation, body: bytes) -> None:
        held = decode_held(body)
        self._items = HeldItems(operation, NAMESPACE, held, _RING)
        for raw in held.items:
            self._items.read(raw)

    @property
    def commands(self) -> dict[int, Command]:
        return self._items.commands

    @property
    def missing(self) -> int:
        return self._items.missing

    def answered(self, place: int, outcome: CommandOutcome | Refused) -> None:
        self._items.answered(place, outcome)

    def answer(self) -> bytes:
        """What goes back, as far as it is known."""
        return msgspec.json.encode(self._items.results())


def told_by(version: Version, data: bytes) -> Told:
    """A gateway's frame in plain words, read as the worker's shell reads it."""
    event = version.of_worker.read(data)
    match event:
        case worker_dialect.Answered(reply_to, results):
            return Told(
                "answer", event, reply_to=reply_to, results=tuple(_result(each) for each in results)
            )
        case worker_dialect.Refused(reply_to, error):
            return Told("error", event, reply_to=reply_to or "", code=error.code)
        case worker_dialect.Welcome(reply_to, body):
            return Told("welcome", event, body.session_id, reply_to, draining=body.draining)
        case worker_dialect.Level(reply_to, body):
            return Told("level", event, body.session_id, reply_to, draining=body.draining)
        case worker_dialect.Assigned(session_id, bodies):
            given = tuple((body.attempt_id, body.task.id) for body in bodies)
            return Told("assign", event, session_id, given=given)
        case worker_dialect.Unwanted(session_id):
            return Told("cancel", event, session_id)
        case worker_dialect.Draining(session_id):
            return Told("drain", event, session_id)
    assert_never(event)


_results: Final = msgspec.json.Decoder(list[HeldResult]).decode


def results_of(answer: bytes) -> list[Result]:
    """The answer to a parcel in plain words."""
    found = []
    for one in _results(answer):
        if one.receipt is None or one.lease is None:
            found.append(Result(code="" if one.error is None else one.error.code))
        else:
            found.append(_result(frames.CommandResult(one.receipt, one.lease, one.deduplicated)))
    return found


def _result(result: frames.CommandResult | frames.LeaseBody | frames.ErrorBody) -> Result:
    match result:
        case frames.CommandResult(receipt, lease):
            record = (
                receipt.task_state,
                receipt.attempt_state,
                receipt.task_revision,
                receipt.lease_until,
                receipt.disposition,
            )
            return Result(record, _lease(lease))
        case frames.LeaseBody():
            return Result(lease=_lease(result))
        case frames.ErrorBody(code):
            return Result(code=code)
    assert_never(result)


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
    def welcomed(self, session_id: str, lease_s: float) -> None: ...
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
        self._version = V1
        can = (Capability(HANDLER, "1", "1"),)
        identity = Identity(instance_id, secret_of(instance_id), QUEUE, can)
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

    def opened(self, version: Version, now: float) -> None:
        self._version = version
        self._carry_out(self._core.opened(version.of_worker, now))

    @property
    def unsent(self) -> bool:
        return self._core.unsent

    def flush(self) -> None:
        """Send what has gathered."""
        self._carry_out(self._core.flush())

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

    def look_for_relays(self, now: float) -> list[Parcel]:
        """What is to be posted past the socket now."""
        return self._core.look_for_relays(now)

    def relayed(self, parcel: Parcel, answer: bytes | None, now: float) -> None:
        """What came of a parcel; None if nothing did."""
        results = None if answer is None else _results(answer)
        self._carry_out(self._core.relayed(parcel, results, now))

    def _carry_out(self, decided: list[effects.Effect]) -> None:
        port = self._port
        for effect in decided:
            match effect:
                case effects.Send(data):
                    port.send(asked_by(self._version, data))
                case effects.Run(attempt_id, _, task):
                    port.run(attempt_id, task.id)
                case effects.Stop(attempt_id, reason):
                    port.stop(attempt_id, reason)
                case effects.Settled(attempt_id, applied):
                    port.settled(attempt_id, applied)
                case effects.Welcomed(session_id, lease_s):
                    port.welcomed(session_id, lease_s)
                case effects.Leave(code, _, final):
                    port.leave(code, final)
                case effects.Noted(what, attempt):
                    port.noted(what, attempt or "")
                case _:
                    assert_never(effect)


def asked_by(version: Version, data: bytes) -> Asked:
    """A worker's frame in plain words, read as the gateway's core reads it."""
    request = version.of_server.read(data.decode())
    match request:
        case server_dialect.Hello(message_id):
            return Asked("hello", message_id, data=data)
        case server_dialect.Declaration(message_id, session_id):
            return Asked("capacity", message_id, session_id, data=data)
        case server_dialect.Batch(message_id, session_id, operation, items):
            named = tuple(_item(item) for item in items)
            return Asked(operation.value, message_id, session_id, named, data)
    assert_never(request)


def _item(item: AttemptItem | FinishItem) -> Item:
    if isinstance(item, FinishItem):
        return Item(item.message_id, item.ref.attempt_id)
    return Item(item.message_id, item.attempt_id)


def forged(version: Version, asked: Asked, message_id: str, attempt_id: str) -> Asked:
    """A renewal with a proof that is none, as a stranger on the line of `asked` would send it: in
    v2 behind the true ones of a frame that has just gone by, if it has any."""
    ref = frames.AttemptRef("7" * 32, attempt_id, "1", NO_SECRET)
    if version is V1:
        data = frames.encode_frame(frames.RenewFrame("1", message_id, asked.session_id, ref))
        return asked_by(version, data)
    item = AttemptItem(ref.task_id, attempt_id, ref.epoch, NO_SECRET, message_id)
    true = frames_v2.decode_client_frame(asked.data)
    before = true.body.items if isinstance(true, frames_v2.RenewFrame) else ()
    batch = frames_v2.AttemptsBody((*before, item))
    data = frames_v2.encode_frame(frames_v2.RenewFrame("2", message_id, asked.session_id, batch))
    return asked_by(version, data)


def secret_of(instance_id: str) -> str:
    """The secret of a worker process."""
    digest = hashlib.sha256(instance_id.encode()).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def passed_off(
    parcel: Parcel, instance_id: str, secret: str, new_id: Callable[[], str], *, proven: bool
) -> Parcel:
    """This parcel as somebody else might post it: of that instance, under names of its own, and
    with the true proofs of its leases or with none."""
    names = tuple((attempt_id, new_id()) for attempt_id, _ in parcel.names)
    items = []
    for raw, (_, message_id) in zip(decode_held(parcel.body).items, names, strict=True):
        item: dict[str, Any] = msgspec.json.decode(raw)
        item["message_id"] = message_id
        if not proven:
            item["lease_secret"] = NO_SECRET
        items.append(msgspec.Raw(msgspec.json.encode(item)))
    body = HeldBody(instance_id=instance_id, instance_secret=secret, items=items)
    return Parcel(parcel.operation, msgspec.json.encode(body), names, parcel.sent_at)
