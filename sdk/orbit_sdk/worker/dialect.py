"""The versions of the worker socket as the session core sees them. Pure.

A dialect reads what the server says into events and writes the worker's messages; the core knows
neither version. v2 puts operations of one kind into one frame; v1 is v2 with batches of one,
without the frames that are pushed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from msgspec import UNSET, Raw

from orbit_sdk.protocol import frames as v1
from orbit_sdk.protocol import frames_v2 as v2
from orbit_sdk.protocol.frames import (
    AssignBody,
    CapacityBody,
    CommandResult,
    ErrorBody,
    FinishBody,
    HelloBody,
    LeaseBody,
    WelcomeBody,
)
from orbit_sdk.protocol.limits import FRAME_ITEMS_MAX
from orbit_sdk.protocol.states import Outcome
from orbit_sdk.worker.attempt import Held
from orbit_sdk.worker.effects import StopReason
from orbit_sdk.worker.limits import FRAME_BYTES, ITEM_BYTES
from orbit_sdk.worker.outcomes import Report


class Operation(StrEnum):
    """What a message asks for."""

    HELLO = "hello"
    CAPACITY = "capacity"
    RESUME = "resume"
    START = "start"
    RENEW = "renew"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello."""

    reply_to: str
    body: WelcomeBody


@dataclass(frozen=True, slots=True)
class Level:
    """The answer to a capacity update."""

    reply_to: str
    body: WelcomeBody


@dataclass(frozen=True, slots=True)
class Assigned:
    """Attempts for this worker."""

    session_id: str
    bodies: tuple[AssignBody, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """One result for each operation of a frame of ours, in their order."""

    reply_to: str
    results: tuple[CommandResult | LeaseBody | ErrorBody, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """An error: to a whole frame of ours, or without `reply_to` to the session."""

    reply_to: str | None
    error: ErrorBody


@dataclass(frozen=True, slots=True)
class Unwanted:
    """An attempt that is to stop, and why."""

    session_id: str
    attempt_id: str
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Draining:
    """The node leaves."""

    session_id: str


Event = Welcome | Level | Assigned | Answered | Refused | Unwanted | Draining


@dataclass(frozen=True, slots=True)
class Parcel:
    """A frame to be written, and the operations in it: its answer names the frame."""

    frame_id: str
    message_ids: tuple[str, ...]
    frame: bytes


Post = tuple[str, Held]
"""An operation's message id, and the attempt that it is for."""


class Dialect(Protocol):
    """One version."""

    @property
    def subprotocol(self) -> str:
        """Its name in the handshake."""

    def read(self, data: bytes) -> Event:
        """What the server says. Raises FrameError."""

    def hello(self, message_id: str, body: HelloBody) -> bytes:
        """Ask for a session."""

    def capacity(self, message_id: str, session_id: str, body: CapacityBody) -> bytes:
        """Declare a level."""

    def parcels(
        self,
        operation: Operation,
        session_id: str,
        posts: Sequence[Post],
        new_id: Callable[[], str],
    ) -> Iterator[Parcel]:
        """Operations of one kind, in as many frames as they need."""


class DialectV1:
    """`pulse.worker.v1`."""

    subprotocol = "pulse.worker.v1"

    def read(self, data: bytes) -> Event:
        match v1.decode_server_frame(data):
            case v1.AckFrame(reply_to=reply_to, body=body):
                if isinstance(body, WelcomeBody):
                    return Level(reply_to, body)
                return Answered(reply_to, (body,))
            case v1.AssignFrame(session_id=session_id, body=given):
                return Assigned(session_id, (given,))
            case v1.ErrorFrame(reply_to=to, error=error):
                return Refused(None if to is UNSET else to, error)
            case v1.WelcomeFrame(reply_to=reply_to, body=welcome):
                return Welcome(reply_to, welcome)

    def hello(self, message_id: str, body: HelloBody) -> bytes:
        return v1.encode_frame(v1.HelloFrame("1", message_id, body))

    def capacity(self, message_id: str, session_id: str, body: CapacityBody) -> bytes:
        return v1.encode_frame(v1.CapacityFrame("1", message_id, session_id, body))

    def parcels(
        self,
        operation: Operation,
        session_id: str,
        posts: Sequence[Post],
        new_id: Callable[[], str],
    ) -> Iterator[Parcel]:
        for message_id, held in posts:
            frame: v1.ClientFrame
            if operation is Operation.FINISH:
                frame = v1.FinishFrame("1", message_id, session_id, _finish_v1(held))
            else:
                frame = _ATTEMPTS_V1[operation]("1", message_id, session_id, held.ref)
            yield Parcel(message_id, (message_id,), v1.encode_frame(frame))


class DialectV2:
    """`pulse.worker.v2`."""

    subprotocol = "pulse.worker.v2"

    def read(self, data: bytes) -> Event:
        match v2.decode_server_frame(data):
            case v2.AckFrame(reply_to=reply_to, body=body):
                if isinstance(body, WelcomeBody):
                    return Level(reply_to, body)
                return Answered(reply_to, tuple(map(_result_v2, body.results)))
            case v2.AssignFrame(session_id=session_id, body=given):
                return Assigned(session_id, given.assignments)
            case v2.ErrorFrame(reply_to=to, error=error):
                return Refused(None if to is UNSET else to, error)
            case v2.CancelFrame(session_id=session_id, body=unwanted):
                by_deadline = unwanted.reason == "deadline"
                reason = StopReason.DEADLINE if by_deadline else StopReason.CANCELLED
                return Unwanted(session_id, unwanted.attempt_id, reason)
            case v2.DrainFrame(session_id=session_id):
                return Draining(session_id)
            case v2.WelcomeFrame(reply_to=reply_to, body=welcome):
                return Welcome(reply_to, welcome)

    def hello(self, message_id: str, body: HelloBody) -> bytes:
        return v2.encode_frame(v2.HelloFrame("2", message_id, body))

    def capacity(self, message_id: str, session_id: str, body: CapacityBody) -> bytes:
        return v2.encode_frame(v2.CapacityFrame("2", message_id, session_id, body))

    def parcels(
        self,
        operation: Operation,
        session_id: str,
        posts: Sequence[Post],
        new_id: Callable[[], str],
    ) -> Iterator[Parcel]:
        for part in _parts(operation, posts):
            frame: v2.ClientFrame
            frame_id = new_id()
            if operation is Operation.FINISH:
                ends = v2.FinishesBody(tuple([_finish_v2(*post) for post in part]))
                frame = v2.FinishFrame("2", frame_id, session_id, ends)
            else:
                items = v2.AttemptsBody(tuple([_attempt_v2(*post) for post in part]))
                frame = _ATTEMPTS_V2[operation]("2", frame_id, session_id, items)
            ids = tuple([message_id for message_id, _ in part])
            yield Parcel(frame_id, ids, v2.encode_frame(frame))


def _parts(operation: Operation, posts: Sequence[Post]) -> Iterator[Sequence[Post]]:
    """Cut where a frame would have too many items, or be too large with their results."""
    begin, size = 0, 0
    for place, (_, held) in enumerate(posts):
        added = ITEM_BYTES
        if operation is Operation.FINISH:
            added += len(_report(held).result)
        if place > begin and (size + added > FRAME_BYTES or place - begin == FRAME_ITEMS_MAX):
            yield posts[begin:place]
            begin, size = place, 0
        size += added
    yield posts[begin:]


def _result_v2(result: v2.ItemResult) -> CommandResult | LeaseBody | ErrorBody:
    return result.error if isinstance(result, v2.ItemError) else result


def _attempt_v2(message_id: str, held: Held) -> v2.AttemptItem:
    ref = held.ref
    return v2.AttemptItem(ref.task_id, ref.attempt_id, ref.epoch, ref.lease_secret, message_id)


def _finish_v2(message_id: str, held: Held) -> v2.FinishItem:
    report = _report(held)
    code = UNSET if report.error_code is None else report.error_code
    return v2.FinishItem(message_id, held.ref, report.outcome, Raw(report.result), code)


def _finish_v1(held: Held) -> FinishBody:
    """v1 has no CANCELLED: the code says it, and the server takes it for that under an intent
    (OP-02)."""
    report = _report(held)
    code = UNSET if report.error_code is None else report.error_code
    outcome = Outcome.FAILED if report.outcome is Outcome.CANCELLED else report.outcome
    return FinishBody(held.ref, outcome, Raw(report.result), code)


def _report(held: Held) -> Report:
    assert held.report is not None, "a finish is sent only for a known outcome"
    return held.report


_AttemptV1 = type[v1.ResumeFrame] | type[v1.StartFrame] | type[v1.RenewFrame]
_AttemptV2 = type[v2.ResumeFrame] | type[v2.StartFrame] | type[v2.RenewFrame]
_ATTEMPTS_V1: dict[Operation, _AttemptV1] = {
    Operation.RESUME: v1.ResumeFrame,
    Operation.START: v1.StartFrame,
    Operation.RENEW: v1.RenewFrame,
}
_ATTEMPTS_V2: dict[Operation, _AttemptV2] = {
    Operation.RESUME: v2.ResumeFrame,
    Operation.START: v2.StartFrame,
    Operation.RENEW: v2.RenewFrame,
}
DIALECTS: tuple[Dialect, ...] = (DialectV2(), DialectV1())
"""What a worker offers, the version it likes best first."""
