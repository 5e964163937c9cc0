"""A small world to act in: a namespace, a queue under a gate, sessions, and a clock of its own.

Every call goes through the store's own functions with `now` set to the world's clock, which only
the test moves. The defaults are plain; a test names what it is about.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from orbit_sdk.protocol.ids import new_id
from store import commands, dispatch, operations, pool, queries
from store.commands import (
    AttemptCommand,
    CommandOutcome,
    FinishCommand,
    OpenSession,
    SessionOutcome,
    SetCapacity,
    SubmitTask,
)
from store.dispatch import Assignment, ClaimPair
from store.operations import CancelTask, GateOutcome, ResolveTask, RetryTask, SetGate, TaskOutcome

START = datetime(2031, 5, 17, 9, 30, tzinfo=UTC)
LEASE_MS = 30_000
DAY_MS = 86_400_000
SECRET_HASH = b"i" * 32
"""Of the instances."""
WIPE = "".join(
    f"DELETE FROM {table};"
    for table in (
        *("ready", "lease", "attempt", "task", "submission", "receipt", "evidence", "event"),
        *("session", "worker_instance", "node", "credential", "route", "queue", "gate"),
        *("audit", "namespace"),
    )
)


@dataclass(frozen=True, slots=True)
class Worker:
    """An open session of an instance."""

    session_id: str
    instance_id: str
    node_id: str
    hello: OpenSession
    outcome: SessionOutcome


class World:
    """What most tests need, on one connection. `other` opens further connections to the same."""

    def __init__(self, url: str, connection: "asyncpg.Connection[Any]") -> None:
        self.url = url
        self.connection = connection
        self.now = START
        self._ids = 0
        self._others: list[asyncpg.Connection[Any]] = []

    @classmethod
    async def create(cls, url: str) -> "World":
        """Wipe the database; make a namespace, a queue, two routes, a credential and a gateway."""
        world = cls(url, await pool.connect(url))
        connection = world.connection
        await connection.execute(WIPE)
        world.namespace_id = await queries.create_app(
            connection, world.id(), "shop", [(world.id(), "mail")], ("0" * 16, b"s" * 32, ["work"])
        )
        queue = await queries.find_queue(connection, world.namespace_id, "mail")
        assert queue is not None
        world.queue_id, world.gate_id = queue.id, queue.gate_id
        world.route_id, world.other_route_id = await queries.intern_routes(
            connection, queue.id, [("send", "1", "1"), ("send", "2", "1")]
        )
        world.node_id = world.id()
        await dispatch.beat_node(connection, world.node_id, "gateway", False, now=world.now)
        return world

    namespace_id: str
    queue_id: str
    gate_id: int
    route_id: int
    other_route_id: int
    node_id: str

    async def other(self) -> "asyncpg.Connection[Any]":
        """One more connection to the same database."""
        connection = await pool.connect(self.url)
        self._others.append(connection)
        return connection

    async def close(self) -> None:
        """Close every connection."""
        for connection in (self.connection, *self._others):
            await connection.close(timeout=5)

    def id(self) -> str:
        """A new id, of the world's time: ids rise in the order they are drawn."""
        self._ids += 1
        return new_id(int(self.now.timestamp() * 1000), (self._ids << 16).to_bytes(10))

    def wait(self, ms: float) -> None:
        """Let time pass."""
        self.now += timedelta(milliseconds=ms)

    def at(self, ms: float) -> datetime:
        """The instant that many milliseconds from now."""
        return self.now + timedelta(milliseconds=ms)

    # -- tasks ------------------------------------------------------------------------------

    def task(self, **changes: Any) -> SubmitTask:
        """A submission under a key of its own, due now."""
        task_id = self.id()
        plain = SubmitTask(
            namespace_id=self.namespace_id,
            key=f"key-{task_id}",
            hash=b"h" * 32,
            task_id=task_id,
            queue_id=self.queue_id,
            route_id=self.route_id,
            gate_id=self.gate_id,
            payload=b'{"to":"ada"}',
            priority=0,
            business_key=None,
            available_at=None,
            start_deadline_at=None,
            deadline_at=None,
            recovery_safety="IDEMPOTENT",
            max_attempts=3,
            initial_delay_ms=1000,
            max_delay_ms=60_000,
            attempt_timeout_ms=3_600_000,
        )
        return msgspec.structs.replace(plain, **changes)

    async def submit(self, *items: SubmitTask) -> list[commands.SubmitOutcome]:
        return await commands.submit_tasks(self.connection, items, now=self.now)

    async def submitted(self, count: int = 1, **changes: Any) -> list[str]:
        """Submit that many tasks and return their ids."""
        items = [self.task(**changes) for _ in range(count)]
        assert {o.code for o in await self.submit(*items)} <= {"created"}
        return [item.task_id for item in items]

    async def view(self, task_id: str) -> queries.TaskView:
        view = await queries.get_task(self.connection, self.namespace_id, task_id)
        assert view is not None
        return view

    async def attempts(self, task_id: str) -> list[queries.AttemptView]:
        return await queries.list_attempts(self.connection, self.namespace_id, task_id, 0, 100)

    # -- sessions ---------------------------------------------------------------------------

    def hello(self, **changes: Any) -> OpenSession:
        plain = OpenSession(
            session_id=self.id(),
            namespace_id=self.namespace_id,
            instance_id=self.id(),
            secret_hash=SECRET_HASH,
            queue_id=self.queue_id,
            routes=(self.route_id,),
            capacity=10,
            node_id=self.node_id,
            session_max_ms=DAY_MS,
            credential_key_id="0" * 16,
        )
        return msgspec.structs.replace(plain, **changes)

    async def worker(self, **changes: Any) -> Worker:
        """Open a session; `instance_id` names an instance that comes back."""
        hello = self.hello(**changes)
        [outcome] = await commands.open_sessions(self.connection, [hello], now=self.now)
        assert outcome.code == "ok"
        return Worker(hello.session_id, hello.instance_id, hello.node_id, hello, outcome)

    async def set_capacity(
        self, session_id: str, sequence: int, capacity: int, drain: bool = False
    ) -> commands.CapacityOutcome:
        [outcome] = await commands.set_capacity(
            self.connection, [SetCapacity(session_id, sequence, capacity, drain)], now=self.now
        )
        return outcome

    async def close_session(self, *session_ids: str, reason: str = "gone") -> list[tuple[str, int]]:
        items = [commands.CloseSession(session_id, reason) for session_id in session_ids]
        return await commands.close_sessions(self.connection, items, now=self.now)

    # -- attempts ---------------------------------------------------------------------------

    async def claim(
        self, pairs: Sequence[tuple[str, str]], lease_ms: int = LEASE_MS
    ) -> list[Assignment]:
        """Claim (task, session) pairs under new attempt ids."""
        claims = [ClaimPair(task_id, session_id, self.id()) for task_id, session_id in pairs]
        return await dispatch.claim_tasks(self.connection, claims, lease_ms, now=self.now)

    async def leased(self, worker: Worker, count: int = 1, **changes: Any) -> list[AttemptCommand]:
        """Submit tasks and grant them; returns a start for each."""
        task_ids = await self.submitted(count, **changes)
        return await self.granted(worker, task_ids)

    async def granted(self, worker: Worker, task_ids: Sequence[str]) -> list[AttemptCommand]:
        """Grant these waiting tasks; returns a start for each."""
        won = await self.claim([(task_id, worker.session_id) for task_id in task_ids])
        assert len(won) == len(task_ids)
        return [self.command(assignment) for assignment in won]

    async def running(self, worker: Worker, **changes: Any) -> AttemptCommand:
        """Submit a task, grant it and start it; returns the start that was applied."""
        [start] = await self.leased(worker, **changes)
        assert (await self.start(start)).code == "ok"
        return start

    def command(self, assignment: Assignment) -> AttemptCommand:
        return AttemptCommand(
            self.namespace_id,
            assignment.session_id,
            self.gate_id,
            assignment.task_id,
            assignment.attempt_id,
            assignment.epoch,
            self.id(),
        )

    def again(self, command: AttemptCommand, **changes: Any) -> AttemptCommand:
        """The same attempt under a new message id."""
        return msgspec.structs.replace(command, **{"message_id": self.id(), **changes})

    def finish_of(self, command: AttemptCommand, **changes: Any) -> FinishCommand:
        """A successful report about an attempt."""
        plain = FinishCommand(
            namespace_id=command.namespace_id,
            session_id=command.session_id,
            task_id=command.task_id,
            attempt_id=command.attempt_id,
            epoch=command.epoch,
            message_id=self.id(),
            hash=b"r" * 32,
            outcome="SUCCEEDED",
            error_code=None,
            result=b'{"sent":true}',
        )
        return msgspec.structs.replace(plain, **changes)

    def failure_of(self, command: AttemptCommand, code: str = "smtp.down") -> FinishCommand:
        """A report of failure about an attempt."""
        return self.finish_of(
            command, outcome="FAILED", error_code=code, hash=b"f" * 32, result=b'{"sent":false}'
        )

    async def ended(self, worker: Worker, **changes: Any) -> AttemptCommand:
        """Submit a task, start it and let its lease run out; returns the start."""
        start = await self.running(worker, **changes)
        self.wait(LEASE_MS)
        await self.sweep()
        return start

    async def start(self, command: AttemptCommand) -> CommandOutcome:
        [outcome] = await commands.start_attempts(self.connection, [command], now=self.now)
        return outcome

    async def renew(self, command: AttemptCommand) -> CommandOutcome:
        [outcome] = await commands.renew_leases(self.connection, [command], now=self.now)
        return outcome

    async def resume(self, command: AttemptCommand) -> CommandOutcome:
        [outcome] = await commands.resume_attempts(self.connection, [command], now=self.now)
        return outcome

    async def finish(self, command: FinishCommand) -> CommandOutcome:
        [outcome] = await commands.finish_attempts(self.connection, [command], now=self.now)
        return outcome

    async def sweep(self, limit: int = 1000) -> list[dispatch.Expired]:
        return await dispatch.expire_leases(self.connection, limit, now=self.now)

    async def intend(self, command: AttemptCommand, intent: str) -> None:
        """Save an intent on a running attempt, as a cancel or a passed deadline does (OP-03)."""
        await self.connection.execute(
            "UPDATE lease SET intent = $2, intent_at = $3::timestamptz, revision = revision + 1,"
            " lease_until = greatest(lease_until, $3::timestamptz + lease_ms * interval '1 ms')"
            " WHERE attempt_id = $1 AND state = 'RUNNING'",
            command.attempt_id,
            intent,
            self.now,
        )

    # -- operations -------------------------------------------------------------------------

    def cancellation(self, task_id: str, **changes: Any) -> CancelTask:
        """A wish to cancel, under a key of its own."""
        plain = CancelTask(
            namespace_id=self.namespace_id,
            task_id=task_id,
            key=f"cancel-{self.id()}",
            hash=b"c" * 32,
            expected_revision=None,
            reason="not needed",
            actor="0" * 16,
        )
        return msgspec.structs.replace(plain, **changes)

    def another_try(self, task_id: str, revision: int, **changes: Any) -> RetryTask:
        """A manual retry at a revision, under a key of its own."""
        plain = RetryTask(
            namespace_id=self.namespace_id,
            task_id=task_id,
            key=f"retry-{self.id()}",
            hash=b"r" * 32,
            expected_revision=revision,
            deadline_at=None,
            reason="try again",
            actor="0" * 16,
        )
        return msgspec.structs.replace(plain, **changes)

    def verdict(self, task_id: str, revision: int, outcome: str, **changes: Any) -> ResolveTask:
        """The end of a review at a revision, under a key of its own."""
        plain = ResolveTask(
            namespace_id=self.namespace_id,
            task_id=task_id,
            key=f"resolve-{self.id()}",
            hash=b"v" * 32,
            expected_revision=revision,
            outcome=outcome,
            reason="looked it up",
            actor="0" * 16,
            evidence=b'{"ticket":7}',
        )
        return msgspec.structs.replace(plain, **changes)

    def gate_change(self, paused: bool, version: int, **changes: Any) -> SetGate:
        """A pause or resume at a control version, under a key of its own."""
        plain = SetGate(
            namespace_id=self.namespace_id,
            queue_id=self.queue_id,
            key=f"gate-{self.id()}",
            hash=b"g" * 32,
            expected_version=version,
            paused=paused,
            reason="by hand",
            actor="0" * 16,
        )
        return msgspec.structs.replace(plain, **changes)

    async def cancel(self, task_id: str, **changes: Any) -> TaskOutcome:
        return await self.cancel_as(self.cancellation(task_id, **changes))

    async def cancel_as(self, item: CancelTask) -> TaskOutcome:
        [outcome] = await operations.cancel_tasks(self.connection, [item], now=self.now)
        return outcome

    async def retry_as(self, item: RetryTask) -> TaskOutcome:
        [outcome] = await operations.retry_tasks(self.connection, [item], now=self.now)
        return outcome

    async def retry(self, task_id: str, **changes: Any) -> TaskOutcome:
        """Retry at the revision of now."""
        revision = (await self.view(task_id)).revision
        return await self.retry_as(self.another_try(task_id, revision, **changes))

    async def resolve_as(self, item: ResolveTask) -> TaskOutcome:
        [outcome] = await operations.resolve_tasks(self.connection, [item], now=self.now)
        return outcome

    async def resolve(self, task_id: str, outcome: str, **changes: Any) -> TaskOutcome:
        """Resolve at the revision of now."""
        revision = (await self.view(task_id)).revision
        return await self.resolve_as(self.verdict(task_id, revision, outcome, **changes))

    async def gate_version(self) -> int:
        return int(
            await self.connection.fetchval(
                "SELECT control_version FROM gate WHERE id = $1", self.gate_id
            )
        )

    async def set_gate(self, item: SetGate) -> GateOutcome:
        [outcome] = await operations.set_gates(self.connection, [item], now=self.now)
        return outcome

    async def pause(self, paused: bool = True) -> None:
        """Close or open the gate over the queue, at the version of now."""
        change = self.gate_change(paused, await self.gate_version())
        assert (await self.set_gate(change)).code == "done"

    # -- what is there ----------------------------------------------------------------------

    async def count(self, table: str) -> int:
        return int(await self.connection.fetchval(f"SELECT count(*) FROM {table}"))

    async def snapshot(self) -> dict[str, list[Any]]:
        """Everything a command may change, to prove that one changed nothing."""
        tables = ("task", "ready", "lease", "attempt", "receipt", "evidence", "event", "session")
        return {
            table: await self.connection.fetch(f"SELECT * FROM {table} ORDER BY 1, 2")
            for table in (*tables, "worker_instance", "submission", "gate", "audit")
        }
