"""Leaving in good order: unready, workers told, answers flushed, then 1012 (OP-04, INV-41)."""

import asyncio
import base64
import os
import signal
import sys
from contextlib import AsyncExitStack

import httpx

from devcluster.processes import free_port
from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import App, Dispatcher, Gateway, running_gateway, submit, worker_on


async def test_a_draining_node_lets_what_runs_finish_and_then_closes(
    database_url: str, bus: Bus, app: App, pools: Pools, redis_url: str, cluster_name: str
) -> None:
    own_bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, own_bus, grace_s=0.5) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http:
            await submit(http)
            await submit(http)
            async with worker_on(gateway, app) as worker:
                dispatcher = Dispatcher(pools, bus)
                await dispatcher.dispatch(worker.session_id, limit=1)
                ref = (await worker.assignment()).ref
                await worker.ask("task.start", ref)
                late = await dispatcher.claim(worker.session_id)
                gateway.server.should_exit = True
                async with asyncio.timeout(5):
                    await _until_ready_is(False, http)
                assert (await http.get("/health/live")).status_code == 200
                await bus.assign(late[0].node_id, late)
                level = {"sequence": "1", "capacity": 4, "drain": False}
                ack = await worker.ask("worker.capacity", level)
                assert ack["body"]["draining"] is True
                assert (await worker.ask("task.renew", ref))["body"]["lease"]["active"] is True
                done = {"ref": ref, "outcome": "SUCCEEDED", "result": 1}
                assert (await worker.ask("task.finish", done))["type"] == "ack"
                frame = await worker.receive()
                assert frame["error"]["code"] == "draining"
                assert "reply_to" not in frame
                assert await worker.closed() == 1012
                assert worker.assigned == []
        await gateway.task
    assert await pools.background.fetchval("SELECT count(*) FROM node") == 0
    closed = await pools.background.fetchval("SELECT bool_and(closed_at IS NOT NULL) FROM session")
    assert closed is True
    waiting = await pools.background.fetchval("SELECT count(*) FROM ready")
    assert waiting == 1  # what was assigned and never written went back


async def test_a_node_that_drains_tells_other_nodes_nothing_wrong(
    gateway: Gateway, app: App, database_url: str, redis_url: str, cluster_name: str
) -> None:
    """R-155, B-13: the worker goes on at another node at once, with what it held."""
    async with running_gateway(database_url, Bus(redis_url, cluster_name)) as leaving:
        async with worker_on(leaving, app) as worker:
            leaving.server.should_exit = True
            assert (await worker.receive())["error"]["code"] == "draining"
        known = {"instance_id": worker.instance_id, "instance_secret": worker.instance_secret}
        async with worker_on(gateway, app, hello=False, **known) as back:
            welcome = await back.hello()
            assert welcome["body"]["draining"] is False


async def test_sigterm_ends_the_process_with_status_0(
    database_url: str, redis_url: str, cluster_name: str, app: App, pools: Pools
) -> None:
    port = free_port()
    environment = os.environ | {
        "ORBIT_DATABASE_URL": database_url,
        "ORBIT_REDIS_URL": redis_url,
        "ORBIT_CLUSTER": cluster_name,
        "ORBIT_CLUSTER_KEYS": "1:" + base64.urlsafe_b64encode(bytes(32)).decode(),
        "ORBIT_DRAIN_GRACE_MS": "0",
    }
    command = [sys.executable, "-c", "from gateway.cli import gateway; gateway()"]
    process = await asyncio.create_subprocess_exec(
        *command, "--port", str(port), env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        url, ws_url = f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, headers=app.headers) as http:
            async with asyncio.timeout(20):
                await _until_ready_is(True, http)
            assert (await submit(http)).status_code == 201
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(worker_on(f"{ws_url}/v1/worker/connect", app))
                for _ in range(20)
            ]
            process.send_signal(signal.SIGTERM)
            frames = [await worker.receive() for worker in opened]
            assert {frame["error"]["code"] for frame in frames} == {"draining"}
            assert {await worker.closed() for worker in opened} == {1012}
        async with asyncio.timeout(20):
            _, log = await process.communicate()
        assert process.returncode == 0, log.decode()
        assert app.credential.encode() not in log
        assert b"Traceback" not in log
        left = await pools.background.fetchval(
            "SELECT count(*) FROM session WHERE closed_at IS NULL"
        )
        assert left == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _until_ready_is(wanted: bool, http: httpx.AsyncClient) -> None:
    while True:
        try:
            if ((await http.get("/health/ready")).status_code == 200) is wanted:
                return
        except httpx.ConnectError:
            pass
        await asyncio.sleep(0.02)
