"""The lanes of a gateway: one a kind of command, each bound to its store function and its pool.

Submissions have connections of their own, and so have renewals and the other commands of running
attempts, so that those go on at full submit load (INV-20); operations on tasks and queues, which
are rare, share those of submissions. Commands of one attempt keep their order across kinds: a
finish waits for the answer of the start sent before it. What extends or ends a lease has a lane as
wide as a store needs that takes `limits.CALL_SHARE` of a lease for a call (B-04).
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from gateway import limits
from gateway.gate import Gate
from gateway.lanes import Lane, Order
from gateway.store_calls import Pool, StoreCalls, fault_of
from gateway.unproven import Unproven
from gateway.worker.dialect import Operation
from orbit_sdk.protocol.states import TaskState
from store import commands as store
from store import dispatch, operations
from store.messages import Cancelled, Notice, Over

RouteKey: TypeAlias = tuple[str, int]
_IDLE_POLL_S: Final = 0.01
_AGAIN_AFTER_S: Final = {"again": 0.0, "locked": limits.LOCKED_PAUSE_S}
"""Outcomes that are none yet: two commands of one attempt in one batch, a row that is held."""


class Commands:
    """All lanes of one node."""

    def __init__(
        self,
        calls: StoreCalls,
        lease_s: float,
        *,
        given_back: Callable[[Sequence[RouteKey]], None],
        tell: Callable[[str, Notice], None],
    ) -> None:
        """`given_back` hears of routes where a task waits again; `tell` of nodes and what became
        of attempts whose connection they have."""
        order = Order()
        self._calls = calls
        self._lease_s = lease_s
        self.unproven: Final = Unproven()
        self._gate = Gate(limits.LEASE_CALLS, limits.GATE_SHARE * lease_s)
        self._given_back = given_back
        self._tell = tell
        self.submit: Lane[store.SubmitTask, store.SubmitOutcome] = Lane(
            "submit",
            self._call(Pool.SUBMIT, store.submit_tasks),
            judge=fault_of,
            order=order,
            key=_submission_key,
            queue_max=limits.SUBMIT_QUEUE_MAX,
            patience_s=limits.SUBMIT_PATIENCE_S,
        )
        self.attempts: Final = self._attempt_lanes(order)
        self.give_back: Lane[store.ReturnLease, None] = self._quiet(
            "give-back", self._giving_back(store.return_leases)
        )
        """Assignments that may not be handed over any more."""
        self.tried_again: Lane[str, None] = self._quiet(
            "tried-again", self._giving_back(dispatch.due_of_tasks)
        )
        """Tasks whose attempt failed or lapsed and that wait again, perhaps due already."""
        self.ended_past: Lane[str, None] = self._quiet("ended-past", self._tell_over)
        """Attempts that were found over past the socket of their session."""
        self.capacity: Lane[store.SetCapacity, store.CapacityOutcome] = Lane(
            "capacity",
            self._gated(self._call(Pool.LEASE, store.set_capacity)),
            judge=fault_of,
            order=order,
            key=attrgetter("session_id"),
        )
        self.open: Lane[store.OpenSession, store.SessionOutcome] = Lane(
            "open",
            self._open_sessions,
            judge=fault_of,
            order=order,
            key=attrgetter("instance_id"),
            width=1,
        )
        # A session closed here must end in the store, however long that is away: this node goes on
        # beating, so nobody else would close it.
        self.close: Lane[store.CloseSession, None] = self._quiet(
            "close", self._giving_back(store.close_sessions), patience_s=float("inf")
        )

        self.cancel: Lane[operations.CancelTask, operations.TaskOutcome] = self._tasks(
            "cancel", order, self._cancel_tasks
        )
        self.retry: Lane[operations.RetryTask, operations.TaskOutcome] = self._tasks(
            "retry", order, self._retry_tasks
        )
        self.resolve: Lane[operations.ResolveTask, operations.TaskOutcome] = self._tasks(
            "resolve", order, self._call(Pool.SUBMIT, operations.resolve_tasks)
        )
        self.gates: Final = self._gate_lane(order)

    def lanes(self) -> tuple[Lane[Any, Any], ...]:
        """Every lane, for the process to run."""
        of_sessions = (self.capacity, self.open, self.close)
        of_clients = (self.submit, self.cancel, self.retry, self.resolve, self.gates)
        quiet = (self.give_back, self.tried_again, self.ended_past)
        return (*self.attempts.values(), *of_sessions, *of_clients, *quiet)

    def stuck_s(self) -> float:
        """How long the oldest submission or worker command in flight has waited."""
        lanes: tuple[Lane[Any, Any], ...] = (self.submit, *self.attempts.values())
        return max(lane.stuck_s() for lane in lanes)

    async def idle(self, timeout_s: float) -> bool:
        """Wait until every command is answered; False when that takes longer than `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while any(lane.open for lane in self.lanes()):
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_IDLE_POLL_S)
        return True

    def _attempt_lanes(self, order: Order) -> dict[Operation, Lane[Any, store.CommandOutcome]]:
        wait = limits.WAIT_SHARE - limits.GATE_SHARE
        calls = {
            Operation.START: (self._gated(self._call(Pool.LEASE, store.start_attempts)), wait),
            Operation.RENEW: (self._call(Pool.RENEW, store.renew_leases), limits.WAIT_SHARE),
            Operation.FINISH: (
                self._gated(self._call(Pool.LEASE, store.finish_attempts)),
                limits.FINISH_WAIT_SHARE,
            ),
            Operation.RESUME: (self._gated(self._call(Pool.LEASE, store.resume_attempts)), wait),
        }
        return {
            operation: Lane(
                operation.value,
                self._and_tell(execute),
                judge=fault_of,
                order=order,
                key=attrgetter("attempt_id"),
                again=_again_after_s,
                same=_operation,
                repeated=_as_repeat,
                width=limits.lane_width(share),
                spacing_s=max(limits.WAIT_MIN_S, share * self._lease_s),
            )
            for operation, (execute, share) in calls.items()
        }

    def _gate_lane(self, order: Order) -> Lane[operations.SetGate, operations.GateOutcome]:
        return Lane(
            "gates",
            self._call(Pool.SUBMIT, operations.set_gates),
            judge=fault_of,
            order=order,
            key=attrgetter("queue_id"),
            patience_s=limits.SUBMIT_PATIENCE_S,
            width=1,
        )

    def _quiet(
        self,
        name: str,
        execute: Callable[[Sequence[Any]], Awaitable[Sequence[None]]],
        patience_s: float = limits.SUBMIT_PATIENCE_S,
    ) -> Lane[Any, None]:
        """What nobody waits for, and, but for `close`, what a sweep or a scan does later anyway."""
        return Lane(
            name,
            execute,
            judge=fault_of,
            patience_s=patience_s,
            width=1,
        )

    def _tasks(
        self, name: str, order: Order, execute: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> Lane[Any, operations.TaskOutcome]:
        """Operations on one task never overlap, whatever their kind."""
        return Lane(
            name,
            execute,
            judge=fault_of,
            order=order,
            key=attrgetter("task_id"),
            again=_again_after_s,
            queue_max=limits.OPERATION_QUEUE_MAX,
            patience_s=limits.SUBMIT_PATIENCE_S,
            width=1,
        )

    def _call(
        self, pool: Pool, function: Callable[..., Awaitable[Any]]
    ) -> Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]:
        calls = self._calls

        async def execute(items: Sequence[Any]) -> Sequence[Any]:
            outcomes: Sequence[Any] = await calls.run(pool, limits.CALL_TIMEOUT_S, function, items)
            return outcomes

        return execute

    def _gated(
        self, execute: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]:
        gate = self._gate

        async def gated(items: Sequence[Any]) -> Sequence[Any]:
            async with gate.passed():
                return await execute(items)

        return gated

    def _and_tell(
        self, execute: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]:
        async def execute_and_tell(items: Sequence[Any]) -> Sequence[Any]:
            outcomes = await execute(items)
            for item, outcome in zip(items, outcomes, strict=True):
                if outcome.task_state == TaskState.WAITING:
                    # A failure, or a lease found over by this call. A repeat too: the first answer
                    # may be lost, and the hint with it.
                    self.tried_again.offer(item.task_id, _ignore)
                if item.instance is None:
                    continue
                if outcome.code == "attempt_not_found":
                    self.unproven.note(item.instance.instance_id, item.attempt_id)
                elif outcome.settled and outcome.code == "ok":
                    self.ended_past.offer(item.attempt_id, _ignore)
            return outcomes

        return execute_and_tell

    async def _open_sessions(
        self, items: Sequence[store.OpenSession]
    ) -> Sequence[store.SessionOutcome]:
        outcomes = await self._calls.run(
            Pool.BACKGROUND, limits.CALL_TIMEOUT_S, store.open_sessions, items
        )
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome.superseded_session_id is not None:
                # What the former session had not started waits again.
                self._given_back([(item.queue_id, route) for route in item.routes])
        return outcomes

    def _giving_back(
        self, function: Callable[..., Awaitable[Sequence[RouteKey]]]
    ) -> Callable[[Sequence[Any]], Awaitable[Sequence[None]]]:
        """A call that returns the routes on which tasks wait again."""

        async def execute(items: Sequence[Any]) -> Sequence[None]:
            routes = await self._calls.run(Pool.BACKGROUND, limits.CALL_TIMEOUT_S, function, items)
            if routes:
                self._given_back(routes)
            return [None] * len(items)

        return execute

    async def _tell_over(self, attempt_ids: Sequence[str]) -> Sequence[None]:
        """The gateway of the session counts a slot that nobody else can tell it of."""
        ended = await self._calls.run(
            Pool.BACKGROUND, limits.CALL_TIMEOUT_S, dispatch.holders_of_ended, attempt_ids
        )
        for node_id, session_id, attempt_id in ended:
            self._tell(node_id, Over(session_id, attempt_id))
        return [None] * len(attempt_ids)

    async def _cancel_tasks(
        self, items: Sequence[operations.CancelTask]
    ) -> Sequence[operations.TaskOutcome]:
        outcomes = await self._calls.run(
            Pool.SUBMIT, limits.CALL_TIMEOUT_S, operations.cancel_tasks, items
        )
        for outcome in outcomes:
            if outcome.node_id and outcome.session_id and outcome.attempt_id:
                reason: dispatch.Intent = "deadline" if outcome.intent == "deadline" else "caller"
                notice = Cancelled(outcome.session_id, outcome.attempt_id, reason)
                self._tell(outcome.node_id, notice)
        return outcomes

    async def _retry_tasks(
        self, items: Sequence[operations.RetryTask]
    ) -> Sequence[operations.TaskOutcome]:
        outcomes = await self._calls.run(
            Pool.SUBMIT, limits.CALL_TIMEOUT_S, operations.retry_tasks, items
        )
        waiting = [
            (outcome.queue_id, outcome.route_id)
            for outcome in outcomes
            if outcome.code == "done" and outcome.queue_id and outcome.route_id
        ]
        if waiting:
            self._given_back(waiting)
        return outcomes


def _ignore(_command: object, _outcome: object) -> None:
    """Nobody waits for this answer."""


def _submission_key(command: store.SubmitTask) -> tuple[str, str]:
    return command.namespace_id, command.key


def _again_after_s(outcome: store.CommandOutcome | operations.TaskOutcome) -> float | None:
    return _AGAIN_AFTER_S.get(outcome.code)


def _operation(command: store.AttemptCommand | store.FinishCommand) -> Hashable:
    """What a repeat of this command has in common with it. None for one that came by HTTP: its
    answer belongs to one request, and is counted from when that was sent (R-152)."""
    if command.instance is not None:
        return None
    ids = (command.session_id, command.task_id, command.attempt_id, command.epoch)
    meaning = command.hash if isinstance(command, store.FinishCommand) else None
    return (*ids, command.message_id, meaning)


def _as_repeat(outcome: store.CommandOutcome) -> store.CommandOutcome:
    if outcome.code != "ok":
        return outcome
    return msgspec.structs.replace(outcome, deduplicated=True)
