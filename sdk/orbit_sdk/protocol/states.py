"""States and the only moves between them, as rows (OP-20). Everything not listed is refused.

The store's checks, the diagram and the tests are made from these tables.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class TaskState(StrEnum):
    """R-008."""

    WAITING = "WAITING"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    NEEDS_REVIEW = "NEEDS_REVIEW"


class AttemptState(StrEnum):
    """R-007."""

    LEASED = "LEASED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"
    UNKNOWN = "UNKNOWN"


class Outcome(StrEnum):
    """What a worker may report of an attempt (R-035); CANCELLED is no word of v1 (OP-02)."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    CANCELLED = "CANCELLED"


class RecoverySafety(StrEnum):
    """Whether an attempt that may have begun may be repeated by the platform alone (R-032)."""

    IDEMPOTENT = "IDEMPOTENT"
    RECONCILE_ONLY = "RECONCILE_ONLY"


class Cause(StrEnum):
    """What makes a move."""

    ASSIGN = "assign"
    START = "start"
    LAPSE = "lapse"
    FINISH = "finish"
    RETRY = "retry"
    CANCEL = "cancel"
    DEADLINE = "deadline"
    MANUAL_RETRY = "manual retry"
    REVIEW = "review"


class TaskTransition(NamedTuple):
    """One permitted move of a task. `before` and `after` may be joined by several causes."""

    before: TaskState
    after: TaskState
    cause: Cause


class AttemptTransition(NamedTuple):
    """One permitted move of an attempt."""

    before: AttemptState
    after: AttemptState
    cause: Cause


_T, _A, _C = TaskState, AttemptState, Cause

TASK_TRANSITIONS: Final = (
    TaskTransition(_T.WAITING, _T.LEASED, _C.ASSIGN),
    TaskTransition(_T.WAITING, _T.CANCELLED, _C.CANCEL),
    TaskTransition(_T.WAITING, _T.FAILED, _C.DEADLINE),
    TaskTransition(_T.LEASED, _T.RUNNING, _C.START),
    TaskTransition(_T.LEASED, _T.WAITING, _C.LAPSE),
    TaskTransition(_T.LEASED, _T.CANCELLED, _C.CANCEL),
    TaskTransition(_T.LEASED, _T.FAILED, _C.DEADLINE),
    TaskTransition(_T.RUNNING, _T.SUCCEEDED, _C.FINISH),
    TaskTransition(_T.RUNNING, _T.FAILED, _C.FINISH),
    TaskTransition(_T.RUNNING, _T.FAILED, _C.LAPSE),
    TaskTransition(_T.RUNNING, _T.NEEDS_REVIEW, _C.FINISH),
    TaskTransition(_T.RUNNING, _T.NEEDS_REVIEW, _C.LAPSE),
    TaskTransition(_T.RUNNING, _T.CANCELLED, _C.FINISH),
    TaskTransition(_T.RUNNING, _T.CANCELLED, _C.LAPSE),
    TaskTransition(_T.RUNNING, _T.WAITING, _C.RETRY),
    TaskTransition(_T.NEEDS_REVIEW, _T.WAITING, _C.MANUAL_RETRY),
    TaskTransition(_T.FAILED, _T.WAITING, _C.MANUAL_RETRY),
    TaskTransition(_T.CANCELLED, _T.WAITING, _C.MANUAL_RETRY),
    TaskTransition(_T.NEEDS_REVIEW, _T.SUCCEEDED, _C.REVIEW),
    TaskTransition(_T.NEEDS_REVIEW, _T.FAILED, _C.REVIEW),
    TaskTransition(_T.NEEDS_REVIEW, _T.CANCELLED, _C.REVIEW),
)

ATTEMPT_TRANSITIONS: Final = (
    AttemptTransition(_A.LEASED, _A.RUNNING, _C.START),
    AttemptTransition(_A.LEASED, _A.CANCELLED, _C.CANCEL),
    AttemptTransition(_A.LEASED, _A.EXPIRED, _C.LAPSE),
    AttemptTransition(_A.RUNNING, _A.SUCCEEDED, _C.FINISH),
    AttemptTransition(_A.RUNNING, _A.FAILED, _C.FINISH),
    AttemptTransition(_A.RUNNING, _A.CANCELLED, _C.FINISH),
    AttemptTransition(_A.RUNNING, _A.UNKNOWN, _C.FINISH),
    AttemptTransition(_A.RUNNING, _A.EXPIRED, _C.LAPSE),
    AttemptTransition(_A.RUNNING, _A.UNKNOWN, _C.LAPSE),
)

TASK_MOVES: Final = frozenset((row.before, row.after) for row in TASK_TRANSITIONS)
ATTEMPT_MOVES: Final = frozenset((row.before, row.after) for row in ATTEMPT_TRANSITIONS)
"""The permitted (before, after) pairs, causes aside."""

TASK_LIVE: Final = frozenset({TaskState.WAITING, TaskState.LEASED, TaskState.RUNNING})
"""States of a task that is in a ready row or a lease row (INV-11b)."""

TASK_SETTLED: Final = frozenset(TaskState) - TASK_LIVE
"""States nothing but a person leaves."""

TASK_TERMINAL: Final = TASK_SETTLED - {TaskState.NEEDS_REVIEW}
"""States that end a task unless someone retries it by hand."""

ATTEMPT_ACTIVE: Final = frozenset(row.before for row in ATTEMPT_TRANSITIONS)
"""States in which an attempt holds a lease: exactly those that have a way out."""

ATTEMPT_TERMINAL: Final = frozenset(AttemptState) - ATTEMPT_ACTIVE
"""States that never change."""
