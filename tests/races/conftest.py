"""A world for races between transactions; its books are balanced when the race is over."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.races.books import finish_off
from tests.races.house import House, OpenHouse, open_house
from tests.races.repeats import seeds
from tests.store.world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds(), ids=[f"seed{seed}" for seed in seeds()])


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    made = await World.create(database_url)
    yield made
    await finish_off(made)
    await made.close()


@pytest.fixture
def house_of(database_url: str, redis_url: str, cluster_name: str) -> OpenHouse:
    """Opens a house on this test's stores."""

    def opened(**changes: Any) -> AbstractAsyncContextManager[House]:
        return open_house(database_url, redis_url, cluster_name, **changes)

    return opened


@pytest.fixture
async def house(house_of: OpenHouse) -> AsyncIterator[House]:
    """One gateway, one dispatcher, leases of thirty seconds."""
    async with house_of() as opened:
        yield opened
