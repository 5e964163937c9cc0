"""Batch lanes: many small commands become few calls to the store (architecture section 3).

While a call is in flight the next batch gathers, so a lone command waits for nothing and a burst is
one statement. LANE_WIDTH calls are in flight at most while the store is quick. A wider lane begins
a further one when `spacing_s` have passed since the latest began: so a call may take
`(width - 1) * spacing_s`, and still no command waits longer than `spacing_s` for its turn (B-04).
Promises, for each lane:

- every accepted command is answered exactly once, through its reply callback, in the event loop;
- nothing is answered before the call that carried it has returned, which is after COMMIT (INV-7);
- a batch whose connection died is sent again as it was: receipts make that harmless;
- a batch that fails as a whole is retried by halves until the guilty command stands alone, and
  only that one is answered `internal`;
- a command whose row another transaction holds comes again after a pause, and its neighbours go on;
- a command that has waited for longer than its patience is answered `unavailable`, and not carried
  out later, when nobody waits for it any more;
- two commands with the same order key never overlap, whatever their lanes: the later one waits for
  the earlier answer;
- a repeat of an operation that is still under way here is no second call: it gets the same answer.
  While the store is slow repeats would else pile up in front of the next renewal (B-04).
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from gateway import limits
from gateway.faults import Fault, facts_of
from orbit_sdk.protocol.errors import ErrorCode
from runtime.logs import LogLimiter, get_logger

log = get_logger(__name__)
_LOG_QUIET_S: Final = 5.0

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome


class Refused:
    """A command that the store never judged, and why: `unavailable` or `internal`."""

    __slots__ = ("code",)

    def __init__(self, code: ErrorCode) -> None:
        self.code = code


UNAVAILABLE: Final = Refused(ErrorCode.UNAVAILABLE)
INTERNAL: Final = Refused(ErrorCode.INTERNAL)

Reply: TypeAlias = Callable[[C, O | Refused], None]
Entry: TypeAlias = tuple[C, Reply[C, O], float]


class _AnyLane(Protocol):
    def admit(self, entry: Any) -> None: ...


Turn: TypeAlias = tuple[_AnyLane, Any]
"""A lane and one of its entries."""


class Order:
    """The commands in flight or waiting, by key: one at a time for each key, first come first."""

    def __init__(self) -> None:
        self._busy: dict[Hashable, Turn | deque[Turn]] = {}  # the turn under way is the first

    def __len__(self) -> int:
        return len(self._busy)

    def under_way(self, key: Hashable) -> Turn | None:
        """The command of this key whose turn it is; None when nothing is under way."""
        busy = self._busy.get(key)
        return busy[0] if isinstance(busy, deque) else busy

    def enter(self, key: Hashable, turn: Turn) -> None:
        """A command of this key begins, or is kept for its turn when another is under way."""
        busy = self._busy.get(key)
        if busy is None:
            self._busy[key] = turn
        elif isinstance(busy, deque):
            busy.append(turn)
        else:
            self._busy[key] = deque((busy, turn))

    def leave(self, key: Hashable) -> None:
        """The command under way is answered: the next one of its key may go."""
        busy = self._busy[key]
        if not isinstance(busy, deque):
            del self._busy[key]
            return
        busy.popleft()
        lane, entry = busy[0]
        if len(busy) == 1:
            self._busy[key] = busy[0]
        lane.admit(entry)


class Lane(Generic[C, O]):
    """One kind of command. `execute` makes one call and returns one outcome a command, in order.

    `again` says after how many seconds a command comes again whose outcome is no answer yet, None
    for an answer. `same` names the operation that a command is, None for one that is always a call
    of its own; `repeated` makes the outcome of an operation that of its repeat.
    """

    def __init__(
        self,
        name: str,
        execute: Callable[[Sequence[C]], Awaitable[Sequence[O]]],
        *,
        judge: Callable[[Exception], Fault],
        order: Order | None = None,
        key: Callable[[C], Hashable] | None = None,
        again: Callable[[O], float | None] | None = None,
        same: Callable[[C], Hashable] | None = None,
        repeated: Callable[[O], O] | None = None,
        queue_max: int = limits.FRAME_QUEUE_MAX,
        patience_s: float = limits.FRAME_PATIENCE_S,
        width: int = limits.LANE_WIDTH,
        spacing_s: float = 0.0,
    ) -> None:
        self.name = name
        self._execute = execute
        self._judge = judge
        self._order = order if order is not None else Order()
        self._key = key
        self._again = again
        self._same = same
        self._repeated = repeated
        self._repeats: dict[Hashable, list[tuple[C, Reply[C, O]]]] = {}
        """By operation, of keys for which more than one command came."""
        self._queue_max = queue_max
        self._patience_s = patience_s
        self._width = width
        self._spacing_s = spacing_s
        self._began = float("-inf")
        """When the latest call began."""
        self._queue: deque[Entry[C, O]] = deque()
        self._sleeping: list[asyncio.Future[None]] = []
        self._awake = width
        self._relief: asyncio.TimerHandle | None = None
        self._calls: dict[int, float] = {}  # runner → since when it has waited for the store
        self._away_log = LogLimiter(_LOG_QUIET_S)
        self._locked_log = LogLimiter(_LOG_QUIET_S)
        self.open = 0
        """Commands accepted and not yet answered."""
        self.answered = 0
        self.batches = 0

    def offer(self, command: C, reply: Reply[C, O]) -> bool:
        """Take a command. False, and no reply ever, when the lane is at its bound."""
        if self.open >= self._queue_max:
            return False
        self.open += 1
        entry = (command, reply, time.monotonic() + self._patience_s)
        if self._key is None:
            self.admit(entry)
            return True
        key = self._key(command)
        under_way = self._order.under_way(key)
        if under_way is None:
            self._order.enter(key, (self, entry))
            self.admit(entry)
        elif not self._shares(under_way, command, reply):
            self._order.enter(key, (self, entry))
        return True

    def _shares(self, under_way: Turn, command: C, reply: Reply[C, O]) -> bool:
        """Whether this is a repeat of what is under way or waits, and so needs no call."""
        if self._same is None:
            return False
        lane, (first, *_) = under_way
        if lane is self and (known := self._same(first)) is not None:
            self._repeats.setdefault(known, [])
        operation = self._same(command)
        if operation is None:
            return False
        repeats = self._repeats.get(operation)
        if repeats is None:
            self._repeats[operation] = []
            return False
        repeats.append((command, reply))
        return True

    def admit(self, entry: Entry[C, O]) -> None:
        """Queue a command whose turn it is."""
        self._queue.append(entry)
        self._call_help()

    def _call_help(self) -> None:
        """Something is queued: wake a runner for it, now or once it has waited long enough."""
        if not self._sleeping:
            return
        is_few = len(self._queue) < limits.RELIEF_COMMANDS
        if self._awake == 0 or (self._awake < limits.LANE_WIDTH and not is_few):
            self._wake()
        elif self._relief is None:
            after_s = max(limits.RELIEF_AFTER_S, self._space_s(self._awake))
            self._relief = asyncio.get_running_loop().call_later(after_s, self._relieve)

    def _space_s(self, beside: int) -> float:
        """How long until a call may begin beside so many others."""
        if beside < limits.LANE_WIDTH:
            return 0.0
        return self._began + self._spacing_s - time.monotonic()

    def _wake(self) -> None:
        sleeper = self._sleeping.pop()
        self._awake += 1
        if not sleeper.done():
            sleeper.set_result(None)

    def _leave_queue(self) -> None:
        """A runner sleeps. What it left queued is not its turn; a wait that began while more calls
        were in flight would be too long for what comes next."""
        if self._queue:
            self._call_help()
        elif self._relief is not None and self._awake < limits.LANE_WIDTH:
            self._relief.cancel()
            self._relief = None

    def _relieve(self) -> None:
        """The calls in flight take long: what has gathered meanwhile goes beside them."""
        self._relief = None
        if not self._queue or not self._sleeping:
            return
        if self._space_s(self._awake) > 0:
            self._call_help()
        else:
            self._wake()

    def stuck_s(self) -> float:
        """How long the oldest batch in flight has waited for the store; 0.0 when none has."""
        if not self._calls:
            return 0.0
        return time.monotonic() - min(self._calls.values())

    async def run(self) -> None:
        """Serve the lane until cancelled. What is unanswered then stays so: the process ends."""
        async with asyncio.TaskGroup() as runners:
            for runner in range(self._width):
                runners.create_task(self._run(runner), name=f"lane-{self.name}-{runner}")

    async def _run(self, runner: int) -> None:
        loop = asyncio.get_running_loop()
        queue = self._queue
        while True:
            if not queue or self._space_s(self._awake - 1) > 0:
                sleeper: asyncio.Future[None] = loop.create_future()
                self._sleeping.append(sleeper)
                self._awake -= 1
                self._leave_queue()
                await sleeper
                continue
            self._drop_late_queued(time.monotonic())
            batch = [queue.popleft() for _ in range(min(len(queue), limits.BATCH_COMMANDS_MAX))]
            if not batch:
                continue
            self._began = time.monotonic()
            try:
                await self._settle(runner, batch)
            finally:
                del self._calls[runner]

    async def _settle(self, runner: int, batch: list[Entry[C, O]]) -> None:
        """Answer every command of the batch, by halves when the store refuses it as a whole."""
        pause_s = limits.RETRY_FIRST_S
        self._calls[runner] = time.monotonic()
        while batch:
            try:
                outcomes = await self._execute([entry[0] for entry in batch])
                if len(outcomes) != len(batch):
                    raise RuntimeError("the store owes one outcome a command")
            except Exception as error:
                fault = self._judge(error)
                if fault is not Fault.AWAY:
                    await self._divide(runner, batch, error, fault)
                    return
                self._say_away(batch, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, limits.RETRY_MAX_S)
                batch = self._drop_late(batch)
            else:
                self.batches += 1
                self._answer_all(batch, outcomes)
                return

    async def _divide(
        self, runner: int, batch: list[Entry[C, O]], error: Exception, fault: Fault
    ) -> None:
        if len(batch) > 1:
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                await self._settle(runner, self._drop_late(half))
        elif fault is Fault.LOCKED:
            self._admit_after(batch[0], limits.LOCKED_PAUSE_S)
        else:
            log.error("command_refused_by_store", lane=self.name, **facts_of(error))
            self._answer(batch[0], INTERNAL)

    def _say_away(self, batch: list[Entry[C, O]], error: Exception) -> None:
        held_back = self._away_log.held_back()
        if held_back is not None:
            log.warning(
                "batch_sent_again",
                lane=self.name,
                commands=len(batch),
                error=type(error).__name__,
                held_back=held_back,
            )

    def _answer_all(self, batch: list[Entry[C, O]], outcomes: Sequence[O]) -> None:
        again = self._again
        for entry, outcome in zip(batch, outcomes, strict=True):
            if again is not None and (pause_s := again(outcome)) is not None:
                self._admit_after(entry, pause_s)
            else:
                self._answer(entry, outcome)

    def _admit_after(self, entry: Entry[C, O], pause_s: float) -> None:
        """Not answered yet: into a later batch, if it does not wait for too long by then."""
        if pause_s == 0.0:
            self.admit(entry)
        elif entry[2] <= time.monotonic() + pause_s:
            self._answer(entry, UNAVAILABLE)
        else:
            if (held_back := self._locked_log.held_back()) is not None:
                log.info("command_waits_for_a_lock", lane=self.name, held_back=held_back)
            asyncio.get_running_loop().call_later(pause_s, self.admit, entry)

    def _answer(self, entry: Entry[C, O], outcome: O | Refused) -> None:
        command, reply, _ = entry
        self._reply(command, reply, outcome)
        if self._repeats and self._same is not None:
            for repeat, repeat_reply in self._repeats.pop(self._same(command), ()):
                self._reply(repeat, repeat_reply, self._repeat_of(outcome))
        if self._key is not None:
            self._order.leave(self._key(command))

    def _repeat_of(self, outcome: O | Refused) -> O | Refused:
        if self._repeated is None or isinstance(outcome, Refused):
            return outcome
        return self._repeated(outcome)

    def _reply(self, command: C, reply: Reply[C, O], outcome: O | Refused) -> None:
        self.open -= 1
        self.answered += 1
        try:
            reply(command, outcome)
        except Exception as error:
            # A session that cannot take its answer must not stop the lane (INV-39).
            log.error("reply_failed", lane=self.name, **facts_of(error))

    def _drop_late_queued(self, now: float) -> None:
        """Nobody waits for these any more, so the store is spared them."""
        queue = self._queue
        while queue and queue[0][2] <= now:
            self._answer(queue.popleft(), UNAVAILABLE)

    def _drop_late(self, batch: list[Entry[C, O]]) -> list[Entry[C, O]]:
        """Answer `unavailable` to what has waited too long, in this batch and in the queue."""
        now = time.monotonic()
        self._drop_late_queued(now)
        kept = []
        for entry in batch:
            if entry[2] > now:
                kept.append(entry)
            else:
                self._answer(entry, UNAVAILABLE)
        return kept
