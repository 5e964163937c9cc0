"""The suite passes on real gateways, in both versions, with everything an operator can give."""

import asyncio
import shlex
import sys

import pytest

from devcluster.cluster import LocalCluster
from orbit_sdk.conformance.cases import all_checks
from orbit_sdk.conformance.contract import V1, V2
from orbit_sdk.conformance.run import run
from orbit_sdk.conformance.target import Target
from tests.sdk.conformance.app import app_with_every_scope, ends_in

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

REVOKE = """\
import asyncio, asyncpg, sys

async def revoke(dsn, key_id):
    connection = await asyncpg.connect(dsn)
    done = "UPDATE credential SET revoked_at = clock_timestamp() WHERE key_id = $1"
    await connection.execute(done, key_id)
    await connection.close()

asyncio.run(revoke(*sys.argv[1:]))
"""

BRIEF_S = 12


async def test_real_gateways_keep_the_contract(
    shared_cluster: LocalCluster, credential: str
) -> None:
    """R-172: every check in every version it is made for, none skipped."""
    cluster = shared_cluster
    leaving = await asyncio.to_thread(cluster.add_gateway)
    brief = {"ORBIT_SESSION_MAX_MS": str(BRIEF_S * 1000)}
    short = await asyncio.to_thread(cluster.add_gateway, brief)
    ending = await asyncio.to_thread(app_with_every_scope, cluster)
    spare = await asyncio.to_thread(app_with_every_scope, cluster)
    other = await asyncio.to_thread(cluster.create_app, "other", "default")
    first, second = (f"http://127.0.0.1:{node.port}" for node in cluster.gateways[:2])
    key_id = spare.split("_")[1]
    await ends_in(cluster, ending, BRIEF_S)
    target = Target(
        first,
        credential,
        "default",
        other_url=second,
        other_credential=other,
        spare_credential=spare,
        revoke=shlex.join([sys.executable, "-c", REVOKE, cluster.database_url, key_id]),
        brief_credential=ending,
        brief_url=f"http://127.0.0.1:{short.port}",
        leaving_url=f"http://127.0.0.1:{leaving.port}",
        leave=f"kill -TERM {leaving.process.pid}",
        slow=True,
    )
    findings = await run(target, all_checks(), at_once=12)
    wrong = [(f.check.name, f.version, f.reason, f.frame) for f in findings if f.verdict != "pass"]
    assert not wrong, "\n".join(map(str, wrong))
    tried = {(f.check.name, f.version) for f in findings}
    assert tried == {
        (check.name, version) for check in all_checks() for version in check.versions or [None]
    }
    assert {version for _, version in tried} == {None, V1, V2}
