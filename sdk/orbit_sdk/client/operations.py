"""Operations on tasks and queues that exist, as generators of steps (see `steps`). Pure.

Each has a key that is fixed before the first byte leaves and kept over every repeat, so an answer
that was lost costs time and never a second operation (R-087). All but a cancel name the revision or
control version that they were decided on; where the caller names none, it is read first. Errors
carry both in their details, for a repeat of the very same operation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from urllib.parse import quote

import msgspec

from orbit_sdk.business_json import NotSendable, encode_value
from orbit_sdk.client.answers import data_of
from orbit_sdk.client.bodies import utc_instant
from orbit_sdk.client.exchange import exchange
from orbit_sdk.client.flows import get_queue, get_task
from orbit_sdk.client.models import QueueChange, ReviewOutcome, TaskChange
from orbit_sdk.client.steps import Flow, Send, Surroundings
from orbit_sdk.errors import BadRequest, OrbitError
from orbit_sdk.protocol.operations import CancelBody, GateBody, ResolveBody, RetryBody

T = TypeVar("T", TaskChange, QueueChange)


@dataclass(frozen=True, slots=True)
class Wish:
    """What every operation says: why, under which key, and on what it was decided."""

    reason: str
    key: str | None = None
    expected: int | None = None


def cancel(task_id: str, wish: Wish, around: Surroundings, timeout_s: float) -> Flow[TaskChange]:
    """Take a task back. Raises Conflict if it is settled, NotFound."""
    expected = None if wish.expected is None else str(wish.expected)
    body = CancelBody(reason=wish.reason, expected_revision=expected)
    return (yield from _ask(_task_path(task_id, "cancel"), body, wish, around, timeout_s))


def retry(
    task_id: str,
    wish: Wish,
    deadline_at: datetime | None,
    around: Surroundings,
    timeout_s: float,
) -> Flow[TaskChange]:
    """Give a settled task one more attempt. Raises Conflict, NotFound, ValidationFailed."""
    wish = yield from _task_seen(task_id, wish, around, timeout_s)
    body = RetryBody(
        reason=wish.reason,
        expected_revision=str(wish.expected),
        deadline_at=utc_instant("deadline_at", deadline_at),
    )
    return (yield from _ask(_task_path(task_id, "retry"), body, wish, around, timeout_s))


def resolve(
    task_id: str,
    outcome: ReviewOutcome,
    evidence: object,
    wish: Wish,
    around: Surroundings,
    timeout_s: float,
) -> Flow[TaskChange]:
    """End a review. Raises Conflict if the task needs none, NotFound."""
    try:
        raw = msgspec.Raw(encode_value(evidence))
    except NotSendable as error:
        raise BadRequest("invalid_payload", f"evidence: {error}") from None
    wish = yield from _task_seen(task_id, wish, around, timeout_s)
    body = ResolveBody(
        reason=wish.reason, expected_revision=str(wish.expected), outcome=outcome, evidence=raw
    )
    return (yield from _ask(_task_path(task_id, "resolve"), body, wish, around, timeout_s))


def set_gate(
    id_or_name: str, paused: bool, wish: Wish, around: Surroundings, timeout_s: float
) -> Flow[QueueChange]:
    """Pause or resume a queue. Raises Conflict if it was changed since it was seen, NotFound."""
    if wish.expected is None:
        _refuse_own_key(wish, "expected_version")
        queue = yield from get_queue(id_or_name, around, timeout_s)
        wish = Wish(wish.reason, wish.key, queue.control_version)
    body = GateBody(reason=wish.reason, expected_version=str(wish.expected))
    verb = "pause" if paused else "resume"
    path = f"/v1/queues/{quote(id_or_name, safe='')}:{verb}"
    return (yield from _ask(path, body, wish, around, timeout_s, QueueChange))


def _task_seen(task_id: str, wish: Wish, around: Surroundings, timeout_s: float) -> Flow[Wish]:
    if wish.expected is not None:
        return wish
    _refuse_own_key(wish, "expected_revision")
    task = yield from get_task(task_id, around, timeout_s)
    return Wish(wish.reason, wish.key, task.revision)


def _refuse_own_key(wish: Wish, name: str) -> None:
    if wish.key is not None:
        raise BadRequest(
            "expected_needed",
            f"a key of your own needs {name}: a repeat would read a newer one, and mean another"
            " operation",
        )


def _task_path(task_id: str, verb: str) -> str:
    return f"/v1/tasks/{quote(task_id, safe='')}:{verb}"


def _ask(
    path: str,
    body: msgspec.Struct,
    wish: Wish,
    around: Surroundings,
    timeout_s: float,
    kind: type[T] = TaskChange,  # type: ignore[assignment]
) -> Flow[T]:
    key = wish.key if wish.key is not None else around.new_key()
    headers: Mapping[str, str] = {"Content-Type": "application/json", "Idempotency-Key": key}
    send = Send("POST", path, body=msgspec.json.encode(body), headers=headers)
    try:
        answer = yield from exchange(send, around, around.clock() + timeout_s)
        return msgspec.structs.replace(data_of(answer, kind), key=key)
    except OrbitError as error:
        if "idempotency_key" in error.details and wish.expected is not None:
            error.details["expected"] = str(wish.expected)
        raise
