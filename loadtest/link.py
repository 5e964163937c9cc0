"""A bare v1 worker on picows: hello, then start and finish for whatever is assigned.

Written from the contract alone, without the SDK, so its cost stays small beside the cluster's and
the benchmark measures the server.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport


class _Task(msgspec.Struct):
    id: str


class _Body(msgspec.Struct):
    session_id: str = ""
    attempt_id: str = ""
    epoch: str = ""
    lease_secret: str = ""
    task: _Task | None = None


class _Error(msgspec.Struct):
    code: str


class _Frame(msgspec.Struct):
    type: str
    reply_to: str = ""
    body: _Body | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Frame).decode


class WorkerLink(WSListener):
    """One worker connection that finishes every assignment at once with SUCCEEDED.

    `on_assigned(task_id, at)` and `on_finished(task_id)` are called with the monotonic clock.
    """

    def __init__(
        self,
        queue_id: str,
        handler: str,
        capacity: int,
        on_assigned: Callable[[str, float], None],
        on_finished: Callable[[str], None],
    ) -> None:
        self.errors: dict[str, int] = {}
        self.welcomed = asyncio.Event()
        self.closed = False
        self._hello = msgspec.json.encode(
            {
                "queue_id": queue_id,
                "instance_id": secrets.token_hex(16),
                "instance_secret": secrets.token_urlsafe(32),
                "capabilities": [
                    {"handler": handler, "handler_version": "1", "payload_version": "1"}
                ],
                "capacity": capacity,
            }
        ).decode()
        self._on_assigned = on_assigned
        self._on_finished = on_finished
        self._prefix = secrets.token_hex(8)
        self._count = 0
        self._session = ""
        self._waiting: dict[str, tuple[str, str]] = {}

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send(
            WSMsgType.TEXT,
            b'{"protocol_version":"1","type":"worker.hello","message_id":"%s","body":%s}'
            % (self._message_id().encode(), self._hello.encode()),
        )

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.closed = True

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        message = _decode(frame.get_payload_as_memoryview())
        kind = message.type
        body = message.body
        if kind == "task.assign" and body is not None and body.task is not None:
            task_id = body.task.id
            self._on_assigned(task_id, time.monotonic())
            ref = (
                f'{{"task_id":"{task_id}","attempt_id":"{body.attempt_id}",'
                f'"epoch":"{body.epoch}","lease_secret":"{body.lease_secret}"}}'
            )
            self._send(transport, "task.start", ref, task_id, ref)
        elif kind == "ack":
            task_id, ref = self._waiting.pop(message.reply_to)
            if ref:
                finish = f'{{"ref":{ref},"outcome":"SUCCEEDED","result":{{"ok":true}}}}'
                self._send(transport, "task.finish", finish, task_id, "")
            else:
                self._on_finished(task_id)
        elif kind == "worker.welcome" and body is not None:
            self._session = body.session_id
            self.welcomed.set()
        elif message.error is not None:
            code = message.error.code
            self.errors[code] = self.errors.get(code, 0) + 1
            self._waiting.pop(message.reply_to, None)

    def _message_id(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count:016x}"

    def _send(self, transport: WSTransport, kind: str, body: str, task_id: str, ref: str) -> None:
        message_id = self._message_id()
        self._waiting[message_id] = (task_id, ref)
        transport.send(
            WSMsgType.TEXT,
            (
                f'{{"protocol_version":"1","type":"{kind}","message_id":"{message_id}",'
                f'"session_id":"{self._session}","body":{body}}}'
            ).encode(),
        )
