"""Sharing queues out: everybody agrees, and little moves."""

from hypothesis import given
from hypothesis import strategies as st

from dispatcher.sharing import Shares, owner_of

QUEUES = [f"{number:032x}" for number in range(300)]
nodes_strategy = st.sets(st.integers(1, 10**6).map(lambda n: f"{n:032x}"), min_size=1, max_size=8)


@given(nodes_strategy, st.integers(10**6 + 1, 10**7).map(lambda n: f"{n:032x}"))
def test_a_newcomer_takes_queues_and_moves_no_other(nodes: set[str], newcomer: str) -> None:
    for queue_id in QUEUES:
        before = owner_of(queue_id, nodes)
        after = owner_of(queue_id, nodes | {newcomer})
        assert before in nodes
        assert after in (before, newcomer)


@given(nodes_strategy)
def test_every_queue_has_exactly_one_owner_in_one_view(nodes: set[str]) -> None:
    shares = [Shares(node) for node in nodes]
    for share in shares:
        share.update(nodes)
    for queue_id in QUEUES[:50]:
        assert sum(share.is_mine(queue_id) for share in shares) == 1


def test_queues_spread_evenly() -> None:
    nodes = [f"{number:032x}" for number in range(4)]
    counts = [sum(owner_of(queue_id, nodes) == node for queue_id in QUEUES) for node in nodes]
    assert min(counts) > 40


def test_without_a_view_everything_is_mine() -> None:
    shares = Shares("a")
    assert shares.is_mine(QUEUES[0])
    assert shares.update(["b"])
    assert shares.nodes == {"a", "b"}
    assert not shares.update(["a", "b"])
    assert not all(map(shares.is_mine, QUEUES))
    assert shares.update([])
    assert all(map(shares.is_mine, QUEUES))
    assert owner_of(QUEUES[0], []) is None
