"""What the demo asks of the database itself, since that is where the truth is.

One connection of its own, read only. All tasks of a run carry its name as their business key.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from store import pool


@dataclass(frozen=True, slots=True)
class Session:
    """A worker's session: on which node, since when, the how manieth of its worker."""

    id: str
    instance_id: str
    node_id: str
    epoch: int
    opened_at: datetime
    closed: bool


@dataclass(frozen=True, slots=True)
class Counts:
    """The run as it stands."""

    accepted: int
    settled: int
    waiting: int
    running: int
    retries: int
    renewals: int


@dataclass(frozen=True, slots=True)
class Life:
    """A task of the run from its submission to its end, as the tables hold it."""

    id: str
    handler: str
    state: str | None
    attempt_count: int
    created_at: datetime
    first_started_at: datetime | None
    completed_at: datetime | None
    result: bytes | None


class Database:
    """Questions about one run. `since` is the database's clock when it was opened."""

    def __init__(self, connection: Any, run: str, since: datetime) -> None:
        self.connection = connection
        self.run = run
        self.since = since

    @classmethod
    async def open(cls, url: str, run: str) -> "Database":
        connection = await pool.connect(url)
        await connection.execute("SET default_transaction_read_only = on")
        return cls(connection, run, await connection.fetchval("SELECT clock_timestamp()"))

    async def close(self) -> None:
        await self.connection.close()

    async def now(self) -> datetime:
        """The clock by which leases are judged."""
        now: datetime = await self.connection.fetchval("SELECT clock_timestamp()")
        return now

    async def counts(self) -> Counts:
        row = await self.connection.fetchrow(
            "WITH own AS (SELECT id, state FROM task WHERE business_key = $1)"
            " SELECT count(*), count(state), (SELECT count(*) FROM ready),"
            " (SELECT count(*) FROM lease WHERE state = 'RUNNING'),"
            " (SELECT count(*) FROM attempt a JOIN own o ON o.id = a.task_id"
            "  WHERE a.task_state = 'WAITING' AND a.started_at IS NOT NULL),"
            " (SELECT count(*) FROM receipt WHERE operation = 'renew' AND created_at >= $2)"
            " FROM own",
            self.run,
            self.since,
        )
        return Counts(*row)

    async def sessions(self) -> list[Session]:
        """Every session of the run's workers, in order of opening."""
        rows = await self.connection.fetch(
            "SELECT id, instance_id, node_id, epoch, opened_at, closed_at IS NOT NULL"
            " FROM session WHERE opened_at >= $1 ORDER BY opened_at",
            self.since,
        )
        return [Session(*row) for row in rows]

    async def running_by_node(self) -> dict[str, int]:
        """How many attempts run under the sessions of each node; the one with the oldest first."""
        rows = await self.connection.fetch(
            "SELECT s.node_id, count(*) FROM lease l JOIN session s ON s.id = l.session_id"
            " WHERE l.state = 'RUNNING' GROUP BY 1 ORDER BY min(l.started_at)"
        )
        return dict(rows)

    async def carried_over(self) -> int:
        """How many attempts began under one session and succeeded under a later one."""
        carried: int = await self.connection.fetchval(
            "SELECT count(*) FROM attempt a JOIN session s ON s.id = a.session_id"
            " JOIN task t ON t.id = a.task_id WHERE t.business_key = $1"
            " AND a.state = 'SUCCEEDED' AND a.started_at < s.opened_at",
            self.run,
        )
        return carried

    async def lives(self) -> list[Life]:
        """Every task of the run."""
        rows = await self.connection.fetch(
            "SELECT t.id, r.handler, t.state, t.attempt_count, t.created_at,"
            " (SELECT min(k.started_at) FROM attempt k WHERE k.task_id = t.id),"
            " t.completed_at, a.result"
            " FROM task t JOIN route r ON r.id = t.route_id"
            " LEFT JOIN attempt a ON a.id = t.attempt_id WHERE t.business_key = $1",
            self.run,
        )
        return [Life(*row) for row in rows]

    async def submissions(self) -> int:
        """How many submission keys of the run the database knows."""
        known: int = await self.connection.fetchval(
            "SELECT count(*) FROM submission WHERE starts_with(key, $1 || '-')", self.run
        )
        return known

    async def unsettled(self, task_ids: list[str]) -> int:
        """How many of these tasks are absent, or not settled."""
        lost: int = await self.connection.fetchval(
            "SELECT count(*) FROM unnest($1::uuid[]) AS acked (id)"
            " LEFT JOIN task t ON t.id = acked.id WHERE t.state IS NULL",
            task_ids,
        )
        return lost

    async def without_one_success(self) -> int:
        """How many succeeded tasks do not have exactly one attempt that succeeded."""
        wrong: int = await self.connection.fetchval(
            "SELECT count(*) FROM task t CROSS JOIN LATERAL ("
            " SELECT count(*) FILTER (WHERE a.state = 'SUCCEEDED') AS good"
            " FROM attempt a WHERE a.task_id = t.id) n"
            " WHERE t.business_key = $1 AND (t.state = 'SUCCEEDED') <> (n.good = 1)",
            self.run,
        )
        return wrong

    async def overlaps(self) -> int:
        """How many pairs of one task's attempts were authorised at the same time."""
        pairs: int = await self.connection.fetchval(
            "SELECT count(*) FROM attempt a JOIN attempt b"
            " ON b.task_id = a.task_id AND b.epoch > a.epoch JOIN task t ON t.id = a.task_id"
            " WHERE t.business_key = $1 AND a.started_at IS NOT NULL AND b.granted_at <"
            " CASE WHEN a.state = 'EXPIRED' THEN a.lease_until ELSE a.finished_at END",
            self.run,
        )
        return pairs

    async def miscounted(self) -> int:
        """How many tasks count another number of attempts than were started."""
        wrong: int = await self.connection.fetchval(
            "SELECT count(*) FROM task t WHERE t.business_key = $1 AND t.attempt_count <>"
            " (SELECT count(a.started_at) FROM attempt a WHERE a.task_id = t.id)",
            self.run,
        )
        return wrong

    async def left_over(self) -> int:
        """How many rows still say that a task of the run waits or runs."""
        rows: int = await self.connection.fetchval(
            "SELECT (SELECT count(*) FROM ready r JOIN task t ON t.id = r.task_id"
            " WHERE t.business_key = $1) + (SELECT count(*) FROM lease l"
            " JOIN task t ON t.id = l.task_id WHERE t.business_key = $1)",
            self.run,
        )
        return rows

    async def attempts_by_state(self) -> dict[str, int]:
        """Finished attempts of the run that were started, counted by how they ended."""
        rows = await self.connection.fetch(
            "SELECT a.state, count(*) FROM attempt a JOIN task t ON t.id = a.task_id"
            " WHERE t.business_key = $1 AND a.started_at IS NOT NULL GROUP BY 1",
            self.run,
        )
        return dict(rows)

    async def successful_attempts(self) -> dict[str, str]:
        """The attempt that succeeded, by task."""
        rows = await self.connection.fetch(
            "SELECT a.task_id, a.id FROM attempt a JOIN task t ON t.id = a.task_id"
            " WHERE t.business_key = $1 AND a.state = 'SUCCEEDED'",
            self.run,
        )
        return dict(rows)
