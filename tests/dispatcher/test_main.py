"""The process: it waits for its database, tells its health, and leaves in good order."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest
from click.testing import CliRunner
from pydantic import SecretStr

from devcluster.processes import free_port
from dispatcher.cli import dispatcher as command
from dispatcher.main import Dispatcher
from runtime.settings import DispatcherSettings
from store import pool
from store.bus import Bus
from tests.dispatcher.conftest import FakeGateway, until
from tests.dispatcher.test_assign import submit
from tests.store.world import World
from tests.stores import Stores

PROGRAM = (sys.executable, "-c", "from dispatcher.cli import dispatcher; dispatcher()")


def settings_of(database_url: str, redis_url: str, cluster: str, port: int) -> DispatcherSettings:
    return DispatcherSettings(
        database_url=SecretStr(database_url),
        redis_url=SecretStr(redis_url),
        cluster=cluster,
        probe_port=port,
        route_scan_ms=100,
        level_scan_ms=100,
    )


@asynccontextmanager
async def running(settings: DispatcherSettings) -> AsyncIterator[httpx.AsyncClient]:
    stop = asyncio.Event()
    run = asyncio.create_task(Dispatcher(settings).run(stop))
    url = f"http://127.0.0.1:{settings.probe_port}"
    async with httpx.AsyncClient(base_url=url) as client:
        await until(lambda: answers(client, "/health/live"))
        yield client
    stop.set()
    async with asyncio.timeout(10):
        await run


async def answers(client: httpx.AsyncClient, path: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await client.get(path)).status_code == 200
    return False


async def test_a_whole_dispatcher_serves_shows_itself_and_leaves(
    world: World, bus: Bus, fake_gateway: FakeGateway, redis_url: str, cluster_name: str
) -> None:
    await world.worker(capacity=3)
    settings = settings_of(world.url, redis_url, cluster_name, free_port())
    async with running(settings) as client:
        await until(lambda: answers(client, "/health/ready"))
        await submit(world, bus, 3)
        assert len(await fake_gateway.take(3)) == 3
        assert (await client.get("/health/ready")).json()["degraded"] is False
        metrics = (await client.get("/metrics")).text
        for name in ("orbit_assigned_tasks_total", "orbit_loop_lag_seconds", "orbit_bus_up 1.0"):
            assert name in metrics
        assert await bus.live_nodes("dispatcher") != []
        nodes = await world.connection.fetch("SELECT kind FROM node")
        assert "dispatcher" in {row[0] for row in nodes}
    assert await bus.live_nodes("dispatcher") == []
    assert "dispatcher" not in {r[0] for r in await world.connection.fetch("SELECT kind FROM node")}


async def test_it_is_ready_and_degraded_without_redis(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.loops.LATE_AFTER_S", 0.05)
    await world.worker(capacity=3)
    settings = settings_of(world.url, "redis://127.0.0.1:1/0", "none", free_port())
    async with running(settings) as client:

        async def is_degraded() -> bool:
            answer = await client.get("/health/ready")
            return answer.status_code == 200 and bool(answer.json()["degraded"])

        await until(is_degraded)


async def test_it_waits_for_a_database_that_is_away_or_empty(
    stores: Stores, redis_url: str, cluster_name: str
) -> None:
    admin = await asyncpg.connect(stores.admin_url)
    name = "empty_for_dispatcher"
    await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    port = free_port()
    settings = settings_of(stores.database_url(name), redis_url, cluster_name, port)
    async with running(settings) as client:

        async def says(reason: str) -> bool:
            answer = await client.get("/health/ready")
            return answer.status_code == 503 and reason in answer.json()["reason"]

        await until(lambda: says("Postgres"))
        await admin.execute(f"CREATE DATABASE {name}")
        await until(lambda: says("orbit migrate"))
    await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await admin.close()


async def test_an_address_that_is_taken_ends_the_process_with_one_line(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBIT_DATABASE_URL", database_url)
    monkeypatch.setenv("ORBIT_REDIS_URL", redis_url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("ORBIT_PROBE_PORT", str(taken.getsockname()[1]))
        done = await asyncio.to_thread(
            subprocess.run,
            PROGRAM,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    assert "cannot serve 127.0.0.1" in done.stderr


def test_a_missing_setting_is_one_line() -> None:
    done = CliRunner().invoke(command, [])
    assert done.exit_code == 1
    assert done.output.count("\n") == 1
    assert "ORBIT_DATABASE_URL: is not set" in done.output


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_process_in_order(
    database_url: str, redis_url: str, cluster_name: str, asked: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    port = free_port()
    monkeypatch.setenv("ORBIT_DATABASE_URL", database_url)
    monkeypatch.setenv("ORBIT_REDIS_URL", redis_url)
    monkeypatch.setenv("ORBIT_CLUSTER", cluster_name)
    monkeypatch.setenv("ORBIT_PROBE_PORT", str(port))
    process = await asyncio.create_subprocess_exec(*PROGRAM, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            await until(lambda: answers(client, "/health/ready"))
        process.send_signal(asked)
        async with asyncio.timeout(10):
            said = (await process.stderr.read()).decode()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "dispatcher_stopped" in said
    assert "Traceback" not in said
    connection = await pool.connect(database_url)
    assert await connection.fetchval("SELECT count(*) FROM node") == 0
    await connection.close()
