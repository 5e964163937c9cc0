"""The frames of `pulse.worker.v1` as frozen values, field for field as on the wire.

A value here has the right shape and nothing more; `frames` holds the rules and is where frames
are read and written. Optional fields are UNSET when absent; `epoch`, `sequence` and
`task_revision` are decimal strings, instants are texts, business values are the bytes as sent.
"""

from typing import Final, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from .states import AttemptState, Outcome, RecoverySafety, TaskState

PROTOCOL_VERSION: Final = "1"


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """What every object of the protocol has in common: unknown fields are refused (R-009)."""


class Frame(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    """What every frame starts with (R-011)."""

    protocol_version: Literal["1"]
    message_id: str


class Capability(Body, frozen=True):
    """R-006."""

    handler: str
    handler_version: str
    payload_version: str


class HelloBody(Body, frozen=True):
    """R-020."""

    instance_id: str
    instance_secret: str
    queue_id: str
    capabilities: tuple[Capability, ...]
    capacity: int

    def __repr__(self) -> str:
        return f"HelloBody(instance_id={self.instance_id!r}, instance_secret=…)"


class CapacityBody(Body, frozen=True):
    """R-023."""

    sequence: str
    capacity: int
    drain: bool


class AttemptRef(Body, frozen=True):
    """R-034."""

    task_id: str
    attempt_id: str
    epoch: str
    lease_secret: str

    def __repr__(self) -> str:
        return (
            f"AttemptRef(task_id={self.task_id!r}, attempt_id={self.attempt_id!r}, "
            f"epoch={self.epoch!r}, lease_secret=…)"
        )


class FinishBody(Body, frozen=True):
    """R-035."""

    ref: AttemptRef
    outcome: Outcome
    result: Raw
    error_code: str | UnsetType = UNSET


class HelloFrame(Frame, frozen=True, tag="worker.hello"):
    body: HelloBody


class CapacityFrame(Frame, frozen=True, tag="worker.capacity"):
    session_id: str
    body: CapacityBody


class ResumeFrame(Frame, frozen=True, tag="worker.resume"):
    session_id: str
    body: AttemptRef


class StartFrame(Frame, frozen=True, tag="task.start"):
    session_id: str
    body: AttemptRef


class RenewFrame(Frame, frozen=True, tag="task.renew"):
    session_id: str
    body: AttemptRef


class FinishFrame(Frame, frozen=True, tag="task.finish"):
    session_id: str
    body: FinishBody


class WelcomeBody(Body, frozen=True):
    """R-022."""

    session_id: str
    epoch: str
    server_time: str
    expires_at: str
    lease_duration_ms: int
    draining: bool


class LeaseBody(Body, frozen=True):
    """R-036."""

    active: bool
    state: AttemptState
    lease_until: str
    server_time: str


class Receipt(Body, frozen=True):
    """R-038."""

    operation: Literal["start", "renew", "finish"]
    task_state: TaskState
    attempt_state: AttemptState
    task_revision: str
    lease_until: str
    disposition: Literal["APPLIED", "EVIDENCE_ONLY"]


class CommandResult(Body, frozen=True):
    """R-039."""

    receipt: Receipt
    lease: LeaseBody
    deduplicated: bool


class Retry(Body, frozen=True):
    """R-033."""

    max_attempts: int
    initial_delay_ms: int
    max_delay_ms: int
    attempt_timeout_ms: int


class AssignedTask(Body, frozen=True, kw_only=True):
    """R-031."""

    id: str
    namespace_id: str
    queue_id: str
    state: Literal["LEASED"]
    revision: str
    handler: str
    handler_version: str
    payload_version: str
    payload: Raw
    result: Raw | UnsetType = UNSET
    business_key: str | UnsetType = UNSET
    available_at: str
    start_deadline_at: str | UnsetType = UNSET
    deadline_at: str
    recovery_safety: RecoverySafety
    retry: Retry
    attempt_count: int
    cancel_requested_at: str | UnsetType = UNSET
    completed_at: str | UnsetType = UNSET
    created_at: str
    updated_at: str


class AssignBody(Body, frozen=True):
    """R-030."""

    task: AssignedTask
    attempt_id: str
    epoch: str
    lease_secret: str
    lease_until: str
    server_time: str

    def __repr__(self) -> str:
        return f"AssignBody(task={self.task.id!r}, attempt_id={self.attempt_id!r}, …)"


class AssignBodyRaw(Body, frozen=True):
    """An assignment as the server writes it: the task is ready-made JSON, spliced as it is."""

    task: Raw
    attempt_id: str
    epoch: str
    lease_secret: str
    lease_until: str
    server_time: str

    def __repr__(self) -> str:
        return f"AssignBodyRaw(attempt_id={self.attempt_id!r}, …)"


class ErrorBody(Body, frozen=True):
    """R-017."""

    code: str
    message: str


AckBody = WelcomeBody | LeaseBody | CommandResult


class WelcomeFrame(Frame, frozen=True, tag="worker.welcome"):
    session_id: str
    reply_to: str
    body: WelcomeBody


class AssignFrame(Frame, frozen=True, tag="task.assign"):
    session_id: str
    body: AssignBody


class AssignFrameRaw(Frame, frozen=True, tag="task.assign"):
    """Only ever written, by a server; a client reads it as AssignFrame."""

    session_id: str
    body: AssignBodyRaw


class AckFrame(Frame, frozen=True, tag="ack"):
    session_id: str
    reply_to: str
    body: AckBody


class ErrorFrame(Frame, frozen=True, tag="error"):
    error: ErrorBody
    session_id: str | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET


ClientFrame = HelloFrame | CapacityFrame | ResumeFrame | StartFrame | RenewFrame | FinishFrame
ServerFrame = WelcomeFrame | AssignFrame | AckFrame | ErrorFrame
