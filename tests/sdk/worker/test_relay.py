"""What a worker sends past a bad socket: seldom, in time, under the socket's own message ids."""

import json
from datetime import timedelta
from typing import Any, Literal

from orbit_sdk.protocol.frames import FinishFrame, RenewFrame, ResumeFrame
from orbit_sdk.protocol.held import HeldError, HeldResult
from orbit_sdk.protocol.shapes import LeaseBody, Receipt
from orbit_sdk.protocol.states import AttemptState, TaskState
from orbit_sdk.protocol.times import parse_time, time_text
from orbit_sdk.worker.dialect import Operation
from orbit_sdk.worker.effects import Settled, Stop, StopReason
from orbit_sdk.worker.relay import Parcel
from tests.sdk.worker.wired import LEASE_S, MARGIN_S, Wired

USABLE_S = LEASE_S - MARGIN_S
START = parse_time("2026-01-02T03:04:05Z")


def running() -> Wired:
    """A worker that has just been given its first task and runs it."""
    wired = Wired()
    wired.connect()
    wired.assign()
    return wired


def items(parcel: Parcel) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(parcel.body)["items"]
    assert [(item["attempt_id"], item["message_id"]) for item in found] == list(parcel.names)
    return found


def result(
    parcel: Parcel,
    state: AttemptState = AttemptState.RUNNING,
    *,
    active: bool = True,
    left_s: float = LEASE_S,
) -> HeldResult:
    """The answer to a parcel of one item: a fresh lease, or what has ended it."""
    now = time_text(START)
    until = time_text(START + timedelta(seconds=left_s))
    word: Literal["renew", "finish"] = "renew" if parcel.operation is Operation.RENEW else "finish"
    receipt = Receipt(word, TaskState.RUNNING, state, "3", until, "APPLIED")
    return HeldResult(
        index=0, status=200, receipt=receipt, lease=LeaseBody(active, state, until, now)
    )


def refusal(code: str) -> HeldResult:
    return HeldResult(index=0, status=404, error=HeldError(code))


def relayed(wired: Wired, parcel: Parcel, *results: HeldResult) -> None:
    wired.apply(wired.core.relayed(parcel, list(results) or None, wired.now))


def test_nothing_is_relayed_while_the_socket_serves() -> None:
    wired = running()
    for _ in range(300):
        wired.pass_to(wired.now + 1.0)
        assert wired.core.look_for_relays(wired.now) == []
    assert len(wired.frames_of(RenewFrame)) > 20


def test_a_lease_that_runs_short_without_a_socket_is_renewed() -> None:
    """The same message id until it is answered, one parcel at a time, then a right anew."""
    wired = running()
    began = wired.now
    wired.cut()
    wired.pass_to(began + USABLE_S / 2 - 0.1)
    assert wired.core.look_for_relays(wired.now) == []
    wired.pass_to(began + USABLE_S / 2 + 0.1)
    (parcel,) = wired.core.look_for_relays(wired.now)
    assert parcel.path == "/v1/worker/attempts:renew"
    assert wired.core.look_for_relays(wired.now) == []
    relayed(wired, parcel)
    assert wired.core.look_for_relays(wired.now) == []  # it rests after a failure
    wired.pass_to(wired.now + 1.0)
    (again,) = wired.core.look_for_relays(wired.now)
    assert again.names == parcel.names
    relayed(wired, again, result(again))
    # The old boundary passes, and the handler goes on.
    wired.pass_to(began + USABLE_S + 1.0)
    assert wired.taken(Stop) == []
    wired.pass_to(again.sent_at + USABLE_S / 2 + 0.1)
    (next_one,) = wired.core.look_for_relays(wired.now)
    assert next_one.names[0][1] != parcel.names[0][1]


def test_a_lease_that_no_renewal_moves_is_asked_for_ever_more_seldom() -> None:
    """It ends with its attempt: of each look's request nobody would have anything."""
    wired = running()
    ends_at = wired.now + LEASE_S
    wired.cut()
    asked = 0
    while not wired.taken(Stop):
        for parcel in wired.core.look_for_relays(wired.now):
            asked += 1
            relayed(wired, parcel, result(parcel, left_s=ends_at - parcel.sent_at))
        wired.pass_to(wired.now + 1.0)
    assert 2 <= asked <= 6
    assert wired.now <= ends_at


def test_without_an_answer_the_boundary_stands() -> None:
    """R-151: asking gives no right."""
    wired = running()
    wired.cut()
    while not (stops := wired.taken(Stop)):
        for parcel in wired.core.look_for_relays(wired.now):
            relayed(wired, parcel, refusal("unavailable"))
        wired.pass_to(wired.now + 1.0)
    assert [stop.reason for stop in stops if isinstance(stop, Stop)] == [StopReason.LEASE_LOST]
    assert wired.now <= 100.0 + USABLE_S + 1.0


def test_a_lease_that_is_over_stops_the_handler() -> None:
    for answer in ("attempt_not_found", "expired"):
        wired = running()
        wired.cut()
        wired.pass_to(wired.now + USABLE_S / 2 + 0.1)
        (parcel,) = wired.core.look_for_relays(wired.now)
        over = result(parcel, AttemptState.EXPIRED, active=False)
        relayed(wired, parcel, refusal(answer) if answer == "attempt_not_found" else over)
        (stop,) = wired.taken(Stop)
        assert isinstance(stop, Stop)
        assert stop.reason is StopReason.LEASE_LOST


def test_a_silent_socket_is_passed_by_under_the_renewals_own_id() -> None:
    """Connected, and no answer comes: before the right ends the other way is tried."""
    wired = running()
    wired.deaf = True
    wired.pass_to(wired.now + USABLE_S * 3 / 4 + 0.1)
    (renewal, *_) = wired.frames_of(RenewFrame)
    (parcel,) = wired.core.look_for_relays(wired.now)
    assert parcel.names == ((items(parcel)[0]["attempt_id"], renewal.message_id),)
    relayed(wired, parcel, result(parcel))
    wired.pass_to(wired.now + USABLE_S / 2)
    assert wired.taken(Stop) == []


def test_a_report_goes_past_a_socket_that_is_gone_under_its_own_id() -> None:
    wired = running()
    attempt = next(iter(wired.gateway.attempts.values()))
    wired.deaf = True
    wired.finish(attempt)
    (frame,) = wired.frames_of(FinishFrame)
    wired.cut()
    assert wired.core.look_for_relays(wired.now) == []
    wired.pass_to(wired.now + 1.1)
    (parcel,) = wired.core.look_for_relays(wired.now)
    assert parcel.operation is Operation.FINISH
    (item,) = items(parcel)
    assert (item["message_id"], item["outcome"]) == (frame.message_id, "SUCCEEDED")
    relayed(wired, parcel, result(parcel, AttemptState.SUCCEEDED, active=False))
    assert wired.taken(Settled) == [Settled(attempt.attempt_id, True, "APPLIED, SUCCEEDED")]
    assert wired.core.held == 0
    wired.deaf = False
    wired.connect()
    assert wired.frames_of(ResumeFrame) == []


def test_a_report_that_http_does_not_understand_waits_for_the_socket() -> None:
    wired = running()
    attempt = next(iter(wired.gateway.attempts.values()))
    wired.cut()
    wired.finish(attempt)
    assert wired.core.look_for_relays(wired.now) == []
    wired.pass_to(wired.now + 1.1)
    (parcel,) = wired.core.look_for_relays(wired.now)
    relayed(wired, parcel, refusal("validation_failed"))
    wired.pass_to(wired.now + 20.0)
    assert wired.core.look_for_relays(wired.now) == []
    wired.connect()
    assert wired.core.held == 0
    assert wired.gateway.attempts[attempt.attempt_id].state == "SUCCEEDED"


def test_the_socket_may_be_faster_than_the_answer_over_http() -> None:
    """Both ways were taken: one settlement, and the late answer is nobody's."""
    wired = running()
    attempt = next(iter(wired.gateway.attempts.values()))
    wired.cut()
    wired.finish(attempt)
    wired.core.look_for_relays(wired.now)
    wired.pass_to(wired.now + 1.1)
    (parcel,) = wired.core.look_for_relays(wired.now)
    wired.connect()
    assert len(wired.taken(Settled)) == 1
    relayed(wired, parcel, result(parcel, AttemptState.SUCCEEDED, active=False))
    assert wired.taken(Settled) == []


def test_a_worker_that_is_never_idle_keeps_nothing_of_what_is_settled() -> None:
    """One attempt runs on and on; what is noted of the others is as short-lived as they are."""
    wired = running()
    relay = wired.core._relay
    for _ in range(20):
        attempt = wired.assign()
        wired.cut()
        wired.finish(attempt)
        assert wired.core.look_for_relays(wired.now) == []
        wired.pass_to(wired.now + 1.1)
        (parcel,) = wired.core.look_for_relays(wired.now)
        relayed(wired, parcel, refusal("validation_failed"))
        assert (len(relay._reports), len(relay._unfit)) == (1, 1)
        wired.connect()
        assert wired.core.held == 1
        wired.pass_to(wired.now + 1.0)
        wired.core.look_for_relays(wired.now)
        assert (len(relay._reports), len(relay._unfit)) == (0, 0)
