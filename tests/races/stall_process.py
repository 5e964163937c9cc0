"""The test's end of a crowd that stands still in a process of its own (see `stall`)."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from tests.arch.tree import ROOT
from tests.races.stall import BEGUN_S, Plan, Report

START_S = 30.0
PROGRAM = [sys.executable, "-m", "tests.races.stall"]


@dataclass
class Standing:
    """A crowd that stands; its report comes when all are closed."""

    report: Report | None = None


@asynccontextmanager
async def stall_on(plan: Plan) -> AsyncIterator[Standing]:
    """They all stand while the body runs, and each is closed by a gateway in the end."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*PROGRAM, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        await _tell(child, asdict(plan))
        said = await _heard(child, START_S + BEGUN_S)
        assert said == {"standing": plan.count}
        standing = Standing()
        yield standing
        await _tell(child, "over")
        said = await _heard(child, START_S + plan.closed_within_s)
        standing.report = Report(**said | {"reasons": Counter(said["reasons"])})
        assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _tell(child: asyncio.subprocess.Process, line: object) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(line).encode() + b"\n")
    await child.stdin.drain()


async def _heard(child: asyncio.subprocess.Process, timeout_s: float) -> dict[str, Any]:
    """The next line of the crowd's. Raises EOFError if it ended; it has told the log why."""
    assert child.stdout is not None
    async with asyncio.timeout(timeout_s):
        line = await child.stdout.readline()
    if not line:
        raise EOFError("the crowd has ended")
    said: dict[str, Any] = json.loads(line)
    return said
