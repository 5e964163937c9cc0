"""A credential that is revoked while its workers work (R-172, OP-15)."""

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import Skipped, check_once, expect, expect_equal
from orbit_sdk.conformance.contract import Version
from orbit_sdk.conformance.peer import Attempt, Peer

SWEEP_S = 20.0
"""A session that lives on for longer after its credential was revoked is not ended by a sweep."""


async def _busy(bench: Bench, version: Version, credential: str) -> tuple[Peer, Attempt]:
    peer = await bench.worker(1, version=version, credential=credential)
    await bench.submit()
    attempt = await peer.assignment()
    await peer.start(attempt)
    return peer, attempt


@check_once
async def revoked_credential(bench: Bench) -> None:
    """OP-15, R-172, R-104: a revoked credential ends its sessions, opens none, and ends no lease.

    A worker of each version runs an attempt; the credential is revoked; the attempts are resumed
    and finished with another credential of the application.
    """
    spare, revoke = bench.target.spare_credential, bench.target.revoke
    if spare is None or revoke is None:
        raise Skipped("needs --spare-credential and --revoke, an operator's command")
    headers = {"Authorization": f"Bearer {spare}"}
    path = f"/v1/queues/{bench.target.queue_id}"
    before = await bench.call("GET", path, headers=headers)
    expect(before.status != 401, "the spare credential is not accepted to begin with", before.body)
    workers = [await _busy(bench, version, spare) for version in bench.versions]
    await bench.operator(revoke)
    for peer, _ in workers:
        await peer.fatal("session_expired", 4410, SWEEP_S)
    (await bench.call("GET", path, headers=headers)).refused(401)
    for peer, attempt in workers:
        status = await bench.handshake_status(headers, [peer.version.subprotocol])
        expect_equal(status, 401, "the status of an upgrade")
        again = await bench.worker(1, peer.instance, version=peer.version)
        lease = await again.resume(attempt)
        expect_equal((lease["active"], lease["state"]), (True, "RUNNING"), "the lease", lease)
        finished = await again.finish(attempt)
        expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
