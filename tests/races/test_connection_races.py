"""Races of cancels, timeouts and lost links with connections: B-29, B-30, B-32 to B-35."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from devcluster.balancer import Balancer
from gateway.store_calls import Pool, StoreCalls
from store.bus import BusUnavailable
from store.pool import Pools, connect
from store.redis_link import RedisLink
from tests.gateway.harness import eventually, submission, worker_on
from tests.races.house import House, OpenHouse, finish, report, take, work_off
from tests.races.repeats import CHEAP, SEED
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

SURELY_S = 12.0
"""More than it takes on a busy machine, less than the 15 s after which Postgres ends what hangs."""
OLD_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '2 s'"
)
SUBMISSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    " AND state = 'active' AND query LIKE '%submit_tasks_v1%' AND pid <> pg_backend_pid()"
)
LOCKS = (
    "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()"
    " AND l.locktype IN ('tuple', 'transactionid', 'advisory')"
)


@pytest.fixture
async def slow_redis(redis_url: str) -> AsyncIterator[str]:
    """The Redis of the run behind a link that takes its time."""
    parts = urlsplit(redis_url)
    assert parts.port is not None
    balancer = Balancer([parts.port])
    await balancer.start()
    balancer.latency_s = 0.01
    netloc = parts.netloc.replace(f":{parts.port}", f":{balancer.port}")
    yield urlunsplit(parts._replace(netloc=netloc))
    await balancer.stop()


async def test_b29_no_reply_reaches_another_caller(slow_redis: str) -> None:
    """INV-38: pipelines, scripts and blocking reads, a third of them cancelled on the way."""
    dice = random.Random(SEED)
    link = RedisLink(slow_redis)
    own = [link.own_connection() for _ in range(4)]

    async def short(token: str) -> list[Any]:
        script = ("EVAL", "return ARGV[1]", 0, token)
        return await link.call([("ECHO", token), script, ("ECHO", token)])

    async def blocking(token: str, place: int) -> list[Any]:
        read = ("XREAD", "BLOCK", 5, "STREAMS", f"race-{token}", "0")
        replies = await own[place].call([("ECHO", token), read, ("ECHO", token)], 3.0)
        return [reply for reply in replies if reply is not None]

    async def one(number: int) -> bool | None:
        token = f"token-{number}"
        work = blocking(token, number % 4) if number % 8 < 4 else short(token)
        call = asyncio.create_task(work)
        if dice.random() < 0.3:
            await asyncio.wait({call}, timeout=dice.random() * 0.05)
            call.cancel()
        try:
            return {reply.decode() for reply in await call} == {token}
        except asyncio.CancelledError:
            return None

    results: list[bool | None] = []
    for start in range(0, 10 * CHEAP, 8):
        results += await asyncio.gather(*(one(n) for n in range(start, start + 8)))
    assert results.count(False) == 0
    assert results.count(None) > CHEAP
    assert results.count(True) > 5 * CHEAP
    await link.close()
    for connection in own:
        await connection.close()


async def test_b32_cancelled_and_late_calls_leave_the_pools_as_they_were(pools: Pools) -> None:
    """INV-38: thousands of calls with deadlines of some milliseconds and cancels at random."""
    dice = random.Random(SEED)

    async def opened() -> Pools:
        return pools

    calls = StoreCalls(opened)
    await calls.open()

    async def work(db: Any, seconds: float) -> int:
        return int(await db.fetchval("SELECT 1 FROM pg_sleep($1)", seconds))

    async def one(number: int) -> bool:
        seconds = dice.random() * 0.004
        is_patient = number == 0
        deadline_s = 30.0 if is_patient else 0.0005 + dice.random() * 0.02
        call = asyncio.create_task(calls.run(Pool.LEASE, deadline_s, work, seconds))
        if not is_patient and dice.random() < 0.3:
            await asyncio.wait({call}, timeout=dice.random() * 0.005)
            call.cancel()
        try:
            return await call == 1
        except (TimeoutError, asyncio.CancelledError, OSError, asyncpg.InterfaceError):
            return False

    done = 0
    for _ in range(CHEAP):
        done += sum(await asyncio.gather(*(one(number) for number in range(20))))
    assert 0 < done < 20 * CHEAP
    pool = pools.lease
    size = pool.get_max_size()
    held = await asyncio.wait_for(
        asyncio.gather(*(pool.acquire(timeout=5) for _ in range(size))), 10
    )
    assert [await connection.fetchval("SELECT 1") for connection in held] == [1] * size
    for connection in held:
        await pool.release(connection)
    assert (pool.get_size(), pool.get_idle_size()) == (size, size)
    began = time.monotonic()
    await pools.close()
    assert time.monotonic() - began < 5


async def test_b33_submissions_that_hang_starve_no_lease(house: House, seed: int) -> None:
    """INV-20, INV-37, INV-40: every submission waits for a lock; renewals and finishes go on."""
    async with worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=20)
        await house.submit(20)
        held = await take(worker, 20)
        for item in held:
            await worker.ask("task.start", item.ref)
        side = await connect(house.url)
        renewed: list[float] = []
        async with side.transaction():
            await side.execute("LOCK TABLE submission IN EXCLUSIVE MODE")
            began = time.monotonic()
            flood = [
                asyncio.create_task(
                    house.https[0].post(
                        "/v1/tasks",
                        json=submission(house.app.queue),
                        headers={"Idempotency-Key": f"flood-{seed}-{n}"},
                    )
                )
                for n in range(200)
            ]
            # While they wait; once they are refused it may be given work again.
            unready = asyncio.create_task(
                wait_until(partial(_readiness, house), lambda status: status == 503, 2 * SURELY_S)
            )
            for item in held * 3:
                asked = time.monotonic()
                assert (await worker.ask("task.renew", item.ref))["body"]["lease"]["active"]
                renewed.append(time.monotonic() - asked)
            for answer in await asyncio.gather(*flood):
                assert answer.status_code == 503
                assert int(answer.headers["Retry-After"]) >= 1
            assert time.monotonic() - began < 2 * SURELY_S
            await unready
            for item in held:
                await finish(worker, item)
        await side.close()
        assert max(renewed) < 0.3 * house.lease_ms / 1000
        await eventually(lambda: house.gateways[0].node.readiness().ready)
        # Of what was refused some may still be on its way to its commit: in the lane, or in a
        # backend whose caller gave up, which sees that only when it answers.
        await eventually(lambda: not house.gateways[0].node.commands.submit.open)
        await house.until(SUBMISSIONS, 0)
        await work_off(worker, house)


async def _readiness(house: House) -> int:
    return (await house.https[0].get("/health/ready")).status_code


async def test_b34_cancelled_requests_leave_no_lock_and_no_transaction(
    house: House, seed: int
) -> None:
    """INV-24, INV-38: clients hang up at any moment; the next renewal is quick."""
    dice = random.Random(seed)
    async with worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=1)
        await house.submit(1)
        [held] = await take(worker, 1)
        await worker.ask("task.start", held.ref)

        async def hang_up(number: int) -> None:
            key = {"Idempotency-Key": f"gone-{seed}-{number}"}
            client = house.https[0]
            call = asyncio.create_task(
                client.post("/v1/tasks", json=submission(house.app.queue), headers=key)
                if number % 3
                else client.get(f"/v1/tasks/{held.task['id']}")
            )
            await asyncio.wait({call}, timeout=dice.random() * 0.03)
            call.cancel()
            await asyncio.wait({call})

        for start in range(0, 4 * CHEAP, 40):
            await asyncio.gather(*(hang_up(n) for n in range(start, start + 40)))
            began = time.monotonic()
            assert (await worker.ask("task.renew", held.ref))["body"]["lease"]["active"]
            assert time.monotonic() - began < SURELY_S  # a transaction left open lasts longer
        assert await house.fetchval(OLD_TRANSACTIONS) == 0
        await house.until(LOCKS, 0, timeout_s=5)
        await worker.ask("task.finish", report(held))
        await work_off(worker, house)


async def test_b35_every_database_connection_killed_again_and_again(
    house_of: OpenHouse, seed: int
) -> None:
    """INV-37, INV-39: pools are made whole by themselves, wake-ups are as quick as before."""
    async with house_of() as house, house.crew() as runs:
        killer = await asyncpg.connect(house.url, server_settings={"application_name": "killer"})
        tasks = []
        for _ in range(8):
            tasks += await house.submit(20)
            await killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'orbit'"
            )
            await wait_until(lambda: _open(killer), lambda count: count == 0, 20)
        began = time.monotonic()
        await house.gateways[0].ready()
        tasks += await house.submit(1)
        await wait_until(lambda: _open(killer), lambda count: count == 0, SURELY_S)
        assert time.monotonic() - began < SURELY_S
        assert {runs[task] for task in tasks} == {1}
        await killer.close()


async def _open(connection: "asyncpg.Connection[Any]") -> int:
    return int(await connection.fetchval("SELECT count(*) FROM task WHERE state IS NULL"))


async def test_b30_a_redis_that_swallows_everything_is_said_and_survived(
    redis_url: str,
) -> None:
    """INV-38, INV-39: packets vanish; calls end in time, and connections do not pile up."""
    parts = urlsplit(redis_url)
    assert parts.port is not None
    balancer = Balancer([parts.port])
    await balancer.start()
    link = RedisLink(urlunsplit(parts._replace(
        netloc=parts.netloc.replace(f":{parts.port}", f":{balancer.port}"))))  # fmt: skip
    assert await link.call([("PING",)])
    balancer.stall()
    began = time.monotonic()
    calls = [asyncio.create_task(link.call([("PING",)])) for _ in range(40)]
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - began < SURELY_S
    assert {type(result) for result in done} == {BusUnavailable}
    balancer.resume()
    assert await link.call([("PING",)])
    assert balancer.connections <= 4 + 1
    await link.close()
    await balancer.stop()
