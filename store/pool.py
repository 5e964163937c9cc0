"""Connections to Postgres: four pools, so that no kind of traffic can starve another.

Submissions, renewals, the other commands of running attempts, and background work each have their
own connections (INV-20): renewals and finishes go on at full submit load. The pools of attempts are
large since a store that is slow to commit needs many calls at once (B-04); beyond the few that a
quick one needs connections are opened then, and closed when nobody has used them for long. Ids
travel as 32 hex digits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import asyncpg

LOCK_WAIT_S = 2
"""How long a statement waits for what another transaction holds. Ours are over in milliseconds; one
that is not must not hold up a whole batch for long, nor make its node look stuck (3 s)."""

SERVER_SETTINGS = {
    "application_name": "orbit",
    "timezone": "UTC",
    "jit": "off",
    "statement_timeout": "15s",
    "lock_timeout": f"{LOCK_WAIT_S}s",
    "idle_in_transaction_session_timeout": "15s",
}
"""Enforced limits, so that no transaction of ours can hold the horizon (INV-24)."""

SPARE_LIFETIME_S = 600.0
"""How long a connection of an attempt's pool is kept unused; the latest used one is taken first."""

CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 20.0
"""Above the server's own statement limit: the server answers first, unless the link is dead."""


async def prepare_connection(connection: asyncpg.Connection[Any]) -> None:
    """Make a connection speak ids as 32 lowercase hex digits, in arrays as well."""
    await connection.set_type_codec(
        "uuid", schema="pg_catalog", encoder=bytes.fromhex, decoder=bytes.hex, format="binary"
    )


async def connect(dsn: str) -> asyncpg.Connection[Any]:
    """Open one connection outside the pools (migrations, tools)."""
    connection: asyncpg.Connection[Any] = await asyncpg.connect(
        dsn, server_settings=SERVER_SETTINGS, timeout=CONNECT_TIMEOUT_S
    )
    await prepare_connection(connection)
    return connection


async def _keep(_connection: asyncpg.Connection[Any]) -> None:
    """Return a connection as it is: our statements leave no session state behind."""


async def _open_pool(
    dsn: str, size: int, *, first: int = 1, lifetime_s: float = 0.0
) -> asyncpg.Pool[Any]:
    return await asyncpg.create_pool(
        dsn,
        min_size=first,
        max_size=size,
        init=prepare_connection,
        reset=_keep,
        server_settings=SERVER_SETTINGS,
        command_timeout=COMMAND_TIMEOUT_S,
        timeout=CONNECT_TIMEOUT_S,
        max_inactive_connection_lifetime=lifetime_s,
    )


@dataclass(frozen=True, slots=True)
class Pools:
    """The four pools of one process."""

    submit: asyncpg.Pool[Any]
    lease: asyncpg.Pool[Any]
    renew: asyncpg.Pool[Any]
    background: asyncpg.Pool[Any]

    async def close(self, timeout_s: float = 5.0) -> None:
        """Close politely; connections still busy after the timeout are cut."""
        pools = (self.submit, self.lease, self.renew, self.background)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(pool.close() for pool in pools))
        except TimeoutError:
            for pool in pools:
                pool.terminate()


async def open_pools(
    dsn: str, submit: int = 2, lease: int = 12, renew: int = 9, background: int = 4
) -> Pools:
    """Open the four pools of the given sizes. Raises OSError or asyncpg errors when away."""
    opened: list[asyncpg.Pool[Any]] = []
    try:
        opened.append(await _open_pool(dsn, submit))
        opened.append(await _open_pool(dsn, lease, lifetime_s=SPARE_LIFETIME_S))
        opened.append(await _open_pool(dsn, renew, first=0, lifetime_s=SPARE_LIFETIME_S))
        opened.append(await _open_pool(dsn, background))
    except BaseException:
        for pool in opened:
            pool.terminate()
        raise
    return Pools(*opened)
