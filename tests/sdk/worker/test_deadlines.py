"""A task's deadline in the middle of a handler: stop in time, and report in the window (OP-26)."""

import pytest

from orbit_sdk.protocol.frames import FinishFrame, LeaseBody, RenewFrame
from orbit_sdk.protocol.states import AttemptState, Outcome
from orbit_sdk.worker.effects import Noted, Settled, Stop, StopReason
from orbit_sdk.worker.lease import stop_reason
from orbit_sdk.worker.outcomes import Report, failed, succeeded
from tests.contract.oracle import VERSIONS
from tests.sdk.worker.wired import LEASE_S, MARGIN_S, Wired

STOPPED = Report(Outcome.FAILED, b"{}", "cancelled")
DEADLINE_S = 50.0


@pytest.fixture(params=VERSIONS)
def wired(request: pytest.FixtureRequest) -> Wired:
    wired = Wired(version=request.param)
    wired.connect()
    return wired


def test_the_handler_stops_a_margin_before_the_deadline_and_reports_after_it(wired: Wired) -> None:
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(began + DEADLINE_S - MARGIN_S - 0.01)
    assert not wired.taken(Stop)
    wired.pass_to(began + DEADLINE_S - MARGIN_S)
    assert wired.taken(Stop) == [Stop(attempt.attempt_id, StopReason.DEADLINE)]
    wired.finish(attempt, STOPPED)
    assert not wired.frames_of(FinishFrame), "there is no intent so far that it could confirm"
    wired.pass_to(began + DEADLINE_S + MARGIN_S)
    (settled,) = wired.taken(Settled)
    assert isinstance(settled, Settled)
    assert settled.applied
    assert (attempt.state, attempt.error_code) == (AttemptState.FAILED, "cancelled")
    assert wired.core.held == 0


def test_a_push_brings_the_report_at_once() -> None:
    wired = Wired(version="2")
    wired.connect()
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(began + DEADLINE_S)
    wired.gateway.settle_lapsed()
    renewals = len(wired.frames_of(RenewFrame))
    wired.receive(wired.gateway.cancellation(attempt.attempt_id))
    assert len(wired.taken(Stop)) == 1, "once, and it was before"
    wired.finish(attempt, STOPPED)
    assert attempt.state is AttemptState.FAILED
    assert len(wired.frames_of(RenewFrame)) == renewals


def test_a_push_after_the_handler_has_stopped_sends_what_was_kept() -> None:
    wired = Wired(version="2")
    wired.connect()
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(began + DEADLINE_S - 1)
    wired.finish(attempt, STOPPED)
    wired.pass_to(began + DEADLINE_S)
    wired.gateway.settle_lapsed()
    wired.receive(wired.gateway.cancellation(attempt.attempt_id))
    (finish,) = wired.frames_of(FinishFrame)
    assert isinstance(finish, FinishFrame)
    assert finish.body.outcome is Outcome.CANCELLED
    assert attempt.state is AttemptState.FAILED


@pytest.mark.parametrize("report", [succeeded(1), failed("handler_error", "x")])
def test_what_is_no_stop_is_reported_as_soon_as_it_is_known(wired: Wired, report: Report) -> None:
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(wired.now + DEADLINE_S - 1)
    wired.finish(attempt, report)
    assert attempt.state in (AttemptState.SUCCEEDED, AttemptState.FAILED)
    assert wired.core.held == 0


def test_after_a_reconnect_the_answer_to_the_resume_says_it(wired: Wired) -> None:
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(began + DEADLINE_S - 5)
    wired.cut()
    wired.pass_to(began + DEADLINE_S - 1)
    wired.finish(attempt, STOPPED)
    wired.pass_to(began + DEADLINE_S + 5)
    wired.connect()
    assert attempt.state is AttemptState.FAILED
    assert wired.core.held == 0


def test_who_is_never_told_lets_go_when_the_window_is_over(wired: Wired) -> None:
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(began + DEADLINE_S - 5)
    wired.deaf = True
    wired.pass_to(began + DEADLINE_S - 1)
    wired.finish(attempt, STOPPED)
    wired.pass_to(began + DEADLINE_S + LEASE_S - MARGIN_S - 0.01)
    assert wired.core.held == 1
    wired.taken(Noted)
    wired.pass_to(began + DEADLINE_S + LEASE_S - MARGIN_S)
    assert wired.core.held == 0
    assert len(wired.taken(Noted)) == 1
    assert not wired.taken(Settled)


def test_a_handler_that_does_not_stop_is_told_that_the_lease_is_lost(wired: Wired) -> None:
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    wired.pass_to(began + DEADLINE_S - 5)
    wired.deaf = True
    wired.pass_to(began + DEADLINE_S + LEASE_S)
    assert wired.taken(Stop) == [
        Stop(attempt.attempt_id, StopReason.DEADLINE),
        Stop(attempt.attempt_id, StopReason.LEASE_LOST),
    ]


@pytest.mark.parametrize(
    ("until_s", "reason"),
    [
        (DEADLINE_S + LEASE_S, StopReason.DEADLINE),
        (DEADLINE_S + LEASE_S - 0.001, StopReason.CANCELLED),
        (LEASE_S, StopReason.CANCELLED),
    ],
)
def test_the_end_of_the_window_says_who_opened_it(until_s: float, reason: StopReason) -> None:
    """v1 has no word for it."""
    wired = Wired()
    wired.connect()
    began = wired.now
    attempt = wired.assign(deadline_s=DEADLINE_S)
    instant = wired.gateway.instant
    lease = LeaseBody(False, AttemptState.RUNNING, instant(began + until_s), instant(began + 49))
    assert stop_reason(attempt.task, lease, LEASE_S) is reason
