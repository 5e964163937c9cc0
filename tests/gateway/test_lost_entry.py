"""An entry of a node's stream that is lost while Redis looks well costs less than 5 s (INV-14)."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway import limits
from gateway.store_calls import Pool
from gateway.worker import outlet as outlet_module
from gateway.worker.outlet import Outlet
from store import dispatch
from tests.gateway.harness import App, Dispatcher, Gateway, eventually, submit, worker_on

DISPATCH_S = 5.0
SLACK_S = 0.5
"""For the read itself, and a loop that is late."""


class Clock:
    """A loop's clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now


class FakeCalls:
    """Notes when the store was asked, and finds nothing."""

    is_open = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asked_at: list[float] = []

    async def run(
        self, _pool: Pool, _timeout_s: float, _call: Callable[..., Any], *_: object
    ) -> Sequence[Any]:
        self.asked_at.append(self._clock.now)
        return []


@pytest.mark.parametrize(
    ("unwell", "within_s"), [(False, DISPATCH_S - SLACK_S), (True, 3.0)], ids=["well", "unwell"]
)
async def test_the_twin_asks_often_enough(
    monkeypatch: pytest.MonkeyPatch, unwell: bool, within_s: float, gateway: Gateway
) -> None:
    """Granted just too late for one look, a lease is found by the next that comes of age."""
    clock = Clock()
    calls = FakeCalls(clock)
    loop = SimpleNamespace(Event=asyncio.Event, get_running_loop=lambda: clock)
    monkeypatch.setattr(outlet_module, "asyncio", loop)
    reader = SimpleNamespace(is_deaf=False)
    twin = Outlet(
        {},
        calls,  # type: ignore[arg-type]
        reader,  # type: ignore[arg-type]
        "1" * 32,
        30_000,
        revoked=lambda _key_id: None,
    )
    (tick_s,) = (one.interval_s for one in gateway.node._loops() if one.name == "unsent-leases")
    for _ in range(1_000):
        await twin.find_unsent(unwell)
        clock.now += tick_s * 1.0001  # a tick is late rather than early
    gaps = [later - earlier for earlier, later in pairwise(calls.asked_at)]
    assert max(gaps) + limits.UNSENT_AGE_MS / 1000 <= within_s
    assert min(gaps) >= 1.0, "and no more often than needed"


async def test_the_first_look_after_a_second_brings_what_the_stream_lost(
    monkeypatch: pytest.MonkeyPatch,
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    dispatcher: Dispatcher,
) -> None:
    found: list[list[str]] = []
    kept = dispatch.unsent_leases

    async def asked(connection: Any, node_id: str, *ages_ms: int) -> list[tuple[str, str]]:
        rows = await kept(connection, node_id, *ages_ms)
        found.append([attempt_id for attempt_id, _ in rows])
        return rows

    monkeypatch.setattr(dispatch, "unsent_leases", asked)
    async with worker_on(gateway, app) as worker:
        await eventually(lambda: len(found) > 0)
        await submit(http)
        (lost,) = await dispatcher.claim(worker.session_id)
        assigned = await worker.assignment(timeout_s=30)
        assert assigned.ref["attempt_id"] == lost.attempt_id
        assert not gateway.node.readiness().degraded
        assert found.count([lost.attempt_id]) == 1
        assert gateway.node.outlet.by_twin == 1
