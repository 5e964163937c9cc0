"""The semantic hash: what is in it, what is not, and that it is the one written down."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.protocol.canonical import canonical_json, semantic_hash
from orbit_sdk.protocol.strict_json import JsonError
from tests.contract.made_frames import business, written


def test_the_hash_is_sha256_over_tag_operation_and_canonical_text() -> None:
    """OP-42, R-097: written out by hand, so that another language can follow."""
    text = (
        rb"""{"a":1,"n":true,"s":"\"\u0000","value":{"a":[1.5,"x"],"b":100},"z":{"p":2,"q":""}}"""
    )
    expected = sha256(b"orbit.semantic.v1\ntask.submit\n" + text).digest()
    parts = {"z": {"q": "", "p": 2}, "s": '"\0', "n": True, "a": 1}
    value = {"value": b'{"b":1e2, "a" : [1.50,"\\u0078"]}'}
    assert semantic_hash("task.submit", parts, value) == expected
    assert len(expected) == 32


def test_the_operation_is_part_of_the_meaning() -> None:
    """R-094: one content under two operations never collides."""
    assert semantic_hash("a", {"x": 1}, {}) != semantic_hash("b", {"x": 1}, {})


def test_the_order_of_parts_is_not() -> None:
    """R-097: never the order of a map."""
    one = semantic_hash("a", {"x": 1, "y": 2}, {"v": b"1", "w": b"2"})
    assert semantic_hash("a", {"y": 2, "x": 1}, {"w": b"2", "v": b"1"}) == one


@given(business.map(written), business.map(written))
def test_a_business_value_counts_by_its_canonical_form(one: str, other: str) -> None:
    """OP-42."""
    same = canonical_json(one.encode()) == canonical_json(other.encode())
    hashes = [semantic_hash("a", {}, {"v": value.encode()}) for value in (one, other)]
    assert (hashes[0] == hashes[1]) == same


def test_a_string_part_is_not_a_business_value() -> None:
    assert semantic_hash("a", {"v": "1"}, {}) != semantic_hash("a", {}, {"v": b"1"})


@given(st.sampled_from([b"null", b'{"a":1,"a":1}', b"NaN", b"1e9999", b""]))
def test_what_cannot_be_hashed_is_refused(value: bytes) -> None:
    """OP-42."""
    with pytest.raises(JsonError):
        semantic_hash("a", {}, {"v": value})


def test_keys_are_sorted_by_code_point() -> None:
    """OP-42: U+FB33 before U+1F600, which UTF-16 order would turn round."""
    text = '{"\U0001f600":1,"\ufb33":2,"z":3,"Z":4,"":5}'.encode()
    assert canonical_json(text) == '{"":5,"Z":4,"z":3,"\ufb33":2,"\U0001f600":1}'.encode()
