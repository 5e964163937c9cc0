"""Tasks over HTTP: submit one, submit many, read one, list its attempts (R-060 to R-063)."""

import asyncio
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.requests import Request

from gateway.credentials import Grant, Scope
from gateway.http.answers import Answer, ApiError
from gateway.http.auth import Gate
from gateway.http.requests import cursor_position, cursor_text, key_of, page_of, read_json_body
from gateway.http.submission import Rejected, Submissions, item_answer, status_of
from gateway.store_calls import StoreCalls
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.bodies import (
    BodyError,
    SubmitBody,
    decode_batch,
    decode_batch_item,
    decode_submit,
)
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.ids import is_id
from orbit_sdk.protocol.times import time_text
from store import queries

_ITEMS_A_TURN: Final = 100
"""Items read before other work of the loop gets its turn."""


class TaskResource:
    """The handlers under `/v1/tasks`."""

    def __init__(self, gate: Gate, submissions: Submissions, calls: StoreCalls) -> None:
        self._gate = gate
        self._submissions = submissions
        self._calls = calls

    async def submit(self, request: Request) -> Answer:
        """Submit one task, idempotently by its Idempotency-Key (R-060)."""
        grant = await self._gate.require(request, Scope.SUBMIT)
        key = key_of(request)
        body = decode_submit(await read_json_body(request, wire.HTTP_BODY_BYTES_MAX))
        (result,) = await self._submissions.submit(grant, [(key, body)])
        if isinstance(result, Rejected):
            raise ApiError(result.code, result.part.message, result.part.details)
        return Answer(result, status_of(result))

    async def batch_submit(self, request: Request) -> Answer:
        """Submit many, each item idempotent by its submission_key (R-061, R-108)."""
        grant = await self._gate.require(request, Scope.SUBMIT)
        body = await read_json_body(request, wire.BATCH_BODY_BYTES_MAX)
        items: list[tuple[str, SubmitBody] | Rejected] = []
        for index, raw in enumerate(decode_batch(body)):
            if index and index % _ITEMS_A_TURN == 0:
                await asyncio.sleep(0)
            try:
                item = decode_batch_item(raw)
                items.append((item.submission_key, item))
            except BodyError as error:
                items.append(Rejected.of_body(error))
        results = await self._submissions.submit(grant, items)
        return Answer(
            {"results": [item_answer(index, result) for index, result in enumerate(results)]}
        )

    async def read(self, request: Request) -> Answer:
        """The authoritative state of a task and its result (R-062)."""
        _, task = await self._task(request)
        return Answer(_task_data(task))

    async def attempts(self, request: Request) -> Answer:
        """The attempts of a task, oldest first, page by page (R-063)."""
        limit, cursor = page_of(request)
        after = _epoch_of(cursor)
        grant, task = await self._task(request)
        rows = await self._calls.read(
            queries.list_attempts, grant.namespace_id, task.id, after, limit + 1
        )
        more = cursor_text(str(rows[limit - 1].epoch)) if len(rows) > limit else None
        return Answer({"items": [_attempt_data(row) for row in rows[:limit]], "next_cursor": more})

    async def _task(self, request: Request) -> tuple[Grant, queries.TaskView]:
        grant = await self._gate.require(request, Scope.READ)
        task_id = request.path_params["task_id"]
        if not is_id(task_id):
            raise ApiError(ErrorCode.NOT_FOUND)
        task = await self._calls.read(queries.get_task, grant.namespace_id, task_id)
        if task is None:
            raise ApiError(ErrorCode.NOT_FOUND)
        if not grant.allows_queue(task.queue_id):
            raise ApiError(ErrorCode.FORBIDDEN)
        return grant, task


def _epoch_of(cursor: str | None) -> int:
    if cursor is None:
        return 0
    position = cursor_position(cursor)
    if not (position.isascii() and position.isdecimal() and len(position) <= 18):
        raise ApiError(ErrorCode.BAD_REQUEST, "The cursor is not valid.", {"field": "cursor"})
    return int(position)


def _time(at: datetime | None) -> str | None:
    return None if at is None else time_text(at)


def _raw(value: bytes | None) -> msgspec.Raw | None:
    return None if value is None else msgspec.Raw(value)


def _task_data(task: queries.TaskView) -> dict[str, Any]:
    return {
        "id": task.id,
        "namespace_id": task.namespace_id,
        "queue_id": task.queue_id,
        "state": task.state,
        "revision": str(task.revision),
        "handler": task.handler,
        "handler_version": task.handler_version,
        "payload_version": task.payload_version,
        "payload": _raw(task.payload),
        "priority": task.priority,
        "business_key": task.business_key,
        "available_at": time_text(task.available_at),
        "start_deadline_at": _time(task.start_deadline_at),
        "deadline_at": time_text(task.deadline_at),
        "recovery_safety": task.recovery_safety,
        "retry": {
            "max_attempts": task.max_attempts,
            "initial_delay_ms": task.initial_delay_ms,
            "max_delay_ms": task.max_delay_ms,
            "attempt_timeout_ms": task.attempt_timeout_ms,
        },
        "attempt_count": task.attempt_count,
        "attempt_id": task.attempt_id,
        "error_code": task.error_code,
        "result": _raw(task.result),
        "created_at": time_text(task.created_at),
        "updated_at": time_text(task.updated_at),
        "cancel_requested_at": _time(task.cancel_requested_at),
        "cancel_reason": task.cancel_reason,
        "completed_at": _time(task.completed_at),
        "resolved_at": _time(task.resolved_at),
        "resolve_reason": task.resolve_reason,
    }


def _attempt_data(attempt: queries.AttemptView) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "epoch": str(attempt.epoch),
        "state": attempt.state,
        "instance_id": attempt.instance_id,
        "granted_at": time_text(attempt.granted_at),
        "started_at": _time(attempt.started_at),
        "finished_at": _time(attempt.finished_at),
        "lease_until": time_text(attempt.lease_until),
        "error_code": attempt.error_code,
        "result": _raw(attempt.result),
        "cancel": _cancel_data(attempt),
    }


def _cancel_data(attempt: queries.AttemptView) -> dict[str, Any] | None:
    """How a stop went, from the wish to the end; None when nobody wished it."""
    if attempt.intent is None:
        return None
    return {
        "cause": attempt.intent,
        "requested_at": _time(attempt.intent_at),
        "acknowledged_at": _time(attempt.acknowledged_at),
        "forced_at": _time(attempt.forced_at),
        "finished_at": _time(attempt.finished_at),
    }
