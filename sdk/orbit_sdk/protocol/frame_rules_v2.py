"""The rules of each frame of `pulse.worker.v2` that its Python type does not say.

Between the typed decoder and `frames_v2`; the rules of what frames carry are v1's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET

from . import body_rules as rules
from .limits import ERROR_CODE_CHARS_MAX, FRAME_ITEMS_MAX
from .scalars import is_token
from .shapes import CommandResult, LeaseBody, WelcomeBody
from .shapes_v2 import (
    AckFrame,
    AssignFrame,
    AttemptFrame,
    CancelFrame,
    CapacityFrame,
    DrainFrame,
    ErrorFrame,
    FinishFrame,
    HelloFrame,
    ItemResult,
    RenewFrame,
    ResumeFrame,
    StartFrame,
    WelcomeFrame,
)


def _number(items: Sequence[object], field: str) -> None:
    rules.between(len(items), 1, FRAME_ITEMS_MAX, f"number of {field}")


def _hello(frame: HelloFrame) -> None:
    rules.ids(frame.message_id)
    rules.hello(frame.body)


def _capacity(frame: CapacityFrame) -> None:
    rules.ids(frame.message_id, frame.session_id)
    rules.capacity(frame.body)


def _attempts(frame: AttemptFrame) -> None:
    items = frame.body.items
    _number(items, "items")
    names = [item.message_id for item in items]
    rules.refs([frame.message_id, frame.session_id, *names], items)


def _finishes(frame: FinishFrame) -> None:
    items = frame.body.items
    _number(items, "items")
    names = [item.message_id for item in items]
    rules.refs([frame.message_id, frame.session_id, *names], [item.ref for item in items])
    for item in items:
        rules.report(item.outcome, item.error_code, item.result)


def _welcome(frame: WelcomeFrame) -> None:
    rules.ids(frame.message_id, frame.session_id, frame.reply_to)
    rules.welcome_body(frame.body)


def _ack(frame: AckFrame) -> None:
    rules.ids(frame.message_id, frame.session_id, frame.reply_to)
    body = frame.body
    if isinstance(body, WelcomeBody):
        rules.welcome_body(body)
    else:
        _number(body.results, "results")
        for result in body.results:
            _result(result)


def _result(result: ItemResult) -> None:
    if isinstance(result, CommandResult):
        rules.command_result(result)
    elif isinstance(result, LeaseBody):
        rules.lease(result)
    else:
        rules.error(result.error)


def _assign(frame: AssignFrame) -> None:
    rules.ids(frame.message_id, frame.session_id)
    _number(frame.body.assignments, "assignments")
    for assignment in frame.body.assignments:
        rules.assignment(assignment)


def _error(frame: ErrorFrame) -> None:
    rules.ids(frame.message_id)
    for optional in (frame.session_id, frame.reply_to):
        if optional is not UNSET:
            rules.ids(optional)
    rules.error(frame.error)


def _cancel(frame: CancelFrame) -> None:
    body = frame.body
    rules.ids(frame.message_id, frame.session_id, body.attempt_id, body.task_id)
    rules.uint64(body.epoch)


def _drain(frame: DrainFrame) -> None:
    rules.ids(frame.message_id, frame.session_id)
    rules.require(is_token(frame.body.reason, ERROR_CODE_CHARS_MAX), "reason: not a name")


CLIENT_RULES: Final[Mapping[type, Callable[[Any], None]]] = {
    HelloFrame: _hello,
    CapacityFrame: _capacity,
    ResumeFrame: _attempts,
    StartFrame: _attempts,
    RenewFrame: _attempts,
    FinishFrame: _finishes,
}
"""What to check of each client frame."""

SERVER_RULES: Final[Mapping[type, Callable[[Any], None]]] = {
    WelcomeFrame: _welcome,
    AckFrame: _ack,
    AssignFrame: _assign,
    ErrorFrame: _error,
    CancelFrame: _cancel,
    DrainFrame: _drain,
}
"""What to check of each server frame."""
