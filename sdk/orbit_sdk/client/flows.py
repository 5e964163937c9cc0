"""What each call of a client does, as generators of steps (see `steps`). Pure.

Submitting is idempotent by key: the key is fixed before the first byte leaves and kept over every
repeat, so an answer that was lost costs time and never a second task (R-090 to R-096).
"""

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import msgspec

from orbit_sdk.client.answers import (
    AttemptPage,
    BatchPage,
    QueuePage,
    data_of,
    submitted_of,
)
from orbit_sdk.client.bodies import Chunk, chunks, submission_body
from orbit_sdk.client.exchange import exchange
from orbit_sdk.client.limits import POLL_CAP_S, POLL_FIRST_S, POLL_GROWTH
from orbit_sdk.client.models import Attempt, BatchResult, Queue, Submission, Submitted, Task
from orbit_sdk.client.steps import Answer, Flow, Pause, Send, Surroundings
from orbit_sdk.errors import OrbitError, ServerError, WaitTimeout
from orbit_sdk.protocol.limits import PAGE_MAX

_JSON = {"Content-Type": "application/json"}


def submit(submission: Submission, around: Surroundings, timeout_s: float) -> Flow[Submitted]:
    """Submit one task; the answer is there once it is durable."""
    key = submission.key if submission.key is not None else around.new_key()
    send = Send(
        "POST",
        "/v1/tasks",
        body=submission_body(submission),
        headers={**_JSON, "Idempotency-Key": key},
    )
    answer = yield from exchange(send, around, around.clock() + timeout_s)
    return msgspec.structs.replace(data_of(answer, Submitted), key=key)


def submit_batch(
    submissions: Sequence[Submission], around: Surroundings, timeout_s: float
) -> Flow[list[BatchResult]]:
    """Submit many, in requests of at most 1000 items and 16 MiB; results in input order.

    An item's refusal is its own result. A request that fails as a whole gives each of its items,
    and all later ones, that error with their keys, so that the caller can submit those again; if it
    is the first request and a repeat cannot help, nothing was accepted and the error is raised.
    """
    keys = [s.key if s.key is not None else around.new_key() for s in submissions]
    bodies = [
        submission_body(submission, submission_key=key)
        for submission, key in zip(submissions, keys, strict=True)
    ]
    results: list[BatchResult] = []
    for chunk in chunks(bodies):
        chunk_keys = keys[chunk.first : chunk.first + chunk.count]
        send = Send("POST", "/v1/tasks:batchSubmit", body=chunk.body, headers=_JSON)
        try:
            answer = yield from exchange(send, around, around.clock() + timeout_s)
            results += _chunk_results(chunk, chunk_keys, answer)
        except OrbitError as error:
            if chunk.first == 0 and not error.retryable and not isinstance(error, ServerError):
                raise
            left = enumerate(keys[chunk.first :], start=chunk.first)
            results += [BatchResult(index=i, key=key, error=error) for i, key in left]
            break
    return results


def _chunk_results(chunk: Chunk, keys: list[str], answer: Answer) -> list[BatchResult]:
    items = data_of(answer, BatchPage).results
    if [item.index for item in items] != list(range(chunk.count)):
        raise ServerError("bad_answer", "the batch answer does not have one result an item")
    results = []
    for item, key in zip(items, keys, strict=True):
        index = chunk.first + item.index
        outcome = submitted_of(item, key)
        if isinstance(outcome, Submitted):
            results.append(BatchResult(index=index, key=key, submitted=outcome))
        else:
            results.append(BatchResult(index=index, key=key, error=outcome))
    return results


def get_task(task_id: str, around: Surroundings, timeout_s: float) -> Flow[Task]:
    """The task as it is now. Raises NotFound."""
    send = Send("GET", f"/v1/tasks/{quote(task_id, safe='')}")
    answer = yield from exchange(send, around, around.clock() + timeout_s)
    return data_of(answer, Task)


def list_attempts(task_id: str, around: Surroundings, timeout_s: float) -> Flow[list[Attempt]]:
    """Every attempt of a task, page by page. A task has at most 100 started ones."""
    deadline = around.clock() + timeout_s
    send = Send(
        "GET", f"/v1/tasks/{quote(task_id, safe='')}/attempts", query={"limit": str(PAGE_MAX)}
    )
    attempts: list[Attempt] = []
    while True:
        answer = yield from exchange(send, around, deadline)
        page = data_of(answer, AttemptPage)
        attempts += page.items
        if page.next_cursor is None:
            return attempts
        send = replace(send, query={**send.query, "cursor": page.next_cursor})


def wait(task_id: str, around: Surroundings, timeout_s: float) -> Flow[Task]:
    """The task once it has settled. Raises WaitTimeout, or what asking for the task raises."""
    deadline = around.clock() + timeout_s
    pause_s = POLL_FIRST_S
    while True:
        # Gateways that are away for a while are no reason to give up a long wait, and a wait of 0 s
        # still asks once.
        task = yield from get_task(task_id, around, max(deadline - around.clock(), POLL_FIRST_S))
        if task.settled:
            return task
        left = deadline - around.clock()
        if left <= 0:
            raise WaitTimeout(
                "wait_timeout",
                f"task {task_id} is {task.state.value} after {timeout_s:g} s of waiting",
                details={"state": task.state.value, "revision": task.revision},
                retryable=True,
            )
        yield Pause(min(pause_s * (1.0 - 0.2 * around.share()), left))
        pause_s = min(pause_s * POLL_GROWTH, POLL_CAP_S)


def get_queue(id_or_name: str, around: Surroundings, timeout_s: float) -> Flow[Queue]:
    """A queue by id or name. Raises NotFound."""
    send = Send("GET", f"/v1/queues/{quote(id_or_name, safe='')}")
    answer = yield from exchange(send, around, around.clock() + timeout_s)
    return data_of(answer, Queue)


def list_queues(around: Surroundings, timeout_s: float) -> Flow[list[Queue]]:
    """Every queue of the application, page by page."""
    deadline = around.clock() + timeout_s
    query: dict[str, str] = {}
    queues: list[Queue] = []
    while True:
        answer = yield from exchange(Send("GET", "/v1/queues", query=query), around, deadline)
        page = data_of(answer, QueuePage)
        queues += page.items
        if page.next_cursor is None:
            return queues
        query = {"cursor": page.next_cursor}


def create_queue(name: str, around: Surroundings, timeout_s: float) -> Flow[Queue]:
    """Create a queue. Not repeated after a lost answer, since the repeat would find the name taken
    by the first: ask with `get_queue` then."""
    send = Send(
        "POST",
        "/v1/queues",
        body=msgspec.json.encode({"name": name}),
        headers=_JSON,
        repeatable=False,
    )
    answer = yield from exchange(send, around, around.clock() + timeout_s)
    return data_of(answer, Queue)
