"""Workers that do not keep up, on a gateway process: felt by nobody else, bounded in memory."""

import asyncio
import json
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from devcluster.cluster import orbit_command
from devcluster.processes import Process
from orbit_sdk.client.models import Submission
from orbit_sdk.protocol.limits import CAPACITY_MAX, SEND_QUEUE_FULL_S
from orbit_sdk.protocol.states import RecoverySafety, TaskState
from store import pool
from tests.arch.tree import ROOT
from tests.cluster.test_transport import Stage, attentive, patient
from tests.gateway.raw_socket import TEXT, frame, raw_socket
from tests.waiting import wait_until

__all__ = ["attentive", "patient"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

PAYLOAD_CHARS = 200 * 1024
GROWTH_MAX = 96 * 1024 * 1024
"""256 payloads of 200 KiB are 50 MiB. The gateway reads for one socket what that has room for, 2
MiB at once, as rows, as JSON and as frames; the submissions on their way cost more."""


async def test_a_slow_reader_of_256_large_assignments_hurts_nobody(patient: Stage) -> None:
    """R-158, B-40: it is closed by rule or served; the others finish task after task."""
    async with patient.busy() as done:
        resident = most = patient.resident()
        payload = "x" * PAYLOAD_CHARS
        for start in range(0, CAPACITY_MAX, 64):
            results = await patient.client.submit_batch(
                [
                    Submission(
                        handler="bulky",
                        payload=payload,
                        recovery_safety=RecoverySafety.IDEMPOTENT,
                        key=f"bulky-{start}-{n}",
                    )
                    for n in range(64)
                ]
            )
            assert all(result.error is None for result in results)
        before = len(done)
        with raw_socket(patient.port, 4_096) as peer:
            await peer.upgrade(patient.credential)
            hello = {
                "instance_id": secrets.token_hex(16),
                "instance_secret": secrets.token_urlsafe(32),
                "queue_id": patient.queue_id,
                "capabilities": [
                    {"handler": "bulky", "handler_version": "1", "payload_version": "1"}
                ],
                "capacity": CAPACITY_MAX,
            }
            await peer.send(frame(TEXT, _hello(hello)))
            assert (await peer.read_json())["type"] == "worker.welcome"
            # From here on it reads nothing at all.
            loop = asyncio.get_running_loop()
            began = loop.time()
            while await patient.open_sessions() > 1:
                assert loop.time() - began < SEND_QUEUE_FULL_S + 30
                most = max(most, patient.resident())
                await asyncio.sleep(0.1)
        assert most - resident < GROWTH_MAX, f"{(most - resident) // 1024 // 1024} MiB"
        assert len(done) > before
        # What it was given and never started went back, to be granted to somebody who reads.
        await wait_until(lambda: _ready(patient, "bulky"), lambda count: count == CAPACITY_MAX, 30)


async def test_a_frozen_worker_is_found_and_what_it_had_not_started_goes_back(
    attentive: Stage, tmp_path: Path
) -> None:
    """INV-17: its kernel acknowledges every byte; the ping that nobody answers tells."""
    process = Process(
        name="frozen",
        argv=[*orbit_command(), "worker", "tests.cluster.work:worker"],
        log_path=tmp_path / "frozen.log",
        env={
            "ORBIT_URL": attentive.cluster.url,
            "ORBIT_CREDENTIAL": attentive.credential,
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ.get("PATH", os.defpath),
        },
        cwd=Path(sys.prefix).parent,
    )
    await asyncio.to_thread(process.start)
    try:
        await wait_until(attentive.open_sessions, lambda count: count == 1, 30)
        process.signal(signal.SIGSTOP)
        job = {"log": str(tmp_path / "runs.log"), "seconds": 0.0}
        submitted = await attentive.client.submit("job", job)
        await wait_until(attentive.open_sessions, lambda count: count == 0, 20)
        task = await attentive.client.get(submitted.id)
        assert (task.state, task.attempt_count) == (TaskState.WAITING, 0)
        process.signal(signal.SIGCONT)
        done = await attentive.client.wait(submitted.id, 60)
        assert (done.state, done.attempt_count) == (TaskState.SUCCEEDED, 1)
    finally:
        process.signal(signal.SIGCONT)
        process.kill()


async def _ready(stage: Stage, handler: str) -> int:
    connection = await pool.connect(stage.cluster.database_url)
    try:
        return int(
            await connection.fetchval(
                "SELECT count(*) FROM ready r JOIN route h ON h.id = r.route_id"
                " WHERE h.handler = $1",
                handler,
            )
        )
    finally:
        await connection.close()


def _hello(body: object) -> bytes:
    head = {"protocol_version": "1", "type": "worker.hello", "message_id": secrets.token_hex(16)}
    return json.dumps({**head, "body": body}).encode()
