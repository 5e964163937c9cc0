"""Races of gateways that are away, all of them or the one that a worker hangs on: B-14, B-16, and
the way past a bad socket."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from devcluster.processes import LOOPBACK
from orbit_sdk import Worker
from orbit_sdk.worker.limits import CONNECT_BACKOFF
from tests.races.arena import OPEN_SESSIONS, WORKERS, Arena, open_arena
from tests.races.crowd import HANDLER, Asked, Crowd, Member, answers_agree, crowd_of
from tests.races.repeats import OUTAGE_S
from tests.stores import Stores
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASE_MS = 16_000
"""Outlives a slow start of all gateways, on a busy machine too."""

BACK_S = 30.0
"""Every worker is back so soon after the gateways (B-16): six times the longest wait."""

MORE_WORKERS = 8
LONG_CYCLES = 50


@pytest.fixture(scope="module")
def shared_arena(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with open_arena(stores, tmp_path_factory.mktemp("arena"), LEASE_MS) as opened:
        yield opened


@pytest.fixture
async def arena(shared_arena: Arena) -> AsyncIterator[Arena]:
    async with shared_arena.entered():
        yield shared_arena


async def test_b14_all_gateways_restarted_within_a_lease_run_nothing_twice(
    arena: Arena, seed: int
) -> None:
    """INV-1, INV-22: what runs is resumed and renewed, not given out again."""
    await arena.heal()
    tasks = await arena.submit(24, seconds=0.6 * LEASE_MS / 1000)
    await arena.began(24)
    gateways = arena.cluster.gateways
    await asyncio.gather(
        *(asyncio.to_thread(node.kill if seed % 2 else node.stop) for node in gateways)
    )
    down_at = await arena.fetchval("SELECT clock_timestamp()")
    assert await arena.fetchval("SELECT count(*) FROM lease WHERE state = 'RUNNING'") == 24
    await asyncio.gather(*(asyncio.to_thread(node.start) for node in gateways))
    await arena.succeeded(tasks)
    assert set(arena.runs().values()) == {1}
    renewed = "SELECT count(*) FROM receipt WHERE operation = 'renew' AND created_at > $1"
    assert await arena.fetchval(renewed, down_at) > 0
    resumed = "SELECT count(*) FROM attempt a JOIN session s ON s.id = a.session_id"
    assert await arena.fetchval(f"{resumed} WHERE s.opened_at > $1", down_at) > 0


async def test_b16_every_worker_comes_back_once_after_an_outage(
    arena: Arena, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-22, INV-39, R-153: long enough for every wait to have reached its cap."""
    await _outage(arena, seed, caplog, outage_s=0, cycles=1)


@pytest.mark.skipif(not OUTAGE_S, reason="a long outage is asked for with ORBIT_RACE_OUTAGE_S")
@pytest.mark.timeout(OUTAGE_S + 1_800)
async def test_b16_the_same_after_a_really_long_one(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-22, INV-39, R-153: minutes without a gateway, then fifty drains."""
    await _outage(arena, 0, caplog, outage_s=OUTAGE_S, cycles=LONG_CYCLES)


async def _outage(
    arena: Arena, seed: int, caplog: pytest.LogCaptureFixture, outage_s: float, cycles: int
) -> None:
    await arena.heal()
    everybody = WORKERS + MORE_WORKERS
    caplog.set_level(logging.INFO, "orbit_sdk.worker")
    async with _more_workers(arena):
        await arena.until(OPEN_SESSIONS, lambda found: found == everybody)
        caplog.clear()
        began = await arena.fetchval("SELECT clock_timestamp()")
        gateways = arena.cluster.gateways
        await asyncio.gather(*(asyncio.to_thread(node.kill) for node in gateways))
        await arena.until(OPEN_SESSIONS, lambda found: found == 0)
        passed = "SELECT extract(epoch FROM clock_timestamp() - $1)::float8"
        await arena.until(passed, lambda s: s >= outage_s, began, timeout_s=outage_s + 10)
        await wait_until(lambda: _at_cap(caplog), lambda count: count == MORE_WORKERS, 60)
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in gateways))
        await arena.until(OPEN_SESSIONS, lambda found: found == everybody, timeout_s=BACK_S)
        waits = [wait for each in _waits(caplog).values() for wait in each]
        cap_s = CONNECT_BACKOFF.cap_s
        assert max(waits) <= cap_s
        at_cap = [wait for wait in waits if wait >= cap_s / 2]
        assert len(set(at_cap)) > len(at_cap) // 2, "they wait in step"
        for cycle in range(cycles):
            node = gateways[(seed + cycle) % len(gateways)]
            await asyncio.to_thread(node.stop)
            assert node.process.exit_status == 0
            await asyncio.to_thread(node.start)
            await arena.until(OPEN_SESSIONS, lambda found: found == everybody, timeout_s=BACK_S)
            await wait_until(
                lambda: _sockets(arena), lambda count: count == everybody, timeout_s=BACK_S
            )
        tasks = await arena.submit(80, handler="echo", payload={})
        await arena.succeeded(tasks + await arena.submit(40))


@asynccontextmanager
async def _more_workers(arena: Arena) -> AsyncIterator[None]:
    """Workers of the SDK in this process, so that their waits can be read."""
    workers = []
    for _ in range(MORE_WORKERS):
        worker = Worker(arena.cluster.url, arena.credential, capacity=4)

        @worker.handler("echo")
        async def echo(payload: dict[str, Any]) -> dict[str, Any]:
            return payload

        workers.append(worker)
    serving = [asyncio.create_task(worker.serve()) for worker in workers]
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.wait_for(asyncio.gather(*serving), 60)


def _waits(caplog: pytest.LogCaptureFixture) -> dict[int, list[float]]:
    """The waits before each new try, by the thread of the worker."""
    found: dict[int, list[float]] = {}
    for record in caplog.records:
        if record.msg.startswith("disconnected") and isinstance(record.args, tuple):
            wait = record.args[1]
            assert isinstance(wait, float)
            assert record.thread is not None
            found.setdefault(record.thread, []).append(wait)
    return found


async def _at_cap(caplog: pytest.LogCaptureFixture) -> int:
    """How many workers have waited as long as they ever will."""
    shortest = CONNECT_BACKOFF.cap_s / 2
    return sum(max(waits) >= shortest for waits in _waits(caplog).values())


async def _sockets(arena: Arena) -> int:
    """Worker connections that the gateways really hold."""
    total = 0.0
    async with httpx.AsyncClient(timeout=10) as http:
        for node in arena.cluster.gateways:
            page = (await http.get(f"http://{LOOPBACK}:{node.port}/metrics")).text
            [line] = [x for x in page.splitlines() if x.startswith("orbit_gateway_worker_sockets ")]
            total += float(line.split()[1])
    return int(total)


async def test_workers_keep_leases_and_report_over_http_past_a_dead_gateway(
    arena: Arena, seed: int
) -> None:
    """INV-20, INV-22, R-151: no upgrade passes, their own gateway is killed or frozen."""
    victim = arena.victim(arena.cluster.gateways, seed)
    others = [node for node in arena.cluster.gateways if node is not victim]
    await arena.heal(at=victim)
    tasks = await arena.submit(24, seconds=1.25 * LEASE_MS / 1000)
    await arena.began(24)
    arena.cluster.balancer.set_refusing_upgrades(True)
    # A balancer asks for health, so a frozen one is left out soon as well.
    arena.behind_balancer(others)
    if seed % 2:
        await asyncio.to_thread(victim.kill)
    else:
        victim.process.signal(signal.SIGSTOP)
    opened = await arena.fetchval("SELECT count(*) FROM session")
    await arena.succeeded(tasks)
    assert set(arena.runs().values()) == {1}
    # Every renewal and report went past the sockets: nobody has had another session.
    assert await arena.fetchval("SELECT count(*) FROM session") == opened
    victim.process.signal(signal.SIGCONT)


async def test_a_command_is_one_whichever_way_it_is_answered(arena: Arena, seed: int) -> None:
    """INV-8, OP-21: asked of a gateway that dies or freezes, then over HTTP, then by a socket."""
    victim = arena.victim(arena.cluster.gateways, seed)
    others = [node.port for node in arena.cluster.gateways if node is not victim]
    await arena.heal()
    async with crowd_of(arena, seed, hold_s=0.3) as crowd:
        await crowd.join(20, [victim.port])
        tasks = await arena.submit(200, handler=HANDLER)
        await crowd.until_started(20 + seed % 60)
        victim.process.signal(signal.SIGSTOP)
        await crowd.all_due()
        told = await _ask_over_http(crowd, others[seed % 2])
        thaws = seed % 4 >= 2
        if thaws:
            victim.process.signal(signal.SIGCONT)
        else:
            await asyncio.to_thread(victim.kill)
        async with crowd.kept_connected(others):
            await arena.succeeded(tasks)
            await crowd.at_rest()
        receipts = crowd.receipts()
        assert len(told) >= 20
        assert {key: receipts[key] for key in told} == told
        await answers_agree(arena, crowd, thawed=thaws)


async def _ask_over_http(crowd: Crowd, port: int) -> dict[str, dict[str, Any]]:
    """Ask again, under their own ids, whatever waits for an answer; the receipts."""
    told: dict[str, dict[str, Any]] = {}
    headers = {"Authorization": f"Bearer {crowd.credential}"}
    url = f"http://{LOOPBACK}:{port}/v1/worker/attempts:"
    async with httpx.AsyncClient(headers=headers, timeout=15) as http:

        async def one(member: Member, kind: str) -> None:
            asked = [a for a in member.unanswered.values() if a.kind == f"task.{kind}"]
            if not asked:
                return
            answer = await http.post(url + kind, json=member.proof() | {"items": _flat(asked)})
            assert answer.status_code == 200, answer.text
            for each, result in zip(asked, answer.json()["data"]["results"], strict=True):
                assert result["status"] == 200, result
                told[each.item["message_id"]] = result["receipt"]

        await asyncio.gather(
            *(one(member, kind) for member in crowd.members for kind in ("renew", "finish"))
        )
    return told


def _flat(asked: list[Asked]) -> list[dict[str, Any]]:
    """Items as HTTP wants them: the reference is not apart."""
    flat = []
    for each in asked:
        item = dict(each.item)
        flat.append(item.pop("ref", {}) | item)
    return flat
