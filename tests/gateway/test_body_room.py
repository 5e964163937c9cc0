"""Many large bodies at once: what they hold together is bounded, and small ones pass (INV-37)."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway import limits
from tests.gateway.harness import App, Gateway, eventually, ids, submission, submit

PATH = "/v1/tasks:batchSubmit"


def batch(padding: int) -> bytes:
    """A batch of one task that is so many bytes longer than it need be."""
    item = submission() | {"submission_key": ids.next()}
    return httpx.Request("POST", "http://x", json={"items": [item]}).content + b" " * padding


async def test_what_has_no_room_is_refused_and_small_ones_pass(
    gateway: Gateway, app: App, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-37: and what was held is given back, however its request ends."""
    room = gateway.server.config.app.bodies  # type: ignore[union-attr]
    monkeypatch.setattr(limits, "BODIES_BYTES_MAX", 1024 * 1024)
    large = 1024 * 1024
    headers = {"Content-Type": "application/json"}
    rest = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        body = batch(large)
        yield body[:-1]
        await rest.wait()
        yield body[-1:]

    first = asyncio.create_task(http.post(PATH, content=slowly(), headers=headers))
    await eventually(lambda: room.held >= large - limits.BODY_BYTES_FREE)
    refused = await http.post(PATH, content=batch(large), headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert refused.headers["Retry-After"] == "1"
    assert (await submit(http)).status_code == 201
    assert (await http.post(PATH, content=batch(1024), headers=headers)).status_code == 200

    rest.set()
    assert (await first).status_code == 200
    assert room.held == 0
    assert (await http.post(PATH, content=batch(large), headers=headers)).status_code == 200

    gone = asyncio.create_task(http.post(PATH, content=slowly(), headers=headers))
    rest.clear()
    await eventually(lambda: room.held >= large - limits.BODY_BYTES_FREE)
    gone.cancel()
    await eventually(lambda: room.held == 0)
