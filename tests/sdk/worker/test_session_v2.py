"""The worker's session core in `pulse.worker.v2`: what batches and pushed frames add."""

import msgspec
import pytest

from orbit_sdk.protocol import frames_v2 as v2
from orbit_sdk.protocol.frames import CommandResult, ErrorBody, FinishFrame, RenewFrame, StartFrame
from orbit_sdk.protocol.limits import FRAME_BYTES_MAX, FRAME_ITEMS_MAX
from orbit_sdk.protocol.states import AttemptState, Outcome
from orbit_sdk.worker.dialect import DialectV2, Operation
from orbit_sdk.worker.effects import Leave, Run, Send, Settled, Stop, StopReason
from orbit_sdk.worker.limits import LEAVE_DRAINING_S
from orbit_sdk.worker.outcomes import Report, failed, succeeded
from orbit_sdk.worker.session import Phase
from tests.sdk.worker.versions import frame_id_of
from tests.sdk.worker.wired import LEASE_S, Wired

CANCELLED = failed("cancelled", "stopped")


@pytest.fixture
def wired() -> Wired:
    wired = Wired(slots=8, version="2")
    wired.connect()
    return wired


def sends(wired: Wired, frames: int, what: object = None) -> list[v2.ClientFrame]:
    """What one flush sends, without an answer; that many frames."""
    found = [effect for effect in wired.core.flush() if isinstance(effect, Send)]
    assert len(found) == frames, what
    return [v2.decode_client_frame(effect.frame) for effect in found]


def test_nothing_is_sent_before_the_flush_and_all_of_one_kind_together(wired: Wired) -> None:
    given = wired.gateway.assign_many(3)
    effects = wired.core.received(DialectV2().read(given), wired.now)
    assert not [effect for effect in effects if isinstance(effect, Send)]
    assert wired.core.unsent
    (frame,) = sends(wired, 1)
    assert isinstance(frame, v2.StartFrame)
    assert len(frame.body.items) == 3
    assert len({item.message_id for item in frame.body.items} | {frame.message_id}) == 4
    assert not wired.core.unsent


def test_a_late_answer_to_a_frame_whose_items_were_repeated_in_another_counts_once(
    wired: Wired,
) -> None:
    wired.silent = True
    wired.receive(wired.gateway.assign_many(2))
    first = wired.carriers[wired.frames_of(StartFrame)[0].message_id]
    wired.pass_to(wired.now + 4)
    wired.silent = False
    starts = wired.frames_of(StartFrame)
    assert len(starts) == 4
    results = []
    for start in starts[:2]:
        attempt = wired.gateway.attempts[start.body.attempt_id]  # type: ignore[union-attr]
        answer = wired.gateway.result(start, attempt, "start", applied=True, repeat=False)  # type: ignore[arg-type]
        assert isinstance(answer.body, CommandResult)
        results.append(answer.body)
    ack = v2.AckFrame("2", "9" * 32, wired.gateway.session_id, first, v2.ResultsBody((*results,)))
    wired.receive(v2.encode_frame(ack))
    assert len(wired.taken(Run)) == 2
    wired.receive(v2.encode_frame(ack))
    wired.pass_to(wired.now + 4)
    assert not wired.taken(Run)
    assert len(wired.frames_of(StartFrame)) == 4, "what was answered is not repeated"


def test_an_answer_with_another_number_of_results_ends_the_session(wired: Wired) -> None:
    wired.silent = True
    wired.receive(wired.gateway.assign_many(2))
    frame_id = wired.carriers[wired.frames_of(StartFrame)[0].message_id]
    error = v2.ItemError(ErrorBody("unavailable", ""))
    ack = v2.AckFrame("2", "9" * 32, wired.gateway.session_id, frame_id, v2.ResultsBody((error,)))
    wired.receive(v2.encode_frame(ack))
    (leave,) = wired.taken(Leave)
    assert isinstance(leave, Leave)
    assert leave.code == "bad_answer"


def test_one_refused_item_is_tried_again_and_the_others_run(wired: Wired) -> None:
    refused: list[object] = []

    def trouble(frame: object) -> str | None:
        if isinstance(frame, StartFrame) and not refused:
            refused.append(frame)
            return "unavailable"
        return None

    wired.gateway.trouble = trouble
    wired.receive(wired.gateway.assign_many(3))
    assert len(wired.taken(Run)) == 2
    wired.pass_to(wired.now + 5)
    assert len(wired.taken(Run)) == 1


def test_a_frame_refused_whole_is_refused_for_each_of_its_items(wired: Wired) -> None:
    wired.silent = True
    wired.receive(wired.gateway.assign_many(2))
    frame_id = wired.carriers[wired.frames_of(StartFrame)[0].message_id]
    wired.silent = False
    error = msgspec.json.encode(
        {
            "protocol_version": "2",
            "type": "error",
            "message_id": "9" * 32,
            "session_id": wired.gateway.session_id,
            "reply_to": frame_id,
            "error": {"code": "rate_limited", "message": "Later."},
        }
    )
    wired.receive(error)
    wired.pass_to(wired.now + 5)
    assert len(wired.taken(Run)) == 2


SPOILT = b'"spoilt"'


def spoil(wired: Wired, kind: type, attempt_id: str, content: bytes = b"") -> list[int]:
    """A server that understands no frame with this attempt in it and this content; how many items
    each frame of the kind had."""
    sizes: list[int] = []
    receive = wired.gateway.receive

    def refuse(data: bytes) -> list[bytes]:
        frame = v2.decode_client_frame(data)
        if not isinstance(frame, kind):
            return receive(data)
        assert isinstance(frame.body, v2.AttemptsBody | v2.FinishesBody)
        sizes.append(len(frame.body.items))
        if attempt_id.encode() not in data or content not in data:
            return receive(data)
        error = ErrorBody("bad_frame", "")
        session_id = wired.gateway.session_id
        refusal = v2.ErrorFrame("2", "9" * 32, error, session_id, frame.message_id)
        return [v2.encode_frame(refusal)]

    wired.gateway.receive = refuse  # type: ignore[method-assign]
    return sizes


def test_one_bad_report_costs_no_other_of_its_frame(wired: Wired) -> None:
    """OP-06: each on its own; only what is bad by itself is replaced."""
    good, bad, other = (wired.assign() for _ in range(3))
    sizes = spoil(wired, v2.FinishFrame, bad.attempt_id, SPOILT)
    effects = []
    for attempt in (good, bad, other):
        report = Report(Outcome.SUCCEEDED, SPOILT if attempt is bad else b'"fine"')
        effects += wired.core.finished(attempt.attempt_id, report, wired.now)
    wired.apply(effects)
    assert sizes == [3, 1, 1, 1, 1]
    assert {good.state, other.state} == {AttemptState.SUCCEEDED}
    assert (bad.state, bad.error_code) == (AttemptState.FAILED, "result_refused")
    assert wired.core.held == 0
    names = {}
    for frame in wired.frames_of(FinishFrame):
        assert isinstance(frame, FinishFrame)
        names.setdefault(frame.body.ref.attempt_id, []).append(frame.message_id)
    assert len(set(names[good.attempt_id])) == 1, "a report keeps its name"
    assert len(names[bad.attempt_id]) == 3, "with others, alone, and what took its place"


def test_one_bad_start_costs_no_other_of_its_frame(wired: Wired) -> None:
    given = wired.gateway.assign_many(3)
    _, bad, _ = wired.gateway.attempts
    assert spoil(wired, v2.StartFrame, bad) == []
    wired.receive(given)
    started = [run.attempt_id for run in wired.taken(Run) if isinstance(run, Run)]
    assert started == [attempt_id for attempt_id in wired.gateway.attempts if attempt_id != bad]


def test_one_bad_renewal_costs_no_other_of_its_frame(wired: Wired) -> None:
    wired.receive(wired.gateway.assign_many(3))
    _, bad, _ = wired.gateway.attempts
    sizes = spoil(wired, v2.RenewFrame, bad)
    wired.pass_to(wired.now + 3 * LEASE_S)
    assert sizes[0] == 3
    assert wired.taken(Stop) == [Stop(bad, StopReason.LEASE_LOST)]


def test_one_bad_resume_costs_no_other_of_its_frame(wired: Wired) -> None:
    wired.receive(wired.gateway.assign_many(3))
    _, bad, _ = wired.gateway.attempts
    sizes = spoil(wired, v2.ResumeFrame, bad)
    wired.reconnect()
    assert sizes[:4] == [3, 1, 1, 1]
    wired.pass_to(wired.now + 3 * LEASE_S)
    assert wired.taken(Stop) == [Stop(bad, StopReason.LEASE_LOST)]


def test_what_was_split_is_repeated_alone(wired: Wired) -> None:
    """Its answer may be lost as well, and the next frame shall not be spoilt again."""
    wired.receive(wired.gateway.assign_many(3))
    good, bad, other = wired.gateway.attempts
    sizes = spoil(wired, v2.FinishFrame, bad, SPOILT)
    effects = []
    for attempt_id in (good, bad, other):
        report = Report(Outcome.SUCCEEDED, SPOILT if attempt_id == bad else b'"fine"')
        effects += wired.core.finished(attempt_id, report, wired.now)
    (send,) = [effect for effect in wired.core.flush() if isinstance(effect, Send)]
    (refusal,) = wired.gateway.receive(send.frame)
    wired.silent = True
    wired.receive(refusal)
    wired.pass_to(wired.now + 7)
    assert sizes[0] == 3
    assert len(sizes) >= 7
    assert set(sizes[1:]) == {1}


# What is pushed


def test_a_pushed_cancellation_stops_the_handler_at_once_and_once(wired: Wired) -> None:
    attempt = wired.assign()
    wired.gateway.cancel(attempt.attempt_id)
    push = wired.gateway.cancellation(attempt.attempt_id)
    wired.receive(push)
    wired.receive(push)
    assert wired.taken(Stop) == [Stop(attempt.attempt_id, StopReason.CANCELLED)]
    wired.pass_to(wired.now + LEASE_S / 3)
    assert not wired.taken(Stop)
    assert len(wired.frames_of(RenewFrame)) == 1, "its answer opens the window for the report"
    wired.finish(attempt, CANCELLED)
    assert attempt.state is AttemptState.CANCELLED


def test_a_cancellation_faster_than_the_answer_to_the_start_runs_nothing(wired: Wired) -> None:
    """R-131: a start that was confirmed before the intent is no reason to begin."""
    effects = wired.core.received(DialectV2().read(wired.gateway.assign()), wired.now)
    assert not effects
    (send,) = [effect for effect in wired.core.flush() if isinstance(effect, Send)]
    (answer,) = wired.gateway.receive(send.frame)
    (attempt,) = wired.gateway.attempts.values()
    wired.gateway.cancel(attempt.attempt_id)
    wired.receive(wired.gateway.cancellation(attempt.attempt_id))
    wired.receive(answer)
    assert not wired.taken(Run)
    assert attempt.state is AttemptState.CANCELLED
    assert frame_id_of(send.frame)


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (CANCELLED, Outcome.CANCELLED),
        (succeeded(1), Outcome.SUCCEEDED),
        (failed("handler_error", "x"), Outcome.FAILED),
    ],
)
def test_only_a_stop_is_reported_as_one(wired: Wired, report: Report, outcome: Outcome) -> None:
    """R-128."""
    attempt = wired.assign()
    wired.gateway.cancel(attempt.attempt_id)
    wired.receive(wired.gateway.cancellation(attempt.attempt_id))
    wired.finish(attempt, report)
    (finish,) = wired.frames_of(FinishFrame)
    assert isinstance(finish, FinishFrame)
    assert finish.body.outcome is outcome


def test_a_stop_that_nobody_asked_for_is_an_ordinary_failure(wired: Wired) -> None:
    attempt = wired.assign()
    wired.finish(attempt, CANCELLED)
    assert attempt.state is AttemptState.FAILED
    (settled,) = wired.taken(Settled)
    assert isinstance(settled, Settled)
    assert settled.applied


def test_a_push_for_an_old_session_or_an_unknown_attempt_changes_nothing(wired: Wired) -> None:
    attempt = wired.assign()
    push = wired.gateway.cancellation(attempt.attempt_id)
    wired.reconnect()
    wired.receive(push)
    unknown = v2.CancelBody("7" * 32, "7" * 32, "1", "caller")
    session_id = wired.gateway.session_id
    wired.receive(v2.encode_frame(v2.CancelFrame("2", "8" * 32, session_id, unknown)))
    assert not wired.taken(Stop)


def test_a_node_that_says_it_leaves_is_left_after_a_moment(wired: Wired) -> None:
    """R-129."""
    wired.receive(wired.gateway.drain())
    wired.pass_to(wired.now + LEAVE_DRAINING_S - 0.01)
    assert wired.core.phase is Phase.READY
    wired.pass_to(wired.now + 0.01)
    assert len(wired.taken(Leave)) == 1


# How frames are cut


def test_reports_are_cut_to_what_a_frame_may_have(wired: Wired) -> None:
    """R-053: by size and by number."""
    posts = []
    for _ in range(6):
        wired.assign()
    for number, held in enumerate(wired.core._desk.attempts):
        held.finishing(Report(Outcome.SUCCEEDED, b'"%s"' % (b"x" * 262_000)), f"{number:032x}")
        posts.append((f"{number:032x}", held))
    parcels = list(DialectV2().parcels(Operation.FINISH, "1" * 32, posts, lambda: "2" * 32))
    assert [len(parcel.message_ids) for parcel in parcels] == [3, 3]
    assert all(len(parcel.frame) <= FRAME_BYTES_MAX for parcel in parcels)
    many = [posts[0]] * (FRAME_ITEMS_MAX + 1)
    parcels = list(DialectV2().parcels(Operation.RENEW, "1" * 32, many, lambda: "2" * 32))
    assert [len(parcel.message_ids) for parcel in parcels] == [FRAME_ITEMS_MAX, 1]
