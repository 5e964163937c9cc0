"""Batch lanes: many small commands become few calls to the store (architecture section 3).

While a call is in flight the next batch gathers, so a lone command waits for nothing and a burst is
one statement. Promises, for each lane:

- every accepted command is answered exactly once, through its reply callback, in the event loop;
- nothing is answered before the call that carried it has returned, which is after COMMIT (INV-7);
- a batch whose connection died is sent again as it was: receipts make that harmless;
- a batch that fails as a whole is retried by halves until the guilty command stands alone, and
  only that one is answered `internal`;
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
from gateway.faults import facts_of
from orbit_sdk.protocol.errors import ErrorCode
from runtime.logs import LogLimiter, get_logger

log = get_logger(__name__)
_AWAY_LOG_QUIET_S: Final = 5.0

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


class Order:
    """The commands in flight or waiting, by key: one at a time for each key, first come first."""

    def __init__(self) -> None:
        self._busy: dict[Hashable, deque[tuple[_AnyLane, Any]] | None] = {}

    def __len__(self) -> int:
        return len(self._busy)

    def enter(self, key: Hashable, lane: _AnyLane, entry: Any) -> bool:
        """True when nothing of this key is under way; else the entry is kept for its turn."""
        if key not in self._busy:
            self._busy[key] = None
            return True
        waiting = self._busy[key]
        if waiting is None:
            waiting = self._busy[key] = deque()
        waiting.append((lane, entry))
        return False

    def leave(self, key: Hashable) -> None:
        """The command under way is answered: the next one of its key may go."""
        waiting = self._busy[key]
        if not waiting:
            del self._busy[key]
            return
        lane, entry = waiting.popleft()
        lane.admit(entry)


class Lane(Generic[C, O]):
    """One kind of command. `execute` makes one call and returns one outcome a command, in order.

    `same` names the operation that a command is, None for one that is always a call of its own;
    `repeated` makes the outcome of an operation that of its repeat.
    """

    def __init__(
        self,
        name: str,
        execute: Callable[[Sequence[C]], Awaitable[Sequence[O]]],
        *,
        is_passing: Callable[[Exception], bool],
        order: Order | None = None,
        key: Callable[[C], Hashable] | None = None,
        again: Callable[[O], bool] | None = None,
        same: Callable[[C], Hashable] | None = None,
        repeated: Callable[[O], O] | None = None,
        queue_max: int = limits.FRAME_QUEUE_MAX,
        patience_s: float = limits.FRAME_PATIENCE_S,
        width: int = limits.LANE_WIDTH,
    ) -> None:
        self.name = name
        self._execute = execute
        self._is_passing = is_passing
        self._order = order if order is not None else Order()
        self._key = key
        self._again = again
        self._same = same
        self._repeated = repeated
        self._under_way: dict[Hashable, list[tuple[C, Reply[C, O]]]] = {}
        self._queue_max = queue_max
        self._patience_s = patience_s
        self._width = width
        self._queue: deque[Entry[C, O]] = deque()
        self._sleeping: list[asyncio.Future[None]] = []
        self._awake = width
        self._relief: asyncio.TimerHandle | None = None
        self._calls: dict[int, float] = {}  # runner → since when it has waited for the store
        self._away_log = LogLimiter(_AWAY_LOG_QUIET_S)
        self.open = 0
        """Commands accepted and not yet answered."""
        self.answered = 0
        self.batches = 0

    def offer(self, command: C, reply: Reply[C, O]) -> bool:
        """Take a command. False, and no reply ever, when the lane is at its bound."""
        if self.open >= self._queue_max:
            return False
        self.open += 1
        operation = None if self._same is None else self._same(command)
        if operation is not None:
            repeats = self._under_way.get(operation)
            if repeats is not None:
                repeats.append((command, reply))
                return True
            self._under_way[operation] = []
        entry = (command, reply, time.monotonic() + self._patience_s)
        if self._key is None or self._order.enter(self._key(command), self, entry):
            self.admit(entry)
        return True

    def admit(self, entry: Entry[C, O]) -> None:
        """Queue a command whose turn it is."""
        self._queue.append(entry)
        if not self._sleeping:
            return
        if self._awake == 0 or len(self._queue) >= limits.RELIEF_COMMANDS:
            self._wake()
        elif self._relief is None:
            loop = asyncio.get_running_loop()
            self._relief = loop.call_later(limits.RELIEF_AFTER_S, self._relieve)

    def _wake(self) -> None:
        if self._sleeping:
            sleeper = self._sleeping.pop()
            self._awake += 1
            if not sleeper.done():
                sleeper.set_result(None)

    def _relieve(self) -> None:
        """The call in flight takes long: what has gathered meanwhile goes beside it."""
        self._relief = None
        if self._queue:
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
            if not queue:
                sleeper: asyncio.Future[None] = loop.create_future()
                self._sleeping.append(sleeper)
                self._awake -= 1
                await sleeper
                continue
            batch = [queue.popleft() for _ in range(min(len(queue), limits.BATCH_COMMANDS_MAX))]
            self._calls[runner] = time.monotonic()
            try:
                await self._settle(batch)
            finally:
                del self._calls[runner]

    async def _settle(self, batch: list[Entry[C, O]]) -> None:
        """Answer every command of the batch, by halves when the store refuses it as a whole."""
        pause_s = limits.RETRY_FIRST_S
        while batch:
            try:
                outcomes = await self._execute([entry[0] for entry in batch])
                if len(outcomes) != len(batch):
                    raise RuntimeError("the store owes one outcome a command")
            except Exception as error:
                if not self._is_passing(error):
                    await self._divide(batch, error)
                    return
                self._say_away(batch, error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, limits.RETRY_MAX_S)
                batch = self._drop_late(batch)
            else:
                self.batches += 1
                self._answer_all(batch, outcomes)
                return

    async def _divide(self, batch: list[Entry[C, O]], error: Exception) -> None:
        if len(batch) == 1:
            log.error("command_refused_by_store", lane=self.name, **facts_of(error))
            self._answer(batch[0], INTERNAL)
            return
        middle = len(batch) // 2
        await self._settle(batch[:middle])
        await self._settle(batch[middle:])

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
            if again is not None and again(outcome):
                self.admit(entry)
            else:
                self._answer(entry, outcome)

    def _answer(self, entry: Entry[C, O], outcome: O | Refused) -> None:
        command, reply, _ = entry
        self._reply(command, reply, outcome)
        operation = None if self._same is None else self._same(command)
        repeats = None if operation is None else self._under_way.pop(operation)
        if repeats:
            if self._repeated is not None and not isinstance(outcome, Refused):
                outcome = self._repeated(outcome)
            for repeat, repeat_reply in repeats:
                self._reply(repeat, repeat_reply, outcome)
        if self._key is not None:
            self._order.leave(self._key(command))

    def _reply(self, command: C, reply: Reply[C, O], outcome: O | Refused) -> None:
        self.open -= 1
        self.answered += 1
        try:
            reply(command, outcome)
        except Exception as error:
            # A session that cannot take its answer must not stop the lane (INV-39).
            log.error("reply_failed", lane=self.name, **facts_of(error))

    def _drop_late(self, batch: list[Entry[C, O]]) -> list[Entry[C, O]]:
        """Answer `unavailable` to what has waited too long, in this batch and in the queue."""
        now = time.monotonic()
        queue = self._queue
        while queue and queue[0][2] <= now:
            self._answer(queue.popleft(), UNAVAILABLE)
        kept = []
        for entry in batch:
            if entry[2] > now:
                kept.append(entry)
            else:
                self._answer(entry, UNAVAILABLE)
        return kept
