"""`TaskContext`: what a handler may know of the attempt it works on, and when to stop."""

import threading
import time
from collections.abc import Callable
from datetime import datetime

from orbit_sdk.protocol.frames import AssignedTask
from orbit_sdk.protocol.times import parse_time
from orbit_sdk.worker.effects import Run, StopReason
from orbit_sdk.worker.outcomes import TaskCancelled


class TaskContext:
    """One attempt of one task, as its handler sees it.

    `epoch` is the fencing token: it only rises from attempt to attempt, so hand it to any outside
    system that can refuse a lower one. `cancelled` is set once work has to stop: on a cancellation,
    at the task's deadline, when the lease is lost and when the worker shuts down. An asyncio
    handler is cancelled as well; a blocking one has to look, by `cancelled.wait(s)` or
    `raise_if_cancelled()`.
    """

    def __init__(self, order: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._order = order
        self._clock = clock
        self.cancelled = threading.Event()
        self.stop_reason: StopReason | None = None
        """Why, once `cancelled` is set."""

    @property
    def task_id(self) -> str:
        return self._order.task.id

    @property
    def attempt_id(self) -> str:
        return self._order.attempt_id

    @property
    def epoch(self) -> int:
        return self._order.epoch

    @property
    def attempt_count(self) -> int:
        """1 for the first started attempt of the task."""
        return self._order.task.attempt_count

    @property
    def handler(self) -> str:
        return self._order.task.handler

    @property
    def business_key(self) -> str | None:
        key = self._order.task.business_key
        return key if isinstance(key, str) else None

    @property
    def deadline(self) -> datetime:
        """The task's deadline by the server's clock. To decide whether there is time for another
        step use `remaining`, which compares no clocks."""
        return parse_time(self._order.task.deadline_at)

    @property
    def payload(self) -> bytes:
        """The payload as it was submitted, byte for byte."""
        return bytes(self._order.task.payload)

    def remaining(self) -> float:
        """Seconds until this attempt's time-out or the task's deadline; 0 once it is to stop."""
        if self.cancelled.is_set():
            return 0.0
        return max(0.0, self._order.work_until - self._clock())

    def raise_if_cancelled(self) -> None:
        """Raises TaskCancelled once work has to stop; let it pass after cleaning up."""
        if self.cancelled.is_set():
            raise TaskCancelled

    @property
    def task(self) -> AssignedTask:
        """The whole assigned task as it came over the wire."""
        return self._order.task
