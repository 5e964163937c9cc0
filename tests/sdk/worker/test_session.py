"""Single rules of the session core, one by one; the simulation tries them all together."""

import pytest

from orbit_sdk.protocol.frames import (
    AckFrame,
    CapacityFrame,
    ErrorBody,
    ErrorFrame,
    FinishFrame,
    HelloFrame,
    LeaseBody,
    RenewFrame,
    ResumeFrame,
    StartFrame,
)
from orbit_sdk.protocol.states import AttemptState, Outcome
from orbit_sdk.worker.effects import Leave, Noted, Run, Settled, Stop, StopReason
from orbit_sdk.worker.limits import LEAVE_DRAINING_S, WELCOME_TIMEOUT_S
from orbit_sdk.worker.outcomes import RESULT_REFUSED, Report
from orbit_sdk.worker.session import Phase
from tests.contract.oracle import VERSIONS
from tests.sdk.worker.wired import LEASE_S, MARGIN_S, Wired


@pytest.fixture(params=VERSIONS)
def wired(request: pytest.FixtureRequest) -> Wired:
    wired = Wired(version=request.param)
    wired.connect()
    return wired


def stops(wired: Wired) -> list[tuple[str, StopReason]]:
    return [(e.attempt_id, e.reason) for e in wired.taken(Stop) if isinstance(e, Stop)]


def refuse(wired: Wired, kind: type, code: str | None) -> None:
    wired.gateway.trouble = lambda frame: code if isinstance(frame, kind) else None


# Leases


def test_the_boundary_is_counted_from_the_request_less_the_margin(wired: Wired) -> None:
    attempt = wired.assign()
    sent_at = wired.now
    wired.deaf = True
    wired.pass_to(sent_at + LEASE_S - MARGIN_S - 0.01)
    assert not stops(wired)
    wired.pass_to(sent_at + LEASE_S - MARGIN_S)
    assert stops(wired) == [(attempt.attempt_id, StopReason.LEASE_LOST)]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_lease_is_renewed_by_a_third_of_it_at_the_latest(share: float) -> None:
    wired = Wired(share=share)
    wired.connect()
    wired.assign()
    began = wired.now
    wired.pass_to(began + LEASE_S / 3 * 0.85 - 0.01)
    assert not wired.frames_of(RenewFrame)
    wired.pass_to(began + LEASE_S / 3)
    assert len(wired.frames_of(RenewFrame)) == 1
    wired.pass_to(began + 10 * LEASE_S)
    assert not stops(wired)


def test_a_late_answer_to_a_repeat_is_counted_from_the_first_sending(wired: Wired) -> None:
    wired.silent = True
    attempt = wired.assign()
    began = wired.now
    wired.pass_to(began + 4)
    first, second = wired.frames_of(StartFrame)
    assert first == second
    wired.silent = False
    lease = wired.gateway.lease_of(attempt)
    answer = wired.gateway.result(first, attempt, "start", applied=True, repeat=False)  # type: ignore[arg-type]
    assert lease.active
    wired.receive(answer)
    wired.deaf = True
    wired.pass_to(began + LEASE_S - MARGIN_S + 3.9)
    # 4 s after the sending the gateway says that 26 s are left: 22 s of work from the sending on.
    assert stops(wired) == [(attempt.attempt_id, StopReason.LEASE_LOST)]


@pytest.mark.parametrize("kind", [StartFrame, RenewFrame])
def test_a_late_answer_to_what_was_refused_is_not_taken_for_the_next_try(
    wired: Wired, kind: type
) -> None:
    wired.silent = kind is StartFrame
    attempt = wired.assign()
    wired.silent = True
    wired.pass_to(wired.now + 14)
    old, repeat = wired.frames_of(kind)[:2]
    assert old.message_id == repeat.message_id
    late = wired.gateway.result(old, attempt, kind.__name__[:5].lower(), applied=True, repeat=True)  # type: ignore[arg-type]
    boundary = 100.0 + LEASE_S - MARGIN_S
    wired.receive(
        ErrorFrame(
            "1",
            "2" * 32,
            ErrorBody("unavailable", ""),
            wired.gateway.session_id,
            old.message_id,
        )
    )
    wired.deaf = True
    wired.pass_to(wired.now + 1)
    wired.receive(late)
    assert not wired.taken(Run) or kind is RenewFrame
    wired.pass_to(boundary)
    assert bool(stops(wired)) is (kind is RenewFrame), "the late answer was counted from too late"


def test_a_start_that_is_confirmed_too_late_is_reported_and_not_run(wired: Wired) -> None:
    wired.silent = True
    attempt = wired.assign()
    wired.pass_to(wired.now + LEASE_S - MARGIN_S - 1)
    wired.silent = False
    wired.pass_to(wired.now + 4)
    assert not wired.taken(Run)
    assert attempt.error_code == "started_too_late"
    assert attempt.state is AttemptState.FAILED


@pytest.mark.parametrize("code", ["unavailable", "rate_limited", "a_code_of_tomorrow"])
def test_a_refused_renewal_is_tried_again_and_gives_no_right(wired: Wired, code: str) -> None:
    attempt = wired.assign()
    refuse(wired, RenewFrame, code)
    wired.pass_to(wired.now + LEASE_S - MARGIN_S)
    assert len(wired.frames_of(RenewFrame)) > 3
    assert stops(wired) == [(attempt.attempt_id, StopReason.LEASE_LOST)]
    assert wired.core.phase is Phase.READY


def test_a_renewal_for_a_lost_attempt_stops_it_at_once(wired: Wired) -> None:
    attempt = wired.assign()
    refuse(wired, RenewFrame, "attempt_not_found")
    wired.pass_to(wired.now + LEASE_S / 3)
    assert stops(wired) == [(attempt.attempt_id, StopReason.LEASE_LOST)]


def test_cancellation_comes_with_a_renewal_and_is_confirmed(wired: Wired) -> None:
    attempt = wired.assign()
    wired.gateway.cancel(attempt.attempt_id)
    wired.pass_to(wired.now + LEASE_S / 3)
    assert stops(wired) == [(attempt.attempt_id, StopReason.CANCELLED)]
    wired.finish(attempt, Report(Outcome.FAILED, b"{}", "cancelled"))
    assert attempt.state is AttemptState.CANCELLED
    assert len(wired.frames_of(RenewFrame)) == 1


def test_what_is_cancelled_before_its_start_is_confirmed_is_never_run(wired: Wired) -> None:
    wired.silent = True
    attempt = wired.assign()
    wired.gateway.cancel(attempt.attempt_id)
    wired.silent = False
    wired.reconnect()
    assert not wired.taken(Run)
    assert attempt.state is AttemptState.CANCELLED


# Starts


def test_a_gated_start_is_repeated_and_changes_nothing(wired: Wired) -> None:
    refuse(wired, StartFrame, "execution_gated")
    wired.assign()
    wired.pass_to(wired.now + 5)
    assert not wired.taken(Run)
    refuse(wired, StartFrame, None)
    wired.pass_to(wired.now + 5)
    assert len(wired.taken(Run)) == 1


@pytest.mark.parametrize("code", ["attempt_not_found", "operation_conflict", "something_new"])
def test_a_start_that_is_refused_for_good_is_let_go(wired: Wired, code: str) -> None:
    refuse(wired, StartFrame, code)
    wired.assign()
    assert wired.core.held == 0
    assert not wired.taken(Run)
    assert wired.core.phase is Phase.READY


def test_a_lost_start_is_resumed_and_repeated_under_its_id(wired: Wired) -> None:
    wired.silent = True
    attempt = wired.assign()
    wired.silent = False
    wired.reconnect()
    ids = {frame.message_id for frame in wired.frames_of(StartFrame)}
    assert len(ids) == 1
    assert [frame.body.attempt_id for frame in wired.frames_of(ResumeFrame)] == [  # type: ignore[union-attr]
        attempt.attempt_id
    ]
    assert len(wired.taken(Run)) == 1


def test_a_start_that_never_arrived_is_let_go_with_its_session(wired: Wired) -> None:
    wired.deaf = True
    attempt = wired.assign()
    wired.deaf = False
    wired.reconnect()
    assert attempt.state is AttemptState.EXPIRED
    assert wired.core.held == 0


@pytest.mark.parametrize(
    ("reason", "handler"),
    [("no handler", "other"), ("no free slot", "work"), ("still runs", "work")],
)
def test_an_unfit_assignment_is_left_to_lapse(wired: Wired, reason: str, handler: str) -> None:
    """OP-05: there is no frame that declines."""
    task_id = None
    if reason == "no free slot":
        for _ in range(4):
            wired.assign()
    elif reason == "still runs":
        task_id = wired.assign().task.id
    before = len(wired.sent)
    attempt = wired.assign(handler, task_id)
    assert len(wired.sent) == before
    (noted,) = wired.taken(Noted)
    assert isinstance(noted, Noted)
    assert reason in noted.what
    assert noted.attempt_id == attempt.attempt_id


def test_an_assignment_that_comes_twice_is_started_once(wired: Wired) -> None:
    attempt = wired.assign()
    wired.receive(wired.gateway.assignment(attempt))
    assert len(wired.frames_of(StartFrame)) == 1


def test_a_new_grant_takes_the_place_of_a_start_that_was_never_answered(wired: Wired) -> None:
    wired.deaf = True
    earlier = wired.assign()
    wired.deaf = False
    later = wired.assign(task_id=earlier.task.id)
    (run,) = wired.taken(Run)
    assert isinstance(run, Run)
    assert run.attempt_id == later.attempt_id
    assert wired.core.held == 1


def test_an_older_grant_that_comes_late_takes_no_place(wired: Wired) -> None:
    earlier = wired.gateway.assign(task_id="d" * 32)
    wired.deaf = True
    wired.assign(task_id="d" * 32)
    before = len(wired.sent)
    wired.receive(earlier)
    assert len(wired.sent) == before
    assert wired.core.held == 1


# Finishes


def test_a_report_is_repeated_under_its_id_over_reconnects(wired: Wired) -> None:
    attempt = wired.assign()
    wired.silent = True
    wired.finish(attempt)
    wired.pass_to(wired.now + 10)
    wired.silent = False
    wired.reconnect()
    finishes = wired.frames_of(FinishFrame)
    assert len(finishes) > 2
    assert len({frame.message_id for frame in finishes}) == 1
    (settled,) = wired.taken(Settled)
    assert settled == Settled(attempt.attempt_id, True, "APPLIED, SUCCEEDED")


@pytest.mark.parametrize("code", ["unavailable", "rate_limited", "internal"])
def test_passing_trouble_with_a_report_is_ridden_out(wired: Wired, code: str) -> None:
    attempt = wired.assign()
    refuse(wired, FinishFrame, code)
    wired.finish(attempt)
    wired.pass_to(wired.now + 20)
    refuse(wired, FinishFrame, None)
    wired.pass_to(wired.now + 6)
    assert attempt.state is AttemptState.SUCCEEDED
    assert len({frame.message_id for frame in wired.frames_of(FinishFrame)}) == 1


@pytest.mark.parametrize("code", ["attempt_not_found", "operation_conflict", "forbidden", "new"])
def test_a_final_answer_to_a_report_frees_the_slot(wired: Wired, code: str) -> None:
    attempt = wired.assign()
    refuse(wired, FinishFrame, code)
    wired.finish(attempt)
    assert wired.taken(Settled) == [Settled(attempt.attempt_id, False, code)]
    assert wired.core.held == 0
    assert wired.core.phase is Phase.READY


def test_evidence_is_a_final_answer(wired: Wired) -> None:
    attempt = wired.assign()
    attempt.state = AttemptState.EXPIRED
    wired.finish(attempt)
    assert wired.taken(Settled) == [Settled(attempt.attempt_id, False, "EVIDENCE_ONLY, EXPIRED")]


@pytest.mark.parametrize("code", ["payload_too_large", "bad_frame"])
def test_a_refused_result_is_replaced_once(wired: Wired, code: str) -> None:
    attempt = wired.assign()
    refused: list[FinishFrame] = []

    def refuse_first(frame: object) -> str | None:
        if isinstance(frame, FinishFrame) and not refused:
            refused.append(frame)
            return code
        return None

    wired.gateway.trouble = refuse_first
    wired.finish(attempt)
    assert attempt.error_code == RESULT_REFUSED
    assert len({frame.message_id for frame in wired.frames_of(FinishFrame)}) == 2


def test_a_report_from_beyond_the_boundary_is_still_sent(wired: Wired) -> None:
    attempt = wired.assign()
    wired.deaf = True
    wired.pass_to(wired.now + LEASE_S - MARGIN_S)
    wired.deaf = False
    wired.finish(attempt)
    assert attempt.state is AttemptState.SUCCEEDED, "the lease itself had not ended"


def test_an_abandoned_attempt_says_nothing(wired: Wired) -> None:
    attempt = wired.assign()
    wired.abandon(attempt)
    assert wired.core.held == 0
    assert not wired.frames_of(FinishFrame)


# Resumes


def test_each_attempt_is_resumed_on_its_own(wired: Wired) -> None:
    healthy, lapsed, unknown = (wired.assign() for _ in range(3))
    wired.cut()
    lapsed.state = AttemptState.EXPIRED
    del wired.gateway.attempts[unknown.attempt_id]
    wired.connect()
    assert set(stops(wired)) == {
        (lapsed.attempt_id, StopReason.LEASE_LOST),
        (unknown.attempt_id, StopReason.LEASE_LOST),
    }
    assert wired.core.phase is Phase.READY
    assert healthy.session_id == wired.gateway.session_id


def test_a_resume_extends_nothing_so_a_renewal_follows_in_time(wired: Wired) -> None:
    wired.assign()
    wired.pass_to(wired.now + 9)
    wired.reconnect()
    resumed_at = wired.now
    wired.pass_to(resumed_at + 1.01)
    assert len(wired.frames_of(RenewFrame)) == 1


def test_nothing_but_a_resume_is_sent_for_an_attempt_of_an_old_session(wired: Wired) -> None:
    attempt = wired.assign()
    refuse(wired, ResumeFrame, "unavailable")
    wired.reconnect()
    before = len(wired.sent)
    wired.finish(attempt)
    wired.pass_to(wired.now + LEASE_S)
    later = wired.sent[before:]
    assert {type(frame) for frame in later} == {ResumeFrame, CapacityFrame}
    refuse(wired, ResumeFrame, None)
    wired.pass_to(wired.now + 6)
    assert wired.taken(Settled)


# Capacity and drain


def levels(wired: Wired) -> list[tuple[int, int, bool]]:
    return [
        (int(frame.body.sequence), frame.body.capacity, frame.body.drain)
        for frame in wired.sent
        if isinstance(frame, CapacityFrame)
    ]


def test_an_attempt_that_will_not_stop_takes_its_slot_off_the_level(wired: Wired) -> None:
    attempt = wired.assign()
    refuse(wired, RenewFrame, "attempt_not_found")
    wired.pass_to(wired.now + LEASE_S / 3)
    assert levels(wired) == [(1, 3, False)]
    wired.abandon(attempt)
    assert levels(wired) == [(1, 3, False), (2, 4, False)]


def test_a_refused_level_is_declared_anew_after_a_while(wired: Wired) -> None:
    refuse(wired, CapacityFrame, "rate_limited")
    wired.apply(wired.core.drain(wired.now))
    wired.pass_to(wired.now + 0.9)
    assert len(levels(wired)) == 1
    wired.pass_to(wired.now + 5)
    refuse(wired, CapacityFrame, None)
    wired.pass_to(wired.now + 2)
    assert wired.gateway.draining
    sequences = [sequence for sequence, _, _ in levels(wired)]
    assert sequences == sorted(set(sequences))


def test_draining_is_said_in_every_session_and_never_taken_back(wired: Wired) -> None:
    attempt = wired.assign()
    wired.apply(wired.core.drain(wired.now))
    wired.reconnect()
    wired.reconnect()
    assert levels(wired) == [(1, 0, True)] * 3
    late = wired.assign()
    assert not [f for f in wired.frames_of(StartFrame) if f.body.attempt_id == late.attempt_id]  # type: ignore[union-attr]
    wired.finish(attempt)
    assert wired.core.held == 0


def test_stopping_ends_what_runs_and_runs_nothing_that_is_confirmed_later(wired: Wired) -> None:
    running = wired.assign()
    wired.silent = True
    starting = wired.assign()
    wired.silent = False
    wired.apply(wired.core.stop(wired.now))
    assert stops(wired) == [(running.attempt_id, StopReason.SHUTDOWN)]
    wired.pass_to(wired.now + 5)
    assert starting.error_code == "worker_stopped"
    assert len(wired.taken(Run)) == 1


# Sessions


@pytest.mark.parametrize(
    ("code", "final"),
    [
        ("instance_conflict", True),
        ("queue_unavailable", True),
        ("forbidden", True),
        ("unavailable", False),
        ("draining", False),
    ],
)
def test_a_refused_hello_ends_the_connection(code: str, final: bool) -> None:
    wired = Wired()
    refuse(wired, HelloFrame, code)
    wired.connect()
    (leave,) = wired.taken(Leave)
    assert leave == Leave(code, f"the model says {code}", final)
    assert wired.core.phase is Phase.LEAVING
    wired.core.closed()
    assert wired.core.phase is Phase.CONNECTING


def test_a_hello_without_an_answer_ends_the_connection() -> None:
    wired = Wired()
    wired.silent = True
    wired.connect()
    wired.pass_to(wired.now + WELCOME_TIMEOUT_S)
    assert [leave.code for leave in wired.taken(Leave) if isinstance(leave, Leave)] == [
        "welcome_timeout"
    ]


@pytest.mark.parametrize("code", ["session_superseded", "session_expired", "draining", "internal"])
def test_a_fatal_error_ends_the_session_and_not_the_work(wired: Wired, code: str) -> None:
    wired.assign()
    wired.receive(wired.gateway.fatal(code))
    (leave,) = wired.taken(Leave)
    assert leave == Leave(code, code, False)
    assert not stops(wired)
    wired.reconnect()
    assert not stops(wired)
    assert wired.core.held == 1


def test_a_superseded_session_is_left_whatever_it_answered(wired: Wired) -> None:
    refuse(wired, StartFrame, "session_superseded")
    wired.assign()
    assert wired.core.phase is Phase.LEAVING


def test_a_draining_node_is_left_after_a_moment() -> None:
    wired = Wired()
    wired.gateway.node_draining = True
    wired.connect()
    wired.pass_to(wired.now + LEAVE_DRAINING_S - 0.01)
    assert not wired.taken(Leave)
    wired.pass_to(wired.now + 0.01)
    assert len(wired.taken(Leave)) == 1


def test_an_ack_of_another_kind_ends_the_session(wired: Wired) -> None:
    """R-130: an answer belongs to one operation."""
    wired.silent = True
    attempt = wired.assign()
    (start,) = wired.frames_of(StartFrame)
    lease = LeaseBody(
        True, AttemptState.RUNNING, wired.gateway.instant(200.0), wired.gateway.now_text()
    )
    session_id = wired.gateway.session_id
    wired.receive(AckFrame("1", "2" * 32, session_id, start.message_id, lease))
    assert not wired.taken(Run)
    assert wired.core.phase is Phase.LEAVING
    assert attempt.attempt_id


def test_an_error_to_nothing_we_know_is_only_noted(wired: Wired) -> None:
    error = ErrorBody("attempt_not_found", "?")
    wired.receive(ErrorFrame("1", "2" * 32, error, wired.gateway.session_id, "3" * 32))
    assert wired.core.phase is Phase.READY
    assert len(wired.taken(Noted)) == 1
