"""Connections to Redis: short commands through a small pool, and one connection for a reader.

Where: under `store.bus`, which knows keys and messages; nobody else talks to Redis.
Promise: a call ends within its deadline; a connection whose call failed, timed out or was cancelled
is closed and never used again, so no reply can reach another caller (known from redis-py 2624 and
2665). Everything that goes wrong comes out as BusUnavailable.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

CONNECT_S = 1.0
CALL_S = 3.0  # a whole call: waiting for a connection, connecting, the second try
CONNECTIONS_MAX = 4  # calls are short and pipelined; more callers wait their turn
TRIES = 2  # the second for a pooled connection that the server closed meanwhile

Command = tuple[str | bytes | int, ...]
Reply = Any


class BusUnavailable(Exception):
    """Redis did not answer, or answered that it cannot work now.

    Nothing is lost: whoever catches it goes on with its slow twin and tries again later.
    """


class RedisLink:
    """Runs commands against one server. Safe to share between tasks; not between event loops."""

    def __init__(self, url: str) -> None:
        self._recipe = ConnectionPool.from_url(url)
        # Set after the URL was read, for its query must not be able to loosen them: RESP2 has one
        # shape of reply, and a retry inside the library would repeat a blocking read ten times.
        self._recipe.connection_kwargs.update(
            socket_connect_timeout=CONNECT_S,
            # Deadlines are ours, around each whole call: the library's own would send through
            # asyncio.wait_for, which swallows a cancel that comes at the wrong moment.
            socket_timeout=None,
            socket_keepalive=True,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            health_check_interval=0,
            decode_responses=False,
            driver_info=None,
        )
        self._idle: list[AbstractConnection] = []
        self._turns = asyncio.Semaphore(CONNECTIONS_MAX)

    async def call(self, commands: Sequence[Command]) -> list[Reply]:
        """Send all commands in one write and return their replies in order.

        An error reply to any of them raises BusUnavailable. If the connection fails, all are sent
        once more, so a command may be carried out twice.
        """
        try:
            async with asyncio.timeout(CALL_S), self._turns:
                for tries_left in range(TRIES - 1, -1, -1):
                    try:
                        return await self._call_once(commands)
                    except ResponseError:
                        raise
                    except (RedisError, OSError):
                        await self._close_idle(nowait=True)
                        if not tries_left:
                            raise
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            raise BusUnavailable(_line(error)) from error
        raise AssertionError("unreachable: the last try returns or raises")

    async def _call_once(self, commands: Sequence[Command]) -> list[Reply]:
        connection = self._idle.pop() if self._idle else self._recipe.make_connection()
        replies = await _exchange(connection, commands)
        self._idle.append(connection)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply
        return replies

    def own_connection(self) -> "OwnConnection":
        """A connection for one reader; it connects at its first call and must be closed."""
        return OwnConnection(self._recipe.make_connection())

    async def close(self) -> None:
        """Close idle connections. Calls still in flight close theirs when they end."""
        await self._close_idle(nowait=False)

    async def _close_idle(self, nowait: bool) -> None:
        while self._idle:
            await self._idle.pop().disconnect(nowait=nowait)


class OwnConnection:
    """One connection for blocking calls, with a deadline of its own for each call."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def call(self, commands: Sequence[Command], deadline_s: float) -> list[Reply]:
        """As RedisLink.call, without a second try. After a failure or a cancel it reconnects.

        An error reply is returned in its place as a ResponseError, for the caller to judge.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await _exchange(self._connection, commands)
        except (RedisError, OSError) as error:
            raise BusUnavailable(_line(error)) from error

    async def close(self) -> None:
        """Close the socket; the next call opens a new one."""
        await self._connection.disconnect()


async def _exchange(connection: AbstractConnection, commands: Sequence[Command]) -> list[Reply]:
    """Send all, read one reply each; error replies stand in their places.

    Leaves the connection either with every reply read or closed, whatever ends it.
    """
    whole = False
    try:
        await connection.send_packed_command(_pack(commands))
        replies: list[Reply] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(error)
        whole = True
        return replies
    finally:
        if not whole:
            await connection.disconnect(nowait=True)


def _pack(commands: Sequence[Command]) -> bytes:
    """The bytes of all commands. The library's own packing costs more than the rest of a call."""
    packed: list[bytes] = [pack_command(command) for command in commands]  # type: ignore[arg-type]
    return b"".join(packed)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
