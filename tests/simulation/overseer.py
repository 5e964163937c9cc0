"""What must hold at the workers: nothing runs without a right that its own clock still believes in.

The overseer counts boundaries by itself, from the instant at which the answered message was sent
first on that connection, or as this request past the sockets (R-152), and asks the store whether
the right is there (INV-1, INV-20).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.simulation.cores import Asked, Item, Lease, Result, StopReason, Told
from tests.simulation.judge import Judge, is_at_its_end
from tests.simulation.world import Clock, World, short
from tests.store.model import LEASE_MS

MARGIN_S: Final = max(1.0, 0.1 * LEASE_MS / 1000)
LATE_S: Final = 0.002
"""What the rounding of instants to milliseconds and of floats may add."""

LEAVES: Final = frozenset(
    {
        "draining",
        "hello_timeout",
        "session_expired",
        "session_superseded",
        "unavailable",
        "welcome_timeout",
    }
)
"""Why a worker may give a connection up."""


@dataclass(slots=True, eq=False)
class Running:
    """A handler call that has not ended. `told`: it was told to stop; `deaf`: it does not care."""

    worker: str
    attempt_id: str
    task_id: str
    clock: Clock
    boundary: float
    deaf: bool
    told: bool = False
    frozen: bool = False


class Overseer:
    """Watches every handler of a simulation."""

    def __init__(self, world: World, judge: Judge) -> None:
        self.world = world
        self.judge = judge
        self.running: dict[str, Running] = {}
        self.runs = 0
        self.leases_lost = 0
        self._sent: dict[str, tuple[str, float]] = {}
        """By message: the connection on which it was sent last, and when it was first on that."""
        self._boundaries: dict[str, float] = {}
        self._settled: set[str] = set()

    def sent(self, asked: Asked, connection: str, shown: float) -> None:
        """A worker's clock showed this when the message went out."""
        for item in asked.items:
            known = self._sent.get(item.message_id)
            if known is None or known[0] != connection:
                self._sent[item.message_id] = (connection, shown)

    def heard(self, told: Told, connection: str) -> None:
        """An answer has reached its worker: what may it believe now?"""
        if not told.results or told.reply_to in self.judge.books.strangers:
            return
        items = self.judge.books.frames[told.reply_to].items
        for item, result in zip(items, told.results, strict=True):
            if result.lease is not None and result.lease.authorises:
                self._may_believe(item, result.lease, connection)

    def _may_believe(self, item: Item, lease: Lease, connection: str) -> None:
        sent_on, sent_at = self._sent[item.message_id]
        if sent_on == connection:
            self._believe(item.attempt_id, lease, sent_at)

    def relayed(
        self, names: Sequence[tuple[str, str]], results: Sequence[Result], sent_at: float
    ) -> None:
        """A worker's request past its socket is answered; its clock showed this when it was made.
        It may believe what is said, counted from there, whatever else is under that name."""
        for (attempt_id, _), result in zip(names, results, strict=True):
            if result.lease is not None and result.lease.authorises:
                self._believe(attempt_id, result.lease, sent_at)

    def _believe(self, attempt_id: str, lease: Lease, sent_at: float) -> None:
        boundary = sent_at + lease.left_s - MARGIN_S
        former = self._boundaries.get(attempt_id, boundary)
        self._boundaries[attempt_id] = max(former, boundary)
        running = self.running.get(attempt_id)
        if running is not None:
            running.boundary = self._boundaries[attempt_id]

    def began(
        self, worker: str, slots: int, attempt_id: str, task_id: str, clock: Clock, deaf: bool
    ) -> None:
        """A handler is called."""
        self.world.note("worker", worker, "runs", attempt_id, "of", task_id)
        self.runs += 1
        boundary = self._boundaries.get(attempt_id)
        attempt = self.judge.model.attempts[attempt_id]
        if boundary is None or attempt.start is None:
            self.judge.fail("R-124", f"{short(attempt_id)} runs before its start was confirmed")
            return
        if attempt_id in self.running:
            self.judge.fail("R-132", f"{short(attempt_id)} runs twice")
        for other in self.running.values():
            elsewhere = other.worker != worker
            if elsewhere and (other.frozen or (other.deaf and other.told)):
                continue  # Nobody can stop it; within one process it can be waited for.
            if other.task_id == task_id:
                what = f"{short(task_id)} runs as {short(attempt_id)} beside"
                self.judge.fail("INV-1", f"{what} {short(other.attempt_id)}")
        busy = sum(one.worker == worker for one in self.running.values())
        if busy >= slots:
            self.judge.fail("INV-12", f"{short(worker)} runs more than its {slots} slots")
        self.running[attempt_id] = Running(worker, attempt_id, task_id, clock, boundary, deaf)
        self.look()

    def told_to_stop(self, attempt_id: str, reason: str) -> Running:
        """A handler was told to stop."""
        running = self.running[attempt_id]
        self.world.note("worker", running.worker, "stops", attempt_id, reason)
        attempt = self.judge.model.attempts[attempt_id]
        if reason == StopReason.LEASE_LOST and not is_at_its_end(attempt):
            self.leases_lost += 1
        running.told = True
        return running

    def froze(self, worker: str, frozen: bool) -> None:
        """A worker's process stands still, with all its handlers, or goes on.

        What wakes past its lease cannot have been stopped in time: fencing is what is left.
        """
        for running in self.running.values():
            if running.worker == worker:
                running.frozen = frozen
                if not frozen and running.clock.at(self.world.now) > running.boundary:
                    running.deaf = True

    def left(self, worker: str, code: str, final: bool) -> None:
        """A worker has given its connection up: never for an attempt's trouble (INV-21)."""
        if final or code not in LEAVES:
            self.judge.fail("INV-21", f"{short(worker)} left for {code}")

    def ended(self, attempt_id: str) -> None:
        """A handler has returned, or its process is gone."""
        running = self.running.pop(attempt_id, None)
        if running is not None:
            self.world.note("worker", running.worker, "has returned from", attempt_id)

    def settled(self, attempt_id: str, applied: bool) -> None:
        """A worker believes that its report has got its final answer (R-142)."""
        if attempt_id in self._settled:
            self.judge.fail("R-142", f"the report on {short(attempt_id)} has two final answers")
        self._settled.add(attempt_id)
        attempt = self.judge.model.attempts[attempt_id]
        if attempt.held or (applied and attempt.finish is None):
            self.judge.fail("INV-7", f"the report on {short(attempt_id)} was not kept")
        if not applied and attempt.finish is not None:
            self.judge.fail("INV-8", f"{short(attempt_id)} ended as reported, and it hears no")

    def look(self) -> None:
        """Every handler that was not told to stop has a right to run."""
        now = self.world.now
        for running in self.running.values():
            if running.told or running.frozen:
                continue
            attempt = self.judge.model.attempts[running.attempt_id]
            if not attempt.held or attempt.until <= now * 1000:
                self.judge.fail("INV-20", f"{short(attempt.id)} runs on a lease that is over")
            if running.clock.at(now) > running.boundary + LATE_S:
                self.judge.fail("R-037", f"{short(attempt.id)} runs past what was confirmed")
