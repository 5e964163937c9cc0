"""The beliefs of a dispatcher: what a round reads, what it learns, and when it rests."""

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dispatcher.limits import HOLD_FIRST_S, HOLD_MAX_S, ROUND_ROWS_MAX
from dispatcher.view import Plan, Proposal, View
from store.dispatch import ReadyTask, SessionLevel
from store.messages import CapacityLevel

ME, QUEUE, OTHER = "0" * 32, "a" * 32, "b" * 32
START = datetime(2026, 1, 1, tzinfo=UTC)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def view() -> View:
    return View(ME, Counter(), 500)


def level(
    free: int, session: int = 1, routes: tuple[int, ...] = (1,), queue_id: str = QUEUE
) -> CapacityLevel:
    return CapacityLevel(f"{session:032x}", "c" * 32, queue_id, routes, free, "0-0")


def stored(free: int, session: int = 1, queue_id: str = QUEUE) -> SessionLevel:
    return SessionLevel(f"{session:032x}", "c" * 32, "d" * 32, queue_id, (1,), free)


def task(number: int, route: int = 1, priority: int = 0) -> ReadyTask:
    return ReadyTask(f"{number:032x}", route, priority, START + timedelta(seconds=number))


def planned(view: View, now: float = 0.0) -> Plan:
    plan = view.plan(now)
    assert plan is not None
    return plan


def limits(plan: Plan) -> dict[int, int]:
    return {item.route_id: item.limit for item in plan.wanted}


def won_all(view: View, proposal: Proposal, now: float = 0.0) -> None:
    assert view.settle(proposal, {t.task_id for t, _ in proposal.pairs}, now) == []


def test_a_round_needs_work_and_slots(view: View) -> None:
    view.hint_routes([(QUEUE, 1)])
    assert view.plan(0.0) is None
    view.hint_levels([level(3)], 0.0)
    assert limits(planned(view)) == {1: 3}
    assert view.plan(0.0) is None, "the queue is being read"


def test_a_backlog_without_slots_is_not_read(view: View) -> None:
    view.hint_levels([level(3, routes=(1,))], 0.0)
    view.hint_routes([(QUEUE, route) for route in range(1, 1_001)])
    assert limits(planned(view)) == {1: 3}


def test_each_thing_that_makes_a_round_possible_calls_for_one() -> None:
    calls = Counter()
    view = View(ME, calls, 500)
    view.hint_levels([level(1)], 0.0)
    assert calls.count > 0, "a new session may have work waiting for it"
    before = calls.count
    view.hint_routes([(QUEUE, 1)])
    assert calls.count > before


def test_a_route_read_to_its_end_is_dropped_until_the_next_hint(view: View) -> None:
    view.hint_levels([level(5)], 0.0)
    plan = planned(view)
    won_all(view, view.propose(plan, [task(1), task(2)], 0.0))
    assert view.plan(0.0) is None
    assert view.route_count() == 0
    view.hint_routes([(QUEUE, 1)])
    assert limits(planned(view)) == {1: 3}


def test_a_hint_that_comes_during_the_read_is_kept(view: View) -> None:
    view.hint_levels([level(5)], 0.0)
    plan = planned(view)
    view.hint_routes([(QUEUE, 1)])
    won_all(view, view.propose(plan, [], 0.0))
    assert limits(planned(view)) == {1: 5}


def test_work_that_found_no_slot_is_remembered(view: View) -> None:
    view.hint_levels([level(2)], 0.0)
    plan = planned(view)
    view.hint_levels([level(1)], 0.0)
    proposal = view.propose(plan, [task(1), task(2)], 0.0)
    assert len(proposal.pairs) == 1
    won_all(view, proposal)
    view.hint_levels([level(1, session=2)], 0.0)
    assert limits(planned(view)) == {1: 1}


def test_two_claims_of_a_queue_at_once_share_no_task_and_no_slot(view: View) -> None:
    view.hint_levels([level(4)], 0.0)
    first = view.propose(planned(view), [task(n) for n in (1, 2, 3, 4)], 0.0)
    view.hint_levels([level(2, session=2)], 0.0)
    plan = planned(view)
    assert limits(plan) == {1: 6}, "the four in hand will be read again"
    second = view.propose(plan, [task(n) for n in range(1, 7)], 0.0)
    assert [t.task_id for t, _ in second.pairs] == [task(5).task_id, task(6).task_id]
    view.hint_levels([level(9, session=3)], 0.0)
    assert view.plan(0.0) is None, "two claims of a queue are enough"
    won_all(view, first)
    assert view.plan(0.0) is not None


def test_a_task_won_while_another_round_reads_is_not_claimed_again(view: View) -> None:
    view.hint_levels([level(1)], 0.0)
    first = view.propose(planned(view), [task(1)], 0.0)
    view.hint_levels([level(5, session=2)], 0.0)
    view.hint_routes([(QUEUE, 1)])
    plan = planned(view)
    won_all(view, first)
    second = view.propose(plan, [task(1), task(2)], 0.0)
    assert [t.task_id for t, _ in second.pairs] == [task(2).task_id]
    won_all(view, second)
    assert view.route_count() == 0


def test_refused_tasks_are_read_again_and_their_sessions_doubted(view: View) -> None:
    view.hint_levels([level(1), level(1, session=2)], 0.0)
    proposal = view.propose(planned(view), [task(1), task(2)], 0.0)
    [(first, winner), (_, loser)] = proposal.pairs
    assert view.settle(proposal, {first.task_id}, 0.0) == [loser]
    assert view.plan(0.0) is None
    view.correct_levels([loser], [stored(1, session=int(loser, 16))], view.ledger.mark(), 0.0)
    assert limits(planned(view)) == {1: 1}
    assert winner != loser


def test_a_queue_that_wins_nothing_rests_longer_each_time(view: View) -> None:
    now, rests = 0.0, []
    for _ in range(12):
        view.hint_levels([level(1)], now)
        view.hint_routes([(QUEUE, 1)])
        view.settle(view.propose(planned(view, now), [task(1)], now), set(), now)
        view.hint_levels([level(1)], now)
        assert view.plan(now) is None
        rest = view.next_hold(now)
        assert rest is not None
        rests.append(rest)
        now += rest
        view.wake_rested(now)
    assert rests[0] == pytest.approx(HOLD_FIRST_S)
    assert rests[-1] == pytest.approx(HOLD_MAX_S)
    won_all(view, view.propose(planned(view, now), [task(1)], now), now)
    assert view.next_hold(now) is None


def test_a_failed_read_or_claim_keeps_the_beliefs(view: View) -> None:
    view.hint_levels([level(3)], 0.0)
    view.unread(planned(view))
    proposal = view.propose(planned(view), [task(1)], 0.0)
    view.abandon(proposal, 0.0)
    rest = view.next_hold(0.0)
    assert rest is not None
    view.wake_rested(rest)
    assert limits(planned(view, rest)) == {1: 2}, "the claim may have been carried out"


def test_due_routes_of_postgres_replace_older_beliefs(view: View) -> None:
    view.hint_levels([level(3, routes=(1, 2, 3))], 0.0)
    mark = view.mark()
    view.hint_routes([(QUEUE, 2)])
    view.due_routes([(QUEUE, 3)], mark)
    assert set(limits(planned(view))) == {2, 3}


def test_pairs_are_told_apart_by_the_path_that_told_of_them(view: View) -> None:
    view.hint_levels([level(9, routes=(1, 2))], 0.0)
    won_all(view, view.propose(planned(view), [], 0.0))
    view.due_routes([(QUEUE, 1)], view.mark())
    view.hint_routes([(QUEUE, 2)])
    proposal = view.propose(planned(view), [task(1, 1), task(2, 2), task(3, 2)], 0.0)
    assert (len(proposal.pairs), proposal.slow_pairs) == (3, 1)


def test_work_of_a_session_that_only_postgres_told_of_is_counted_for_the_twin(view: View) -> None:
    """INV-14: a deaf reader of streams must show in the figure."""
    view.session_levels([stored(3)], view.ledger.mark(), 0.0)
    proposal = view.propose(planned(view), [task(1), task(2)], 0.0)
    assert (len(proposal.pairs), proposal.slow_pairs) == (2, 2)


def test_queues_of_other_dispatchers_are_ignored_and_given_up(view: View) -> None:
    queues = [f"{number:032x}" for number in range(40)]
    for number, queue_id in enumerate(queues):
        view.hint_levels([level(1, session=number, queue_id=queue_id)], 0.0)
    assert view.ledger.session_count() == 40
    assert view.share_out([ME, "1" * 32])
    assert not view.share_out(["1" * 32])
    mine = [queue_id for queue_id in queues if view.shares.is_mine(queue_id)]
    assert 0 < len(mine) < 40
    assert view.ledger.session_count() == view.route_count() == len(mine)
    assert {item.queue_id for item in planned(view).wanted} <= set(mine)
    taken = view.hint_levels([level(1, queue_id=queue_id) for queue_id in queues], 0.0)
    assert taken == len(mine)


def test_sessions_of_postgres_bring_their_routes(view: View) -> None:
    assert view.session_levels([stored(2)], view.ledger.mark(), 0.0) == 1
    assert limits(planned(view)) == {1: 2}
    assert view.session_levels([stored(2)], view.ledger.mark(), 0.0) == 0


def test_a_round_over_many_routes_reads_a_bounded_number_of_rows(view: View) -> None:
    routes = tuple(range(1, 33))
    view.hint_levels([level(100, session=s, routes=routes) for s in range(20)], 0.0)
    assert sum(limits(planned(view)).values()) <= ROUND_ROWS_MAX


@given(st.data())
def test_however_reads_are_cut_short_the_best_task_goes_first(data: st.DataObject) -> None:
    """Rounds over several routes give tasks away in one order, as if all had been read."""
    view = View(ME, Counter(), 4)
    priorities = data.draw(st.lists(st.integers(-2, 2), min_size=1, max_size=24))
    routes = data.draw(st.lists(st.integers(1, 3), min_size=24, max_size=24))
    waiting = [task(n, routes[n], priority) for n, priority in enumerate(priorities)]
    waiting.sort(key=lambda t: (-t.priority, t.available_at, t.task_id))
    order: list[str] = []
    view.hint_levels([level(50, routes=(1, 2, 3))], 0.0)
    while (plan := view.plan(0.0)) is not None:
        read = []
        for item in plan.wanted:
            read += [t for t in waiting if t.route_id == item.route_id][: item.limit]
        proposal = view.propose(plan, read, 0.0)
        won_all(view, proposal)
        given_away = [t.task_id for t, _ in proposal.pairs]
        waiting = [t for t in waiting if t.task_id not in given_away]
        order += given_away
    assert not waiting
    best_first = sorted(range(len(priorities)), key=lambda n: (-priorities[n], n))
    assert order == [f"{n:032x}" for n in best_first]
