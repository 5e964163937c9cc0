"""The store walks along the outcome table: five acts on one task in all orders (INV-18, OP-28).

Each walk begins with a granted attempt; each act's answer, the task and its attempt are compared
with the row that the table has for it. A task that waits at the end can still be carried out.
"""

from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from orbit_sdk.protocol.outcomes import Act, Answer, Row, Standing, row_for
from orbit_sdk.protocol.states import AttemptState, RecoverySafety
from store import dispatch
from store.commands import AttemptCommand, CommandOutcome
from store.operations import TaskOutcome
from tests.store.world import DAY_MS, LEASE_MS, Worker, World

DEADLINE_MS = 20_000
REPORTS = {
    Act.FINISH_SUCCEEDED: ("SUCCEEDED", None),
    Act.FINISH_FAILED: ("FAILED", "smtp.down"),
    Act.FINISH_STOPPED: ("FAILED", "cancelled"),
    Act.FINISH_CANCELLED: ("CANCELLED", "cancelled"),
    Act.FINISH_UNKNOWN: ("UNKNOWN", "link.cut"),
}
VERDICTS = {
    Act.RESOLVE_SUCCEEDED: "SUCCEEDED",
    Act.RESOLVE_FAILED: "FAILED",
    Act.RESOLVE_CANCELLED: "CANCELLED",
}


class Walk:
    """One task, its first attempt, and where the table says they stand."""

    def __init__(self, world: World, start: AttemptCommand, deadline_ms: int | None) -> None:
        self.world = world
        self.start = start
        self.ends_at = world.at(deadline_ms or DAY_MS)
        self.stands = Standing.LEASED
        self.attempt = AttemptState.LEASED

    async def act(self, act: Act) -> Answer:
        """Do it on the store, under a new message; the answer in the words of the table."""
        world, task_id = self.world, self.start.task_id
        match act:
            case Act.START:
                return answer_of(await world.start(world.again(self.start)))
            case Act.CANCEL:
                return answer_of_operation(await world.cancel(task_id))
            case Act.RETRY:
                passed = self.ends_at <= world.now
                deadline = world.at(DAY_MS) if passed else None
                return answer_of_operation(await world.retry(task_id, deadline_at=deadline))
            case Act.LAPSE:
                world.wait(LEASE_MS)
                await world.sweep()
                return Answer.NOTHING
            case Act.DEADLINE:
                world.now = max(world.now, self.ends_at)
                await world.sweep()
                await dispatch.expire_ready(world.connection, 100, now=world.now)
                return Answer.NOTHING
            case _ if act in VERDICTS:
                return answer_of_operation(await world.resolve(task_id, VERDICTS[act]))
            case _:
                outcome, code = REPORTS[act]
                meaning = bytes.fromhex(world.id()) * 2
                report = world.finish_of(self.start, outcome=outcome, error_code=code, hash=meaning)
                return answer_of(await world.finish(report))

    def follow(self, row: Row) -> None:
        """Stand where the row leads."""
        self.stands = row.task or self.stands
        self.attempt = row.attempt or self.attempt

    async def seen(self) -> tuple[Any, ...]:
        """Where a reader sees them."""
        view = await self.world.view(self.start.task_id)
        attempts = {a.id: a for a in await self.world.attempts(self.start.task_id)}
        attempt = attempts[self.start.attempt_id]
        return view.state, attempt.state, attempt.intent if attempt.finished_at is None else None

    def expected(self) -> tuple[Any, ...]:
        intents = {Standing.STOPPING: "caller", Standing.OVERDUE: "deadline"}
        return self.stands.state, self.attempt, intents.get(self.stands)


def answer_of(outcome: CommandOutcome) -> Answer:
    if outcome.code != "ok":
        assert outcome.code == "operation_conflict"
        return Answer.OPERATION_CONFLICT
    if outcome.disposition == "EVIDENCE_ONLY":
        return Answer.EVIDENCE
    return Answer.REPEATED if outcome.deduplicated else Answer.APPLIED


def answer_of_operation(outcome: TaskOutcome) -> Answer:
    words = {"done": Answer.DONE, "intent": Answer.INTENT, "state_conflict": Answer.STATE_CONFLICT}
    return words[outcome.code]


async def walk(
    world: World,
    worker: Worker,
    acts: tuple[Act, ...],
    safety: RecoverySafety,
    tries: int,
    deadline_ms: int | None,
) -> None:
    changes = {} if deadline_ms is None else {"deadline_at": world.at(deadline_ms)}
    [start] = await world.leased(worker, recovery_safety=safety, max_attempts=tries, **changes)
    task = Walk(world, start, deadline_ms)
    for act in acts:
        row = row_for(act, task.stands, safety, try_left=tries > 1)
        answer = await task.act(act)
        task.follow(row)
        story = f"{act} of {' · '.join(acts)} ({safety}, {tries})"
        assert answer is row.answer, story
        assert await task.seen() == task.expected(), story
    await carry_out(world, worker, task)


async def carry_out(world: World, worker: Worker, task: Walk) -> None:
    """Whatever waits now is not lost: it can be granted, started and finished."""
    if task.stands is not Standing.WAITING:
        return
    world.wait(1_000)
    [again] = await world.granted(worker, [task.start.task_id])
    assert again.epoch == task.start.epoch + 1
    assert (await world.start(again)).active
    assert (await world.finish(world.finish_of(again))).task_state == "SUCCEEDED"


@pytest.mark.parametrize(
    ("safety", "tries"),
    [
        (RecoverySafety.IDEMPOTENT, 1),
        (RecoverySafety.IDEMPOTENT, 2),
        (RecoverySafety.RECONCILE_ONLY, 2),
    ],
)
@pytest.mark.parametrize("report", list(REPORTS))
@pytest.mark.parametrize("end", [Act.LAPSE, Act.DEADLINE])
async def test_all_orders_end_in_a_row_of_the_table(
    world: World, end: Act, report: Act, safety: RecoverySafety, tries: int
) -> None:
    deadline_ms = DEADLINE_MS if end is Act.DEADLINE else None
    for acts in permutations((Act.CANCEL, Act.START, report, end, Act.RETRY)):
        worker = await world.worker()
        await walk(world, worker, acts, safety, tries, deadline_ms)
        await world.close_session(worker.session_id)


PATHS: dict[Standing, tuple[Act, ...]] = {
    Standing.WAITING: (Act.CANCEL, Act.RETRY),
    Standing.LEASED: (),
    Standing.RUNNING: (Act.START,),
    Standing.STOPPING: (Act.START, Act.CANCEL),
    Standing.OVERDUE: (Act.START, Act.DEADLINE),
    Standing.SUCCEEDED: (Act.START, Act.FINISH_SUCCEEDED),
    Standing.FAILED: (Act.START, Act.FINISH_FAILED),
    Standing.CANCELLED: (Act.CANCEL,),
    Standing.NEEDS_REVIEW: (Act.START, Act.FINISH_UNKNOWN),
}


@pytest.mark.parametrize("safety", list(RecoverySafety))
@pytest.mark.parametrize("stands", list(Standing))
async def test_every_act_wherever_a_task_stands(
    world: World, stands: Standing, safety: RecoverySafety
) -> None:
    """The rest of the table: every act from every standing, the reviews among them."""
    for act in Act:
        world.now += timedelta(days=1)
        deadline_ms = DEADLINE_MS if Act.DEADLINE in (act, *PATHS[stands]) else None
        worker = await world.worker()
        await walk(world, worker, (*PATHS[stands], act), safety, 1, deadline_ms)
        await world.close_session(worker.session_id)
