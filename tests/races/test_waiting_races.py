"""Races of tasks that become due with leases that run: B-01."""

import random
from datetime import datetime, timedelta

import pytest

from orbit_sdk.protocol.times import time_text
from tests.gateway.harness import submission
from tests.races.house import OpenHouse
from tests.races.repeats import IS_FULL, SEED

pytestmark = pytest.mark.timeout(300)

LEASE_MS = 3_000
TASKS, WORKERS, LEASES = (2_000, 20, 5.0) if IS_FULL else (300, 6, 2.0)
"""How many tasks become due over how many leases."""

FACTS = (
    "SELECT count(*)::int AS attempts, count(DISTINCT a.task_id)::int AS tasks,"
    " count(*) FILTER (WHERE a.state <> 'SUCCEEDED' OR a.epoch <> 1)::int AS unwanted,"
    " count(*) FILTER (WHERE a.granted_at < t.available_at)::int AS early,"
    " max(extract(epoch FROM a.granted_at - greatest(t.available_at, t.created_at)))::float AS late"
    " FROM attempt a JOIN task t ON t.id = a.task_id"
)


async def test_b01_a_task_is_granted_when_it_is_due_and_once(house_of: OpenHouse) -> None:
    """INV-1, INV-4, INV-9: tasks become due all through several leases, each at an instant of its
    own. By the database's clock no grant precedes it and none is ten seconds late; no grant lapses,
    since none waits anywhere for its task."""
    dice = random.Random(SEED)
    async with house_of(lease_ms=LEASE_MS, dispatchers=2) as house:
        async with house.crew(count=WORKERS) as runs:
            now: datetime = await house.fetchval("SELECT clock_timestamp()")
            spread_ms = LEASES * LEASE_MS
            due = [now + timedelta(milliseconds=dice.random() * spread_ms) for _ in range(TASKS)]
            tasks = await house.submit_all(
                [submission(house.app.queue, available_at=time_text(at)) for at in due]
            )
            await house.until("SELECT count(*) FROM task WHERE state IS NULL", 0, timeout_s=90)
        [facts] = await house.rows(FACTS)
        assert (facts["attempts"], facts["tasks"]) == (TASKS, TASKS)
        assert (facts["unwanted"], facts["early"]) == (0, 0)
        assert facts["late"] < 10
        assert {runs[task] for task in tasks} == {1}
