"""Races of renewals with a store that is slow to commit, B-04, or in which somebody holds a row.

Workers are those of the SDK, since what is at stake is a sum: the time until a worker renews, the
wait for a call of the gateway, and the call. Its one second of margin is a tenth of the shortest
lease of ten seconds for which it is meant; under a shorter one both are scaled down together.
"""

import asyncio
import math

import pytest

from gateway import limits
from orbit_sdk.worker import lease
from runtime import failpoints
from tests.races.house import AT_ONCE, House, OpenHouse
from tests.races.repeats import IS_FULL, size
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400 if IS_FULL else 240)

CALLS = ("start_attempts", "renew_leases", "finish_attempts")
ROUNDS = 3

RENEWED = (
    "SELECT extract(epoch FROM at - lag(at) OVER (PARTITION BY attempt_id ORDER BY at))::float"
    " FROM (SELECT attempt_id, created_at AS at FROM receipt WHERE operation = 'renew'"
    " UNION ALL SELECT id, started_at FROM attempt) w"
)


async def test_b04_slow_commits_and_the_pace_of_renewals_fit_into_a_lease(
    house_of: OpenHouse, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4, INV-20: each start, renewal and finish takes up to 0.4 of a lease until its commit:
    long enough for the worker to repeat it, and for many calls to be in flight beside it.

    A worker uses 0.9 leases; two calls in a row and their waits fill them. What breaks the sum
    breaks it in every round; what a busy machine breaks is forgiven twice.
    """
    lease_ms, tasks, work_s = 6_000, 60, 12.0
    if size(seed, 0, 1):
        lease_ms, tasks, work_s = 10_000, 1_000, 30.0
    for name in ("MARGIN_MIN_S", "REPEAT_MIN_S"):
        monkeypatch.setattr(lease, name, lease_ms / 10_000)
    slow = f"sleep:0..{limits.CALL_SHARE * lease_ms / 1000}"
    rules = ";".join(f"gateway.{call}.before={slow}" for call in CALLS)
    async with house_of(lease_ms=lease_ms) as house:
        failpoints.arm(failpoints.read_failpoints(rules, seed))
        rounds: list[tuple[int, float]] = []
        while len(rounds) < ROUNDS and (0, 0.7) not in rounds:
            lost, between = await one_round(house, tasks, work_s)
            rounds.append((lost, max(between, 0.7)))
        assert rounds[-1] == (0, 0.7), rounds


async def one_round(house: House, count: int, work_s: float) -> tuple[int, float]:
    """Run so many tasks; how many lost their lease, and all but how few renewals came so soon."""
    await house.pools.background.execute("TRUNCATE receipt")
    workers = 3 if count < 100 else 9
    capacity = -(-count // workers)
    async with house.crew(workers, capacity, work_s) as runs:
        tasks = await house.submit(count, retry=AT_ONCE | {"max_attempts": 1})
        await house.until("SELECT count(*) FROM task WHERE state IS NULL", 0, timeout_s=90)
    assert {runs[task] for task in tasks} == {1}
    shares = await shares_between_commits(house)
    assert len(shares) > 3 * len(tasks), "renewed every third of a lease"
    few = 0.01 if count < 100 else 0.001
    return await house.fetchval(LOST, tasks), shares[math.ceil((1 - few) * len(shares)) - 1]


LOST = "SELECT count(*) FROM attempt WHERE state <> 'SUCCEEDED' AND task_id = ANY ($1::uuid[])"


async def shares_between_commits(house: House) -> list[float]:
    """Between two committed renewals of one attempt, by the clock of the store, in leases."""
    lease_s = house.lease_ms / 1000
    return sorted(row[0] / lease_s for row in await house.rows(RENEWED) if row[0] is not None)


async def test_a_row_that_somebody_holds_costs_no_other_lease(house_of: OpenHouse) -> None:
    """INV-20, INV-39, INV-40: for as long as work takes that lives by its renewals."""
    count, work_s = 40, 12.0
    async with house_of(lease_ms=10_000) as house, house.crew(2, count // 2, work_s) as runs:
        tasks = await house.submit(count, retry=AT_ONCE)
        await house.until("SELECT count(*) FROM lease WHERE state = 'RUNNING'", count)
        unready = asyncio.create_task(unready_of(house))
        async with house.pools.background.acquire() as side, side.transaction():
            await side.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            held = await side.fetchval(
                "SELECT task_id FROM lease ORDER BY attempt_id LIMIT 1 FOR UPDATE"
            )
            await house.until(
                "SELECT count(*) FROM task WHERE state = 'SUCCEEDED'", count - 1, timeout_s=60
            )
        assert not unready.done(), "a gateway called itself unready"
        unready.cancel()
        await house.until("SELECT count(*) FROM task WHERE state IS NULL", 0, timeout_s=60)
    assert {task for task in tasks if runs[task] != 1} <= {held}


async def unready_of(house: House) -> None:
    """Returns as soon as any gateway is not ready."""

    async def all_ready() -> bool:
        return all(gateway.node.readiness().ready for gateway in house.gateways)

    await wait_until(all_ready, lambda ready: not ready, timeout_s=600)
