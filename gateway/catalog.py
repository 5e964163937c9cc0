"""Queues and routes by name: what seldom changes and is asked for by every submission and hello.

Queues are believed for some seconds; a route, once interned, never changes. Whether a queue is
paused is not asked here: the store judges that inside its transactions.
"""

from collections.abc import Sequence
from typing import TypeAlias

from gateway import limits
from gateway.expiring import ExpiringCache
from gateway.store_calls import StoreCalls
from store import queries

Triple: TypeAlias = tuple[str, str, str]
RouteName: TypeAlias = tuple[str, str, str, str]


class Catalog:
    """Look-ups of one node, bounded and shared by all its requests."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls
        self._queues: ExpiringCache[tuple[str, str], queries.Queue] = ExpiringCache(
            self._read_queue, ttl_s=limits.QUEUE_TTL_S, entries_max=limits.QUEUES_MAX
        )
        self._routes: dict[RouteName, int] = {}

    def known_queue(self, namespace_id: str, id_or_name: str) -> queries.Queue | None:
        """A queue that needs no read."""
        return self._queues.peek((namespace_id, id_or_name))

    async def queue(self, namespace_id: str, id_or_name: str) -> queries.Queue | None:
        """A queue of the namespace by id or name. Raises what the store raises."""
        return await self._queues.get((namespace_id, id_or_name))

    def known_route(self, name: RouteName) -> int | None:
        """The id of (queue, handler, handler version, payload version), if it needs no call."""
        return self._routes.get(name)

    async def routes(self, queue_id: str, triples: Sequence[Triple]) -> list[int]:
        """Route ids of these triples, interned with at most one call."""
        missing = list(
            dict.fromkeys(triple for triple in triples if (queue_id, *triple) not in self._routes)
        )
        if missing:
            ids = await self._calls.read(queries.intern_routes, queue_id, missing)
            fresh = dict(zip(missing, ids, strict=True))
            for triple, route_id in fresh.items():
                self._routes[(queue_id, *triple)] = route_id
            found = [
                fresh[triple] if triple in fresh else self._routes[(queue_id, *triple)]
                for triple in triples
            ]
            while len(self._routes) > limits.ROUTES_MAX:
                del self._routes[next(iter(self._routes))]
            return found
        return [self._routes[(queue_id, *triple)] for triple in triples]

    async def _read_queue(self, key: tuple[str, str]) -> queries.Queue | None:
        return await self._calls.read(queries.find_queue, *key)
