"""A gateway without its stores: it says so, keeps its sockets, loses nothing, and comes back.

A balancer stands between the gateway and each store and stalls, cuts or refuses; the test itself
talks to the stores directly.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from devcluster.balancer import Balancer
from store.bus import Bus
from store.commands import OpenSession, open_sessions
from store.dispatch import sessions_of_node
from store.messages import entry_order
from store.pool import Pools
from tests.gateway.harness import (
    App,
    Dispatcher,
    Gateway,
    eventually,
    ids,
    running_gateway,
    submit,
    worker_on,
)
from tests.waiting import wait_until

BUSY_S = 3.0
"""What a busy machine may add to a limit of time."""


@asynccontextmanager
async def behind_balancer(url: str) -> AsyncIterator[tuple[Balancer, str]]:
    """A balancer in front of the server of this URL, and the URL through it."""
    parts = urlsplit(url)
    assert parts.port is not None
    balancer = Balancer([parts.port])
    await balancer.start()
    netloc = parts.netloc.replace(f":{parts.port}", f":{balancer.port}")
    try:
        yield balancer, urlunsplit(parts._replace(netloc=netloc))
    finally:
        await balancer.stop()


@pytest.fixture
async def postgres(database_url: str) -> AsyncIterator[tuple[Balancer, str]]:
    async with behind_balancer(database_url) as made:
        yield made


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[tuple[Balancer, str]]:
    async with behind_balancer(redis_url) as made:
        yield made


async def status(http: httpx.AsyncClient, path: str) -> int:
    return (await http.get(path)).status_code


@asynccontextmanager
async def parts(
    gateway_url: str, bus: Bus, app: App
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    async with (
        running_gateway(gateway_url, bus) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=app.headers, timeout=15) as http,
    ):
        yield gateway, http


async def test_a_frozen_postgres_makes_it_unready_and_answers_503_in_time(
    postgres: tuple[Balancer, str], app: App, redis_url: str, cluster_name: str
) -> None:
    """INV-40, B-33: unready and 503 with Retry-After within 5 s; live all the while."""
    balancer, url = postgres
    async with parts(url, Bus(redis_url, cluster_name), app) as (gateway, http):
        assert (await submit(http)).status_code == 201
        balancer.stall()
        began = time.monotonic()
        answers = await asyncio.gather(*(submit(http, key=str(n)) for n in range(5)))
        assert time.monotonic() - began < 5.0 + BUSY_S
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"]
        await eventually(lambda: not gateway.node.readiness().ready, BUSY_S)
        assert await status(http, "/health/ready") == 503
        assert await status(http, "/health/live") == 200
        balancer.resume()
        await gateway.ready()
        again = await asyncio.gather(*(submit(http, key=str(n)) for n in range(5)))
        assert {answer.status_code for answer in again} <= {200, 201}


@pytest.mark.parametrize("fault", ["stall", "cut"])
async def test_worker_commands_wait_for_postgres_and_are_answered_when_it_is_back(
    fault: str,
    postgres: tuple[Balancer, str],
    app: App,
    pools: Pools,
    redis_url: str,
    cluster_name: str,
) -> None:
    """INV-7, INV-20: the socket stays, the unknown commit is settled by the same batch again."""
    balancer, url = postgres
    bus = Bus(redis_url, cluster_name)
    dispatcher = Dispatcher(pools, bus)
    async with parts(url, bus, app) as (gateway, http):
        await submit(http)
        async with worker_on(gateway, app) as worker:
            await dispatcher.dispatch(worker.session_id)
            ref = (await worker.assignment()).ref
            if fault == "cut":
                balancer.refusing = True
                balancer.cut()
            else:
                balancer.stall()
            start = await worker.send("task.start", ref)
            with pytest.raises(TimeoutError):
                await worker.receive(timeout_s=1.0)
            balancer.refusing = False
            balancer.resume()
            frame = await worker.answer(start)
            assert frame["type"] == "ack", frame
            assert frame["body"]["lease"]["active"] is True
            done = {"ref": ref, "outcome": "SUCCEEDED", "result": 1}
            assert (await worker.ask("task.finish", done))["type"] == "ack"


async def test_connections_cut_under_load_lose_and_double_nothing(
    postgres: tuple[Balancer, str], app: App, pools: Pools, redis_url: str, cluster_name: str
) -> None:
    """INV-7, INV-29: every accepted key is one task, whatever the cuts hit."""
    balancer, url = postgres
    async with parts(url, Bus(redis_url, cluster_name), app) as (_, http):

        async def persistent(key: str) -> str:
            while True:
                answer = await submit(http, key=key)
                if answer.status_code in (200, 201):
                    task_id: str = answer.json()["data"]["id"]
                    return task_id
                assert answer.status_code == 503, answer.text

        async def cuts() -> None:
            for _ in range(10):
                await asyncio.sleep(0.03)
                balancer.cut()

        cutting = asyncio.create_task(cuts())
        keys = [str(n) for n in range(200)]
        ids = await asyncio.gather(*(persistent(key) for key in keys))
        await cutting
    assert len(set(ids)) == 200
    assert await pools.background.fetchval("SELECT count(*) FROM task") == 200


async def test_without_redis_it_is_ready_but_degraded_and_the_twin_delivers(
    redis: tuple[Balancer, str],
    app: App,
    pools: Pools,
    bus: Bus,
    database_url: str,
    cluster_name: str,
) -> None:
    """INV-14, OP-48: what was claimed reaches the worker through Postgres within 5 s."""
    balancer, url = redis
    dispatcher = Dispatcher(pools, bus)
    async with (
        parts(database_url, Bus(url, cluster_name), app) as (gateway, http),
        worker_on(gateway, app) as worker,
    ):
        balancer.refusing = True
        balancer.cut()
        answer = await submit(http)
        assert answer.status_code == 201
        await eventually(lambda: gateway.node.readiness().degraded)
        assert await status(http, "/health/ready") == 200
        (won,) = await dispatcher.claim(worker.session_id)
        given = await worker.assignment(timeout_s=5.0)
        assert given.ref["attempt_id"] == won.attempt_id
        assert (await worker.ask("task.start", given.ref))["type"] == "ack"
        balancer.refusing = False
        await eventually(lambda: not gateway.node.readiness().degraded)
        # The stream's late copy of what the twin has sent is not sent again.
        entry = await dispatcher.bus.assign(won.node_id, [won])
        await eventually(lambda: entry_order(gateway.node.outlet.seen) >= entry_order(entry))
        done = {"ref": given.ref, "outcome": "SUCCEEDED", "result": 1}
        assert (await worker.ask("task.finish", done))["type"] == "ack"
        await dispatcher.bus.assign(won.node_id, [won])
        with pytest.raises(TimeoutError):
            await worker.receive(timeout_s=0.3)


async def test_a_lost_stream_entry_is_found_by_the_twin(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-14: Redis well, the entry gone (trimmed, flushed): at most 5 s and a little."""
    async with worker_on(gateway, app) as worker:
        await submit(http)
        await Dispatcher(pools, bus).claim(worker.session_id)
        given = await worker.assignment(timeout_s=8.0)
        assert given.task["state"] == "LEASED"


async def test_a_node_that_was_given_up_sends_its_workers_away(
    gateway: Gateway, app: App, pools: Pools
) -> None:
    """INV-17: sessions closed by a dispatcher do not linger as silent sockets."""
    async with worker_on(gateway, app) as worker:
        node_id = gateway.node.node_id
        await pools.background.execute("DELETE FROM node WHERE id = $1", node_id)
        await pools.background.fetch(
            "SELECT * FROM close_sessions_v1(ARRAY[$1::uuid], ARRAY['node_lost'])",
            worker.session_id,
        )
        frame = await worker.receive()
        assert frame["error"]["code"] == "session_expired"
        assert await worker.closed() == 4410


async def test_a_session_that_no_socket_knows_is_closed(
    gateway: Gateway, app: App, pools: Pools
) -> None:
    """INV-12, INV-17: a hello was committed after its connection had given up waiting for it."""
    node_id = gateway.node.node_id
    hello = OpenSession(
        ids.next(), app.namespace_id, ids.next(), bytes(32), app.queue_id, (1,), 4, node_id,
        3_600_000, app.key_id,
    )  # fmt: skip
    async with worker_on(gateway, app) as worker, pools.background.acquire() as connection:
        [outcome] = await open_sessions(connection, [hello])
        assert outcome.code == "ok"
        await connection.execute("DELETE FROM node WHERE id = $1", node_id)
        await wait_until(
            lambda: sessions_of_node(connection, node_id),
            lambda still_open: still_open == [worker.session_id],
            10.0,
        )


async def test_one_bad_row_costs_only_itself(
    http: httpx.AsyncClient, pools: Pools, app: App
) -> None:
    """INV-39: a batch that the database refuses as a whole is settled by halves."""
    await pools.background.execute(
        "ALTER TABLE task ADD CHECK (business_key IS DISTINCT FROM 'poison')"
    )
    answers = await asyncio.gather(
        *(submit(http, business_key="poison" if n == 13 else None) for n in range(40))
    )
    codes = [answer.status_code for answer in answers]
    assert codes[13] == 500
    assert answers[13].json()["error"] == {
        "code": "internal",
        "message": "An internal error occurred.",
        "details": {},
    }
    assert codes[:13] + codes[14:] == [201] * 39
