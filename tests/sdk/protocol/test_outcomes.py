"""The outcome table agrees with the tables of transitions, and the page with the table."""

import pytest

from devcluster.protocol_page import PAGE_FILE, with_outcomes
from orbit_sdk.protocol.outcomes import ROWS, Act, Answer, Row, Standing, row_for
from orbit_sdk.protocol.states import ATTEMPT_MOVES, TASK_MOVES, AttemptState, RecoverySafety

CHANGES_NOTHING = {
    Answer.REPEATED,
    Answer.EVIDENCE,
    Answer.OPERATION_CONFLICT,
    Answer.STATE_CONFLICT,
}
HELD = {Standing.LEASED, Standing.RUNNING, Standing.STOPPING, Standing.OVERDUE}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.act.name}-{row.stands[0].name}")
def test_every_row_is_a_permitted_move(row: Row) -> None:
    for before in row.stands:
        if row.task is not None and row.task.state is not before.state:
            assert (before.state, row.task.state) in TASK_MOVES
        if row.attempt is not None:
            held = AttemptState.LEASED if before is Standing.LEASED else AttemptState.RUNNING
            assert before in HELD
            assert (held, row.attempt) in ATTEMPT_MOVES
    if row.answer in CHANGES_NOTHING:
        assert (row.task, row.attempt) == (None, None)


def test_an_attempt_ends_exactly_when_its_task_leaves_it() -> None:
    for row in ROWS:
        for before in row.stands:
            ends = before in HELD and row.task is not None and row.task not in HELD
            assert ends == (row.attempt not in (None, AttemptState.RUNNING)), row


def test_no_start_is_granted_after_an_intent() -> None:
    """INV-18."""
    for stands in Standing:
        row = row_for(Act.START, stands, RecoverySafety.IDEMPOTENT, try_left=True)
        assert (row.answer is Answer.APPLIED) == (stands is Standing.LEASED)


def test_the_page_shows_the_table() -> None:
    page = PAGE_FILE.read_text()
    assert with_outcomes(page) == page, "run `make protocol`"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        with_outcomes("# Protocol\n")
