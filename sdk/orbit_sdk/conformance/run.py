"""Runs checks against a server, a few at once, and keeps what each one found.

A check fails for a reason it names, for an answer that did not come, or for a connection that
broke; the run goes on. Only a server that cannot be reached at all, or refuses the credential or
the queue, ends it before it began. A version that the server does not offer is no failure either.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias

import httpx
from websockets.exceptions import InvalidHandshake, WebSocketException

from orbit_sdk.conformance.bench import Answer, Bench, Surroundings
from orbit_sdk.conformance.checks import Check, CheckFailed, Skipped, masked
from orbit_sdk.conformance.contract import V1, VERSIONS, Contract, Version
from orbit_sdk.conformance.peer import Frame
from orbit_sdk.conformance.target import Target

Verdict: TypeAlias = Literal["pass", "FAIL", "skipped", "not offered"]

REQUEST_S = 30.0
ONE_CONNECTION_A_REQUEST = httpx.Limits(max_keepalive_connections=0)
"""A kept one may be closed by an idle server just as the next request is written to it."""

CHECK_S = 90.0
"""A check that takes longer has found a server that hangs."""

NOT_OFFERED = "the server answers 400 to an upgrade with this subprotocol"

LAST_SAID = 6
"""So many of the last frames and answers go into the report of a failed check."""


class Unreachable(Exception):
    """There is nothing at the URL to be tested."""


class Refused(Exception):
    """The server does not let this credential test this queue."""


class NotOffered(Exception):
    """The server offers no version that was asked for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: Check
    version: Version | None
    """The version it was tried in, if it depends on one."""
    verdict: Verdict
    reason: str
    seconds: float
    frame: object = None
    said: tuple[tuple[str, Frame], ...] = ()


async def run(
    target: Target,
    checks: Sequence[Check],
    *,
    at_once: int,
    versions: Sequence[Version] = VERSIONS,
    found: Callable[[Finding], None] = lambda _: None,
) -> list[Finding]:
    """The findings in the order of the checks; `found` hears of each as it is done.

    Raises Unreachable, Refused, NotOffered.
    """
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=REQUEST_S, limits=ONE_CONNECTION_A_REQUEST) as http:
        around = await _surroundings(target, http, versions)
        offered = list(around.contracts)

        async def one(check: Check, version: Version | None) -> Finding:
            async with gate:
                finding = await _try(check, version, Bench(around, version or offered[0]))
            found(finding)
            return finding

        async def nothing(check: Check, version: Version) -> Finding:
            return Finding(check, version, "not offered", NOT_OFFERED, 0.0)

        async def each(check: Check) -> list[Finding]:
            tried = [
                one(check, version) if version in offered else nothing(check, version)
                for version in check.versions
                if version in versions
            ]
            return await asyncio.gather(*(tried if check.versions else [one(check, None)]))

        # What takes long begins first, so that the rest is done beside it.
        order = sorted(checks, key=lambda check: not check.takes_long)
        done = await asyncio.gather(*(each(check) for check in order))
        by_name = {check.name: each for check, each in zip(order, done, strict=True)}
        return list(chain(*(by_name[check.name] for check in checks)))


async def _surroundings(
    target: Target, http: httpx.AsyncClient, versions: Sequence[Version]
) -> Surroundings:
    """The target with its queue's id, and the versions it offers among those asked for."""
    around = Surroundings(target, http, {version: Contract(version) for version in versions})
    bench = Bench(around, versions[0])
    queue_id = await _queue_id(target, bench)
    for version in versions:
        if version is not V1 and not await _offers(bench, version):
            del around.contracts[version]
    if not around.contracts:
        names = " or ".join(version.subprotocol for version in versions)
        raise NotOffered(f"{target.url}: the server does not offer {names}")
    return replace(around, target=replace(target, queue_id=queue_id))


async def _offers(bench: Bench, version: Version) -> bool:
    """Whether an upgrade with this subprotocol alone is anything but 400 (OP-07).

    Version 1 is not asked for: it is what every server has to offer (R-110).
    """
    headers = {"Authorization": f"Bearer {bench.target.credential}"}
    try:
        return await bench.handshake_status(headers, [version.subprotocol]) != 400
    except (OSError, InvalidHandshake, WebSocketException):
        return True  # Then the checks say what is wrong with it.


async def _queue_id(target: Target, bench: Bench) -> str:
    try:
        answer: Answer = await bench.call("GET", f"/v1/queues/{target.queue}")
    except CheckFailed as error:
        raise Unreachable(f"{target.url}: {error}") from None
    if answer.status != 200:
        code = answer.body.get("error", {}).get("code", "no code")
        raise Refused(f"{target.url}: queue {target.queue!r}: {answer.status} {code}")
    return str(answer.data["id"])


async def _try(check: Check, version: Version | None, bench: Bench) -> Finding:
    loop = asyncio.get_running_loop()
    began = loop.time()
    verdict: Verdict = "FAIL"
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
    return Finding(check, version, verdict, reason, seconds, masked(frame), masked_all(said))


async def _close(bench: Bench) -> None:
    with suppress(OSError, WebSocketException):  # the connections may be gone already
        await bench.close()


def masked_all(said: tuple[tuple[str, Frame], ...]) -> tuple[tuple[str, Frame], ...]:
    """The same exchange without secrets."""
    return tuple((who, masked(frame)) for who, frame in said)
