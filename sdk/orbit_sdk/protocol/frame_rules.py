"""The rules of each frame that its Python type does not say: forms, ranges, relations.

Between the typed decoder and `frames`. Each rule takes a frame of the right shape and returns, or
raises Refused or JsonError. Every start, renewal and finish of a cluster passes here, so ids of a
frame are checked joined.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType

from .ids import are_ids, is_id
from .limits import (
    ATTEMPT_TIMEOUT_MS_MAX,
    ATTEMPTS_MAX,
    BUSINESS_KEY_CHARS_MAX,
    CAPABILITIES_MAX,
    CAPACITY_MAX,
    DELAY_MS_MAX,
    ERROR_CODE_CHARS_MAX,
    ERROR_MESSAGE_CHARS_MAX,
    HANDLER_CHARS_MAX,
    HANDLER_VERSION_CHARS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    PAYLOAD_DEPTH_MAX,
    PAYLOAD_VERSION_CHARS_MAX,
    RESULT_DEPTH_MAX,
)
from .scalars import are_tokens, is_secret, is_token, is_uint64
from .shapes import (
    AckFrame,
    AssignedTask,
    AssignFrame,
    AttemptRef,
    Capability,
    CapacityFrame,
    CommandResult,
    ErrorFrame,
    FinishFrame,
    HelloFrame,
    LeaseBody,
    RenewFrame,
    ResumeFrame,
    Retry,
    StartFrame,
    WelcomeBody,
    WelcomeFrame,
)
from .states import ATTEMPT_ACTIVE, Outcome
from .strict_json import check_json
from .times import are_times


class Refused(Exception):
    """A rule is broken; the text names the field and says how, and quotes no value."""


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise Refused(rule)


def _ids(*texts: str) -> None:
    for text in texts:
        if not is_id(text):
            raise Refused("an id is not 32 lowercase hexadecimal characters")


def _uint64(text: str) -> None:
    _require(is_uint64(text), "a uint64 is not a canonical decimal from 1 to 18446744073709551615")


def _times(*texts: str | UnsetType) -> None:
    present = [text for text in texts if text is not UNSET]
    _require(are_times(present), "a time is not a UTC instant of RFC 3339")


def _between(value: int, low: int, high: int, field: str) -> None:
    if not low <= value <= high:
        raise Refused(f"{field}: not between {low} and {high}")


def _ref(message_id: str, session_id: str, ref: AttemptRef) -> None:
    task_id, attempt_id = ref.task_id, ref.attempt_id
    if not (
        len(message_id) == len(session_id) == len(task_id) == len(attempt_id) == 32
        and are_ids(f"{message_id}{session_id}{task_id}{attempt_id}")
    ):
        raise Refused("an id is not 32 lowercase hexadecimal characters")
    if not is_uint64(ref.epoch):
        raise Refused("epoch: not a canonical decimal from 1 to 18446744073709551615")
    if not is_secret(ref.lease_secret):
        raise Refused("lease_secret: not 32 bytes in strict base64url")


def _capability(value: Capability | AssignedTask) -> None:
    _require(
        len(value.handler) <= HANDLER_CHARS_MAX
        and len(value.handler_version) <= HANDLER_VERSION_CHARS_MAX
        and len(value.payload_version) <= PAYLOAD_VERSION_CHARS_MAX
        and are_tokens(value.handler, value.handler_version, value.payload_version),
        "a handler, handler_version or payload_version is not a name of allowed length",
    )


def _hello(frame: HelloFrame) -> None:
    body = frame.body
    _ids(frame.message_id, body.instance_id, body.queue_id)
    _require(is_secret(body.instance_secret), "instance_secret: not 32 bytes in strict base64url")
    _between(body.capacity, 1, CAPACITY_MAX, "capacity")
    _between(len(body.capabilities), 1, CAPABILITIES_MAX, "number of capabilities")
    for capability in body.capabilities:
        _capability(capability)
    _require(len(set(body.capabilities)) == len(body.capabilities), "capabilities: two are equal")


def _capacity(frame: CapacityFrame) -> None:
    _ids(frame.message_id, frame.session_id)
    _uint64(frame.body.sequence)
    _between(frame.body.capacity, 0, CAPACITY_MAX, "capacity")


def _attempt(frame: ResumeFrame | StartFrame | RenewFrame) -> None:
    _ref(frame.message_id, frame.session_id, frame.body)


def _finish(frame: FinishFrame) -> None:
    body = frame.body
    _ref(frame.message_id, frame.session_id, body.ref)
    if body.outcome is Outcome.SUCCEEDED:
        if body.error_code:
            raise Refused("error_code: must be empty or absent for SUCCEEDED")
    elif body.error_code is UNSET or not is_token(body.error_code, ERROR_CODE_CHARS_MAX):
        raise Refused("error_code: FAILED and UNKNOWN need a name of 1 to 64 characters")
    check_json(bytes(body.result), depth_max=RESULT_DEPTH_MAX)


def _welcome_body(body: WelcomeBody) -> None:
    _ids(body.session_id)
    _uint64(body.epoch)
    _times(body.server_time, body.expires_at)
    _between(body.lease_duration_ms, LEASE_MS_MIN, LEASE_MS_MAX, "lease_duration_ms")


def _lease(body: LeaseBody) -> None:
    _times(body.lease_until, body.server_time)
    _require(
        not body.active or body.state in ATTEMPT_ACTIVE,
        "state: an active lease is LEASED or RUNNING",
    )


def _command_result(body: CommandResult) -> None:
    _uint64(body.receipt.task_revision)
    _times(body.receipt.lease_until)
    _lease(body.lease)


def _welcome(frame: WelcomeFrame) -> None:
    _ids(frame.message_id, frame.session_id, frame.reply_to)
    _welcome_body(frame.body)


def _ack(frame: AckFrame) -> None:
    _ids(frame.message_id, frame.session_id, frame.reply_to)
    body = frame.body
    if isinstance(body, CommandResult):
        _command_result(body)
    elif isinstance(body, LeaseBody):
        _lease(body)
    else:
        _welcome_body(body)


def _error(frame: ErrorFrame) -> None:
    _ids(frame.message_id)
    for optional in (frame.session_id, frame.reply_to):
        if optional is not UNSET:
            _ids(optional)
    _require(is_token(frame.error.code, ERROR_CODE_CHARS_MAX), "code: not a name")
    message = frame.error.message
    _require(
        len(message) <= ERROR_MESSAGE_CHARS_MAX and "\0" not in message,
        "message: too long, or holds U+0000",
    )


def _retry(retry: Retry) -> None:
    _between(retry.max_attempts, 1, ATTEMPTS_MAX, "max_attempts")
    _between(retry.initial_delay_ms, 0, DELAY_MS_MAX, "initial_delay_ms")
    _between(retry.max_delay_ms, 0, DELAY_MS_MAX, "max_delay_ms")
    _between(retry.attempt_timeout_ms, 1, ATTEMPT_TIMEOUT_MS_MAX, "attempt_timeout_ms")


def _task(task: AssignedTask) -> None:
    _ids(task.id, task.namespace_id, task.queue_id)
    _uint64(task.revision)
    _capability(task)
    key = task.business_key
    _require(
        key is UNSET or (len(key) <= BUSINESS_KEY_CHARS_MAX and "\0" not in key),
        "business_key: too long, or holds U+0000",
    )
    _times(
        task.available_at,
        task.start_deadline_at,
        task.deadline_at,
        task.cancel_requested_at,
        task.completed_at,
        task.created_at,
        task.updated_at,
    )
    _retry(task.retry)
    _between(task.attempt_count, 1, ATTEMPTS_MAX, "attempt_count")
    check_json(bytes(task.payload), depth_max=PAYLOAD_DEPTH_MAX)
    if task.result is not UNSET:
        check_json(bytes(task.result), depth_max=PAYLOAD_DEPTH_MAX)


def _assign(frame: AssignFrame) -> None:
    body = frame.body
    _ids(frame.message_id, frame.session_id, body.attempt_id)
    _uint64(body.epoch)
    _require(is_secret(body.lease_secret), "lease_secret: not 32 bytes in strict base64url")
    _times(body.lease_until, body.server_time)
    _task(body.task)


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
