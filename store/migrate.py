"""Bring a database to the version this build expects: numbered tables first, then the functions.

`migrations/NNNN_name.sql` run once each, in order, without gaps, each in one transaction with its
bookkeeping row (a file that opens with `-- no-transaction` holds one idempotent statement and runs
alone). `functions/*.sql` are versioned by name and replaced whenever their text changed. Any number
of runners may start at once: one works, the others wait by polling, since a waiter inside
`pg_advisory_lock()` would hold a snapshot that `CREATE INDEX CONCURRENTLY` waits for.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import asyncpg

from store import pool

LOCK_KEY = (20593, 1)
LOCK_WAIT_S = 120.0
LOCK_POLL_S = 0.1
FOLDER = Path(__file__).parent
FILES_KNOWN_MAX = 1_000


class MigrationError(Exception):
    """The database and this build do not fit; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file of SQL: its place in the order, its name, its text and the digest of that in hex."""

    version: int
    name: str
    text: str
    sha256: str


def migration_files(folder: Path = FOLDER / "migrations") -> list[SqlFile]:
    """Read the numbered migrations. Raises MigrationError for a gap or an odd name."""
    files = []
    for place, path in enumerate(sorted(folder.glob("*.sql")), start=1):
        match = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", path.name)
        if match is None or int(match[1]) != place:
            raise MigrationError(f"migration {path.name}: expected number {place:04d}")
        files.append(_read(path, place, match[2]))
    return files


def function_files(folder: Path = FOLDER / "functions") -> list[SqlFile]:
    """Read the function files, one function each, named after it."""
    return [_read(path, 0, path.stem) for path in sorted(folder.glob("*.sql"))]


def _read(path: Path, version: int, name: str) -> SqlFile:
    stat = path.stat()
    return _read_once(path, stat.st_mtime_ns, stat.st_size, version, name)


@lru_cache(FILES_KNOWN_MAX)
def _read_once(path: Path, _changed_ns: int, _size: int, version: int, name: str) -> SqlFile:
    """A node asks every half minute whether the database fits: that must not read fifty files."""
    text = path.read_text()
    return SqlFile(version, name, text, hashlib.sha256(text.encode()).hexdigest())


async def migrate(dsn: str) -> list[str]:
    """Apply what is missing and return the names of what was applied.

    Raises MigrationError when an applied file was edited, when the database is newer than this
    build, or when another runner holds the lock for too long.
    """
    connection = await pool.connect(dsn)
    try:
        await connection.execute("SET statement_timeout = 0; SET lock_timeout = '60s'")
        await _take_lock(connection)
        try:
            return await _apply(connection)
        finally:
            await connection.execute("SELECT pg_advisory_unlock($1::int, $2::int)", *LOCK_KEY)
    finally:
        await connection.close()


async def check_version(connection: asyncpg.Connection[Any]) -> str | None:
    """Say in one line why the database does not fit this build, or None when it does."""
    try:
        rows = await connection.fetch("SELECT version, sha256 FROM schema_migration")
        functions = await connection.fetch("SELECT name, sha256 FROM schema_function")
    except asyncpg.UndefinedTableError:
        return "the database is empty: run `orbit migrate`"
    applied = {row["version"]: row["sha256"] for row in rows}
    expected = {file.version: file.sha256 for file in migration_files()}
    if max(applied, default=0) > len(expected):
        return f"the database is at version {max(applied)}, newer than this build: upgrade Orbit"
    if applied != expected:
        return "the database is older than this build or was edited: run `orbit migrate`"
    known = {row["name"]: row["sha256"] for row in functions}
    if any(known.get(file.name) != file.sha256 for file in function_files()):
        return "the functions are not those of this build: run `orbit migrate`"
    return None


async def _take_lock(connection: asyncpg.Connection[Any]) -> None:
    waited = 0.0
    while not await connection.fetchval("SELECT pg_try_advisory_lock($1::int, $2::int)", *LOCK_KEY):
        if waited >= LOCK_WAIT_S:
            raise MigrationError("another migration holds the lock; try again when it is done")
        await asyncio.sleep(LOCK_POLL_S)
        waited += LOCK_POLL_S


async def _apply(connection: asyncpg.Connection[Any]) -> list[str]:
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS schema_migration (version integer PRIMARY KEY,"
        " name text NOT NULL, sha256 text NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT clock_timestamp());"
        "CREATE TABLE IF NOT EXISTS schema_function (name text PRIMARY KEY,"
        " sha256 text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
    rows = await connection.fetch("SELECT version, name, sha256 FROM schema_migration")
    known = {row["version"]: row for row in rows}
    files = migration_files()
    if max(known, default=0) > len(files):
        raise MigrationError(
            f"the database is at version {max(known)}, this build knows {len(files)}: upgrade Orbit"
        )
    done = []
    for file in files:
        if file.version not in known:
            await _apply_migration(connection, file)
            done.append(file.name)
        elif known[file.version]["sha256"] != file.sha256:
            raise MigrationError(
                f"migration {file.version:04d}_{file.name} was edited after it was applied:"
                " put the file back as it was and add a new one"
            )
    return done + await _apply_functions(connection)


async def _apply_migration(connection: asyncpg.Connection[Any], file: SqlFile) -> None:
    note = "INSERT INTO schema_migration (version, name, sha256) VALUES ($1, $2, $3)"
    if file.text.startswith("-- no-transaction"):
        await connection.execute(file.text)
        await connection.execute(note, file.version, file.name, file.sha256)
        return
    async with connection.transaction():
        await connection.execute(file.text)
        await connection.execute(note, file.version, file.name, file.sha256)


async def _apply_functions(connection: asyncpg.Connection[Any]) -> list[str]:
    rows = await connection.fetch("SELECT name, sha256 FROM schema_function")
    known = {row["name"]: row["sha256"] for row in rows}
    changed = [file for file in function_files() if known.get(file.name) != file.sha256]
    if not changed:
        return []
    async with connection.transaction():
        await connection.execute("SET LOCAL check_function_bodies = off")
        for file in changed:
            await connection.execute(file.text)
            await connection.execute(
                "INSERT INTO schema_function (name, sha256) VALUES ($1, $2)"
                " ON CONFLICT (name) DO UPDATE SET sha256 = $2, applied_at = clock_timestamp()",
                file.name,
                file.sha256,
            )
    return [file.name for file in changed]
