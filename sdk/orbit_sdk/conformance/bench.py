"""What one check works with: a handler name of its own, connections, and the HTTP API.

Tasks of one check never reach another: each check submits for a handler that only it declares.
Every submission carries a deadline, so that what a check leaves behind ends by itself.
"""

import asyncio
import json
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from orbit_sdk.conformance.checks import CheckFailed, Skipped, expect, expect_equal
from orbit_sdk.conformance.contract import Contract, Version
from orbit_sdk.conformance.peer import (
    ANSWER_S,
    ASSIGN_S,
    Attempt,
    Frame,
    Instance,
    Peer,
)
from orbit_sdk.conformance.target import WORKER_PATH, Target
from orbit_sdk.upgrade import Upgrade

LEFTOVERS_END_S: Final = 600
_POLL_S: Final = 0.05
_EXCHANGE_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, whose envelope has been looked at (R-100)."""

    status: int
    body: Frame
    text: str

    @property
    def data(self) -> Frame:
        """The data of a success."""
        expect("data" in self.body, f"status {self.status} without data", self.body)
        data: Frame = self.body["data"]
        return data

    def refused(self, status: int, code: str | None = None) -> None:
        """It must be an error of this status and code."""
        expect_equal(self.status, status, "the status", self.body)
        expect("error" in self.body, "a failure without an error (R-100)", self.body)
        if code is not None:
            expect_equal(self.body["error"]["code"], code, "the error's code", self.body)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all checks of a run share."""

    target: Target
    http: httpx.AsyncClient
    contracts: dict[Version, Contract]
    """Of the versions that are tried."""
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a check changes what others would feel, as by a pause."""


class Bench:
    """One check's surroundings; `close` ends every connection it opened."""

    def __init__(self, around: Surroundings, version: Version) -> None:
        self.target: Final = around.target
        self.version: Final = version
        """The version that the check is tried in."""
        self.one_at_a_time: Final = around.one_at_a_time
        self.handler: Final = f"conformance.{secrets.token_hex(8)}"
        self.exchange: Final[list[tuple[str, Frame]]] = []
        """Who said what, oldest first, as far back as it is kept."""
        self._contracts = around.contracts
        self._http = around.http
        self._open = AsyncExitStack()

    async def close(self) -> None:
        await self._open.aclose()

    def _told(self, who: str, frame: Frame) -> None:
        self.exchange.append((who, frame))
        del self.exchange[:-_EXCHANGE_MAX]

    # --- workers -------------------------------------------------------------------------------

    @property
    def versions(self) -> tuple[Version, ...]:
        """Every version that this run tries."""
        return tuple(self._contracts)

    def need_version(self, version: Version) -> Version:
        """Another version than this check's own, or the check is skipped."""
        if version not in self._contracts:
            raise Skipped(f"needs {version.subprotocol} as well")
        return version

    async def connect(
        self,
        instance: Instance | None = None,
        *,
        url: str | None = None,
        version: Version | None = None,
        credential: str | None = None,
        **options: Any,
    ) -> Peer:
        """An upgraded connection that has not said hello; `options` are those of websockets."""
        version = version or self.version
        known = {"max_queue": None, **options}
        socket = await self._open.enter_async_context(
            Upgrade(
                self.target.worker_url(url),
                subprotocols=[Subprotocol(version.subprotocol)],
                additional_headers={
                    "Authorization": f"Bearer {credential or self.target.credential}"
                },
                compression=None,
                open_timeout=ANSWER_S,
                close_timeout=1,
                ping_interval=None,
                user_agent_header=None,
                **known,
            )
        )
        expect_equal(socket.subprotocol, version.subprotocol, "the subprotocol")
        return Peer(socket, self._contracts[version], instance or Instance(), self._told)

    async def handshake_status(
        self, headers: dict[str, str], subprotocols: list[str], query: str = "", path: str = ""
    ) -> int:
        """The HTTP status of an upgrade request: 101 if it was accepted."""
        return (await self.handshake(headers, subprotocols, query, path))[0]

    async def handshake(
        self, headers: dict[str, str], subprotocols: list[str], query: str = "", path: str = ""
    ) -> tuple[int, str | None]:
        """The HTTP status of an upgrade request, and the subprotocol that was chosen."""
        address = self.target.worker_url()
        address = address.removesuffix(WORKER_PATH) + path if path else address
        try:
            async with Upgrade(
                address + query,
                subprotocols=[Subprotocol(name) for name in subprotocols] or None,
                additional_headers=headers,
                open_timeout=ANSWER_S,
                close_timeout=1,
                user_agent_header=None,
            ) as socket:
                return 101, socket.subprotocol
        except InvalidStatus as refusal:
            return refusal.response.status_code, None

    def hello_body(self, instance: Instance, capacity: int = 1, **changes: object) -> Frame:
        """What a hello says; a change replaces a member."""
        return {
            "instance_id": instance.id,
            "instance_secret": instance.secret,
            "queue_id": self.target.queue_id,
            "capabilities": [capability(self.handler)],
            "capacity": capacity,
            **changes,
        }

    async def hello(self, peer: Peer, capacity: int = 1, **changes: object) -> Frame:
        """Say hello on a connection; the welcome."""
        frame = await peer.ask("worker.hello", self.hello_body(peer.instance, capacity, **changes))
        expect_equal(frame["type"], "worker.welcome", "the answer to hello", frame)
        expect_equal(
            frame["body"]["session_id"], frame["session_id"], "the session of the welcome", frame
        )
        peer.session_id, peer.welcome = frame["session_id"], frame["body"]
        return frame

    async def worker(
        self,
        capacity: int = 1,
        instance: Instance | None = None,
        *,
        url: str | None = None,
        version: Version | None = None,
        credential: str | None = None,
        **changes: object,
    ) -> Peer:
        """A connection that has said hello and was welcome."""
        peer = await self.connect(instance, url=url, version=version, credential=credential)
        await self.hello(peer, capacity, **changes)
        return peer

    async def refused_hello(self, code: str, **changes: Any) -> Frame:
        """A new connection's hello must be refused with this error and closed with 1008."""
        peer = await self.connect()
        frame = await peer.refused(code, "worker.hello", self.hello_body(peer.instance, **changes))
        expect("session_id" not in frame, "there is no session yet (R-016)", frame)
        await peer.closed(1008)
        return frame

    async def assigned(self, **changes: object) -> tuple[Peer, Attempt]:
        """A worker with a fresh assignment."""
        peer = await self.worker()
        task_id = await self.submit(**changes)
        attempt = await peer.assignment()
        expect_equal(attempt.task["id"], task_id, "the assigned task", attempt.body)
        return peer, attempt

    async def running(self, **changes: object) -> tuple[Peer, Attempt, Frame]:
        """A worker with a started attempt, and the answer to the start."""
        peer, attempt = await self.assigned(**changes)
        result = await peer.start(attempt)
        expect(
            result["lease"]["active"] and result["lease"]["state"] == "RUNNING",
            "the start was not authorised",
            result,
        )
        return peer, attempt, result

    async def reconnected(self, peer: Peer, capacity: int = 1) -> Peer:
        """The same instance on a new connection, the old one closed."""
        await peer.socket.close()
        return await self.worker(capacity, peer.instance)

    # --- HTTP ----------------------------------------------------------------------------------

    def submission(self, **changes: object) -> Frame:
        """A submission for this check's handler; a change of None leaves a member out."""
        ends = datetime.now(UTC) + timedelta(seconds=LEFTOVERS_END_S)
        body: Frame = {
            "queue": self.target.queue_id,
            **capability(self.handler),
            "payload": {"check": True},
            "recovery_safety": "IDEMPOTENT",
            "deadline_at": wire_time(ends),
        }
        body |= changes
        return {name: value for name, value in body.items() if value is not None}

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        text: str | bytes | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request; the envelope of its answer must be right (R-100)."""
        sent = {"Authorization": f"Bearer {self.target.credential}"}
        if body is not None or text is not None:
            sent["Content-Type"] = "application/json"
        if key is not None:
            sent["Idempotency-Key"] = key
        sent |= headers or {}
        content = text if text is not None else None if body is None else json.dumps(body)
        try:
            found = await self._http.request(
                method,
                self.target.url + path,
                content=content,
                headers={name: value for name, value in sent.items() if value},
            )
        except httpx.HTTPError as error:
            raise CheckFailed(f"{method} {path}: {type(error).__name__} {error}") from None
        return _in_envelope(found)

    async def post(self, body: object, key: str | None = None) -> Answer:
        """Submit one task."""
        return await self.call("POST", "/v1/tasks", body=body, key=key or new_key())

    async def submit(self, **changes: object) -> str:
        """Submit one task that must be accepted; its id."""
        answer = await self.post(self.submission(**changes))
        expect_equal(answer.status, 201, "the status of a submission", answer.body)
        return str(answer.data["id"])

    async def task(self, task_id: str) -> Frame:
        """The authoritative state (R-062)."""
        return (await self.call("GET", f"/v1/tasks/{task_id}")).data

    async def attempts(self, task_id: str) -> list[Frame]:
        """The attempts, oldest first (R-063)."""
        rows: list[Frame] = (await self.call("GET", f"/v1/tasks/{task_id}/attempts")).data["items"]
        return rows

    async def until(self, task_id: str, state: str, timeout_s: float = ASSIGN_S) -> Frame:
        """Wait until the task is in this state."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout_s
        task = await self.task(task_id)
        while task["state"] != state:
            expect(loop.time() < ends, f"the task did not become {state}", task)
            await asyncio.sleep(_POLL_S)
            task = await self.task(task_id)
        return task

    async def operator(self, command: str) -> None:
        """Run a shell command of the operator's, which must succeed."""
        running = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await running.communicate()
        told = f"it ended with {running.returncode}: {said.decode(errors='replace').strip()}"
        expect(running.returncode == 0, f"the operator's command failed; {told}")

    def need_other_credential(self) -> str:
        """The credential of another application, or the check is skipped."""
        if self.target.other_credential is None:
            raise Skipped("needs --other-credential, of another application")
        return self.target.other_credential

    def need_other_url(self) -> str:
        """Another node, or the check is skipped."""
        if self.target.other_url is None:
            raise Skipped("needs --other-url, another node of the same cluster")
        return self.target.other_url


def capability(handler: str) -> Frame:
    """The triple that a submission names and a worker declares (R-006)."""
    return {"handler": handler, "handler_version": "1", "payload_version": "1"}


def new_key() -> str:
    """A submission key nobody has used."""
    return f"conformance-{secrets.token_hex(8)}"


def wire_time(instant: datetime) -> str:
    """The instant as the wire spells it (R-004)."""
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _in_envelope(found: httpx.Response) -> Answer:
    status, text = found.status_code, found.text
    try:
        body: Any = found.json()
    except ValueError:
        raise CheckFailed(f"status {status}: the body is not JSON (R-100)", text) from None
    right = isinstance(body, dict) and isinstance(body.get("request_id"), str)
    expect(right, f"status {status}: no envelope (R-100)", body)
    expect(set(body) in ({"request_id", "data"}, {"request_id", "error"}), "R-100", body)
    expect(("data" in body) == (status < 400), f"status {status}: data or error (R-100)", body)
    if "error" in body:
        error = body["error"]
        known = isinstance(error, dict) and {"code", "message"} <= set(error)
        expect(known, "an error has a code and a message (R-100)", body)
    return Answer(status, body, text)
