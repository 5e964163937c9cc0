"""Asks the owner's credential function, which may block, fail, or never return.

Between a worker's loops and code that is not ours. Promises: no loop waits in that code, nobody
waits longer than CREDENTIAL_TIMEOUT_S, and a call that hangs costs its own thread and no later try.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context

from orbit_sdk.errors import OrbitError, Unavailable
from orbit_sdk.worker.limits import CREDENTIAL_CALLS_MAX, CREDENTIAL_TIMEOUT_S


class CredentialSource:
    """Any loop may ask. A call has a thread of its own, which ends with the process at the latest:
    one that hangs must not keep a worker from ending."""

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask
        self._places = threading.BoundedSemaphore(CREDENTIAL_CALLS_MAX)

    async def now(self) -> str:
        """The credential to present now. Raises the OrbitError of the function, or Unavailable when
        it raised anything else or has not returned in time; then it may be asked again."""
        if not self._places.acquire(blocking=False):
            raise _none(f"{CREDENTIAL_CALLS_MAX} calls of the credential function still hang")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str | OrbitError] = loop.create_future()
        call = copy_context().run
        threading.Thread(
            target=call, args=(self._call, loop, answer), name="orbit-credential", daemon=True
        ).start()
        try:
            async with asyncio.timeout(CREDENTIAL_TIMEOUT_S):
                found = await answer
        except TimeoutError:
            text = f"the credential function has not returned within {CREDENTIAL_TIMEOUT_S:g} s"
            raise _none(text) from None
        if isinstance(found, OrbitError):
            raise found
        return found

    def _call(
        self, loop: asyncio.AbstractEventLoop, answer: "asyncio.Future[str | OrbitError]"
    ) -> None:
        found: str | OrbitError
        try:
            found = self._ask()
        except OrbitError as error:
            found = error
        except BaseException as error:
            found = _none(f"the credential function raised {type(error).__name__}: {error}")
        finally:
            self._places.release()
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(_settle, answer, found)


def _settle(answer: "asyncio.Future[str | OrbitError]", found: str | OrbitError) -> None:
    if not answer.done():
        answer.set_result(found)


def _none(text: str) -> Unavailable:
    return Unavailable("no_credential", text, retryable=True)
