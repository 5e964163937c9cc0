"""No socket is handed more than it has room for: what the platform has for a worker never closes
it, and what waits for a slow one goes back (R-158, INV-37)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway import limits
from gateway.worker.socket import WorkerSocket
from orbit_sdk.protocol import limits as wire
from store.bus import Bus
from store.pool import Pools
from tests.contract.oracle import Version
from tests.gateway.harness import (
    App,
    Dispatcher,
    Gateway,
    Worker,
    ids,
    running_gateway,
    submission,
    submit,
    worker_on,
)
from tests.gateway.raw_socket import TEXT, frame, raw_socket
from tests.waiting import wait_until

LEASE_MS = 60_000
LARGE = "x" * (200 * 1024)
SMALL = "x" * (15 * 1024)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def gateway(database_url: str, redis_url: str, cluster_name: str) -> AsyncIterator[Gateway]:
    bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, bus, lease_ms=LEASE_MS) as running:
        yield running


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that waited for a socket after each thing that was put there."""
    seen: list[int] = []
    queue = WorkerSocket._queue

    def noting(self: WorkerSocket, item: Any) -> None:
        queue(self, item)
        seen.append(self._out_bytes)

    monkeypatch.setattr(WorkerSocket, "_queue", noting)
    return seen


async def submit_many(http: httpx.AsyncClient, payload: str, count: int) -> None:
    for start in range(0, count, 64):
        items = [
            submission(payload=payload, submission_key=f"{start}-{n}")
            for n in range(min(64, count - start))
        ]
        answer = await http.post("/v1/tasks:batchSubmit", json={"items": items})
        assert {result["status"] for result in answer.json()["data"]["results"]} == {201}


async def take(worker: Worker, count: int) -> None:
    """Read at once whatever comes, until so many assignments have."""
    taken = 0
    while taken < count:
        async with asyncio.timeout(30):
            got = json.loads(await worker.socket.recv())
        assert got["type"] == "task.assign", got
        taken += len(got["body"].get("assignments", [got["body"]]))
    assert taken == count


async def _first_grants(pools: Pools) -> int:
    return int(await pools.background.fetchval("SELECT count(*) FROM lease WHERE epoch = 1"))


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("payload", [LARGE, SMALL], ids=["large", "small"])
async def test_a_worker_that_reads_gets_all_that_it_has_slots_for(
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    pools: Pools,
    bus: Bus,
    queued: list[int],
    version: Version,
    payload: str,
) -> None:
    """50 MiB in one grant, three times what closes a socket: all of it arrives, nothing lapses."""
    await submit_many(http, payload, wire.CAPACITY_MAX)
    async with worker_on(gateway, app, hello=False, version=version) as worker:
        await worker.hello(capacity=wire.CAPACITY_MAX)
        dispatcher = Dispatcher(pools, bus, lease_ms=LEASE_MS)
        won = await dispatcher.claim(worker.session_id, wire.CAPACITY_MAX)
        assert len(won) == wire.CAPACITY_MAX
        await bus.assign(won[0].node_id, won)
        await take(worker, wire.CAPACITY_MAX)
        assert await _first_grants(pools) == wire.CAPACITY_MAX
        assert max(queued) <= limits.ASSIGN_QUEUE_BYTES_MAX + wire.JSON_BYTES_MAX
        socket = gateway.node.sockets[worker.session_id]
        # Read to the end, it is a session like any other: what frees a slot is told.
        await wait_until(lambda: _level_of(socket), lambda free: free == 0, 30)
        assert socket._full_since is None


async def test_a_slow_reader_is_closed_and_what_waits_for_it_goes_back(
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    pools: Pools,
    bus: Bus,
    queued: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody else is hurt, and what was never handed over is waiting again."""
    monkeypatch.setattr(wire, "SEND_QUEUE_FULL_S", 2.0)
    dispatcher = Dispatcher(pools, bus, lease_ms=LEASE_MS)
    port = int(gateway.url.rpartition(":")[2])
    await submit_many(http, LARGE, 100)
    async with worker_on(gateway, app, hello=False) as other:
        await other.hello(handler="other")
        with raw_socket(port, 4_096) as peer:
            await peer.upgrade(app.credential)
            head = {"protocol_version": "1", "type": "worker.hello", "message_id": ids.next()}
            body = {
                "instance_id": ids.next(),
                "instance_secret": "A" * 43,
                "queue_id": app.queue_id,
                "capabilities": [
                    {"handler": "send", "handler_version": "1", "payload_version": "1"}
                ],
                "capacity": wire.CAPACITY_MAX,
            }
            await peer.send(frame(TEXT, json.dumps({**head, "body": body}).encode()))
            welcome = await peer.read_json()
            session_id = str(welcome["session_id"])
            socket = gateway.node.sockets[session_id]
            assert len(await dispatcher.dispatch(session_id, 100)) == 100
            await wait_until(lambda: _level_of(socket), lambda free: free == 0, 30)
            outlet = gateway.node.outlet
            waiting = len(outlet._to_load[session_id])
            assert waiting > 50
            # The other one gets its work while this one is held back.
            assert (await submit(http, handler="other")).status_code == 201
            await dispatcher.dispatch(other.session_id)
            ref = (await other.assignment()).ref
            assert (await other.ask("task.start", ref))["type"] == "ack"
            # Refused for being slow, in words that reach it, whatever it reads from here on.
            await wait_until(lambda: _gone(socket), bool, 30)
            assert await peer.close_code() == 4429
            await wait_until(lambda: _ready(pools), lambda count: count == 100, 30)
        assert (await other.ask("task.renew", ref))["body"]["lease"]["active"] is True
        assert max(queued) <= limits.ASSIGN_QUEUE_BYTES_MAX + wire.JSON_BYTES_MAX
        await wait_until(lambda: _waiting(gateway), lambda count: count == 0, 30)


async def test_what_waits_for_room_goes_back_at_a_drain(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-15: nobody reads it out of the store first."""
    async with worker_on(gateway, app) as worker:
        await submit_many(http, LARGE, 3)
        socket = gateway.node.sockets[worker.session_id]
        socket._out_bytes += limits.ASSIGN_QUEUE_BYTES_MAX  # as if as much was still to be written
        await Dispatcher(pools, bus, lease_ms=LEASE_MS).dispatch(worker.session_id)
        await wait_until(lambda: _level_of(socket), lambda free: free == 0, 30)
        assert await _waiting(gateway) == 3
        drain = {"sequence": "1", "capacity": 4, "drain": True}
        assert (await worker.ask("worker.capacity", drain))["body"]["draining"] is True
        await wait_until(lambda: _ready(pools), lambda count: count == 3, 30)
        assert worker.assigned == []
        assert await _waiting(gateway) == 0
        assert socket.session.held == 0


async def _gone(socket: WorkerSocket) -> bool:
    return socket.gone


async def _level_of(socket: WorkerSocket) -> int:
    level = socket.level("0-0")
    assert level is not None
    return level.free


async def _waiting(gateway: Gateway) -> int:
    return sum(map(len, gateway.node.outlet._to_load.values()))


async def _ready(pools: Pools) -> int:
    return int(await pools.background.fetchval("SELECT count(*) FROM ready"))
