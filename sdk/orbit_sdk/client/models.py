"""What a client hands in and gets back. Frozen; times are aware UTC datetimes, revisions ints.

Answers may grow new optional fields (R-171), so unknown fields are skipped; an unknown state is
refused, since guessing would turn it into a success or a failure that nobody reported.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict

import msgspec

from orbit_sdk.errors import OrbitError
from orbit_sdk.protocol.states import TASK_SETTLED, AttemptState, RecoverySafety, TaskState


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how soon a failed task is tried again, and how long one try may take."""

    max_attempts: int = 3
    initial_delay_ms: int = 1_000
    max_delay_ms: int = 60_000
    attempt_timeout_ms: int = 3_600_000


DEFAULT_RETRY = RetryPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One task to submit.

    `payload` is any JSON-able value but null, or `bytes` that are JSON already and travel as they
    are. `key` names the submission: the same key with the same meaning is the same task, so choose
    one that your own data knows (an order number) where you can; without it one is drawn once and
    kept over retries. `recovery_safety` says what may happen if a worker vanishes in the middle:
    IDEMPOTENT runs the handler again, RECONCILE_ONLY never does and asks for a review.
    """

    handler: str
    payload: object
    queue: str = "default"
    key: str | None = None
    handler_version: str = "1"
    payload_version: str = "1"
    recovery_safety: RecoverySafety = RecoverySafety.IDEMPOTENT
    retry: RetryPolicy = DEFAULT_RETRY
    priority: int = 0
    business_key: str | None = None
    available_at: datetime | None = None
    start_deadline_at: datetime | None = None
    deadline_at: datetime | None = None


class SubmitOptions(TypedDict, total=False):
    """The optional fields of a `Submission`, as keyword arguments of `submit`."""

    queue: str
    key: str | None
    handler_version: str
    payload_version: str
    recovery_safety: RecoverySafety
    retry: RetryPolicy
    priority: int
    business_key: str | None
    available_at: datetime | None
    start_deadline_at: datetime | None
    deadline_at: datetime | None


class Submitted(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster has the task durably. `deduplicated`: it had it before this request."""

    id: str
    state: TaskState
    revision: int
    deduplicated: bool
    key: str = ""


ReviewOutcome = Literal["SUCCEEDED", "FAILED", "CANCELLED"]
"""How a person may end a review."""


class TaskChange(msgspec.Struct, frozen=True, kw_only=True):
    """A task after an operation. `state` RUNNING after a cancel: it was asked to stop.

    `deduplicated`: the operation was done before, under the same key; this is its first answer.
    """

    id: str
    state: TaskState
    revision: int
    deduplicated: bool
    key: str = ""


class QueueChange(msgspec.Struct, frozen=True, kw_only=True):
    """A queue after a pause or a resume; the next one names `control_version`."""

    id: str
    name: str
    paused: bool
    control_version: int
    deduplicated: bool
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of one item of a batch: `submitted`, or else the `error`; one of them is None."""

    index: int
    key: str
    submitted: Submitted | None = None
    error: OrbitError | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the cluster knew it when it answered."""

    id: str
    queue_id: str
    state: TaskState
    revision: int
    handler: str
    handler_version: str
    payload_version: str
    priority: int
    available_at: datetime
    deadline_at: datetime
    recovery_safety: RecoverySafety
    retry: RetryPolicy
    attempt_count: int
    created_at: datetime
    updated_at: datetime
    business_key: str | None = None
    start_deadline_at: datetime | None = None
    completed_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    resolved_at: datetime | None = None
    resolve_reason: str | None = None
    error_code: str | None = None
    payload: Any = None
    result: Any = None

    @property
    def settled(self) -> bool:
        """Nothing more happens by itself: succeeded, failed, cancelled, or waiting for review."""
        return self.state in TASK_SETTLED


class CancelMarks(msgspec.Struct, frozen=True, kw_only=True):
    """How a stop went. `cause`: a caller's cancel, or the task's deadline."""

    cause: str
    requested_at: datetime
    acknowledged_at: datetime | None = None
    """The worker was heard from after it had been told."""
    forced_at: datetime | None = None
    """The lease lapsed before the worker confirmed."""
    finished_at: datetime | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One granted try of a task. `epoch` is its fencing number."""

    id: str
    epoch: int
    state: AttemptState
    lease_until: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    instance_id: str | None = None
    error_code: str | None = None
    result: Any = None
    cancel: CancelMarks | None = None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of the application; `id` and `name` both name it in requests."""

    id: str
    name: str
    paused: bool = False
    control_version: int = 1
    """Rises with every pause and resume."""
    reason: str = ""
    """Of the last pause or resume."""
