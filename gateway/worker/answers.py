"""Server frames from store outcomes: the only place that spells what a worker is told.

Pure. Every function returns the encoded text of one frame that is valid against `serverFrame`.
"""

from datetime import datetime
from typing import Literal, TypeAlias, cast

import msgspec

from orbit_sdk.protocol import frames
from orbit_sdk.protocol.errors import ERRORS, ErrorCode
from orbit_sdk.protocol.frames import PROTOCOL_VERSION
from orbit_sdk.protocol.states import AttemptState, TaskState
from orbit_sdk.protocol.times import time_text
from store.commands import CommandOutcome
from store.dispatch import Assignment

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


def welcome(message_id: str, reply_to: str, body: frames.WelcomeBody) -> bytes:
    """The answer to a hello (R-022)."""
    return frames.encode_frame(
        frames.WelcomeFrame(PROTOCOL_VERSION, message_id, body.session_id, reply_to, body)
    )


def capacity_ack(message_id: str, reply_to: str, body: frames.WelcomeBody) -> bytes:
    """The answer to a capacity update: a welcome body, by shape (R-040)."""
    return frames.encode_frame(
        frames.AckFrame(PROTOCOL_VERSION, message_id, body.session_id, reply_to, body)
    )


def lease_ack(message_id: str, session_id: str, reply_to: str, outcome: CommandOutcome) -> bytes:
    """The answer to a resume: the lease as checked just now (R-040)."""
    return frames.encode_frame(
        frames.AckFrame(PROTOCOL_VERSION, message_id, session_id, reply_to, _lease(outcome))
    )


def result_ack(
    message_id: str,
    session_id: str,
    reply_to: str,
    operation: Literal["start", "renew", "finish"],
    outcome: CommandOutcome,
) -> bytes:
    """The answer to a start, renew or finish, as a frame."""
    body = command_result(operation, outcome)
    return frames.encode_frame(
        frames.AckFrame(PROTOCOL_VERSION, message_id, session_id, reply_to, body)
    )


def command_result(
    operation: Literal["start", "renew", "finish"], outcome: CommandOutcome
) -> frames.CommandResult:
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


def error(
    message_id: str, code: ErrorCode, *, session_id: str | None, reply_to: str | None
) -> bytes:
    """A refusal (with `reply_to`) or the last word before a close (without); R-016, R-017."""
    return frames.encode_frame(
        frames.ErrorFrame(
            PROTOCOL_VERSION,
            message_id,
            frames.ErrorBody(code, ERRORS[code].message),
            msgspec.UNSET if session_id is None else session_id,
            msgspec.UNSET if reply_to is None else reply_to,
        )
    )


def assign(message_id: str, assignment: Assignment, epoch: str, lease_secret: str) -> bytes:
    """An assignment; the task's JSON is spliced in as the store made it (R-030)."""
    body = frames.AssignBodyRaw(
        msgspec.Raw(assignment.task),
        assignment.attempt_id,
        epoch,
        lease_secret,
        assignment.lease_until,
        assignment.server_time,
    )
    return frames.encode_frame(
        frames.AssignFrameRaw(PROTOCOL_VERSION, message_id, assignment.session_id, body)
    )


def _lease(outcome: CommandOutcome) -> frames.LeaseBody:
    return frames.LeaseBody(
        outcome.active,
        cast(AttemptState, outcome.lease_state),
        _lease_until_text(outcome.lease_until),
        _server_time_text(outcome.server_time),
    )
