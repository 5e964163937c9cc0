"""Whoever turns debugging on, in a worker or in a gateway, finds no secret in the log (INV-42)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from orbit_sdk import Worker
from orbit_sdk.protocol.frames import AssignBody
from orbit_sdk.worker import connection
from orbit_sdk.worker.desk import Desk
from orbit_sdk.worker.dialect import DIALECTS
from store.pool import Pools
from tests.contract.oracle import VERSIONS, Version
from tests.gateway.harness import App, Dispatcher, Gateway, submit
from tests.waiting import wait_until

PIECE_CHARS = 8
"""Of a secret that was cut, so much of it is still a piece of it, and no chance."""


def pieces(secret: str) -> Iterator[str]:
    for begin in range(len(secret) - PIECE_CHARS + 1):
        yield secret[begin : begin + PIECE_CHARS]


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[None]:
    served = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        await served


@pytest.fixture
def secrets_seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lease secrets that the worker was given, and its own."""
    seen: list[str] = []
    accept, identity = Desk.accept, connection.SessionCore.opened

    def noted(desk: Desk, body: AssignBody, now: float) -> None:
        seen.append(body.lease_secret)
        accept(desk, body, now)

    def opened(core: Any, dialect: Any, now: float) -> Any:
        seen.append(core._identity.instance_secret)
        return identity(core, dialect, now)

    monkeypatch.setattr(Desk, "accept", noted)
    monkeypatch.setattr(connection.SessionCore, "opened", opened)
    return seen


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_life_logged_at_every_level_shows_no_secret(
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    pools: Pools,
    dispatcher: Dispatcher,
    secrets_seen: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    version: Version,
) -> None:
    """R-111, R-118: v1 ends its frames with the lease secret, v2 has it in the middle."""
    name = f"pulse.worker.v{version}"
    spoken = {dialect.subprotocol: dialect for dialect in DIALECTS if dialect.subprotocol == name}
    monkeypatch.setattr(connection, "_SPOKEN", spoken)
    caplog.set_level(logging.NOTSET)
    for chatty in ("uvicorn.error", "websockets", "websockets.client", "orbit_sdk.socket"):
        caplog.set_level(logging.DEBUG, chatty)
    worker = Worker(gateway.url, app.credential, app.queue, capacity=2)
    worker.handler("send")(lambda: {"ok": True})

    async def session() -> str | None:
        found = "SELECT id FROM session WHERE closed_at IS NULL"
        return await pools.background.fetchval(found)  # type: ignore[no-any-return]

    async def state() -> str:
        return str((await http.get(f"/v1/tasks/{task_id}")).json()["data"]["state"])

    async with serving(worker):
        session_id = await wait_until(session, bool, 15)
        assert session_id is not None
        task_id = (await submit(http)).json()["data"]["id"]
        await dispatcher.dispatch(session_id)
        await wait_until(state, lambda value: value == "SUCCEEDED", 15)
    assert len(secrets_seen) >= 2
    text = "\n".join(f"{record.name} {record.getMessage()}" for record in caplog.records)
    assert "session" in text
    for secret in (app.credential[-43:], *secrets_seen):
        found = [line for line in text.splitlines() if any(p in line for p in pieces(secret))]
        assert not found
