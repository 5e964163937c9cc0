"""The bus: wake-ups, capacity levels and assignments on their way through Redis streams.

Where: the fast path of every hop (submit to dispatcher, capacity to dispatcher, dispatcher to
gateway). Keys are `orbit:{cluster}:...`; only commands that Redis 7.0 and Valkey 7.2 share.
Promise: a hint, never proof (OP-95, INV-14). Each write is one transaction that also renews the
key's TTL and trims the stream by length and age, so no key is without TTL and none grows without
bound. Failures are BusUnavailable within 3 s, and the caller goes on with its slow twin. A write
whose answer was lost may have happened, and may happen twice.
"""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Literal

from store.dispatch import Assignment
from store.messages import (
    NOTHING_SEEN,
    Assigned,
    CapacityLevel,
    Levels,
    Message,
    Notice,
    Revoked,
    Wake,
    encode_message,
)
from store.proven_reader import Probes
from store.redis_link import BusUnavailable, Command, RedisLink, Reply
from store.stream_reader import FIELD, StreamReader

__all__ = ["Bus", "BusUnavailable", "CapacityLevel", "StreamReader"]

StreamKind = Literal["wake", "capacity", "node"]
NodeKind = Literal["gateway", "dispatcher"]

STREAM_TTL_MS = 120_000  # longer than the age below; an idle stream then disappears
STREAM_AGE_MS = 60_000  # older hints are worthless: every slow twin has run many times
HINT_ENTRIES_MAX = 10_000  # wake and capacity: small entries
NODE_ENTRIES_MAX = 2_000  # entries of up to 256 KiB, trimmed by their reader as well
STREAMS_KNOWN_MAX = 1_000  # newest positions kept for trimming by age; forgetting them is harmless
ITEMS_ENTRY_MAX = 1_000  # routes or levels an entry
NODES_TTL_MS = 60_000
NODE_FORGET_MS = 60_000  # a beat this old leaves the hash


class Bus:
    """All of Orbit's Redis. One per process and event loop; tasks may share it."""

    def __init__(self, url: str, cluster: str) -> None:
        self._link = RedisLink(url)
        self._prefix = f"orbit:{cluster}"
        self._newest_ms: dict[str, int] = {}

    async def close(self) -> None:
        """Close the connections of short calls; readers are closed by their owners."""
        await self._link.close()

    async def ping(self) -> None:
        """Return if Redis answers; raise BusUnavailable otherwise."""
        await self._link.call([("PING",)])

    async def wake(self, routes: Collection[tuple[str, int]]) -> None:
        """Tell the dispatchers that tasks may be ready on these (queue id, route id)."""
        rest = iter(dict.fromkeys(routes))
        key = f"{self._prefix}:wake"
        while part := tuple(islice(rest, ITEMS_ENTRY_MAX)):
            await self._append([(key, Wake(part))], HINT_ENTRIES_MAX)

    async def report_capacity(self, levels: Sequence[CapacityLevel]) -> None:
        """Tell the dispatchers the free levels of these sessions."""
        key = f"{self._prefix}:capacity"
        for start in range(0, len(levels), ITEMS_ENTRY_MAX):
            part = tuple(levels[start : start + ITEMS_ENTRY_MAX])
            await self._append([(key, Levels(part))], HINT_ENTRIES_MAX)

    async def assign(self, node_id: str, assignments: Sequence[Assignment]) -> str:
        """Send claimed tasks to a gateway as one entry; returns the entry's id."""
        return (await self.assign_many([(node_id, assignments)]))[0]

    async def assign_many(self, batches: Sequence[tuple[str, Sequence[Assignment]]]) -> list[str]:
        """Send several entries in one call, all or none; returns their ids in the same order.

        A node may occur more than once, so that a caller can keep each entry small.
        """
        entries: list[tuple[str, Message]] = [
            (self._node_key(node_id), Assigned(tuple(assignments)))
            for node_id, assignments in batches
        ]
        return await self._append(entries, NODE_ENTRIES_MAX)

    async def notify(self, notices: Collection[tuple[str, Notice | Revoked]]) -> None:
        """Tell gateways, by node id, what became of sessions and attempts of theirs."""
        entries = [(self._node_key(node_id), notice) for node_id, notice in notices]
        await self._append(entries, NODE_ENTRIES_MAX)

    async def revoke(self, key_id: str) -> int:
        """Tell every gateway that a credential was revoked; returns how many there are."""
        nodes = await self.live_nodes("gateway", NODE_FORGET_MS)
        await self.notify([(node_id, Revoked(key_id)) for node_id in nodes])
        return len(nodes)

    async def beat(self, kind: NodeKind, node_id: str) -> None:
        """Say that a node lives, stamped by the clock of Redis."""
        now_ms = _server_ms((await self._link.call([("TIME",)]))[0])
        key = self._nodes_key(kind)
        await self._link.call(
            [
                ("MULTI",),
                ("HSET", key, node_id, now_ms),
                ("PEXPIRE", key, NODES_TTL_MS),
                ("EXEC",),
            ]
        )

    async def leave(self, kind: NodeKind, node_id: str) -> None:
        """Take a node out at its clean stop, so that others act at once."""
        await self._link.call([("HDEL", self._nodes_key(kind), node_id)])

    async def bury(self, node_ids: Collection[str]) -> None:
        """Delete what is on its way to gateways that were given up: nobody is to read it."""
        keys = [self._node_key(node_id) for node_id in node_ids]
        if keys:
            await self._link.call([("UNLINK", *keys)])

    async def live_nodes(self, kind: NodeKind, max_age_ms: int = 6_000) -> list[str]:
        """Sorted ids of the nodes that have beaten within `max_age_ms`; [] after a wipe."""
        key = self._nodes_key(kind)
        time_reply, flat = await self._link.call([("TIME",), ("HGETALL", key)])
        now_ms = _server_ms(time_reply)
        live, gone = [], []
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            age_ms = abs(now_ms - int(value)) if value.isdigit() else NODE_FORGET_MS + 1
            if age_ms <= max_age_ms:
                live.append(field.decode())
            elif age_ms > NODE_FORGET_MS:
                gone.append(field)
        if gone:
            await self._link.call([("HDEL", key, *gone)])
        return sorted(live)

    async def probe_node(self, node_id: str) -> Probes:
        """Write an entry that says nothing to a gateway's own stream, to be heard by its reader."""
        entries: list[tuple[str, Message]] = [(self._node_key(node_id), Assigned(()))]
        return dict(zip([Assigned], await self._append(entries, NODE_ENTRIES_MAX), strict=True))

    async def probe_hints(self) -> Probes:
        """The same for the streams that dispatchers read."""
        entries: list[tuple[str, Message]] = [
            (f"{self._prefix}:wake", Wake(())),
            (f"{self._prefix}:capacity", Levels(())),
        ]
        ids = await self._append(entries, HINT_ENTRIES_MAX)
        return dict(zip([Wake, Levels], ids, strict=True))

    def reader(
        self, kind: StreamKind, node_id: str | None = None, *, after: str = NOTHING_SEEN
    ) -> StreamReader:
        """A reader of one stream, with a connection of its own.

        "node" reads the stream of `node_id` from its beginning, or from the entry `after` on, and
        is its only reader; "wake" and "capacity" read what comes from the first `read` on.
        """
        assert (node_id is not None) == (kind == "node")
        key = self._node_key(node_id) if node_id is not None else f"{self._prefix}:{kind}"
        sole = kind == "node"
        return StreamReader(self._link, {key: kind}, from_start=sole, sole_reader=sole, after=after)

    def dispatch_reader(self) -> StreamReader:
        """A reader of the wake and capacity streams together, for a dispatcher."""
        kinds = {f"{self._prefix}:{kind}": kind for kind in ("wake", "capacity")}
        return StreamReader(self._link, kinds, from_start=False, sole_reader=False)

    async def _append(self, entries: Sequence[tuple[str, Message]], entries_max: int) -> list[str]:
        if not entries:
            return []
        commands: list[Command] = [("MULTI",)]
        places = []
        for key, message in entries:
            places.append(len(commands) - 1)
            commands.append(
                ("XADD", key, "MAXLEN", "~", entries_max, "*", FIELD, encode_message(message))
            )
        for key in dict.fromkeys(key for key, _ in entries):
            if newest := self._newest_ms.pop(key, 0):
                commands.append(("XTRIM", key, "MINID", "~", max(0, newest - STREAM_AGE_MS)))
            commands.append(("PEXPIRE", key, STREAM_TTL_MS))
        commands.append(("EXEC",))
        results = (await self._link.call(commands))[-1]
        for result in results:
            if isinstance(result, Exception):
                raise BusUnavailable(str(result))
        ids = [results[place].decode() for place in places]
        if len(self._newest_ms) > STREAMS_KNOWN_MAX:
            self._newest_ms.clear()
        for (key, _), entry_id in zip(entries, ids, strict=True):
            self._newest_ms[key] = int(entry_id.partition("-")[0])
        return ids

    def _node_key(self, node_id: str) -> str:
        return f"{self._prefix}:node:{node_id}"

    def _nodes_key(self, kind: NodeKind) -> str:
        return f"{self._prefix}:nodes:{kind}"


def _server_ms(time_reply: Reply) -> int:
    seconds, micros = time_reply
    return int(seconds) * 1000 + int(micros) // 1000
