"""Calls to the store: a connection of the right pool, one deadline, and no connection left unclean.

Where: under the lanes, the queries of the HTTP API and the loops; nothing else takes connections.
Promises: a call ends within its deadline; a connection whose call was cancelled, timed out or broke
is closed and never used again (INV-38); the pools open as soon as Postgres can be reached, so a
node may start before its database does.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import asyncpg

from gateway import limits
from gateway.faults import Fault
from runtime import failpoints
from store.pool import Pools

P = ParamSpec("P")
T = TypeVar("T")


class Pool(Enum):
    """Which traffic a call belongs to (INV-20)."""

    SUBMIT = "submit"
    LEASE = "lease"
    RENEW = "renew"
    BACKGROUND = "background"


class StoreAwayError(OSError):
    """No pool is open yet."""


_PASSING_CLASSES: Final = frozenset({"08", "25", "40", "53", "55", "57", "58"})
"""Connection, read-only after a failover, rollback, resources, locks, operator, system (appendix A
of the Postgres manual): the same call may succeed later."""


AWAY_ERRORS: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
)
"""What an absent store raises: worth a line in a log, not a trace."""


def is_passing(error: Exception) -> bool:
    """Whether the store was away or busy, rather than refusing what it was given."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "")[:2] in _PASSING_CLASSES
    return isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def fault_of(error: Exception) -> Fault:
    """What the error says of the batch that it came for."""
    if isinstance(error, asyncpg.LockNotAvailableError):
        return Fault.LOCKED
    return Fault.AWAY if is_passing(error) else Fault.GUILTY


class StoreCalls:
    """The pools of this process, once they are open."""

    def __init__(self, open_pools: Callable[[], Awaitable[Pools]]) -> None:
        self._open_pools = open_pools
        self._pools: dict[Pool, asyncpg.Pool[Any]] = {}
        self._opened: Pools | None = None
        self._reads = asyncio.Semaphore(limits.READS_MAX)

    @property
    def is_open(self) -> bool:
        """Whether the pools have been opened; they stay so, whatever becomes of Postgres."""
        return self._opened is not None

    async def open(self) -> None:
        """Open the pools if they are not; raises what `is_passing` accepts when that fails."""
        if self._opened is None:
            opened = await self._open_pools()
            self._opened = opened
            self._pools = {
                Pool.SUBMIT: opened.submit,
                Pool.LEASE: opened.lease,
                Pool.RENEW: opened.renew,
                Pool.BACKGROUND: opened.background,
            }

    async def close(self) -> None:
        """Close the pools."""
        if self._opened is not None:
            await self._opened.close()

    async def run(
        self,
        which: Pool,
        timeout_s: float,
        work: Callable[Concatenate[Any, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """`await work(connection, …)` within the deadline, waiting for a connection included."""
        pool = self._pools.get(which)
        if pool is None:
            raise StoreAwayError("the database has not been reached yet")
        async with asyncio.timeout(timeout_s):
            connection = await pool.acquire()
            try:
                if failpoints.armed:
                    await failpoints.reach(f"gateway.{work.__name__}.before")
                answer = await work(connection, *args, **kwargs)
                if failpoints.armed:
                    # Committed, and nobody here knows: a `drop` is a lost answer.
                    await failpoints.reach(f"gateway.{work.__name__}.after")
                return answer
            except BaseException as error:
                if not isinstance(error, asyncpg.PostgresError):
                    connection.terminate()
                raise
            finally:
                await pool.release(connection)

    async def read(
        self,
        work: Callable[Concatenate[Any, P], Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """A query on behalf of a request: few at once, so that beats keep their connections."""
        async with asyncio.timeout(limits.READ_TIMEOUT_S), self._reads:
            return await self.run(Pool.BACKGROUND, limits.READ_TIMEOUT_S, work, *args, **kwargs)
