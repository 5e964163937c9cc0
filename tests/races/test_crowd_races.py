"""Races of one gateway's end or one slow reader with a crowd of workers: B-13, B-40, B-41."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import psutil
import pytest
from redis.asyncio import Redis

from devcluster.processes import Process
from orbit_sdk.protocol.limits import PING_INTERVAL_S, WRITE_DEADLINE_S
from tests.races.arena import Arena, open_arena
from tests.races.crowd import HANDLER, JOIN_S, Crowd, answers_agree, crowd_of
from tests.races.repeats import size
from tests.races.standing import FLOOD_FRAMES, Standing, standing_on
from tests.stores import Stores
from tests.waiting import POLL_S, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LEASE_MS = 15_000
"""Longer than anything here should wait: what comes sooner did not wait for a lease."""

AT_ONCE_S = 2.0
"""The first assignment of a worker that came back (B-13)."""

TTL_S = 5.0
"""Nothing waits for anything longer than this (B-13): here a node is given up after 3 s, and that
is looked for once a second."""

ROUNDS_MAX = 3

SILENT = 4
"""Workers that hold what they never start, and never come back: only their node's end tells."""

GRACE_S = 20.0
"""The grace limit of a process: drain 2 s, 5 s for answers, 5 s for closes, and a busy machine."""


@pytest.fixture(scope="module")
def shared_arena(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("arena")
    with open_arena(stores, folder, LEASE_MS, ORBIT_NODE_BEAT_MS="1000") as opened:
        yield opened


@pytest.fixture
async def arena(shared_arena: Arena) -> AsyncIterator[Arena]:
    async with shared_arena.entered():
        yield shared_arena


async def test_b41_a_gateway_told_to_stop_in_mid_traffic_owes_no_answer(
    arena: Arena, seed: int
) -> None:
    """INV-7, INV-15, INV-41: every session is told why, every committed command is answered."""
    leaving = arena.victim(arena.cluster.gateways, seed)
    others = [node.port for node in arena.cluster.gateways if node is not leaving]
    await arena.heal()
    count = size(seed, 50, 500)
    async with crowd_of(arena, seed, hold_s=2.0) as crowd:
        await crowd.join(count, [leaving.port])
        tasks = await arena.submit(4 * count, handler=HANDLER)
        await crowd.until_started(count // 2 + seed % count)
        leaving.process.signal(signal.SIGTERM)
        status = await asyncio.to_thread(leaving.process.wait_end, GRACE_S)
        assert status == 0
        await crowd.all_gone(5)
        told = Counter(member.closes[-1] for member in crowd.members)
        assert told == {(1012, "draining"): count}
        assert sum(member.assigned_after_drain for member in crowd.members) == 0
        async with crowd.kept_connected(others):
            await arena.succeeded(tasks)
            await crowd.at_rest()
        await answers_agree(arena, crowd)


async def test_b13_a_crowd_of_a_killed_gateway_gets_work_through_the_others(
    arena: Arena, seed: int
) -> None:
    """INV-14, INV-17, INV-22: at once after each reconnect; nothing stays with the dead one.

    What waits for a timer waits in each round; a busy machine is forgiven all but one.
    """
    rounds = []
    for turn in range(ROUNDS_MAX):
        rounds.append(await _kill_one_of(arena, seed + turn))
        first_s, stuck_s = rounds[-1]
        if first_s < AT_ONCE_S and stuck_s < TTL_S:
            return
    pytest.fail(f"first assignments and unstarted ones took, in seconds: {rounds}")


async def _kill_one_of(arena: Arena, seed: int) -> tuple[float, float]:
    """How long a worker that came back waited for its first task, and how long anything of those
    who did not come back waited for its return; the longest of each, in seconds."""
    victim = arena.victim(arena.cluster.gateways, seed)
    others = [node.port for node in arena.cluster.gateways if node is not victim]
    await arena.heal()
    count = size(seed, 50, 200)
    async with crowd_of(arena, seed, hold_s=1.0) as crowd:
        await crowd.join(SILENT, [victim.port], silent=True)
        await crowd.join(count, [victim.port])
        dead = [member.session_id for member in crowd.members]
        node_id = await arena.fetchval("SELECT node_id FROM session WHERE id = $1", dead[0])
        tasks = await arena.submit(5 * count // 2, handler=HANDLER)
        tasks += await arena.submit(5 * count // 2, handler=HANDLER)
        await crowd.until_ignored()
        await crowd.until_started(count // 2 + seed % count)
        killed_at = await arena.fetchval("SELECT clock_timestamp()")
        await asyncio.to_thread(victim.kill)
        await crowd.all_gone(5)  # else what they had been given before would count as new work
        async with crowd.kept_connected(others):
            tasks += await _work_for_all(arena, crowd)
            await arena.succeeded(tasks)
            await crowd.at_rest()
        await answers_agree(arena, crowd)
    waits = await arena.fetch(FIRST_WAITS, dead, crowd.capacity)
    assert len(waits) >= count
    stuck = await arena.fetch(
        "SELECT extract(epoch FROM finished_at - $2)::float8 AS stuck FROM attempt"
        " WHERE session_id = ANY ($1::uuid[]) AND started_at IS NULL",
        dead,
        killed_at,
    )
    assert len(stuck) >= SILENT
    await _nothing_is_unread(arena, node_id)
    return max(row["waited"] for row in waits), max(row["stuck"] for row in stuck)


FIRST_WAITS = """
WITH back AS (
    SELECT s.id, s.opened_at,
           CASE WHEN count(h.id) < $2 THEN s.opened_at ELSE min(h.finished_at) END AS free_at
    FROM session s LEFT JOIN attempt h
      ON h.session_id = s.id AND h.granted_at < s.opened_at AND h.finished_at > s.opened_at
    WHERE NOT s.id = ANY ($1::uuid[])
      AND s.instance_id IN (SELECT d.instance_id FROM session d WHERE d.id = ANY ($1::uuid[]))
    GROUP BY s.id, s.opened_at)
SELECT extract(epoch FROM min(a.started_at) - b.free_at)::float8 AS waited
FROM back b JOIN attempt a ON a.session_id = b.id AND a.granted_at > b.opened_at
GROUP BY b.id, b.free_at
"""
"""From a hello that was accepted, or the first free slot if what was resumed took all of them, to
the first start of what was assigned since."""


async def _work_for_all(arena: Arena, crowd: Crowd) -> list[str]:
    """Tasks wait until each member has been given one in its new session."""
    loop, count = asyncio.get_running_loop(), len(crowd.members)
    tasks: list[str] = []
    until = loop.time() + JOIN_S
    while any(not member.given for member in crowd.members if not member.silent):
        assert loop.time() < until, "somebody never got work again"
        if await arena.fetchval("SELECT count(*) FROM ready") < count:
            tasks += await arena.submit(count, handler=HANDLER)
        else:
            await asyncio.sleep(POLL_S)
    return tasks


async def _nothing_is_unread(arena: Arena, node_id: str) -> None:
    """The stream of the dead gateway, which nobody will read any more."""
    async with Redis.from_url(arena.cluster.redis_url) as redis:
        key = f"orbit:{arena.cluster.cluster}:node:{node_id}"
        await wait_until(lambda: redis.xlen(key), lambda length: length == 0, TTL_S)


async def test_b40_readers_that_stand_still_cost_their_own_session_alone(
    arena: Arena, seed: int
) -> None:
    """INV-37, R-158: half of them wake and learn why; memory is bounded, healthy work goes on."""
    node = arena.cluster.gateways[seed % len(arena.cluster.gateways)]
    await arena.heal()
    count, still = size(seed, 20, 200), size(seed, 2, 24)
    async with crowd_of(arena, seed, hold_s=1.0) as crowd:
        await crowd.join(count, [node.port])
        tasks = await _one_round(arena, count)
        before = _resident(node.process)
        most = [before]
        async with crowd.kept_connected([node.port]):
            over = asyncio.Event()
            healthy = asyncio.create_task(_work_until(arena, count, over, node.process, most))
            with ExitStack() as stack:
                peers = [stack.enter_context(standing_on(node.port)) for _ in range(still)]
                try:
                    await _stand_still(arena, crowd, peers)
                finally:
                    over.set()
                    tasks += await healthy
            await arena.succeeded(tasks)
            await crowd.at_rest()
        assert max(most) - before < size(seed, 32, 100) * 1024 * 1024
        # On a machine that is too busy to let a node beat, all its sessions end as expired.
        assert {code for member in crowd.members for code, _ in member.closes} <= {4410}
        await answers_agree(arena, crowd)


async def _stand_still(arena: Arena, crowd: Crowd, peers: list[Standing]) -> None:
    """Flood, read nothing, see the rule."""
    for peer in peers:
        await peer.hello(crowd.queue_id, crowd.credential)

    async def flood(peer: Standing, wakes: bool) -> int | None:
        await peer.flood(FLOOD_FRAMES)
        return await peer.wake() if wakes else None

    codes = await asyncio.gather(*(flood(peer, n % 2 == 0) for n, peer in enumerate(peers)))
    assert codes[::2] == [4429] * (len(peers) // 2)
    is_open = "SELECT count(*) FROM session WHERE id = ANY ($1::uuid[]) AND closed_at IS NULL"
    ids = [peer.session_id for peer in peers]
    # The write deadline, its sweep, and a busy machine; no ping would have noticed so soon.
    limit_s = min(PING_INTERVAL_S, WRITE_DEADLINE_S + 9)
    await arena.until(is_open, lambda found: found == 0, ids, timeout_s=limit_s)


async def _work_until(
    arena: Arena, count: int, over: asyncio.Event, process: Process, most: list[int]
) -> list[str]:
    """Round after round, each of them whole; at least one of them began and ended meanwhile."""
    tasks: list[str] = []
    while not over.is_set() or not tasks:
        tasks += await _one_round(arena, count)
        most.append(_resident(process))
    return tasks


async def _one_round(arena: Arena, count: int) -> list[str]:
    tasks = await arena.submit(count // 2, handler=HANDLER)
    await wait_until(lambda: arena.open_of(tasks), lambda found: found == 0, 20)
    return tasks


def _resident(process: Process) -> int:
    assert process.pid is not None
    return int(psutil.Process(process.pid).memory_info().rss)
