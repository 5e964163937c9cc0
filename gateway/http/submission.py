"""Accepting submissions: one or many, through the same lane, each once per key (R-090 to R-097).

Where: between the task endpoints and the submit lane. An item is answered only after its commit; an
item that no answer came for within the patience is `unavailable`, and may be sent again with its
key whatever became of it. One bad item never spoils another (OP-45).
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway import limits
from gateway.catalog import Catalog, Triple
from gateway.commands import Commands
from gateway.credentials import Grant
from gateway.hints import Hints
from gateway.http.answers import ErrorPart, error_part, http_status
from gateway.lanes import Refused
from gateway.store_calls import is_passing
from orbit_sdk.protocol.bodies import BodyError, SubmitBody, submit_hash
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.ids import IdSource
from store.commands import SubmitOutcome, SubmitTask
from store.queries import Queue


class Accepted(msgspec.Struct, frozen=True):
    """An accepted submission, new or known."""

    id: str
    state: str
    revision: str
    deduplicated: bool


class Rejected(msgspec.Struct, frozen=True):
    """A refused submission."""

    code: ErrorCode
    part: ErrorPart

    @classmethod
    def of(cls, code: ErrorCode) -> "Rejected":
        """A refusal in the code's own words."""
        return cls(code, error_part(code))

    @classmethod
    def of_body(cls, error: BodyError) -> "Rejected":
        """A refusal in the reader's words."""
        return cls(error.code, error_part(error.code, error.reason, error.field))


Result = Accepted | Rejected


class _Answers:
    """Gathers the lane's replies of one request; one future for all of them."""

    def __init__(self) -> None:
        self.by_task: dict[str, SubmitOutcome | Refused] = {}
        self.missing = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(self, command: SubmitTask, outcome: SubmitOutcome | Refused) -> None:
        self.by_task[command.task_id] = outcome
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(None)


class Submissions:
    """Turns read bodies into committed tasks."""

    def __init__(self, commands: Commands, catalog: Catalog, hints: Hints, ids: IdSource) -> None:
        self._commands = commands
        self._catalog = catalog
        self._hints = hints
        self._ids = ids

    async def submit(
        self, grant: Grant, items: Sequence[tuple[str, SubmitBody] | Rejected]
    ) -> list[Result]:
        """The result of each (key, body), in order; what is rejected already stays so."""
        if self._commands.submit.stuck_s() > limits.STUCK_S:
            # The store has not answered for a while: do not let more pile up behind it.
            away = Rejected.of(ErrorCode.UNAVAILABLE)
            return [item if isinstance(item, Rejected) else away for item in items]
        queues = await self._queues(grant, items)
        routes = await self._routes(queues, items)
        answers = _Answers()
        prepared: list[SubmitTask | Rejected] = []
        for item in items:
            if isinstance(item, Rejected):
                prepared.append(item)
                continue
            key, body = item
            queue = queues[body.queue]
            if isinstance(queue, Rejected):
                prepared.append(queue)
                continue
            route = routes[(queue.id, body.handler, body.handler_version, body.payload_version)]
            if isinstance(route, Rejected):
                prepared.append(route)
                continue
            prepared.append(self._offer(grant, queue, route, key, body, answers))
        if answers.missing:
            try:
                async with asyncio.timeout(limits.SUBMIT_WAIT_S):
                    await answers.done
            except TimeoutError:
                pass
        return self._results(prepared, answers)

    def _offer(
        self,
        grant: Grant,
        queue: Queue,
        route_id: int,
        key: str,
        body: SubmitBody,
        answers: _Answers,
    ) -> SubmitTask | Rejected:
        retry = body.retry
        command = SubmitTask(
            grant.namespace_id,
            key,
            submit_hash(body, queue.id),
            self._ids.next(),
            queue.id,
            route_id,
            queue.gate_id,
            bytes(body.payload),
            body.priority,
            body.business_key,
            body.available_at,
            body.start_deadline_at,
            body.deadline_at,
            body.recovery_safety.value,
            retry.max_attempts,
            retry.initial_delay_ms,
            retry.max_delay_ms,
            retry.attempt_timeout_ms,
        )
        if not self._commands.submit.offer(command, answers.reply):
            return Rejected.of(ErrorCode.RATE_LIMITED)
        answers.missing += 1
        return command

    async def _queues(
        self, grant: Grant, items: Sequence[tuple[str, SubmitBody] | Rejected]
    ) -> dict[str, Queue | Rejected]:
        found: dict[str, Queue | Rejected] = {}
        for item in items:
            if isinstance(item, Rejected) or item[1].queue in found:
                continue
            found[item[1].queue] = await self._queue(grant, item[1].queue)
        return found

    async def _queue(self, grant: Grant, id_or_name: str) -> Queue | Rejected:
        try:
            queue = await self._catalog.queue(grant.namespace_id, id_or_name)
        except Exception as error:
            if not is_passing(error):
                raise
            return Rejected.of(ErrorCode.UNAVAILABLE)
        if queue is None:
            return Rejected.of(ErrorCode.QUEUE_NOT_FOUND)
        return queue if grant.allows_queue(queue.id) else Rejected.of(ErrorCode.FORBIDDEN)

    async def _routes(
        self,
        queues: dict[str, Queue | Rejected],
        items: Sequence[tuple[str, SubmitBody] | Rejected],
    ) -> dict[tuple[str, str, str, str], int | Rejected]:
        """Route of each (queue id, triple) in the batch: one call a queue that has new ones."""
        wanted: dict[str, dict[Triple, None]] = {}
        for item in items:
            if isinstance(item, Rejected):
                continue
            body = item[1]
            queue = queues[body.queue]
            if isinstance(queue, Queue):
                triple = (body.handler, body.handler_version, body.payload_version)
                wanted.setdefault(queue.id, {})[triple] = None
        routes: dict[tuple[str, str, str, str], int | Rejected] = {}
        for queue_id, triples in wanted.items():
            try:
                ids: Sequence[int | Rejected] = await self._catalog.routes(queue_id, list(triples))
            except Exception as error:
                if not is_passing(error):
                    raise
                ids = [Rejected.of(ErrorCode.UNAVAILABLE)] * len(triples)
            for triple, route_id in zip(triples, ids, strict=True):
                routes[(queue_id, *triple)] = route_id
        return routes

    def _results(
        self, prepared: Sequence[SubmitTask | Rejected], answers: _Answers
    ) -> list[Result]:
        due: dict[tuple[str, int], None] = {}
        results: list[Result] = []
        now = datetime.now(UTC)  # only for a hint: the store judges what is due
        for item in prepared:
            if isinstance(item, Rejected):
                results.append(item)
                continue
            outcome = answers.by_task.get(item.task_id)
            if outcome is None:
                results.append(Rejected.of(ErrorCode.UNAVAILABLE))
            elif isinstance(outcome, Refused):
                results.append(Rejected.of(outcome.code))
            elif outcome.task_id is None or outcome.code not in ("created", "repeat"):
                results.append(Rejected.of(ErrorCode(outcome.code)))
            else:
                created = outcome.code == "created"
                if created and (item.available_at is None or item.available_at <= now):
                    due[item.queue_id, item.route_id] = None
                results.append(
                    Accepted(outcome.task_id, outcome.state, str(outcome.revision), not created)
                )
        if due:
            self._hints.wake(due)
        return results


def status_of(result: Result) -> int:
    """The HTTP status of one result: 201 for a new task, 200 for a known one, else the error's."""
    if isinstance(result, Rejected):
        return http_status(result.code)
    return 200 if result.deduplicated else 201


def item_answer(index: int, result: Result) -> dict[str, Any]:
    """One result of a batch as it travels (OP-45)."""
    if isinstance(result, Rejected):
        return {"index": index, "status": status_of(result), "error": result.part}
    return {
        "index": index,
        "status": status_of(result),
        "id": result.id,
        "state": result.state,
        "revision": result.revision,
        "deduplicated": result.deduplicated,
    }
