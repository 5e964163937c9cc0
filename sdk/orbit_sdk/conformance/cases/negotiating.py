"""Which version a connection speaks, and what a change of it changes (R-117, R-170, OP-02)."""

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.cases.handshake import bearer
from orbit_sdk.conformance.checks import check_v2, expect_equal
from orbit_sdk.conformance.contract import V1, V2
from orbit_sdk.conformance.peer import new_id


async def chosen(bench: Bench, offered: list[str], wanted: str) -> None:
    found = await bench.handshake(bearer(bench), offered)
    expect_equal(found, (101, wanted), f"status and subprotocol for {offered}")


@check_v2
async def newer_version_is_preferred(bench: Bench) -> None:
    """OP-02, R-170: of both versions offered the newer one is chosen, whatever their order.

    Upgrades that offer v2 and v1, v1 and v2, and an unknown one before them.
    """
    names = [V2.subprotocol, V1.subprotocol]
    for offered in (names, names[::-1], ["pulse.worker.v999", *names[::-1]]):
        await chosen(bench, offered, V2.subprotocol)


@check_v2
async def older_version_stays(bench: Bench) -> None:
    """OP-02, R-170: a worker that offers v1 alone, or v1 and an unknown one, gets v1.

    Upgrades that offer v1, and v1 after an unknown one; then a hello on it.
    """
    for offered in ([V1.subprotocol], ["pulse.worker.v999", V1.subprotocol]):
        await chosen(bench, offered, V1.subprotocol)
    await bench.worker(version=bench.need_version(V1))


@check_v2
async def attempt_moves_between_versions(bench: Bench) -> None:
    """R-117, OP-14: a session of one version may be followed by one of the other.

    A start in v1, a resume and a renewal in v2, a resume and the finish in v1.
    """
    old = bench.need_version(V1)
    first = await bench.worker(version=old)
    await bench.submit()
    attempt = await first.assignment()
    await first.start(attempt)
    await first.socket.close()
    second = await bench.worker(1, first.instance)
    await second.refused("resume_required", "task.renew", attempt.ref)
    expect_equal((await second.resume(attempt))["active"], True, "the lease's active")
    await second.renew(attempt)
    await second.socket.close()
    third = await bench.worker(1, first.instance, version=old)
    expect_equal((await third.resume(attempt))["active"], True, "the lease's active")
    finished = await third.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)


@check_v2
async def repeat_in_the_other_version(bench: Bench) -> None:
    """R-117, R-143, OP-21: a repeat in the other version returns the original receipt.

    A start and a finish in v2, each of them again in v1 under its message id.
    """
    old = bench.need_version(V1)
    peer, attempt = await bench.assigned()
    start, finish = new_id(), new_id()
    started = await peer.start(attempt, message_id=start)
    finished = await peer.finish(attempt, message_id=finish)
    await peer.socket.close()
    other = await bench.worker(1, peer.instance, version=old)
    again = await other.finish(attempt, message_id=finish)
    expect_equal(again["receipt"], finished["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)
    again = await other.start(attempt, message_id=start)
    expect_equal(again["receipt"], started["receipt"], "the receipt", again)


@check_v2
async def newest_hello_wins_in_any_version(bench: Bench) -> None:
    """OP-13: the newest hello wins, whatever version it is said in.

    An instance in v2, then in v1, then in v2 again; each older connection is told and closed.
    """
    old = bench.need_version(V1)
    first = await bench.worker()
    second = await bench.worker(1, first.instance, version=old)
    await first.fatal("session_superseded", 4409)
    third = await bench.worker(1, first.instance)
    await second.fatal("session_superseded", 4409)
    await third.declare(1, 1)
