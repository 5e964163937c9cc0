"""A narrow gate in front of the store that opens when the calls behind it take long.

Where: between the lanes of starts, finishes, resumes and levels, and their connections. While the
store is quick as many calls as are useful are in it at once, first come first. While it is slow to
commit, which costs it no processor, a call that has waited `patience_s` goes beside them (B-04).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Lets `usual` calls through at once, and each further one after `patience_s`."""

    def __init__(self, usual: int, patience_s: float) -> None:
        self._places = asyncio.Semaphore(usual)
        self._patience_s = patience_s

    @asynccontextmanager
    async def passed(self) -> AsyncIterator[None]:
        """Inside, the call may go on. One that lost patience takes nobody's place."""
        is_in_place = await self._take_place()
        try:
            yield
        finally:
            if is_in_place:
                self._places.release()

    async def _take_place(self) -> bool:
        try:
            async with asyncio.timeout(self._patience_s):
                return await self._places.acquire()
        except TimeoutError:
            return False
