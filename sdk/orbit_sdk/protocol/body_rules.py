"""The rules of what frames carry, which no Python type says: forms, ranges, relations.

Under the rules of each version's frames. Each takes a value of the right shape and returns, or
raises Refused or JsonError. Every start, renewal and finish of a cluster passes here, so ids of a
frame are checked joined.
"""

from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType

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
    AssignBody,
    AssignedTask,
    AttemptRef,
    Capability,
    CapacityBody,
    CommandResult,
    ErrorBody,
    HelloBody,
    LeaseBody,
    Retry,
    WelcomeBody,
)
from .states import ATTEMPT_ACTIVE, Outcome
from .strict_json import check_json
from .times import are_times


class Refused(Exception):
    """A rule is broken; the text names the field and says how, and quotes no value."""


def require(holds: bool, rule: str) -> None:
    if not holds:
        raise Refused(rule)


def ids(*texts: str) -> None:
    for text in texts:
        if not is_id(text):
            raise Refused("an id is not 32 lowercase hexadecimal characters")


def uint64(text: str) -> None:
    require(is_uint64(text), "a uint64 is not a canonical decimal from 1 to 18446744073709551615")


def times(*texts: str | UnsetType) -> None:
    present = [text for text in texts if text is not UNSET]
    require(are_times(present), "a time is not a UTC instant of RFC 3339")


def between(value: int, low: int, high: int, field: str) -> None:
    if not low <= value <= high:
        raise Refused(f"{field}: not between {low} and {high}")


def refs(names: list[str], attempts: Sequence[AttemptRef]) -> None:
    """The references of one frame and all its other ids."""
    for ref in attempts:
        names += (ref.task_id, ref.attempt_id)
    if {*map(len, names)} != {32} or not are_ids("".join(names)):
        raise Refused("an id is not 32 lowercase hexadecimal characters")
    for ref in attempts:
        if not is_uint64(ref.epoch):
            raise Refused("epoch: not a canonical decimal from 1 to 18446744073709551615")
        if not is_secret(ref.lease_secret):
            raise Refused("lease_secret: not 32 bytes in strict base64url")


def capability(value: Capability | AssignedTask) -> None:
    require(
        len(value.handler) <= HANDLER_CHARS_MAX
        and len(value.handler_version) <= HANDLER_VERSION_CHARS_MAX
        and len(value.payload_version) <= PAYLOAD_VERSION_CHARS_MAX
        and are_tokens(value.handler, value.handler_version, value.payload_version),
        "a handler, handler_version or payload_version is not a name of allowed length",
    )


def hello(body: HelloBody) -> None:
    ids(body.instance_id, body.queue_id)
    require(is_secret(body.instance_secret), "instance_secret: not 32 bytes in strict base64url")
    between(body.capacity, 1, CAPACITY_MAX, "capacity")
    between(len(body.capabilities), 1, CAPABILITIES_MAX, "number of capabilities")
    for declared in body.capabilities:
        capability(declared)
    require(len(set(body.capabilities)) == len(body.capabilities), "capabilities: two are equal")


def capacity(body: CapacityBody) -> None:
    uint64(body.sequence)
    between(body.capacity, 0, CAPACITY_MAX, "capacity")


def report(outcome: Outcome, error_code: str | UnsetType, result: Raw) -> None:
    """How an attempt ended: a code exactly where one is needed, and a result that can be kept."""
    if outcome is Outcome.SUCCEEDED:
        if error_code:
            raise Refused("error_code: must be empty or absent for SUCCEEDED")
    elif error_code is UNSET or not is_token(error_code, ERROR_CODE_CHARS_MAX):
        raise Refused("error_code: all but SUCCEEDED need a name of 1 to 64 characters")
    check_json(bytes(result), depth_max=RESULT_DEPTH_MAX)


def welcome_body(body: WelcomeBody) -> None:
    ids(body.session_id)
    uint64(body.epoch)
    times(body.server_time, body.expires_at)
    between(body.lease_duration_ms, LEASE_MS_MIN, LEASE_MS_MAX, "lease_duration_ms")


def lease(body: LeaseBody) -> None:
    times(body.lease_until, body.server_time)
    require(
        not body.active or body.state in ATTEMPT_ACTIVE,
        "state: an active lease is LEASED or RUNNING",
    )


def command_result(body: CommandResult) -> None:
    uint64(body.receipt.task_revision)
    times(body.receipt.lease_until)
    lease(body.lease)


def error(body: ErrorBody) -> None:
    require(is_token(body.code, ERROR_CODE_CHARS_MAX), "code: not a name")
    require(
        len(body.message) <= ERROR_MESSAGE_CHARS_MAX and "\0" not in body.message,
        "message: too long, or holds U+0000",
    )


def _retry(retry: Retry) -> None:
    between(retry.max_attempts, 1, ATTEMPTS_MAX, "max_attempts")
    between(retry.initial_delay_ms, 0, DELAY_MS_MAX, "initial_delay_ms")
    between(retry.max_delay_ms, 0, DELAY_MS_MAX, "max_delay_ms")
    between(retry.attempt_timeout_ms, 1, ATTEMPT_TIMEOUT_MS_MAX, "attempt_timeout_ms")


def _task(task: AssignedTask) -> None:
    ids(task.id, task.namespace_id, task.queue_id)
    uint64(task.revision)
    capability(task)
    key = task.business_key
    require(
        key is UNSET or (len(key) <= BUSINESS_KEY_CHARS_MAX and "\0" not in key),
        "business_key: too long, or holds U+0000",
    )
    times(
        task.available_at,
        task.start_deadline_at,
        task.deadline_at,
        task.cancel_requested_at,
        task.completed_at,
        task.created_at,
        task.updated_at,
    )
    _retry(task.retry)
    between(task.attempt_count, 1, ATTEMPTS_MAX, "attempt_count")
    check_json(bytes(task.payload), depth_max=PAYLOAD_DEPTH_MAX)
    if task.result is not UNSET:
        check_json(bytes(task.result), depth_max=PAYLOAD_DEPTH_MAX)


def assignment(body: AssignBody) -> None:
    ids(body.attempt_id)
    uint64(body.epoch)
    require(is_secret(body.lease_secret), "lease_secret: not 32 bytes in strict base64url")
    times(body.lease_until, body.server_time)
    _task(body.task)
