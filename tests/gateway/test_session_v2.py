"""The session core in `pulse.worker.v2`: batches gathered into one answer, and what is pushed."""

import json

import pytest

from gateway import limits
from gateway.lanes import UNAVAILABLE
from gateway.worker.actions import Close, Return
from gateway.worker.attempts import Ask
from gateway.worker.session import Phase, Session
from orbit_sdk.protocol.limits import FRAME_BYTES_MAX, FRAME_ITEMS_MAX
from store.commands import FinishCommand, ReturnLease
from store.dispatch import Assignment
from tests.gateway.cores import (
    RING,
    SESSION,
    an_id,
    answered,
    assignment,
    batch,
    capacity,
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


@pytest.fixture
def session() -> Session:
    return ready_session(slots=256, version="2")


def asked(session: Session, kind: str, numbers: list[int], message: int = 500) -> Ask:
    bodies = [finish(number) if kind == "task.finish" else dict(ref(number)) for number in numbers]
    (ask,) = session.on_text(batch(kind, bodies, message), 0.0)
    assert isinstance(ask, Ask)
    return ask


@pytest.mark.parametrize("kind", ["task.start", "task.renew", "task.finish", "worker.resume"])
def test_a_frame_makes_one_command_an_item_and_gets_one_answer_in_order(
    session: Session, kind: str
) -> None:
    """OP-06: each item is an operation of its own, under its own message id (OP-21)."""
    ask = asked(session, kind, [900, 901, 902])
    assert [command.message_id for _, command in ask.commands] == [an_id(501 + n) for n in range(3)]
    assert session.open_commands == 3
    assert answered(session, ask, done("RUNNING"), item=2) == []
    assert answered(session, ask, done("EXPIRED", active=False), item=0) == []
    (ack,) = sent(answered(session, ask, done(code="resume_required"), item=1), "2")
    assert (ack["type"], ack["reply_to"], ack["session_id"]) == ("ack", an_id(500), SESSION)
    first, second, third = ack["body"]["results"]
    leases = [result if kind == "worker.resume" else result["lease"] for result in (first, third)]
    assert [lease["state"] for lease in leases] == ["EXPIRED", "RUNNING"]
    assert second == {"error": {"code": "resume_required", "message": second["error"]["message"]}}
    assert session.open_commands == 0


def test_an_item_without_proof_is_refused_alone(session: Session) -> None:
    """INV-21: and nothing of it goes to the store."""
    wrong = dict(ref(901)) | {"lease_secret": "A" * 43}
    (ask,) = session.on_text(batch("task.start", [dict(ref(900)), wrong, dict(ref(902))]), 0.0)
    assert isinstance(ask, Ask)
    assert [command.attempt_id for _, command in ask.commands] == [an_id(900), an_id(902)]
    answered(session, ask, done(), item=0)
    (ack,) = sent(answered(session, ask, done(), item=1), "2")
    codes = [result.get("error", {}).get("code") for result in ack["body"]["results"]]
    assert codes == [None, "attempt_not_found", None]


def test_a_frame_without_any_proof_is_answered_at_once(session: Session) -> None:
    wrong = dict(ref(900)) | {"lease_secret": "A" * 43}
    (ack,) = sent(session.on_text(batch("task.renew", [wrong, wrong]), 0.0), "2")
    assert [result["error"]["code"] for result in ack["body"]["results"]] == 2 * [
        "attempt_not_found"
    ]


def test_an_absent_store_is_an_answer_for_each_item(session: Session) -> None:
    ask = asked(session, "task.start", [900, 901])
    answered(session, ask, UNAVAILABLE, item=0)
    (ack,) = sent(answered(session, ask, done(), item=1), "2")
    assert ack["body"]["results"][0]["error"]["code"] == "unavailable"


def test_a_session_that_is_over_answers_its_frame_and_ends(session: Session) -> None:
    ask = asked(session, "task.start", [900, 901])
    answered(session, ask, done(code="session_superseded"), item=0)
    actions = answered(session, ask, done(code="session_superseded"), item=1)
    ack, fatal = sent(actions, "2")
    assert {result["error"]["code"] for result in ack["body"]["results"]} == {"session_superseded"}
    assert "reply_to" not in fatal
    assert isinstance(actions[-1], Close)


def test_one_bad_item_spoils_the_frame(session: Session) -> None:
    """OP-08: a frame is one or it is none; its own id is what the answer is tied to."""
    (error,) = sent(session.on_text(batch("task.start", [dict(ref()), {}]), 0.0), "2")
    assert (error["error"]["code"], error["reply_to"]) == ("bad_frame", an_id(500))
    (error,) = sent(session.on_text(batch("task.start", []), 0.0), "2")
    assert error["error"]["code"] == "bad_frame"
    assert session.phase is Phase.READY


def test_a_frame_of_v1_is_no_frame_of_v2(session: Session) -> None:
    """R-055."""
    (error,) = sent(session.on_text(frame("task.start", ref(), 502), 0.0), "2")
    assert error["error"]["code"] == "bad_frame"


def test_a_frame_past_the_bound_of_open_commands_is_refused_whole(session: Session) -> None:
    """INV-37."""
    for message in range(0, limits.SESSION_COMMANDS_MAX, FRAME_ITEMS_MAX):
        asked(session, "task.renew", [900] * FRAME_ITEMS_MAX, 10_000 + 2 * message)
    (error,) = sent(session.on_text(batch("task.renew", [dict(ref())]), 0.0), "2")
    assert (error["error"]["code"], error["reply_to"]) == ("rate_limited", an_id(500))


def test_a_confirmed_stop_goes_to_the_store_as_such(session: Session) -> None:
    """R-128: whether an intent is saved is for the store to say."""
    end = finish() | {"outcome": "CANCELLED", "error_code": "cancelled"}
    (ask,) = session.on_text(batch("task.finish", [end]), 0.0)
    assert isinstance(ask, Ask)
    ((_, command),) = ask.commands
    assert isinstance(command, FinishCommand)
    assert (command.outcome, command.error_code) == ("CANCELLED", "cancelled")


def test_assignments_that_come_together_go_in_one_frame(session: Session) -> None:
    (given,) = sent(session.assigned([assignment(900), assignment(901, epoch=3)], 0.0), "2")
    assert (given["type"], given["session_id"]) == ("task.assign", SESSION)
    secrets = [body["lease_secret"] for body in given["body"]["assignments"]]
    assert secrets == [RING.derive(an_id(900), "1"), RING.derive(an_id(901), "3")]
    assert session.free == 254


def test_an_assignment_frame_is_cut_to_what_a_peer_takes(session: Session) -> None:
    """R-053: every frame stays below the limit, and none is longer than 256 items."""
    large = [with_payload(assignment(number), 250_000) for number in range(900, 907)]
    frames = session.assigned(large, 0.0)
    assert [len(item["body"]["assignments"]) for item in sent(frames, "2")] == [4, 3]
    near = [with_payload(assignment(number), 262_142) for number in range(920, 924)]
    assert all(len(action.frame) <= FRAME_BYTES_MAX for action in session.assigned(near, 0.0))  # type: ignore[union-attr]
    small = [assignment(number) for number in range(1000, 1300)]
    counts = [len(item["body"]["assignments"]) for item in sent(session.assigned(small, 0.0), "2")]
    assert counts == [256, 44]


def with_payload(given: Assignment, length: int) -> Assignment:
    task = json.loads(given.task) | {"payload": "x" * (length - 2)}
    return Assignment(*[getattr(given, name) for name in given.__struct_fields__[:-1]],
                      json.dumps(task).encode())  # fmt: skip


def test_assignments_faster_than_the_welcome_come_after_it_together() -> None:
    session = new_session("2")
    session.on_text(hello(version="2"), 0.0)
    assert session.assigned([assignment(900)], 0.0) == ()
    assert session.assigned([assignment(901)], 0.0) == ()
    welcome, given = sent(session.opened(opened(), 0.0), "2")
    assert welcome["type"] == "worker.welcome"
    assert len(given["body"]["assignments"]) == 2


def test_a_cancellation_is_pushed_to_the_worker_that_holds_the_attempt(session: Session) -> None:
    """R-127."""
    session.assigned([assignment(900, epoch=3)], 0.0)
    (cancel,) = sent(session.cancelled(an_id(900), "caller"), "2")
    assert cancel["type"] == "task.cancel"
    assert "reply_to" not in cancel
    assert cancel["body"] == {
        "attempt_id": an_id(900),
        "task_id": an_id(1_000_900),
        "epoch": "3",
        "reason": "caller",
    }
    assert session.cancelled(an_id(901), "caller") == ()


def test_a_resumed_attempt_is_known_well_enough_to_be_cancelled(session: Session) -> None:
    ask = asked(session, "worker.resume", [900])
    assert session.cancelled(an_id(900), "caller") == ()
    answered(session, ask, done())
    assert len(sent(session.cancelled(an_id(900), "caller"), "2")) == 1
    ask = asked(session, "task.finish", [900])
    answered(session, ask, done("SUCCEEDED", active=False, settled=True))
    assert session.cancelled(an_id(900), "caller") == ()


def test_v1_hears_of_neither_cancellation_nor_drain() -> None:
    """OP-03, OP-04."""
    session = ready_session()
    session.assigned([assignment()], 0.0)
    assert session.cancelled(an_id(900), "caller") == ()
    assert session.drain_node() == ()


def test_a_node_that_leaves_says_so_at_once(session: Session) -> None:
    """R-129: and assigns nothing more, while what runs goes on."""
    (drain,) = sent(session.drain_node(), "2")
    assert (drain["type"], drain["body"]) == ("worker.drain", {"reason": "shutdown"})
    assert session.assigned([assignment()], 0.0) == [Return(ReturnLease(an_id(900), SESSION))]
    assert len(asked(session, "task.renew", [900]).commands) == 1


def test_a_level_is_answered_as_in_v1(session: Session) -> None:
    declare = declares(session, frame("worker.capacity", capacity(1, 2), 510, version="2"))
    (ack,) = sent(session.capacity_answered(declare, declared(2)), "2")
    assert (ack["reply_to"], ack["body"]["session_id"]) == (an_id(510), SESSION)
    assert session.free == 2
