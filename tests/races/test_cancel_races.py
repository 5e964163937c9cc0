"""B-81: a cancel against start, finish and sweep in any order; nothing runs again afterwards."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from store import commands, dispatch, operations
from tests.races.repeats import CHEAP, SEED
from tests.store.world import LEASE_MS, World

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("running", [False, True], ids=["assigned", "running"])
async def test_b81_no_attempt_follows_a_cancel(world: World, running: bool) -> None:
    """INV-5, INV-18: 500 orders of cancel, worker's word and two sweeps, at the lease's end."""
    dice = random.Random(SEED)
    worker = await world.worker(capacity=256)
    connections = [await world.other() for _ in range(4)]
    seen: Counter[tuple[str, ...]] = Counter()
    for _ in range(5 * CHEAP):
        [start] = await world.leased(worker)
        if running:
            assert (await world.start(start)).active
        report = world.finish_of(start)
        says: Any = (
            commands.finish_attempts(connections[1], [report], now=world.at(LEASE_MS - 1))
            if running
            else commands.start_attempts(connections[1], [start], now=world.at(LEASE_MS - 1))
        )
        wish = world.cancellation(start.task_id)
        work = [
            operations.cancel_tasks(connections[0], [wish], now=world.at(LEASE_MS - 1)),
            says,
            dispatch.expire_leases(connections[2], 100, now=world.at(LEASE_MS)),
            dispatch.expire_leases(connections[3], 100, now=world.at(LEASE_MS)),
        ]
        order = dice.sample(range(4), 4)
        got = await asyncio.gather(*(work[place] for place in order))
        done: dict[int, Any] = dict(zip(order, got, strict=True))
        [cancelled] = done[0]
        [said] = done[1]
        world.wait(3 * LEASE_MS)  # an attempt that still runs, or one under an intent, is over
        await world.sweep()
        world.wait(2_000)
        again = await world.claim([(start.task_id, worker.session_id)])
        view = await world.view(start.task_id)
        seen[cancelled.code, said.disposition or said.code, view.state] += 1
        if cancelled.code in ("done", "intent"):
            assert again == []
            assert view.state in ("CANCELLED", "SUCCEEDED"), (cancelled, said, view)
            assert view.state == "CANCELLED" or said.disposition == "APPLIED"
        else:
            assert (running, cancelled.code, view.state) == (True, "state_conflict", "SUCCEEDED")
    assert len(seen) > 1, seen
