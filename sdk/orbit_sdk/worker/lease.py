"""How long work may go on, by our own monotonic clock. Pure (R-037, R-152).

A lease answer names two instants of the server's clock, and only their difference is used: no two
clocks are compared. The difference is counted from when the request was sent, which is before the
server read its clock, so what we believe is never later than what the server believes.
"""

from enum import StrEnum
from math import inf

from orbit_sdk.protocol.frames import AssignedTask, LeaseBody
from orbit_sdk.protocol.states import AttemptState
from orbit_sdk.protocol.times import parse_time
from orbit_sdk.worker.effects import StopReason
from orbit_sdk.worker.limits import (
    MARGIN_MIN_S,
    MARGIN_SHARE,
    MARGIN_SHARE_MAX,
    PATIENCE,
    PATIENCE_SHARE_MAX,
    RENEW_SHARE,
    RENEW_SHARE_MIN,
    RENEW_SPREAD,
    RENEWED_SHARE,
    REPEAT_MAX_S,
    REPEAT_MIN_S,
    REPEAT_SHARE,
)


def remaining_s(until: str, server_time: str) -> float:
    """Seconds between two instants of the server's clock; negative if the first has passed."""
    return (parse_time(until) - parse_time(server_time)).total_seconds()


def work_s(task: AssignedTask, lease: LeaseBody) -> float:
    """How long an attempt may take at most: its time-out or its task's deadline ends it."""
    left_s = remaining_s(task.deadline_at, lease.server_time)
    return min(task.retry.attempt_timeout_ms / 1000, left_s)


def margin_s(lease_s: float) -> float:
    """How long before the end of a lease work stops."""
    return min(max(MARGIN_MIN_S, MARGIN_SHARE * lease_s), MARGIN_SHARE_MAX * lease_s)


def stop_boundary(sent_at: float, lease: LeaseBody, lease_s: float) -> float:
    """The monotonic instant at which work under this answer must have stopped."""
    return sent_at + remaining_s(lease.lease_until, lease.server_time) - margin_s(lease_s)


def ends_at_deadline(task: AssignedTask, lease: LeaseBody) -> bool:
    """Whether no renewal can extend this lease: the task's deadline ends it (OP-12)."""
    return remaining_s(task.deadline_at, lease.lease_until) <= 0


def stop_reason(task: AssignedTask, lease: LeaseBody, lease_s: float) -> StopReason:
    """Why an answer says to stop. The window that a deadline opens begins at the deadline and lasts
    a lease; one that a caller opened began, and so ends, before that (OP-03, OP-26)."""
    by_deadline = remaining_s(lease.lease_until, task.deadline_at) >= lease_s
    return StopReason.DEADLINE if by_deadline else StopReason.CANCELLED


class Pace:
    """How long after a renewal the next one is sent: a third of the lease, and sooner while answers
    are slow, so that the wait and a slow answer still fit between two commits (B-04).

    A slow answer is remembered for one to two leases.
    """

    def __init__(self) -> None:
        self._latest_s = 0.0
        self._former_s = 0.0
        self._turns_at = -inf

    @property
    def slowest_s(self) -> float:
        """The slowest of the latest answers took so long."""
        return max(self._latest_s, self._former_s)

    def answered(self, took_s: float, lease_s: float, now: float) -> float:
        """An answer took so long. How much sooner than before it renewals are due from here on."""
        before_s = self.renew_after_s(lease_s)
        if now >= self._turns_at:
            self._former_s = self._latest_s if now < self._turns_at + lease_s else 0.0
            self._latest_s = 0.0
            self._turns_at = now + lease_s
        self._latest_s = max(self._latest_s, took_s)
        return max(0.0, before_s - self.renew_after_s(lease_s))

    def renew_after_s(self, lease_s: float) -> float:
        """How long after one renewal was sent the next is, at most."""
        room_s = max(RENEW_SHARE_MIN * lease_s, RENEWED_SHARE * lease_s - self.slowest_s)
        return min(RENEW_SHARE * lease_s, room_s)

    def patience_s(self, lease_s: float) -> float:
        """How long an answer is waited for before its message is repeated, where others are slow. A
        repeat that crosses its answer is one more call, and the next renewal waits behind it."""
        return min(PATIENCE * self.slowest_s, PATIENCE_SHARE_MAX * lease_s)

    def answer_within_s(self, lease_s: float) -> float:
        """How long after one renewal was sent the next one's answer is still no surprise."""
        return max(self.renew_after_s(lease_s), self.slowest_s) + self.slowest_s


def renew_due(sent_at: float, after_s: float, share: float) -> float:
    """When to renew a lease that the operation sent at `sent_at` has just extended."""
    return sent_at + after_s * (1.0 - RENEW_SPREAD * share)


def renew_due_after_resume(
    sent_at: float, lease: LeaseBody, lease_s: float, after_s: float
) -> float:
    """When to renew a lease that a resume only confirmed: so long after it was extended."""
    left_s = remaining_s(lease.lease_until, lease.server_time)
    return sent_at + max(0.0, left_s - lease_s + after_s)


def relay_due(boundary: float, lease_s: float, pace: Pace, *, connected: bool) -> float:
    """When a lease runs short, so that another way is tried: without a socket, when half of what
    may be used is left; with one, which was asked long before, in its last quarter. An answer that
    is only as slow as the others is waited for: a second call would make the next one wait."""
    usable_s = lease_s - margin_s(lease_s)
    if not connected:
        return boundary - usable_s / 2
    left_s = usable_s - pace.answer_within_s(lease_s)
    return boundary - min(max(left_s, usable_s / 16), usable_s / 4)


def repeat_after_s(lease_s: float) -> float:
    """How long to wait for an answer before the same message goes out again."""
    return min(REPEAT_MAX_S, max(REPEAT_MIN_S, lease_s * REPEAT_SHARE))


class Verdict(StrEnum):
    """What a lease answer lets a worker do (OP-14)."""

    WORK = "work"
    """Run, or go on running."""

    UNSTARTED = "unstarted"
    """The lease is good, and no start has been granted yet."""

    CANCELLED = "cancelled"
    """Stop, and report it while the reporting window lasts (OP-03)."""

    OVER = "over"
    """The attempt is no longer ours to work on."""


def verdict(lease: LeaseBody) -> Verdict:
    """Only active and RUNNING authorises work; anything unforeseen does not."""
    if lease.active:
        return Verdict.WORK if lease.state is AttemptState.RUNNING else Verdict.UNSTARTED
    return Verdict.CANCELLED if lease.state is AttemptState.RUNNING else Verdict.OVER
