"""The tables of states and moves are the closed lists of the specification."""

from orbit_sdk.protocol.states import (
    ATTEMPT_ACTIVE,
    ATTEMPT_MOVES,
    ATTEMPT_TERMINAL,
    ATTEMPT_TRANSITIONS,
    TASK_LIVE,
    TASK_MOVES,
    TASK_SETTLED,
    TASK_TERMINAL,
    TASK_TRANSITIONS,
    AttemptState,
    Cause,
    Outcome,
    RecoverySafety,
    TaskState,
)

TASK_ROWS = """
    WAITING -> LEASED            assign
    LEASED -> RUNNING            start
    LEASED -> WAITING            lapse
    RUNNING -> SUCCEEDED         finish
    RUNNING -> FAILED            finish, lapse
    RUNNING -> NEEDS_REVIEW      finish, lapse
    RUNNING -> CANCELLED         finish, lapse
    RUNNING -> WAITING           retry
    WAITING -> CANCELLED         cancel
    WAITING -> FAILED            deadline
    LEASED -> CANCELLED          cancel
    LEASED -> FAILED             deadline
    NEEDS_REVIEW -> WAITING      manual retry
    FAILED -> WAITING            manual retry
    CANCELLED -> WAITING         manual retry
    NEEDS_REVIEW -> SUCCEEDED    review
    NEEDS_REVIEW -> FAILED       review
    NEEDS_REVIEW -> CANCELLED    review
"""
ATTEMPT_ROWS = """
    LEASED -> RUNNING            start
    LEASED -> CANCELLED          cancel
    LEASED -> EXPIRED            lapse
    RUNNING -> SUCCEEDED         finish
    RUNNING -> FAILED            finish
    RUNNING -> CANCELLED         finish
    RUNNING -> EXPIRED           lapse
    RUNNING -> UNKNOWN           finish, lapse
"""


def rows(table: str) -> set[tuple[str, str, str]]:
    found = set()
    for line in table.strip().splitlines():
        before, _, rest = line.strip().partition(" -> ")
        after, _, causes = rest.partition(" ")
        found |= {(before, after, cause.strip()) for cause in causes.split(",")}
    return found


def test_the_moves_of_a_task() -> None:
    """OP-20: each row, and no other."""
    assert {tuple(map(str, row)) for row in TASK_TRANSITIONS} == rows(TASK_ROWS)
    assert len(TASK_TRANSITIONS) == len(set(TASK_TRANSITIONS)) == len(rows(TASK_ROWS))


def test_the_moves_of_an_attempt() -> None:
    """OP-20: each row, and no other."""
    assert {tuple(map(str, row)) for row in ATTEMPT_TRANSITIONS} == rows(ATTEMPT_ROWS)
    assert len(ATTEMPT_TRANSITIONS) == len(set(ATTEMPT_TRANSITIONS)) == len(rows(ATTEMPT_ROWS))


def test_the_moves_without_their_causes() -> None:
    """OP-20: 18 pairs of task states, 8 of attempt states."""
    assert {(before, after) for before, after, _ in rows(TASK_ROWS)} == TASK_MOVES
    assert {(before, after) for before, after, _ in rows(ATTEMPT_ROWS)} == ATTEMPT_MOVES
    assert (len(TASK_MOVES), len(ATTEMPT_MOVES)) == (18, 8)


def test_every_cause_moves_something() -> None:
    causes = {row.cause for row in TASK_TRANSITIONS} | {row.cause for row in ATTEMPT_TRANSITIONS}
    assert causes == set(Cause)


def test_the_states_of_the_contract() -> None:
    """R-007, R-008, R-032, R-035."""
    live = ["WAITING", "LEASED", "RUNNING"]
    assert [*TaskState] == [*live, "SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW"]
    assert [*AttemptState] == [
        *live[1:],
        *("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "UNKNOWN"),
    ]
    assert [*Outcome] == ["SUCCEEDED", "FAILED", "UNKNOWN", "CANCELLED"]
    assert [*RecoverySafety] == ["IDEMPOTENT", "RECONCILE_ONLY"]


def test_the_sets_of_states() -> None:
    """INV-5, INV-11b: settled tasks leave only by hand, terminal attempts never."""
    assert {"WAITING", "LEASED", "RUNNING"} == TASK_LIVE
    assert {"SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW"} == TASK_SETTLED
    assert {"SUCCEEDED", "FAILED", "CANCELLED"} == TASK_TERMINAL
    assert {"LEASED", "RUNNING"} == ATTEMPT_ACTIVE
    assert {"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "UNKNOWN"} == ATTEMPT_TERMINAL
    by_hand = {Cause.MANUAL_RETRY, Cause.REVIEW}
    for row in TASK_TRANSITIONS:
        assert (row.before in TASK_SETTLED) == (row.cause in by_hand)


def test_success_is_final() -> None:
    """OP-44."""
    assert not [row for row in TASK_TRANSITIONS if row.before is TaskState.SUCCEEDED]
