"""The migration runner: any number at once, in order, never a changed past."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from store import migrate as runner
from store import pool
from store.migrate import MigrationError, check_version, migrate
from tests.store.waits import waiting
from tests.stores import Stores


@pytest.fixture
async def empty_url(stores: Stores) -> AsyncIterator[str]:
    """A database with nothing in it."""
    async with _empty(stores) as url:
        yield url


@asynccontextmanager
async def _empty(stores: Stores) -> AsyncIterator[str]:
    async with stores.database() as url:
        connection = await asyncpg.connect(url)
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await connection.close()
        yield url


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Migrations of this test's own, with one function file."""
    (tmp_path / "migrations").mkdir()
    (tmp_path / "functions").mkdir()
    write_function(tmp_path, "SELECT 1")
    own_migrations, own_functions = runner.migration_files, runner.function_files
    monkeypatch.setattr(runner, "migration_files", lambda: own_migrations(tmp_path / "migrations"))
    monkeypatch.setattr(runner, "function_files", lambda: own_functions(tmp_path / "functions"))
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    (folder / "migrations" / name).write_text(text)


def write_function(folder: Path, body: str) -> None:
    (folder / "functions" / "answer_v1.sql").write_text(
        f"CREATE OR REPLACE FUNCTION answer_v1() RETURNS integer LANGUAGE sql AS $$ {body} $$;"
    )


async def value(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def reason(url: str) -> str | None:
    connection = await pool.connect(url)
    try:
        return await check_version(connection)
    finally:
        await connection.close()


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_five_runners_at_once_apply_everything_once(stores: Stores, turn: int) -> None:
    async with _empty(stores) as url:
        applied = await asyncio.gather(*(migrate(url) for _ in range(5)))
        expected = [f.name for f in (*runner.migration_files(), *runner.function_files())]
        assert sorted(applied, key=len) == [[], [], [], [], expected]
        assert await reason(url) is None
        assert await migrate(url) == []


async def test_an_empty_database_says_what_to_do(empty_url: str) -> None:
    assert await reason(empty_url) == "the database is empty: run `orbit migrate`"


async def test_a_gap_is_refused(folder: Path, empty_url: str) -> None:
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    write(folder, "0003_three.sql", "CREATE TABLE three (n int)")
    with pytest.raises(MigrationError, match="expected number 0002"):
        await migrate(empty_url)


@pytest.mark.parametrize("name", ["1_one.sql", "0001-one.sql", "0001_One.sql"])
async def test_an_odd_name_is_refused(folder: Path, empty_url: str, name: str) -> None:
    write(folder, name, "CREATE TABLE one (n int)")
    with pytest.raises(MigrationError, match="expected number 0001"):
        await migrate(empty_url)


async def test_an_edited_file_is_refused(folder: Path, empty_url: str) -> None:
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    await migrate(empty_url)
    write(folder, "0001_one.sql", "CREATE TABLE one (n bigint)")
    with pytest.raises(MigrationError, match="0001_one was edited"):
        await migrate(empty_url)
    assert "edited" in (await reason(empty_url) or "")


async def test_a_newer_database_is_left_alone(folder: Path, empty_url: str) -> None:
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    write(folder, "0002_two.sql", "CREATE TABLE two (n int)")
    await migrate(empty_url)
    (folder / "migrations" / "0002_two.sql").unlink()
    write_function(folder, "SELECT 2")
    with pytest.raises(MigrationError, match="version 2, this build knows 1"):
        await migrate(empty_url)
    assert await value(empty_url, "SELECT answer_v1()") == 1
    assert "newer than this build" in (await reason(empty_url) or "")


async def test_a_migration_is_applied_whole_or_not_at_all(folder: Path, empty_url: str) -> None:
    write(folder, "0001_one.sql", "CREATE TABLE one (n int); SELECT 1 / 0;")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty_url)
    assert await value(empty_url, "SELECT to_regclass('one')") is None
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    assert await migrate(empty_url) == ["one", "answer_v1"]


async def test_a_changed_function_is_replaced(folder: Path, empty_url: str) -> None:
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    await migrate(empty_url)
    write_function(folder, "SELECT 2")
    assert "functions" in (await reason(empty_url) or "")
    assert await migrate(empty_url) == ["answer_v1"]
    assert await value(empty_url, "SELECT answer_v1()") == 2
    assert await reason(empty_url) is None


CONCURRENT_INDEX = "-- no-transaction\nCREATE INDEX CONCURRENTLY IF NOT EXISTS one_n ON one (n)"


async def test_an_index_is_made_concurrently_while_other_runners_wait(
    folder: Path, empty_url: str
) -> None:
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    await migrate(empty_url)
    write(folder, "0002_index.sql", CONCURRENT_INDEX)
    watcher, writer = await asyncpg.connect(empty_url), await asyncpg.connect(empty_url)
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("INSERT INTO one VALUES (1)")
    runners = [asyncio.create_task(migrate(empty_url)) for _ in range(5)]
    await waiting(watcher, 1)  # the index waits for the writer, the runners for the index
    await transaction.commit()
    assert sorted(await asyncio.gather(*runners), key=len) == [[], [], [], [], ["index"]]
    assert await value(
        empty_url, "SELECT indisvalid FROM pg_index WHERE indexrelid::regclass::text = 'one_n'"
    )
    for connection in (watcher, writer):
        await connection.close()


async def test_a_repeated_check_reads_no_file_that_has_not_changed(
    folder: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node asks for ever: what it asks must not cost more than a look at the folder."""
    write(folder, "0001_one.sql", "CREATE TABLE one (n int)")
    await migrate(empty_url)
    assert await reason(empty_url) is None
    read: list[str] = []
    own_read = Path.read_text

    def noted(path: Path) -> str:
        read.append(path.name)
        return own_read(path)

    monkeypatch.setattr(Path, "read_text", noted)
    assert await reason(empty_url) is None
    assert read == []
    write_function(folder, "SELECT 2")
    assert "functions" in (await reason(empty_url) or "")
    assert read == ["answer_v1.sql"]
