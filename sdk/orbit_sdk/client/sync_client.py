"""`Client`: the blocking shell over the flows. Safe to share between threads."""

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


class Client:
    """Submits tasks to one cluster, asks about them and takes them back.

    `url` and `credential` default to ORBIT_URL and ORBIT_CREDENTIAL. Each call has `timeout_s` in
    all, its retries included, and raises an `OrbitError`; `transport` replaces the network, as
    httpx defines it.
    """

    def __init__(
        self,
        url: str | None = None,
        credential: str | None = None,
        *,
        timeout_s: float = OPERATION_DEADLINE_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(transport=transport, **http_settings(url, credential))
        self._timeout_s = timeout_s
        self._around = Surroundings(time.monotonic, random.random, lambda: secrets.token_hex(16))

    def submit(self, handler: str, payload: object, **options: Unpack[SubmitOptions]) -> Submitted:
        """Submit one task; returns once it is durable. The options are those of `Submission`.

        Repeating a call with its key returns the same task with `deduplicated` true; the same key
        with another meaning raises Conflict. Unavailable carries the key in its details: repeat
        with that one.
        """
        submission = Submission(handler=handler, payload=payload, **options)
        return self._run(flows.submit(submission, self._around, self._timeout_s))

    def submit_batch(self, submissions: Sequence[Submission]) -> list[BatchResult]:
        """Submit any number of tasks; one result an item, in order, each with task or error.

        Every request of at most 1000 items has the whole time-out for itself.
        """
        return self._run(flows.submit_batch(submissions, self._around, self._timeout_s))

    def get(self, task_id: str) -> Task:
        """The task as it is now. Raises NotFound."""
        return self._run(flows.get_task(task_id, self._around, self._timeout_s))

    def attempts(self, task_id: str) -> list[Attempt]:
        """Every attempt of the task. Raises NotFound."""
        return self._run(flows.list_attempts(task_id, self._around, self._timeout_s))

    def wait(self, task_id: str, timeout_s: float = 60.0) -> Task:
        """The task once it has settled: succeeded, failed, cancelled or in need of review.

        Asks at growing intervals of at most 2 s. Raises WaitTimeout, NotFound.
        """
        return self._run(flows.wait(task_id, self._around, timeout_s))

    def cancel(
        self,
        task_id: str,
        reason: str,
        *,
        expected_revision: int | None = None,
        key: str | None = None,
    ) -> TaskChange:
        """Take a task back, and say why.

        What waits or has not started is CANCELLED at once. What runs is asked to stop and is
        RUNNING still: `wait` for how it ended, since it may succeed all the same. Raises Conflict
        if it is settled already, NotFound.
        """
        wish = Wish(reason, key, expected_revision)
        return self._run(operations.cancel(task_id, wish, self._around, self._timeout_s))

    def retry(
        self,
        task_id: str,
        reason: str,
        *,
        expected_revision: int | None = None,
        deadline_at: datetime | None = None,
        key: str | None = None,
    ) -> TaskChange:
        """Give a task that failed, was cancelled or needs review one more attempt, and say why.

        Without `expected_revision` it is decided on the task as it is now. `deadline_at` is needed
        when the task's own has passed. Raises Conflict, NotFound.
        """
        wish = Wish(reason, key, expected_revision)
        flow = operations.retry(task_id, wish, deadline_at, self._around, self._timeout_s)
        return self._run(flow)

    def resolve(
        self,
        task_id: str,
        outcome: ReviewOutcome,
        reason: str,
        evidence: object,
        *,
        expected_revision: int | None = None,
        key: str | None = None,
    ) -> TaskChange:
        """Say how a task that needs review ended, why, and on what evidence (any JSON but null).

        Raises Conflict if it needs none or has changed since `expected_revision`, NotFound.
        """
        wish = Wish(reason, key, expected_revision)
        around = self._around
        flow = operations.resolve(task_id, outcome, evidence, wish, around, self._timeout_s)
        return self._run(flow)

    def queue(self, id_or_name: str) -> Queue:
        """A queue of this application. Raises NotFound."""
        return self._run(flows.get_queue(id_or_name, self._around, self._timeout_s))

    def queues(self) -> list[Queue]:
        """Every queue of this application."""
        return self._run(flows.list_queues(self._around, self._timeout_s))

    def create_queue(self, name: str) -> Queue:
        """Create a queue. Raises Conflict if the name is taken."""
        return self._run(flows.create_queue(name, self._around, self._timeout_s))

    def pause_queue(
        self,
        id_or_name: str,
        reason: str,
        *,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> QueueChange:
        """Pause a queue, and say why: once this returns, nothing is granted and nothing starts.

        What runs goes on. Raises Conflict if somebody else changed it meanwhile, NotFound.
        """
        wish = Wish(reason, key, expected_version)
        flow = operations.set_gate(id_or_name, True, wish, self._around, self._timeout_s)
        return self._run(flow)

    def resume_queue(
        self,
        id_or_name: str,
        reason: str,
        *,
        expected_version: int | None = None,
        key: str | None = None,
    ) -> QueueChange:
        """Let a queue's tasks be granted and started again, and say why."""
        wish = Wish(reason, key, expected_version)
        flow = operations.set_gate(id_or_name, False, wish, self._around, self._timeout_s)
        return self._run(flow)

    def close(self) -> None:
        """Close the connections; calls afterwards fail."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T]) -> T:
        reply: Reply = None
        while True:
            try:
                step = flow.send(reply)
            except StopIteration as done:
                result: T = done.value
                return result
            reply = self._perform(step)

    def _perform(self, step: Step) -> Reply:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return answer_of(self._http.request(**request_parts(step)))
        except httpx.RequestError as error:
            return no_answer(error)
