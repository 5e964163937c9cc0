"""Operations on tasks and queues that exist (R-065, R-066, OP-32, R-087).

Each has a permission of its own, a key, a reason, and the revision or version that its caller saw.
It goes through a lane like every write, and is answered only after its commit; where no answer came
in time it is `unavailable`, and may be sent again with its key whatever became of it.
"""

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import Request

from gateway import limits
from gateway.commands import Commands
from gateway.credentials import Grant, Scope
from gateway.hints import Hints
from gateway.http.answers import Answer, ApiError
from gateway.http.auth import Gate
from gateway.http.queues import queue_named
from gateway.http.requests import key_of, read_json_body
from gateway.lanes import Lane, Refused
from gateway.store_calls import StoreCalls, is_passing
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.ids import is_id
from orbit_sdk.protocol.operations import (
    decode_cancel,
    decode_gate,
    decode_resolve,
    decode_retry,
    operation_hash,
)
from store import dispatch, queries
from store.operations import CancelTask, ResolveTask, RetryTask, SetGate, TaskOutcome

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome


class ChangedTask(msgspec.Struct, frozen=True):
    """A task after an operation, as its first answer said."""

    id: str
    state: str
    revision: str
    deduplicated: bool


class ChangedQueue(msgspec.Struct, frozen=True):
    """A queue after an operation, as its first answer said."""

    id: str
    name: str
    paused: bool
    control_version: str
    deduplicated: bool


class OperationResource:
    """The handlers of paths that end in a colon and a verb."""

    def __init__(self, gate: Gate, commands: Commands, calls: StoreCalls, hints: Hints) -> None:
        self._gate = gate
        self._commands = commands
        self._calls = calls
        self._hints = hints

    async def cancel(self, request: Request) -> Answer:
        """Take a task back: 200 when it is cancelled, 202 when it runs and was asked to stop."""
        grant = await self._gate.require(request, Scope.CANCEL)
        key = key_of(request)
        body = decode_cancel(await read_json_body(request, wire.JSON_BYTES_MAX))
        expected = body.expected_revision
        command = CancelTask(
            grant.namespace_id,
            await self._task(request, grant),
            key,
            operation_hash("task.cancel", body),
            None if expected is None else int(expected),
            body.reason,
            grant.key_id,
        )
        outcome = await self._ask(self._commands.cancel, command)
        return _task_answer(command.task_id, outcome)

    async def retry(self, request: Request) -> Answer:
        """Give a task that failed, was cancelled or needs review one more attempt."""
        grant = await self._gate.require(request, Scope.RETRY)
        key = key_of(request)
        body = decode_retry(await read_json_body(request, wire.JSON_BYTES_MAX))
        command = RetryTask(
            grant.namespace_id,
            await self._task(request, grant),
            key,
            operation_hash("task.retry", body),
            int(body.expected_revision),
            body.deadline_at,
            body.reason,
            grant.key_id,
        )
        outcome = await self._ask(self._commands.retry, command)
        return _task_answer(command.task_id, outcome)

    async def resolve(self, request: Request) -> Answer:
        """Say how a task that needs review ended."""
        grant = await self._gate.require(request, Scope.REVIEW)
        key = key_of(request)
        body = decode_resolve(await read_json_body(request, wire.JSON_BYTES_MAX))
        command = ResolveTask(
            grant.namespace_id,
            await self._task(request, grant),
            key,
            operation_hash("task.resolve", body),
            int(body.expected_revision),
            body.outcome,
            body.reason,
            grant.key_id,
            bytes(body.evidence),
        )
        outcome = await self._ask(self._commands.resolve, command)
        return _task_answer(command.task_id, outcome)

    async def pause(self, request: Request) -> Answer:
        """Close a queue's gate: after this answer nothing is granted and nothing starts."""
        return await self._set_gate(request, paused=True)

    async def resume(self, request: Request) -> Answer:
        """Open a queue's gate again."""
        return await self._set_gate(request, paused=False)

    async def _set_gate(self, request: Request, *, paused: bool) -> Answer:
        grant = await self._gate.require(request, Scope.MANAGE)
        key = key_of(request)
        body = decode_gate(await read_json_body(request, wire.JSON_BYTES_MAX))
        queue = await queue_named(self._calls, grant, request.path_params["queue"])
        command = SetGate(
            grant.namespace_id,
            queue.id,
            key,
            operation_hash("queue.pause" if paused else "queue.resume", body),
            int(body.expected_version),
            paused,
            body.reason,
            grant.key_id,
        )
        outcome = await self._ask(self._commands.gates, command)
        version = str(outcome.control_version)
        if outcome.code == "state_conflict":
            raise ApiError(ErrorCode.STATE_CONFLICT, details={"control_version": version})
        if outcome.code != "done":
            raise ApiError(ErrorCode(outcome.code))
        if not paused:
            await self._wake(queue.id)
        return Answer(
            ChangedQueue(queue.id, queue.name, bool(outcome.paused), version, outcome.deduplicated)
        )

    async def _wake(self, queue_id: str) -> None:
        """Tell of what became due behind the gate; the dispatchers find it without us too."""
        try:
            self._hints.wake(await self._calls.read(dispatch.due_routes, [queue_id]))
        except Exception as error:
            if not is_passing(error):
                raise

    async def _task(self, request: Request, grant: Grant) -> str:
        """The task of the path, if the credential's queues leave room for doubt."""
        task_id: str = request.path_params["task_id"]
        if not is_id(task_id):
            raise ApiError(ErrorCode.NOT_FOUND)
        if grant.queue_ids is not None:
            queue_id = await self._calls.read(queries.find_queue_of, grant.namespace_id, task_id)
            if queue_id is None:
                raise ApiError(ErrorCode.NOT_FOUND)
            if not grant.allows_queue(queue_id):
                raise ApiError(ErrorCode.FORBIDDEN)
        return task_id

    @staticmethod
    async def _ask(lane: Lane[C, O], command: C) -> O:
        """The outcome of one command. Raises ApiError when the store did not judge it in time."""
        if lane.stuck_s() > limits.STUCK_S:
            raise ApiError(ErrorCode.UNAVAILABLE)
        answered: asyncio.Future[O | Refused] = asyncio.get_running_loop().create_future()

        def reply(_command: C, outcome: O | Refused) -> None:
            if not answered.done():
                answered.set_result(outcome)

        if not lane.offer(command, reply):
            raise ApiError(ErrorCode.RATE_LIMITED)
        try:
            async with asyncio.timeout(limits.SUBMIT_WAIT_S):
                outcome = await answered
        except TimeoutError:
            raise ApiError(ErrorCode.UNAVAILABLE) from None
        if isinstance(outcome, Refused):
            raise ApiError(outcome.code)
        return outcome


def _task_answer(task_id: str, outcome: TaskOutcome) -> Answer:
    if outcome.code not in ("done", "intent"):
        details = {}
        if outcome.code == "state_conflict" and outcome.task_state is not None:
            details = {"state": outcome.task_state, "revision": str(outcome.task_revision)}
        raise ApiError(ErrorCode(outcome.code), details=details)
    assert outcome.task_state is not None
    changed = ChangedTask(
        task_id, outcome.task_state, str(outcome.task_revision), outcome.deduplicated
    )
    return Answer(changed, 202 if outcome.code == "intent" else 200)
