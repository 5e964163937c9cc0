"""Whatever bytes the HTTP side answers, at most that one try has failed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orbit_sdk.protocol.held import HeldResult
from orbit_sdk.worker.courier import Courier
from orbit_sdk.worker.effects import Stop
from orbit_sdk.worker.relay import Parcel
from tests.sdk.worker.wired import LEASE_S, Wired

CREDENTIAL = f"orbit_{'0' * 16}_{'s' * 43}"
NOW, UNTIL = "2026-01-02T03:04:05Z", "2026-01-02T03:04:35Z"


def renewed(**changes: Any) -> dict[str, Any]:
    """A good result of a renewal; a change replaces a member of the receipt or the lease."""
    receipt = {
        "operation": "renew",
        "task_state": "RUNNING",
        "attempt_state": "RUNNING",
        "task_revision": "3",
        "lease_until": UNTIL,
        "disposition": "APPLIED",
    }
    lease = {"active": True, "state": "RUNNING", "lease_until": UNTIL, "server_time": NOW}
    for part in (receipt, lease):
        part.update({name: value for name, value in changes.items() if name in part})
    return {"index": 0, "status": 200, "receipt": receipt, "lease": lease, "deduplicated": False}


def page(*results: object) -> bytes:
    return json.dumps({"request_id": "r", "data": {"results": results}}).encode()


BAD_RESULTS = {
    "a time that is none": renewed(lease_until="soon", server_time="now"),
    "a time beyond all calendars": renewed(lease_until="9999-99-99T99:99:99Z"),
    "a time of another zone": renewed(server_time="2026-01-02T03:04:05+01:00"),
    "a revision that is none": renewed(task_revision="-1"),
    "an active lease of an attempt that is over": renewed(state="EXPIRED"),
}
BAD_BODIES = {
    "no body": b"",
    "no JSON": b"<html></html>",
    "no UTF-8": page(renewed(lease_until="xx")).replace(b"xx", b"\xff\xfe"),
    "half a code point": page(renewed()).replace(b"03:04:35", b"\\ud800"),
    "no results": b'{"data":{}}',
    "results that are none": page(1, None),
    "an unknown state": page(renewed(state="DREAMING")),
    "nested without end": b'{"x":' + b"[" * 200_000,
    "a number without end": page(renewed()).replace(b"200", b"9" * 10_000),
    "too few": page(),
    "too many": page(renewed(), renewed()),
}


@asynccontextmanager
async def answering(body: bytes, head: bytes = b"200 OK") -> AsyncIterator[str]:
    """An HTTP server with one answer to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
        writer.write(b"HTTP/1.1 " + head + b"\r\n" + length + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def credential() -> str:
    return CREDENTIAL


def cut_off() -> tuple[Wired, Parcel]:
    """A worker whose lease runs short without a socket, and what it wants posted."""
    wired = Wired()
    wired.connect()
    wired.assign()
    wired.cut()
    wired.pass_to(wired.now + LEASE_S / 2)
    (parcel,) = wired.core.look_for_relays(wired.now)
    return wired, parcel


async def posted(url: str, parcel: Parcel) -> list[HeldResult] | None:
    courier = Courier(url, credential)
    try:
        return await courier.post(parcel, 10.0)
    finally:
        await courier.close()


async def test_a_good_answer_confirms_the_lease() -> None:
    wired, parcel = cut_off()
    async with answering(page(renewed())) as url:
        results = await posted(url, parcel)
    wired.apply(wired.core.relayed(parcel, results, wired.now))
    wired.pass_to(wired.now + LEASE_S / 2)
    assert wired.taken(Stop) == []


@pytest.mark.parametrize(
    "body",
    [*map(page, BAD_RESULTS.values()), *BAD_BODIES.values()],
    ids=[*BAD_RESULTS, *BAD_BODIES],
)
async def test_an_answer_that_cannot_be_read_confirms_nothing_and_is_asked_for_again(
    body: bytes,
) -> None:
    """R-151, R-154: the boundary stands, and the next try has the same name."""
    wired, parcel = cut_off()
    async with answering(body) as url:
        results = await posted(url, parcel)
    wired.apply(wired.core.relayed(parcel, results, wired.now))
    wired.pass_to(wired.now + 1.0)
    (again,) = wired.core.look_for_relays(wired.now)
    assert again.names == parcel.names
    wired.pass_to(wired.now + LEASE_S / 2)
    assert len(wired.taken(Stop)) == 1


async def test_one_result_that_cannot_be_read_costs_no_other() -> None:
    wired = Wired()
    wired.connect()
    attempts = [wired.assign(), wired.assign()]
    wired.cut()
    wired.pass_to(wired.now + LEASE_S / 2)
    (parcel,) = wired.core.look_for_relays(wired.now)
    async with answering(page(renewed(lease_until="soon"), renewed())) as url:
        results = await posted(url, parcel)
    wired.apply(wired.core.relayed(parcel, results, wired.now))
    wired.pass_to(wired.now + LEASE_S / 2)
    stopped = [stop.attempt_id for stop in wired.taken(Stop) if isinstance(stop, Stop)]
    assert stopped == [attempts[0].attempt_id]


async def test_a_redirect_is_no_answer_and_is_not_followed() -> None:
    _, parcel = cut_off()
    async with (
        answering(page(renewed())) as elsewhere,
        answering(b"", f"307 So\r\nLocation: {elsewhere}/".encode()) as url,
    ):
        assert await posted(url, parcel) is None
