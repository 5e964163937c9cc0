"""Races with what Redis keeps, loses and brings back: B-26 and B-28.

Keys are looked at as an operator would, from outside: whatever stands there has a time to live, and
nothing that stands there, or has gone, decides about an execution or holds one up.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.connection import AbstractConnection

from devcluster.valkey import EmbeddedValkey
from dispatcher.main import Dispatcher
from store import bus as bus_module
from store import redis_link
from store.bus import Bus, BusUnavailable
from store.dispatch import Assignment
from store.messages import NOTHING_SEEN, CapacityLevel, Superseded
from store.redis_link import Command, Reply
from tests.gateway.harness import ids
from tests.races.house import House, OpenHouse
from tests.races.repeats import CHEAP, SEED
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

Redis = Any
OPEN = "SELECT count(*) FROM task WHERE state IS NULL"


@pytest.fixture
def redis_url(own_redis: EmbeddedValkey) -> str:
    """A server of this module's own, since its tests wipe it."""
    return own_redis.url()


@pytest.fixture
async def outside(own_redis: EmbeddedValkey) -> AsyncIterator[Redis]:
    """A connection that is none of ours."""
    connection = redis.asyncio.Redis.from_url(own_redis.url(), protocol=2)
    await connection.flushall()
    yield connection
    await connection.aclose()


async def immortal(outside: Redis) -> list[bytes]:
    """Keys without a time to live."""
    keys = [key async for key in outside.scan_iter(count=1_000)]
    return [key for key in keys if await outside.pttl(key) == -1]


def writes_of(bus: Bus) -> list[Callable[[], Any]]:
    """Every kind of write there is."""
    node_id = ids.next()
    level = CapacityLevel(ids.next(), node_id, ids.next(), (1, 2), 3, NOTHING_SEEN)
    until, now = "2030-01-01T00:00:30Z", "2030-01-01T00:00:00Z"
    given = Assignment(ids.next(), node_id, ids.next(), ids.next(), 1, until, now, b"{}")
    return [
        lambda: bus.wake([(ids.next(), 1)]),
        lambda: bus.report_capacity([level]),
        lambda: bus.assign(node_id, [given]),
        lambda: bus.notify([(node_id, Superseded(ids.next()))]),
        lambda: bus.beat("gateway", node_id),
        lambda: bus.beat("dispatcher", node_id),
        lambda: bus.probe_node(node_id),
        bus.probe_hints,
    ]


async def test_b26_a_writer_killed_at_any_byte_leaves_no_key_without_an_end(
    outside: Redis, redis_url: str, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-13, INV-44: each write is cut off somewhere, often behind one of its commands, on keys
    that nobody wrote before; half of them have arrived whole."""
    dice = random.Random(SEED)
    exchange = redis_link._exchange

    async def killed(connection: AbstractConnection, commands: Sequence[Command]) -> list[Reply]:
        if commands[0] == ("TIME",):
            return await exchange(connection, commands)
        sizes = [len(redis_link._pack(commands[:count])) for count in range(len(commands) + 1)]
        cut = dice.choice([sizes[-1], sizes[-1], dice.choice(sizes), dice.randrange(sizes[-1])])
        await connection.send_packed_command(redis_link._pack(commands)[:cut])
        await connection.disconnect(nowait=True)
        raise ConnectionResetError

    monkeypatch.setattr(redis_link, "_exchange", killed)
    for turn in range(CHEAP):
        bus = Bus(redis_url, f"{cluster_name}-{turn}")
        for write in writes_of(bus):
            with contextlib.suppress(BusUnavailable):
                await write()
        await bus.close()
    await wait_until(outside.client_list, lambda clients: len(clients) == 1, 10)
    assert len(await outside.keys()) > CHEAP
    assert await immortal(outside) == []


async def test_b26_what_the_dead_left_in_redis_holds_up_nobody(
    house_of: OpenHouse, outside: Redis, redis_url: str, cluster_name: str, seed: int
) -> None:
    """INV-13, INV-14: three dispatchers and a gateway end without a goodbye, with beats, levels and
    assignments in Redis. Another dispatcher does the work while all of that is still there: a beat
    counts for three seconds, and nothing else that was left counts at all."""
    nodes = f"orbit:{cluster_name}:nodes:dispatcher"
    async with house_of(dispatchers=0) as house, house.crew() as runs:
        forever = asyncio.Event()
        doomed = [asyncio.create_task(Dispatcher(house.settings).run(forever)) for _ in range(3)]
        tasks = await house.submit(60)
        await house.until(OPEN, 0)
        await wait_until(lambda: outside.hlen(nodes), lambda count: count == 3, 10)
        for one in doomed:
            one.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        await haunt(house, Bus(redis_url, cluster_name))
        left, beats = set(await outside.keys()), set(await outside.hkeys(nodes))
        assert len(beats) == 3 + 1
        assert await immortal(outside) == []
        tasks += await house.submit(60)
        async with house.dispatching():
            await house.until(OPEN, 0, timeout_s=10)
            assert left <= set(await outside.keys())
            assert beats < set(await outside.hkeys(nodes))
            assert await immortal(outside) == []
    assert {runs[task] for task in tasks} == {1}


async def haunt(house: House, bus: Bus) -> None:
    """What a gateway says of its workers and is told, when it was killed and they are gone."""
    node_id = ids.next()
    await bus.beat("gateway", node_id)
    queue_id = house.app.queue_id
    routes = tuple(row[0] for row in await house.rows("SELECT id FROM route ORDER BY id"))
    for _ in range(20):
        level = CapacityLevel(ids.next(), node_id, queue_id, routes, 16, NOTHING_SEEN)
        await bus.report_capacity([level])
    for write in writes_of(bus):
        await write()
    await bus.close()


async def test_b28_what_redis_forgets_or_repeats_starts_nothing_again(
    house_of: OpenHouse,
    outside: Redis,
    redis_url: str,
    cluster_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-1, INV-14, INV-20: tasks that run for thirty times as long as any key may live.

    There are no consumer groups and so no pending entries whose idle time could count. Meanwhile
    keys expire, streams are trimmed to nothing, Redis is wiped, and while all of them run every
    assignment comes again, as from an old dump. Each task is handed over and begun once, and has
    one attempt.
    """
    for name, most_ms in ("STREAM_TTL_MS", 200), ("STREAM_AGE_MS", 50), ("NODES_TTL_MS", 200):
        monkeypatch.setattr(bus_module, name, most_ms)
    sent: list[tuple[str, Sequence[Assignment]]] = []
    really = Bus.assign_many

    async def assign_many(bus: Bus, batches: Sequence[tuple[str, Sequence[Assignment]]]) -> Any:
        sent.extend(batches)
        return await really(bus, batches)

    monkeypatch.setattr(Bus, "assign_many", assign_many)
    dice = random.Random(SEED)
    old_dump = Bus(redis_url, cluster_name)
    async with house_of(lease_ms=4_000) as house, house.crew(capacity=40, work_s=6.0) as runs:
        tasks = await house.submit(CHEAP)
        await house.until(OPEN + " AND id NOT IN (SELECT task_id FROM lease)", 0)
        before = tuple(sent)

        async def disturb() -> int:
            running = await house.fetchval(OPEN)
            what = dice.choice(["wipe", "trim", "restore", "wait"])
            if what == "wipe":
                await outside.flushall()
            elif what == "trim":
                for key in await outside.keys("*:node:*"):
                    await outside.xtrim(key, maxlen=0, approximate=False)
            elif what == "restore" and running == len(tasks):
                await really(old_dump, before)
            return int(running)

        await wait_until(disturb, lambda count: count == 0, 60)
        outlets = [gateway.node.outlet for gateway in house.gateways]
        assert sum(outlet.by_stream + outlet.by_twin for outlet in outlets) == len(tasks)
        renewals = "SELECT count(*) FROM receipt WHERE operation = 'renew'"
        assert await house.fetchval(renewals) > 2 * len(tasks)
        attempts = await house.rows("SELECT epoch, state, count(*) FROM attempt GROUP BY 1, 2")
        assert [tuple(row) for row in attempts] == [(1, "SUCCEEDED", len(tasks))]
        assert await house.fetchval("SELECT max(attempt_count) FROM task") == 1
        assert {runs[task] for task in tasks} == {1}
    await old_dump.close()
