"""Peers that stand still, on a gateway process: closed by rule, bounded in memory, felt by nobody.

A worker of the SDK on the same gateway finishes task after task meanwhile.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from devcluster.cluster import LocalCluster
from orbit_sdk import AsyncClient, Worker
from orbit_sdk.protocol.limits import WRITE_DEADLINE_S
from orbit_sdk.protocol.states import TaskState
from store import pool
from tests.gateway.raw_socket import CLOSE, PING, TEXT, RawSocket, frame, raw_socket
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

SMALL = 4_096
GROWTH_MAX = 48 * 1024 * 1024
"""What a standing peer may cost: its queues and the buffers under them, far less than a flood."""

SLACK_S = 10.0
"""Sweeps, the store and a busy machine."""


class Stage:
    """One gateway, one dispatcher, a busy worker, and the truth about open sessions."""

    def __init__(self, cluster: LocalCluster, client: AsyncClient, credential: str) -> None:
        self.cluster = cluster
        self.client = client
        self.credential = credential
        self.queue_id = ""

    @property
    def port(self) -> int:
        return self.cluster.gateways[0].port

    def resident(self) -> int:
        pid = self.cluster.gateways[0].process.pid
        assert pid is not None
        return int(psutil.Process(pid).memory_info().rss)

    async def open_sessions(self) -> int:
        connection = await pool.connect(self.cluster.database_url)
        try:
            return int(
                await connection.fetchval("SELECT count(*) FROM session WHERE closed_at IS NULL")
            )
        finally:
            await connection.close()

    async def welcomed(self, peer: RawSocket, handler: str = "nothing") -> str:
        """Say hello on a raw connection; its session id."""
        await peer.upgrade(self.credential)
        body = {
            "instance_id": secrets.token_hex(16),
            "instance_secret": secrets.token_urlsafe(32),
            "queue_id": self.queue_id,
            "capabilities": [{"handler": handler, "handler_version": "1", "payload_version": "1"}],
            "capacity": 1,
        }
        await peer.send(frame(TEXT, _message("worker.hello", body)))
        return str((await peer.read_json())["session_id"])

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[list[str]]:
        """A worker that finishes task after task while the body runs; the ids of what it did."""
        worker = Worker(self.cluster.url, self.credential, capacity=4)
        done: list[str] = []
        enough = asyncio.Event()

        @worker.handler("echo")
        async def echo(number: int) -> int:
            return number

        async def keep_submitting() -> None:
            while not enough.is_set():
                submitted = await self.client.submit("echo", len(done))
                task = await self.client.wait(submitted.id, 15)
                assert (task.state, task.attempt_count) == (TaskState.SUCCEEDED, 1)
                done.append(task.id)

        serving = asyncio.create_task(worker.serve())
        submitting = asyncio.create_task(keep_submitting())
        try:
            await wait_until(self.open_sessions, lambda count: count == 1, 30)
            yield done
            before = len(done)
            await wait_until(lambda: _count(done), lambda count: count > before, 30)
        finally:
            enough.set()
            await submitting
            worker.stop()
            await serving


@asynccontextmanager
async def stage_of(
    folder: Path, database_url: str, redis_url: str, cluster_name: str, ping_interval_s: int
) -> AsyncIterator[Stage]:
    cluster = LocalCluster(
        folder / "cluster",
        gateways=1,
        cluster=cluster_name,
        database_url=database_url,
        redis_url=redis_url,
        settings={"ORBIT_PING_INTERVAL_S": str(ping_interval_s)},
    )
    await asyncio.to_thread(cluster.start)
    try:
        credential = await asyncio.to_thread(cluster.create_app, "standing", "default")
        async with AsyncClient(cluster.url, credential, timeout_s=30) as client:
            stage = Stage(cluster, client, credential)
            stage.queue_id = (await client.queue("default")).id
            yield stage
    finally:
        await asyncio.to_thread(cluster.stop)


@pytest.fixture
async def attentive(
    tmp_path: Path, database_url: str, redis_url: str, cluster_name: str
) -> AsyncIterator[Stage]:
    """A gateway that pings every second."""
    async with stage_of(tmp_path, database_url, redis_url, cluster_name, 1) as stage:
        yield stage


@pytest.fixture
async def patient(
    tmp_path: Path, database_url: str, redis_url: str, cluster_name: str
) -> AsyncIterator[Stage]:
    """A gateway whose pings come too late to decide anything."""
    async with stage_of(tmp_path, database_url, redis_url, cluster_name, 60) as stage:
        yield stage


async def test_a_peer_that_answers_no_ping_is_closed_and_its_work_goes_back(
    attentive: Stage,
) -> None:
    """A half-open connection: the other end reads, and says nothing any more."""
    async with attentive.busy(), AsyncClient(attentive.cluster.url, attentive.credential) as client:
        with raw_socket(attentive.port) as peer:
            await attentive.welcomed(peer, "held")
            submitted = await client.submit("held", 1)
            assert (await peer.read_json())["type"] == "task.assign"
            opcode, payload = await peer.read_frame()
            while opcode == PING:
                opcode, payload = await peer.read_frame()
            assert (opcode, int.from_bytes(payload[:2])) == (CLOSE, 1011)
        await wait_until(attentive.open_sessions, lambda count: count == 1, SLACK_S)
        await wait_until(
            lambda: client.get(submitted.id), lambda task: task.state is TaskState.WAITING, SLACK_S
        )


async def test_a_peer_that_reads_nothing_is_closed_by_the_ping_deadline(
    attentive: Stage,
) -> None:
    """A zero window, as soon as the answers to its own flood have filled it."""
    await flood_unread(attentive, WRITE_DEADLINE_S - 1)


async def test_a_peer_that_reads_nothing_is_closed_by_the_write_deadline(
    patient: Stage,
) -> None:
    await flood_unread(patient, WRITE_DEADLINE_S + SLACK_S)


async def flood_unread(stage: Stage, closed_within_s: float) -> None:
    """Ask without end and read no answer: the session ends in time, memory stays bounded."""
    loop = asyncio.get_running_loop()
    async with stage.busy() as done:
        before, resident = len(done), stage.resident()
        most = resident
        with raw_socket(stage.port, SMALL) as peer:
            session_id = await stage.welcomed(peer)
            flooding = asyncio.create_task(_flood(peer, session_id))
            began = loop.time()
            while await stage.open_sessions() > 1:
                assert loop.time() - began < closed_within_s, "the session is open still"
                most = max(most, stage.resident())
                await asyncio.sleep(0.1)
            most = max(most, stage.resident())
            flooding.cancel()
            await asyncio.wait([flooding])
        assert most - resident < GROWTH_MAX
        assert len(done) > before


async def test_pings_whose_pongs_are_not_read_cost_no_memory(patient: Stage) -> None:
    async with patient.busy() as done:
        before, resident = len(done), patient.resident()
        with raw_socket(patient.port, SMALL) as peer:
            await patient.welcomed(peer)
            for number in range(300):
                await peer.send(frame(PING, str(number).encode().ljust(125)) * 1_000)
            grown = patient.resident() - resident
        assert grown < GROWTH_MAX / 3
        assert len(done) > before


async def test_heads_that_never_end_cost_no_memory(patient: Stage) -> None:
    """Before any credential is known."""
    async with patient.busy() as done:
        before, resident = len(done), patient.resident()
        for _ in range(50):
            with raw_socket(patient.port) as peer, suppress(OSError):
                await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")
                for _ in range(100):
                    await peer.send(b"y" * 50_000)
        assert patient.resident() - resident < GROWTH_MAX / 3
        await wait_until(lambda: _count(done), lambda count: count > before, SLACK_S)


async def _flood(peer: RawSocket, session_id: str) -> None:
    ref = {
        "task_id": "0" * 32,
        "attempt_id": "0" * 32,
        "epoch": "1",
        "lease_secret": "A" * 43,
    }
    asked = frame(TEXT, _message("task.start", ref, session_id=session_id)) * 100
    with suppress(OSError):
        while True:
            await peer.send(asked)


def _message(kind: str, body: object, **more: str) -> bytes:
    head = {"protocol_version": "1", "type": kind, "message_id": secrets.token_hex(16)}
    return json.dumps({**head, **more, "body": body}).encode()


async def _count(done: list[str]) -> int:
    return len(done)
