"""A crowd that stands still beside a crowd that works, for as long as is asked for: B-40.

Short and small in a run of the suite; `make stall` is the full size and judges times as well.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from statistics import median

import psutil
import pytest

from orbit_sdk import AsyncClient
from store.invariants import violations
from tests.races.arena import QUEUE, Arena, open_arena
from tests.races.repeats import STALL_S
from tests.races.stall import Plan
from tests.races.stall_process import stall_on
from tests.races.traffic import Traffic, traffic_of
from tests.stores import Stores

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300 + 3 * STALL_S)]

log = logging.getLogger(__name__)

LEASE_MS = 15_000
CLOSED_WITHIN_S = 60.0
GROWTH_MAX = 100 * 1024 * 1024
P99_RATIO_MAX = 1.2
SAMPLE_S = 1.0
SHORT_PING_S = "6"
"""So that a standing peer is found out within a short run too."""


@dataclass(frozen=True)
class Form:
    """How many of everything, and for how long."""

    standing: int
    working: int
    rate: float
    rounds: int
    still_s: float
    """Of one round."""
    window_tasks: int
    calm_windows: int
    """Of one round, before anybody stands."""


SHORT = Form(standing=12, working=30, rate=40, rounds=1, still_s=4, window_tasks=80, calm_windows=1)
ROUNDS = max(2, min(6, int(STALL_S // 60)))
RATE = 200
WINDOW_S = 30.0
FULL = Form(
    standing=100,
    working=500,
    rate=RATE,
    rounds=ROUNDS,
    still_s=STALL_S / ROUNDS,
    window_tasks=int(RATE * min(WINDOW_S, STALL_S / ROUNDS)),
    calm_windows=2,
)


@pytest.fixture(scope="module")
def shared_arena(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    ping = {} if STALL_S else {"ORBIT_PING_INTERVAL_S": SHORT_PING_S}
    with open_arena(stores, tmp_path_factory.mktemp("arena"), LEASE_MS, **ping) as opened:
        yield opened


@pytest.fixture
async def arena(shared_arena: Arena) -> AsyncIterator[Arena]:
    async with shared_arena.entered():
        yield shared_arena


async def test_b40_a_crowd_that_stands_still_is_closed_by_rule_and_felt_by_nobody(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-37, R-158: zero receive windows at all times, bounded memory, work goes on."""
    form = FULL if STALL_S else SHORT
    caplog.set_level(logging.INFO, __name__)
    caplog.set_level(logging.WARNING, "picows")
    await arena.heal()
    async with AsyncClient(arena.cluster.url, arena.credential, timeout_s=30) as client:
        queue_id = (await client.queue(QUEUE)).id
    ports = [node.port for node in arena.cluster.gateways]
    async with traffic_of(
        ports, arena.credential, queue_id, workers=form.working, rate=form.rate
    ) as traffic:
        await traffic.window(form.window_tasks)  # everything is warm
        async with _memory_watched(arena) as grown:
            calm, beside = zip(
                *[await _round(arena, ports, queue_id, traffic, form) for _ in range(form.rounds)],
                strict=True,
            )
    log.info("resident memory grew by %s MiB", [size // 2**20 for size in grown.values()])
    assert max(grown.values()) < GROWTH_MAX
    await _all_succeeded_once(arena, traffic.submitted)
    usual, still = (median(chain.from_iterable(windows)) for windows in (calm, beside))
    log.info("median p99 %.1f ms calm, %.1f ms beside: ratio %.2f", usual, still, still / usual)
    if STALL_S:
        assert still / usual <= P99_RATIO_MAX, (calm, beside)


async def _round(
    arena: Arena, ports: list[int], queue_id: str, traffic: Traffic, form: Form
) -> tuple[list[float], list[float]]:
    """The p99 of each window without those who stand still, and of each beside them, in ms."""
    loop = asyncio.get_running_loop()
    calm = [_p99(await traffic.window(form.window_tasks)) for _ in range(form.calm_windows)]
    plan = Plan(
        arena.cluster.database_url,
        arena.credential,
        queue_id,
        ports,
        form.standing,
        CLOSED_WITHIN_S,
    )
    async with stall_on(plan) as stall:
        over_at = loop.time() + form.still_s
        beside: list[float] = []
        while loop.time() < over_at or not beside:
            beside.append(_p99(await traffic.window(form.window_tasks)))
    report = stall.report
    assert report is not None
    log.info(
        "p99 calm %s ms, beside %.0f of them %s; %d closed, %d full ones, after %.1f to %.1f s",
        [round(each, 1) for each in calm],
        report.standing / report.looks,
        [round(each, 1) for each in beside],
        report.closed,
        report.filled,
        report.stood_s_min,
        report.stood_s_max,
    )
    assert set(report.reasons) == {"disconnected"}, report.reasons
    assert report.closed >= form.standing
    assert report.filled >= 1
    assert report.stood_s_max < CLOSED_WITHIN_S
    if STALL_S:
        assert report.standing / report.looks >= form.standing
    return calm, beside


@asynccontextmanager
async def _memory_watched(arena: Arena) -> AsyncIterator[dict[str, int]]:
    """By how many bytes each gateway has grown at the most, sampled while the body runs."""
    names = {node.name: node.process.pid for node in arena.cluster.gateways}
    processes = {name: psutil.Process(pid) for name, pid in names.items()}
    before = {name: process.memory_info().rss for name, process in processes.items()}
    grown = dict.fromkeys(names, 0)

    async def watch() -> None:
        while True:
            for name, process in processes.items():
                grown[name] = max(grown[name], process.memory_info().rss - before[name])
            await asyncio.sleep(SAMPLE_S)

    watching = asyncio.create_task(watch())
    try:
        yield grown
    finally:
        watching.cancel()


async def _all_succeeded_once(arena: Arena, count: int) -> None:
    rows = await arena.fetch(
        "SELECT state, attempt_count, count(*) AS tasks FROM task GROUP BY state, attempt_count"
    )
    found = Counter({(row["state"], row["attempt_count"]): row["tasks"] for row in rows})
    assert found == {("SUCCEEDED", 1): count}
    assert await arena.fetchval("SELECT count(*) FROM lease") == 0
    if not STALL_S:  # else too many to look at one by one
        assert await violations(arena.connection) == []


def _p99(waits: list[float]) -> float:
    """In ms."""
    return 1000 * waits[len(waits) * 99 // 100]
