"""The rules of each frame of `pulse.worker.v1` that its Python type does not say.

Between the typed decoder and `frames`. Each rule takes a frame of the right shape and returns, or
raises Refused or JsonError.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import UNSET

from . import body_rules as rules
from .body_rules import Refused
from .shapes import (
    AckFrame,
    AssignFrame,
    CapacityFrame,
    CommandResult,
    ErrorFrame,
    FinishFrame,
    HelloFrame,
    LeaseBody,
    RenewFrame,
    ResumeFrame,
    StartFrame,
    WelcomeFrame,
)
from .states import Outcome


def _hello(frame: HelloFrame) -> None:
    rules.ids(frame.message_id)
    rules.hello(frame.body)


def _capacity(frame: CapacityFrame) -> None:
    rules.ids(frame.message_id, frame.session_id)
    rules.capacity(frame.body)


def _attempt(frame: ResumeFrame | StartFrame | RenewFrame) -> None:
    rules.refs([frame.message_id, frame.session_id], (frame.body,))


def _finish(frame: FinishFrame) -> None:
    body = frame.body
    rules.refs([frame.message_id, frame.session_id], (body.ref,))
    if body.outcome is Outcome.CANCELLED:
        raise Refused("outcome: not an allowed value")
    rules.report(body.outcome, body.error_code, body.result)


def _welcome(frame: WelcomeFrame) -> None:
    rules.ids(frame.message_id, frame.session_id, frame.reply_to)
    rules.welcome_body(frame.body)


def _ack(frame: AckFrame) -> None:
    rules.ids(frame.message_id, frame.session_id, frame.reply_to)
    body = frame.body
    if isinstance(body, CommandResult):
        rules.command_result(body)
    elif isinstance(body, LeaseBody):
        rules.lease(body)
    else:
        rules.welcome_body(body)


def _assign(frame: AssignFrame) -> None:
    rules.ids(frame.message_id, frame.session_id)
    rules.assignment(frame.body)


def _error(frame: ErrorFrame) -> None:
    rules.ids(frame.message_id)
    for optional in (frame.session_id, frame.reply_to):
        if optional is not UNSET:
            rules.ids(optional)
    rules.error(frame.error)


CLIENT_RULES: Final[Mapping[type, Callable[[Any], None]]] = {
    HelloFrame: _hello,
    CapacityFrame: _capacity,
    ResumeFrame: _attempt,
    StartFrame: _attempt,
    RenewFrame: _attempt,
    FinishFrame: _finish,
}
"""What to check of each client frame."""

SERVER_RULES: Final[Mapping[type, Callable[[Any], None]]] = {
    WelcomeFrame: _welcome,
    AckFrame: _ack,
    AssignFrame: _assign,
    ErrorFrame: _error,
}
"""What to check of each server frame."""
