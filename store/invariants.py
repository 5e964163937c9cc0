"""What must hold in the tables at any committed instant, as statements that look for breaches.

Where: run by tests after every case, by fault runs at their end, and by the demo. Each statement
returns the ids that break its invariant, so an empty answer is the proof. They read whole tables
and are meant for databases of tests and examples.
"""

from __future__ import annotations

from typing import NamedTuple

from store.commands import Connection

SHOWN_MAX = 5


class Invariant(NamedTuple):
    """A promise by its number, and the statement that returns the id of every breach."""

    number: str
    promise: str
    breaches: str


# Everything that was ever granted for a task: finished attempts and the lease in hand.
_GRANTS = """
    SELECT task_id, id AS attempt_id, epoch, started_at IS NOT NULL AS started, state, true AS over,
           intent FROM attempt
    UNION ALL
    SELECT task_id, attempt_id, epoch, started_at IS NOT NULL, state, false, intent FROM lease
"""

INVARIANTS: tuple[Invariant, ...] = (
    Invariant(
        "INV-1",
        "a task has at most one attempt in LEASED or RUNNING",
        "SELECT task_id FROM lease GROUP BY task_id HAVING count(*) > 1",
    ),
    Invariant(
        "INV-1",
        "an attempt is held or over, not both",
        "SELECT attempt_id FROM lease JOIN attempt ON id = attempt_id",
    ),
    Invariant(
        "INV-2",
        "the lease epochs of a task are 1, 2, 3 and so on: one per grant, none twice",
        f"SELECT task_id FROM ({_GRANTS}) g GROUP BY task_id"
        " HAVING count(DISTINCT epoch) <> count(*) OR max(epoch) <> count(*)",
    ),
    Invariant(
        "INV-4",
        "a lease ends within the deadlines in force, unless an intent opened a reporting window",
        "SELECT attempt_id FROM lease WHERE lease_until <= granted_at AND state = 'LEASED'"
        " OR intent IS NULL AND (lease_until > deadline_at OR lease_until > attempt_deadline_at"
        " OR state = 'LEASED' AND lease_until > start_deadline_at)",
    ),
    Invariant(
        "INV-5",
        "what settled a task is what its last attempt says",
        "SELECT t.id FROM task t JOIN attempt a ON a.id = t.attempt_id"
        " WHERE t.state IS NOT NULL AND (a.task_id <> t.id OR a.epoch <> t.epoch OR"
        " CASE WHEN t.resolved_at IS NULL THEN (a.task_state, a.task_revision)"
        " <> (t.state, t.revision) ELSE (a.task_state, a.task_revision)"
        " <> ('NEEDS_REVIEW', t.revision - 1) OR t.state = 'NEEDS_REVIEW' END)",
    ),
    Invariant(
        "INV-5",
        "an attempt that is over left its task as the outcome table says",
        "SELECT id FROM attempt WHERE (state, task_state) NOT IN (('SUCCEEDED', 'SUCCEEDED'),"
        " ('FAILED', 'FAILED'), ('FAILED', 'WAITING'), ('FAILED', 'CANCELLED'),"
        " ('CANCELLED', 'CANCELLED'), ('EXPIRED', 'WAITING'), ('EXPIRED', 'FAILED'),"
        " ('EXPIRED', 'CANCELLED'), ('UNKNOWN', 'NEEDS_REVIEW'))",
    ),
    Invariant(
        "INV-7",
        "a reported end has its receipt, and nothing else ends as reported",
        "SELECT id FROM attempt WHERE (finish_message_id IS NULL) <> (finish_hash IS NULL)"
        " OR finish_message_id IS NULL AND (state IN ('SUCCEEDED', 'FAILED') OR result IS NOT NULL)"
        " OR finish_message_id IS NOT NULL AND started_at IS NULL"
        " OR (started_at IS NULL) <> (start_message_id IS NULL)",
    ),
    Invariant(
        "INV-7",
        "a settled task has its event, of the same revision",
        "SELECT t.id FROM task t WHERE t.state IS NOT NULL AND NOT EXISTS (SELECT 1 FROM event e"
        " WHERE e.resource_type = 'task' AND e.resource_id = t.id AND e.revision = t.revision"
        " AND e.type = 'task.' || lower(t.state))",
    ),
    Invariant(
        "INV-8",
        "a receipt of its own is a renewal, a second start that repeats the first one's, or a"
        " final answer about an attempt that exists",
        "SELECT r.attempt_id FROM receipt r WHERE r.disposition = 'APPLIED'"
        " AND r.operation = 'finish' OR NOT EXISTS (SELECT 1 FROM lease l"
        " WHERE l.attempt_id = r.attempt_id AND (r.operation <> 'start' OR"
        " r.disposition <> 'APPLIED' OR (r.task_revision, r.lease_until) ="
        " (l.start_revision, l.start_lease_until)) UNION ALL SELECT 1 FROM attempt a"
        " WHERE a.id = r.attempt_id AND (r.operation <> 'start' OR r.disposition <> 'APPLIED'"
        " OR (r.task_revision, r.lease_until) = (a.start_revision, a.start_lease_until)))",
    ),
    Invariant(
        "INV-10",
        "a RECONCILE_ONLY task starts again only after its worker or a person said so",
        f"SELECT t.id FROM task t JOIN ({_GRANTS}) g ON g.task_id = t.id AND g.started"
        " JOIN attempt a ON a.id = g.attempt_id WHERE t.recovery_safety = 'RECONCILE_ONLY'"
        " AND (a.state <> 'FAILED' OR a.finish_message_id IS NULL) AND EXISTS (SELECT 1 FROM"
        f" ({_GRANTS}) n WHERE n.task_id = t.id AND n.epoch > g.epoch)"
        " AND a.task_state NOT IN ('NEEDS_REVIEW', 'CANCELLED')",
    ),
    Invariant(
        "INV-11",
        "attempt_count is the started attempts plus the one in hand, at most max_attempts",
        "SELECT k.task_id FROM"
        " (SELECT task_id, attempt_count, max_attempts, 0 AS in_hand FROM ready"
        " UNION ALL SELECT task_id, attempt_count, max_attempts, 1 FROM lease"
        " UNION ALL SELECT id, attempt_count, max_attempts, 0 FROM task WHERE state IS NOT NULL) k"
        " WHERE k.attempt_count > k.max_attempts OR k.attempt_count <> k.in_hand + (SELECT count(*)"
        " FROM attempt a WHERE a.task_id = k.task_id AND a.started_at IS NOT NULL)",
    ),
    Invariant(
        "INV-11",
        "the epoch that a waiting or settled task carries is the number of its grants",
        "SELECT k.task_id FROM (SELECT task_id, epoch FROM ready UNION ALL"
        " SELECT id, epoch FROM task WHERE state IS NOT NULL) k WHERE k.epoch <>"
        " (SELECT count(*) FROM attempt a WHERE a.task_id = k.task_id)",
    ),
    Invariant(
        "INV-11b",
        "every task is in exactly one place: waiting, leased or settled",
        "SELECT t.id FROM task t LEFT JOIN ready r ON r.task_id = t.id"
        " LEFT JOIN lease l ON l.task_id = t.id WHERE (r.task_id IS NOT NULL)::integer"
        " + (l.task_id IS NOT NULL)::integer + (t.state IS NOT NULL)::integer <> 1",
    ),
    Invariant(
        "INV-11b",
        "no place holds a task that does not exist",
        "SELECT task_id FROM (SELECT task_id FROM ready UNION ALL SELECT task_id FROM lease"
        " UNION ALL SELECT task_id FROM attempt) k"
        " WHERE NOT EXISTS (SELECT 1 FROM task t WHERE t.id = k.task_id)",
    ),
    Invariant(
        "INV-12",
        "a session whose capacity never changed was granted no more than it",
        "SELECT s.id FROM session s JOIN lease l ON l.session_id = s.id"
        " AND l.granted_at >= s.opened_at WHERE s.sequence = 0"
        " GROUP BY s.id, s.capacity HAVING count(*) > s.capacity",
    ),
    Invariant(
        "INV-17",
        "no unstarted lease belongs to a session that is over",
        "SELECT l.attempt_id FROM lease l JOIN session s ON s.id = l.session_id"
        " WHERE l.state = 'LEASED' AND s.closed_at IS NOT NULL",
    ),
    Invariant(
        "INV-18",
        "CANCELLED is written only with a saved intent",
        "SELECT id FROM attempt WHERE (state = 'CANCELLED' OR task_state = 'CANCELLED')"
        " AND intent IS DISTINCT FROM 'caller'"
        " UNION ALL SELECT id FROM task WHERE state = 'CANCELLED' AND cancel_requested_at IS NULL",
    ),
    Invariant(
        "INV-18",
        "marks of a stop belong to one that was asked for, and come in order",
        "SELECT attempt_id FROM lease WHERE (told_at IS NOT NULL OR intent_reason IS NOT NULL)"
        " AND intent IS NULL OR told_at < intent_at OR acknowledged_at < told_at"
        " OR told_at IS NULL AND acknowledged_at IS NOT NULL UNION ALL SELECT id FROM attempt"
        " WHERE acknowledged_at IS NOT NULL AND intent IS NULL OR acknowledged_at < intent_at"
        " OR finished_at < acknowledged_at",
    ),
    Invariant(
        "INV-19",
        "an instance's open session is its newest, and its epochs are 1, 2, 3 and so on",
        "SELECT i.id FROM worker_instance i LEFT JOIN session s ON s.instance_id = i.id"
        " GROUP BY i.id HAVING count(s.id) <> i.session_epoch"
        " OR max(s.epoch) IS DISTINCT FROM nullif(i.session_epoch, 0)"
        " OR count(DISTINCT s.epoch) <> count(s.id)"
        " OR bool_or(s.closed_at IS NULL AND s.id IS DISTINCT FROM i.session_id)",
    ),
    Invariant(
        "INV-29",
        "an accepted key names exactly one task, and a task was accepted under one key",
        "SELECT resource_id FROM submission s WHERE operation = 'task.submit'"
        " AND NOT EXISTS (SELECT 1 FROM task t WHERE t.id = s.resource_id)"
        " UNION ALL SELECT t.id FROM task t LEFT JOIN submission s ON s.resource_id = t.id"
        " AND s.operation = 'task.submit' GROUP BY t.id HAVING count(s.key) <> 1",
    ),
    Invariant(
        "INV-31",
        "a key of an operation is bound to what it did, with its line in the audit",
        "SELECT s.resource_id FROM submission s WHERE s.operation <> 'task.submit' AND (s.code"
        " IS NULL OR s.code NOT IN ('done', 'intent') OR s.scope <> s.resource_id OR NOT EXISTS"
        " (SELECT 1 FROM audit a WHERE a.action = s.operation AND a.occurred_at = s.created_at"
        " AND a.resource = replace(s.resource_id::text, '-', '')))",
    ),
    Invariant(
        "INV-37",
        "at most 16 evidence rows an attempt",
        "SELECT attempt_id FROM evidence GROUP BY attempt_id HAVING count(*) > 16",
    ),
    Invariant(
        "OP-20",
        "a revision counts the committed transitions and intents of its task",
        # An event without an attempt is a transition of the task alone: a deadline or a cancel
        # while it waited, a retry or a review by a person.
        "SELECT k.task_id FROM (SELECT task_id, revision FROM ready"
        " UNION ALL SELECT task_id, revision FROM lease UNION ALL SELECT id, revision"
        " FROM task WHERE state IS NOT NULL) k LEFT JOIN (SELECT resource_id, count(*) AS number"
        " FROM event WHERE resource_type = 'task' AND attempt_id IS NULL GROUP BY resource_id) e"
        " ON e.resource_id = k.task_id LEFT JOIN (SELECT task_id, sum(1 + g.started::integer"
        " + g.over::integer + (g.started AND g.intent IS NOT NULL)::integer) AS number"
        f" FROM ({_GRANTS}) g GROUP BY task_id) g ON g.task_id = k.task_id"
        " WHERE k.revision <> 1 + coalesce(e.number, 0) + coalesce(g.number, 0)",
    ),
)


async def violations(connection: Connection) -> list[str]:
    """One line for each broken invariant: its number, its promise and the first breaches."""
    found = []
    async with connection.transaction(isolation="repeatable_read"):
        for invariant in INVARIANTS:
            rows = await connection.fetch(invariant.breaches)
            if rows:
                shown = ", ".join(str(row[0]) for row in rows[:SHOWN_MAX])
                found.append(
                    f"{invariant.number} {invariant.promise}: {len(rows)} breaches, {shown}"
                )
    return found
