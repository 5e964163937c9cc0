"""The client side of the benchmark, a process of its own: many bare workers and one submitter.

`throughput` keeps a bounded backlog by batch submission and counts finished lives in a window after
a warm-up. `latency` submits single tasks at a fixed rate, open loop, and measures from the
submission's answer to the assignment's arrival. `cancel` lets v2 workers run tasks, takes them back
one by one at a fixed rate, open loop, through the gateway that does not have the socket where there
are two, and measures from the request to the arrival of task.cancel. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import resource
import secrets
import time
from dataclasses import dataclass, field

import msgspec
import picows
import uvloop

from loadtest.http_pipe import HttpPipe
from loadtest.link import LINKS, HoldingLink, WorkerLink

HANDLER = "bench.noop"
BATCH_TASKS = 500
BACKLOG_TASKS = 3_000
SETTLE_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0


@dataclass
class Tally:
    """What happened to the tasks of one run."""

    submitted: int = 0
    finished: int = 0
    doubled: int = 0
    open: set[str] = field(default_factory=set)
    early: set[str] = field(default_factory=set)
    acked_at: dict[str, float] = field(default_factory=dict)
    assigned_at: dict[str, float] = field(default_factory=dict)
    wanted: int = 0
    running: set[str] = field(default_factory=set)
    all_run: asyncio.Event = field(default_factory=asyncio.Event)
    stopped_at: dict[str, float] = field(default_factory=dict)
    timed: bool = False
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def accept(self, task_id: str) -> None:
        """Note an acknowledged submission; a fast task may have finished before its answer."""
        self.submitted += 1
        if self.timed:
            self.acked_at[task_id] = time.monotonic()
        if task_id in self.early:
            self.early.discard(task_id)
        else:
            self.open.add(task_id)
            self.drained.clear()

    def assign(self, task_id: str, at: float) -> None:
        """Note the first assignment of a task."""
        if self.timed:
            self.assigned_at.setdefault(task_id, at)

    def run(self, task_id: str) -> None:
        """Note that a task which is to be cancelled runs."""
        self.running.add(task_id)
        if len(self.running) == self.wanted:
            self.all_run.set()

    def finish(self, task_id: str) -> None:
        """Note an acknowledged finish; a second one of the same task counts as doubled."""
        self.finished += 1
        if task_id in self.open:
            self.open.discard(task_id)
            if not self.open:
                self.drained.set()
        elif task_id in self.early:
            self.doubled += 1
        else:
            self.early.add(task_id)


_numbers = itertools.count()


def _submission(key: str | None = None) -> dict[str, object]:
    body: dict[str, object] = {
        "queue": "default",
        "handler": HANDLER,
        "handler_version": "1",
        "payload_version": "1",
        "payload": {"n": next(_numbers), "text": "the quick brown fox"},
        "recovery_safety": "IDEMPOTENT",
    }
    return body if key is None else {"submission_key": key, **body}


async def _submit_batch(pipe: HttpPipe, tally: Tally, size: int) -> None:
    prefix = secrets.token_hex(8)
    items = [_submission(f"{prefix}-{number}") for number in range(size)]
    body = msgspec.json.encode({"items": items})
    status, answer = await pipe.request("POST", "/v1/tasks:batchSubmit", body)
    if status != 200:
        raise RuntimeError(f"batch answered {status}: {answer[:300]!r}")
    for result in msgspec.json.decode(answer)["data"]["results"]:
        if result["status"] not in (200, 201):
            raise RuntimeError(f"item answered {result}")
        tally.accept(result["id"])


def _same(link: WorkerLink) -> WorkerLink:
    return link


async def _connect(args: argparse.Namespace, tally: Tally) -> list[WorkerLink]:
    pipe = HttpPipe(args.url[0], args.credential, 1)
    status, answer = await pipe.request("GET", "/v1/queues/default")
    if status != 200:
        raise RuntimeError(f"queue answered {status}: {answer[:300]!r}")
    queue_id = msgspec.json.decode(answer)["data"]["id"]
    links = []
    for number in range(args.workers):
        url = args.url[number % len(args.url)].replace("http", "ws", 1) + "/v1/worker/connect"
        told = (queue_id, HANDLER, args.capacity, tally.assign, tally.finish)
        link: WorkerLink
        if args.mode == "cancel":
            stopped = tally.stopped_at.setdefault
            link = HoldingLink(*told, on_running=tally.run, on_stopped=stopped)
        else:
            link = LINKS[args.protocol](*told)
        await picows.ws_connect(
            functools.partial(_same, link),
            url,
            extra_headers={
                "Authorization": f"Bearer {args.credential}",
                "Sec-WebSocket-Protocol": f"pulse.worker.{args.protocol}",
            },
        )
        links.append(link)
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        await asyncio.gather(*(link.welcomed.wait() for link in links))
    return links


async def _settle(tally: Tally) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            await tally.drained.wait()


async def throughput(args: argparse.Namespace, tally: Tally) -> dict[str, object]:
    """Lives a second in the window, with a backlog that never runs dry."""
    stop = asyncio.Event()

    async def submitter(pipe: HttpPipe) -> None:
        while not stop.is_set():
            if len(tally.open) < BACKLOG_TASKS:
                await _submit_batch(pipe, tally, BATCH_TASKS)
            else:
                await asyncio.sleep(0.002)

    pipes = [HttpPipe(url, args.credential, 2) for url in args.url]
    jobs = [asyncio.create_task(submitter(pipe)) for pipe in pipes for _ in range(2)]
    await asyncio.sleep(args.warmup)
    print("window-open", flush=True)
    begin, before = time.monotonic(), tally.finished
    await asyncio.sleep(args.seconds)
    took, lives = time.monotonic() - begin, tally.finished - before
    print("window-closed", flush=True)
    stop.set()
    await asyncio.gather(*jobs)
    await _settle(tally)
    return {"lives": lives, "seconds": took, "lives_per_s": lives / took}


async def latency(args: argparse.Namespace, tally: Tally) -> dict[str, object]:
    """Milliseconds from the submission's answer to the assign frame, at a fixed open-loop rate."""
    tally.timed = True
    pipes = [HttpPipe(url, args.credential, 64) for url in args.url]

    async def one(number: int) -> None:
        key = secrets.token_hex(16)
        body = msgspec.json.encode(_submission())
        pipe = pipes[number % len(pipes)]
        status, answer = await pipe.request(
            "POST", "/v1/tasks", body, f"Idempotency-Key: {key}\r\n"
        )
        if status != 201:
            raise RuntimeError(f"submit answered {status}: {answer[:300]!r}")
        tally.accept(msgspec.json.decode(answer)["data"]["id"])

    total = int((args.warmup + args.seconds) * args.rate)
    jobs: set[asyncio.Task[None]] = set()
    begin = time.monotonic()
    for number in range(total):
        wait = begin + number / args.rate - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        if number == int(args.warmup * args.rate):
            print("window-open", flush=True)
        job = asyncio.create_task(one(number))
        jobs.add(job)
        job.add_done_callback(jobs.discard)
    await asyncio.gather(*jobs)
    print("window-closed", flush=True)
    await _settle(tally)
    window = begin + args.warmup
    waits = sorted(
        max(0.0, tally.assigned_at[task] - acked) * 1000
        for task, acked in tally.acked_at.items()
        if acked >= window and task in tally.assigned_at
    )
    return _spread(args.rate, waits)


def _spread(rate: float, waits_ms: list[float]) -> dict[str, object]:
    count = len(waits_ms)
    return {
        "rate_per_s": rate,
        "count": count,
        **{f"p{p}_ms": waits_ms[min(count - 1, count * p // 100)] for p in (50, 90, 99)},
        "max_ms": waits_ms[-1],
    }


async def cancel(
    args: argparse.Namespace, tally: Tally, links: list[WorkerLink]
) -> dict[str, object]:
    """Milliseconds from a cancel request to the frame that tells the worker of it."""
    held = [link for link in links if isinstance(link, HoldingLink)]
    pipes = [HttpPipe(url, args.credential, 64) for url in args.url]
    tally.wanted = min(int(args.seconds * args.rate), args.workers * args.capacity)
    for start in range(0, tally.wanted, BATCH_TASKS):
        await _submit_batch(pipes[0], tally, min(BATCH_TASKS, tally.wanted - start))
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        await tally.all_run.wait()
    home = {task: number for number, link in enumerate(held) for task in link.tasks}
    asked_at: dict[str, float] = {}

    async def one(task_id: str) -> None:
        # One further than the gateway that has the socket: with one gateway, the same.
        pipe = pipes[(home[task_id] + 1) % len(pipes)]
        head = f"Idempotency-Key: {secrets.token_hex(16)}\r\n"
        asked_at[task_id] = time.monotonic()
        path = f"/v1/tasks/{task_id}:cancel"
        status, answer = await pipe.request("POST", path, b'{"reason":"bench"}', head)
        if status not in (200, 202):
            raise RuntimeError(f"cancel answered {status}: {answer[:300]!r}")

    print("window-open", flush=True)
    begin = time.monotonic()
    async with asyncio.TaskGroup() as jobs:
        for number, task_id in enumerate(home):
            wait = begin + number / args.rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            jobs.create_task(one(task_id))
    await _settle(tally)
    print("window-closed", flush=True)
    waits = sorted(
        (tally.stopped_at[task] - at) * 1000
        for task, at in asked_at.items()
        if task in tally.stopped_at
    )
    return _spread(args.rate, waits)


async def run(args: argparse.Namespace) -> dict[str, object]:
    """Connect the workers, run the chosen mode, check that nothing was lost."""
    tally = Tally()
    links = await _connect(args, tally)
    if args.mode == "cancel":
        result = await cancel(args, tally, links)
    else:
        result = await (latency if args.mode == "latency" else throughput)(args, tally)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    errors: dict[str, int] = {}
    for link in links:
        for code, count in link.errors.items():
            errors[code] = errors.get(code, 0) + count
    return {
        **result,
        "submitted": tally.submitted,
        "finished": tally.finished,
        "lost": len(tally.open),
        "doubled": tally.doubled,
        "sockets_lost": sum(link.closed for link in links),
        "errors": errors,
        "client_cpu_s": usage.ru_utime + usage.ru_stime,
    }


def main() -> None:
    """Parse the command line of a swarm process and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("throughput", "latency", "cancel"))
    parser.add_argument("--url", action="append", required=True)
    parser.add_argument("--credential", required=True)
    parser.add_argument("--protocol", choices=sorted(LINKS), default="v2")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--capacity", type=int, default=64)
    parser.add_argument("--warmup", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=500.0)
    result = uvloop.run(run(parser.parse_args()))
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    main()
