"""A whole worker without the SDK, written from schemas/worker.v1.json and docs/protocol.md alone.

Serves the handler `square`: {"n": 7, "seconds": 0.1} becomes 49.
    ORBIT_URL=... ORBIT_CREDENTIAL=... [ORBIT_QUEUE=...] python examples/bare_worker.py
"""

import asyncio
import json
import os
import random
import secrets
import time
import urllib.request
from contextlib import suppress
from datetime import datetime
from typing import Any

from websockets import ConnectionClosed, InvalidHandshake, Subprotocol, connect

SQUARE = {"handler": "square", "handler_version": "1", "payload_version": "1"}
V1 = [Subprotocol("pulse.worker.v1")]
FINAL = {"attempt_not_found", "operation_conflict", "bad_frame"}
Frame = dict[str, Any]


class Attempt:
    """An assignment in our hands, from task.assign to the answer to its finish."""

    def __init__(self, body: Frame) -> None:
        names = ("attempt_id", "epoch", "lease_secret")
        self.ref = {"task_id": body["task"]["id"], **{name: body[name] for name in names}}
        self.payload = body["task"]["payload"]
        self.may_run_until = 0.0  # by our own monotonic clock
        self.work: asyncio.Task[None] | None = None
        self.command: tuple[str, Frame, Attempt, str] | None = None  # not yet answered


class BareWorker:
    """One process: its instance id and secret live as long as it does, its sessions do not."""

    def __init__(self) -> None:
        self.url, queue = os.environ["ORBIT_URL"], os.environ.get("ORBIT_QUEUE", "default")
        self.auth = {"Authorization": f"Bearer {os.environ['ORBIT_CREDENTIAL']}"}
        request = urllib.request.Request(f"{self.url}/v1/queues/{queue}", headers=self.auth)
        with urllib.request.urlopen(request) as answer:
            self.hello: Frame = {"queue_id": json.load(answer)["data"]["id"]}
        self.hello |= {"instance_id": secrets.token_hex(16), "capabilities": [SQUARE]}
        self.hello |= {"instance_secret": secrets.token_urlsafe(32), "capacity": 8}
        self.held: dict[str, Attempt] = {}
        self.asked: dict[str, tuple[str, Attempt, float]] = {}  # by message id: what, when sent
        self.session_id, self.lease_s = "", 1.0

    async def run(self) -> None:
        keeper = asyncio.create_task(self.keep())
        url = self.url.replace("http", "ws", 1) + "/v1/worker/connect"
        while not keeper.done():
            try:
                async with connect(url, subprotocols=V1, additional_headers=self.auth) as self.link:
                    self.session_id, self.asked = "", {}
                    await self.send("worker.hello", self.hello, None)
                    async for text in self.link:
                        await self.received(json.loads(text))
            except (OSError, TimeoutError, ConnectionClosed, InvalidHandshake) as error:
                print(f"disconnected: {error!r}", flush=True)
            await asyncio.sleep(random.uniform(0.1, 1.0))
        keeper.result()

    async def send(self, kind: str, body: Frame, about: Attempt | None, id: str = "") -> None:
        frame = {"protocol_version": "1", "type": kind, "message_id": id or secrets.token_hex(16)}
        if about is not None:
            frame["session_id"] = self.session_id
            self.asked[frame["message_id"]] = kind, about, time.monotonic()
        with suppress(ConnectionClosed):  # the next session resumes and repeats
            await self.link.send(json.dumps({**frame, "body": body}))

    async def repeat(self, attempt: Attempt) -> None:
        if attempt.command is not None and self.session_id:
            await self.send(*attempt.command)  # always with the same message id

    async def received(self, frame: Frame) -> None:
        if frame["type"] == "worker.welcome":
            self.session_id = frame["session_id"]
            self.lease_s = frame["body"]["lease_duration_ms"] / 1000
            for attempt in list(self.held.values()):
                await self.send("worker.resume", attempt.ref, attempt)
        elif frame["type"] == "task.assign":
            attempt = self.held[frame["body"]["attempt_id"]] = Attempt(frame["body"])
            attempt.command = ("task.start", attempt.ref, attempt, secrets.token_hex(16))
            await self.repeat(attempt)
        elif frame.get("reply_to") in self.asked:
            kind, attempt, sent_at = self.asked.pop(frame["reply_to"])
            final = frame["type"] == "error" and frame["error"]["code"] in FINAL
            if final or (kind == "task.finish" and frame["type"] == "ack"):
                self.drop(attempt)  # a finish is durable, or kept as evidence: no more to say
            elif frame["type"] == "ack":
                await self.judged(kind, attempt, frame["body"], sent_at)

    async def judged(self, kind: str, attempt: Attempt, body: Frame, sent_at: float) -> None:
        """An answer with a lease: the right to run counts from when the request was sent."""
        lease = body.get("lease", body)
        if kind == "task.start":
            attempt.command = None
        if lease["active"]:
            ends, now = (datetime.fromisoformat(lease[k]) for k in ("lease_until", "server_time"))
            seconds = (ends - now).total_seconds()
            attempt.may_run_until = sent_at + seconds - max(1.0, seconds / 10)
            if kind == "worker.resume":
                await self.repeat(attempt)
            if lease["state"] == "RUNNING" and attempt.work is None and attempt.command is None:
                attempt.work = asyncio.create_task(self.work(attempt))
        elif attempt.command is not None:
            await self.repeat(attempt)  # of a finish the answer is the final word
        elif lease["state"] == "RUNNING" and attempt.work is not None:
            attempt.work.cancel()  # stop, then report within the window
        else:
            self.drop(attempt)

    async def work(self, attempt: Attempt) -> None:
        report: Frame = {"ref": attempt.ref, "outcome": "FAILED"}
        try:
            await asyncio.sleep(attempt.payload.get("seconds", 0))
            report |= {"outcome": "SUCCEEDED", "result": attempt.payload["n"] ** 2}
        except asyncio.CancelledError:
            report |= {"result": "stopped", "error_code": "cancelled"}
        except (AttributeError, KeyError, TypeError) as error:
            report |= {"result": repr(error), "error_code": "invalid_input"}
        attempt.command = ("task.finish", report, attempt, secrets.token_hex(16))
        await self.repeat(attempt)

    def drop(self, attempt: Attempt) -> None:
        if self.held.pop(attempt.ref["attempt_id"], None) and attempt.work is not None:
            attempt.work.cancel()

    async def keep(self) -> None:
        """Renew at a third of the lease; stop before the right to run can be over."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            for attempt in list(self.held.values()):
                await self.repeat(attempt)
                if attempt.work is None or attempt.work.done():
                    continue
                if time.monotonic() > attempt.may_run_until - self.lease_s / 3:
                    self.drop(attempt)
                elif self.session_id:
                    await self.send("task.renew", attempt.ref, attempt)


if __name__ == "__main__":
    asyncio.run(BareWorker().run())
