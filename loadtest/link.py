"""Bare workers on picows: hello, then start and finish for whatever is assigned, in v1 or in v2.

Written from the contract alone, without the SDK, so its cost stays small beside the cluster's and
the benchmark measures the server.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
from picows import WSFrame, WSListener, WSMsgType, WSTransport


class _Task(msgspec.Struct, gc=False):
    id: str


class _Given(msgspec.Struct, gc=False):
    attempt_id: str
    epoch: str
    lease_secret: str
    task: _Task


class _Error(msgspec.Struct, gc=False):
    code: str


class _Result(msgspec.Struct, gc=False):
    error: _Error | None = None


class _Body(msgspec.Struct):
    session_id: str = ""
    task_id: str = ""
    attempt_id: str = ""
    epoch: str = ""
    lease_secret: str = ""
    task: _Task | None = None
    assignments: list[_Given] | None = None
    results: list[_Result] | None = None


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

    version = ""

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

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.send(
            WSMsgType.TEXT,
            (
                f'{{"protocol_version":"{self.version}","type":"worker.hello",'
                f'"message_id":"{self._message_id()}","body":{self._hello}}}'
            ).encode(),
        )

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.closed = True

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type != WSMsgType.TEXT:
            return
        message = _decode(frame.get_payload_as_memoryview())
        body = message.body
        if message.error is not None:
            self._failed(message.error.code)
            self._refused(message.reply_to)
        elif message.type == "worker.welcome" and body is not None:
            self._session = body.session_id
            self.welcomed.set()
        elif body is not None:
            self._heard(transport, message.type, message.reply_to, body)

    def _heard(self, transport: WSTransport, kind: str, reply_to: str, body: _Body) -> None:
        raise NotImplementedError

    def _refused(self, reply_to: str) -> None:
        raise NotImplementedError

    def _failed(self, code: str) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def _message_id(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count:016x}"

    def _send(self, transport: WSTransport, kind: str, message_id: str, body: str) -> None:
        transport.send(
            WSMsgType.TEXT,
            (
                f'{{"protocol_version":"{self.version}","type":"{kind}","message_id":"{message_id}",'
                f'"session_id":"{self._session}","body":{body}}}'
            ).encode(),
        )


class LinkV1(WorkerLink):
    """A frame for each operation."""

    version = "1"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: dict[str, tuple[str, str]] = {}

    def _heard(self, transport: WSTransport, kind: str, reply_to: str, body: _Body) -> None:
        if kind == "task.assign" and body.task is not None:
            task_id = body.task.id
            self._on_assigned(task_id, time.monotonic())
            ref = (
                f'{{"task_id":"{task_id}","attempt_id":"{body.attempt_id}",'
                f'"epoch":"{body.epoch}","lease_secret":"{body.lease_secret}"}}'
            )
            self._ask(transport, "task.start", ref, task_id, ref)
        elif kind == "ack":
            task_id, ref = self._waiting.pop(reply_to)
            if ref:
                finish = f'{{"ref":{ref},"outcome":"SUCCEEDED","result":{{"n":{self._count}}}}}'
                self._ask(transport, "task.finish", finish, task_id, "")
            else:
                self._on_finished(task_id)

    def _refused(self, reply_to: str) -> None:
        self._waiting.pop(reply_to, None)

    def _ask(self, transport: WSTransport, kind: str, body: str, task_id: str, ref: str) -> None:
        message_id = self._message_id()
        self._waiting[message_id] = (task_id, ref)
        self._send(transport, kind, message_id, body)


class LinkV2(WorkerLink):
    """A frame for whatever came in one."""

    version = "2"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: dict[str, list[tuple[str, str]]] = {}

    def _heard(self, transport: WSTransport, kind: str, reply_to: str, body: _Body) -> None:
        if kind == "task.assign" and body.assignments is not None:
            now = time.monotonic()
            started = []
            for given in body.assignments:
                self._on_assigned(given.task.id, now)
                ref = (
                    f'"task_id":"{given.task.id}","attempt_id":"{given.attempt_id}",'
                    f'"epoch":"{given.epoch}","lease_secret":"{given.lease_secret}"}}'
                )
                started.append((given.task.id, ref))
            items = [f'{{"message_id":"{self._message_id()}",{ref}' for _, ref in started]
            self._ask(transport, "task.start", items, started)
        elif kind == "ack" and body.results is not None:
            asked = self._waiting.pop(reply_to)
            good = []
            for (task_id, ref), result in zip(asked, body.results, strict=True):
                if result.error is not None:
                    self._failed(result.error.code)
                elif ref:
                    good.append((task_id, ref))
                else:
                    self._on_finished(task_id)
            if good:
                self._finish(transport, good)

    def _finish(
        self, transport: WSTransport, good: list[tuple[str, str]], end: str = '"SUCCEEDED"'
    ) -> None:
        items = [
            f'{{"message_id":"{self._message_id()}","ref":{{{ref},"outcome":{end},'
            f'"result":{{"n":{self._count}}}}}'
            for _, ref in good
        ]
        self._ask(transport, "task.finish", items, [(task_id, "") for task_id, _ in good])

    def _refused(self, reply_to: str) -> None:
        self._waiting.pop(reply_to, None)

    def _ask(
        self, transport: WSTransport, kind: str, items: list[str], asked: list[tuple[str, str]]
    ) -> None:
        message_id = self._message_id()
        self._waiting[message_id] = asked
        self._send(transport, kind, message_id, f'{{"items":[{",".join(items)}]}}')


class HoldingLink(LinkV2):
    """Runs whatever it is given until it is told to stop, and then confirms that.

    `on_running(task_id)` hears of each confirmed start, `on_stopped(task_id, at)` of each
    task.cancel; `tasks` are those between the two.
    """

    def __init__(
        self,
        *args: Any,
        on_running: Callable[[str], None],
        on_stopped: Callable[[str, float], object],
    ) -> None:
        super().__init__(*args)
        self._on_running = on_running
        self._on_stopped = on_stopped
        self._held: dict[str, str] = {}

    @property
    def tasks(self) -> list[str]:
        """Those that were started and not told to stop."""
        return list(self._held)

    def _heard(self, transport: WSTransport, kind: str, reply_to: str, body: _Body) -> None:
        if kind != "task.cancel":
            super()._heard(transport, kind, reply_to, body)
            return
        self._on_stopped(body.task_id, time.monotonic())
        ref = self._held.pop(body.task_id, None)
        if ref is not None:
            stopped = [(body.task_id, ref)]
            super()._finish(transport, stopped, '"CANCELLED","error_code":"cancelled"')

    def _finish(self, transport: WSTransport, good: list[tuple[str, str]], end: str = "") -> None:
        for task_id, ref in good:
            self._held[task_id] = ref
            self._on_running(task_id)


LINKS: dict[str, type[WorkerLink]] = {"v1": LinkV1, "v2": LinkV2}
