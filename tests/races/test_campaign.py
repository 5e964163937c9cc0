"""The campaign's judge, shown one of each thing that it must find."""

from pathlib import Path

import pytest

from loadtest.campaign import judge_runs, show

CLEAN = {
    "acked": 1,
    "sent_again": 0,
    "handler_runs": 1,
    "ran_again_under_a_later_epoch": 0,
    "lost": 0,
    "doubled_submissions": 0,
    "overlapping_grants": 0,
    "begun_twice_under_one_epoch": 0,
    "ran_at_the_same_time": 0,
    "invariants_broken": [],
    "states": {},
    "attempts": {},
    "all_settled": True,
}


def found(tmp_path: Path, *lines: str) -> dict[str, int]:
    log = tmp_path / "runs.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    return judge_runs(log)


def test_a_run_after_another_is_a_later_epoch_and_no_fault(tmp_path: Path) -> None:
    books = found(tmp_path, "begin t 1 10", "end t 1 20", "begin t 2 30", "end t 2 40")
    assert books["handler_runs"] == 2
    assert books["ran_again_under_a_later_epoch"] == 1
    assert books["begun_twice_under_one_epoch"] == books["ran_at_the_same_time"] == 0


def test_two_beginnings_under_one_epoch_are_found(tmp_path: Path) -> None:
    books = found(tmp_path, "begin t 1 10", "begin t 1 30", "end t 1 40")
    assert books["begun_twice_under_one_epoch"] == 1


def test_two_runs_at_the_same_time_are_found(tmp_path: Path) -> None:
    books = found(tmp_path, "begin t 1 10", "begin t 2 20", "end t 1 30", "end t 2 40")
    assert books["ran_at_the_same_time"] == 1


def test_a_run_that_was_killed_overlaps_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, "begin t 1 10", "begin t 2 20")["ran_at_the_same_time"] == 0


@pytest.mark.parametrize(
    "fault",
    [
        {"lost": 1}, {"doubled_submissions": 1}, {"overlapping_grants": 1},
        {"begun_twice_under_one_epoch": 1}, {"ran_at_the_same_time": 1},
        {"invariants_broken": ["INV-1"]}, {"all_settled": False},
    ],
)  # fmt: skip
def test_one_fault_is_enough_to_say_that_the_books_do_not_balance(fault: dict[str, object]) -> None:
    report = {"seed": 1, "rate_per_s": 1.0, "work_went_on_after_s": {"worker": [0.5]}}
    assert show(report | {"books": CLEAN})
    assert not show(report | {"books": CLEAN | fault})
