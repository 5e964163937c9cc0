"""A worker that stops reading: it loses its session, and nobody else notices (R-157, R-158)."""

import asyncio
import socket
from urllib.parse import urlsplit

from orbit_sdk.conformance.bench import Bench, capability
from orbit_sdk.conformance.checks import CheckFailed, Skipped, check_once, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer, instant

TASKS = 16
PAYLOAD_CHARS = 250 * 1024
RECEIVE_BYTES = 4_096
"""Sixteen such payloads fit into no buffer on the way to a receiver with this one."""

DEADLINE_S = 10.0
"""A session is lost after so long in which nothing could be written, not before."""

LATEST_S = 19.0
"""Whoever takes longer has left it to a ping without a pong, or to the kernel: 20 s each."""

LOST_S = 25.0
"""So long is waited for what a lost session gives back."""

CLOSED_S = 30.0
"""The connection ends at the latest 20 s after the session."""

CLOCKS_S = 0.1
"""The deadline and the instants may come from clocks that run apart by so much meanwhile."""

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
    given_back: list[Frame] = []
    while len(got) < len(ids):
        try:
            attempt = await heir.assignment(max(0.0, ends - loop.time()))
        except CheckFailed as failure:
            reason = f"{len(ids) - len(got)} tasks of a worker that reads nothing are still there"
            raise CheckFailed(f"{reason} after {LOST_S:g} s", failure.frame) from None
        got.add(attempt.task["id"])
        given_back.append(await _given_back(bench, attempt))
        await heir.start(attempt)
        await heir.finish(attempt)
    expect_equal(got, set(ids), "the tasks that went back")
    _by_the_deadline(given_back)


async def _given_back(bench: Bench, attempt: Attempt) -> Frame:
    """Its first try: it ended because the session was lost, not because the lease had run out."""
    first, *_ = await bench.attempts(attempt.task["id"])
    granted, ended = attempt.body["server_time"], first["lease_until"]
    expect(instant(granted) < instant(ended), f"its first lease lasted until {ended}", attempt.body)
    return first


def _by_the_deadline(given_back: list[Frame]) -> None:
    """The last write came after the first grant, and no later than the last one had to be sent."""
    granted = sorted(instant(first["granted_at"]) for first in given_back)
    lost = min(instant(first["finished_at"]) for first in given_back)
    longest_s, shortest_s = ((lost - at).total_seconds() for at in (granted[0], granted[-1]))
    rule = f"a session is lost {DEADLINE_S:g} s after the last write, and this one was after"
    expect(longest_s >= DEADLINE_S - CLOCKS_S, f"{rule} {longest_s:.1f} s: too early", given_back)
    expect(shortest_s <= LATEST_S, f"{rule} {shortest_s:.1f} s: too late", given_back)


async def _is_closed(peer: Peer) -> None:
    """Reading again finds the end of the connection, whether or not a close code came through."""
    code = await peer.end(CLOSED_S)
    expect(code in (None, SLOW_CONSUMER), f"the close code is {code}, not {SLOW_CONSUMER} or none")


@check_once
async def reader_that_stops(bench: Bench) -> None:
    """R-157, R-158: who reads nothing loses its session after 10 s, then its connection, alone.

    Sixteen tasks of 250 KiB wait for a worker that stops reading: they must be given back by the
    write deadline and reach another worker, while a third does one small task after the other.
    Between them must be no proxy that buffers.
    """
    if not bench.target.slow:
        raise Skipped("takes half a minute; ask for it with --slow")
    payload = "x" * PAYLOAD_CHARS
    ids = [await bench.submit(payload=payload) for _ in range(TASKS)]
    peer = await _deaf(bench)
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
