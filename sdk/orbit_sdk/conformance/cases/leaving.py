"""A node that is stopped: what its workers hear, keep, and find elsewhere (OP-04, R-129, R-159)."""

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import Skipped, check_once, expect_equal
from orbit_sdk.conformance.contract import V2, Version
from orbit_sdk.conformance.peer import Attempt, Peer

GRACE_S = 60.0
"""A node that stays longer than this after it was told to leave does not leave."""
ROOM = 8
ASKED_MAX = 100


async def _busy(bench: Bench, version: Version, url: str) -> tuple[Peer, Attempt]:
    """A worker on the node that will leave, with one attempt running and room for more."""
    peer = await bench.worker(1, url=url, version=version)
    task_id = await bench.submit()
    attempt = await peer.assignment()
    expect_equal(attempt.task["id"], task_id, "the assigned task", attempt.body)
    await peer.start(attempt)
    return peer, attempt


async def _hears_of_it(peer: Peer) -> None:
    """By worker.drain where there is one; at any rate by the next answer to a capacity update."""
    asked = 0
    if peer.version is V2:
        await peer.pushed(peer.drains)
        asked = ASKED_MAX - 1
    draining = False
    while not draining and asked < ASKED_MAX:
        asked += 1
        draining = (await peer.declare(asked, ROOM))["draining"]
    expect_equal(draining, True, "draining")


@check_once
async def node_leaves_in_good_order(bench: Bench) -> None:
    """OP-04, R-129, R-159: a leaving node says so, assigns nothing more, closes with 1012.

    A worker of each version runs an attempt there: it hears of the drain, may renew, gets nothing
    new, is closed, and resumes on the node that stays.
    """
    target = bench.target
    if target.leaving_url is None or target.leave is None:
        raise Skipped("needs --leaving-url and --leave, an operator's command that stops this node")
    workers = [await _busy(bench, version, target.leaving_url) for version in bench.versions]
    await bench.operator(target.leave)
    for peer, attempt in workers:
        await _hears_of_it(peer)
        renewed = await peer.renew(attempt)
        expect_equal(renewed["lease"]["active"], True, "the lease's active", renewed)
    task_id = await bench.submit()
    elsewhere = await (await bench.worker()).assignment()
    expect_equal(elsewhere.task["id"], task_id, "the task elsewhere", elsewhere.body)
    for peer, _ in workers:
        await peer.fatal("draining", 1012, GRACE_S)
        expect_equal(peer.waiting, [], "what the leaving node assigned")
    for peer, attempt in workers:
        again = await bench.worker(1, peer.instance, version=peer.version)
        expect_equal(again.welcome["draining"], False, "draining", again.welcome)
        lease = await again.resume(attempt)
        expect_equal((lease["active"], lease["state"]), (True, "RUNNING"), "the lease", lease)
        finished = await again.finish(attempt)
        expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
