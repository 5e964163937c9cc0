"""Reads Redis streams from a position, through every way in which Redis can fail.

Where: made by `Bus.reader`; one per process and duty, with a connection of its own.
Promise: plain XREAD without consumer groups, so a wiped Redis leaves nothing to be made again.
The reader keeps its position over errors; it notices a stream that was wiped, restored from an old
dump or written by a clock that went back, and starts that stream again from 0. Entries may so come
twice, and some not at all: trimmed ones, and one that was written right after a wipe under the very
id that was read last. Both are normal for its callers. Malformed entries are skipped and counted.
"""

import asyncio
import random
import time
from collections.abc import Mapping

from redis.exceptions import ResponseError

from store.messages import NOTHING_SEEN, Message, MessageError, decode_message, entry_order
from store.redis_link import BusUnavailable, Command, OwnConnection, RedisLink, Reply

REPLY_GRACE_S = 5.0  # over the block time, before a silent connection counts as dead
CHECK_S = 2.0  # how long a position ahead of its stream may go unnoticed
TRIM_S = 1.0  # how often the only reader of a stream trims what it has read
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 2.0
FIELD = b"m"


class StreamReader:
    """Yields messages of one or more streams. One `read` at a time; safe to cancel and go on.

    skipped_count: entries that were no message. restarts_count: times a stream began again from 0.
    """

    def __init__(
        self,
        link: RedisLink,
        kinds: Mapping[str, str],
        *,
        from_start: bool,
        sole_reader: bool,
        after: str = NOTHING_SEEN,
    ) -> None:
        """kinds: stream key to message kind. from_start: whether to read what is there already,
        from the entry `after` on.

        sole_reader: nobody else reads these streams, so what was read is trimmed away.
        """
        self._connection: OwnConnection = link.own_connection()
        self._kinds = {key.encode(): kind for key, kind in kinds.items()}
        self._positions: dict[bytes, str] = dict.fromkeys(self._kinds, after) if from_start else {}
        self._sole_reader = sole_reader
        self._check_due = True
        self._checked_at = self._trimmed_at = float("-inf")
        self._failures_in_row = 0
        self.skipped_count = 0
        self.restarts_count = 0

    async def read(self, block_ms: int, count: int) -> list[tuple[str, Message]]:
        """Up to `count` entries a stream, oldest first: (entry id, message); [] after `block_ms`.

        Raises BusUnavailable when Redis fails; the next call waits a little, capped at 2 s,
        connects anew and goes on from the same position.
        """
        assert block_ms > 0, "0 would block for ever"
        if self._failures_in_row:
            longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._failures_in_row - 1, 10))
            await asyncio.sleep(longest * random.uniform(0.5, 1.0))
        try:
            if self._check_due or time.monotonic() - self._checked_at > CHECK_S:
                await self._check_positions()
            entries = await self._read_once(block_ms, count)
        except BusUnavailable:
            self._failures_in_row += 1
            self._check_due = True
            raise
        self._failures_in_row = 0
        return entries

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def _read_once(self, block_ms: int, count: int) -> list[tuple[str, Message]]:
        keys = list(self._kinds)
        read: Command = (
            "XREAD", "COUNT", count, "BLOCK", block_ms,
            "STREAMS", *keys, *(self._positions[key] for key in keys),
        )  # fmt: skip
        before = self._trims()
        replies = await self._connection.call([*before, read], block_ms / 1000 + REPLY_GRACE_S)
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise BusUnavailable(f"ResponseError: {reply}")
        entries = []
        for key, rows in replies[-1] or ():
            for raw_id, fields in rows:
                entry_id = raw_id.decode()
                self._positions[key] = entry_id
                try:
                    entries.append((entry_id, decode_message(self._kinds[key], _message(fields))))
                except MessageError:
                    self.skipped_count += 1
        return entries

    def _trims(self) -> list[Command]:
        if not self._sole_reader or time.monotonic() - self._trimmed_at < TRIM_S:
            return []
        self._trimmed_at = time.monotonic()
        return [("XTRIM", key, "MINID", "~", position) for key, position in self._positions.items()]

    async def _check_positions(self) -> None:
        """Take the first position, or find one that its stream can no longer reach."""
        keys = list(self._kinds)
        replies = await self._connection.call(
            [("XINFO", "STREAM", key) for key in keys], REPLY_GRACE_S
        )
        for key, reply in zip(keys, replies, strict=True):
            last = _last_id(reply)
            position = self._positions.setdefault(key, last)
            if entry_order(last) < entry_order(position):
                self._positions[key] = NOTHING_SEEN
                self.restarts_count += 1
        self._check_due = False
        self._checked_at = time.monotonic()


def _message(fields: Reply) -> bytes:
    """The message field of an entry; a deleted entry has no fields (None)."""
    if not fields or fields[0] != FIELD:
        raise MessageError("no message field")
    message: bytes = fields[1]
    return message


def _last_id(info: Reply) -> str:
    """Last generated id of XINFO STREAM's flat reply; NOTHING_SEEN if there is no stream."""
    if isinstance(info, ResponseError):
        if "no such key" in str(info):
            return NOTHING_SEEN
        raise BusUnavailable(f"ResponseError: {info}")
    text: bytes = info[info.index(b"last-generated-id") + 1]
    return text.decode()
