"""Two gateways, and worker connections whose every frame is written down.

The connections are the conformance suite's: they check each frame of a gateway against the contract
and share no code with the SDK.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from orbit_sdk.conformance.contract import V1, V2, VERSIONS, Contract, Version
from orbit_sdk.conformance.peer import Attempt, Instance, Peer
from orbit_sdk.conformance.target import WORKER_PATH

HANDLER = {"handler": "mail.send", "handler_version": "1", "payload_version": "1"}
TRIES = 20
Frame = dict[str, Any]
Leave = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened: a frame, a text that is none, or a close."""

    way: str
    """Who says it to whom, as in `worker → gateway`."""
    said: Frame | str


@dataclass(frozen=True, slots=True)
class Acted:
    """One scene that was acted."""

    version: Version
    text: str
    """Its heading and what it shows."""
    lines: list[Line]


@dataclass
class Stage:
    """The cluster of a scene, and what was said so far."""

    nodes: tuple[str, str]
    """The base URLs of two gateways."""
    credential: str
    queue_id: str
    http: httpx.AsyncClient
    opened: AsyncExitStack
    leave: Leave
    """Tell the second gateway to stop."""
    lines: list[Line] = field(default_factory=list)
    instance: Instance = field(default_factory=Instance)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential}"}

    async def connect(
        self,
        worker: str = "worker",
        gateway: str = "gateway",
        node: int = 0,
        version: Version = V1,
    ) -> Peer:
        """An upgraded connection, named as the transcript will name its ends.

        For v2 both versions are offered.
        """
        offered = [V1.subprotocol] if version is V1 else [V2.subprotocol, V1.subprotocol]
        socket = await self.opened.enter_async_context(
            connect(
                self.nodes[node].replace("http", "ws", 1) + WORKER_PATH,
                subprotocols=[Subprotocol(name) for name in offered],
                additional_headers=self._headers,
                compression=None,
                close_timeout=1,
            )
        )
        chosen = next(each for each in VERSIONS if each.subprotocol == socket.subprotocol)
        assert chosen is version
        ways = {"worker": f"{worker} → {gateway}", "server": f"{gateway} → {worker}"}

        def told(who: str, frame: Frame) -> None:
            known = "type" in frame
            self.lines.append(Line(ways[who], frame if known else str(frame.get("text"))))

        if version is not V1:
            self.lines.append(Line(ways["worker"], f"(upgrade, offers {', '.join(offered)})"))
            self.lines.append(Line(ways["server"], f"(101, takes {chosen.subprotocol})"))
        return Peer(socket, Contract(version), self.instance, told)

    async def hello(self, peer: Peer, capacity: int = 1) -> None:
        """hello and welcome."""
        frame = await peer.ask(
            "worker.hello",
            {
                "instance_id": self.instance.id,
                "instance_secret": self.instance.secret,
                "queue_id": self.queue_id,
                "capabilities": [HANDLER],
                "capacity": capacity,
            },
        )
        peer.session_id = frame["session_id"]

    async def worker(
        self,
        worker: str = "worker",
        gateway: str = "gateway",
        node: int = 0,
        *,
        version: Version = V1,
        capacity: int = 1,
        shown: bool = False,
    ) -> Peer:
        """A connection that is welcome; what was said so far is only shown where it matters."""
        before = len(self.lines)
        peer = await self.connect(worker, gateway, node, version)
        await self.hello(peer, capacity)
        if not shown:
            del self.lines[before:]
        return peer

    async def closed(self, peer: Peer, code: int, way: str = "gateway → worker") -> None:
        """The gateway must close with this code."""
        await peer.closed(code)
        self.lines.append(Line(way, f"(closes with {code})"))

    async def close(self, peer: Peer, way: str) -> None:
        """The worker closes."""
        await peer.socket.close()
        self.lines.append(Line(way, "(the connection ends)"))

    async def submit(self, **changes: object) -> str:
        """A client submits a task; its id."""
        return str((await self._post("/v1/tasks", self._submission(**changes)))["id"])

    def _submission(self, **changes: object) -> Frame:
        return {
            "queue": "default",
            **HANDLER,
            "payload": {"to": "a@example.org"},
            "recovery_safety": "IDEMPOTENT",
            "retry": {
                "max_attempts": 3,
                "initial_delay_ms": 1_000,
                "max_delay_ms": 60_000,
                "attempt_timeout_ms": 3_600_000,
            },
            **changes,
        }

    async def cancel(self, task_id: str) -> None:
        """A client asks to cancel the task."""
        await self._post(f"/v1/tasks/{task_id}:cancel", {"reason": "The order was withdrawn."})
        self.lines.append(Line("client", "(cancels the task over HTTP; 202: the intent is saved)"))

    async def assigned_at_once(self, peer: Peer, count: int, **changes: object) -> list[Attempt]:
        """So many tasks that are submitted together, and reach the worker in one frame.

        How many come in a frame is the server's choice; the run is shown in which it is all.
        """
        for _ in range(TRIES):
            before = len(self.lines)
            items = [
                {**self._submission(**changes), "submission_key": Instance().id}
                for _ in range(count)
            ]
            await self._post("/v1/tasks:batchSubmit", {"items": items})
            attempts = [await peer.assignment() for _ in range(count)]
            if len(self.lines) == before + 1:
                return attempts
            for attempt in attempts:
                await peer.start(attempt)
                await peer.finish(attempt)
            del self.lines[before:]
        raise AssertionError(f"{count} tasks never came in one frame")

    async def started_at_once(self, peer: Peer, count: int, **changes: object) -> list[Attempt]:
        """The same, started; nothing of it is shown."""
        before = len(self.lines)
        attempts = await self.assigned_at_once(peer, count, **changes)
        for attempt in attempts:
            await peer.start(attempt)
        del self.lines[before:]
        return attempts

    async def started(self, peer: Peer, **changes: object) -> Attempt:
        """A task that is submitted, assigned and started."""
        await self.submit(**changes)
        attempt = await peer.assignment()
        await peer.start(attempt)
        return attempt

    async def _post(self, path: str, body: Frame) -> Frame:
        answer = await self.http.post(
            self.nodes[0] + path,
            content=json.dumps(body),
            headers={
                **self._headers,
                "Content-Type": "application/json",
                "Idempotency-Key": Instance().id,
            },
        )
        assert answer.status_code < 300, answer.text
        data: Frame = answer.json()["data"]
        return data


@asynccontextmanager
async def stage_on(nodes: tuple[str, str], credential: str, leave: Leave) -> AsyncIterator[Stage]:
    """A stage on two running gateways; every connection is closed at the end."""
    async with httpx.AsyncClient(timeout=30) as http, AsyncExitStack() as opened:
        headers = {"Authorization": f"Bearer {credential}"}
        answer = await http.get(nodes[0] + "/v1/queues/default", headers=headers)
        yield Stage(nodes, credential, answer.json()["data"]["id"], http, opened, leave)
