"""The session core, phase by phase: hello, commands, capacity, assignments, end."""

import json

import msgspec
import pytest

from gateway import limits
from gateway.lanes import UNAVAILABLE, Refused
from gateway.worker.actions import Close, Register, Return
from gateway.worker.attempts import Ask
from gateway.worker.dialect import Operation
from gateway.worker.session import Phase
from orbit_sdk.protocol.errors import CloseCode, ErrorCode
from orbit_sdk.protocol.limits import BAD_FRAMES_MAX
from store.commands import ReturnLease, SetCapacity
from tests.gateway.cores import (
    LEASE_MS,
    RING,
    SESSION,
    an_id,
    answered,
    assignment,
    capacity,
    command,
    declared,
    declares,
    done,
    finish,
    frame,
    hello,
    new_session,
    opened,
    ready_session,
    ref,
    sent,
)

KINDS = {
    "task.start": Operation.START,
    "task.renew": Operation.RENEW,
    "task.finish": Operation.FINISH,
    "worker.resume": Operation.RESUME,
}


def body_of(kind: str) -> dict[str, object]:
    return finish() if kind == "task.finish" else dict(ref())


# --- hello -------------------------------------------------------------------------------------


def test_hello_registers_and_is_answered_by_a_welcome() -> None:
    """R-120: the session and its limits are what the welcome says."""
    session = new_session()
    (register,) = session.on_text(hello(500), 0.0)
    assert isinstance(register, Register)
    assert session.free == 0
    (welcome,) = sent(session.opened(opened(), 0.0))
    assert (welcome["type"], welcome["reply_to"]) == ("worker.welcome", an_id(500))
    assert welcome["body"]["session_id"] == welcome["session_id"] == SESSION
    assert (welcome["body"]["epoch"], welcome["body"]["lease_duration_ms"]) == ("7", 30_000)
    assert session.free == 4


@pytest.mark.parametrize("kind", [*KINDS, "worker.capacity"])
def test_any_other_first_frame_closes_with_hello_required(kind: str) -> None:
    """OP-08: before hello every fault closes."""
    session = new_session()
    body = capacity(1) if kind == "worker.capacity" else body_of(kind)
    actions = session.on_text(frame(kind, body, 501), 0.0)
    (error,) = sent(actions)
    assert error["error"]["code"] == "hello_required"
    assert error["reply_to"] == an_id(501)
    assert "session_id" not in error
    assert actions[-1] == Close(CloseCode.POLICY_VIOLATION, "hello_required")
    assert session.on_text(hello(), 0.0) == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type":"worker.hello"}', "\ud800"])
def test_a_malformed_first_frame_closes(text: str) -> None:
    session = new_session()
    actions = session.on_text(text, 0.0)
    (error,) = sent(actions)
    assert error["error"]["code"] == "bad_frame"
    assert isinstance(actions[-1], Close)


def test_a_second_hello_while_the_first_is_judged_closes() -> None:
    session = new_session()
    session.on_text(hello(500), 0.0)
    actions = session.on_text(hello(501), 0.0)
    assert sent(actions)[0]["error"]["code"] == "hello_required"
    assert session.opened(opened(), 0.0) == ()


def test_a_second_hello_inside_a_session_is_a_bad_frame_and_changes_nothing() -> None:
    session = ready_session()
    (error,) = sent(session.on_text(hello(501, capacity=9), 0.0))
    assert (error["error"]["code"], error["reply_to"]) == ("bad_frame", an_id(501))
    assert error["session_id"] == SESSION
    assert (session.phase, session.capacity) == (Phase.READY, 4)


@pytest.mark.parametrize("code", ["instance_conflict", "queue_unavailable", "no-such-code"])
def test_a_hello_the_store_refuses_is_answered_and_closed(code: str) -> None:
    session = new_session()
    session.on_text(hello(500), 0.0)
    actions = session.opened(opened(code), 0.0)
    (error,) = sent(actions)
    assert error["error"]["code"] == (code if code != "no-such-code" else "internal")
    assert error["reply_to"] == an_id(500)
    assert "session_id" not in error
    assert isinstance(actions[-1], Close)


# --- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_goes_to_its_lane_and_its_outcome_comes_back(kind: str) -> None:
    session = ready_session()
    (ask,) = session.on_text(frame(kind, body_of(kind), 502), 0.0)
    assert isinstance(ask, Ask)
    assert ask.gathering.operation is KINDS[kind]
    asked = command(ask)
    assert (asked.attempt_id, asked.epoch) == (an_id(900), 1)
    assert (asked.session_id, asked.message_id) == (SESSION, an_id(502))
    (ack,) = sent(answered(session, ask, done(), 0.0))
    assert (ack["type"], ack["reply_to"]) == ("ack", an_id(502))
    if kind == "worker.resume":
        assert ack["body"]["active"] is True
    else:
        assert ack["body"]["receipt"]["operation"] == KINDS[kind].value
    assert session.open_commands == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["lease_secret", "epoch", "attempt_id"])
def test_a_proof_that_fails_answers_like_an_unknown_attempt(kind: str, change: str) -> None:
    """OP-14, INV-21: nothing goes to the store, and "foreign" looks like "unknown"."""
    session = ready_session()
    session.assigned([assignment()], 0.0)
    wrong = {"lease_secret": "A" * 43, "epoch": "2", "attempt_id": an_id(901)}
    body = body_of(kind)
    inner = body["ref"] if kind == "task.finish" else body
    assert isinstance(inner, dict)
    inner[change] = wrong[change]
    (error,) = sent(session.on_text(frame(kind, body, 503), 0.0))
    assert (error["error"]["code"], error["reply_to"]) == ("attempt_not_found", an_id(503))
    assert session.phase is Phase.READY


def test_a_frame_of_another_session_is_answered_and_changes_nothing() -> None:
    """INV-19, B-11."""
    session = ready_session()
    text = frame("task.renew", ref(), 504, session_id=an_id(9))
    (error,) = sent(session.on_text(text, 0.0))
    assert error["error"]["code"] == "session_superseded"
    assert (error["reply_to"], error["session_id"]) == (an_id(504), SESSION)
    assert session.phase is Phase.READY


@pytest.mark.parametrize("code", ["resume_required", "execution_gated", "operation_conflict"])
def test_a_refusal_of_the_store_is_the_answer(code: str) -> None:
    session = ready_session()
    (ask,) = session.on_text(frame("task.start", ref(), 505), 0.0)
    assert isinstance(ask, Ask)
    (error,) = sent(answered(session, ask, done(code=code), 0.0))
    assert (error["error"]["code"], error["reply_to"]) == (code, an_id(505))


@pytest.mark.parametrize("code", ["session_superseded", "session_expired"])
def test_a_session_that_is_over_in_the_store_ends_here(code: str) -> None:
    session = ready_session()
    (ask,) = session.on_text(frame("task.start", ref(), 506), 0.0)
    assert isinstance(ask, Ask)
    actions = answered(session, ask, done(code=code), 0.0)
    answer, fatal = sent(actions)
    assert answer["reply_to"] == an_id(506)
    assert "reply_to" not in fatal
    assert isinstance(actions[-1], Close)
    assert actions[-1].code in (CloseCode.SESSION_SUPERSEDED, CloseCode.SESSION_EXPIRED)


def test_an_absent_store_is_a_retryable_answer() -> None:
    session = ready_session()
    (ask,) = session.on_text(frame("task.start", ref(), 507), 0.0)
    assert isinstance(ask, Ask)
    (error,) = sent(answered(session, ask, UNAVAILABLE, 0.0))
    assert error["error"]["code"] == "unavailable"


def test_too_many_unanswered_commands_are_refused_one_by_one() -> None:
    """INV-37: bounded, with a documented answer; the session lives on."""
    session = ready_session()
    for number in range(limits.SESSION_COMMANDS_MAX):
        (ask,) = session.on_text(frame("task.renew", ref(), 1000 + number), 0.0)
        assert isinstance(ask, Ask)
    (error,) = sent(session.on_text(frame("task.renew", ref(), 508), 0.0))
    assert error["error"]["code"] == "rate_limited"


# --- malformed frames --------------------------------------------------------------------------


def test_malformed_frames_are_answered_up_to_a_budget() -> None:
    """OP-08."""
    session = ready_session()
    bad = json.dumps({"type": "task.cancel", "message_id": an_id(509)})
    for _ in range(BAD_FRAMES_MAX):
        (error,) = sent(session.on_text(bad, 0.0))
        assert (error["error"]["code"], error["reply_to"]) == ("bad_frame", an_id(509))
    actions = session.on_text(bad, 0.0)
    (fatal,) = sent(actions)
    assert "reply_to" not in fatal
    assert actions[-1] == Close(CloseCode.POLICY_VIOLATION, "bad_frame")


def test_a_malformed_frame_without_a_message_id_ends_the_session() -> None:
    session = ready_session()
    actions = session.on_text("}", 0.0)
    assert sent(actions)[0]["error"]["code"] == "bad_frame"
    assert actions[-1] == Close(CloseCode.POLICY_VIOLATION, "bad_frame")


def test_a_binary_message_is_no_part_of_the_protocol() -> None:
    (close,) = ready_session().on_binary()
    assert isinstance(close, Close)
    assert close.code == CloseCode.UNSUPPORTED_DATA


# --- capacity ----------------------------------------------------------------------------------


def test_a_capacity_update_is_acknowledged_with_a_welcome_body() -> None:
    """R-040, OP-29."""
    session = ready_session()
    declare = declares(session, frame("worker.capacity", capacity(9, 2), 510))
    assert declare.command == SetCapacity(SESSION, 9, 2, False)
    assert session.free == 4
    (ack,) = sent(session.capacity_answered(declare, declared(2)))
    assert (ack["type"], ack["reply_to"]) == ("ack", an_id(510))
    assert ack["body"]["session_id"] == SESSION
    assert session.free == 2


def test_each_capacity_update_gets_its_own_answer() -> None:
    """R-117: a lane at its bound refuses the later one before the earlier one is answered."""
    session = ready_session()
    first = declares(session, frame("worker.capacity", capacity(1, 2), 511))
    second = declares(session, frame("worker.capacity", capacity(1, 3), 512))
    (stale,) = sent(session.capacity_answered(second, declared(2, code="stale_sequence")))
    (ack,) = sent(session.capacity_answered(first, declared(2)))
    assert (ack["reply_to"], stale["reply_to"]) == (an_id(511), an_id(512))
    assert stale["error"]["code"] == "stale_sequence"
    assert session.capacity == 2


def test_a_refused_update_lifts_no_drain_that_is_still_to_be_answered() -> None:
    """INV-15: what is refused is the update, not the drain before it."""
    session = ready_session()
    drain = declares(session, frame("worker.capacity", capacity(1, 4, drain=True), 511))
    later = declares(session, frame("worker.capacity", capacity(2, 4), 512))
    (refusal,) = sent(session.capacity_answered(later, Refused(ErrorCode.RATE_LIMITED)))
    assert (refusal["error"]["code"], refusal["reply_to"]) == ("rate_limited", an_id(512))
    assert session.closed_to_work
    assert session.free == 0
    (ack,) = sent(session.capacity_answered(drain, declared(4, draining=True)))
    assert (ack["reply_to"], ack["body"]["draining"]) == (an_id(511), True)
    assert session.closed_to_work


def test_nothing_is_assigned_from_the_moment_a_drain_is_asked_for() -> None:
    """INV-15, B-10: also while the store has not answered yet."""
    session = ready_session()
    drain = declares(session, frame("worker.capacity", capacity(1, 4, drain=True), 513))
    assert session.free == 0
    given_back = Return(ReturnLease(an_id(900), SESSION))
    assert session.assigned([assignment()], 0.0) == [given_back]
    (ack,) = sent(session.capacity_answered(drain, declared(4, draining=True)))
    assert ack["body"]["draining"] is True
    later = declares(session, frame("worker.capacity", capacity(2, 8), 514))
    (ack,) = sent(session.capacity_answered(later, declared(8, draining=True)))
    assert ack["body"]["draining"] is True
    assert session.assigned([assignment()], 0.0) == [given_back]
    assert session.free == 0


def test_a_drain_the_store_refuses_as_stale_changes_nothing() -> None:
    session = ready_session()
    drain = declares(session, frame("worker.capacity", capacity(1, 4, drain=True), 515))
    session.capacity_answered(drain, declared(4, code="stale_sequence"))
    assert session.free == 4
    assert len(sent(session.assigned([assignment()], 0.0))) == 1


# --- assignments and slots ---------------------------------------------------------------------


def test_an_assignment_carries_its_secret_and_takes_a_slot() -> None:
    session = ready_session()
    (given,) = sent(session.assigned([assignment(900, epoch=3)], 0.0))
    assert given["type"] == "task.assign"
    assert "reply_to" not in given
    assert given["body"]["lease_secret"] == RING.derive(an_id(900), "3")
    assert given["body"]["task"]["payload"] == {"n": 1}
    assert session.free == 3
    assert session.holds(an_id(900))


@pytest.mark.parametrize(
    ("outcome", "free"),
    [
        (done("RUNNING"), 3),
        (done("RUNNING", active=False), 3),
        (done("SUCCEEDED", active=False, settled=True), 4),
        (done("EXPIRED", active=False), 4),
        (done(code="attempt_not_found"), 4),
        (done(code="execution_gated"), 3),
        (UNAVAILABLE, 3),
    ],
)
def test_a_slot_is_held_exactly_while_its_attempt_may_be_live(outcome: object, free: int) -> None:
    """INV-12, B-22."""
    session = ready_session()
    session.assigned([assignment()], 0.0)
    (ask,) = session.on_text(frame("task.start", ref(), 516), 0.0)
    assert isinstance(ask, Ask)
    answered(session, ask, outcome, 0.0)  # type: ignore[arg-type]
    assert session.free == free


def test_a_resumed_attempt_takes_a_slot_while_it_is_asked_for_and_after() -> None:
    session = ready_session()
    (ask,) = session.on_text(frame("worker.resume", ref(), 517), 0.0)
    assert isinstance(ask, Ask)
    assert session.free == 3
    answered(session, ask, done(), 0.0)
    assert session.free == 3


@pytest.mark.parametrize("outcome", [done("FAILED", active=False), done(code="attempt_not_found")])
def test_a_resume_in_vain_gives_its_slot_back(outcome: object) -> None:
    session = ready_session()
    (ask,) = session.on_text(frame("worker.resume", ref(), 518), 0.0)
    assert isinstance(ask, Ask)
    answered(session, ask, outcome, 0.0)  # type: ignore[arg-type]
    assert session.free == 4


def test_the_slot_of_a_silent_worker_comes_back_when_its_lease_must_be_over() -> None:
    session = ready_session()
    session.assigned([assignment(900)], 0.0)
    session.assigned([assignment(901)], 20.0)
    assert not session.lapse(30.9)
    assert session.lapse(31.1)
    assert session.free == 3
    (ask,) = session.on_text(frame("task.renew", ref(901), 519), 45.0)
    assert isinstance(ask, Ask)
    answered(session, ask, done(), 45.0)
    assert not session.lapse(60.0)
    assert session.lapse(76.1)
    assert session.free == 4


def test_what_is_still_held_takes_slots_until_it_is_resumed_or_lapses() -> None:
    """OP-14: the first level of a new session already counts what its instance runs."""
    session = new_session()
    session.on_text(hello(), 0.0)
    held = (an_id(900), an_id(901))
    session.opened(msgspec.structs.replace(opened(), held=held), 0.0)
    assert session.free == 2
    session.on_text(frame("worker.resume", ref(900), 530), 1.0)
    (ask,) = session.on_text(frame("worker.resume", ref(901), 531), 1.0)
    assert isinstance(ask, Ask)
    answered(session, ask, done("EXPIRED", active=False), 1.0)
    assert session.free == 3
    assert session.lapse(LEASE_MS / 1000 + limits.LEASE_SLACK_MS / 1000 + 2.0)
    assert session.free == 4


def test_an_assignment_faster_than_the_welcome_comes_after_it() -> None:
    session = new_session()
    session.on_text(hello(), 0.0)
    assert session.assigned([assignment()], 0.0) == ()
    assert session.holds(an_id(900))
    frames = sent(session.opened(opened(), 0.0))
    assert [item["type"] for item in frames] == ["worker.welcome", "task.assign"]
    assert session.free == 3


# --- the platform's side -----------------------------------------------------------------------


def test_a_draining_node_says_so_and_takes_nothing_more() -> None:
    """OP-04: hello and capacity are answered with draining true; what runs goes on."""
    session = ready_session()
    session.assigned([assignment()], 0.0)
    session.drain_node()
    assert session.free == 0
    assert session.assigned([assignment(901)], 0.0) == [Return(ReturnLease(an_id(901), SESSION))]
    declare = declares(session, frame("worker.capacity", capacity(1), 520))
    (ack,) = sent(session.capacity_answered(declare, declared(4)))
    assert ack["body"]["draining"] is True
    (ask,) = session.on_text(frame("task.finish", finish(), 521), 0.0)
    assert isinstance(ask, Ask)


@pytest.mark.parametrize(
    ("code", "close"),
    [
        (ErrorCode.SESSION_SUPERSEDED, 4409),
        (ErrorCode.SESSION_EXPIRED, 4410),
        (ErrorCode.SLOW_CONSUMER, 4429),
        (ErrorCode.DRAINING, 1012),
        (ErrorCode.INTERNAL, 1011),
    ],
)
def test_an_end_by_the_platform_is_a_fatal_error_and_its_close_code(
    code: ErrorCode, close: int
) -> None:
    session = ready_session()
    actions = session.end(code)
    (fatal,) = sent(actions)
    assert (fatal["error"]["code"], fatal["session_id"]) == (code.value, SESSION)
    assert "reply_to" not in fatal
    assert actions[-1] == Close(close, code.value)
    assert session.end(code) == ()
    assert session.free == 0


def test_a_hello_that_never_comes_ends_with_4408() -> None:
    actions = new_session().end(ErrorCode.HELLO_TIMEOUT)
    assert "session_id" not in sent(actions)[0]
    assert actions[-1] == Close(4408, "hello_timeout")


def test_outcomes_after_the_end_are_not_sent() -> None:
    session = ready_session()
    (ask,) = session.on_text(frame("task.start", ref(), 522), 0.0)
    declare = declares(session, frame("worker.capacity", capacity(1), 523))
    session.ended()
    assert isinstance(ask, Ask)
    assert answered(session, ask, done(), 0.0) == []
    assert session.capacity_answered(declare, declared(4)) == ()
    assert session.open_commands == 0
