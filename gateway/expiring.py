"""A bounded cache of reads whose answers may be a little old.

Under the credential and queue look-ups. Found values are believed for a time, though no longer
than they say themselves; absent ones are not kept. Concurrent reads of one key share one call; the
oldest reads leave first.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """Values by key, each good for `ttl_s` after it was read, or for `left_s` if that is less."""

    def __init__(
        self,
        read: Callable[[K], Awaitable[V | None]],
        *,
        ttl_s: float,
        entries_max: int,
        left_s: Callable[[V], float] = lambda _: math.inf,
    ) -> None:
        """`left_s` tells for how long a value is true from the moment it was asked for."""
        self._read = read
        self._left_s = left_s
        self._ttl_s = ttl_s
        self._entries_max = entries_max
        self._entries: dict[K, tuple[float, V]] = {}
        self._reading: dict[K, asyncio.Task[V | None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, key: K) -> V | None:
        """The value if it is known and still good; no read."""
        entry = self._entries.get(key)
        if entry is None or entry[0] <= asyncio.get_running_loop().time():
            return None
        return entry[1]

    def forget(self) -> None:
        """Drop every value, so that each is read again."""
        self._entries.clear()

    def drop(self, key: K) -> None:
        """Drop one value; a read of it that is under way answers its askers and is not kept."""
        self._entries.pop(key, None)
        self._reading.pop(key, None)

    async def get(self, key: K) -> V | None:
        """The value, read if it is unknown or too old. Raises what the read raises."""
        value = self.peek(key)
        if value is not None:
            return value
        task = self._reading.get(key)
        if task is None:
            task = asyncio.ensure_future(self._fill(key))
            self._reading[key] = task
            task.add_done_callback(lambda done: self._read_ended(key, done))
        # One caller's cancellation must not fail the others (INV-38).
        return await asyncio.shield(task)

    async def _fill(self, key: K) -> V | None:
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        value = await self._read(key)
        if self._reading.get(key) is not asyncio.current_task():
            return value
        self._entries.pop(key, None)
        if value is not None:
            good_until = min(clock() + self._ttl_s, asked_at + self._left_s(value))
            self._entries[key] = (good_until, value)
            while len(self._entries) > self._entries_max:
                del self._entries[next(iter(self._entries))]
        return value

    def _read_ended(self, key: K, task: asyncio.Task[V | None]) -> None:
        if self._reading.get(key) is task:
            del self._reading[key]
