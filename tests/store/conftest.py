"""A world for each test, and the invariants checked over the whole database when it ends.

The worlds of one process share a database and are wiped before each test: far cheaper than a
database each.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from store.invariants import violations
from tests.store.world import World
from tests.stores import Stores


@pytest.fixture(scope="session")
def shared_url(stores: Stores) -> Iterator[str]:
    with asyncio.Runner() as runner:
        database = stores.database()
        yield runner.run(database.__aenter__())
        runner.run(database.__aexit__(None, None, None))


@pytest.fixture
async def world(shared_url: str) -> AsyncIterator[World]:
    made = await World.create(shared_url)
    yield made
    found = await violations(made.connection)
    await made.close()
    assert found == []
