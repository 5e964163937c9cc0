"""Waiting until Postgres itself says that a backend waits for a lock: no sleeping, no guessing."""

import asyncio
import time
from typing import Any

import asyncpg

PATIENCE_S = 10.0


async def lock_waiters(url: str, count: int) -> None:
    """Return when that many backends of this database wait for a lock. Raises TimeoutError."""
    watcher = await asyncpg.connect(url)
    try:
        await waiting(watcher, count)
    finally:
        await watcher.close()


async def waiting(watcher: "asyncpg.Connection[Any]", count: int) -> None:
    """The same on a connection that is at hand."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = await watcher.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        )
        if found >= count:
            return
        await asyncio.sleep(0)
    raise TimeoutError(f"nobody waits for a lock: {found} of {count}")
