"""Pausing and resuming queues: control version, reason, identity (R-087, OP-31, INV-18)."""

import msgspec

from store import queries
from tests.store.world import World


async def queue_of(world: World) -> queries.Queue:
    found = await queries.find_queue(world.connection, world.namespace_id, world.queue_id)
    assert found is not None
    return found


async def test_a_pause_withholds_grants_and_starts_and_nothing_else(world: World) -> None:
    worker = await world.worker()
    running = await world.running(worker)
    [leased] = await world.leased(worker)
    [waiting] = await world.submitted()
    await world.pause()
    assert await world.claim([(waiting, worker.session_id)]) == []
    assert (await world.start(leased)).code == "execution_gated"
    assert (await world.start(running)).deduplicated
    assert (await world.renew(world.again(running))).active
    assert (await world.cancel(waiting)).code == "done"
    assert (await world.finish(world.finish_of(running))).task_state == "SUCCEEDED"
    await world.pause(False)
    assert (await world.start(leased)).active


async def test_each_change_raises_the_control_version_and_keeps_its_reason(world: World) -> None:
    change = world.gate_change(True, 1, reason="incident 7")
    outcome = await world.set_gate(change)
    assert (outcome.code, outcome.paused, outcome.control_version) == ("done", True, 2)
    queue = await queue_of(world)
    assert (queue.paused, queue.control_version, queue.reason) == (True, 2, "incident 7")
    outcome = await world.set_gate(world.gate_change(False, 2, reason="over"))
    assert (outcome.code, outcome.paused, outcome.control_version) == ("done", False, 3)
    rows = await world.connection.fetch(
        "SELECT action, actor, resource, reason FROM audit WHERE action LIKE 'queue.%' ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [
        ("queue.pause", "0" * 16, world.queue_id, "incident 7"),
        ("queue.resume", "0" * 16, world.queue_id, "over"),
    ]
    events = await world.connection.fetch("SELECT type, revision FROM event ORDER BY id")
    assert [tuple(row) for row in events] == [("queue.paused", 2), ("queue.resumed", 3)]


async def test_a_stale_version_overwrites_nothing(world: World) -> None:
    await world.pause()
    await world.pause(False)
    before = await world.snapshot()
    refused = await world.set_gate(world.gate_change(True, 2))
    assert (refused.code, refused.paused, refused.control_version) == ("state_conflict", False, 3)
    assert await world.snapshot() == before


async def test_a_repeat_gets_its_first_confirmation_and_pauses_nothing_again(world: World) -> None:
    change = world.gate_change(True, 1)
    await world.set_gate(change)
    await world.pause(False)
    before = await world.snapshot()
    repeat = await world.set_gate(change)
    assert (repeat.code, repeat.paused, repeat.control_version) == ("done", True, 2)
    assert repeat.deduplicated
    assert await world.snapshot() == before
    other = await world.set_gate(msgspec.structs.replace(change, hash=b"o" * 32))
    assert other.code == "idempotency_conflict"


async def test_one_key_names_a_pause_and_a_resume_apart(world: World) -> None:
    """R-094: keys are scoped by operation."""
    assert (await world.set_gate(world.gate_change(True, 1, key="k"))).code == "done"
    assert (await world.set_gate(world.gate_change(False, 2, key="k"))).code == "done"


async def test_another_namespaces_queue_is_not_there(world: World) -> None:
    before = await world.snapshot()
    for stranger in ({"namespace_id": world.id()}, {"queue_id": world.id()}):
        refused = await world.set_gate(world.gate_change(True, 1, **stranger))
        assert refused.code == "queue_not_found"
    assert await world.snapshot() == before
