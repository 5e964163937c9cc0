"""Wire bodies from store outcomes: what a worker is told, apart from how a version frames it.

Pure. Under the dialects, which put these bodies into frames.
"""

from datetime import datetime
from typing import Final, Literal, TypeAlias, cast

import msgspec

from gateway.worker.dialect import Operation
from orbit_sdk.protocol import frames
from orbit_sdk.protocol.errors import ERRORS, ErrorCode
from orbit_sdk.protocol.states import AttemptState, TaskState
from orbit_sdk.protocol.times import time_text
from store.commands import CommandOutcome
from store.dispatch import Assignment

Word: TypeAlias = Literal["start", "renew", "finish"]
_Disposition: TypeAlias = Literal["APPLIED", "EVIDENCE_ONLY"]


class _TimeTexts:
    """The wire text of an instant; commands of one batch share theirs, so the last one is kept."""

    __slots__ = ("_at", "_text")

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._text = ""

    def __call__(self, at: datetime | None) -> str:
        assert at is not None, "an ok outcome carries its instants"
        if at != self._at:
            self._text = time_text(at)
            self._at = at
        return self._text


_server_time_text = _TimeTexts()
_lease_until_text = _TimeTexts()
_receipt_until_text = _TimeTexts()
_WORDS: Final[dict[Operation, Word]] = {
    Operation.START: "start",
    Operation.RENEW: "renew",
    Operation.FINISH: "finish",
}


def outcome_body(
    operation: Operation, outcome: CommandOutcome
) -> frames.LeaseBody | frames.CommandResult:
    """What an operation on a socket is answered with: a resume with the lease as checked just now
    (R-040), any other with its result."""
    if operation is Operation.RESUME:
        return _lease(outcome)
    return command_result(_WORDS[operation], outcome)


def command_result(operation: Word, outcome: CommandOutcome) -> frames.CommandResult:
    """The receipt of a start, renew or finish, and the lease beside it (R-039)."""
    receipt = frames.Receipt(
        operation,
        cast(TaskState, outcome.task_state),
        cast(AttemptState, outcome.attempt_state),
        str(outcome.task_revision),
        _receipt_until_text(outcome.receipt_lease_until),
        cast(_Disposition, outcome.disposition),
    )
    return frames.CommandResult(receipt, _lease(outcome), outcome.deduplicated)


def error_body(code: ErrorCode) -> frames.ErrorBody:
    """The public text of a code."""
    return frames.ErrorBody(code, ERRORS[code].message)


def assign_body(assignment: Assignment, epoch: str, lease_secret: str) -> frames.AssignBodyRaw:
    """An assignment; the task's JSON is spliced in as the store made it (R-030)."""
    return frames.AssignBodyRaw(
        msgspec.Raw(assignment.task),
        assignment.attempt_id,
        epoch,
        lease_secret,
        assignment.lease_until,
        assignment.server_time,
    )


def _lease(outcome: CommandOutcome) -> frames.LeaseBody:
    return frames.LeaseBody(
        outcome.active,
        cast(AttemptState, outcome.lease_state),
        _lease_until_text(outcome.lease_until),
        _server_time_text(outcome.server_time),
    )
