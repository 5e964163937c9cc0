"""The messages of one session that wait for an answer, and how they are written. Pure.

Operations gather until `flush`, which writes those of one kind together, as the session's dialect
can. A message keeps its id over every repeat (R-117), so a repeat is harmless; its `sent_at` is
that of the first time in this session, so whatever is counted from it errs towards too early.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from orbit_sdk.protocol.frames import CapacityBody, HelloBody
from orbit_sdk.worker.attempt import Held
from orbit_sdk.worker.dialect import Dialect, Operation, Post
from orbit_sdk.worker.effects import Effect, Send
from orbit_sdk.worker.limits import WELCOME_TIMEOUT_S


@dataclass(slots=True)
class Pending:
    """A message without an answer so far; `held` is None for the session's own. `alone`: it shared
    a frame that was refused whole, so from here on it has one of its own."""

    operation: Operation
    held: Held | None
    frame: bytes
    sent_at: float
    repeat_at: float
    alone: bool = False

    @property
    def attempt_id(self) -> str | None:
        return None if self.held is None else self.held.ref.attempt_id


class Mail:
    """Writes messages of the current session into `out` and remembers them until answered."""

    def __init__(self, out: list[Effect], new_id: Callable[[], str]) -> None:
        self._out = out
        self._new_id = new_id
        self._dialect: Dialect | None = None
        self._pending: dict[str, Pending] = {}
        self._frames: dict[str, tuple[str, ...]] = {}
        self._gathered: dict[Operation, dict[str, Held]] = {}
        self._session_id = ""
        self._repeat_s = inf
        self._sequence = 0
        self._due = inf

    def begin_session(self, session_id: str, repeat_s: float) -> None:
        """Start a session: nothing of an earlier one waits any more."""
        self.end_session()
        self._session_id = session_id
        self._repeat_s = repeat_s
        self._sequence = 0

    def end_session(self) -> None:
        """The session is gone; answers to its messages will not come."""
        self._pending.clear()
        self._frames.clear()
        self._gathered.clear()
        self._due = inf

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def unsent(self) -> bool:
        """Whether operations have gathered that a flush would send."""
        return bool(self._gathered)

    def hello(self, dialect: Dialect, message_id: str, body: HelloBody, now: float) -> None:
        """Ask for a session in this dialect. It is not repeated: one hello a connection."""
        self._dialect = dialect
        self._own(Operation.HELLO, message_id, dialect.hello(message_id, body), now)
        self.wait(message_id, now + WELCOME_TIMEOUT_S)

    def capacity(self, message_id: str, capacity: int, *, drain: bool, now: float) -> None:
        """Declare a level; its sequence is higher than any before in this session (OP-29)."""
        assert self._dialect is not None, "a level is declared inside a session"
        self._sequence += 1
        body = CapacityBody(str(self._sequence), capacity, drain)
        frame = self._dialect.capacity(message_id, self._session_id, body)
        self._own(Operation.CAPACITY, message_id, frame, now)
        self.wait(message_id, now + self._repeat_s)

    def post(self, operation: Operation, message_id: str, held: Held, now: float) -> None:
        """Send an operation of an attempt with the next flush."""
        self._pending[message_id] = Pending(operation, held, b"", now, inf)
        self._gather(operation, message_id, held)
        self.wait(message_id, now + self._repeat_s)

    def repeat(self, message_id: str, pending: Pending, now: float) -> None:
        """Send the same message again; it counts as sent when it was sent first."""
        if pending.held is None:
            self._out.append(Send(pending.frame))
        else:
            self._gather(pending.operation, message_id, pending.held)
        self.wait(message_id, now + self._repeat_s)

    def flush(self) -> None:
        """Write what has gathered, in the order in which the kinds came up."""
        assert self._dialect is not None or not self._gathered, "nothing gathers before a hello"
        gathered, self._gathered = self._gathered, {}
        for operation, found in gathered.items():
            posts = [post for post in found.items() if post[0] in self._pending]
            shared = [post for post in posts if not self._pending[post[0]].alone]
            self._write(operation, shared)
            for post in posts:
                if self._pending[post[0]].alone:
                    self._write(operation, [post])

    def split(self, reply_to: str, now: float) -> bool:
        """A frame was refused whole, maybe for one of its operations alone: send each that still
        waits again, by itself. False if the frame had one operation, which is then to blame, or is
        unknown."""
        message_ids = self._frames.get(reply_to, ())
        if len(message_ids) < 2:
            return False
        del self._frames[reply_to]
        for message_id in message_ids:
            pending = self._pending.get(message_id)
            if pending is not None:
                pending.alone = True
                self.repeat(message_id, pending, now)
        return True

    def answered(self, reply_to: str) -> list[Pending | None] | None:
        """The messages that an answer to this frame is about, in their order, each once: None in
        the place of one that was answered before or matters no more, and for an unknown frame."""
        message_ids = self._frames.pop(reply_to, None)
        if message_ids is None:
            return None
        return [self._pending.pop(message_id, None) for message_id in message_ids]

    def forget(self, message_id: str | None) -> None:
        """No answer to this message, if there is one, matters any more; nor is it sent again."""
        if message_id is not None:
            self._pending.pop(message_id, None)

    def overdue(self, now: float) -> list[tuple[str, Pending]]:
        """Messages whose answer has been missing for too long; each is to be repeated or forgotten
        by the caller, for it is named here once."""
        if now < self._due:
            return []
        found = [(mid, p) for mid, p in self._pending.items() if p.repeat_at <= now]
        later = (p.repeat_at for p in self._pending.values() if p.repeat_at > now)
        self._due = min(later, default=inf)
        waiting = self._pending.keys()
        for frame_id, message_ids in list(self._frames.items()):
            if waiting.isdisjoint(message_ids):
                del self._frames[frame_id]
        return found

    def wait(self, message_id: str, until: float) -> None:
        """This message is overdue at that instant and not before."""
        self._pending[message_id].repeat_at = until
        self._due = min(self._due, until)

    def next_due(self) -> float:
        """No message is overdue before this instant; there may be none at it either."""
        return self._due

    def _write(self, operation: Operation, posts: list[Post]) -> None:
        if posts and self._dialect is not None:
            for parcel in self._dialect.parcels(operation, self._session_id, posts, self._new_id):
                self._frames[parcel.frame_id] = parcel.message_ids
                self._out.append(Send(parcel.frame))

    def _own(self, operation: Operation, message_id: str, frame: bytes, now: float) -> None:
        self._pending[message_id] = Pending(operation, None, frame, now, inf)
        self._frames[message_id] = (message_id,)
        self._out.append(Send(frame))

    def _gather(self, operation: Operation, message_id: str, held: Held) -> None:
        self._gathered.setdefault(operation, {})[message_id] = held
