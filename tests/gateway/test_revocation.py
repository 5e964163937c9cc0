"""A revoked credential: refused at once where its notice comes, soon where it does not (OP-15)."""

import asyncio
import json

import httpx
import pytest
from click.testing import CliRunner, Result
from websockets.exceptions import InvalidStatus

from gateway import limits
from store import cli
from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import (
    App,
    Dispatcher,
    Gateway,
    make_app,
    running_gateway,
    submit,
    worker_on,
)
from tests.waiting import wait_until

NEVER_S = 3_600.0


async def revoke(key_id: str, *more: str) -> Result:
    """The command of an operator, in a thread: it has an event loop of its own."""
    arguments = ["revoke", key_id, "--json", *more]
    return await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)


async def status_of_a_submission(gateway: Gateway, app: App) -> int:
    async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http:
        return (await submit(http)).status_code


async def test_a_revocation_is_heeded_when_its_notice_comes(
    database_url: str,
    redis_url: str,
    cluster_name: str,
    pools: Pools,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OP-15: neither the memory of credentials nor the sweep has any part in it here."""
    monkeypatch.setattr(limits, "CREDENTIAL_TTL_S", NEVER_S)
    monkeypatch.setattr(limits, "SWEEP_INTERVAL_S", NEVER_S)
    app, kept = await make_app(pools), await make_app(pools, name="kept")
    bus = Bus(redis_url, cluster_name)
    async with (
        running_gateway(database_url, bus) as gateway,
        worker_on(gateway, app) as worker,
        worker_on(gateway, kept) as other,
    ):
        assert await status_of_a_submission(gateway, app) == 201
        await Dispatcher(pools, bus).dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        stores = ("--database-url", database_url, "--redis-url", redis_url)
        done = await revoke(app.key_id, *stores, "--cluster", cluster_name)
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert (said["key_id"], said["name"], said["gateways_told"]) == (app.key_id, "shop", 1)
        assert (await worker.receive())["error"]["code"] == "session_expired"
        assert await worker.closed() == 4410
        assert await status_of_a_submission(gateway, app) == 401
        with pytest.raises(InvalidStatus) as refused:
            async with worker_on(gateway, app):
                pass
        assert refused.value.response.status_code == 401
        assert (await other.ask("task.start", ref))["error"]["code"] == "attempt_not_found"
        assert await status_of_a_submission(gateway, kept) == 201


async def test_a_notice_alone_revokes_nothing(
    gateway: Gateway, app: App, pools: Pools, bus: Bus
) -> None:
    """OP-95: it is a hint; what holds is what the store says."""
    async with worker_on(gateway, app) as worker:
        seen = gateway.node.outlet.seen
        assert await bus.revoke(app.key_id) == 1
        await wait_until(lambda: _seen(gateway), lambda last: last != seen, 10)
        body = {"sequence": "1", "capacity": 1, "drain": False}
        assert (await worker.ask("worker.capacity", body))["type"] == "ack"
        assert await status_of_a_submission(gateway, app) == 201


async def test_without_a_notice_it_is_refused_soon(
    gateway: Gateway, app: App, pools: Pools, database_url: str
) -> None:
    """OP-15: within a second, and one sweep for sessions."""
    assert limits.CREDENTIAL_TTL_S <= 1.0
    assert limits.SWEEP_INTERVAL_S <= 1.0
    async with worker_on(gateway, app) as worker:
        assert await status_of_a_submission(gateway, app) == 201
        done = await revoke(app.key_id, "--database-url", database_url)
        assert json.loads(done.stdout)["gateways_told"] is None
        assert "not told" in done.stderr
        assert (await worker.receive())["error"]["code"] == "session_expired"
        assert await worker.closed() == 4410
        await wait_until(
            lambda: status_of_a_submission(gateway, app), lambda status: status == 401, 10
        )


async def test_it_is_revoked_once_and_on_record(app: App, pools: Pools, database_url: str) -> None:
    first, again = [await revoke(app.key_id, "--database-url", database_url) for _ in range(2)]
    assert json.loads(first.stdout) == json.loads(again.stdout)
    rows = await pools.background.fetch(
        "SELECT resource FROM audit WHERE action = 'credential.revoke'"
    )
    assert [row[0] for row in rows] == [app.key_id]


async def test_what_is_no_known_key_id_is_said(app: App, database_url: str) -> None:
    unknown = await revoke("0" * 16, "--database-url", database_url)
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no credential has the key id" in unknown.stderr
    mistaken = await revoke(app.credential, "--database-url", database_url)
    assert mistaken.exit_code == 2
    assert app.credential[-43:] not in mistaken.stderr


async def _seen(gateway: Gateway) -> str:
    return gateway.node.outlet.seen
