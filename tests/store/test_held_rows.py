"""A row that somebody holds, a person at a prompt perhaps, costs nobody else anything (INV-39).

Whatever meets it in a batch or a sweep passes over it: a call that waited would raise, since the
rows are held for as long as the call takes. What passed over it comes back and finds it free.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from store import commands, dispatch, operations
from store.commands import AttemptCommand, ReturnLease
from tests.store.world import LEASE_MS, Worker, World

Ask = Callable[[World, Sequence[AttemptCommand]], Coroutine[Any, Any, list[Any]]]


@asynccontextmanager
async def held(world: World, table: str, key: str, value: str) -> AsyncIterator[None]:
    """Somebody else's lock on one row."""
    connection = await world.other()
    async with connection.transaction():
        found = await connection.fetchval(
            f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {key} = $1 FOR UPDATE) k", value
        )
        assert found == 1
        yield


async def start(world: World, items: Sequence[AttemptCommand]) -> list[Any]:
    return await commands.start_attempts(world.connection, items, now=world.now)


async def renew(world: World, items: Sequence[AttemptCommand]) -> list[Any]:
    return await commands.renew_leases(world.connection, items, now=world.now)


async def resume(world: World, items: Sequence[AttemptCommand]) -> list[Any]:
    return await commands.resume_attempts(world.connection, items, now=world.now)


async def finish(world: World, items: Sequence[AttemptCommand]) -> list[Any]:
    reports = [world.finish_of(item) for item in items]
    return await commands.finish_attempts(world.connection, reports, now=world.now)


async def fail(world: World, items: Sequence[AttemptCommand]) -> list[Any]:
    reports = [world.failure_of(item) for item in items]
    return await commands.finish_attempts(world.connection, reports, now=world.now)


async def many_running(world: World, worker: Worker, count: int) -> list[AttemptCommand]:
    starts = await world.leased(worker, count)
    await start(world, starts)
    return starts


@pytest.mark.parametrize("ask", [start, renew, resume, finish, fail])
@pytest.mark.parametrize("is_over", [False, True], ids=["valid", "over"])
async def test_a_held_lease_costs_no_other_command_of_its_batch(
    world: World, ask: Ask, is_over: bool
) -> None:
    """INV-39, INV-6: though all of them may be over, which a command settles as it comes."""
    worker = await world.worker()
    items = await world.leased(worker, 5) if ask is start else await many_running(world, worker, 5)
    if is_over:
        world.wait(LEASE_MS)
    async with held(world, "lease", "attempt_id", items[2].attempt_id):
        before = await world.connection.fetch(
            "SELECT * FROM lease WHERE attempt_id = $1", items[2].attempt_id
        )
        codes = [outcome.code for outcome in await ask(world, items)]
        assert codes == ["ok", "ok", "locked", "ok", "ok"]
        assert before == await world.connection.fetch(
            "SELECT * FROM lease WHERE attempt_id = $1", items[2].attempt_id
        )
    assert [outcome.code for outcome in await ask(world, items[2:])] == ["ok"] * 3


async def test_a_held_task_costs_no_other_cancel_of_its_batch(world: World) -> None:
    """INV-39: wherever it is, and though others of the batch are over by now."""
    worker = await world.worker(capacity=20)
    running = await many_running(world, worker, 3)
    leased = await world.leased(worker, 3)
    waiting = await world.submitted(3)
    wishes = [
        world.cancellation(task_id)
        for task_id in [item.task_id for item in running + leased] + waiting
    ]
    async with (
        held(world, "lease", "attempt_id", running[1].attempt_id),
        held(world, "lease", "attempt_id", leased[1].attempt_id),
        held(world, "ready", "task_id", waiting[1]),
    ):
        outcomes = await operations.cancel_tasks(world.connection, wishes, now=world.now)
        assert [outcome.code for outcome in outcomes] == [
            *("intent", "locked", "intent"),
            *("done", "locked", "done"),
            *("done", "locked", "done"),
        ]
    outcomes = await operations.cancel_tasks(world.connection, wishes, now=world.now)
    assert [outcome.code for outcome in outcomes] == ["intent"] * 3 + ["done"] * 6
    repeats = [outcome.deduplicated for outcome in outcomes]
    assert repeats == [True, False, True] * 3


async def test_a_held_lease_keeps_no_other_from_going_back(world: World) -> None:
    """INV-39: when its session closes, or its gateway gives it back; its own end does the rest."""
    worker, other = await world.worker(), await world.worker()
    closed, returned = await world.leased(worker, 3), await world.leased(other, 3)
    async with (
        held(world, "lease", "attempt_id", closed[1].attempt_id),
        held(world, "lease", "attempt_id", returned[1].attempt_id),
    ):
        assert len(await world.close_session(worker.session_id)) == 2
        given = [ReturnLease(item.attempt_id, item.session_id) for item in returned]
        assert len(await commands.return_leases(world.connection, given, now=world.now)) == 2
    assert await world.count("lease") == 2
    world.wait(LEASE_MS)
    assert {row.waiting for row in await world.sweep()} == {True}
    assert await world.count("ready") == 6


@pytest.mark.parametrize("table", ["lease", "task"])
async def test_a_sweep_passes_over_what_is_held(world: World, table: str) -> None:
    """INV-39, INV-6: the lease itself, or the task that its end would settle."""
    worker = await world.worker()
    held_one, *others = [
        await world.running(worker, recovery_safety="RECONCILE_ONLY") for _ in range(3)
    ]
    world.wait(LEASE_MS)
    key, value = ("id", held_one.task_id) if table == "task" else ("task_id", held_one.task_id)
    async with held(world, table, key, value):
        swept = await world.sweep()
        assert {row.attempt_id for row in swept} == {item.attempt_id for item in others}
    assert [row.attempt_id for row in await world.sweep()] == [held_one.attempt_id]


@pytest.mark.parametrize("table", ["ready", "task"])
async def test_a_sweep_of_what_waited_too_long_passes_over_what_is_held(
    world: World, table: str
) -> None:
    task_ids = await world.submitted(3, start_deadline_at=world.at(1_000))
    world.wait(1_000)
    async with held(world, table, "id" if table == "task" else "task_id", task_ids[1]):
        assert await dispatch.expire_ready(world.connection, 100, now=world.now) == 2
    assert await dispatch.expire_ready(world.connection, 100, now=world.now) == 1


async def test_a_held_session_keeps_no_other_of_a_lost_node_open(world: World) -> None:
    """INV-39, INV-17: it is closed by the next call, though its node is long forgotten."""
    workers = [await world.worker() for _ in range(3)]
    for worker in workers:
        await world.leased(worker)
    world.wait(10_000)
    async with held(world, "session", "id", workers[1].session_id):
        nodes, back = await dispatch.reap_nodes(world.connection, 5_000, now=world.now)
        assert (nodes, len(back)) == ([world.node_id], 2)
    nodes, back = await dispatch.reap_nodes(world.connection, 5_000, now=world.now)
    assert (nodes, len(back)) == ([], 1)
