"""Queues over HTTP: list, read, create (R-072)."""

from typing import Any, Final

import msgspec
from starlette.requests import Request

from gateway.credentials import Grant, Scope
from gateway.http.answers import Answer, ApiError
from gateway.http.auth import Gate
from gateway.http.openapi import NewQueue
from gateway.http.requests import cursor_position, cursor_text, page_of, read_json_body
from gateway.store_calls import StoreCalls
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.ids import IdSource
from orbit_sdk.protocol.scalars import is_token
from orbit_sdk.protocol.strict_json import JsonError, check_json
from store import queries

# Clients look queues up, and so does a worker, which knows its own by name alone.
_LOOK_SCOPES: Final = (Scope.READ, Scope.WORK)


class QueueResource:
    """The handlers under `/v1/queues`."""

    def __init__(self, gate: Gate, calls: StoreCalls, ids: IdSource) -> None:
        self._gate = gate
        self._calls = calls
        self._ids = ids

    async def list_all(self, request: Request) -> Answer:
        """The queues that the credential reaches, by name, page by page."""
        grant = await self._gate.require(request, *_LOOK_SCOPES)
        limit, cursor = page_of(request)
        after = "" if cursor is None else cursor_position(cursor)
        rows = await self._calls.read(queries.list_queues, grant.namespace_id)
        left = sorted(
            (row for row in rows if grant.allows_queue(row.id) and row.name > after),
            key=lambda row: row.name,
        )
        more = cursor_text(left[limit - 1].name) if len(left) > limit else None
        return Answer({"items": [_queue_data(row) for row in left[:limit]], "next_cursor": more})

    async def read(self, request: Request) -> Answer:
        """One queue by id or name, as it is now."""
        grant = await self._gate.require(request, *_LOOK_SCOPES)
        queue = await queue_named(self._calls, grant, request.path_params["queue"])
        return Answer(_queue_data(queue))

    async def create(self, request: Request) -> Answer:
        """Make a queue; a name that is taken is a `state_conflict`."""
        grant = await self._gate.require(request, Scope.MANAGE)
        if grant.queue_ids is not None:
            raise ApiError(ErrorCode.FORBIDDEN)
        body = await read_json_body(request, wire.HTTP_BODY_BYTES_MAX)
        try:
            check_json(body)
            name = msgspec.json.decode(body, type=NewQueue).name
        except (JsonError, msgspec.DecodeError):
            raise ApiError(ErrorCode.BAD_REQUEST, "The body must be {name}.") from None
        if not is_token(name, wire.QUEUE_NAME_CHARS_MAX):
            raise ApiError(ErrorCode.VALIDATION_FAILED, details={"field": "name"})
        queue, made = await self._calls.read(
            queries.create_queue, grant.namespace_id, self._ids.next(), name
        )
        if not made:
            raise ApiError(ErrorCode.STATE_CONFLICT, "The name is taken.", {"queue_id": queue.id})
        return Answer(_queue_data(queue), 201)


async def queue_named(calls: StoreCalls, grant: Grant, id_or_name: str) -> queries.Queue:
    """A queue that the credential reaches. Raises ApiError `queue_not_found` or `forbidden`."""
    queue = None
    if is_token(id_or_name, wire.QUEUE_NAME_CHARS_MAX):
        queue = await calls.read(queries.find_queue, grant.namespace_id, id_or_name)
    if queue is None:
        raise ApiError(ErrorCode.QUEUE_NOT_FOUND)
    if not grant.allows_queue(queue.id):
        raise ApiError(ErrorCode.FORBIDDEN)
    return queue


def _queue_data(queue: queries.Queue) -> dict[str, Any]:
    return {
        "id": queue.id,
        "name": queue.name,
        "paused": queue.paused,
        "control_version": str(queue.control_version),
        "reason": queue.reason,
    }
