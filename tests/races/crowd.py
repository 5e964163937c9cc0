"""Many bare workers of pulse.worker.v2 in the test's loop, each with a book of what it was told.

Written from the contract alone, without the SDK. A member starts what it is given, renews it once,
holds it for a while and reports it; it never leaves by itself. Connected again, wherever that is,
it resumes what it holds and repeats, under the same message id, what nobody has answered.
"""

import asyncio
import contextlib
import functools
import json
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import picows
from picows import WSFrame, WSListener, WSMsgType, WSTransport

from devcluster.processes import LOOPBACK
from orbit_sdk import AsyncClient
from tests.races.arena import QUEUE, Arena
from tests.waiting import wait_until

HANDLER = "crowd"
JOIN_S = 30.0
KEEPERS = 8


@dataclass
class Held:
    """One assignment of a member."""

    ref: dict[str, str]
    running: bool = False
    due: bool = False
    finishing: bool = False


@dataclass
class Asked:
    """A command that waits for its answer."""

    kind: str
    item: dict[str, Any]
    held: Held


class Member(WSListener):
    """One worker instance; its connections come and go."""

    def __init__(self, crowd: "Crowd", place: int, silent: bool = False) -> None:
        self.place = place
        self.silent = silent
        self.ignored = 0
        self.given = 0
        """Assignments of this session."""
        self.port = 0
        self.held: dict[str, Held] = {}
        self.unanswered: dict[str, Asked] = {}
        self.receipts: dict[str, dict[str, Any]] = {}
        self.errors: Counter[str] = Counter()
        self.closes: list[tuple[int, str]] = []
        self.drained = False
        self.assigned_after_drain = 0
        self.session_id = ""
        self._crowd = crowd
        self._frames: dict[str, list[str]] = {}
        self._transport: WSTransport | None = None
        self._close: tuple[int, str] = (1006, "")
        self._hello: dict[str, Any] = {
            "instance_id": secrets.token_hex(16),
            "instance_secret": secrets.token_urlsafe(32),
            "queue_id": crowd.queue_id,
            "capabilities": [{"handler": HANDLER, "handler_version": "1", "payload_version": "1"}],
            "capacity": crowd.capacity,
        }

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def disconnect(self) -> None:
        """Cut the connection, if there is one."""
        if self._transport is not None:
            self._transport.disconnect()

    @property
    def welcome(self) -> bool:
        """Whether it has a session now."""
        return bool(self.session_id)

    def proof(self) -> dict[str, str]:
        """What proves without a session that it is this instance."""
        return {name: self._hello[name] for name in ("instance_id", "instance_secret")}

    async def connect(self, port: int) -> None:
        """Have a connection and say hello. Raises OSError and picows' own errors."""
        self.port = port
        await picows.ws_connect(
            functools.partial(_same, self),
            f"ws://{LOOPBACK}:{port}/v1/worker/connect",
            extra_headers={
                "Authorization": f"Bearer {self._crowd.credential}",
                "Sec-WebSocket-Protocol": "pulse.worker.v2",
            },
        )

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._close = (1006, "")
        self.drained = False
        self._send("worker.hello", self._hello)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self.session_id = ""
        self.given = 0
        self._frames.clear()
        self.closes.append(self._close)
        self._crowd.gone.put_nowait(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.CLOSE:
            reason = frame.get_close_reason() or ""
            self._close = (frame.get_close_code().value, reason)
            transport.send_close(frame.get_close_code())
            transport.disconnect()
        elif frame.msg_type == WSMsgType.TEXT:
            self._heard(json.loads(frame.get_payload_as_bytes()))

    # --- what the gateway says -------------------------------------------------------------------

    def _heard(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "worker.welcome":
            self.session_id = frame["session_id"]
            self._resume()
        elif kind == "task.assign" and self.silent:
            self.ignored += len(frame["body"]["assignments"])
        elif kind == "task.assign":
            self.given += len(frame["body"]["assignments"])
            self.assigned_after_drain += self.drained * len(frame["body"]["assignments"])
            self._ask("task.start", [self._take(given) for given in frame["body"]["assignments"]])
        elif kind == "worker.drain":
            self.drained = True
        elif kind == "ack" and frame["reply_to"] in self._frames:
            asked = self._frames.pop(frame["reply_to"])
            for message_id, result in zip(asked, frame["body"]["results"], strict=True):
                self._answered(message_id, result)
        elif kind == "error":
            self.errors[frame["error"]["code"]] += 1

    def _take(self, given: dict[str, Any]) -> Held:
        names = ("attempt_id", "epoch", "lease_secret")
        ref = {"task_id": given["task"]["id"], **{name: given[name] for name in names}}
        held = self.held[ref["attempt_id"]] = Held(ref)
        return held

    def _answered(self, message_id: str, result: dict[str, Any]) -> None:
        asked = self.unanswered.pop(message_id)
        held = asked.held
        if "error" in result:
            self.errors[f"{asked.kind} {result['error']['code']}"] += 1
        elif asked.kind != "worker.resume":
            self.receipts[message_id] = result["receipt"]
        lease = result if asked.kind == "worker.resume" else result.get("lease", {})
        is_ours = lease.get("active", False) and lease["state"] == "RUNNING"
        if asked.kind == "task.finish" or not (is_ours or held.finishing or self._waits(held)):
            self.held.pop(held.ref["attempt_id"], None)
        elif is_ours and not held.running:
            held.running = True
            self._crowd.started += 1
            self._ask("task.renew", [held])
            loop = asyncio.get_running_loop()
            loop.call_later(self._crowd.dice.uniform(0, self._crowd.hold_s), self._is_due, held)

    def _waits(self, held: Held) -> bool:
        """Whether an answer about this attempt is still to come."""
        return any(asked.held is held for asked in self.unanswered.values())

    # --- what the member says --------------------------------------------------------------------

    def _is_due(self, held: Held) -> None:
        held.due = True
        if self.welcome and held.ref["attempt_id"] in self.held:
            self._finish([held])

    def _finish(self, held: list[Held]) -> None:
        for each in held:
            each.finishing = True
        self._ask("task.finish", held)

    def _resume(self) -> None:
        """On a new session: what was given and not started is gone, the rest is taken up again."""
        waiting = [asked for asked in self.unanswered.values() if asked.kind != "worker.resume"]
        self.unanswered = {asked.item["message_id"]: asked for asked in waiting}
        keep = [held for held in self.held.values() if held.running or self._waits(held)]
        self.held = {held.ref["attempt_id"]: held for held in keep}
        if keep:
            self._ask("worker.resume", keep)
        for kind in ("task.start", "task.renew", "task.finish"):
            again = [asked for asked in waiting if asked.kind == kind]
            if again:
                self._send_items(kind, [asked.item for asked in again])
        late = [held for held in keep if held.due and not held.finishing]
        if late:
            self._finish(late)

    def _ask(self, kind: str, held: Iterable[Held]) -> None:
        items = []
        for each in held:
            item: dict[str, Any] = {"message_id": secrets.token_hex(16)}
            if kind == "task.finish":
                item |= {"ref": each.ref, "outcome": "SUCCEEDED", "result": self.place}
            else:
                item |= each.ref
            self.unanswered[item["message_id"]] = Asked(kind, item, each)
            items.append(item)
        self._send_items(kind, items)

    def _send_items(self, kind: str, items: Sequence[dict[str, Any]]) -> None:
        frame_id = self._send(kind, {"items": items})
        self._frames[frame_id] = [item["message_id"] for item in items]

    def _send(self, kind: str, body: object) -> str:
        frame = {"protocol_version": "2", "type": kind, "message_id": secrets.token_hex(16)}
        if self.session_id:
            frame["session_id"] = self.session_id
        if self._transport is not None:
            self._transport.send(WSMsgType.TEXT, json.dumps(frame | {"body": body}).encode())
        return frame["message_id"]


@dataclass
class Crowd:
    """All members."""

    queue_id: str
    credential: str
    capacity: int
    hold_s: float
    dice: random.Random
    members: list[Member] = field(default_factory=list)
    started: int = 0
    gone: "asyncio.Queue[Member]" = field(default_factory=asyncio.Queue)

    async def join(self, count: int, ports: Sequence[int], silent: bool = False) -> None:
        """So many more members, spread over these gateways.

        Silent ones start nothing of what they are given, and never come back.
        """
        new = [Member(self, len(self.members) + place, silent) for place in range(count)]
        self.members += new
        for start in range(0, count, 25):
            some = new[start : start + 25]
            await asyncio.gather(*(m.connect(ports[m.place % len(ports)]) for m in some))
        await self.all_welcome()

    async def all_welcome(self) -> None:
        """Wait until each has a session."""
        await wait_until(self._outside, lambda count: count == 0, JOIN_S)

    async def _outside(self) -> int:
        return sum(not member.welcome for member in self.members)

    async def all_gone(self, timeout_s: float) -> None:
        """Wait until no connection is left."""

        async def inside() -> int:
            return sum(member.connected for member in self.members)

        await wait_until(inside, lambda count: count == 0, timeout_s)

    @asynccontextmanager
    async def kept_connected(self, ports: Sequence[int]) -> AsyncIterator[None]:
        """Whoever lost its connection, now or before, has another one at once."""
        keepers = [asyncio.create_task(self._keep(ports)) for _ in range(KEEPERS)]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _keep(self, ports: Sequence[int]) -> None:
        while True:
            member = await self.gone.get()
            if member.silent:
                continue
            await member.connect(ports[member.place % len(ports)])

    async def at_rest(self, timeout_s: float = 60.0) -> None:
        """Wait until nobody holds anything or waits for an answer."""

        async def busy() -> int:
            return sum(bool(m.held or m.unanswered) for m in self.members)

        await wait_until(busy, lambda count: count == 0, timeout_s)

    async def until_ignored(self) -> None:
        """Wait until each silent member has been given something."""

        async def without() -> int:
            return sum(member.silent and not member.ignored for member in self.members)

        await wait_until(without, lambda count: count == 0, JOIN_S)

    async def until_started(self, count: int) -> None:
        """Wait until so many tasks have been started, by the answers."""

        async def begun() -> int:
            return self.started

        await wait_until(begun, lambda found: found >= count, 60)

    async def all_due(self) -> None:
        """Wait until whatever runs has been reported, though perhaps not answered."""

        async def running() -> int:
            held = [each for member in self.members for each in member.held.values()]
            return sum(each.running and not each.finishing for each in held)

        await wait_until(running, lambda count: count == 0, 2 * self.hold_s + JOIN_S)

    def receipts(self) -> dict[str, dict[str, Any]]:
        """Every answer that any member was given, by message id."""
        return {key: told for member in self.members for key, told in member.receipts.items()}

    def leave(self) -> None:
        for member in self.members:
            member.disconnect()


@asynccontextmanager
async def crowd_of(
    arena: Arena, seed: int, capacity: int = 2, hold_s: float = 0.2
) -> AsyncIterator[Crowd]:
    """A crowd that is still to join; it leaves at the end."""
    async with AsyncClient(arena.cluster.url, arena.credential, timeout_s=30) as client:
        queue = await client.queue(QUEUE)
    crowd = Crowd(queue.id, arena.credential, capacity, hold_s, random.Random(seed))
    try:
        yield crowd
    finally:
        crowd.leave()
        with contextlib.suppress(TimeoutError):
            await crowd.all_gone(JOIN_S)


async def answers_agree(arena: Arena, crowd: Crowd, *, thawed: bool = False) -> None:
    """What the store committed, its worker was told, and the other way round (INV-7, INV-8).

    A node that was frozen for long has been given up; once thawed it ends its sessions as expired.
    """
    receipts = crowd.receipts()
    applied = {key for key, told in receipts.items() if told["disposition"] == "APPLIED"}
    rows = await arena.fetch(
        "SELECT replace(m::text, '-', '') AS id FROM attempt,"
        " unnest(ARRAY[start_message_id, finish_message_id]) m WHERE m IS NOT NULL"
        " UNION SELECT replace(message_id::text, '-', '') FROM receipt"
        " WHERE disposition = 'APPLIED'"
    )
    assert {row["id"] for row in rows} == applied
    refused = Counter[str]()
    for member in crowd.members:
        refused += member.errors
    usual = {"draining", "worker.resume attempt_not_found"}
    assert set(refused) <= usual | ({"session_expired"} if thawed else set()), refused


def _same(member: Member) -> Member:
    return member
