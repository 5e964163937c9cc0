"""Before the upgrade everything that fails is a plain HTTP answer (R-110 to R-112, OP-07)."""

import asyncio
import json
import secrets
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from orbit_sdk import Worker
from orbit_sdk.worker.worker import EXIT_CLEAN
from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import App, Gateway, make_app, running_gateway, worker_on
from tests.waiting import wait_until


async def refused(url: str, headers: dict[str, str], subprotocols: list[str]) -> tuple[int, str]:
    """Status and error code of a refused upgrade; the answer is in the API's envelope."""
    asked: Any = subprotocols or None
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, additional_headers=headers, subprotocols=asked):
            pass
    response = caught.value.response
    body = json.loads(response.body)
    assert response.headers["content-type"] == "application/json"
    assert set(body) == {"request_id", "error"}
    return response.status_code, body["error"]["code"]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Basic abc",
        "Bearer orbit_0000",
        f"Bearer orbit_{'0' * 16}_{'A' * 43}",
        "Bearer orbit_" + "é" * 20,
    ],
)
async def test_without_a_proven_credential_401(gateway: Gateway, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    if authorization is not None and not authorization.isascii():
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            odd = [(b"Authorization", authorization.encode())]
            answer = await client.get("/v1/queues", headers=odd)
        assert answer.status_code == 401
        return
    assert await refused(gateway.ws_url, headers, ["pulse.worker.v1"]) == (401, "unauthenticated")


async def test_a_right_key_id_with_another_secret_is_401(gateway: Gateway, app: App) -> None:
    wrong = app.credential[:-43] + secrets.token_urlsafe(32)
    headers = {"Authorization": f"Bearer {wrong}"}
    assert await refused(gateway.ws_url, headers, ["pulse.worker.v1"]) == (401, "unauthenticated")


async def test_a_credential_that_may_not_work_is_403(gateway: Gateway, pools: Pools) -> None:
    app = await make_app(pools, name="readers", scopes=("read", "submit"))
    found = await refused(gateway.ws_url, app.headers, ["pulse.worker.v1"])
    assert found == (403, "forbidden")


async def test_a_credential_that_may_only_work_is_enough_for_a_worker(
    gateway: Gateway, pools: Pools
) -> None:
    app = await make_app(pools, name="workers", scopes=("work",))
    worker = Worker(gateway.url, app.credential, app.queue)
    worker.handler("send")(lambda: None)
    served = asyncio.create_task(worker.serve())

    async def has_session() -> bool:
        open_ones = "SELECT count(*) FROM session WHERE closed_at IS NULL"
        return served.done() or bool(await pools.background.fetchval(open_ones))

    await wait_until(has_session, bool, 15)
    worker.stop()
    assert await served == EXIT_CLEAN


@pytest.mark.parametrize("offered", [["pulse.worker.v3"], ["pulse.worker.v10", "json"]])
async def test_an_unknown_version_is_named_400(
    gateway: Gateway, app: App, offered: list[str]
) -> None:
    """R-055: refused explicitly, never read as the current one."""
    assert await refused(gateway.ws_url, app.headers, offered) == (400, "unsupported_version")


async def test_without_a_subprotocol_400(gateway: Gateway, app: App) -> None:
    assert await refused(gateway.ws_url, app.headers, []) == (400, "bad_request")


async def test_the_subprotocol_is_picked_from_several(gateway: Gateway, app: App) -> None:
    offered: Any = ["json", "pulse.worker.v1"]
    async with connect(gateway.ws_url, additional_headers=app.headers, subprotocols=offered) as ws:
        assert ws.subprotocol == "pulse.worker.v1"
        assert "permessage-deflate" not in str(ws.response.headers) if ws.response else True


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        (["pulse.worker.v1", "pulse.worker.v2"], "pulse.worker.v2"),
        (["pulse.worker.v2", "pulse.worker.v1"], "pulse.worker.v2"),
        (["pulse.worker.v3", "pulse.worker.v1"], "pulse.worker.v1"),
    ],
)
async def test_the_best_version_that_both_know_is_spoken(
    gateway: Gateway, app: App, offered: list[Any], chosen: str
) -> None:
    """R-055: in whatever order they are offered."""
    async with connect(gateway.ws_url, additional_headers=app.headers, subprotocols=offered) as ws:
        assert ws.subprotocol == chosen


async def test_an_unknown_path_is_404_and_a_plain_get_is_400(gateway: Gateway, app: App) -> None:
    other = gateway.ws_url.replace("connect", "elsewhere")
    assert await refused(other, app.headers, ["pulse.worker.v1"]) == (404, "not_found")
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        answer = await client.get("/v1/worker/connect", headers=app.headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


async def test_a_draining_node_takes_no_new_worker(gateway: Gateway, app: App) -> None:
    async with worker_on(gateway, app):
        gateway.node.draining = True
        found = await refused(gateway.ws_url, app.headers, ["pulse.worker.v1"])
        assert found == (503, "unavailable")
        gateway.node.draining = False


async def test_a_node_without_its_database_is_live_and_not_ready(
    redis_url: str, cluster_name: str
) -> None:
    """R-071, OP-48: a node may start before its database; it claims nothing meanwhile."""
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    bus = Bus(redis_url, cluster_name)
    async with (
        running_gateway(nowhere, bus, wait_ready=False) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as client,
    ):
        assert (await client.get("/health/live")).status_code == 200
        answer = await client.get("/health/ready")
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        headers = {"Authorization": f"Bearer orbit_{'0' * 16}_{'A' * 43}"}
        found = await refused(gateway.ws_url, headers, ["pulse.worker.v1"])
        assert found == (503, "unavailable")
