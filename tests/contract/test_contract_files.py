"""The contract files are the ones agreed, and the second reading of them knows right from wrong."""

from hashlib import sha256

import pytest

from tests.contract.oracle import SCHEMAS, Direction, accepts

FROZEN = {
    "execution-lifecycle-1.0.schema.json": (
        "383de7c3c6e478f05d19786502167ffc758b158c389d1236ee2fe86a8b7c7a25"
    ),
    "task-discovery-v0.4-proposal.schema.json": (
        "b764c06f0a047e50b432f856e433fac74d131aa17db6b06603c76d0de260167f"
    ),
    "worker.v1.json": "bb63fb0f1efbe327ceab17cfbcb788e4d0848522607f49ce209d3903f0523c5a",
}
ID = "0123456789abcdef0123456789abcdef"
CAPACITY = (
    '{"protocol_version":"1","type":"worker.capacity","message_id":"' + ID + '","session_id":"'
    + ID + '","body":{"sequence":"1","capacity":3,"drain":false}}'
)  # fmt: skip
ERROR = (
    '{"protocol_version":"1","type":"error","message_id":"' + ID + '",'
    '"error":{"code":"bad_frame","message":"No."}}'
)


@pytest.mark.parametrize("name", FROZEN)
def test_the_contracts_are_unchanged(name: str) -> None:
    """R-173: changing a contract is a decision, not an edit."""
    assert sha256((SCHEMAS / name).read_bytes()).hexdigest() == FROZEN[name]


@pytest.mark.parametrize(("direction", "text"), [("clientFrame", CAPACITY), ("serverFrame", ERROR)])
def test_the_oracle_accepts_what_is_right(direction: Direction, text: str) -> None:
    """R-013: and only for the direction it belongs to."""
    assert accepts(text, direction)
    assert accepts(f" {text}\n".encode(), direction)
    assert not accepts(text, "serverFrame" if direction == "clientFrame" else "clientFrame")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ID, ID.upper()),
        (ID, ID + r"\n"),
        ('"1"', '"2"'),
        ('"sequence":"1"', '"sequence":"01"'),
        ('"sequence":"1"', '"sequence":"18446744073709551616"'),
        ('"sequence":"1"', '"sequence":1'),
        ('"capacity":3', '"capacity":3.0'),
        ('"capacity":3', '"capacity":257'),
        ('"capacity":3', '"capacity":3,"capacity":3'),
        ('"capacity":3', r'"capacity":3,"c\u0061pacity":3'),
        ('"capacity":3', '"capacity":NaN'),
        ('"capacity":3', '"capacity":3,"more":1'),
        ('"drain"', '"Drain"'),
        ("}}", "}"),
        ("}}", "}}}"),
    ],
)
def test_the_oracle_refuses_what_is_wrong(before: str, after: str) -> None:
    """Requirements section 18: each trap of the stock tools."""
    assert before in CAPACITY
    assert not accepts(CAPACITY.replace(before, after), "clientFrame")
