"""A gateway on this test's own stores, an application on it, and an HTTP client for that."""

from collections.abc import AsyncIterator

import httpx
import pytest

from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import App, Dispatcher, Gateway, make_app, running_gateway


@pytest.fixture
async def app(pools: Pools) -> App:
    return await make_app(pools)


@pytest.fixture
async def gateway(database_url: str, redis_url: str, cluster_name: str) -> AsyncIterator[Gateway]:
    async with running_gateway(database_url, Bus(redis_url, cluster_name)) as running:
        yield running


@pytest.fixture
async def http(gateway: Gateway, app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as client:
        yield client


@pytest.fixture
def dispatcher(pools: Pools, bus: Bus) -> Dispatcher:
    return Dispatcher(pools, bus)
