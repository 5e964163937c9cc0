"""Matching: no slot and no task twice, the documented order, the freest session."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
from hypothesis import given

from dispatcher.matching import barrier_of, dispatch_order, match
from dispatcher.slots import SlotPool
from store.dispatch import ReadyTask

START = datetime(2026, 1, 1, tzinfo=UTC)

tasks_strategy = st.lists(
    st.builds(
        ReadyTask,
        task_id=st.integers(0, 30).map(lambda n: f"{n:032x}"),
        route_id=st.integers(1, 4),
        priority=st.integers(-2, 2),
        available_at=st.integers(0, 3).map(lambda s: START + timedelta(seconds=s)),
    ),
    max_size=25,
)
sessions_strategy = st.dictionaries(
    st.integers(0, 6).map(lambda n: f"session-{n}"),
    st.tuples(st.sets(st.integers(1, 4)).map(lambda s: tuple(sorted(s))), st.integers(0, 5)),
    max_size=6,
)


def pool_of(sessions: dict[str, tuple[tuple[int, ...], int]]) -> SlotPool:
    pool = SlotPool()
    for session_id, (routes, free) in sessions.items():
        pool.put(session_id, routes, free)
    return pool


def task(number: int, route: int = 1, priority: int = 0, second: int = 0) -> ReadyTask:
    return ReadyTask(f"{number:032x}", route, priority, START + timedelta(seconds=second))


@given(tasks_strategy, sessions_strategy, st.integers(0, 30))
def test_no_slot_and_no_task_is_used_twice_and_routes_match_exactly(
    ready: list[ReadyTask],
    sessions: dict[str, tuple[tuple[int, ...], int]],
    pairs_max: int,
) -> None:
    pool = pool_of(sessions)
    before = pool.total()
    pairs = match(ready, pool, pairs_max)
    assert len(pairs) <= pairs_max
    assert len({pair.task_id for pair, _ in pairs}) == len(pairs)
    for session_id, count in Counter(session for _, session in pairs).items():
        assert count <= sessions[session_id][1]
    assert all(pair.route_id in sessions[session][0] for pair, session in pairs)
    assert pool.total() == before - len(pairs)


@given(tasks_strategy, sessions_strategy)
def test_tasks_go_in_order_and_none_is_passed_over_while_a_slot_is_free(
    ready: list[ReadyTask], sessions: dict[str, tuple[tuple[int, ...], int]]
) -> None:
    pool = pool_of(sessions)
    pairs = match(ready, pool, 1_000)
    assert [pair for pair, _ in pairs] == sorted((p for p, _ in pairs), key=dispatch_order)
    given_away = {pair.task_id for pair, _ in pairs}
    left = {t.route_id for t in ready if t.task_id not in given_away}
    assert all(pool.free_of(route) == 0 for route in left)


@given(tasks_strategy, sessions_strategy, st.integers(0, 24))
def test_nothing_passes_the_barrier(
    ready: list[ReadyTask], sessions: dict[str, tuple[tuple[int, ...], int]], place: int
) -> None:
    if not ready:
        return
    barrier = dispatch_order(ready[place % len(ready)])
    pairs = match(ready, pool_of(sessions), 1_000, barrier)
    assert all(dispatch_order(pair) <= barrier for pair, _ in pairs)


def test_order_is_priority_then_age_then_id() -> None:
    ready = [task(1, second=1), task(3), task(2), task(9, priority=5, second=9)]
    pairs = match(ready, pool_of({"s": ((1,), 9)}), 9)
    assert [int(pair.task_id, 16) for pair, _ in pairs] == [9, 2, 3, 1]


def test_work_spreads_to_the_freest_session() -> None:
    pool = pool_of({"a": ((1,), 1), "b": ((1, 2), 3), "c": ((1,), 2)})
    pairs = match([task(number) for number in range(6)], pool, 6)
    assert [session for _, session in pairs][:2] == ["b", "c"] or pairs[0][1] == "b"
    assert Counter(session for _, session in pairs) == {"a": 1, "b": 3, "c": 2}


def test_the_barrier_is_the_earliest_end_of_what_was_cut_short() -> None:
    read = {1: [task(1), task(2)], 2: [task(3, 2, priority=1)], 3: [task(4, 3)]}
    assert barrier_of(read, lambda _: False) is None
    assert barrier_of(read, {1, 2}.__contains__) == dispatch_order(read[2][0])
