"""A world for races between transactions; its books are balanced when the race is over."""

from collections.abc import AsyncIterator

import pytest

from tests.races.books import finish_off
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
