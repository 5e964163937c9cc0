"""Every attempt this worker holds, and what to do next for each. Pure.

Between `session` (connections, capacity) and `mail` (messages). Promises: a handler is run only
after a start was confirmed with an active RUNNING lease, and is told to stop when the last
confirmed lease is over by our own clock (R-037, R-151); a report is repeated under one message id
until its final answer (R-142); an attempt's trouble never reaches another attempt.
"""

from collections.abc import Callable
from math import inf

from orbit_sdk.protocol.errors import ERRORS, ErrorCode
from orbit_sdk.protocol.frames import AssignBody, AttemptRef, CommandResult, LeaseBody, Receipt
from orbit_sdk.worker.attempt import Held, Step
from orbit_sdk.worker.dialect import Operation
from orbit_sdk.worker.effects import Effect, Noted, Run, Settled, Stop, StopReason
from orbit_sdk.worker.holdings import Holdings
from orbit_sdk.worker.lease import (
    Pace,
    Verdict,
    renew_due,
    renew_due_after_resume,
    stop_reason,
    verdict,
    work_s,
)
from orbit_sdk.worker.limits import OPERATION_BACKOFF
from orbit_sdk.worker.mail import Mail, Pending
from orbit_sdk.worker.outcomes import (
    CANCELLED,
    RESULT_FAULTS,
    RESULT_REFUSED,
    STARTED_TOO_LATE,
    WORKER_STOPPED,
    Report,
    failed,
    final_words,
    is_stop,
)

_RETRYABLE = frozenset(row.code.value for row in ERRORS.values() if row.retryable)


class Desk:
    """Decides for the `attempts` of one worker process, over all its sessions. `share` gives
    jitter."""

    def __init__(
        self,
        out: list[Effect],
        mail: Mail,
        new_id: Callable[[], str],
        share: Callable[[], float],
    ) -> None:
        self._out = out
        self._mail = mail
        self._new_id = new_id
        self._share = share
        self.attempts = Holdings()
        self.lease_s = inf
        self.pace = Pace()
        self._due = inf
        self._stopping = False

    def next_due(self) -> float:
        """Nothing is to be done before this instant."""
        return self._due

    # Connections

    def connected(self, lease_s: float, now: float) -> None:
        """A new session is ready: every attempt is resumed in it (R-121, OP-14)."""
        self.lease_s = lease_s
        for held in self.attempts:
            self._advance(held, now)

    def disconnected(self) -> None:
        """The session is gone. Handlers go on within what was confirmed last (R-154)."""
        for held in self.attempts:
            held.disconnected()

    # Attempts

    def accept(self, body: AssignBody, now: float) -> None:
        """Ask to start an assigned task."""
        ref = AttemptRef(body.task.id, body.attempt_id, body.epoch, body.lease_secret)
        held = Held(ref, body.task, self._new_id())
        self.attempts.add(held)
        self._advance(held, now)

    def make_way(self, task_id: str, epoch: int) -> None:
        """A task was granted anew, which proves that its earlier grants are over: one whose handler
        was never run here is let go (INV-1, OP-14)."""
        if self.attempts.works_on(task_id):
            for held in self.attempts:
                before = held.ref.task_id == task_id and int(held.ref.epoch) < epoch
                if before and held.step is Step.STARTING:
                    self._drop(held, "not started: the task was granted anew")

    def finished(self, attempt_id: str, report: Report, now: float) -> None:
        """The handler has ended. Tells the server until it has a final answer."""
        held = self.attempts.find(attempt_id)
        if held is None or held.step is not Step.RUNNING:
            return
        if held.untold and is_stop(report):
            held.kept = report
            return
        self._mail.forget(held.renew_id)
        self._finish(held, report)
        if held.owned:
            self._advance(held, now)

    def abandoned(self, attempt_id: str) -> None:
        """The handler was stopped and cannot say how far it came: the lease lapses, and the task's
        recovery class decides (OP-25)."""
        held = self.attempts.find(attempt_id)
        if held is not None and held.step is Step.RUNNING:
            self._drop(held, "abandoned; the lease will lapse")

    def cancel(self, attempt_id: str, reason: StopReason, now: float) -> None:
        """The platform wants an attempt stopped (R-127); one that has not begun never will. Its
        lease is renewed once more: that answer opens the window for the report (OP-03)."""
        held = self.attempts.find(attempt_id)
        if held is None:
            return
        self._want_stopped(held, reason)
        held.untold = False
        if held.kept is not None:
            report, held.kept = held.kept, None
            self.finished(attempt_id, report, now)

    def stop(self) -> None:
        """The process ends: stop every handler, start none."""
        self._stopping = True
        for held in self.attempts:
            if held.step is Step.RUNNING:
                self._out.append(Stop(held.ref.attempt_id, StopReason.SHUTDOWN))

    # Answers

    def acked(self, pending: Pending, body: CommandResult | LeaseBody, now: float) -> None:
        """The answer to one of our operations."""
        held = self.attempts.find(pending.attempt_id)
        if held is None:
            return
        if pending.operation is not Operation.RENEW:
            held.waiting_for = None
            held.tries = 0
        lease = body.lease if isinstance(body, CommandResult) else body
        match pending.operation:
            case Operation.START:
                self._start_answered(held, lease, pending.sent_at, now)
            case Operation.RENEW:
                held.renew_id = None
                self.renewed(held, lease, pending.sent_at, now)
            case Operation.RESUME:
                self._resumed(held, lease, pending.sent_at, now)
            case Operation.FINISH if isinstance(body, CommandResult):
                self.settle(held, body.receipt)
            case _:
                raise AssertionError(f"{pending.operation} is not an attempt's to answer")

    def refused(self, pending: Pending, code: str, now: float) -> None:
        """The error to one of our operations. It concerns this attempt and no other (INV-21)."""
        held = self.attempts.find(pending.attempt_id)
        if held is None:
            return
        if pending.operation is Operation.RENEW:
            self._renew_refused(held, code, now)
            return
        held.waiting_for = None
        if pending.operation is Operation.START:
            # What was refused is over. Under its old id a late answer to an earlier repeat could be
            # taken for the answer to the next try, and the lease be counted from too late.
            held.start_id = self._new_id()
        if code == ErrorCode.RESUME_REQUIRED:
            held.owned = False
            self._later(held, now)
        elif code in _RETRYABLE:
            self._later(held, now)
        elif pending.operation is Operation.RESUME:
            held.owned = True  # As far as it can be; what follows gets its own answer.
            self._gone(held, code, now)
        elif held.step is Step.STARTING:
            self._drop(held, f"not started: {code}")
        elif code in RESULT_FAULTS and not held.result_replaced:
            held.result_replaced = True
            self._finish(held, failed(RESULT_REFUSED, f"the server refused the result: {code}"))
            self._advance(held, now)
        else:
            self.settle(held, code)

    def tick(self, now: float) -> None:
        """Do what is due: stop at boundaries, renew, try again."""
        if now < self._due:
            return
        for held in self.attempts:
            if held.step is not Step.STARTING and not held.lost and held.boundary <= now:
                if held.step is Step.RUNNING and held.ends_at_deadline and not held.cancelled:
                    self._mail.forget(held.renew_id)
                    self._want_stopped(held, StopReason.DEADLINE)
                    held.out_of_time(self.lease_s)
                else:
                    self.lose(held, "not confirmed in time")
            if held.renew_at <= now:
                self._renew(held, now)
            if held.retry_at <= now:
                held.retry_at = inf
                self._advance(held, now)
        self._due = min((held.due() for held in self.attempts), default=inf)

    def awaits(self, message_id: str, pending: Pending) -> bool:
        """Whether the answer to this message still matters to its attempt."""
        held = self.attempts.find(pending.attempt_id)
        return held is not None and message_id in (held.waiting_for, held.renew_id)

    # Decisions

    def _advance(self, held: Held, now: float) -> None:
        """Send what the attempt cannot go on without, if it is not under way already."""
        if held.waiting_for is not None:
            return
        if not held.owned:
            operation, message_id = Operation.RESUME, self._new_id()
        elif held.step is Step.STARTING:
            operation, message_id = Operation.START, held.start_id
        elif held.step is Step.FINISHING and held.finish_id is not None:
            operation, message_id = Operation.FINISH, held.finish_id
        else:
            return
        held.waiting_for = message_id
        self._mail.post(operation, message_id, held, now)

    def _start_answered(self, held: Held, lease: LeaseBody, sent_at: float, now: float) -> None:
        held.confirmed(lease, sent_at, self.lease_s)
        self._timed(sent_at, now)
        match verdict(lease):
            case Verdict.WORK:
                if held.cancelled:
                    self._report_unrun(held, CANCELLED, "cancelled before it ran", now)
                elif self._stopping:
                    self._report_unrun(held, WORKER_STOPPED, "the worker is stopping", now)
                elif held.boundary <= now:
                    text = "the start was confirmed when too little of the lease was left"
                    self._report_unrun(held, STARTED_TOO_LATE, text, now)
                else:
                    self._run(held, lease, sent_at)
            case Verdict.CANCELLED:
                self._report_unrun(held, CANCELLED, "cancelled before it ran", now)
            case Verdict.UNSTARTED:
                self._later(held, now)
            case Verdict.OVER:
                self._drop(held, f"not started: the attempt is {lease.state}")

    def _run(self, held: Held, lease: LeaseBody, sent_at: float) -> None:
        held.step = Step.RUNNING
        held.renew_at = self._renew_due(sent_at)
        self._wake(min(held.boundary, held.renew_at))
        until = sent_at + work_s(held.task, lease)
        self._out.append(Run(held.ref.attempt_id, int(held.ref.epoch), held.task, until))

    def renewed(self, held: Held, lease: LeaseBody, sent_at: float, now: float) -> None:
        """The answer to a renewal, whichever way it came."""
        self._timed(sent_at, now)
        if held.step is not Step.RUNNING or held.lost:
            return
        match verdict(lease):
            case Verdict.WORK:
                self._confirm(held, lease, sent_at)
                if held.owned:
                    held.renew_at = self._renew_due(sent_at)
                    self._wake(held.renew_at)
            case Verdict.CANCELLED:
                self._cancel(held, lease, sent_at, now)
            case Verdict.UNSTARTED | Verdict.OVER:
                self.lose(held, f"the attempt is {lease.state}")

    def _resumed(self, held: Held, lease: LeaseBody, sent_at: float, now: float) -> None:
        held.owned = True
        answer = verdict(lease)
        running = held.step is Step.RUNNING
        if held.step is Step.STARTING and answer is Verdict.CANCELLED:
            held.confirmed(lease, sent_at, self.lease_s)
            self._report_unrun(held, CANCELLED, "cancelled before it ran", now)
        elif answer is Verdict.OVER or (running and answer is Verdict.UNSTARTED):
            self._gone(held, f"the attempt is {lease.state}", now)
        elif not running or held.lost:
            self._advance(held, now)
        elif answer is Verdict.CANCELLED:
            self._cancel(held, lease, sent_at, now)
        else:
            self._confirm(held, lease, sent_at)
            after_s = self.pace.renew_after_s(self.lease_s)
            held.renew_at = renew_due_after_resume(sent_at, lease, self.lease_s, after_s)
            self._wake(held.renew_at)

    def _gone(self, held: Held, why: str, now: float) -> None:
        """The server says that the attempt is over, or that it knows none."""
        if held.step is Step.STARTING:
            self._drop(held, f"not started: {why}")
        elif held.step is Step.RUNNING:
            self.lose(held, why)
        else:
            self._advance(held, now)  # A report is judged as a repeat first.

    def _renew_due(self, sent_at: float) -> float:
        return renew_due(sent_at, self.pace.renew_after_s(self.lease_s), self._share())

    def _timed(self, sent_at: float, now: float) -> None:
        """An answer about a lease took until now: the next renewals are sent in time for another
        one as slow."""
        sooner_s = self.pace.answered(now - sent_at, self.lease_s, now)
        if sooner_s > 0:
            self._wake(self.attempts.hasten(sooner_s))

    def _renew(self, held: Held, now: float) -> None:
        assert held.owned, "a renewal is due only under the session that holds the attempt"
        assert held.step is Step.RUNNING, "a renewal is due only for what runs"
        held.renew_at = inf
        held.renew_id = self._new_id()
        self._mail.post(Operation.RENEW, held.renew_id, held, now)

    def _renew_refused(self, held: Held, code: str, now: float) -> None:
        if held.step is not Step.RUNNING:
            return
        held.renew_id = None  # As for a start: the next try is an operation of its own.
        if code == ErrorCode.ATTEMPT_NOT_FOUND:
            self.lose(held, code)
        elif code == ErrorCode.RESUME_REQUIRED:
            held.owned = False
            self._later(held, now)
        else:
            # The boundary stands: a failed renewal gives no right.
            held.tries += 1
            held.renew_at = now + OPERATION_BACKOFF.delay_s(held.tries, self._share())
            self._wake(held.renew_at)

    def _confirm(self, held: Held, lease: LeaseBody, sent_at: float) -> None:
        held.confirmed(lease, sent_at, self.lease_s)
        self._wake(held.boundary)

    def _cancel(self, held: Held, lease: LeaseBody, sent_at: float, now: float) -> None:
        # From here on the lease is a window for stopping and reporting, so it may be counted anew.
        self._confirm(held, lease, sent_at)
        held.renew_at = inf
        self.cancel(held.ref.attempt_id, stop_reason(held.task, lease, self.lease_s), now)

    def _want_stopped(self, held: Held, reason: StopReason) -> None:
        if not held.cancelled:
            held.cancelled = True
            if held.step is Step.RUNNING and not held.lost:
                self._out.append(Stop(held.ref.attempt_id, reason))

    def lose(self, held: Held, why: str) -> None:
        """The right to work is gone, or can no longer be shown."""
        if held.lost:
            return
        self.attempts.lose(held)
        held.renew_at = inf
        self._mail.forget(held.renew_id)
        if held.kept is not None:
            self._drop(held, f"stopped at the deadline, and not reported: {why}")
        elif held.step is Step.RUNNING:
            self._out.append(Noted(f"lease lost: {why}", held.ref.attempt_id))
            self._out.append(Stop(held.ref.attempt_id, StopReason.LEASE_LOST))

    def _report_unrun(self, held: Held, code: str, text: str, now: float) -> None:
        """The server counts the attempt as started, but no handler has seen it."""
        held.cancelled |= code == CANCELLED
        self._finish(held, failed(code, text))
        self._advance(held, now)

    def _finish(self, held: Held, report: Report) -> None:
        self.attempts.ended(held)
        held.finishing(report, self._new_id())
        self._wake(held.boundary)

    def _later(self, held: Held, now: float) -> None:
        held.tries += 1
        held.retry_at = now + OPERATION_BACKOFF.delay_s(held.tries, self._share())
        self._wake(held.retry_at)

    def settle(self, held: Held, answer: Receipt | str) -> None:
        """The report has its final answer: a receipt, or a code."""
        self._remove(held)
        applied = isinstance(answer, Receipt) and answer.disposition == "APPLIED"
        self._out.append(Settled(held.ref.attempt_id, applied, final_words(answer)))

    def _drop(self, held: Held, why: str) -> None:
        self._remove(held)
        self._out.append(Noted(why, held.ref.attempt_id))

    def _remove(self, held: Held) -> None:
        self.attempts.remove(held)
        self._mail.forget(held.waiting_for)
        self._mail.forget(held.renew_id)

    def _wake(self, at: float) -> None:
        self._due = min(self._due, at)
