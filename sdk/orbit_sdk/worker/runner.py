"""Runs handlers: asyncio ones on the user's loop, blocking ones in as many threads as slots.

Between the connection's thread, which orders and stops, and the user's code. Each order ends in
exactly one call of `ended`, with a report, or with None where nothing honest can be said: a handler
that was stopped because its lease is lost (the server decides by the recovery class then).
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from orbit_sdk.protocol.states import Outcome, RecoverySafety
from orbit_sdk.worker.context import TaskContext
from orbit_sdk.worker.effects import Run, StopReason
from orbit_sdk.worker.handlers import Handler, Registry
from orbit_sdk.worker.handoff import Handoff
from orbit_sdk.worker.outcomes import (
    CANCELLED,
    HANDLER_ERROR,
    INVALID_INPUT,
    WORKER_STOPPED,
    Report,
    TaskCancelled,
    TaskFailed,
    TaskUnknown,
    failed,
    raised,
    succeeded,
)

_log = logging.getLogger("orbit_sdk.worker")

Ended = Callable[[str, Report | None], None]


@dataclass(slots=True, eq=False)
class Job:
    """One handler call. `reason` is set, once, before anything is told to stop."""

    order: Run
    handler: Handler
    context: TaskContext
    reason: StopReason | None = None
    task: "asyncio.Task[Report | None] | None" = field(default=None, repr=False)


class Runner:
    """The handler calls of one worker. `begin` and `stop` come from the connection's thread; all
    else runs on `loop`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, registry: Registry, slots: int, ended: Ended
    ) -> None:
        self._loop = loop
        self._registry = registry
        self._ended = ended
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="orbit-handler")
        self._jobs: dict[str, Job] = {}
        self._orders: Handoff[Job] = Handoff(loop, self._launch)

    def begin(self, order: Run) -> None:
        """Start the handler of an authorised attempt."""
        job = Job(order, self._registry.find(order.task), TaskContext(order))
        self._jobs[order.attempt_id] = job
        self._orders.put(job)

    def stop(self, attempt_id: str, reason: StopReason) -> None:
        """Tell a handler to stop. The event is set at once, whatever the user's loop is doing."""
        job = self._jobs.get(attempt_id)
        if job is None:
            return
        # A lost lease outweighs a cancellation: nothing may be reported as stopped in time.
        if job.reason is None or reason is StopReason.LEASE_LOST:
            job.reason = reason
        job.context.stop_reason = job.reason
        job.context.cancelled.set()
        self._loop.call_soon_threadsafe(self._cancel, job)

    def close(self) -> bool:
        """Take no more work, and stop what is left: nobody keeps its lease any more. True if
        nothing was left."""
        for attempt_id in list(self._jobs):
            self.stop(attempt_id, StopReason.LEASE_LOST)
        self._threads.shutdown(wait=False, cancel_futures=True)
        return not self._jobs

    def _launch(self, job: Job) -> None:
        if job.reason is not None:
            self._end(job, self._stopped(job))
            return
        job.task = self._loop.create_task(self._run(job), name=f"orbit-{job.order.attempt_id}")
        job.task.add_done_callback(lambda task: self._end(job, self._report_of(job, task)))

    def _cancel(self, job: Job) -> None:
        # A thread cannot be interrupted: a blocking handler sees the event or runs to its end.
        if job.task is not None and job.handler.is_async:
            job.task.cancel()

    async def _run(self, job: Job) -> Report | None:
        handler, context = job.handler, job.context
        try:
            payload = handler.decode(context.payload)
        except msgspec.MsgspecError as error:
            return failed(INVALID_INPUT, error)
        try:
            if handler.is_async:
                value = await handler.call(payload, context)
            else:
                value = await self._loop.run_in_executor(
                    self._threads, _call_in_thread, handler, payload, context
                )
            if inspect.isawaitable(value):  # Of a callable that only turns out to be asyncio.
                value = await value
        except TaskCancelled as error:
            return self._stopped(job) if job.reason is not None else raised(error)
        except (TaskFailed, TaskUnknown) as error:
            return raised(error)
        except (Exception, SystemExit) as error:
            _log.warning(
                "handler %s raised %s on task %s",
                context.handler,
                type(error).__name__,
                context.task_id,
                exc_info=True,
            )
            return raised(error)
        return succeeded(value)

    def _report_of(self, job: Job, task: "asyncio.Task[Report | None]") -> Report | None:
        if task.cancelled():
            if job.reason is None and not task.cancelling():
                return failed(HANDLER_ERROR, "the handler raised CancelledError by itself")
            return self._stopped(job)
        error = task.exception()
        return task.result() if error is None else failed(HANDLER_ERROR, error)

    def _stopped(self, job: Job) -> Report | None:
        """What can be said of a handler that stopped because it was told to, or because its loop
        is being closed."""
        match job.reason:
            case StopReason.CANCELLED:
                return failed(CANCELLED, "the handler was stopped on request")
            case StopReason.DEADLINE:
                return failed(CANCELLED, "the handler was stopped at the task's deadline")
            case StopReason.LEASE_LOST:
                return None
            case StopReason.SHUTDOWN | None:
                text = "the worker stopped before the handler had ended"
                report = failed(WORKER_STOPPED, text)
                if job.order.task.recovery_safety is RecoverySafety.RECONCILE_ONLY:
                    return Report(Outcome.UNKNOWN, report.result, WORKER_STOPPED)
                return report

    def _end(self, job: Job, report: Report | None) -> None:
        del self._jobs[job.order.attempt_id]
        self._ended(job.order.attempt_id, report)


def _call_in_thread(handler: Handler, payload: object, context: TaskContext) -> object:
    context.raise_if_cancelled()
    try:
        return handler.call(payload, context)
    except StopIteration as error:
        # No future can carry one: whoever awaits it would wait for ever.
        raise RuntimeError("the handler raised StopIteration") from error
