"""Carries items from one thread to the event loop of another, many at a time.

Waking a loop is a system call, so one wake-up carries whatever has gathered until the loop answers
it. Items arrive in the order in which one thread put them. Bounded by what is put: a worker holds
at most twice its slots.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Handoff(Generic[T]):
    """Calls `deliver` on `loop` with each item that any thread puts in."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._items: deque[T] = deque()
        self._woken = False

    def put(self, item: T) -> None:
        """Hand over one item. Raises RuntimeError if the loop is closed."""
        self._items.append(item)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        # Lowered first: an item put after the last look below then wakes the loop again.
        self._woken = False
        while self._items:
            self._deliver(self._items.popleft())
