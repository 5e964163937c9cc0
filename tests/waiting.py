"""Waiting for what a real cluster will have done: asked again and again until a deadline.

The only place where a test sleeps, and no test depends on how long: a state that is reached ends
the wait, a state that is never reached fails the test.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05


async def wait_until(
    ask: Callable[[], Awaitable[T]],
    accept: Callable[[T], bool],
    timeout_s: float,
    poll_s: float = POLL_S,
) -> T:
    """The first accepted answer. Raises TimeoutError, naming the last answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    answer = await ask()
    while not accept(answer):
        if loop.time() > deadline:
            raise TimeoutError(f"the last answer was {answer!r}")
        await asyncio.sleep(poll_s)
        answer = await ask()
    return answer
