"""Declared capacity, its sequence, and drain (R-023, R-024, R-156, OP-29)."""

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Peer, instant


async def refused(peer: Peer, code: str, sequence: str, capacity: int, drain: bool = False) -> None:
    body = {"sequence": sequence, "capacity": capacity, "drain": drain}
    await peer.refused(code, "worker.capacity", body)


async def goes_elsewhere(bench: Bench, peer: Peer) -> None:
    """A due task reaches another worker, so this one was passed over."""
    task_id = await bench.submit()
    other = await bench.worker()
    attempt = await other.assignment()
    expect_equal(attempt.task["id"], task_id, "the task that the other worker got", attempt.body)
    await peer.nothing_was_assigned()


@check
async def update_is_acknowledged(bench: Bench) -> None:
    """R-023, R-040: a capacity update is acknowledged with a welcome body of the same session.

    An update of a fresh session.
    """
    peer = await bench.worker()
    welcome = await peer.declare(1, 3)
    for name in ("session_id", "epoch", "lease_duration_ms"):
        expect_equal(welcome[name], peer.welcome[name], name, welcome)


@check
async def equal_sequence_and_body(bench: Bench) -> None:
    """R-122, OP-29: an update repeated with equal sequence and body is acknowledged again.

    The same update twice, with two message ids.
    """
    peer = await bench.worker()
    await peer.declare(7, 2)
    await peer.declare(7, 2)


@check
async def equal_sequence_and_another_body(bench: Bench) -> None:
    """OP-29: an equal sequence with another body is stale_sequence.

    Sequence 7 with capacity 2, then with capacity 3, then with drain.
    """
    peer = await bench.worker()
    await peer.declare(7, 2)
    await refused(peer, "stale_sequence", "7", 3)
    await refused(peer, "stale_sequence", "7", 2, drain=True)


@check
async def lower_sequence(bench: Bench) -> None:
    """OP-29: a lower sequence is stale_sequence and changes nothing.

    Sequence 7, then 6 with drain, then 8: still not draining.
    """
    peer = await bench.worker()
    await peer.declare(7, 2)
    await refused(peer, "stale_sequence", "6", 2, drain=True)
    welcome = await peer.declare(8, 2)
    expect_equal(welcome["draining"], False, "draining", welcome)


@check
async def sequence_is_a_number_not_a_text(bench: Bench) -> None:
    """R-002, OP-16: sequences are compared as numbers, over the whole range of uint64.

    9, then 10, then 2^63, then 2^64 - 1, then 2^64 - 2.
    """
    peer = await bench.worker()
    for sequence in (9, 10, 2**63, 2**64 - 1):
        await peer.declare(sequence, 1)
    await refused(peer, "stale_sequence", str(2**64 - 2), 1)


@check
async def sequence_has_the_form_of_uint64(bench: Bench) -> None:
    """R-002: zero, a leading zero, a sign, 2^64 and a JSON number are no uint64.

    Updates with each of them.
    """
    peer = await bench.worker()
    for sequence in ("0", "01", "+1", str(2**64)):
        await refused(peer, "bad_frame", sequence, 1)
    await peer.refused(
        "bad_frame", "worker.capacity", {"sequence": 1, "capacity": 1, "drain": False}
    )


@check
async def sequence_starts_anew(bench: Bench) -> None:
    """OP-29: the sequence belongs to the session; any first value will do.

    Sequence 100, a reconnect, sequence 1.
    """
    peer = await bench.worker()
    await peer.declare(100, 1)
    again = await bench.reconnected(peer)
    await again.declare(1, 1)


@check
async def capacity_zero_takes_nothing(bench: Bench) -> None:
    """R-023: capacity 0 means: take nothing for now; a later update takes again.

    Capacity 0, a task that must reach another worker, capacity 1, a task that must come here.
    """
    peer = await bench.worker()
    await peer.declare(1, 0)
    await goes_elsewhere(bench, peer)
    await peer.declare(2, 1)
    task_id = await bench.submit()
    expect_equal((await peer.assignment()).task["id"], task_id, "the assigned task")


@check
async def capacity_is_never_exceeded(bench: Bench) -> None:
    """R-156, OP-29: free is the declared capacity less what is leased or running.

    Capacity 1 and one task held; the next must reach another worker; after the finish, one more.
    """
    peer, attempt, _ = await bench.running()
    await goes_elsewhere(bench, peer)
    await peer.finish(attempt)
    task_id = await bench.submit()
    expect_equal((await peer.assignment()).task["id"], task_id, "the assigned task")


@check
async def repeated_update_grants_nothing(bench: Bench) -> None:
    """R-122, R-156: a repeated update grants no capacity twice.

    Capacity 1 declared three times with one task held; the next one must go elsewhere.
    """
    peer, _, _ = await bench.running()
    for _ in range(3):
        await peer.declare(1, 1)
    await goes_elsewhere(bench, peer)


@check
async def lowering_revokes_nothing(bench: Bench) -> None:
    """OP-29: a capacity below what is held revokes nothing.

    Capacity 0 while an attempt runs; its renewal and its finish are applied.
    """
    peer, attempt, _ = await bench.running()
    await peer.declare(1, 0)
    renewed = await peer.renew(attempt)
    expect_equal(renewed["lease"]["active"], True, "the lease's active", renewed)
    finished = await peer.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)


@check
async def drain_is_one_way(bench: Bench) -> None:
    """R-024, OP-29: drain cannot be cleared; a later drain=false is acknowledged with draining.

    drain, then an update with drain=false.
    """
    peer = await bench.worker()
    expect_equal((await peer.declare(1, 1, drain=True))["draining"], True, "draining")
    expect_equal((await peer.declare(2, 1))["draining"], True, "draining")


@check
async def drain_takes_nothing_and_finishes(bench: Bench) -> None:
    """R-129: after drain nothing is assigned, and what runs may finish.

    drain with one attempt running and room for another; a task must go elsewhere.
    """
    peer, attempt, _ = await bench.running()
    await peer.declare(1, 8, drain=True)
    await goes_elsewhere(bench, peer)
    finished = await peer.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)


@check
async def drain_lets_leases_live(bench: Bench) -> None:
    """R-129, R-024: after drain what is leased or running lives on, over a reconnect as well.

    One attempt running, one assigned, drain; a start, renewals, a resume, both finishes.
    """
    peer = await bench.worker(2)
    for _ in range(2):
        await bench.submit()
    first, second = await peer.assignment(), await peer.assignment()
    last = await peer.start(first)
    expect_equal((await peer.declare(1, 2, drain=True))["draining"], True, "draining")
    started = await peer.start(second)
    expect_equal(started["lease"]["active"], True, "the lease's active", started)
    renewed = await peer.renew(first)
    grew = instant(renewed["lease"]["lease_until"]) > instant(last["lease"]["lease_until"])
    expect(grew, "the lease was not extended", renewed)
    again = await bench.reconnected(peer, 2)
    for attempt in (first, second):
        lease = await again.resume(attempt)
        expect_equal((lease["active"], lease["state"]), (True, "RUNNING"), "the lease", lease)
        finished = await again.finish(attempt)
        expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
    await goes_elsewhere(bench, again)


@check
async def drain_sticks_to_the_instance(bench: Bench) -> None:
    """OP-29, OP-04: drain sticks to the instance over reconnects.

    drain, a reconnect whose welcome must say draining, a task that must go elsewhere.
    """
    peer = await bench.worker()
    await peer.declare(1, 1, drain=True)
    again = await bench.reconnected(peer)
    expect_equal(again.welcome["draining"], True, "draining", again.welcome)
    await goes_elsewhere(bench, again)
