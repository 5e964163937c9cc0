"""Which dispatcher looks after a queue: rendezvous hashing over the dispatchers that live.

Where: asked for every hint; pure. A wrong or old view costs a wasted claim, never more (INV-44).
Promise: all dispatchers with the same view agree; when one joins or leaves, only the queues that it
takes or had move. With an empty view everybody looks after everything.
"""

from collections.abc import Collection
from hashlib import blake2b


def owner_of(queue_id: str, nodes: Collection[str]) -> str | None:
    """The node with the highest weight for this queue; None if there are no nodes."""
    return max(nodes, key=lambda node: (_weight(node, queue_id), node), default=None)


def _weight(node: str, queue_id: str) -> bytes:
    return blake2b(f"{node}/{queue_id}".encode(), digest_size=8).digest()


class Shares:
    """This node's part of the queues, under the newest view of who lives."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._nodes: frozenset[str] = frozenset()
        self._mine: dict[str, bool] = {}

    @property
    def nodes(self) -> frozenset[str]:
        """The view in force; empty while nothing is known."""
        return self._nodes

    def update(self, nodes: Collection[str]) -> bool:
        """Take a new view, which always includes this node unless empty. True if it differs."""
        view = frozenset(nodes) | {self._node_id} if nodes else frozenset()
        if view == self._nodes:
            return False
        self._nodes = view
        self._mine.clear()
        return True

    def is_mine(self, queue_id: str) -> bool:
        """Whether this node looks after the queue."""
        mine = self._mine.get(queue_id)
        if mine is None:
            if len(self._mine) >= QUEUES_REMEMBERED_MAX:
                self._mine.clear()
            mine = not self._nodes or owner_of(queue_id, self._nodes) == self._node_id
            self._mine[queue_id] = mine
        return mine


QUEUES_REMEMBERED_MAX = 100_000  # answers kept; hints may name queues that do not exist
