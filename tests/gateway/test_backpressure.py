"""One session's flood, or one of submissions, costs no other session its lease (INV-20, B-33).

Told by facts, not by times: every renewal of the calm session is answered active, over several
leases, while the flood goes on.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from gateway import limits
from store.bus import Bus
from store.pool import Pools
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

LEASE_MS = 4_000
LEASES = 2
SUBMISSIONS_MAX = 2_000

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
async def gateway(
    database_url: str, redis_url: str, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Gateway]:
    monkeypatch.setattr(limits, "SUBMIT_QUEUE_MAX", SUBMISSIONS_MAX)
    bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, bus, lease_ms=LEASE_MS) as running:
        yield running


@asynccontextmanager
async def running(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> AsyncIterator[tuple[Worker, dict[str, str]]]:
    """A session that has started one attempt."""
    async with worker_on(gateway, app) as worker:
        assert (await submit(http)).status_code == 201
        await Dispatcher(pools, bus, lease_ms=LEASE_MS).dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        assert (await worker.ask("task.start", ref))["type"] == "ack"
        yield worker, ref


async def renew_for(
    worker: Worker, ref: dict[str, str], leases: int, log: list[str] | None = None
) -> int:
    """Renew in good time for so many leases; how often. Every answer must be active."""
    loop = asyncio.get_running_loop()
    until = loop.time() + leases * LEASE_MS / 1000
    count = 0
    while loop.time() < until:
        answer = await worker.ask("task.renew", ref)
        assert answer["type"] == "ack", answer
        assert answer["body"]["lease"]["active"] is True
        assert answer["body"]["receipt"]["disposition"] == "APPLIED"
        count += 1
        if log is not None:
            log.append("renewed")
        await asyncio.sleep(LEASE_MS / 4000)
    return count


async def test_a_flood_of_frames_from_one_session_costs_another_no_lease(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """Proven renewals, refused starts and broken bodies, as fast as the socket takes them."""
    async with (
        running(gateway, app, http, pools, bus) as (calm, ref),
        running(gateway, app, http, pools, bus) as (wild, own),
    ):
        answers: dict[str, int] = {}

        def wild_frame(kind: str, body: object) -> str:
            head = {"protocol_version": "1", "type": kind, "message_id": ids.next()}
            return json.dumps(head | {"session_id": wild.session_id, "body": body})

        async def flood() -> None:
            unproven = own | {"attempt_id": "0" * 32}
            while True:
                for _ in range(200):
                    await wild.socket.send(wild_frame("task.renew", own))
                    await wild.socket.send(wild_frame("task.start", unproven))

        async def read() -> None:
            while True:
                frame: dict[str, Any] = json.loads(await wild.socket.recv())
                code = frame["error"]["code"] if frame["type"] == "error" else "ack"
                answers[code] = answers.get(code, 0) + 1

        flooding = [asyncio.create_task(flood()), asyncio.create_task(read())]
        try:
            assert await renew_for(calm, ref, LEASES) >= LEASES
        finally:
            for task in flooding:
                task.cancel()
            results = await asyncio.gather(*flooding, return_exceptions=True)
        assert not any(isinstance(result, ConnectionClosed) for result in results)
        # It was a flood: beyond its bound, answered one by one, and not cut off.
        assert answers["attempt_not_found"] > limits.SESSION_COMMANDS_MAX
        assert answers["ack"] > 0
        done = {"ref": ref, "outcome": "SUCCEEDED", "result": 1}
        receipt = (await calm.ask("task.finish", done))["body"]["receipt"]
        assert receipt["disposition"] == "APPLIED"
    counts = await pools.background.fetch("SELECT attempt_count FROM task WHERE state IS NOT NULL")
    assert [row[0] for row in counts] == [1]


async def test_submissions_that_fill_their_lane_leave_renewals_alive(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """B-33: every connection for submissions waits for a lock, as many as may wait behind them, and
    more come. Renewals are answered while not one submission is."""
    log: list[str] = []
    batch = {"items": [submission() | {"submission_key": ""} for _ in range(1_000)]}

    async def post(number: int) -> list[int]:
        for index, item in enumerate(batch["items"]):
            item["submission_key"] = f"{number}-{index}"
        answer = await http.post("/v1/tasks:batchSubmit", content=json.dumps(batch), headers=JSON)
        assert answer.status_code == 200, answer.text
        found = [result["status"] for result in answer.json()["data"]["results"]]
        log.append("waited" if 503 in found else "refused")
        return found

    http.timeout = httpx.Timeout(30)
    async with running(gateway, app, http, pools, bus) as (calm, ref):
        async with pools.background.acquire() as blocker, blocker.transaction():
            await blocker.execute("LOCK TABLE submission IN ACCESS EXCLUSIVE MODE")
            flooding = [asyncio.create_task(post(number)) for number in range(6)]
            renewed = await renew_for(calm, ref, LEASES, log)
            statuses = [status for part in await asyncio.gather(*flooding) for status in part]
            # Refused in time and in words that say: later (each may be sent again with its key).
            # Over the bound at once, what had its place when its patience was over.
            assert set(statuses) == {429, 503}
            assert statuses.count(429) == 6_000 - SUBMISSIONS_MAX
            assert statuses.count(503) == SUBMISSIONS_MAX
            waited_from = log.index("waited")
            assert log.index("refused") < waited_from
            assert log[:waited_from].count("renewed") >= 2, log
            assert gateway.node.commands.submit.stuck_s() > 0
        assert renewed >= LEASES
        done = {"ref": ref, "outcome": "SUCCEEDED", "result": 1}
        assert (await calm.ask("task.finish", done))["type"] == "ack"
    row = await pools.background.fetch("SELECT attempt_count FROM task WHERE state = 'SUCCEEDED'")
    assert [found[0] for found in row] == [1]


JSON = {"Content-Type": "application/json"}
