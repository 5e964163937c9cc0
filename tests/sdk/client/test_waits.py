"""Back-off and Retry-After as numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.backoff import Backoff
from orbit_sdk.client.answers import retry_after_s
from orbit_sdk.worker.limits import connect_backoff


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_delays_are_capped_positive_and_spread(tries: int, share: float) -> None:
    """R-153."""
    backoff = Backoff(first_s=0.1, cap_s=5.0, spread=0.5)
    delay = backoff.delay_s(tries, share)
    assert 0.05 <= delay <= 5.0
    assert delay <= backoff.delay_s(tries, 0.0)


@given(st.integers(1, 10_000), st.floats(1.0, 3600.0), st.floats(0, 1, exclude_max=True))
def test_a_worker_that_holds_attempts_is_back_well_within_their_lease(
    tries: int, lease_s: float, share: float
) -> None:
    """R-153, INV-22: two waits and two thirds of the lease are left, however often it failed."""
    wait_s = connect_backoff(1, lease_s).delay_s(tries, share)
    assert 0 < wait_s <= lease_s / 6
    assert connect_backoff(0, lease_s).cap_s == 5.0


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(first_s=1.0, cap_s=5.0)
    assert [backoff.delay_s(n, 0.0) for n in (1, 2, 3, 4, 99)] == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:28:30 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            30.0,
        ),
        (
            {
                "retry-after": "Wed, 21 Oct 2026 07:27:00 GMT",
                "date": "Wed, 21 Oct 2026 07:28:00 GMT",
            },
            0.0,
        ),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "yesterday"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds
