"""How a worker keeps its leases where answers are slow: it renews sooner, and asks once (B-04)."""

import pytest

from orbit_sdk.protocol.frames import RenewFrame
from orbit_sdk.worker.dialect import Operation
from orbit_sdk.worker.lease import Pace, margin_s, relay_due
from orbit_sdk.worker.limits import RENEW_SHARE, RENEWED_SHARE, SERVES_SHARE
from orbit_sdk.worker.relay import Relay
from tests.sdk.worker.wired import LEASE_S, Wired

QUICK_S = (RENEWED_SHARE - RENEW_SHARE) * LEASE_S


def slow(took_s: float) -> Pace:
    pace = Pace()
    pace.answered(took_s, LEASE_S, 0.0)
    return pace


@pytest.mark.parametrize("took_s", [0.0, 0.1, QUICK_S - 0.01])
def test_answers_of_the_usual_kind_change_nothing(took_s: float) -> None:
    assert slow(took_s).renew_after_s(LEASE_S) == LEASE_S * RENEW_SHARE


@pytest.mark.parametrize("share", [0.3, 0.35, 0.4, 0.45])
def test_the_pause_and_a_slow_answer_fit_between_two_commits(share: float) -> None:
    took_s = share * LEASE_S
    after_s = slow(took_s).renew_after_s(LEASE_S)
    assert after_s < LEASE_S * RENEW_SHARE
    assert after_s + took_s <= RENEWED_SHARE * LEASE_S + 1e-9


def test_a_slow_answer_is_remembered_for_one_lease_at_least_and_two_at_most() -> None:
    pace = slow(12.0)
    pace.answered(0.1, LEASE_S, LEASE_S - 1)
    assert pace.slowest_s == 12.0
    pace.answered(0.1, LEASE_S, LEASE_S + 1)
    assert pace.slowest_s == 12.0
    pace.answered(0.1, LEASE_S, 2 * LEASE_S + 2)
    assert pace.slowest_s == 0.1


def test_a_slow_answer_hastens_what_was_to_be_renewed_later() -> None:
    wired = Wired()
    wired.connect()
    wired.assign()
    began = wired.now
    (held,) = wired.core._desk.attempts
    due_s = held.renew_at - began
    assert due_s == LEASE_S * RENEW_SHARE
    wired.core._desk._timed(began - 0.4 * LEASE_S, began)
    wired.pass_to(began + 0.2 * LEASE_S - 0.01)
    assert not wired.frames_of(RenewFrame)
    wired.pass_to(began + 0.2 * LEASE_S + 0.01)
    assert len(wired.frames_of(RenewFrame)) == 1


def test_a_renewal_is_not_repeated_before_it_is_slower_than_the_others() -> None:
    """A repeat that crosses its answer is one more call in front of the next renewal."""
    for took_s, first_s in ((0.0, 0.1 * LEASE_S), (0.25 * LEASE_S, 0.375 * LEASE_S)):
        wired = Wired()
        wired.connect()
        wired.assign()
        wired.core._desk.pace.answered(took_s, LEASE_S, wired.now)
        wired.silent = True
        wired.pass_to(wired.now + LEASE_S * RENEW_SHARE + 0.01)
        sent_at = wired.now - 0.01
        assert len(wired.frames_of(RenewFrame)) == 1
        wired.pass_to(sent_at + first_s - 0.01)
        assert len(wired.frames_of(RenewFrame)) == 1
        wired.pass_to(sent_at + first_s + 0.01)
        assert len(wired.frames_of(RenewFrame)) == 2


def test_another_way_is_tried_in_the_last_quarter_and_later_where_answers_are_slow() -> None:
    usable_s = LEASE_S - margin_s(LEASE_S)
    quarter = relay_due(100.0, LEASE_S, Pace(), connected=True)
    assert quarter == 100.0 - usable_s / 4
    assert relay_due(100.0, LEASE_S, slow(0.3 * LEASE_S), connected=True) == quarter
    later = relay_due(100.0, LEASE_S, slow(0.4 * LEASE_S), connected=True)
    assert quarter < later < 100.0
    assert relay_due(100.0, LEASE_S, slow(LEASE_S), connected=True) == 100.0 - usable_s / 16
    assert relay_due(100.0, LEASE_S, slow(LEASE_S), connected=False) == 100.0 - usable_s / 2


def test_nothing_is_relayed_while_the_socket_answers_other_renewals() -> None:
    wired = Wired()
    wired.connect()
    wired.assign()
    relay: Relay = wired.core._relay
    (held,) = wired.core._desk.attempts
    wired.silent = True
    wired.pass_to(held.boundary - 1.0)
    relay.served(Operation.RENEW, wired.now)
    assert not wired.core.look_for_relays(wired.now)
    relay.served(Operation.RENEW, wired.now - SERVES_SHARE * LEASE_S)
    assert len(wired.core.look_for_relays(wired.now)) == 1
