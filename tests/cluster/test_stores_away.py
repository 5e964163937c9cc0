"""A store goes away and comes back: clear answers meanwhile, everything by itself afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import redis.asyncio

from devcluster.balancer import ThreadedBalancer
from tests.cluster.conftest import Scene
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

TASKS = 120


@contextmanager
def gone(link: ThreadedBalancer | None) -> Iterator[None]:
    """The store behind this link refuses and has dropped every connection."""
    assert link is not None
    link.set_refusing(True)
    link.cut()
    try:
        yield
    finally:
        link.set_refusing(False)


async def _status(scene: Scene, path: str) -> int:
    port = scene.cluster.gateways[0].port
    async with httpx.AsyncClient(timeout=10) as http:
        return (await http.get(f"http://127.0.0.1:{port}{path}")).status_code


async def _until_status(scene: Scene, path: str, wanted: int) -> None:
    await wait_until(lambda: _status(scene, path), lambda status: status == wanted, 20)


async def test_postgres_away_is_said_and_survived(scene: Scene) -> None:
    """INV-40, R-071, R-107: unready, 503 with Retry-After, sockets kept, then all answered."""
    worker = await scene.add_worker()
    await scene.submit(20, seconds=1.0)
    await scene.until("running handlers", scene.count_runs, 16)
    sessions = await scene.count_sessions()
    with gone(scene.cluster.database_link):
        await _until_status(scene, "/health/ready", 503)
        assert await _status(scene, "/health/live") == 200
        port = scene.cluster.gateways[0].port
        async with httpx.AsyncClient(timeout=10) as http:
            refused = await http.post(
                f"http://127.0.0.1:{port}/v1/tasks",
                headers={
                    "Authorization": f"Bearer {scene.credential}",
                    "Idempotency-Key": "while-away",
                },
                json={
                    "queue": "default",
                    "handler": "job",
                    "handler_version": "1",
                    "payload_version": "1",
                    "payload": {"log": str(scene.log), "seconds": 0},
                    "recovery_safety": "IDEMPOTENT",
                },
            )
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "unavailable"
        assert worker.alive
    await _until_status(scene, "/health/ready", 200)
    await scene.settle(20)
    assert await scene.states() == {"SUCCEEDED": 20}
    # The socket was kept: no further session was opened meanwhile.
    assert await scene.count_sessions() == sessions


async def test_redis_away_costs_time_only(scene: Scene) -> None:
    """INV-14, OP-95: dispatch goes on through the slow twins."""
    await scene.add_worker()
    with gone(scene.cluster.redis_link):
        await scene.submit(TASKS, seconds=0.01)
        await scene.settle(TASKS)
        assert await _status(scene, "/health/ready") == 200
    assert await scene.states() == {"SUCCEEDED": TASKS}
    assert set(scene.runs().values()) == {1}
    await scene.submit(TASKS, seconds=0.01)
    await scene.settle(2 * TASKS)


async def test_redis_flushed_in_mid_run_loses_nothing(scene: Scene) -> None:
    """INV-14: five flushes under load, nothing lost, nothing run twice."""
    await scene.add_worker()
    await scene.add_worker()
    connection = redis.asyncio.Redis.from_url(scene.cluster.redis_url, protocol=2)
    try:
        for round_number in range(1, 6):
            await scene.submit(TASKS, seconds=0.02)
            await scene.until(
                "running handlers", scene.count_runs, round_number * TASKS - TASKS + 20
            )
            keys = [key async for key in connection.scan_iter(f"orbit:{scene.cluster.cluster}:*")]
            assert keys
            await connection.delete(*keys)
        await scene.settle(5 * TASKS)
    finally:
        await connection.aclose()
    assert await scene.states() == {"SUCCEEDED": 5 * TASKS}
    assert set(scene.runs().values()) == {1}
