"""What clients and people do to tasks and queues that exist: cancel, retry, resolve, pause, resume.

One SQL function each, one row a command out, in the order of the batch. Each command has a key,
scoped by namespace, operation and resource (R-094); a repeat gets its first answer, whatever became
of the resource since, and an answer that changed nothing binds no key (INV-31). A refusal is a row.
`now` replaces the database clock and is for tests and simulations alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from store.commands import Connection


class CancelTask(msgspec.Struct, frozen=True, gc=False):
    """Take a task back. `expected_revision` None: whatever its state."""

    namespace_id: str
    task_id: str
    key: str
    hash: bytes
    expected_revision: int | None
    reason: str
    actor: str


class RetryTask(msgspec.Struct, frozen=True, gc=False):
    """Give a settled task one more attempt; `deadline_at` replaces the task's own."""

    namespace_id: str
    task_id: str
    key: str
    hash: bytes
    expected_revision: int
    deadline_at: datetime | None
    reason: str
    actor: str


class ResolveTask(msgspec.Struct, frozen=True, gc=False):
    """Say how a task in NEEDS_REVIEW ended; `evidence` is JSON as accepted."""

    namespace_id: str
    task_id: str
    key: str
    hash: bytes
    expected_revision: int
    outcome: str
    reason: str
    actor: str
    evidence: bytes


class TaskOutcome(msgspec.Struct, frozen=True, gc=False):
    """`done`, `intent` (saved; the attempt is told), `again`, `locked` (both to be sent
    anew, as in `CommandOutcome`), or an error code.

    `attempt_id`, `session_id`, `node_id` and `intent` (`caller` or `deadline`) are set where a live
    attempt is not wanted any more, by this command or an earlier one.
    """

    code: str
    task_state: str | None
    task_revision: int | None
    deduplicated: bool
    queue_id: str | None
    route_id: int | None
    attempt_id: str | None
    session_id: str | None
    node_id: str | None
    intent: str | None


class SetGate(msgspec.Struct, frozen=True, gc=False):
    """Pause or resume a queue at the control version that was seen (R-087)."""

    namespace_id: str
    queue_id: str
    key: str
    hash: bytes
    expected_version: int
    paused: bool
    reason: str
    actor: str


class GateOutcome(msgspec.Struct, frozen=True, gc=False):
    """`done` or an error code, and the gate as it is, or as it was for the first answer."""

    code: str
    paused: bool | None
    control_version: int | None
    deduplicated: bool


async def cancel_tasks(
    connection: Connection, items: Sequence[CancelTask], *, now: datetime | None = None
) -> list[TaskOutcome]:
    """Cancel what waits or is not started; save an intent on what runs (OP-43)."""
    rows = await connection.fetch(
        "SELECT * FROM cancel_tasks_v1($1,$2,$3,$4,$5,$6,$7,$8)",
        [i.namespace_id for i in items],
        [i.task_id for i in items],
        [i.key for i in items],
        [i.hash for i in items],
        [i.expected_revision for i in items],
        [i.reason for i in items],
        [i.actor for i in items],
        now,
    )
    return [TaskOutcome(*row) for row in rows]


async def retry_tasks(
    connection: Connection, items: Sequence[RetryTask], *, now: datetime | None = None
) -> list[TaskOutcome]:
    """Let settled tasks wait again with one more unit of budget (OP-44)."""
    rows = await connection.fetch(
        "SELECT * FROM retry_tasks_v1($1,$2,$3,$4,$5,$6,$7,$8,$9)",
        [i.namespace_id for i in items],
        [i.task_id for i in items],
        [i.key for i in items],
        [i.hash for i in items],
        [i.expected_revision for i in items],
        [i.deadline_at for i in items],
        [i.reason for i in items],
        [i.actor for i in items],
        now,
    )
    return [TaskOutcome(*row) for row in rows]


async def resolve_tasks(
    connection: Connection, items: Sequence[ResolveTask], *, now: datetime | None = None
) -> list[TaskOutcome]:
    """End reviews as a person decided (OP-32)."""
    rows = await connection.fetch(
        "SELECT * FROM resolve_tasks_v1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)",
        [i.namespace_id for i in items],
        [i.task_id for i in items],
        [i.key for i in items],
        [i.hash for i in items],
        [i.expected_revision for i in items],
        [i.outcome for i in items],
        [i.reason for i in items],
        [i.actor for i in items],
        [i.evidence for i in items],
        now,
    )
    return [TaskOutcome(*row) for row in rows]


async def set_gates(
    connection: Connection, items: Sequence[SetGate], *, now: datetime | None = None
) -> list[GateOutcome]:
    """Pause or resume queues; after a pause has returned, no claim or start commits (INV-18)."""
    rows = await connection.fetch(
        "SELECT * FROM set_gates_v1($1,$2,$3,$4,$5,$6,$7,$8,$9)",
        [i.namespace_id for i in items],
        [i.queue_id for i in items],
        [i.key for i in items],
        [i.hash for i in items],
        [i.expected_version for i in items],
        [i.paused for i in items],
        [i.reason for i in items],
        [i.actor for i in items],
        now,
    )
    return [GateOutcome(*row) for row in rows]
