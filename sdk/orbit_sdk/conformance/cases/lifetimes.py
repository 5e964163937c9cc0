"""Sessions that end by the clock: by their longest life, or with their credential (OP-15)."""

import asyncio
from typing import Final

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import Skipped, check_once, expect, expect_equal
from orbit_sdk.conformance.contract import Version
from orbit_sdk.conformance.peer import Attempt, Peer, instant

BRIEF_S: Final = 60.0
"""The end of a session that lives longer is not waited for."""

SWEEP_S: Final = 20.0
"""A session that lives on for longer than this past its end is not ended by a sweep."""

CLOCKS_S: Final = 0.1
"""The server's clock and ours may run apart by so much in a minute."""


class _Life:
    """A session with an attempt that runs, and when it has to end by our clock."""

    def __init__(self, peer: Peer, asked_at: float) -> None:
        self.peer: Final = peer
        welcome = peer.welcome
        left = instant(welcome["expires_at"]) - instant(welcome["server_time"])
        self.left_s: Final = left.total_seconds()
        # The server looked at its clock after we asked and before we heard of it.
        self.earliest: Final = asked_at + self.left_s - CLOCKS_S
        self.latest: Final = asyncio.get_running_loop().time() + self.left_s + SWEEP_S

    async def ends(self, attempt: Attempt) -> None:
        """Renew while there is time, then hear the end at its time."""
        loop = asyncio.get_running_loop()
        pace_s = self.peer.welcome["lease_duration_ms"] / 3_000
        while self.earliest - loop.time() > 2 * pace_s:
            await asyncio.sleep(pace_s)
            await self.peer.renew(attempt)
        await self.peer.fatal("session_expired", 4410, self.latest - loop.time())
        early_s = self.earliest - loop.time()
        expect(early_s <= 0, f"it ended {early_s:.1f} s before its expires_at", self.peer.welcome)


async def _begin(bench: Bench, version: Version, url: str, credential: str) -> _Life:
    asked_at = asyncio.get_running_loop().time()
    return _Life(await bench.worker(1, url=url, version=version, credential=credential), asked_at)


async def _live_out(bench: Bench, url: str, credential: str, needs: str) -> None:
    """A worker of each version lives to the end of its session, and what it runs lives on."""
    lives = [await _begin(bench, version, url, credential) for version in bench.versions]
    longest_s = max(life.left_s for life in lives)
    if longest_s > BRIEF_S:
        raise Skipped(f"a session lives for {longest_s:.0f} s; needs {needs}")
    attempts = []
    for life in lives:
        await bench.submit()
        attempts.append(await life.peer.assignment())
        await life.peer.start(attempts[-1])
    await asyncio.gather(*(life.ends(each) for life, each in zip(lives, attempts, strict=True)))
    for life, attempt in zip(lives, attempts, strict=True):
        again = await bench.worker(1, life.peer.instance, version=life.peer.version)
        lease = await again.resume(attempt)
        expect_equal((lease["active"], lease["state"]), (True, "RUNNING"), "the lease", lease)
        finished = await again.finish(attempt)
        expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)


@check_once
async def session_lives_out(bench: Bench) -> None:
    """OP-15, OP-07: at expires_at a session ends with session_expired and 4410, and no lease does.

    A worker of each version runs an attempt until its session is over; the attempts are resumed
    and finished in new sessions.
    """
    url = bench.target.brief_url or bench.target.url
    needs = "--brief-url, a node whose sessions live for a minute at most"
    await _live_out(bench, url, bench.target.credential, needs)


@check_once
async def credential_ends(bench: Bench) -> None:
    """OP-15, R-104: no session outlives its credential, which opens no other one afterwards.

    A worker of each version runs an attempt until its credential is over; the attempts are resumed
    and finished with another credential of the application.
    """
    brief = bench.target.brief_credential
    if brief is None:
        raise Skipped("needs --brief-credential, which ends within a minute")
    headers = {"Authorization": f"Bearer {brief}"}
    path = f"/v1/queues/{bench.target.queue_id}"
    before = await bench.call("GET", path, headers=headers)
    expect(before.status != 401, "the brief credential is not accepted to begin with", before.body)
    await _live_out(bench, bench.target.url, brief, "a --brief-credential that ends in a minute")
    (await bench.call("GET", path, headers=headers)).refused(401)
    for version in bench.versions:
        status = await bench.handshake_status(headers, [version.subprotocol])
        expect_equal(status, 401, "the status of an upgrade")
