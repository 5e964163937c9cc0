"""The outlet: from this node's stream to its worker sockets, and the slow twin of that stream.

An assignment is handed to a socket at most once: a session knows the attempts it was given, so a
doubled stream entry, or one that the twin was quicker with, is dropped. Only what was never handed
to a socket is ever sent again (architecture section 6); anything else lapses. Large payloads do not
travel through Redis and are read from the store before the hand-over.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from gateway import limits
from gateway.store_calls import Pool, StoreCalls
from gateway.worker.session import Phase
from gateway.worker.socket import WorkerSocket
from orbit_sdk.protocol.errors import ErrorCode
from runtime import failpoints
from store import dispatch
from store.bus import BusUnavailable
from store.dispatch import Assignment
from store.messages import NOTHING_SEEN, Assigned, Cancelled, Notice, Over, Superseded
from store.proven_reader import ProvenReader

_LOADS_MAX: Final = 100
"""Large assignments read in one call: at most 25 MiB."""

_TWIN_MEMORY_MAX: Final = 10_000
"""Attempts sent by the twin that may still come through the stream."""


class Outlet:
    """Hands assignments to the sockets of one node."""

    def __init__(
        self,
        sockets: Mapping[str, WorkerSocket],
        calls: StoreCalls,
        reader: ProvenReader,
        node_id: str,
        lease_ms: int,
    ) -> None:
        """`lease_ms`: how long a session remembers, at the least, what it was given."""
        self._sockets = sockets
        self._calls = calls
        self._reader = reader
        self._node_id = node_id
        self._lease_ms = lease_ms
        self._to_load: dict[str, str] = {}  # attempt → session
        self._sent_by_twin: dict[str, None] = {}
        self._asked_at = float("-inf")
        self.load_due = asyncio.Event()
        self.seen = NOTHING_SEEN
        """The last entry of the stream that was handled."""
        self.unwell = False
        """Whether the stream could not be read last time."""
        self.by_stream = 0
        self.by_twin = 0
        """Assignments that each of the two paths brought first."""

    async def read_stream(self) -> int:
        """Wait for entries and hand them over. Raises BusUnavailable."""
        try:
            if failpoints.armed:
                await failpoints.reach("gateway.bus.read.before", BusUnavailable)
            entries = await self._reader.read(limits.STREAM_BLOCK_MS, limits.STREAM_COUNT)
            if failpoints.armed:
                await failpoints.reach("gateway.bus.read.after", BusUnavailable)
        except BusUnavailable:
            self.unwell = True
            raise
        self.unwell = False
        if not entries:
            return 0
        given: dict[str, dict[str, Assignment]] = {}
        for _, message in entries:
            if isinstance(message, Assigned):
                for assignment in message.assignments:
                    if self._is_new(assignment):
                        session = given.setdefault(assignment.session_id, {})
                        session[assignment.attempt_id] = assignment
        for session_id, assignments in given.items():
            self._hand_over(self._sockets[session_id], list(assignments.values()))
        for _, message in entries:
            if isinstance(message, Notice):
                self.heed(message)
        self.seen = entries[-1][0]
        handed = sum(map(len, given.values()))
        self.by_stream += handed
        return handed

    async def load_large(self) -> int:
        """Read the assignments whose payload stayed behind, and hand them over."""
        if not self._to_load:
            return 0
        wanted = dict(list(self._to_load.items())[:_LOADS_MAX])
        loaded = await self._calls.run(
            Pool.BACKGROUND, limits.CALL_TIMEOUT_S, dispatch.load_assignments, list(wanted)
        )
        for assignment in loaded:
            socket = self._sockets.get(assignment.session_id)
            if socket is not None and wanted.pop(assignment.attempt_id, None) is not None:
                self._to_load.pop(assignment.attempt_id, None)
                socket.assign([assignment])
        for attempt_id, session_id in wanted.items():
            # No longer an unstarted lease of that session: it lapsed, or went back.
            self._to_load.pop(attempt_id, None)
            socket = self._sockets.get(session_id)
            if socket is not None:
                socket.session.release(attempt_id)
        if self._to_load:
            self.load_due.set()
        return len(loaded)

    async def find_unsent(self, redis_unwell: bool) -> int:
        """The slow twin: leases of our sessions that never reached us through the stream."""
        interval_s = (
            limits.UNSENT_UNWELL_INTERVAL_S
            if redis_unwell or self.unwell or self._reader.is_deaf
            else limits.UNSENT_INTERVAL_S
        )
        now = asyncio.get_running_loop().time()
        if not self._calls.is_open or now - self._asked_at < interval_s:
            return 0
        self._asked_at = now
        rows = await self._calls.run(
            Pool.BACKGROUND,
            limits.CALL_TIMEOUT_S,
            dispatch.unsent_leases,
            self._node_id,
            limits.UNSENT_AGE_MS,
            self._lease_ms,
        )
        found = 0
        for attempt_id, session_id in rows:
            socket = self._sockets.get(session_id)
            if socket is None or socket.session.holds(attempt_id):
                continue
            if socket.session.phase is not Phase.READY:
                continue
            if socket.session.closed_to_work:
                socket.give_back(attempt_id)
                continue
            self._load_later(socket, attempt_id)
            self._sent_by_twin[attempt_id] = None
            found += 1
        self.by_twin += found
        while len(self._sent_by_twin) > _TWIN_MEMORY_MAX:
            del self._sent_by_twin[next(iter(self._sent_by_twin))]
        return found

    def heed(self, notice: Notice) -> None:
        """What became of a session or an attempt of ours, for its socket to know."""
        socket = self._sockets.get(notice.session_id)
        match notice:
            case Cancelled(_, attempt_id, _) if self._to_load.get(attempt_id) == notice.session_id:
                # It waits for its payload, and goes nowhere.
                del self._to_load[attempt_id]
                if socket is not None:
                    socket.session.release(attempt_id)
            case _ if socket is None:
                pass
            case Cancelled(_, attempt_id, reason):
                socket.cancel(attempt_id, reason)
            case Over(_, attempt_id):
                socket.release(attempt_id)
            case Superseded():
                socket.end(ErrorCode.SESSION_SUPERSEDED)

    def _is_new(self, assignment: Assignment) -> bool:
        """Whether it is for a session of ours and was never handed to its socket."""
        socket = self._sockets.get(assignment.session_id)
        if socket is None or socket.session.holds(assignment.attempt_id):
            return False
        return not self._sent_by_twin or assignment.attempt_id not in self._sent_by_twin

    def _hand_over(self, socket: WorkerSocket, assignments: list[Assignment]) -> None:
        small = [assignment for assignment in assignments if assignment.task]
        if small:
            socket.assign(small)
        if len(small) < len(assignments):
            for assignment in assignments:
                if not assignment.task:
                    self._load_later(socket, assignment.attempt_id)

    def _load_later(self, socket: WorkerSocket, attempt_id: str) -> None:
        socket.session.reserve(attempt_id, asyncio.get_running_loop().time())
        self._to_load[attempt_id] = socket.session.session_id
        self.load_due.set()
