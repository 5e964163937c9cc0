"""What every test may ask for: a database, a Redis, pools, a bus, a cluster of processes."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.stores import Stores, running_stores

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster
    from store.bus import Bus
    from store.pool import Pools

WORKER_KEY = "orbit_stores"
stores_stack = pytest.StashKey[ExitStack]()
stores_found = pytest.StashKey[Stores]()


def _start_stores(config: pytest.Config) -> Stores:
    """The stores of this run, started at the first call in the process that owns them."""
    if stores_found not in config.stash:
        handed_on: dict[str, Any] | None = getattr(config, "workerinput", None)
        if handed_on is not None:
            config.stash[stores_found] = Stores(**handed_on[WORKER_KEY])
        else:
            config.stash[stores_stack] = stack = ExitStack()
            config.stash[stores_found] = stack.enter_context(running_stores())
    return config.stash[stores_found]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Under xdist the controller owns the servers, since it outlives every worker."""
    stores = _start_stores(node.config)
    node.workerinput[WORKER_KEY] = {
        "admin_url": stores.admin_url,
        "template": stores.template,
        "redis_url": stores.redis_url,
    }


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


def pytest_unconfigure(config: pytest.Config) -> None:
    if stores_stack in config.stash:
        config.stash[stores_stack].close()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own ORBIT_* variables steer no test."""
    for name in os.environ:
        if name.startswith("ORBIT_") and not name.endswith(("_BIN", "_ACCOUNT")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def stores(pytestconfig: pytest.Config) -> Stores:
    """The servers of this run."""
    return _start_stores(pytestconfig)


@pytest.fixture
async def database_url(stores: Stores) -> AsyncIterator[str]:
    """A migrated database of this test alone."""
    async with stores.database() as url:
        yield url


@pytest.fixture
def redis_url(stores: Stores) -> str:
    """The Redis that all tests share; keep apart with `cluster_name`."""
    return stores.redis_url


@pytest.fixture
def cluster_name() -> str:
    """A cluster name, hence a prefix of Redis keys, of this test alone."""
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
async def pools(database_url: str) -> AsyncIterator["Pools"]:
    from store.pool import open_pools

    opened = await open_pools(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def bus(redis_url: str, cluster_name: str) -> AsyncIterator["Bus"]:
    from store.bus import Bus

    opened = Bus(redis_url, cluster_name)
    yield opened
    await opened.close()


@pytest.fixture
async def cluster(
    database_url: str, redis_url: str, cluster_name: str, tmp_path: Path
) -> AsyncIterator["LocalCluster"]:
    """Two gateways and a dispatcher as processes, behind links that can be broken.

    They share the stores of the run, so don't kill those: a test that does makes a LocalCluster
    with stores of its own.
    """
    from devcluster.cluster import LocalCluster

    cluster = LocalCluster(
        tmp_path / "cluster",
        cluster=cluster_name,
        database_url=database_url,
        redis_url=redis_url,
        faults=True,
    )
    await asyncio.to_thread(cluster.start)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(cluster.stop)
