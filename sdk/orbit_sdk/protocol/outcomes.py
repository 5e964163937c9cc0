"""What becomes of a task and its attempt, whatever happens in whatever order (INV-18, OP-28).

Rows of an act, where the task stands, on what condition, and what comes of it. Every act meets
exactly one row wherever a task stands; whoever commits first decides where that is. The store is
walked along this table, and the page of the protocol is made from it.
"""

from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from .states import AttemptState, RecoverySafety, TaskState


class Standing(StrEnum):
    """Where a task stands, with the attempt that is spoken of: the newest one."""

    WAITING = "WAITING"
    LEASED = "LEASED"
    RUNNING = "RUNNING"
    STOPPING = "RUNNING, its caller's intent saved"
    OVERDUE = "RUNNING, past its deadline"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    NEEDS_REVIEW = "NEEDS_REVIEW"

    @property
    def state(self) -> TaskState:
        """The state that a reader is shown."""
        return TaskState.RUNNING if self.value.startswith("RUNNING") else TaskState(self.value)


class Act(StrEnum):
    """What a worker, a client, a person or the time may do."""

    START = "start"
    FINISH_SUCCEEDED = "finish SUCCEEDED"
    FINISH_FAILED = "finish FAILED"
    FINISH_STOPPED = "finish FAILED, code `cancelled`"
    FINISH_CANCELLED = "finish CANCELLED, of v2"
    FINISH_UNKNOWN = "finish UNKNOWN"
    LAPSE = "the lease lapses"
    DEADLINE = "the deadline passes"
    CANCEL = "cancel"
    RETRY = "retry by a person"
    RESOLVE_SUCCEEDED = "resolve SUCCEEDED"
    RESOLVE_FAILED = "resolve FAILED"
    RESOLVE_CANCELLED = "resolve CANCELLED"


class Answer(StrEnum):
    """What whoever acted is told."""

    APPLIED = "applied"
    REPEATED = "the first receipt again"
    EVIDENCE = "`EVIDENCE_ONLY`"
    OPERATION_CONFLICT = "`operation_conflict`"
    DONE = "200"
    INTENT = "202"
    STATE_CONFLICT = "409 `state_conflict`"
    NOTHING = ""


class Row(NamedTuple):
    """One line of the table. `task` and `attempt` None: as before."""

    act: Act
    stands: tuple[Standing, ...]
    answer: Answer
    task: Standing | None = None
    attempt: AttemptState | None = None
    safety: RecoverySafety | None = None
    """Only for tasks of this class; None: of any."""
    try_left: bool | None = None
    """Only with, or only without, an attempt left in the budget; None: either way."""


_S, _A, _B, _X = Standing, Act, Answer, AttemptState
_HELD: Final = (_S.RUNNING, _S.STOPPING, _S.OVERDUE)
_SETTLED: Final = (_S.SUCCEEDED, _S.FAILED, _S.CANCELLED, _S.NEEDS_REVIEW)
_OVER: Final = (_S.WAITING, *_SETTLED)
_SAFE, _CAREFUL = RecoverySafety.IDEMPOTENT, RecoverySafety.RECONCILE_ONLY


def _finish(act: Act, *rows: Row) -> tuple[Row, ...]:
    return (
        Row(act, (_S.LEASED,), _B.OPERATION_CONFLICT),
        *rows,
        Row(act, _OVER, _B.EVIDENCE),
    )


def _failure(act: Act, stopped: AttemptState) -> tuple[Row, ...]:
    return _finish(
        act,
        Row(act, (_S.RUNNING,), _B.APPLIED, _S.WAITING, _X.FAILED, try_left=True),
        Row(act, (_S.RUNNING,), _B.APPLIED, _S.FAILED, _X.FAILED, try_left=False),
        Row(act, (_S.STOPPING,), _B.APPLIED, _S.CANCELLED, stopped),
        Row(act, (_S.OVERDUE,), _B.APPLIED, _S.FAILED, _X.FAILED),
    )


def _resolve(act: Act, task: Standing) -> tuple[Row, ...]:
    rest = tuple(standing for standing in Standing if standing is not _S.NEEDS_REVIEW)
    return (
        Row(act, (_S.NEEDS_REVIEW,), _B.DONE, task),
        Row(act, rest, _B.STATE_CONFLICT),
    )


ROWS: Final = (
    Row(_A.START, (_S.LEASED,), _B.APPLIED, _S.RUNNING, _X.RUNNING),
    Row(_A.START, _HELD, _B.REPEATED),
    Row(_A.START, _OVER, _B.EVIDENCE),
    *_finish(
        _A.FINISH_SUCCEEDED,
        Row(_A.FINISH_SUCCEEDED, _HELD, _B.APPLIED, _S.SUCCEEDED, _X.SUCCEEDED),
    ),
    *_failure(_A.FINISH_FAILED, _X.FAILED),
    *_failure(_A.FINISH_STOPPED, _X.CANCELLED),
    *_finish(
        _A.FINISH_CANCELLED,
        Row(_A.FINISH_CANCELLED, (_S.RUNNING,), _B.OPERATION_CONFLICT),
        Row(_A.FINISH_CANCELLED, (_S.STOPPING,), _B.APPLIED, _S.CANCELLED, _X.CANCELLED),
        Row(_A.FINISH_CANCELLED, (_S.OVERDUE,), _B.APPLIED, _S.FAILED, _X.FAILED),
    ),
    *_finish(
        _A.FINISH_UNKNOWN,
        Row(_A.FINISH_UNKNOWN, _HELD, _B.APPLIED, _S.NEEDS_REVIEW, _X.UNKNOWN),
    ),
    Row(_A.LAPSE, (_S.LEASED,), _B.NOTHING, _S.WAITING, _X.EXPIRED),
    Row(_A.LAPSE, (_S.RUNNING,), _B.NOTHING, _S.WAITING, _X.EXPIRED, _SAFE, True),
    Row(_A.LAPSE, (_S.RUNNING,), _B.NOTHING, _S.FAILED, _X.EXPIRED, _SAFE, False),
    Row(_A.LAPSE, (_S.STOPPING,), _B.NOTHING, _S.CANCELLED, _X.EXPIRED, _SAFE),
    Row(_A.LAPSE, (_S.OVERDUE,), _B.NOTHING, _S.FAILED, _X.EXPIRED, _SAFE),
    Row(_A.LAPSE, _HELD, _B.NOTHING, _S.NEEDS_REVIEW, _X.UNKNOWN, _CAREFUL),
    Row(_A.LAPSE, _OVER, _B.NOTHING),
    Row(_A.DEADLINE, (_S.WAITING,), _B.NOTHING, _S.FAILED),
    Row(_A.DEADLINE, (_S.LEASED,), _B.NOTHING, _S.FAILED, _X.EXPIRED),
    Row(_A.DEADLINE, (_S.RUNNING,), _B.NOTHING, _S.OVERDUE),
    Row(_A.DEADLINE, (_S.STOPPING, _S.OVERDUE, *_SETTLED), _B.NOTHING),
    Row(_A.CANCEL, (_S.WAITING,), _B.DONE, _S.CANCELLED),
    Row(_A.CANCEL, (_S.LEASED,), _B.DONE, _S.CANCELLED, _X.CANCELLED),
    Row(_A.CANCEL, (_S.RUNNING,), _B.INTENT, _S.STOPPING),
    Row(_A.CANCEL, (_S.STOPPING, _S.OVERDUE), _B.INTENT),
    Row(_A.CANCEL, _SETTLED, _B.STATE_CONFLICT),
    Row(_A.RETRY, (_S.FAILED, _S.CANCELLED, _S.NEEDS_REVIEW), _B.DONE, _S.WAITING),
    Row(_A.RETRY, (_S.WAITING, _S.LEASED, *_HELD, _S.SUCCEEDED), _B.STATE_CONFLICT),
    *_resolve(_A.RESOLVE_SUCCEEDED, _S.SUCCEEDED),
    *_resolve(_A.RESOLVE_FAILED, _S.FAILED),
    *_resolve(_A.RESOLVE_CANCELLED, _S.CANCELLED),
)


def row_for(act: Act, stands: Standing, safety: RecoverySafety, *, try_left: bool) -> Row:
    """The one row that an act meets."""
    return _FOUND[act, stands, safety, try_left]


def _matches(row: Row, act: Act, stands: Standing, safety: RecoverySafety, left: bool) -> bool:
    return (
        row.act is act
        and stands in row.stands
        and row.safety in (None, safety)
        and row.try_left in (None, left)
    )


def _the_one(act: Act, stands: Standing, safety: RecoverySafety, left: bool) -> Row:
    (row,) = (row for row in ROWS if _matches(row, act, stands, safety, left))
    return row


_FOUND: Final = MappingProxyType(
    {
        (act, stands, safety, left): _the_one(act, stands, safety, left)
        for act in Act
        for stands in Standing
        for safety in RecoverySafety
        for left in (True, False)
    }
)


def as_markdown() -> str:
    """The table as the protocol's page shows it."""
    lines = [
        "| what happens | while the task is | provided | answer | the task is then | its attempt |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        cells = (
            row.act.value,
            " · ".join(standing.value for standing in row.stands),
            _condition(row),
            row.answer.value,
            "as before" if row.task is None else row.task.value,
            "as before" if row.attempt is None else row.attempt.value,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _condition(row: Row) -> str:
    parts = []
    if row.safety is not None:
        parts.append(row.safety.value)
    if row.try_left is not None:
        parts.append("a try is left" if row.try_left else "no try is left")
    return ", ".join(parts)
