"""The demo's checks find what is wrong: they are tried on notes and tables that are."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from examples.show.checks import check_kill, check_notes
from examples.show.database import Database
from examples.show.notebook import Run
from examples.show.story import Kill, Return, Told
from examples.show.work import SURVEYS, Truth, plan_work

RUN = "demo-test"
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def run(attempt: str, began: int, ended: int) -> Run:
    return Run("task", attempt, 1, began, ended)


def kinds(runs: list[Run], successes: dict[str, str]) -> dict[str, int]:
    return {check.kind: check.wrong for check in check_notes({"task": runs}, successes)}


def test_calls_one_after_the_other_are_fine() -> None:
    found = kinds([run("a", 0, 5), run("b", 5, 9)], {"task": "b"})
    assert found == {"double_starts": 0, "stray_calls": 0}


def test_calls_at_one_time_are_found() -> None:
    assert kinds([run("a", 0, 6), run("b", 5, 9)], {"task": "b"})["double_starts"] == 1


def test_a_success_that_no_handler_noted_is_found() -> None:
    assert kinds([run("a", 0, 5)], {"task": "b"})["stray_calls"] == 1


def test_an_attempt_that_ran_twice_is_found() -> None:
    assert kinds([run("a", 0, 5), run("a", 6, 7)], {"task": "a"})["stray_calls"] == 1


def test_a_worker_that_did_not_come_back_is_found() -> None:
    kill = Kill("gateway-1", "n" * 32, NOON, sessions=2, running=0)
    kill.returns.append(Return("worker 1", "gateway-2", 0.3))
    assert check_kill(Told(kill=kill), 0).wrong == 1
    assert not check_kill(Told(), 0).passed


def test_work_covers_each_file_and_leaves_hidden_folders_alone(tmp_path: Path) -> None:
    for name in ("README", "deep/b.txt", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("two words\n")
    work = plan_work(tmp_path, 100)
    assert [source.path.name for source in work.sources] == ["README", "b.txt"]
    assert len(work.errands) == 100
    assert sum(errand.handler == "folder.survey" for errand in work.errands) == SURVEYS
    assert len({work.submission(number, RUN).key for number in range(100)}) == 100
    assert not work.more
    truth = Truth(work)
    words = next(errand for errand in work.errands if errand.handler == "file.words")
    assert truth.result_of(words) == {"words": 2}
    assert truth.still_holds(words)
    (tmp_path / "README").write_text("now three words\n")
    assert not truth.still_holds(words)


def test_work_is_bounded_by_the_tasks(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text("x")
    work = plan_work(tmp_path, 100)
    assert len(work.sources) == (100 - SURVEYS) // 3
    assert work.more


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A run of one succeeded task, with one attempt from 12:00:00 to 12:00:10."""
    opened = await Database.open(database_url, RUN)
    await opened.connection.execute("SET default_transaction_read_only = off")
    await add_task(opened, "1" * 32, "SUCCEEDED")
    await add_attempt(opened, "a" * 32, 1, 0, 10, "SUCCEEDED")
    yield opened
    await opened.close()


async def add_task(database: Database, task_id: str, state: str | None) -> None:
    await database.connection.execute(
        "INSERT INTO task (id, namespace_id, queue_id, route_id, priority, business_key, payload,"
        " recovery_safety, max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms,"
        " available_at, deadline_at, created_at, state, attempt_count)"
        " VALUES ($1, $2, $2, 1, 0, $3, '1', 'IDEMPOTENT', 3, 1, 1, 1, $4, $4, $4, $5, 1)",
        task_id,
        "e" * 32,
        RUN,
        NOON,
        state,
    )


async def add_attempt(
    database: Database, attempt_id: str, epoch: int, began_s: int, ended_s: int, state: str
) -> None:
    await database.connection.execute(
        "INSERT INTO attempt (id, task_id, namespace_id, instance_id, session_id, epoch, state,"
        " granted_at, started_at, finished_at, lease_until, task_state, task_revision)"
        " VALUES ($1, $2, $3, $3, $3, $4, $5, $6, $6, $7, $8, 'WAITING', 1)",
        attempt_id,
        "1" * 32,
        "e" * 32,
        epoch,
        state,
        NOON + timedelta(seconds=began_s),
        NOON + timedelta(seconds=ended_s),
        NOON + timedelta(seconds=ended_s + 20),
    )


async def test_a_sound_run_has_nothing_wrong(database: Database) -> None:
    assert await database.unsettled(["1" * 32]) == 0
    assert await database.overlaps() == 0
    assert await database.without_one_success() == 0
    assert await database.miscounted() == 0
    assert await database.left_over() == 0


async def test_lost_tasks_are_found(database: Database) -> None:
    await add_task(database, "2" * 32, None)
    assert await database.unsettled(["1" * 32, "2" * 32, "3" * 32]) == 2


async def test_a_second_success_beside_the_first_is_found(database: Database) -> None:
    await add_attempt(database, "b" * 32, 2, 9, 12, "SUCCEEDED")
    assert await database.overlaps() == 1
    assert await database.without_one_success() == 1
    assert await database.miscounted() == 1


async def test_a_grant_inside_an_expired_lease_is_found(database: Database) -> None:
    # The first lease ran until 12:00:50, whatever was written down as its end.
    await add_attempt(database, "b" * 32, 2, 20, 30, "EXPIRED")
    await add_attempt(database, "c" * 32, 3, 40, 45, "FAILED")
    assert await database.overlaps() == 1


async def test_the_demo_itself_writes_nothing(database_url: str) -> None:
    opened = await Database.open(database_url, RUN)
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await add_task(opened, "1" * 32, None)
    await opened.close()
