"""A thread of its own that keeps one worker connected: it pumps frames and timers, and decides
nothing that the session core can decide.

Renewals, pings and stop boundaries run here, so that no handler can delay them (R-157). Reconnects
for ever, with capped and jittered waits (R-153); the credential is asked for anew each time.
"""

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Any, assert_never

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from orbit_sdk.address import worker_url
from orbit_sdk.errors import OrbitError, Unavailable
from orbit_sdk.protocol.errors import CloseCode
from orbit_sdk.protocol.frames import FrameError
from orbit_sdk.protocol.limits import FRAME_BYTES_MAX, LEASE_MS_MAX, PING_INTERVAL_S
from orbit_sdk.upgrade import Upgrade
from orbit_sdk.worker.courier import Courier
from orbit_sdk.worker.dialect import DIALECTS, Dialect
from orbit_sdk.worker.effects import (
    Effect,
    Leave,
    Noted,
    Run,
    Send,
    Settled,
    Stop,
    Welcomed,
)
from orbit_sdk.worker.handoff import Handoff
from orbit_sdk.worker.limits import (
    CLOSE_TIMEOUT_S,
    OPEN_TIMEOUT_S,
    OUTBOX_FRAMES_MAX,
    READ_AHEAD_FRAMES,
    SESSION_PROVEN_S,
    WRITE_DEADLINE_S,
    connect_backoff,
)
from orbit_sdk.worker.outcomes import Report
from orbit_sdk.worker.refusals import handshake_error, hello_error, is_final
from orbit_sdk.worker.relay import Parcel, look_after_s, patience_s
from orbit_sdk.worker.runner import Runner
from orbit_sdk.worker.session import SessionCore

_SPOKEN = {Subprotocol(dialect.subprotocol): dialect for dialect in DIALECTS}

_log = logging.getLogger("orbit_sdk.worker")


class Connection:
    """Owns the session core: nothing else touches it once `start` was called.

    `ended` is called once, from this thread, with what ended it: None after a drain or `close`, or
    the OrbitError with which the cluster refused a worker that it had never welcomed.
    """

    def __init__(
        self,
        core: SessionCore,
        url: str,
        credential: Callable[[], Awaitable[str]],
        runner: Runner,
        ended: Callable[[OrbitError | None], None],
    ) -> None:
        self._core = core
        self._url = url
        self._credential = credential
        self._runner = runner
        self._ended = ended
        self._thread = threading.Thread(target=self._main, name="orbit-worker-io", daemon=True)
        self._outbox: deque[bytes] = deque()
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._left: Leave | None = None
        self._welcomed_at = inf
        self._welcomed = False
        self._failure: OrbitError | None = None
        self._lease_s = LEASE_MS_MAX / 1000

    # From any thread

    def start(self) -> None:
        """Start connecting; returns once the thread takes calls."""
        ready = threading.Event()
        self._ready = ready
        self._thread.start()
        ready.wait()

    def finished(self, attempt_id: str, report: Report | None) -> None:
        """A handler ended; None abandons its attempt."""
        with suppress(RuntimeError):  # The connection has ended already.
            self._endings.put((attempt_id, report))

    def drain(self) -> None:
        """Take no new task; end once nothing is held any more."""
        self._call(lambda: self._apply(self._core.drain(time.monotonic())))

    def stop(self) -> None:
        """Drain, and stop the handlers that run."""
        self._call(lambda: self._apply(self._core.stop(time.monotonic())))

    def close(self) -> None:
        """End now, whatever is held."""
        self._call(lambda: self._closing.set())

    def join(self) -> None:
        """Wait for the thread, which has nothing left to do once `ended` was called."""
        self._thread.join()

    def _call(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # The connection has ended already.
            self._loop.call_soon_threadsafe(act)

    # In the thread

    def _main(self) -> None:
        try:
            asyncio.run(self._stay_connected())
        except OrbitError as error:
            self._failure = error
        except BaseException as error:
            _log.exception("the worker's connection failed")
            self._failure = Unavailable("worker_failed", f"internal failure: {error!r}")
        finally:
            self._ready.set()
            self._ended(self._failure)

    async def _stay_connected(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._broken)
        self._endings = Handoff(self._loop, self._handler_ended)
        self._closing = asyncio.Event()
        self._leaving = asyncio.Event()
        self._to_write = asyncio.Event()
        self._ready.set()
        relaying = asyncio.create_task(self._relay())
        relaying.add_done_callback(self._relay_ended)
        try:
            await self._connect_again_and_again()
        finally:
            relaying.cancel()
            await asyncio.wait([relaying])

    async def _connect_again_and_again(self) -> None:
        tries = 0
        while not self._closing.is_set():
            self._welcomed_at = inf
            trouble = await self._one_connection()
            self._outbox.clear()
            self._apply(self._core.closed())
            if self._closing.is_set():
                return
            proven = time.monotonic() - self._welcomed_at >= SESSION_PROVEN_S
            tries = 1 if proven else tries + 1
            backoff = connect_backoff(self._core.held, self._lease_s)
            wait_s = backoff.delay_s(tries, random.random())
            _log.warning("disconnected (%s); connecting again in %.1f s", trouble, wait_s)
            await self._pause(wait_s)

    def _broken(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed, so nobody may rely on this thread any more: end it, and the work."""
        error = context.get("exception")
        _log.error("in the worker's connection: %s", context["message"], exc_info=error)
        if "handle" not in context:
            return  # Not one of our callbacks: a socket that ended badly, which `_serve` sees too.
        self._failure = Unavailable("worker_failed", f"internal failure: {error!r}")
        self._closing.set()

    async def _relay(self) -> None:
        """Look now and then for what the socket does not serve, and post it over HTTP."""
        courier = Courier(self._url, self._credential)
        try:
            async with asyncio.TaskGroup() as posts:
                while True:
                    await asyncio.sleep(look_after_s(self._lease_s))
                    for parcel in self._core.look_for_relays(time.monotonic()):
                        posts.create_task(self._post(courier, parcel))
        finally:
            await courier.close()

    async def _post(self, courier: Courier, parcel: Parcel) -> None:
        results = await courier.post(parcel, patience_s(self._lease_s))
        self._apply(self._core.relayed(parcel, results, time.monotonic()))

    def _relay_ended(self, relaying: "asyncio.Task[None]") -> None:
        if not relaying.cancelled() and (error := relaying.exception()) is not None:
            context = {"message": "the relay failed", "exception": error, "handle": None}
            self._broken(self._loop, context)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def _one_connection(self) -> str:
        """Connect and serve until the connection ends; why it did. Raises a final refusal."""
        try:
            credential = await self._credential()
            async with Upgrade(
                worker_url(self._url),
                subprotocols=list(_SPOKEN),
                additional_headers={"Authorization": f"Bearer {credential}"},
                compression=None,
                max_size=FRAME_BYTES_MAX,
                max_queue=READ_AHEAD_FRAMES,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_INTERVAL_S,
                user_agent_header=None,
            ) as socket:
                if socket.subprotocol is None:
                    return f"the server speaks none of {', '.join(_SPOKEN)}"
                return await self._serve(socket, _SPOKEN[socket.subprotocol])
        except InvalidStatus as error:
            return self._refused(handshake_error(self._url, error))
        except (OSError, TimeoutError, WebSocketException, EOFError) as error:
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        except OrbitError as error:
            return self._refused(error)

    def _refused(self, error: OrbitError) -> str:
        """A final refusal ends a worker that was never welcome; any other tries again for ever,
        since what it holds is worth more than an early end."""
        if not self._welcomed and is_final(error):
            raise error
        return str(error)

    async def _serve(self, socket: ClientConnection, dialect: Dialect) -> str:
        self._left = None
        self._leaving.clear()
        self._apply(self._core.opened(dialect, time.monotonic()))
        parts = {
            asyncio.create_task(part)
            for part in (
                self._read(socket, dialect),
                self._write(socket),
                self._leaving.wait(),
                self._closing.wait(),
            )
        }
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            results = await asyncio.gather(*parts, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(
                result, ConnectionClosed | TimeoutError | OSError
            ):
                raise result
        return await self._close(socket)

    async def _close(self, socket: ClientConnection) -> str:
        """Close politely, and say why the connection ended."""
        left = self._left
        if left is not None:
            await socket.close(CloseCode.NORMAL, left.code[:100])
            return (
                self._refused(hello_error(left)) if left.final else f"{left.code}: {left.message}"
            )
        await socket.close(CloseCode.NORMAL if self._closing.is_set() else CloseCode.GOING_AWAY)
        return f"closed with {socket.close_code} {socket.close_reason or ''}".rstrip()

    async def _read(self, socket: ClientConnection, dialect: Dialect) -> None:
        while True:
            data = await socket.recv(decode=False)
            try:
                event = dialect.read(data)
            except FrameError as error:
                # Never guess at what a server means: a new session starts clean.
                _log.error("the server sent a frame that is none: %s", error.reason)
                self._apply([Leave("bad_frame", error.reason)])
                return
            self._apply(self._core.received(event, time.monotonic()))

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            while self._outbox:
                async with asyncio.timeout(WRITE_DEADLINE_S):
                    await socket.send(self._outbox.popleft(), text=True)
            self._to_write.clear()
            await self._to_write.wait()

    def _handler_ended(self, ending: tuple[str, Report | None]) -> None:
        attempt_id, report = ending
        now = time.monotonic()
        if report is None:
            self._apply(self._core.abandoned(attempt_id, now))
        else:
            self._apply(self._core.finished(attempt_id, report, now))

    def _ticked(self) -> None:
        self._timer = None
        self._timer_at = inf
        self._apply(self._core.tick(time.monotonic()))

    def _apply(self, effects: list[Effect]) -> None:
        """Carry out what the core decided, then set the timer and see whether all is done."""
        for effect in effects:
            self._carry_out(effect)
        if self._core.unsent and not self._flush_due:
            # What else this turn of the loop brings travels in the same frames.
            self._flush_due = True
            self._loop.call_soon(self._flush)
        due = self._core.next_due()
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._ticked)
        if self._core.draining and self._core.held == 0:
            self._closing.set()

    def _flush(self) -> None:
        self._flush_due = False
        self._apply(self._core.flush())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(frame):
                self._outbox.append(frame)
                self._to_write.set()
                if len(self._outbox) > OUTBOX_FRAMES_MAX:
                    self._left = Leave("slow_server", "the server does not read")
                    self._leaving.set()
            case Run():
                self._runner.begin(effect)
            case Stop(attempt_id, reason):
                _log.warning("stopping attempt %s: %s", attempt_id, reason.value)
                self._runner.stop(attempt_id, reason)
            case Settled(attempt_id, applied, detail):
                level = logging.DEBUG if applied else logging.WARNING
                _log.log(level, "attempt %s is settled: %s", attempt_id, detail)
            case Welcomed(session_id, lease_s, draining):
                self._welcomed = True
                self._lease_s = lease_s
                self._welcomed_at = time.monotonic()
                _log.info(
                    "session %s is ready (lease %.1f s, draining %s)", session_id, lease_s, draining
                )
            case Leave():
                self._left = effect
                self._leaving.set()
            case Noted(what, attempt_id):
                _log.warning("%s%s", what, f" (attempt {attempt_id})" if attempt_id else "")
            case _:
                assert_never(effect)
