"""One cluster for all tests of the suite: they disturb each other no more than its checks do."""

import asyncio
import secrets
from collections.abc import Iterator

import pytest

from devcluster.cluster import LocalCluster
from tests.sdk.conformance.app import app_with_every_scope
from tests.stores import Stores

GRACE_MS = "8000"
"""How long a node that leaves stays for what runs there, and for a check to look at it."""


@pytest.fixture(scope="session")
def shared_cluster(
    stores: Stores, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Two gateways and a dispatcher; whoever needs a gateway to stop adds one."""
    with asyncio.Runner() as runner:
        database = stores.database()
        cluster = LocalCluster(
            tmp_path_factory.mktemp("conformance"),
            cluster=f"test-{secrets.token_hex(8)}",
            database_url=runner.run(database.__aenter__()),
            redis_url=stores.redis_url,
            settings={"ORBIT_DRAIN_GRACE_MS": GRACE_MS},
        )
        try:
            with cluster:
                yield cluster
                for node in cluster.gateways:  # no need to wait for their good order
                    node.kill()
        finally:
            runner.run(database.__aexit__(None, None, None))


@pytest.fixture(scope="session")
def credential(shared_cluster: LocalCluster) -> str:
    """Of an application that may do everything on the queue `default`."""
    return app_with_every_scope(shared_cluster)
