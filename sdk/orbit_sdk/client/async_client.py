"""`AsyncClient`: the asyncio shell over the flows. Belongs to one event loop."""

import asyncio
import random
import secrets
import time
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from orbit_sdk.client import flows, operations
from orbit_sdk.client.http import answer_of, http_settings, no_answer, request_parts
from orbit_sdk.client.limits import OPERATION_DEADLINE_S
from orbit_sdk.client.models import (
    Attempt,
    BatchResult,
    Queue,
    QueueChange,
    ReviewOutcome,
    Submission,
    SubmitOptions,
    Submitted,
    Task,
    TaskChange,
)
from orbit_sdk.client.operations import Wish
from orbit_sdk.client.steps import Flow, Pause, Reply, Step, Surroundings

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio: the same calls, promises and errors."""

    def __init__(
        self,
        url: str | None = None,
        credential: str | None = None,
        *,
        timeout_s: float = OPERATION_DEADLINE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(transport=transport, **http_settings(url, credential))
        self._timeout_s = timeout_s
        self._around = Surroundings(time.monotonic, random.random, lambda: secrets.token_hex(16))

    async def submit(
        self, handler: str, payload: object, **options: Unpack[SubmitOptions]
    ) -> Submitted:
        """As `Client.submit`. Cancelling it leaves open whether the task was accepted: repeat the
        call with the same key, so give one where that matters."""
        submission = Submission(handler=handler, payload=payload, **options)
        return await self._run(flows.submit(submission, self._around, self._timeout_s))

    async def submit_batch(self, submissions: Sequence[Submission]) -> list[BatchResult]:
        """As `Client.submit_batch`."""
        return await self._run(flows.submit_batch(submissions, self._around, self._timeout_s))

    async def get(self, task_id: str) -> Task:
        """The task as it is now. Raises NotFound."""
        return await self._run(flows.get_task(task_id, self._around, self._timeout_s))

    async def attempts(self, task_id: str) -> list[Attempt]:
        """Every attempt of the task. Raises NotFound."""
        return await self._run(flows.list_attempts(task_id, self._around, self._timeout_s))

    async def wait(self, task_id: str, timeout_s: float = 60.0) -> Task:
        """As `Client.wait`."""
        return await self._run(flows.wait(task_id, self._around, timeout_s))

    async def cancel(
        self,
        task_id: str,
        reason: str,
        *,
        expected_revision: int | None = None,
        key: str | None = None,
    ) -> TaskChange:
        """As `Client.cancel`."""
        wish = Wish(reason, key, expected_revision)
        return await self._run(operations.cancel(task_id, wish, self._around, self._timeout_s))

    async def retry(
        self,
        task_id: str,
        reason: str,
        *,
        expected_revision: int | None = None,
        deadline_at: datetime | None = None,
        key: str | None = None,
    ) -> TaskChange:
        """As `Client.retry`."""
        wish = Wish(reason, key, expected_revision)
        flow = operations.retry(task_id, wish, deadline_at, self._around, self._timeout_s)
        return await self._run(flow)

    async def resolve(
        self,
        task_id: str,
        outcome: ReviewOutcome,
        reason: str,
        evidence: object,
        *,
        expected_revision: int | None = None,
        key: str | None = None,
    ) -> TaskChange:
        """As `Client.resolve`."""
        wish = Wish(reason, key, expected_revision)
        around = self._around
        flow = operations.resolve(task_id, outcome, evidence, wish, around, self._timeout_s)
        return await self._run(flow)

    async def queue(self, id_or_name: str) -> Queue:
        """A queue of this application. Raises NotFound."""
        return await self._run(flows.get_queue(id_or_name, self._around, self._timeout_s))

    async def queues(self) -> list[Queue]:
        """Every queue of this application."""
        return await self._run(flows.list_queues(self._around, self._timeout_s))

    async def create_queue(self, name: str) -> Queue:
        """Create a queue. Raises Conflict if the name is taken."""
        return await self._run(flows.create_queue(name, self._around, self._timeout_s))

    async def pause_queue(
        self,
        id_or_name: str,
        reason: str,
        *,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> QueueChange:
        """As `Client.pause_queue`."""
        wish = Wish(reason, key, expected_version)
        flow = operations.set_gate(id_or_name, True, wish, self._around, self._timeout_s)
        return await self._run(flow)

    async def resume_queue(
        self,
        id_or_name: str,
        reason: str,
        *,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> QueueChange:
        """As `Client.resume_queue`."""
        wish = Wish(reason, key, expected_version)
        flow = operations.set_gate(id_or_name, False, wish, self._around, self._timeout_s)
        return await self._run(flow)

    async def aclose(self) -> None:
        """Close the connections; calls afterwards fail."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _run(self, flow: Flow[T]) -> T:
        reply: Reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as done:
                result: T = done.value
                return result
            reply = await self._perform(step)

    async def _perform(self, step: Step) -> Reply:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return answer_of(await self._http.request(**request_parts(step)))
        except httpx.RequestError as error:
            return no_answer(error)
