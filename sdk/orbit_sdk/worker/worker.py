"""`Worker`: handlers by name, and the life of the process that runs them.

worker = Worker(queue="default", capacity=8)

@worker.handler("mail.send")
async def send(mail: Mail, ctx: TaskContext) -> dict[str, str]: ...

worker.run()
"""

import asyncio
import logging
import random
import secrets
import signal
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from orbit_sdk.address import cluster_url, credential_text
from orbit_sdk.client.async_client import AsyncClient
from orbit_sdk.errors import OrbitError
from orbit_sdk.protocol.ids import IdSource
from orbit_sdk.protocol.limits import CAPACITY_MAX
from orbit_sdk.worker.connection import Connection
from orbit_sdk.worker.credential import CredentialSource
from orbit_sdk.worker.handlers import HandlerFunction, Registry
from orbit_sdk.worker.limits import CONNECT_BACKOFF, DRAIN_GRACE_S, SETTLE_TIMEOUT_S
from orbit_sdk.worker.outcomes import Report
from orbit_sdk.worker.refusals import is_final
from orbit_sdk.worker.runner import Runner
from orbit_sdk.worker.session import Identity, SessionCore

EXIT_CLEAN = 0
EXIT_WORK_LEFT = 1

_log = logging.getLogger("orbit_sdk.worker")

F = TypeVar("F", bound=HandlerFunction)


class Worker:
    """Takes tasks of one queue and runs them, `capacity` at a time at most.

    `url` and `credential` default to ORBIT_URL and ORBIT_CREDENTIAL when the worker starts;
    `credential` may be a function, asked before every connect, so that it can hand out a fresh one;
    one that raises, or has not returned in ten seconds, is asked again after a while. `grace_s` is
    what a drain gives to running handlers. `name` is for your logs.
    """

    def __init__(
        self,
        url: str | None = None,
        credential: str | Callable[[], str] | None = None,
        queue: str = "default",
        capacity: int = 8,
        name: str | None = None,
        *,
        grace_s: float = DRAIN_GRACE_S,
    ) -> None:
        self.url = url
        self.credential = credential
        self.queue = queue
        self.capacity = capacity
        self.name = name or "worker"
        self.grace_s = grace_s
        self._registry = Registry()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_wanted = asyncio.Event()
        self._stop_wanted = asyncio.Event()

    def handler(
        self, name: str, version: str = "1", payload_version: str = "1"
    ) -> Callable[[F], F]:
        """Register the decorated function, asyncio or blocking, for one kind of task.

        It takes the payload, a TaskContext, both or neither; the payload is converted to its
        annotation, and one that does not fit fails the task as `invalid_input` without a call. What
        it returns is the result; None travels as `{}`. It may raise TaskFailed or TaskUnknown;
        any other exception fails the attempt as `handler_error`. Raises ValueError or TypeError.
        """

        def register(function: F) -> F:
            return self._registry.add(name, version, payload_version, function)

        return register

    def run(self) -> int:
        """Run until SIGTERM or SIGINT, then drain; a second signal stops hard.

        Returns 0 after a clean drain and 1 if work was left to its lease. Raises an OrbitError if
        the cluster refuses the worker at first; later on it reconnects for ever.
        """
        return asyncio.run(self._run())

    async def serve(self) -> int:
        """As `run`, on the caller's loop and without signal handlers: end it with `stop`.

        Cancelling it stops hard: handlers are stopped, and what they confirm in time is kept.
        """
        if not 1 <= self.capacity <= CAPACITY_MAX:
            raise ValueError(f"capacity is {self.capacity}; 1 to {CAPACITY_MAX} is possible")
        if not self._registry.routes():
            raise ValueError("the worker has no handlers; register one with @worker.handler(name)")
        self._loop = asyncio.get_running_loop()
        self._drain_wanted, self._stop_wanted = asyncio.Event(), asyncio.Event()
        credentials = CredentialSource(self.credential_now)
        queue_id = await self._queue_id(credentials)
        if queue_id is None:
            return EXIT_CLEAN
        return await _Service(self, queue_id, credentials, self._registry).run(
            self._drain_wanted, self._stop_wanted
        )

    def stop(self) -> None:
        """Drain; a second call stops hard. From any thread, once `serve` or `run` has begun."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop is closed: all has ended.
                self._loop.call_soon_threadsafe(self._stop_step)

    def _stop_step(self) -> None:
        wanted = self._stop_wanted if self._drain_wanted.is_set() else self._drain_wanted
        wanted.set()

    def credential_now(self) -> str:
        """The credential to present now. Raises Unauthorized if there is none."""
        given = self.credential
        return credential_text(given() if callable(given) else given)

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        self._loop = loop
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not available on every platform, nor outside the main thread.
            with suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, self._signalled, number)
        return await self.serve()

    def _signalled(self, number: int) -> None:
        if self._drain_wanted.is_set():
            _log.warning("%s again: stopping now", signal.Signals(number).name)
        else:
            _log.warning(
                "%s: draining, %g s for what runs; again to stop now",
                signal.Signals(number).name,
                self.grace_s,
            )
        self._stop_step()

    async def _queue_id(self, credentials: CredentialSource) -> str | None:
        """The queue's id, asked for until a gateway answers; None if told to stop before."""
        tries = 0
        while not self._drain_wanted.is_set():
            try:
                async with AsyncClient(self.url, await credentials.now()) as client:
                    return (await client.queue(self.queue)).id
            except OrbitError as error:
                if is_final(error):
                    raise
                tries += 1
                _log.warning("cannot ask for queue %s yet: %s", self.queue, error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(CONNECT_BACKOFF.delay_s(tries, random.random())):
                        await self._drain_wanted.wait()
        return None


class _Service:
    """One run of a worker: a connection, a runner, and how both come to an end."""

    def __init__(
        self, worker: Worker, queue_id: str, credentials: CredentialSource, registry: Registry
    ) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[OrbitError | None] = self._loop.create_future()
        ids = IdSource(lambda: time.time_ns() // 1_000_000, secrets.token_bytes)
        secret = urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        identity = Identity(ids.next(), secret, queue_id, registry.routes())
        self._core = SessionCore(identity, worker.capacity, ids.next, random.random)
        self._runner = Runner(self._loop, registry, worker.capacity, self._handler_ended)
        self._connection = Connection(
            self._core,
            cluster_url(worker.url),
            credentials.now,
            self._runner,
            self._connection_ended,
        )

    async def run(self, drain_wanted: asyncio.Event, stop_wanted: asyncio.Event) -> int:
        self._connection.start()
        try:
            await self._first(drain_wanted)
            if not self._ended.done():
                self._connection.drain()
                await self._first(stop_wanted, timeout_s=self._worker.grace_s)
        finally:
            # Reached with handlers left by a hard stop, an expired grace or a cancellation.
            if not self._ended.done():
                self._connection.stop()
                await asyncio.wait({self._ended}, timeout=SETTLE_TIMEOUT_S)
            if not self._ended.done():
                self._connection.close()
                await self._ended
            self._connection.join()
            idle = self._runner.close()
        failure = self._ended.result()
        if failure is not None:
            raise failure
        return EXIT_CLEAN if idle and self._core.held == 0 else EXIT_WORK_LEFT

    async def _first(self, event: asyncio.Event, timeout_s: float | None = None) -> None:
        """Wait until the connection has ended, the event is set or the time is over."""
        waiter = asyncio.ensure_future(event.wait())
        try:
            either: set[asyncio.Future[Any]] = {waiter, self._ended}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()

    def _handler_ended(self, attempt_id: str, report: Report | None) -> None:
        self._connection.finished(attempt_id, report)

    def _connection_ended(self, failure: OrbitError | None) -> None:
        with suppress(RuntimeError):  # The loop was closed under us: nobody waits any more.
            self._loop.call_soon_threadsafe(self._set_ended, failure)

    def _set_ended(self, failure: OrbitError | None) -> None:
        if not self._ended.done():
            self._ended.set_result(failure)
