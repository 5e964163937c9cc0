"""The socket shell: pumps frames between one WebSocket and its session core, and decides nothing.

One reader, which never stops receiving (pongs sit behind unread frames), and one writer with a
bounded queue. Commands go to the lanes with a bound method as their reply, so no task or future is
made for a frame. When the socket ends, the commands in flight are waited for, then the session is
closed in the store, which gives its unstarted leases back.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, assert_never

from gateway import limits
from gateway.commands import Commands
from gateway.hints import Hints
from gateway.lanes import Refused
from gateway.worker.actions import Close, Declare, Register, Return, Send
from gateway.worker.attempts import Ask, Command, Gathering
from gateway.worker.registration import Registrar, Registration
from gateway.worker.session import Actions, Phase, Session
from orbit_sdk.protocol import frames
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ErrorCode
from runtime import failpoints
from store.bus import CapacityLevel
from store.commands import (
    CapacityOutcome,
    CloseSession,
    CommandOutcome,
    SessionOutcome,
    SetCapacity,
)
from store.dispatch import Assignment, Intent

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Write: TypeAlias = Callable[[Message], Awaitable[None]]


class WorkerSocket:
    """One accepted upgrade, from its first frame until its session is closed in the store."""

    def __init__(
        self,
        session: Session,
        *,
        registrar: Registrar,
        commands: Commands,
        hints: Hints,
        receive: Receive,
        write: Write,
    ) -> None:
        self.session: Final = session
        self.registration: Registration | None = None
        self.ends_at = float("inf")
        """Loop time at which the session's lifetime is over (OP-15)."""
        self._registrar = registrar
        self._commands = commands
        self._hints = hints
        self._receive = receive
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._out: deque[bytes | Close] = deque()
        self._out_bytes = 0
        self._out_due: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[bool] | None = None
        self._writing_since: float | None = None
        self._full_since: float | None = None
        self._room_due: asyncio.Event | None = None
        self._registering: asyncio.Task[None] | None = None
        self._opening = False
        self._was_open = False
        self._settled: asyncio.Future[None] | None = None

    @property
    def key_id(self) -> str:
        """The credential this connection was accepted with."""
        return self._registrar.grant.key_id

    @property
    def gone(self) -> bool:
        """Whether the connection is over."""
        return self.session.phase is Phase.ENDED

    async def run(self, hello_timeout_s: float) -> None:
        """Serve the connection until it ends, then close its session in the store."""
        hello_timer = self._loop.call_later(hello_timeout_s, self._hello_late)
        reader = asyncio.create_task(self._read_frames())
        self._writer = writer = asyncio.create_task(self._write_frames())
        try:
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
            if not reader.done() and not writer.cancelled() and writer.result():
                await reader  # the close was sent: its echo or the end of the link follows
        finally:
            hello_timer.cancel()
            self.session.ended()
            tasks = [task for task in (reader, writer, self._registering) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._close_session()

    async def _close_session(self) -> None:
        """Tell the dispatchers, wait for the commands in flight, then close the session."""
        if self.registration is None:
            return
        self._hints.level_changed(self)
        if self._opening or self.session.open_commands:
            self._settled = self._loop.create_future()
            await self._settled
        self._registrar.dismiss(self)
        if self._was_open:
            command = CloseSession(self.session.session_id, "disconnected")
            self._commands.close.offer(command, _ignore)

    # --- the outside ---------------------------------------------------------------------------

    def level(self, seen: str) -> CapacityLevel | None:
        """What a dispatcher may send to this session now."""
        entry = self.registration
        if entry is None or not self._was_open:
            return None
        free = 0 if self._full_since is not None else self.session.free
        return CapacityLevel(
            self.session.session_id, entry.node_id, entry.queue_id, entry.routes, free, seen
        )

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Hand claimed tasks to the worker; never the same attempt twice."""
        self._act(self.session.assigned(assignments, self._loop.time()))
        self._hints.level_used(self)

    @property
    def room_bytes(self) -> int:
        """How much may be assigned now without the queue growing long (R-158)."""
        if self._is_full() or self._out_bytes > limits.ASSIGN_QUEUE_BYTES_LOW:
            return 0
        return limits.ASSIGN_QUEUE_BYTES_MAX - self._out_bytes

    def hold_back(self, room_due: asyncio.Event) -> None:
        """Assignments wait for room: no further dispatch until `caught_up`, and once there is room
        the event is set. Waiting for long is closed as a full queue is (R-158)."""
        self._room_due = room_due
        if self._full_since is None and self.session.phase is Phase.READY:
            self._full_since = self._loop.time()
            self._hints.level_changed(self)

    def caught_up(self) -> None:
        """Nothing waits for room any more."""
        self._room_due = None
        self._note_drained()

    def cancel(self, attempt_id: str, reason: Intent) -> None:
        """An attempt of this session is not wanted any more."""
        self._act(self.session.cancelled(attempt_id, reason))

    def release(self, attempt_id: str) -> None:
        """An attempt of this session takes no slot any more."""
        self.session.release(attempt_id)
        self._hints.level_changed(self)

    def give_back(self, attempt_id: str) -> None:
        """Return a claimed task that was never handed over, now that none may be."""
        self._act(self.session.give_back(attempt_id))

    def end(self, code: ErrorCode) -> None:
        """End the connection for a reason of the platform's."""
        self._act(self.session.end(code))

    def drain_node(self) -> None:
        """This node is leaving: no more work for this worker from here."""
        self._act(self.session.drain_node())
        self._hints.level_changed(self)

    def sweep(self, now: float) -> None:
        """What time alone brings: lapsed slots, the session's end, a queue full for too long."""
        if self.session.lapse(now):
            self._hints.level_changed(self)
        since = self._writing_since
        if since is not None and now - since > wire.WRITE_DEADLINE_S and self._writer is not None:
            # The peer takes nothing. A timer for each burst would cost more than the burst.
            self._writer.cancel()
        if now >= self.ends_at:
            self.end(ErrorCode.SESSION_EXPIRED)
        elif self._full_since is not None and now - self._full_since > wire.SEND_QUEUE_FULL_S:
            self._give_up()

    # --- reading -------------------------------------------------------------------------------

    async def _read_frames(self) -> None:
        receive, session, clock = self._receive, self.session, self._loop.time
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                return
            text = message.get("text")
            if text is None:
                self._act(session.on_binary())
            else:
                self._act(session.on_text(text, clock()))

    def _hello_late(self) -> None:
        if self.session.phase is Phase.AWAITING_HELLO:
            self.end(ErrorCode.HELLO_TIMEOUT)

    # --- actions -------------------------------------------------------------------------------

    def _act(self, actions: Actions) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._queue(action.frame)
            elif isinstance(action, Ask):
                self._ask(action)
            elif isinstance(action, Close):
                self._queue(action)
            elif isinstance(action, Declare):
                declared = partial(self._declared, action)
                if not self._commands.capacity.offer(action.command, declared):
                    declared(action.command, Refused(ErrorCode.RATE_LIMITED))
            elif isinstance(action, Return):
                self._commands.give_back.offer(action.command, _ignore)
            elif isinstance(action, Register):
                self._registering = asyncio.create_task(self._register(action.hello))
            else:
                assert_never(action)

    def _ask(self, ask: Ask) -> None:
        gathering = ask.gathering
        lane = self._commands.attempts[gathering.operation]
        for place, command in ask.commands:
            reply = partial(self._attempt_answered, gathering, place)
            if not lane.offer(command, reply):
                reply(command, Refused(ErrorCode.RATE_LIMITED))

    async def _register(self, hello: frames.HelloBody) -> None:
        found = await self._registrar.look_up(hello)
        if isinstance(found, ErrorCode):
            self._act(self.session.refused(found))
            return
        self.session.attempts.gate_id = found.gate_id
        command = found.command(self.session, hello)
        # Known to the outlet from here on: a dispatcher may be faster than our own answer.
        self._registrar.admit(self)
        self.registration = found
        self._opening = self._commands.open.offer(command, self._opened)
        if not self._opening:
            self._act(self.session.refused(ErrorCode.RATE_LIMITED))

    def _opened(self, _command: object, outcome: SessionOutcome | Refused) -> None:
        self._opening = False
        if isinstance(outcome, Refused):
            self._act(self.session.refused(outcome.code))
        else:
            now = self._loop.time()
            if outcome.expires_at is not None:
                self._was_open = True
                self.ends_at = now + (outcome.expires_at - outcome.server_time).total_seconds()
                self._registrar.opened(outcome)
            self._act(self.session.opened(outcome, now))
        self._answered(level_changed=True)

    # --- replies of the lanes ------------------------------------------------------------------

    def _attempt_answered(
        self,
        gathering: Gathering,
        place: int,
        command: Command,
        outcome: CommandOutcome | Refused,
    ) -> None:
        now = self._loop.time()
        self._act(self.session.attempt_answered(gathering, place, command, outcome, now))
        freed, gathering.freed = gathering.freed, False
        self._answered(level_changed=freed)

    def _declared(
        self, asked: Declare, _command: SetCapacity, outcome: CapacityOutcome | Refused
    ) -> None:
        self._act(self.session.capacity_answered(asked, outcome))
        self._answered(level_changed=True)

    def _answered(self, *, level_changed: bool) -> None:
        if level_changed:
            self._hints.level_changed(self)
        if (
            self._settled is not None
            and not (self._opening or self.session.open_commands)
            and not self._settled.done()
        ):
            self._settled.set_result(None)

    # --- writing -------------------------------------------------------------------------------

    def _queue(self, item: bytes | Close) -> None:
        self._out.append(item)
        if isinstance(item, bytes):
            self._out_bytes += len(item)
        due = self._out_due
        if due is not None and not due.done():
            due.set_result(None)
        if len(self._out) > limits.SEND_FRAMES_MAX or self._out_bytes > limits.SEND_BYTES_MAX:
            self._give_up()
        elif self._writing_since is not None and self._full_since is None and self._is_full():
            # The writer waits for the socket, and this much waits for the writer.
            self._full_since = self._loop.time()
            self._hints.level_changed(self)

    def _is_full(self) -> bool:
        return (
            len(self._out) >= wire.SEND_QUEUE_FRAMES_MAX
            or self._out_bytes >= wire.SEND_QUEUE_BYTES_MAX
        )

    def _give_up(self) -> None:
        """A slow consumer: drop what waits, say why, close (R-158)."""
        self._out.clear()
        self._out_bytes = 0
        self.end(ErrorCode.SLOW_CONSUMER)

    async def _write_frames(self) -> bool:
        """Write until a close was written (True) or the peer takes nothing more (False)."""
        out = self._out
        while True:
            if not out:
                self._out_due = self._loop.create_future()
                await self._out_due
                self._out_due = None
            try:
                if await self._write_burst(out):
                    return True
            except OSError:  # the peer is gone
                return False
            self._writing_since = None
            self._note_drained()

    def _note_drained(self) -> None:
        """Full no more? While assignments wait for room, only an empty queue says so: the reader
        has then done its part, and it is the store that is waited for."""
        is_awaited = self._room_due is not None and len(self._out) > 0
        if self._full_since is None or self._is_full() or is_awaited:
            return
        self._full_since = None
        self._hints.level_changed(self)

    async def _write_burst(self, out: deque[bytes | Close]) -> bool:
        """Write what waits now, at most a full queue of it; True after a close."""
        for _ in range(min(len(out), wire.SEND_QUEUE_FRAMES_MAX)):
            if not out:
                break
            item = out.popleft()
            self._writing_since = self._loop.time()
            if isinstance(item, Close):
                await self._write(
                    {"type": "websocket.close", "code": item.code, "reason": item.reason}
                )
                return True
            self._out_bytes = max(0, self._out_bytes - len(item))
            if failpoints.armed and not await failpoints.passes("gateway.frame.before"):
                continue
            await self._write({"type": "websocket.send", "text": item.decode()})
            if self._room_due is not None and self.room_bytes:
                self._room_due.set()
            if failpoints.armed:
                await failpoints.reach("gateway.frame.after")
        return False


def _ignore(_command: object, _outcome: object) -> None:
    """Nobody waits for this answer."""
