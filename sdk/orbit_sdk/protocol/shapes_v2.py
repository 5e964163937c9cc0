"""The frames of `pulse.worker.v2` as frozen values, field for field as on the wire.

What they carry is v1's (`shapes`), in batches: an item is the body of the v1 frame with the message
id of the operation it stands for; the id of the frame itself only ties the answer to it (OP-06).
`frames_v2` holds the rules and is where frames are read and written.
"""

from typing import Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from .shapes import (
    AssignBody,
    AssignBodyRaw,
    AttemptRef,
    Body,
    CapacityBody,
    CommandResult,
    ErrorBody,
    HelloBody,
    LeaseBody,
    WelcomeBody,
)
from .states import Outcome

PROTOCOL_VERSION: Final = "2"


class Frame(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What every frame starts with (R-011)."""

    protocol_version: Literal["2"]
    message_id: str


class AttemptItem(AttemptRef, frozen=True):
    """A start, a renewal or a resume."""

    message_id: str

    __repr__ = AttemptRef.__repr__


class FinishItem(Body, frozen=True):
    """The end of one attempt; CANCELLED confirms a stop that was asked for (OP-02)."""

    message_id: str
    ref: AttemptRef
    outcome: Outcome
    result: Raw
    error_code: str | UnsetType = UNSET


class AttemptsBody(Body, frozen=True):
    items: tuple[AttemptItem, ...]


class FinishesBody(Body, frozen=True):
    items: tuple[FinishItem, ...]


class HelloFrame(Frame, frozen=True, tag="worker.hello"):
    body: HelloBody


class CapacityFrame(Frame, frozen=True, tag="worker.capacity"):
    session_id: str
    body: CapacityBody


class ResumeFrame(Frame, frozen=True, tag="worker.resume"):
    session_id: str
    body: AttemptsBody


class StartFrame(Frame, frozen=True, tag="task.start"):
    session_id: str
    body: AttemptsBody


class RenewFrame(Frame, frozen=True, tag="task.renew"):
    session_id: str
    body: AttemptsBody


class FinishFrame(Frame, frozen=True, tag="task.finish"):
    session_id: str
    body: FinishesBody


class AssignmentsBody(Body, frozen=True):
    assignments: tuple[AssignBody, ...]


class AssignmentsBodyRaw(Body, frozen=True):
    """Assignments as the server writes them: the tasks are ready-made JSON."""

    assignments: tuple[AssignBodyRaw, ...]


class ItemError(Body, frozen=True):
    """Why one item was refused."""

    error: ErrorBody


ItemResult = CommandResult | LeaseBody | ItemError


class ResultsBody(Body, frozen=True):
    """One result an item, in their order: a command result for a start, renewal or finish, a lease
    for a resume, or the item's own error."""

    results: tuple[ItemResult, ...]


class CancelBody(Body, frozen=True):
    """A saved intent (R-127): stop, and report while the lease lasts."""

    attempt_id: str
    task_id: str
    epoch: str
    reason: Literal["caller", "deadline"]


class DrainBody(Body, frozen=True):
    """Why the node leaves (R-129): nothing more is assigned here."""

    reason: str


class WelcomeFrame(Frame, frozen=True, tag="worker.welcome"):
    session_id: str
    reply_to: str
    body: WelcomeBody


class AssignFrame(Frame, frozen=True, tag="task.assign"):
    session_id: str
    body: AssignmentsBody


class AssignFrameRaw(Frame, frozen=True, tag="task.assign"):
    """Only ever written, by a server; a client reads it as AssignFrame."""

    session_id: str
    body: AssignmentsBodyRaw


class AckFrame(Frame, frozen=True, tag="ack"):
    session_id: str
    reply_to: str
    body: WelcomeBody | ResultsBody


class ErrorFrame(Frame, frozen=True, tag="error"):
    """In answer to a batch it speaks for every item."""

    error: ErrorBody
    session_id: str | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET


class CancelFrame(Frame, frozen=True, tag="task.cancel"):
    session_id: str
    body: CancelBody


class DrainFrame(Frame, frozen=True, tag="worker.drain"):
    session_id: str
    body: DrainBody


AttemptFrame = ResumeFrame | StartFrame | RenewFrame
ClientFrame = HelloFrame | CapacityFrame | AttemptFrame | FinishFrame
ServerFrame = WelcomeFrame | AssignFrame | AckFrame | ErrorFrame | CancelFrame | DrainFrame
