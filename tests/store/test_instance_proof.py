"""Renewals and reports of an instance that has no session to name: the way over HTTP."""

from typing import TypeVar

import msgspec
import pytest

from store.commands import (
    NO_SESSION,
    AttemptCommand,
    FinishCommand,
    InstanceProof,
    finish_attempts,
    renew_leases,
)
from tests.store.world import LEASE_MS, SECRET_HASH, Worker, World

C = TypeVar("C", AttemptCommand, FinishCommand)


def by_instance(worker: Worker, command: C) -> C:
    """The same command, sent past every session."""
    proof = InstanceProof(worker.instance_id, SECRET_HASH)
    return msgspec.structs.replace(command, session_id=NO_SESSION, instance=proof)


async def test_it_renews_whatever_became_of_its_session(world: World) -> None:
    """INV-20: closed, superseded or not resumed: the lease is the instance's all the same."""
    worker = await world.worker()
    start = await world.running(worker)
    world.wait(LEASE_MS / 2)
    await world.close_session(worker.session_id)
    refused = await world.renew(world.again(start))
    assert refused.code == "session_superseded"
    closed = await world.renew(by_instance(worker, world.again(start)))
    assert (closed.code, closed.active) == ("ok", True)
    assert closed.lease_until == world.at(LEASE_MS)
    newer = await world.worker(instance_id=worker.instance_id)
    moved = world.again(start, session_id=newer.session_id)
    assert (await world.renew(moved)).code == "resume_required"
    world.wait(LEASE_MS / 2)
    assert (await world.renew(by_instance(worker, world.again(start)))).active
    # It changed nothing about whose session the attempt is: that one must still resume.
    assert (await world.renew(moved)).code == "resume_required"
    assert (await world.resume(moved)).active


async def test_a_report_has_one_receipt_whichever_way_it_came(world: World) -> None:
    """INV-3, OP-21: by HTTP first, by the socket first, and again by both."""
    worker = await world.worker()
    over_http, over_socket = await world.running(worker), await world.running(worker)
    world.wait(10)
    report = world.finish_of(over_http, message_id="a" * 32)
    first = await world.finish(by_instance(worker, report))
    again = await world.finish(report)
    assert (first.code, first.deduplicated, first.settled) == ("ok", False, True)
    assert again == msgspec.structs.replace(first, deduplicated=True)

    first = await world.finish(world.finish_of(over_socket, message_id="b" * 32))
    await world.close_session(worker.session_id)
    report = world.finish_of(over_socket, message_id="b" * 32)
    again = await world.finish(by_instance(worker, report))
    assert again == msgspec.structs.replace(first, deduplicated=True)
    other = world.finish_of(over_socket, message_id="b" * 32, hash=b"x" * 32)
    assert (await world.finish(by_instance(worker, other))).code == "operation_conflict"


async def test_a_renewal_repeated_over_the_other_way_extends_nothing(world: World) -> None:
    worker = await world.worker()
    renewal = world.again(await world.running(worker))
    first = await world.renew(renewal)
    world.wait(100)
    again = await world.renew(by_instance(worker, renewal))
    assert again.deduplicated
    assert (again.receipt_lease_until, again.lease_until) == (first.lease_until, first.lease_until)


@pytest.mark.parametrize("fault", ["instance", "secret", "namespace", "task", "epoch", "unknown"])
@pytest.mark.parametrize("over", [False, True], ids=["held", "settled"])
async def test_what_is_not_its_own_is_not_there(world: World, fault: str, over: bool) -> None:
    """INV-3, INV-21: one answer for the foreign, the unproven and the unknown; nothing changes."""
    worker, stranger = await world.worker(), await world.worker()
    start = await (world.ended(worker) if over else world.running(worker))
    proof = InstanceProof(
        {"instance": stranger.instance_id, "unknown": world.id()}.get(fault, worker.instance_id),
        b"?" * 32 if fault == "secret" else SECRET_HASH,
    )
    changes = {
        "session_id": NO_SESSION,
        "instance": proof,
        "namespace_id": world.id() if fault == "namespace" else world.namespace_id,
        "task_id": world.id() if fault == "task" else start.task_id,
        "epoch": 77 if fault == "epoch" else start.epoch,
    }
    before = await world.snapshot()
    renewed = await world.renew(world.again(start, **changes))
    finished = await world.finish(world.finish_of(start, **changes))
    assert (renewed.code, finished.code) == ("attempt_not_found",) * 2
    assert await world.snapshot() == before


async def test_what_comes_too_late_is_evidence(world: World) -> None:
    """R-143, OP-22: proven, kept, and nothing else."""
    worker = await world.worker()
    start = await world.ended(worker)
    outcome = await world.finish(by_instance(worker, world.finish_of(start)))
    assert (outcome.code, outcome.disposition, outcome.active) == ("ok", "EVIDENCE_ONLY", False)
    assert await world.count("evidence") == 1
    assert (await world.view(start.task_id)).state == "WAITING"


async def test_under_an_intent_it_hears_that_it_is_to_stop(world: World) -> None:
    """OP-03: and it may report within the window that was opened for that."""
    worker = await world.worker()
    start = await world.running(worker)
    await world.cancel(start.task_id)
    told = await world.renew(by_instance(worker, world.again(start)))
    assert (told.code, told.active, told.lease_state) == ("ok", False, "RUNNING")
    stopped = world.failure_of(start, "cancelled")
    assert (await world.finish(by_instance(worker, stopped))).task_state == "CANCELLED"


async def test_nothing_is_reported_of_what_was_not_started(world: World) -> None:
    worker = await world.worker()
    [start] = await world.leased(worker)
    outcome = await world.finish(by_instance(worker, world.finish_of(start)))
    assert outcome.code == "operation_conflict"


async def test_both_ways_share_a_batch(world: World) -> None:
    """Commands of a session and of an instance, two of them of one attempt."""
    worker, other = await world.worker(), await world.worker()
    starts = [await world.running(worker) for _ in range(3)]
    foreign = await world.running(other)
    own = by_instance(worker, world.again(starts[1]))
    stolen = by_instance(worker, world.again(foreign))
    doubled = by_instance(worker, world.again(starts[0]))
    items = [world.again(starts[0]), own, stolen, doubled, world.again(starts[2])]
    outcomes = await renew_leases(world.connection, items, now=world.now)
    assert [o.code for o in outcomes] == ["ok", "ok", "attempt_not_found", "again", "ok"]
    reports = [world.finish_of(starts[0]), by_instance(worker, world.finish_of(starts[1]))]
    ended = await finish_attempts(world.connection, reports, now=world.now)
    assert [(o.code, o.settled) for o in ended] == [("ok", True)] * 2
