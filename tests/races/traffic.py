"""A steady stream of small tasks through bare workers, and how long each waited to be assigned.

Open loop: submissions come at their rate, whatever becomes of them. A wait is from a submission's
answer to its assignment's arrival. The workers are those of the benchmark, light and without the
SDK; they end each task at once.
"""

import asyncio
import contextlib
import functools
import json
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import picows

from devcluster.processes import LOOPBACK
from loadtest.http_pipe import HttpPipe
from loadtest.link import LINKS, WorkerLink
from tests.races.arena import QUEUE
from tests.waiting import wait_until

HANDLER = "steady"
CAPACITY = 4
CONNECT_AT_A_TIME = 25
PIPES = 64
WELCOME_S = 60.0
ENDED_S = 60.0


@dataclass(slots=True)
class _Task:
    """What has come of one task so far, by this process's clock."""

    answered_at: float | None = None
    assigned_at: float | None = None
    ended: bool = False


class Traffic:
    """Workers, a submitter, and a book of the tasks that are under way."""

    def __init__(self, ports: Sequence[int], credential: str, queue_id: str, rate: float) -> None:
        self.submitted = 0
        self._ports = ports
        self._credential = credential
        self._queue_id = queue_id
        self._rate = rate
        self._links: list[WorkerLink] = []
        self._transports: list[picows.WSTransport] = []
        self._tasks: dict[str, _Task] = {}
        self._waits: list[float] = []
        self._wanted = 0
        self._window_full = asyncio.Event()

    async def join(self, count: int) -> None:
        """So many workers, spread over the gateways."""
        for start in range(0, count, CONNECT_AT_A_TIME):
            numbers = range(start, min(count, start + CONNECT_AT_A_TIME))
            await asyncio.gather(*(self._connect(number) for number in numbers))
        async with asyncio.timeout(WELCOME_S):
            await asyncio.gather(*(link.welcomed.wait() for link in self._links))

    async def window(self, count: int) -> list[float]:
        """How long each of the next so many tasks waited, in seconds, sorted."""
        self._waits, self._wanted = [], count  # of what ends from here on
        self._window_full.clear()
        async with asyncio.timeout(5 * count / self._rate + ENDED_S):
            await self._window_full.wait()
        return sorted(self._waits[:count])

    def lost_links(self) -> int:
        """How many workers' connections have ended."""
        return sum(link.closed for link in self._links)

    def errors(self) -> Counter[str]:
        """What the workers were refused."""
        return sum((Counter(link.errors) for link in self._links), Counter[str]())

    async def all_ended(self) -> None:
        """Wait until every task is ended and answered; one that came twice stays for ever."""

        async def under_way() -> int:
            return len(self._tasks)

        await wait_until(under_way, lambda count: count == 0, ENDED_S)

    def leave(self) -> None:
        for transport in self._transports:
            transport.disconnect()

    async def submit(self, enough: asyncio.Event) -> None:
        """One task after the other at the rate, until there are enough. Raises if one fails."""
        pipes = [HttpPipe(_url("http", port), self._credential, PIPES) for port in self._ports]
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            while not enough.is_set():
                at = began + self.submitted / self._rate
                if at > loop.time():
                    await asyncio.sleep(at - loop.time())
                group.create_task(self._submit_one(pipes[self.submitted % len(pipes)]))
                self.submitted += 1
        for pipe in pipes:
            pipe.close()

    async def _submit_one(self, pipe: HttpPipe) -> None:
        body = {
            "queue": QUEUE,
            "handler": HANDLER,
            "handler_version": "1",
            "payload_version": "1",
            "payload": {"text": "the quick brown fox"},
            "recovery_safety": "IDEMPOTENT",
        }
        key = f"Idempotency-Key: {secrets.token_hex(16)}\r\n"
        status, answer = await _posted(pipe, json.dumps(body).encode(), key)
        assert status in (200, 201), (status, answer[:300])
        task_id = json.loads(answer)["data"]["id"]
        task = self._tasks.setdefault(task_id, _Task())
        task.answered_at = asyncio.get_running_loop().time()
        self._note(task_id, task)

    async def _connect(self, number: int) -> None:
        link = LINKS["v2"](self._queue_id, HANDLER, CAPACITY, self._assigned, self._ended)
        transport, _ = await picows.ws_connect(
            functools.partial(_same, link),
            _url("ws", self._ports[number % len(self._ports)]) + "/v1/worker/connect",
            extra_headers={
                "Authorization": f"Bearer {self._credential}",
                "Sec-WebSocket-Protocol": "pulse.worker.v2",
            },
        )
        self._links.append(link)
        self._transports.append(transport)

    def _assigned(self, task_id: str, _at: float) -> None:
        task = self._tasks.setdefault(task_id, _Task())
        task.assigned_at = asyncio.get_running_loop().time()
        self._note(task_id, task)

    def _ended(self, task_id: str) -> None:
        task = self._tasks.setdefault(task_id, _Task())
        task.ended = True
        self._note(task_id, task)

    def _note(self, task_id: str, task: _Task) -> None:
        if task.answered_at is None or task.assigned_at is None or not task.ended:
            return
        del self._tasks[task_id]
        self._waits.append(max(0.0, task.assigned_at - task.answered_at))
        if len(self._waits) == self._wanted:
            self._window_full.set()


@asynccontextmanager
async def traffic_of(
    ports: Sequence[int], credential: str, queue_id: str, *, workers: int, rate: float
) -> AsyncIterator[Traffic]:
    """Workers and tasks while the body runs; then every task is ended by the same workers."""
    traffic = Traffic(ports, credential, queue_id, rate)
    try:
        await traffic.join(workers)
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(traffic.submit(enough))
            yield traffic
            enough.set()
        await traffic.all_ended()
        assert traffic.lost_links() == 0
        assert traffic.errors() == {}
    finally:
        traffic.leave()


async def _posted(pipe: HttpPipe, body: bytes, key: str) -> tuple[int, bytes]:
    """Sent again under its key when a connection ended that nobody had used for a while."""
    while True:
        with contextlib.suppress(ConnectionError):
            return await pipe.request("POST", "/v1/tasks", body, key)


def _same(link: WorkerLink) -> WorkerLink:
    return link


def _url(scheme: str, port: int) -> str:
    return f"{scheme}://{LOOPBACK}:{port}"
