"""The outlet: from this node's stream to its worker sockets, and the slow twin of that stream.

An assignment is handed to a socket at most once: a session knows the attempts it was given, so a
doubled stream entry, or one that the twin was quicker with, is dropped. Only what was never handed
to a socket is ever sent again (architecture section 6); anything else lapses. Large payloads do not
travel through Redis and are read from the store before the hand-over. No socket is handed more than
it has room for (R-158): the rest waits as bare ids until it has written, and is read then.
"""

import asyncio
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

from gateway import limits
from gateway.store_calls import Pool, StoreCalls
from gateway.worker.session import Phase
from gateway.worker.socket import WorkerSocket
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ErrorCode
from runtime import failpoints
from store import dispatch
from store.bus import BusUnavailable
from store.dispatch import Assignment
from store.messages import NOTHING_SEEN, Assigned, Cancelled, Notice, Over, Revoked, Superseded
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
        *,
        revoked: Callable[[str], None],
    ) -> None:
        """`lease_ms`: how long a session remembers, at the least, what it was given. `revoked`
        hears of credentials that are said to hold no more."""
        self._sockets = sockets
        self._calls = calls
        self._reader = reader
        self._node_id = node_id
        self._lease_ms = lease_ms
        self._revoked = revoked
        self._to_load: dict[str, dict[str, None]] = {}  # session → attempts; the next one first
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
            elif isinstance(message, Revoked):
                self._revoked(message.key_id)
        self.seen = entries[-1][0]
        handed = sum(map(len, given.values()))
        self.by_stream += handed
        return handed

    async def load_large(self) -> int:
        """Read what stayed behind and now has room, and hand it over."""
        wanted = self._choose()
        if not wanted:
            return 0
        loaded = await self._calls.run(
            Pool.BACKGROUND, limits.CALL_TIMEOUT_S, dispatch.load_assignments, list(wanted)
        )
        given: dict[str, list[Assignment]] = {}
        for assignment in loaded:
            if self._is_waiting(assignment.session_id, assignment.attempt_id):
                given.setdefault(assignment.session_id, []).append(assignment)
                del wanted[assignment.attempt_id]
        for attempt_id, session_id in wanted.items():
            # No longer an unstarted lease of that session: it lapsed, or went back.
            self._drop(session_id, attempt_id)
        for session_id, assignments in given.items():
            for assignment in assignments:
                self._wait_no_more(session_id, assignment.attempt_id)
            socket = self._sockets.get(session_id)
            if socket is not None:
                socket.assign(assignments)
        self.load_due.set()
        return len(loaded)

    def _choose(self) -> dict[str, str]:
        """Attempts to load now, each with its session: as many as their sockets have room for."""
        chosen: dict[str, str] = {}
        for session_id, attempts in list(self._to_load.items()):
            socket = self._sockets.get(session_id)
            if socket is None or socket.gone:
                del self._to_load[session_id]  # The end of the session gives the leases back.
            elif socket.session.closed_to_work:
                for attempt_id in list(attempts):
                    self._wait_no_more(session_id, attempt_id)
                    socket.give_back(attempt_id)
            else:
                room = socket.room_bytes // wire.JSON_BYTES_MAX
                if not room or socket.session.phase is not Phase.READY:
                    socket.hold_back(self.load_due)
                    continue
                part = islice(attempts, min(room, _LOADS_MAX - len(chosen)))
                chosen.update(dict.fromkeys(part, session_id))
                if len(chosen) == _LOADS_MAX:
                    # Whoever was served goes behind the others.
                    self._to_load[session_id] = self._to_load.pop(session_id)
                    break
        return chosen

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
            case Cancelled(session_id, attempt_id, _) if self._is_waiting(session_id, attempt_id):
                self._drop(session_id, attempt_id)  # It is not even loaded, and goes nowhere.
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
        room = socket.room_bytes
        fitting = []
        for assignment in assignments:
            size = len(assignment.task)
            room -= size + limits.ASSIGN_ITEM_BYTES
            if size and room >= 0:
                fitting.append(assignment)
            else:
                self._load_later(socket, assignment.attempt_id)
        if fitting:
            socket.assign(fitting)

    def _load_later(self, socket: WorkerSocket, attempt_id: str) -> None:
        session = socket.session
        session.reserve(attempt_id, asyncio.get_running_loop().time())
        self._to_load.setdefault(session.session_id, {})[attempt_id] = None
        self.load_due.set()

    def _is_waiting(self, session_id: str, attempt_id: str) -> bool:
        return attempt_id in self._to_load.get(session_id, ())

    def _wait_no_more(self, session_id: str, attempt_id: str) -> None:
        attempts = self._to_load.get(session_id, {})
        attempts.pop(attempt_id, None)
        if attempts or self._to_load.pop(session_id, None) is None:
            return
        socket = self._sockets.get(session_id)
        if socket is not None:
            socket.caught_up()

    def _drop(self, session_id: str, attempt_id: str) -> None:
        """An assignment that will not come: its slot is free."""
        self._wait_no_more(session_id, attempt_id)
        socket = self._sockets.get(session_id)
        if socket is not None:
            socket.release(attempt_id)
