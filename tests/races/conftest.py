"""A world for races between transactions; its books are balanced when the race is over."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import dispatcher.assign
import dispatcher.hints
from devcluster.valkey import EmbeddedValkey
from gateway.hints import Hints
from gateway.worker.outlet import Outlet
from tests.races.books import finish_off
from tests.races.house import House, OpenHouse, open_house
from tests.races.repeats import seeds
from tests.store.world import World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = metafunc.definition.iter_markers("parametrize")
    if "seed" in metafunc.fixturenames and not any("seed" in mark.args[0] for mark in chosen):
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
    """Three gateways, one dispatcher, leases of thirty seconds."""
    async with house_of() as opened:
        yield opened


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A server of a module's own, to be wiped and cut off; its `redis_url` must name it."""
    folder: Path = tmp_path_factory.mktemp("valkey")
    with EmbeddedValkey(folder) as server:
        yield server


@pytest.fixture
def by_event_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Takes every slow twin out of a house that opens after it; to be called once that house works,
    and from then on nothing is found by a scan: what an event does not bring never comes."""

    async def nothing(*_: Any) -> int:
        return 0

    async def no_scan(*_: Any) -> list[str]:
        raise OSError("scans are off")

    monkeypatch.setattr(Hints, "repeat_levels", nothing)
    monkeypatch.setattr(Hints, "level_used", lambda *_: None)  # told at leisure, as it is then
    monkeypatch.setattr(Outlet, "find_unsent", nothing)
    monkeypatch.setattr(dispatcher.assign, "ROUND_INTERVAL_S", 600.0)
    return lambda: monkeypatch.setattr(dispatcher.hints, "active_queues", no_scan)
