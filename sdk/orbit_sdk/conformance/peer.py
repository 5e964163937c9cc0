"""One worker connection, driven by hand: it sends what a check asks for, right or wrong, and holds
everything that comes back against the contract.

Besides the schema each received frame must carry the session of the connection (R-014, R-016),
answer only what was asked (R-117), and bear a message id of its own.

A check is written once, for both versions: where v2 wants items, a single one is wrapped on the way
out, and its result unwrapped on the way in. `batch.py` speaks of several.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from orbit_sdk.conformance.checks import CheckFailed, expect, expect_equal
from orbit_sdk.conformance.contract import Contract

ANSWER_S: Final = 10.0
"""An answer that takes longer is missing."""

ASSIGN_S: Final = 20.0
"""A due task that takes longer to reach a free worker is not dispatched."""

Frame = dict[str, Any]


def new_id() -> str:
    """An id of the contract's form (R-001)."""
    return secrets.token_hex(16)


def new_secret() -> str:
    """32 bytes as the contract spells them (R-003)."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def instant(text: str) -> datetime:
    """A time of the wire."""
    return datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True)
class Instance:
    """One worker process as the server knows it (R-113)."""

    id: str = field(default_factory=new_id)
    secret: str = field(default_factory=new_secret)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An assignment as it was received."""

    body: Frame

    @property
    def task(self) -> Frame:
        """The assigned task."""
        task: Frame = self.body["task"]
        return task

    @property
    def ref(self) -> Frame:
        """The proof of holding it, as commands carry it (R-034)."""
        own = {name: self.body[name] for name in ("attempt_id", "epoch", "lease_secret")}
        return {"task_id": self.task["id"], **own}

    @property
    def epoch(self) -> int:
        """The execution generation (OP-10)."""
        return int(self.body["epoch"])


class Peer:
    """A connection and what was said on it."""

    def __init__(
        self,
        socket: ClientConnection,
        contract: Contract,
        instance: Instance,
        told: Callable[[str, Frame], None],
    ) -> None:
        self.socket: Final = socket
        self.instance: Final = instance
        self.session_id = ""
        self.welcome: Frame = {}
        self.version: Final = contract.version
        self.waiting: list[Attempt] = []
        """Assignments that came and were not asked for yet."""
        self.cancels: list[Frame] = []
        """Bodies of the task.cancel frames so far."""
        self.drains: list[Frame] = []
        """Bodies of the worker.drain frames so far."""
        self._contract = contract
        self._told = told
        self._sent: set[str] = set()
        self._seen: set[str] = set()

    # --- sending -------------------------------------------------------------------------------

    def frame(self, kind: str, body: object, **changes: object) -> Frame:
        """A frame of this session; a change of None leaves a member out.

        The message id is the operation's: of the frame, or of its only item (OP-06).
        """
        if kind in self.version.batched and isinstance(body, dict) and "items" not in body:
            body = {"items": [{"message_id": changes.pop("message_id", new_id()), **body}]}
        made: Frame = {
            "protocol_version": self.version.number,
            "type": kind,
            "message_id": new_id(),
            "body": body,
        }
        if kind != "worker.hello":
            made["session_id"] = self.session_id
        made |= changes
        return {name: value for name, value in made.items() if value is not None}

    @staticmethod
    def text_of(frame: Frame) -> str:
        """The frame as it travels."""
        return json.dumps(frame)

    async def send(self, kind: str, body: object, **changes: object) -> str:
        """Send one frame; its message id."""
        frame = self.frame(kind, body, **changes)
        await self.send_text(self.text_of(frame), frame)
        return str(frame.get("message_id", ""))

    async def send_fragments(self, frame: Frame, count: int) -> None:
        """Send one frame as a message of that many fragments, and an empty last one."""
        text = self.text_of(frame)
        size = -(-len(text) // count)
        self._sent.add(frame["message_id"])
        self._told("worker", frame)
        await self.socket.send([text[at : at + size] for at in range(0, len(text), size)])

    async def send_text(self, text: str, frame: Frame | None = None) -> None:
        """Send a text as it is."""
        if frame is not None:
            self._sent.add(str(frame.get("message_id")))
        self._told("worker", frame if frame is not None else {"text": text})
        try:
            await self.socket.send(text)
        except ConnectionClosed as error:
            raise CheckFailed(f"the server closed the connection ({_why(error)})") from None

    # --- receiving -----------------------------------------------------------------------------

    async def receive(self, timeout_s: float | None = None) -> Frame:
        """The next frame, held against the contract."""
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                text = await self.socket.recv()
        except TimeoutError:
            raise CheckFailed(f"no frame came within {timeout_s:g} s") from None
        except ConnectionClosed as error:
            raise CheckFailed(f"the server closed the connection ({_why(error)})") from None
        expect(isinstance(text, str), "the server sent a binary message (R-010)")
        frame, fault = self._contract.read(str(text))
        self._told("server", frame or {"text": str(text)})
        expect(not fault, fault, frame or text)
        self._hold_to_the_session(frame)
        return frame

    def _hold_to_the_session(self, frame: Frame) -> None:
        expect(frame["message_id"] not in self._seen, "a message id came twice (R-119)", frame)
        self._seen.add(frame["message_id"])
        reply_to = frame.get("reply_to")
        expect(
            reply_to is None or reply_to in self._sent,
            "the frame answers a message that was never sent (R-117)",
            frame,
        )
        if self.session_id:
            expect_equal(
                frame.get("session_id"), self.session_id, "the frame's session (R-014)", frame
            )

    def _keep(self, frame: Frame) -> bool:
        """Whether the server said it of its own accord; then it is kept for who asks."""
        kind, body = frame["type"], frame.get("body", {})
        if kind == "task.assign":
            self.waiting += [Attempt(each) for each in body.get("assignments", [body])]
        elif kind == "task.cancel":
            self.cancels.append(body)
        elif kind == "worker.drain":
            self.drains.append(body)
        else:
            return False
        return True

    async def reply(self, timeout_s: float | None = None) -> Frame:
        """The next frame that answers, or ends the session; what is met on the way is kept."""
        while self._keep(frame := await self.receive(timeout_s)):
            pass
        return frame

    async def answer(self, message_id: str, timeout_s: float | None = None) -> Frame:
        """The answer to this message, with the result of its only item as its own."""
        frame = await self.reply(timeout_s)
        expect_equal(frame.get("reply_to"), message_id, "reply_to", frame)
        return unwrapped(frame)

    async def pushed(self, kept: list[Frame], timeout_s: float | None = None) -> Frame:
        """The next of `cancels` or `drains`, come already or still to come."""
        while not kept:
            frame = await self.receive(timeout_s)
            expect(self._keep(frame), "it answers what nobody asked", frame)
        return kept.pop(0)

    async def ask(self, kind: str, body: object, **changes: object) -> Frame:
        """Send one frame and wait for its answer."""
        return await self.answer(await self.send(kind, body, **changes))

    async def refused(self, code: str, kind: str, body: object, **changes: object) -> Frame:
        """Send one frame that must be answered with this error."""
        frame = await self.ask(kind, body, **changes)
        expect_equal(frame["type"], "error", "the answer", frame)
        expect_equal(frame["error"]["code"], code, "the error's code", frame)
        return frame

    async def fatal(self, code: str, close_code: int, timeout_s: float | None = None) -> Frame:
        """The last frame must be this error without reply_to, then this close (R-016, OP-07)."""
        frame = await self.reply(timeout_s)
        expect_equal(frame["type"], "error", "the frame before the end", frame)
        expect_equal(frame["error"]["code"], code, "the error's code", frame)
        expect("reply_to" not in frame, "a fatal error answers nothing (R-016)", frame)
        await self.closed(close_code)
        return frame

    async def closed(self, code: int, timeout_s: float | None = None) -> None:
        """The server must close, with this code."""
        expect_equal(await self.end(timeout_s), code, "the close code")

    async def end(self, timeout_s: float | None = None) -> int | None:
        """The connection must end; its close code, if one came."""
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    text = await self.socket.recv()
                    self._told("server", {"text": str(text)})
        except TimeoutError:
            raise CheckFailed(f"the server did not close within {timeout_s:g} s") from None
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else None

    # --- a life --------------------------------------------------------------------------------

    async def assignment(self, timeout_s: float | None = None) -> Attempt:
        """The next assignment."""
        while not self.waiting:
            frame = await self.receive(ASSIGN_S if timeout_s is None else timeout_s)
            expect(self._keep(frame), "the frame is not task.assign", frame)
        return self.waiting.pop(0)

    async def nothing_was_assigned(self) -> None:
        """Prove by a round trip that no assignment is on the way to this connection."""
        pong = await self.socket.ping()
        async with asyncio.timeout(ANSWER_S):
            await pong
        while True:
            try:
                async with asyncio.timeout(0.01):
                    text = await self.socket.recv()
            except TimeoutError:
                break
            frame, fault = self._contract.read(str(text))
            if fault or frame["type"] == "task.assign" or not self._keep(frame):
                raise CheckFailed("the server sent what it should not", frame)
        expect(not self.waiting, "a task was assigned", [kept.body for kept in self.waiting])

    async def command(self, kind: str, body: object, **changes: object) -> Frame:
        """start, renew or finish: the command result in the ack (R-039)."""
        frame = await self.ask(kind, body, **changes)
        expect_equal(frame["type"], "ack", "the answer", frame)
        expect("receipt" in frame["body"], "the ack holds no command result (R-039)", frame)
        result: Frame = frame["body"]
        expect_equal(
            result["receipt"]["operation"],
            kind.rpartition(".")[2],
            "the receipt's operation",
            frame,
        )
        return result

    async def start(self, attempt: Attempt, **changes: object) -> Frame:
        return await self.command("task.start", attempt.ref, **changes)

    async def renew(self, attempt: Attempt, **changes: object) -> Frame:
        return await self.command("task.renew", attempt.ref, **changes)

    async def finish(
        self,
        attempt: Attempt,
        outcome: str = "SUCCEEDED",
        result: object = "done",
        error_code: str | None = None,
        **changes: object,
    ) -> Frame:
        return await self.command(
            "task.finish", report(attempt, outcome, result, error_code), **changes
        )

    async def resume(self, attempt: Attempt) -> Frame:
        """The lease body of the answer (R-121, R-040)."""
        frame = await self.ask("worker.resume", attempt.ref)
        expect_equal(frame["type"], "ack", "the answer", frame)
        expect("active" in frame["body"], "a resume is answered by a lease body (R-040)", frame)
        lease: Frame = frame["body"]
        return lease

    async def declare(self, sequence: int, capacity: int, drain: bool = False) -> Frame:
        """The welcome body of the answer (R-023, R-040)."""
        body = {"sequence": str(sequence), "capacity": capacity, "drain": drain}
        frame = await self.ask("worker.capacity", body)
        expect_equal(frame["type"], "ack", "the answer", frame)
        expect("session_id" in frame["body"], "the ack holds no welcome body (R-040)", frame)
        welcome: Frame = frame["body"]
        return welcome


def report(attempt: Attempt, outcome: str, result: object, error_code: str | None = None) -> Frame:
    """The body of a finish (R-035)."""
    body: Frame = {"ref": attempt.ref, "outcome": outcome, "result": result}
    return body if error_code is None else {**body, "error_code": error_code}


def unwrapped(frame: Frame) -> Frame:
    """An answer about one item, as the answer to a frame without items would be."""
    results = frame["body"].get("results") if frame["type"] == "ack" else None
    if results is None:
        return frame
    expect_equal(len(results), 1, "the number of results for one item (OP-06)", frame)
    (result,) = results
    if "error" in result:
        error = {name: item for name, item in frame.items() if name != "body"}
        return {**error, "type": "error", "error": result["error"]}
    return {**frame, "body": result}


def _why(error: ConnectionClosed) -> str:
    close = error.rcvd
    return f"{close.code} {close.reason}".strip() if close is not None else "without a close frame"
