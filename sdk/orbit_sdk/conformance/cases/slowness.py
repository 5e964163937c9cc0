"""A worker that stops reading: it loses its session, and nobody else notices (R-157, R-158)."""

import asyncio
import socket
from urllib.parse import urlsplit

from orbit_sdk.conformance.bench import Bench, capability
from orbit_sdk.conformance.checks import CheckFailed, Skipped, check_once, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Peer, instant

TASKS = 16
PAYLOAD_CHARS = 250 * 1024
RECEIVE_BYTES = 4_096
"""Sixteen such payloads fit into no buffer on the way to a receiver with this one."""

LOST_S = 25.0
"""A session is lost after 10 s in which nothing could be written; the rest is for the sweeps."""

CLOSED_S = 30.0
"""The connection ends at the latest 20 s after the session."""

SLOW_CONSUMER = 4429
OTHERS_LIVES_MIN = 3


async def _narrow_socket(url: str) -> socket.socket:
    """A connected socket that takes next to nothing by itself."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    loop = asyncio.get_running_loop()
    (family, kind, proto, _, address), *_ = await loop.getaddrinfo(
        parts.hostname, port, type=socket.SOCK_STREAM
    )
    made = socket.socket(family, kind, proto)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    await loop.sock_connect(made, address)
    return made


async def _deaf(bench: Bench) -> Peer:
    """A worker that reads nothing after its welcome."""
    narrow = await _narrow_socket(bench.target.worker_url())
    peer = await bench.connect(max_queue=1, sock=narrow)
    await bench.hello(peer, TASKS)
    return peer


async def _live_on(bench: Bench, until: asyncio.Event) -> int:
    """Another worker does task after task; each of its answers has the usual time. Their number."""
    handler = f"{bench.handler}.other"
    peer = await bench.worker(capabilities=[capability(handler)])
    done = 0
    while not until.is_set() or done < OTHERS_LIVES_MIN:
        await bench.submit(handler=handler)
        attempt = await peer.assignment()
        await peer.start(attempt)
        finished = await peer.finish(attempt)
        expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
        done += 1
    return done


async def _inherit(bench: Bench, ids: list[str]) -> None:
    """What the deaf worker was given and never started comes to one that reads."""
    heir = await bench.worker(TASKS)
    loop = asyncio.get_running_loop()
    ends = loop.time() + LOST_S
    got: set[str] = set()
    while len(got) < len(ids):
        try:
            attempt = await heir.assignment(max(0.0, ends - loop.time()))
        except CheckFailed as failure:
            reason = f"{len(ids) - len(got)} tasks of a worker that reads nothing are still there"
            raise CheckFailed(f"{reason} after {LOST_S:g} s", failure.frame) from None
        got.add(attempt.task["id"])
        await _was_given_back(bench, attempt)
        await heir.start(attempt)
        await heir.finish(attempt)
    expect_equal(got, set(ids), "the tasks that went back")


async def _was_given_back(bench: Bench, attempt: Attempt) -> None:
    """It was granted anew because the session was lost, not because the lease had run out."""
    first, *_ = await bench.attempts(attempt.task["id"])
    granted, ended = attempt.body["server_time"], first["lease_until"]
    expect(instant(granted) < instant(ended), f"its first lease lasted until {ended}", attempt.body)


async def _is_closed(peer: Peer) -> None:
    """Reading again finds the end of the connection, whether or not a close code came through."""
    code = await peer.end(CLOSED_S)
    expect(code in (None, SLOW_CONSUMER), f"the close code is {code}, not {SLOW_CONSUMER} or none")


@check_once
async def reader_that_stops(bench: Bench) -> None:
    """R-157, R-158: who reads nothing loses its session and then its connection; others go on.

    Sixteen tasks of 250 KiB for a worker that stops reading: they must reach another worker, while
    a third does one small task after the other. Between them must be no proxy that buffers.
    """
    if not bench.target.slow:
        raise Skipped("takes half a minute; ask for it with --slow")
    peer = await _deaf(bench)
    payload = "x" * PAYLOAD_CHARS
    ids = [await bench.submit(payload=payload) for _ in range(TASKS)]
    for task_id in ids:
        await bench.until(task_id, "LEASED")
    inherited = asyncio.Event()
    others = asyncio.create_task(_live_on(bench, inherited))
    try:
        await _inherit(bench, ids)
        inherited.set()
    finally:
        if not inherited.is_set():
            others.cancel()
        (done,) = await asyncio.gather(others, return_exceptions=True)
    if isinstance(done, BaseException):
        raise done
    await _is_closed(peer)
