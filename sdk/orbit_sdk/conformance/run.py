"""Runs checks against a server, a few at once, and keeps what each one found.

A check fails for a reason it names, for an answer that did not come, or for a connection that
broke; the run goes on. Only a server that cannot be reached at all, or refuses the credential or
the queue, ends it before it began.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import httpx
from websockets.exceptions import InvalidHandshake, WebSocketException

from orbit_sdk.conformance.bench import Answer, Bench, Target
from orbit_sdk.conformance.checks import Check, CheckFailed, Skipped, masked
from orbit_sdk.conformance.contract import Contract
from orbit_sdk.conformance.peer import Frame

REQUEST_S = 30.0
CHECK_S = 90.0
"""A check that takes longer has found a server that hangs."""

LAST_SAID = 6
"""So many of the last frames and answers go into the report of a failed check."""


class Unreachable(Exception):
    """There is nothing at the URL to be tested."""


class Refused(Exception):
    """The server does not let this credential test this queue."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: Check
    verdict: Literal["pass", "FAIL", "skipped"]
    reason: str
    seconds: float
    frame: object = None
    said: tuple[tuple[str, Frame], ...] = ()


async def run(
    target: Target,
    checks: Sequence[Check],
    *,
    at_once: int,
    found: Callable[[Finding], None] = lambda _: None,
) -> list[Finding]:
    """The findings in the order of the checks; `found` hears of each as it is done."""
    contract = Contract()
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=REQUEST_S) as http:
        target = await _resolved(target, contract, http)

        async def one(check: Check) -> Finding:
            async with gate:
                finding = await _try(check, Bench(target, contract, http))
            found(finding)
            return finding

        return list(await asyncio.gather(*(one(check) for check in checks)))


async def _resolved(target: Target, contract: Contract, http: httpx.AsyncClient) -> Target:
    """The target with its queue's id. Raises Unreachable or Refused."""
    bench = Bench(target, contract, http)
    try:
        answer: Answer = await bench.call("GET", f"/v1/queues/{target.queue}")
    except CheckFailed as error:
        raise Unreachable(f"{target.url}: {error}") from None
    if answer.status != 200:
        code = answer.body.get("error", {}).get("code", "no code")
        raise Refused(f"{target.url}: queue {target.queue!r}: {answer.status} {code}")
    return replace(target, queue_id=str(answer.data["id"]))


async def _try(check: Check, bench: Bench) -> Finding:
    loop = asyncio.get_running_loop()
    began = loop.time()
    verdict: Literal["pass", "FAIL", "skipped"] = "FAIL"
    reason, frame = "", None
    try:
        async with asyncio.timeout(CHECK_S):
            await check.run(bench)
        verdict = "pass"
    except Skipped as skipped:
        verdict, reason = "skipped", str(skipped)
    except CheckFailed as failure:
        reason, frame = str(failure), failure.frame
    except TimeoutError:
        reason = f"the check did not end within {CHECK_S:g} s"
    except (OSError, InvalidHandshake, WebSocketException) as error:
        reason = f"the connection failed: {type(error).__name__} {error}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Something that was read is not there or of another form; the exchange shows what.
        reason = f"an answer lacks what it must have: {type(error).__name__} {error}"
    finally:
        await _close(bench)
    seconds = loop.time() - began
    said = tuple(bench.exchange[-LAST_SAID:]) if verdict == "FAIL" else ()
    return Finding(check, verdict, reason, seconds, masked(frame), masked_all(said))


async def _close(bench: Bench) -> None:
    with suppress(OSError, WebSocketException):  # the connections may be gone already
        await bench.close()


def masked_all(said: tuple[tuple[str, Frame], ...]) -> tuple[tuple[str, Frame], ...]:
    """The same exchange without secrets."""
    return tuple((who, masked(frame)) for who, frame in said)
