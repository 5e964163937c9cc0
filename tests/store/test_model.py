"""The store against its model: any sequence of calls gives the same answers and the same state.

Hypothesis draws the sequences, shrinks one that fails and prints it as a replayable program.
A release run is longer: `make model`.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from store import dispatch as store
from store.commands import (
    NO_SESSION,
    AttemptCommand,
    CommandOutcome,
    FinishCommand,
    InstanceProof,
)
from store.invariants import violations
from store.operations import TaskOutcome
from tests.store.model import Answer, Attempt, Change, Instance, Model, Session, Task
from tests.store.world import SECRET_HASH, START, World

T = TypeVar("T")
C = TypeVar("C", AttemptCommand, FinishCommand)
Act = Callable[[Any], Coroutine[Any, Any, TaskOutcome]]
PICK = st.integers(0, 9)
"""An index into whatever there is, modulo; small ones are the newest."""
PAST = st.sampled_from(["", "", "", "own", "own", "foreign"])
"""Which instance sends a command past the sockets, if one does."""
RARELY = st.sampled_from([False] * 9 + [True])
STEPS = int(os.environ.get("ORBIT_MODEL_STEPS", "5000"))
SEQUENCE_STEPS = 50
SETTINGS = settings(
    max_examples=max(1, STEPS // SEQUENCE_STEPS),
    stateful_step_count=SEQUENCE_STEPS,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
STATE = """
SELECT t.id, coalesce(l.state, CASE WHEN r.task_id IS NOT NULL THEN 'WAITING' END, t.state),
       coalesce(l.revision, r.revision, t.revision),
       coalesce(l.attempt_count, r.attempt_count, t.attempt_count), coalesce(l.epoch, r.epoch),
       r.available_at, l.lease_until, t.error_code
FROM task t LEFT JOIN ready r ON r.task_id = t.id LEFT JOIN lease l ON l.task_id = t.id
ORDER BY t.id
"""


class StoreMachine(RuleBasedStateMachine):
    """Each rule acts on the store and on the model and compares the answers."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = self.run(World.create(url))
        self.model = Model()
        self.messages: list[str] = []
        self.done: list[tuple[Act, Any, Change]] = []
        """Operations that were carried out, with their first answers."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        found = self.run(violations(self.world.connection))
        self.run(self.world.close())
        self.runner.close()
        assert found == []

    # -- time and tasks ---------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 999, 1000, 1000, 2000, 5000, 5000, 10_000, 29_999, 30_000]))
    def wait(self, ms: int) -> None:
        self.world.wait(ms)
        self.model.now += ms

    @rule(
        safety=st.sampled_from(["IDEMPOTENT", "RECONCILE_ONLY"]),
        max_attempts=st.integers(1, 3),
        initial_ms=st.sampled_from([0, 1000, 20_000]),
        timeout_ms=st.sampled_from([5000, 40_000, 3_600_000]),
        priority=st.integers(-1, 1),
        available_ms=st.sampled_from([0, 0, -1000, 2000]),
        deadline_ms=st.sampled_from([3_600_000, 3_600_000, 45_000, 20_000, 0]),
        start_ms=st.sampled_from([None, None, 10_000]),
    )
    def submit(
        self, safety: str, max_attempts: int, initial_ms: int, timeout_ms: int, priority: int,
        available_ms: int, deadline_ms: int, start_ms: int | None,
    ) -> None:  # fmt: skip
        world, now = self.world, self.model.now
        item = world.task(
            recovery_safety=safety,
            max_attempts=max_attempts,
            initial_delay_ms=initial_ms,
            max_delay_ms=30_000,
            attempt_timeout_ms=timeout_ms,
            priority=priority,
            available_at=world.at(available_ms),
            deadline_at=world.at(deadline_ms),
            start_deadline_at=None if start_ms is None else world.at(start_ms),
        )
        task = Task(
            item.task_id, safety, max_attempts, initial_ms, 30_000, timeout_ms, priority,
            now + available_ms, now + deadline_ms, None if start_ms is None else now + start_ms,
        )  # fmt: skip
        [outcome] = self.run(world.submit(item))
        assert outcome.code == self.model.submit(task)

    @rule(limit=st.integers(0, 5))
    def peek(self, limit: int) -> None:
        wanted = [(self.world.route_id, limit)]
        found = self.run(store.peek_ready(self.world.connection, wanted, now=self.world.now))
        assert [ready.task_id for ready in found] == self.model.peek(limit)

    @rule(paused=st.sampled_from([False, False, False, True]))
    def pause(self, paused: bool) -> None:
        self.run(self.world.pause(paused))
        self.model.paused = paused

    @rule()
    def sweep(self) -> None:
        rows = self.run(self.world.sweep())
        ended = {row.attempt_id for row in rows if row.session_id is None}
        told = {(row.attempt_id, row.session_id) for row in rows if row.session_id is not None}
        assert (ended, told) == self.model.sweep()
        assert len(rows) == len(ended) + len(told)

    @rule()
    def expire_ready(self) -> None:
        swept = store.expire_ready(self.world.connection, 1000, now=self.world.now)
        assert self.run(swept) == self.model.expire_ready()

    # -- sessions ---------------------------------------------------------------------------

    @rule(pick=PICK, known=st.booleans(), capacity=st.integers(1, 4), long=st.booleans())
    def hello(self, pick: int, known: bool, capacity: int, long: bool) -> None:
        max_ms = 3_600_000 if long else 40_000
        changes: dict[str, Any] = {"capacity": capacity, "session_max_ms": max_ms}
        if known and self.model.instances:
            changes["instance_id"] = picked(list(self.model.instances), pick)
        worker = self.run(self.world.worker(**changes))
        session = self.model.hello(worker.instance_id, worker.session_id, capacity, max_ms)
        assert worker.outcome.epoch == session.epoch
        assert worker.outcome.draining == session.instance.draining

    @precondition(lambda self: self.model.sessions)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        session = self.session(pick)
        routes = self.run(self.world.close_session(session.id))
        assert len(routes) == self.model.close(session)

    @precondition(lambda self: self.model.sessions)
    @rule(pick=PICK, sequence=st.integers(1, 4), capacity=st.integers(0, 4), drain=RARELY)
    def set_capacity(self, pick: int, sequence: int, capacity: int, drain: bool) -> None:
        session = self.session(pick)
        outcome = self.run(self.world.set_capacity(session.id, sequence, capacity, drain))
        assert outcome.code == self.model.set_capacity(session, sequence, capacity, drain)

    # -- attempts ---------------------------------------------------------------------------

    @initialize(capacity=st.integers(2, 6))
    def begin(self, capacity: int) -> None:
        self.hello(0, known=False, capacity=capacity, long=True)
        for safety in ("IDEMPOTENT", "RECONCILE_ONLY", "IDEMPOTENT"):
            self.submit(safety, 2, 1000, 3_600_000, 0, 0, 3_600_000, None)

    @precondition(lambda self: self.usable())
    @rule(pick=PICK, limit=st.integers(1, 3), starts=st.booleans())
    def dispatch(self, pick: int, limit: int, starts: bool) -> None:
        """What a dispatcher and a prompt worker do: peek, claim, start."""
        session = picked(self.usable(), pick)
        before = len(self.model.attempts)
        self.claim_pairs([(task_id, session) for task_id in self.model.peek(limit)])
        for attempt in list(self.model.attempts.values())[before:] if starts else ():
            command = self.command_of(attempt, session, self.world.id())
            outcome = self.run(self.world.start(command))
            self.compare(outcome, self.model.start(session, attempt, command.message_id))

    @precondition(lambda self: self.model.sessions and self.model.tasks)
    @rule(picks=st.lists(st.tuples(PICK, PICK), min_size=1, max_size=6))
    def claim(self, picks: list[tuple[int, int]]) -> None:
        tasks = list(self.model.tasks)
        self.claim_pairs([(picked(tasks, one), self.session(other)) for one, other in picks])

    def claim_pairs(self, pairs: list[tuple[str, Session]]) -> None:
        claims = [
            store.ClaimPair(task_id, session.id, self.world.id()) for task_id, session in pairs
        ]
        won = self.run(store.claim_tasks(self.world.connection, claims, 30_000, now=self.world.now))
        expected = self.model.claim(
            (task_id, session, claim.attempt_id)
            for (task_id, session), claim in zip(pairs, claims, strict=True)
        )
        assert [assignment.attempt_id for assignment in won] == expected

    @precondition(lambda self: self.model.attempts)
    @rule(pick=PICK, session=PICK, own=st.integers(0, 3), message=PICK)
    def start(self, pick: int, session: int, own: int, message: int) -> None:
        command, attempt, by = self.command(pick, session, own, message)
        outcome = self.run(self.world.start(command))
        self.compare(outcome, self.model.start(by, attempt, command.message_id))

    @precondition(lambda self: self.model.attempts)
    @rule(pick=PICK, session=PICK, own=st.integers(0, 3), message=PICK, past=PAST)
    def renew(self, pick: int, session: int, own: int, message: int, past: str) -> None:
        command, attempt, by = self.command(pick, session, own, message)
        asker = self.asker(attempt, by, past)
        outcome = self.run(self.world.renew(asked_by(asker, command)))
        self.compare(outcome, self.model.renew(asker, attempt, command.message_id))

    @precondition(lambda self: self.model.attempts)
    @rule(
        pick=PICK,
        session=PICK,
        own=st.integers(0, 3),
        message=PICK,
        past=PAST,
        report=st.sampled_from(
            [
                ("SUCCEEDED", None),
                ("FAILED", "smtp.down"),
                ("FAILED", "cancelled"),
                ("FAILED", "fatal.x"),
                ("UNKNOWN", "link.cut"),
            ]
        ),
    )
    def finish(
        self, pick: int, session: int, own: int, message: int, past: str,
        report: tuple[str, str | None],
    ) -> None:  # fmt: skip
        command, attempt, by = self.command(pick, session, own, message)
        outcome, code = report
        finish = self.world.finish_of(
            command,
            message_id=command.message_id,
            outcome=outcome,
            error_code=code,
            hash=hashlib.sha256(f"{outcome} {code}".encode()).digest(),
        )
        asker = self.asker(attempt, by, past)
        expected = self.model.finish(asker, attempt, command.message_id, outcome, code)
        self.compare(self.run(self.world.finish(asked_by(asker, finish))), expected)

    @precondition(lambda self: self.model.attempts)
    @rule(pick=PICK, session=PICK, own=st.integers(0, 3))
    def resume(self, pick: int, session: int, own: int) -> None:
        command, attempt, by = self.command(pick, session, own, 0)
        outcome = self.run(self.world.resume(command))
        self.compare(outcome, self.model.resume(by, attempt))

    # -- operations -------------------------------------------------------------------------

    @precondition(lambda self: self.model.tasks)
    @rule(pick=PICK, named=st.booleans(), stale=RARELY)
    def cancel(self, pick: int, named: bool, stale: bool) -> None:
        task = self.task(pick, "RUNNING", "LEASED")
        expected = task.revision - stale if named or stale else None
        wish = self.world.cancellation(task.id, expected_revision=expected)
        self.operate(self.world.cancel_as, wish, self.model.cancel(task, expected))

    @precondition(lambda self: self.model.tasks)
    @rule(pick=PICK, ms=st.sampled_from([None, None, 40_000, 5_000, 0]), stale=RARELY)
    def retry(self, pick: int, ms: int | None, stale: bool) -> None:
        task = self.task(pick, "FAILED", "CANCELLED", "NEEDS_REVIEW")
        expected = task.revision - stale
        deadline_at = None if ms is None else self.world.at(ms)
        wish = self.world.another_try(task.id, expected, deadline_at=deadline_at)
        deadline = None if ms is None else self.model.now + ms
        self.operate(self.world.retry_as, wish, self.model.retry(task, expected, deadline))

    @precondition(lambda self: self.model.tasks)
    @rule(pick=PICK, outcome=st.sampled_from(["SUCCEEDED", "FAILED", "CANCELLED"]), stale=RARELY)
    def resolve(self, pick: int, outcome: str, stale: bool) -> None:
        task = self.task(pick, "NEEDS_REVIEW")
        expected = task.revision - stale
        wish = self.world.verdict(task.id, expected, outcome)
        self.operate(self.world.resolve_as, wish, self.model.resolve(task, expected, outcome))

    @precondition(lambda self: self.done)
    @rule(pick=PICK)
    def operate_again(self, pick: int) -> None:
        act, wish, first = picked(self.done, pick)
        if act == self.world.cancel_as:  # A repeat too settles what is over before it answers.
            self.model.settle_late(self.model.tasks[wish.task_id])
        again = self.run(act(wish))
        assert again.deduplicated
        assert Change(again.code, again.task_state, again.task_revision) == first

    def operate(self, act: Act, wish: Any, expected: Change) -> None:
        outcome = self.run(act(wish))
        assert not outcome.deduplicated
        assert outcome.code == expected.code
        assert outcome.task_revision == expected.revision
        assert outcome.task_state == expected.state
        if outcome.code in ("done", "intent"):
            self.done.append((act, wish, expected))

    @invariant()
    def the_tables_show_the_model(self) -> None:
        rows = self.run(self.world.connection.fetch(STATE))
        held = {a.task.id: a for a in self.model.attempts.values() if a.held}
        expected = []
        for task in sorted(self.model.tasks.values(), key=lambda task: task.id):
            waiting, attempt = task.state == "WAITING", held.get(task.id)
            expected.append(
                (
                    task.id,
                    task.state,
                    task.revision,
                    task.attempt_count,
                    task.epoch if waiting or attempt else None,
                    self.instant(task.available) if waiting else None,
                    self.instant(attempt.until) if attempt else None,
                    task.error,
                )
            )
        assert [tuple(row) for row in rows] == expected

    # -- drawing and comparing ----------------------------------------------------------------

    def task(self, pick: int, *states: str) -> Task:
        """Some task, mostly one in these states."""
        tasks = list(self.model.tasks.values())
        fitting = [task for task in tasks if task.state in states]
        return picked(fitting if fitting and pick < 8 else tasks, pick)

    def session(self, pick: int) -> Session:
        return picked(list(self.model.sessions.values()), pick)

    def instant(self, ms: int) -> Any:
        return START + timedelta(milliseconds=ms)

    def command(
        self, pick: int, session: int, own: int, message: int
    ) -> tuple[AttemptCommand, Attempt, Session]:
        """A command about some attempt, mostly from its own session, mostly a new message."""
        attempts = list(self.model.attempts.values())
        held = [attempt for attempt in attempts if attempt.held]
        attempt = picked(held if held and pick < 7 else attempts, pick)
        by = attempt.session
        if own == 0:
            by = self.session(session)
        elif own == 1:
            by = attempt.session.instance.current or by
        if message < 5 or not self.messages:
            self.messages.append(self.world.id())
        message_id = picked(self.messages, 0 if message < 5 else message - 5)
        return self.command_of(attempt, by, message_id), attempt, by

    def command_of(self, attempt: Attempt, by: Session, message_id: str) -> AttemptCommand:
        return AttemptCommand(
            self.world.namespace_id,
            by.id,
            self.world.gate_id,
            attempt.task.id,
            attempt.id,
            attempt.epoch,
            message_id,
        )

    def asker(self, attempt: Attempt, by: Session, past: str) -> Session | Instance:
        """The session, or an instance that asks past it: the attempt's own, or some other."""
        if not past:
            return by
        own = attempt.session.instance
        if past == "own":
            return own
        if len(self.model.instances) == 1:
            self.hello(0, known=False, capacity=1, long=True)
        others = [other for other in self.model.instances.values() if other is not own]
        return picked(others, 0)

    def usable(self) -> list[Session]:
        now = self.model.now
        return [s for s in self.model.sessions.values() if not s.closed and s.expires > now]

    def compare(self, outcome: CommandOutcome, expected: Answer) -> None:
        assert outcome.code == expected.code
        if expected.code != "ok":
            return
        assert (outcome.active, outcome.lease_state, outcome.lease_until) == (
            expected.active,
            expected.lease_state,
            self.instant(expected.lease_until),
        )
        assert outcome.settled == (expected.lease_state not in ("LEASED", "RUNNING"))
        if expected.receipt is not None:
            assert outcome.deduplicated == expected.deduplicated
            assert receipt_of(outcome) == (
                *expected.receipt[:3],
                self.instant(expected.receipt.until),
                expected.receipt.disposition,
            )


def asked_by(asker: Session | Instance, command: C) -> C:
    """The command as it is, or as an instance sends it for itself (OP-21)."""
    if isinstance(asker, Session):
        return command
    proof = InstanceProof(asker.id, SECRET_HASH)
    return msgspec.structs.replace(command, session_id=NO_SESSION, instance=proof)


def receipt_of(outcome: CommandOutcome) -> tuple[Any, ...]:
    return (
        outcome.task_state,
        outcome.attempt_state,
        outcome.task_revision,
        outcome.receipt_lease_until,
        outcome.disposition,
    )


def picked(things: list[T], index: int) -> T:
    """The newest thing for 0, older ones for more."""
    return things[-1 - index % len(things)]


@pytest.mark.timeout(60 + STEPS / 50)
def test_the_store_does_what_the_model_says(shared_url: str) -> None:
    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(shared_url)

    run_state_machine_as_test(Machine, settings=SETTINGS)
