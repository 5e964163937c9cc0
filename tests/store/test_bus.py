"""The bus on a real server: what it carries, and what Redis may do to it meanwhile."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis

from devcluster.valkey import EmbeddedValkey
from store.bus import Bus, BusUnavailable, CapacityLevel, StreamReader
from store.dispatch import Assignment
from store.messages import Assigned, Levels, Superseded, Wake, entry_order
from store.redis_link import RedisLink

QUEUE, NODE, SESSION = "a" * 32, "b" * 32, "c" * 32
CLUSTER = "bustest"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    folder: Path = tmp_path_factory.mktemp("valkey")
    with EmbeddedValkey(folder, appendonly=True) as running:
        yield running


@pytest.fixture
async def raw(server: EmbeddedValkey) -> "AsyncIterator[redis.Redis]":
    client = redis.Redis.from_url(server.url(), protocol=2)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def bus(server: EmbeddedValkey, raw: "redis.Redis") -> AsyncIterator[Bus]:
    bus = Bus(server.url(), CLUSTER)
    yield bus
    await bus.close()


@contextlib.asynccontextmanager
async def reading(reader: StreamReader) -> AsyncIterator[StreamReader]:
    try:
        yield reader
    finally:
        await reader.close()


def level(free: int = 1, session_id: str = SESSION) -> CapacityLevel:
    return CapacityLevel(session_id, NODE, QUEUE, (1, 2), free, "0-0")


def assignment(number: int = 1) -> Assignment:
    return Assignment(
        session_id=SESSION,
        node_id=NODE,
        task_id=f"{number:032x}",
        attempt_id=f"{number:032x}",
        epoch=1,
        lease_until="2026-01-01T00:00:30.000Z",
        server_time="2026-01-01T00:00:00.000Z",
        task=b'{"task_id":"x"}',
    )


async def until_read(reader: StreamReader, seconds: float = 10.0) -> list[object]:
    """Messages of the first read that brings any, over failures of Redis."""
    async with asyncio.timeout(seconds):
        while True:
            with contextlib.suppress(BusUnavailable):
                if entries := await reader.read(200, 100):
                    return [message for _, message in entries]


async def a_new_millisecond(raw: "redis.Redis") -> None:
    """Entry ids are milliseconds: a stream made anew within one gives out the last id again."""

    async def now() -> int:
        seconds, micros = await raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    began = await now()
    while await now() == began:
        pass


async def test_wakes_reach_a_reader_that_waits(bus: Bus) -> None:
    async with reading(bus.reader("wake")) as reader:
        assert await reader.read(1, 10) == []
        wait = asyncio.create_task(reader.read(5_000, 10))
        await bus.wake([(QUEUE, 1), (QUEUE, 2), (QUEUE, 1)])
        [(_, message)] = await wait
        assert message == Wake(((QUEUE, 1), (QUEUE, 2)))


async def test_hint_readers_begin_at_the_end_and_node_readers_at_the_start(bus: Bus) -> None:
    await bus.wake([(QUEUE, 1)])
    entry_id = await bus.assign(NODE, [assignment()])
    await bus.notify([(NODE, Superseded(SESSION))])
    async with reading(bus.reader("wake")) as wakes, reading(bus.reader("node", NODE)) as node:
        assert await wakes.read(1, 10) == []
        entries = await node.read(1_000, 10)
    assert [message for _, message in entries] == [Assigned((assignment(),)), Superseded(SESSION)]
    assert entries[0][0] == entry_id


async def test_one_reader_serves_wake_and_capacity(bus: Bus) -> None:
    async with reading(bus.dispatch_reader()) as reader:
        await reader.read(1, 10)
        await bus.report_capacity([level(3)])
        await bus.wake([(QUEUE, 7)])
        messages = await until_read(reader)
        assert set(map(type, messages)) == {Wake, Levels}
        assert Levels((level(3),)) in messages


async def test_assign_many_is_one_call_with_one_id_each(bus: Bus) -> None:
    other = "d" * 32
    ids = await bus.assign_many(
        [(NODE, [assignment(1)]), (other, [assignment(2)]), (NODE, [assignment(3)])]
    )
    assert entry_order(ids[0]) < entry_order(ids[2])
    async with reading(bus.reader("node", NODE)) as reader:
        assert [entry for entry, _ in await reader.read(1_000, 10)] == [ids[0], ids[2]]
    assert await bus.assign_many([]) == []


async def test_big_sets_of_routes_and_levels_become_several_entries(bus: Bus) -> None:
    async with reading(bus.dispatch_reader()) as reader:
        await reader.read(1, 10)
        await bus.wake([(QUEUE, route) for route in range(1, 2_502)])
        await bus.report_capacity([level()] * 1_001)
        entries = [message for _, message in await reader.read(1_000, 10)]
    sizes = [len(entry.routes) for entry in entries if isinstance(entry, Wake)]
    assert sizes == [1_000, 1_000, 501]
    assert [len(entry.levels) for entry in entries if isinstance(entry, Levels)] == [1_000, 1]


async def test_nodes_live_by_their_beats(bus: Bus, raw: "redis.Redis") -> None:
    await bus.beat("gateway", NODE)
    await bus.beat("dispatcher", QUEUE)
    await raw.hset(f"orbit:{CLUSTER}:nodes:gateway", "e" * 32, 1)
    await raw.hset(f"orbit:{CLUSTER}:nodes:gateway", "f" * 32, "garbage")
    assert await bus.live_nodes("gateway") == [NODE]
    assert await raw.hkeys(f"orbit:{CLUSTER}:nodes:gateway") == [NODE.encode()]
    await bus.leave("gateway", NODE)
    assert await bus.live_nodes("gateway") == []
    assert await bus.live_nodes("dispatcher") == [QUEUE]


async def test_every_key_has_a_ttl_and_every_stream_a_bound(bus: Bus, raw: "redis.Redis") -> None:
    for _ in range(50):
        await bus.wake([(QUEUE, 1)])
        await bus.report_capacity([level()])
        await bus.assign(NODE, [assignment()])
        await bus.notify([(NODE, Superseded(SESSION))])
        await bus.beat("gateway", NODE)
    keys = [key async for key in raw.scan_iter()]
    assert len(keys) == 4
    for key in keys:
        assert 0 < await raw.pttl(key) <= 120_000
    for _ in range(12):
        async with raw.pipeline(transaction=False) as pipe:
            for _ in range(1_000):
                pipe.xadd(f"orbit:{CLUSTER}:wake", {"m": b"x"})
            await pipe.execute()
    await bus.wake([(QUEUE, 1)])
    assert await raw.xlen(f"orbit:{CLUSTER}:wake") < 10_200


async def test_the_reader_of_a_node_trims_what_it_has_read(bus: Bus, raw: "redis.Redis") -> None:
    padded = msgspec.structs.replace(assignment(), task=b'"' + b"x" * 16_000 + b'"')
    async with reading(bus.reader("node", NODE)) as reader:
        for _ in range(20):
            await bus.assign(NODE, [padded] * 4)
        assert len(await reader.read(1_000, 100)) == 20
        reader._trimmed_at = 0.0
        await reader.read(1, 100)
        assert await raw.xlen(f"orbit:{CLUSTER}:node:{NODE}") <= 2


async def test_a_buried_node_leaves_no_stream_and_may_come_back(
    bus: Bus, raw: "redis.Redis"
) -> None:
    """B-13: nothing stays unread, and one that was given up by mistake hears what comes later."""
    async with reading(bus.reader("node", NODE)) as reader:
        await bus.assign(NODE, [assignment(1)])
        assert len(await reader.read(100, 10)) == 1
        await bus.assign(NODE, [assignment(2)])
        await bus.assign("d" * 32, [assignment(3)])
        await bus.bury([])
        await bus.bury([NODE, "e" * 32])
        assert [key.decode() for key in await raw.keys()] == [f"orbit:{CLUSTER}:node:{'d' * 32}"]
        await bus.assign(NODE, [assignment(4)])
        (entry,) = await reader.read(100, 10)
        assert entry[1] == Assigned((assignment(4),))


async def test_old_entries_are_trimmed_by_the_clock_of_redis(bus: Bus, raw: "redis.Redis") -> None:
    key = f"orbit:{CLUSTER}:wake"
    async with raw.pipeline(transaction=False) as pipe:
        for number in range(1, 501):
            pipe.xadd(key, {"m": b"x"}, id=f"{number}-0")
        await pipe.execute()
    await bus.wake([(QUEUE, 1)])
    await bus.wake([(QUEUE, 2)])
    assert await raw.xlen(key) < 150


GARBAGE: list[dict[Any, Any]] = [
    {"m": b""},
    {"m": b"\xc1"},
    {"m": msgspec.msgpack.encode([["x", 1]])},
    {"m": msgspec.msgpack.encode([[[QUEUE + "\n", 1]]])},
    {"m": msgspec.msgpack.encode([[[QUEUE, 2**63]]])},
    {"m": msgspec.msgpack.encode([[[QUEUE, -1]]])},
    {"m": b"\x91" * 100_000},
    {"other": b"field"},
]


async def test_garbage_is_skipped_and_counted(bus: Bus, raw: "redis.Redis") -> None:
    async with reading(bus.reader("wake")) as reader:
        await reader.read(1, 10)
        for fields in GARBAGE:
            await raw.xadd(f"orbit:{CLUSTER}:wake", fields)
        await bus.wake([(QUEUE, 1)])
        assert [message for _, message in await reader.read(1_000, 100)] == [Wake(((QUEUE, 1),))]
        assert reader.skipped_count == len(GARBAGE)


async def test_a_key_of_another_type_is_an_unavailable_bus(bus: Bus, raw: "redis.Redis") -> None:
    await raw.set(f"orbit:{CLUSTER}:wake", "x")
    async with reading(bus.reader("wake")) as reader:
        with pytest.raises(BusUnavailable, match="WRONGTYPE"):
            await reader.read(1, 10)
    with pytest.raises(BusUnavailable, match="WRONGTYPE"):
        await bus.wake([(QUEUE, 1)])


async def test_a_wipe_while_reading_loses_nothing_that_comes_after(
    bus: Bus, raw: "redis.Redis"
) -> None:
    async with reading(bus.reader("node", NODE)) as reader:
        await bus.assign(NODE, [assignment(1)])
        assert len(await reader.read(1_000, 10)) == 1
        for number in range(2, 7):
            waiting = asyncio.create_task(until_read(reader))
            await raw.flushall()
            await a_new_millisecond(raw)
            await bus.assign(NODE, [assignment(number)])
            assert await waiting == [Assigned((assignment(number),))]


async def test_a_position_ahead_of_its_stream_starts_again(bus: Bus, raw: "redis.Redis") -> None:
    key = f"orbit:{CLUSTER}:wake"
    async with reading(bus.reader("wake")) as reader:
        await raw.xadd(key, {"m": b"future"}, id=f"{int(time.time() * 1000) + 3_600_000}-0")
        await reader.read(1, 10)
        await raw.delete(key)
        await bus.wake([(QUEUE, 5)])
        assert await until_read(reader) == [Wake(((QUEUE, 5),))]
        assert reader.restarts_count == 1


async def test_a_stream_behind_is_noticed_while_another_is_busy(
    bus: Bus, raw: "redis.Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.stream_reader.CHECK_S", 0.2)
    key = f"orbit:{CLUSTER}:wake"
    async with reading(bus.dispatch_reader()) as reader:
        await raw.xadd(key, {"m": b"future"}, id=f"{int(time.time() * 1000) + 3_600_000}-0")
        await reader.read(1, 10)
        await raw.delete(key)
        await bus.wake([(QUEUE, 5)])
        async with asyncio.timeout(5):
            while True:
                await bus.report_capacity([level()])
                messages = [message for _, message in await reader.read(1_000, 10)]
                if Wake(((QUEUE, 5),)) in messages:
                    break


async def test_trimmed_entries_are_passed_over(bus: Bus, raw: "redis.Redis") -> None:
    async with reading(bus.reader("wake")) as reader:
        await reader.read(1, 10)
        for route in range(1, 6):
            await bus.wake([(QUEUE, route)])
        await raw.xtrim(f"orbit:{CLUSTER}:wake", maxlen=0, approximate=False)
        assert await reader.read(50, 10) == []
        await bus.wake([(QUEUE, 9)])
        assert await until_read(reader) == [Wake(((QUEUE, 9),))]


async def test_killed_connections_are_made_again(bus: Bus, raw: "redis.Redis") -> None:
    async with reading(bus.reader("node", NODE)) as reader:
        await reader.read(1, 10)
        for number in range(1, 11):
            waiting = asyncio.create_task(until_read(reader, 3.0))
            await asyncio.sleep(0)
            await raw.client_kill_filter(_type="normal", skipme=True)
            await bus.assign(NODE, [assignment(number)])
            assert await waiting == [Assigned((assignment(number),))]


async def test_a_crash_and_a_restart_of_the_server(bus: Bus, server: EmbeddedValkey) -> None:
    async with reading(bus.reader("node", NODE)) as reader:
        await bus.assign(NODE, [assignment(1)])
        assert len(await reader.read(1_000, 10)) == 1
        server.kill()
        with pytest.raises(BusUnavailable):
            await reader.read(100, 10)
        with pytest.raises(BusUnavailable):
            await bus.ping()
        await asyncio.to_thread(server.start)
        await bus.assign(NODE, [assignment(2)])
        got = await until_read(reader)
        assert got[-1] == Assigned((assignment(2),))


async def test_a_silent_server_ends_calls_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.redis_link.CALL_S", 0.3)
    monkeypatch.setattr("store.stream_reader.REPLY_GRACE_S", 0.2)

    swallowed: list[asyncio.Task[None]] = []

    async def drain(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        while await incoming.read(1_024):
            pass
        outgoing.close()
        await outgoing.wait_closed()

    def swallow(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        swallowed.append(asyncio.create_task(drain(incoming, outgoing)))

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        bus = Bus(f"redis://127.0.0.1:{port}/0?socket_timeout=100&protocol=3", CLUSTER)
        began = time.monotonic()
        with pytest.raises(BusUnavailable):
            await bus.ping()
        async with reading(bus.reader("wake")) as reader:
            for _ in range(2):
                with pytest.raises(BusUnavailable):
                    await reader.read(100, 10)
        assert time.monotonic() - began < 3.0
        await bus.close()
        await asyncio.gather(*swallowed)


async def test_cancelled_calls_never_leave_a_reply_to_others(
    server: EmbeddedValkey, raw: "redis.Redis"
) -> None:
    link = RedisLink(server.url())
    dice = random.Random(29)

    async def echo(number: int) -> bool:
        tokens = [f"{number}:{part}" for part in range(3)]
        replies = await link.call([("ECHO", token) for token in tokens])
        return [reply.decode() for reply in replies] == tokens

    async def one(number: int) -> bool | None:
        call = asyncio.create_task(echo(number))
        if dice.random() < 0.3:
            for _ in range(dice.randrange(12)):
                await asyncio.sleep(0)
            call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            return None

    results: list[bool | None] = []
    for start in range(0, 3_000, 30):
        results += await asyncio.gather(*(one(n) for n in range(start, start + 30)))
    assert results.count(None) > 300
    assert results.count(True) > 1_500
    assert False not in results
    assert all([await echo(n) for n in range(10)])
    await link.close()


async def test_cancelled_reads_lose_no_entry(bus: Bus) -> None:
    dice = random.Random(29)
    got: list[int] = []
    async with reading(bus.reader("wake")) as reader:
        await reader.read(1, 10)
        for route in range(1, 201):
            waiting = asyncio.create_task(reader.read(1_000, 100))
            await asyncio.sleep(0)
            await bus.wake([(QUEUE, route)])
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += [m.routes[0][1] for _, m in await waiting if isinstance(m, Wake)]
        while len(got) < 200 and (entries := await reader.read(500, 200)):
            got += [m.routes[0][1] for _, m in entries if isinstance(m, Wake)]
    assert got == list(range(1, 201))
