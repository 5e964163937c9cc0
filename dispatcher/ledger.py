"""What each session can still take: absolute levels, less what was promised since. Pure.

Where: filled from the capacity stream (fast) and from Postgres (slow twin); read by `match`.
Promise: a session is never promised more than its newest level minus the promises that this level
cannot know of. Levels are not deltas, so a lost, doubled or late report is healed by the next one,
and a promise that nobody ever confirms lapses after `keep_s`. Whatever this book says, the claim
proves it again (INV-12, INV-13).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from dispatcher.slots import Routes, SlotPool
from store.dispatch import SessionLevel
from store.messages import CapacityLevel, entry_order

FRESH_S = 2.0  # a report this young knows more than Postgres (the gateway's own backpressure)
KEEP_S = 5.0  # by then a sent assignment was seen, or found by the gateway's own slow twin
SILENT_S = 15.0  # without any news a session is forgotten; reports and scans are far denser


@dataclass(slots=True, eq=False)
class Promise:
    """Some slots of a session, from the match until a level includes them.

    granted: place of the claim's commit in the order of commits seen here; None before it.
    entry: the stream entry that carried it; None before it was sent, or if that failed.
    """

    session_id: str
    count: int
    made_at: float
    granted: int | None = None
    entry: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class _Session:
    queue_id: str
    routes: Routes
    level: int = 0
    includes: int = 0  # the level knows of grants up to this place (levels from Postgres)
    reported_at: float = float("-inf")
    heard_at: float = float("-inf")
    doubted: bool = False
    promises: list[Promise] = field(default_factory=list)

    def free(self) -> int:
        if self.doubted:
            return 0
        open_count = sum(
            promise.count
            for promise in self.promises
            if promise.granted is None or promise.granted > self.includes
        )
        return max(0, self.level - open_count)


class CapacityLedger:
    """All sessions of the queues that this dispatcher looks after. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._pools: dict[str, SlotPool] = {}
        self._grants = 0

    def slots(self, queue_id: str) -> SlotPool:
        """The free slots of a queue. `take` there must be followed by `promise` here."""
        pool = self._pools.get(queue_id)
        return SlotPool() if pool is None else pool

    def report(self, level: CapacityLevel, now: float) -> bool:
        """Take a gateway's report. True if the session was not known before."""
        session, is_new = self._known(level.session_id, level.queue_id, level.routes)
        seen = entry_order(level.seen)
        session.promises = [p for p in session.promises if p.entry is None or p.entry > seen]
        session.level, session.includes = level.free, 0
        session.reported_at = session.heard_at = now
        session.doubted = False
        self._settle(level.session_id, session)
        return is_new

    def mark(self) -> int:
        """To be taken before levels are read from Postgres: they include all grants up to it."""
        return self._grants

    def refresh(
        self, levels: Iterable[SessionLevel], mark: int, began: float
    ) -> tuple[list[SessionLevel], int]:
        """Take sessions as Postgres had them when asked at `began`.

        Returns those that were not known, and how many known ones changed.
        """
        new: list[SessionLevel] = []
        changed = 0
        for level in levels:
            session, is_new = self._known(level.session_id, level.queue_id, level.routes)
            if is_new:
                new.append(level)
            if began - session.reported_at >= FRESH_S or session.doubted:
                changed += self._take_level(session, level, mark) and not is_new
            session.heard_at = max(session.heard_at, began)
        return new, changed

    def forget_closed(self, queue_ids: Collection[str], began: float) -> None:
        """After a whole refresh: sessions of these queues that were not named since are closed."""
        queues = set(queue_ids)
        for session_id, session in list(self._sessions.items()):
            if session.queue_id in queues and session.heard_at < began:
                self._forget(session_id)

    def correct(
        self, session_ids: Iterable[str], levels: Sequence[SessionLevel], mark: int, now: float
    ) -> None:
        """Take the levels of sessions whose claims were refused; those not there are closed."""
        listed = {level.session_id: level for level in levels}
        for session_id in session_ids:
            level = listed.get(session_id)
            session = self._sessions.get(session_id)
            if level is None:
                self._forget(session_id)
            elif session is not None:
                self._take_level(session, level, mark)
                session.heard_at = now

    def promise(self, session_id: str, count: int, now: float) -> Promise:
        """Write down that so many slots were taken from the session's pool."""
        promise = Promise(session_id, count, now)
        session = self._sessions.get(session_id)
        if session is not None:
            session.promises.append(promise)
            self._settle(session_id, session)
        return promise

    def granted(self, promise: Promise, count: int) -> None:
        """The claim returned (or may have been carried out); `count` of the promise were won."""
        self._grants += 1
        promise.granted = self._grants
        promise.count = count
        session = self._sessions.get(promise.session_id)
        if session is not None:
            if not count and promise in session.promises:
                session.promises.remove(promise)
            self._settle(promise.session_id, session)

    def sent(self, promise: Promise, entry_id: str) -> None:
        """The assignments went out under this entry of the node's stream."""
        promise.entry = entry_order(entry_id)

    def doubt(self, session_id: str) -> None:
        """Promise nothing more to a session until its next level: a claim for it was refused."""
        session = self._sessions.get(session_id)
        if session is not None:
            session.doubted = True
            self._settle(session_id, session)

    def lapse(self, now: float) -> None:
        """Drop promises that nobody confirmed and sessions that nobody spoke of."""
        for session_id, session in list(self._sessions.items()):
            if now - session.heard_at > SILENT_S:
                self._forget(session_id)
            elif session.promises and now - session.promises[0].made_at > KEEP_S:
                session.promises = [
                    promise
                    for promise in session.promises
                    if promise.granted is None or now - promise.made_at <= KEEP_S
                ]
                self._settle(session_id, session)

    def drop_queues(self, is_mine: Callable[[str], bool]) -> None:
        """Forget the sessions of queues that are no longer this dispatcher's."""
        for session_id, session in list(self._sessions.items()):
            if not is_mine(session.queue_id):
                self._forget(session_id)

    def session_count(self) -> int:
        return len(self._sessions)

    def free_count(self) -> int:
        return sum(pool.total() for pool in self._pools.values())

    def _known(self, session_id: str, queue_id: str, routes: Routes) -> tuple[_Session, bool]:
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = _Session(queue_id, routes)
            return session, True
        if session.queue_id != queue_id:
            self._pools[session.queue_id].remove(session_id)
            session.queue_id = queue_id
        session.routes = routes
        return session, False

    def _take_level(self, session: _Session, level: SessionLevel, mark: int) -> bool:
        before = session.free()
        session.level, session.includes, session.doubted = level.free, mark, False
        self._settle(level.session_id, session)
        return session.free() != before

    def _settle(self, session_id: str, session: _Session) -> None:
        pool = self._pools.get(session.queue_id)
        if pool is None:
            pool = self._pools[session.queue_id] = SlotPool()
        pool.put(session_id, session.routes, session.free())

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        pool = self._pools.get(session.queue_id)
        if pool is not None:
            pool.remove(session_id)
            if not len(pool):
                del self._pools[session.queue_id]
