"""A gateway on real stores, a worker client that checks every frame, and a scripted dispatcher.

The client's one way to receive validates each server frame against the contract, so every test that
speaks to a gateway also proves R-013.
"""

import asyncio
import base64
import hashlib
import json
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from gateway.app import create_app
from gateway.node import Node
from gateway.server import GatewayServer, listen, serve
from gateway.worker.lease_secret import KeyRing
from orbit_sdk.protocol.ids import IdSource
from store import dispatch, queries
from store.bus import Bus
from store.pool import Pools, open_pools
from tests.contract.oracle import Version, accepts

LEASE_MS = 60_000
RING = KeyRing({1: bytes(range(32))})
ids = IdSource(lambda: time.time_ns() // 1_000_000, os.urandom)


@dataclass
class App:
    """An application in a test database, with its queue and a credential."""

    namespace_id: str
    queue_id: str
    queue: str
    key_id: str
    credential: str

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credential}"}


ALL_SCOPES = ("submit", "read", "cancel", "retry", "review", "work", "manage")


async def make_app(
    pools: Pools, name: str = "shop", queue: str = "mail", scopes: tuple[str, ...] = ALL_SCOPES
) -> App:
    key_id, secret = secrets.token_hex(8), secrets.token_bytes(32)
    async with pools.background.acquire() as connection:
        namespace_id = await queries.create_app(
            connection,
            ids.next(),
            name,
            [(ids.next(), queue)],
            (key_id, hashlib.sha256(secret).digest(), scopes),
        )
        found = await queries.find_queue(connection, namespace_id, queue)
    assert found is not None
    text = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    return App(namespace_id, found.id, queue, key_id, f"orbit_{key_id}_{text}")


async def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for something that shows itself in no event, polling."""
    async with asyncio.timeout(timeout_s):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)


@dataclass
class Gateway:
    """A gateway inside the test's event loop."""

    node: Node
    server: GatewayServer
    url: str
    ws_url: str
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.server.should_exit = True
        await self.task

    async def ready(self) -> None:
        await eventually(lambda: self.node.readiness().ready)


@asynccontextmanager
async def running_gateway(
    database_url: str,
    bus: Bus,
    *,
    lease_ms: int = LEASE_MS,
    grace_s: float = 0.0,
    hello_timeout_s: float = 5.0,
    session_max_ms: int = 3_600_000,
    wait_ready: bool = True,
) -> AsyncIterator[Gateway]:
    async def pools() -> Pools:
        return await open_pools(database_url)

    node = Node(
        open_pools=pools,
        bus=bus,
        ring=RING,
        lease_ms=lease_ms,
        session_max_ms=session_max_ms,
        beat_interval_s=0.5,
    )
    app = create_app(node, hello_timeout_s=hello_timeout_s)
    server = GatewayServer(app, node, ping_interval_s=20, grace_s=grace_s)
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    task = asyncio.create_task(serve(server, node, sock))
    gateway = Gateway(
        node, server, f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/v1/worker/connect", task
    )
    try:
        if wait_ready:
            await gateway.ready()
        yield gateway
    finally:
        await gateway.stop()


@dataclass
class Assigned:
    """An assignment as the worker received it."""

    task: dict[str, Any]
    ref: dict[str, str]


@dataclass
class Worker:
    """One worker connection; every frame it receives is checked against the contract."""

    socket: ClientConnection
    app: App
    version: Version = "1"
    instance_id: str = field(default_factory=ids.next)
    instance_secret: str = ""
    session_id: str = ""
    welcome: dict[str, Any] = field(default_factory=dict)
    assigned: list[Assigned] = field(default_factory=list)

    async def receive(self, timeout_s: float = 10.0) -> dict[str, Any]:
        async with asyncio.timeout(timeout_s):
            text = await self.socket.recv()
        assert isinstance(text, str)
        assert accepts(text, "serverFrame", self.version), text
        frame: dict[str, Any] = json.loads(text)
        return frame

    async def send(self, kind: str, body: object, *, session_id: str | None = None) -> str:
        """Send one frame; returns its message id."""
        message_id = ids.next()
        frame: dict[str, object] = {
            "protocol_version": self.version,
            "type": kind,
            "message_id": message_id,
            "body": body,
        }
        if kind != "worker.hello":
            frame["session_id"] = session_id or self.session_id
        await self.socket.send(json.dumps(frame))
        return message_id

    async def answer(self, message_id: str) -> dict[str, Any]:
        """The frame that replies to this message; assignments met on the way are kept."""
        while True:
            frame = await self.receive()
            if frame["type"] == "task.assign":
                self._keep(frame)
            elif frame.get("reply_to") == message_id:
                return frame
            else:
                raise AssertionError(f"unexpected {frame}")

    async def ask(self, kind: str, body: object) -> dict[str, Any]:
        return await self.answer(await self.send(kind, body))

    async def ask_all(self, kind: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
        """Operations in one frame of v2, each with an id unless its body has one: the results."""
        items = [{"message_id": ids.next(), **body} for body in bodies]
        frame = await self.ask(kind, {"items": items})
        assert frame["type"] == "ack", frame
        results: list[dict[str, Any]] = frame["body"]["results"]
        assert len(results) == len(items)
        return results

    async def hello(
        self, capacity: int = 4, handler: str = "send", **changes: object
    ) -> dict[str, Any]:
        if not self.instance_secret:
            self.instance_secret = new_secret()
        body = {
            "instance_id": self.instance_id,
            "instance_secret": self.instance_secret,
            "queue_id": self.app.queue_id,
            "capabilities": [capability(handler)],
            "capacity": capacity,
        } | changes
        frame = await self.ask("worker.hello", body)
        if frame["type"] == "worker.welcome":
            self.session_id = frame["session_id"]
            self.welcome = frame["body"]
        return frame

    async def assignment(self, timeout_s: float = 10.0) -> Assigned:
        if self.assigned:
            return self.assigned.pop(0)
        frame = await self.receive(timeout_s)
        assert frame["type"] == "task.assign", frame
        self._keep(frame)
        return self.assigned.pop(0)

    def _keep(self, frame: dict[str, Any]) -> None:
        assert frame["session_id"] == self.session_id
        for body in frame["body"].get("assignments", [frame["body"]]):
            ref = {name: body[name] for name in ("attempt_id", "epoch", "lease_secret")}
            self.assigned.append(Assigned(body["task"], {"task_id": body["task"]["id"], **ref}))

    async def closed(self, timeout_s: float = 10.0) -> int:
        """Read to the end; the close code."""
        async with asyncio.timeout(timeout_s):
            await self.socket.wait_closed()
        assert self.socket.close_code is not None
        return self.socket.close_code


def new_secret() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def capability(handler: str = "send") -> dict[str, str]:
    return {"handler": handler, "handler_version": "1", "payload_version": "1"}


@asynccontextmanager
async def worker_on(
    gateway: Gateway | str, app: App, *, hello: bool = True, version: Version = "1", **known: Any
) -> AsyncIterator[Worker]:
    """A worker connection to a gateway of this test, or to the URL of another one."""
    async with connect(
        gateway if isinstance(gateway, str) else gateway.ws_url,
        additional_headers=app.headers,
        subprotocols=[f"pulse.worker.v{version}"],  # type: ignore[list-item]
        compression=None,
        close_timeout=1,
    ) as socket:
        worker = Worker(socket, app, version, **known)
        if hello:
            frame = await worker.hello()
            assert frame["type"] == "worker.welcome", frame
        yield worker


def submission(queue: str = "mail", **changes: object) -> dict[str, object]:
    return {
        "queue": queue,
        **capability(),
        "payload": {"to": "a@b.c"},
        "recovery_safety": "IDEMPOTENT",
    } | changes


async def submit(
    http: httpx.AsyncClient, key: str | None = None, queue: str = "mail", **changes: object
) -> httpx.Response:
    return await http.post(
        "/v1/tasks",
        json=submission(queue, **changes),
        headers={"Idempotency-Key": key or ids.next()},
    )


class Dispatcher:
    """Claims what is ready for a session and sends it through the bus, once, when told to."""

    def __init__(self, pools: Pools, bus: Bus, lease_ms: int = LEASE_MS) -> None:
        self._pools = pools
        self.bus = bus
        self._lease_ms = lease_ms

    async def claim(self, session_id: str, limit: int = 100) -> list[dispatch.Assignment]:
        async with self._pools.background.acquire() as connection:
            (session,) = await dispatch.load_sessions(connection, [session_id])
            ready = await dispatch.peek_ready(
                connection, [(route, limit) for route in session.routes]
            )
            pairs = [dispatch.ClaimPair(task.task_id, session_id, ids.next()) for task in ready]
            return await dispatch.claim_tasks(connection, pairs[:limit], self._lease_ms)

    async def dispatch(self, session_id: str, limit: int = 100) -> list[dispatch.Assignment]:
        won = await self.claim(session_id, limit)
        if won:
            await self.bus.assign(won[0].node_id, won)
        return won
