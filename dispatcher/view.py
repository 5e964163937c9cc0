"""What a dispatcher believes: routes that may have ready tasks, sessions that have free slots.

Where: hints and slow twins write it, rounds read it; pure, so every decision of a round is here:
`plan` says what to read, `propose` pairs what was read with slots, `settle` learns from the claim.
Promise: a belief is never proof. A hint that is missing costs time until the slow twin repairs it;
a wrong one costs a wasted read or claim. A queue whose claims win nothing rests, up to 1 s.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.ledger import CapacityLedger, Promise
from dispatcher.limits import (
    HOLD_FIRST_S,
    HOLD_MAX_S,
    QUEUE_CLAIMS_MAX,
    ROUND_PAIRS_MAX,
    ROUND_ROWS_MAX,
    ROUTES_REMEMBERED_MAX,
)
from dispatcher.matching import barrier_of, match
from dispatcher.sharing import Shares
from store.dispatch import ReadyTask, SessionLevel
from store.messages import CapacityLevel

Route = tuple[str, int]
"""(queue id, route id)"""


class Wanted(NamedTuple):
    """Read so many ready tasks of a route. cut_short: it has slots for more than that."""

    queue_id: str
    route_id: int
    limit: int
    cut_short: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round reads. mark: hints that came later than it are not answered by the read."""

    wanted: list[Wanted]
    queue_ids: list[str]
    mark: int


@dataclass(slots=True)
class Proposal:
    """What one round claims. slow_pairs: those that only the slow twin had told of."""

    pairs: list[tuple[ReadyTask, str]] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)
    queue_of_route: dict[int, str] = field(default_factory=dict)
    slow_pairs: int = 0


@dataclass(slots=True, eq=False)
class _Queue:
    routes: dict[int, int] = field(default_factory=dict)  # may have work; value: mark of the hint
    is_read: bool = False  # a round reads it now
    won_meanwhile: set[str] = field(default_factory=set)  # by another; the read may still show them
    claims: int = 0
    hold_until: float = float("-inf")
    hold_s: float = HOLD_FIRST_S


class View:
    """The beliefs of one dispatcher. Times are monotonic seconds, given by the caller."""

    def __init__(self, node_id: str, on_work: Callable[[], None], pairs_max: int) -> None:
        """on_work: called when a round may have become possible."""
        self.ledger = CapacityLedger()
        self.shares = Shares(node_id)
        self._on_work = on_work
        self._pairs_max = min(pairs_max, ROUND_PAIRS_MAX)
        self._queues: dict[str, _Queue] = {}
        self._hot: dict[str, None] = {}
        self._slow: set[int] = set()
        self._resting: set[str] = set()
        self._proposed: set[str] = set()
        self._proposed_of: Counter[int] = Counter()
        self._mark = 0
        self._route_count = 0

    def hint_routes(self, routes: Collection[Route]) -> None:
        """Tasks may be ready on these, a stream says."""
        self._believe(routes)
        self._slow.difference_update(route_id for _, route_id in routes)

    def _believe(self, routes: Iterable[Route]) -> None:
        for queue_id, route_id in routes:
            if not self.shares.is_mine(queue_id):
                continue
            queue = self._queues.setdefault(queue_id, _Queue())
            if route_id not in queue.routes:
                if self._route_count >= ROUTES_REMEMBERED_MAX:
                    continue
                self._route_count += 1
            self._mark += 1
            queue.routes[route_id] = self._mark
            self._touch(queue_id)

    def _learn(self, routes: Collection[Route]) -> int:
        """Tasks may be ready on these, a slow twin says; on how many nobody believed so."""
        unknown = [route for route in routes if not self._believes(*route)]
        self._believe(unknown)
        self._slow.update(route[1] for route in unknown if self._believes(*route))
        return len(unknown)

    def mark(self) -> int:
        """To be taken before due routes are read from Postgres."""
        return self._mark

    def due_routes(self, due: Collection[Route], mark: int) -> int:
        """Take all routes that Postgres says have due tasks, asked at `mark`; forget the others.

        Routes hinted since then stay. Returns how many were not believed to have any.
        """
        listed = set(due)
        for queue_id, queue in list(self._queues.items()):
            for route_id, hinted in list(queue.routes.items()):
                if hinted <= mark and (queue_id, route_id) not in listed:
                    self._drop_route(queue, route_id)
            self._tidy(queue_id)
        for queue_id in {queue_id for queue_id, _ in listed}:
            self._touch(queue_id)
        return self._learn(listed)

    def hint_levels(self, levels: Iterable[CapacityLevel], now: float) -> int:
        """Take reports of gateways. Returns how many were of this dispatcher's queues."""
        taken = 0
        for level in levels:
            if not self.shares.is_mine(level.queue_id):
                continue
            taken += 1
            if self.ledger.report(level, now):
                self.hint_routes([(level.queue_id, route) for route in level.routes])
            self._touch(level.queue_id)
        return taken

    def session_levels(self, levels: Sequence[SessionLevel], mark: int, began: float) -> int:
        """Take some open sessions (see CapacityLedger.refresh). Returns how many were news."""
        new, changed = self.ledger.refresh(levels, mark, began)
        for level in new:
            self._learn([(level.queue_id, route) for route in level.routes])
        for queue_id in {level.queue_id for level in levels}:
            self._touch(queue_id)
        return len(new) + changed

    def correct_levels(
        self, session_ids: Sequence[str], levels: Sequence[SessionLevel], mark: int, now: float
    ) -> None:
        """Take what Postgres says of sessions whose claims were refused."""
        self.ledger.correct(session_ids, levels, mark, now)
        for queue_id in {level.queue_id for level in levels}:
            self._touch(queue_id)

    def share_out(self, nodes: Collection[str]) -> bool:
        """Take a new view of live dispatchers. True if it changed: the slow twins should run."""
        if not self.shares.update(nodes):
            return False
        self.ledger.drop_queues(self.shares.is_mine)
        for queue_id, queue in list(self._queues.items()):
            if not self.shares.is_mine(queue_id):
                for route_id in list(queue.routes):
                    self._drop_route(queue, route_id)
                self._tidy(queue_id)
        return True

    def has_work(self) -> bool:
        """Whether a plan is worth a try."""
        return bool(self._hot)

    def plan(self, now: float) -> Plan | None:
        """What the next round should read; None if nothing can be done. Ends in `propose`."""
        wanted: list[Wanted] = []
        queue_ids = []
        rows = ROUND_ROWS_MAX
        for queue_id in list(self._hot):
            if rows <= 0:
                break
            del self._hot[queue_id]
            queue = self._queues.get(queue_id)
            if queue is None or queue.is_read or queue.claims >= QUEUE_CLAIMS_MAX:
                continue
            if now < queue.hold_until:
                continue
            of_queue = self._wanted(queue_id, queue, rows)
            if of_queue:
                rows -= sum(item.limit for item in of_queue)
                queue.is_read = True
                queue_ids.append(queue_id)
                wanted += of_queue
        return Plan(wanted, queue_ids, self._mark) if wanted else None

    def propose(self, plan: Plan, ready: Sequence[ReadyTask], now: float) -> Proposal:
        """Pair what was read with free slots, which are promised. Ends in `settle` or `abandon`."""
        proposal = Proposal()
        read: dict[int, list[ReadyTask]] = {}
        for task in ready:
            read.setdefault(task.route_id, []).append(task)
        pairs_left = self._pairs_max
        for queue_id in plan.queue_ids:
            of_queue = [item for item in plan.wanted if item.queue_id == queue_id]
            pairs = self._match(queue_id, of_queue, read, pairs_left)
            pairs_left -= len(pairs)
            self._promise(queue_id, pairs, proposal, now)
            queue = self._queues[queue_id]  # kept while it is read
            won_meanwhile, queue.won_meanwhile = queue.won_meanwhile, set()
            queue.is_read = False
            queue.claims += bool(pairs)
            for item in of_queue:
                tasks = read.get(item.route_id, [])
                is_drained = len(tasks) < item.limit and all(
                    task.task_id in self._proposed or task.task_id in won_meanwhile
                    for task in tasks
                )
                if is_drained and queue.routes.get(item.route_id, plan.mark + 1) <= plan.mark:
                    self._drop_route(queue, item.route_id)
            self._touch(queue_id)
            self._tidy(queue_id)
        return proposal

    def unread(self, plan: Plan) -> None:
        """The read failed: the routes still may have work."""
        for queue_id in plan.queue_ids:
            queue = self._queues.get(queue_id)
            if queue is not None:
                queue.is_read = False
                queue.won_meanwhile.clear()
                self._touch(queue_id)
                self._tidy(queue_id)

    def settle(self, proposal: Proposal, won: Collection[str], now: float) -> list[str]:
        """Learn which tasks were won. Returns sessions with refusals, doubted until corrected."""
        wins = Counter(session for task, session in proposal.pairs if task.task_id in won)
        refused = [task for task, _ in proposal.pairs if task.task_id not in won]
        doubted = []
        for session_id, promise in proposal.promises.items():
            if wins[session_id] < promise.count:
                self.ledger.doubt(session_id)
                doubted.append(session_id)
            self.ledger.granted(promise, wins[session_id])
        queues_won = set()
        for task, _ in proposal.pairs:
            if task.task_id in won:
                queue_id = proposal.queue_of_route[task.route_id]
                queues_won.add(queue_id)
                queue = self._queues.get(queue_id)
                if queue is not None and queue.is_read:
                    queue.won_meanwhile.add(task.task_id)
        self._release(proposal, refused, queues_won, now)
        return doubted

    def abandon(self, proposal: Proposal, now: float) -> None:
        """The claim failed and may have been carried out: believe the slots used, until a level."""
        for promise in proposal.promises.values():
            self.ledger.granted(promise, promise.count)
        self._release(proposal, [task for task, _ in proposal.pairs], set(), now)

    def next_hold(self, now: float) -> float | None:
        """Seconds until the first resting queue with work may go on; None if there is none."""
        queues = (self._queues.get(queue_id) for queue_id in self._resting)
        return min((queue.hold_until - now for queue in queues if queue), default=None)

    def wake_rested(self, now: float) -> None:
        """Let queues whose rest is over go on."""
        for queue_id in list(self._resting):
            queue = self._queues.get(queue_id)
            if queue is None or queue.hold_until <= now:
                self._resting.discard(queue_id)
                self._touch(queue_id)

    def route_count(self) -> int:
        """Routes that may have work."""
        return self._route_count

    def _wanted(self, queue_id: str, queue: _Queue, rows: int) -> list[Wanted]:
        slots = self.ledger.slots(queue_id)
        free = {route: count for route in queue.routes if (count := slots.free_of(route))}
        if not free:
            return []
        share = max(1, min(rows, self._pairs_max) // len(free))
        return [
            Wanted(queue_id, route, min(count, share) + self._proposed_of[route], share < count)
            for route, count in free.items()
        ]

    def _match(
        self,
        queue_id: str,
        wanted: list[Wanted],
        read: dict[int, list[ReadyTask]],
        pairs_max: int,
    ) -> list[tuple[ReadyTask, str]]:
        cut = {
            item.route_id
            for item in wanted
            if item.cut_short and len(read.get(item.route_id, ())) >= item.limit
        }
        of_queue = {item.route_id: read[item.route_id] for item in wanted if item.route_id in read}
        barrier = barrier_of(of_queue, cut.__contains__)
        won_meanwhile = self._queues[queue_id].won_meanwhile
        candidates = [
            task
            for tasks in of_queue.values()
            for task in tasks
            if task.task_id not in self._proposed and task.task_id not in won_meanwhile
        ]
        return match(candidates, self.ledger.slots(queue_id), pairs_max, barrier)

    def _promise(
        self, queue_id: str, pairs: list[tuple[ReadyTask, str]], proposal: Proposal, now: float
    ) -> None:
        proposal.pairs += pairs
        for task, _ in pairs:
            self._proposed.add(task.task_id)
            self._proposed_of[task.route_id] += 1
            proposal.slow_pairs += task.route_id in self._slow
            proposal.queue_of_route[task.route_id] = queue_id
        for session_id, count in Counter(session for _, session in pairs).items():
            proposal.promises[session_id] = self.ledger.promise(session_id, count, now)

    def _release(
        self, proposal: Proposal, refused: list[ReadyTask], queues_won: set[str], now: float
    ) -> None:
        for task, _ in proposal.pairs:
            self._proposed.discard(task.task_id)
            self._proposed_of[task.route_id] -= 1
            if not self._proposed_of[task.route_id]:
                del self._proposed_of[task.route_id]
        for queue_id in set(proposal.queue_of_route.values()):
            queue = self._queues.setdefault(queue_id, _Queue())
            queue.claims -= 1
            if queue_id in queues_won:
                queue.hold_s = HOLD_FIRST_S
            else:
                queue.hold_until = now + queue.hold_s
                queue.hold_s = min(HOLD_MAX_S, 2 * queue.hold_s)
                self._resting.add(queue_id)
        self._believe({(proposal.queue_of_route[t.route_id], t.route_id) for t in refused})
        for queue_id in set(proposal.queue_of_route.values()):
            self._touch(queue_id)
            self._tidy(queue_id)

    def _believes(self, queue_id: str, route_id: int) -> bool:
        queue = self._queues.get(queue_id)
        return queue is not None and route_id in queue.routes

    def _touch(self, queue_id: str) -> None:
        queue = self._queues.get(queue_id)
        if queue is not None and queue.routes and self.ledger.slots(queue_id).total():
            self._hot[queue_id] = None
            self._on_work()

    def _drop_route(self, queue: _Queue, route_id: int) -> None:
        del queue.routes[route_id]
        self._slow.discard(route_id)
        self._route_count -= 1

    def _tidy(self, queue_id: str) -> None:
        """Forget a queue about which there is nothing to remember."""
        queue = self._queues.get(queue_id)
        if queue is not None and not queue.routes and not queue.is_read and not queue.claims:
            del self._queues[queue_id]
            self._hot.pop(queue_id, None)
