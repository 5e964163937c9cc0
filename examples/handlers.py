"""Handlers that do real work on files. `orbit worker examples.handlers:worker` runs them.

The demo submits their tasks. A handler takes its payload, converted to the annotated type, and a
TaskContext if it wants one; what it returns is the task's result. Every one may run again after a
lost worker, and only reads, so all of them are idempotent.

`noted` writes down when a handler really ran, for the demo to check; your own need nothing of it.
"""

import asyncio
import hashlib
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from examples.show.notebook import noted
from orbit_sdk import TaskContext, TaskFailed, Worker

CHUNK_BYTES = 262_144

worker = Worker(queue="default", capacity=32, name="demo")


@dataclass(frozen=True)
class File:
    """The payload of every task about one file."""

    path: str


@dataclass(frozen=True)
class Survey:
    """The payload of `folder.survey`: files to read, spread over some seconds."""

    paths: list[str]
    seconds: float


@worker.handler("file.checksum")
async def checksum(file: File, ctx: TaskContext) -> dict[str, str | int]:
    """An asyncio handler; the reading goes to a thread, so the loop stays free."""
    with noted(ctx):
        return await asyncio.to_thread(sha256_of, Path(file.path))


@worker.handler("file.words")
async def words(file: File, ctx: TaskContext) -> dict[str, int]:
    """Counts words as `wc -w` does."""
    with noted(ctx):
        return {"words": len(await asyncio.to_thread(words_of, file.path))}


@worker.handler("file.lines")
async def lines(file: File, ctx: TaskContext) -> dict[str, int]:
    """Fails on its first attempt, as a flaky service would; the cluster tries it again."""
    with noted(ctx):
        if ctx.attempt_count == 1:
            raise TaskFailed("service_busy", {"hint": "works the second time"})
        data = await asyncio.to_thread(Path(file.path).read_bytes)
        return {"lines": data.count(b"\n")}


@worker.handler("file.pack")
def pack(file: File, ctx: TaskContext) -> dict[str, int]:
    """A blocking handler: it runs in a thread of its own, and looks itself whether to stop."""
    with noted(ctx), Path(file.path).open("rb") as stream:
        packer = zlib.compressobj()
        packed = 0
        while chunk := stream.read(CHUNK_BYTES):
            ctx.raise_if_cancelled()
            packed += len(packer.compress(chunk))
        return {"packed_bytes": packed + len(packer.flush())}


@worker.handler("folder.survey")
async def survey(order: Survey, ctx: TaskContext) -> dict[str, str | int]:
    """Takes longer than its lease several times over; the SDK renews it beside the work."""
    with noted(ctx):
        found: Counter[bytes] = Counter()
        for path in order.paths:
            found.update(await asyncio.to_thread(words_of, path))
            await asyncio.sleep(order.seconds / len(order.paths))
        count, word = max(((count, word) for word, count in found.items()), default=(0, b""))
        return {"word": repr(word[:40]), "count": count, "words": found.total()}


def words_of(path: str) -> list[bytes]:
    """Everything between white space."""
    return Path(path).read_bytes().split()


def sha256_of(path: Path) -> dict[str, str | int]:
    """The checksum and the size of a file of any size."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"sha256": digest.hexdigest(), "bytes": size}
