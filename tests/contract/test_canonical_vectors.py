"""The frozen pairs define what "same meaning" is (INV-30, B-44); the code must agree with each."""

import json
from fractions import Fraction
from typing import Any

import pytest

from orbit_sdk.protocol.bodies import BodyError, decode_submit, finish_hash, submit_hash
from orbit_sdk.protocol.canonical import canonical_json
from orbit_sdk.protocol.errors import ERRORS
from orbit_sdk.protocol.states import Outcome
from orbit_sdk.protocol.strict_json import JsonError, check_json, parse_json
from tests.contract.oracle import SCHEMAS

PAIRS = json.loads((SCHEMAS / "vectors" / "canonical.json").read_text())["pairs"]
VERDICTS = ("equal", "different", "refused")


def named(verdict: str) -> list[Any]:
    return [
        pytest.param(pair["a"], pair["b"], id=f"{number}: {pair['why']}")
        for number, pair in enumerate(PAIRS)
        if pair["verdict"] == verdict
    ]


def submission(payload: str) -> bytes:
    return (
        '{"queue":"q","handler":"h","handler_version":"1","payload_version":"1",'
        f'"recovery_safety":"IDEMPOTENT","payload":{payload}}}'
    ).encode()


def test_there_are_at_least_200_pairs_of_known_verdicts() -> None:
    """B-44."""
    assert len(PAIRS) >= 200
    assert {pair["verdict"] for pair in PAIRS} == set(VERDICTS)
    assert len({(pair["a"], pair["b"]) for pair in PAIRS}) == len(PAIRS)
    assert all(pair["a"] != pair["b"] for pair in PAIRS)


@pytest.mark.parametrize(("a", "b"), named("equal"))
def test_equal(a: str, b: str) -> None:
    """OP-42: one canonical form, one hash of a submission, one hash of a finish."""
    assert canonical_json(a.encode()) == canonical_json(b.encode())
    assert submitted(a) == submitted(b)
    assert finished(a) == finished(b)


@pytest.mark.parametrize(("a", "b"), named("different"))
def test_different(a: str, b: str) -> None:
    """OP-42: two forms, two hashes."""
    assert canonical_json(a.encode()) != canonical_json(b.encode())
    assert submitted(a) != submitted(b)
    assert finished(a) != finished(b)


@pytest.mark.parametrize(("a", "b"), named("refused"))
def test_refused(a: str, b: str) -> None:
    """OP-42, B-47: `a` shows that it is `b`'s fault; a submission of `b` is a 400 or a 422."""
    check_json(a.encode())
    for read in (canonical_json, check_json, parse_json):
        with pytest.raises(JsonError):
            read(b.encode())
    with pytest.raises(BodyError) as refused:
        decode_submit(submission(b))
    assert ERRORS[refused.value.code].http_status in (400, 422)


@pytest.mark.parametrize(("a", "b"), named("equal") + named("different"))
def test_a_canonical_form_is_its_own(a: str, b: str) -> None:
    """OP-42: a fixed point, and a text with the meaning of its source."""
    for text in (a, b):
        form = canonical_json(text.encode())
        if all(len(number) <= 64 for number in numbers_of(form.decode())):
            assert canonical_json(form) == form
        assert meaning(form.decode()) == meaning(text)


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_the_verdicts_follow_from_exact_arithmetic(pair: dict[str, str]) -> None:
    """OP-42: a second derivation of equal and different, with fractions for numbers."""
    if pair["verdict"] != "refused":
        assert (meaning(pair["a"]) == meaning(pair["b"])) == (pair["verdict"] == "equal")


def submitted(payload: str) -> bytes:
    return submit_hash(decode_submit(submission(payload)), "b" * 32)


def finished(result: str) -> bytes:
    return finish_hash(Outcome.SUCCEEDED, "", result.encode())


def numbers_of(text: str) -> list[str]:
    found: list[str] = []
    json.loads(text, parse_int=found.append, parse_float=found.append)
    return found


def meaning(text: str) -> Any:
    """The value with numbers as tagged fractions, so that 1, 1.0, true and "1" stay apart or not
    as they should; objects are sets of members."""
    return tagged(json.loads(text, parse_int=Fraction, parse_float=fraction))


def fraction(text: str) -> Fraction:
    mantissa, _, exponent = text.lower().partition("e")
    value = Fraction(mantissa)
    if not value:
        return value
    return value * Fraction(10) ** int(exponent or "0")


def tagged(value: Any) -> Any:
    if isinstance(value, dict):
        return ("object", frozenset((key, tagged(item)) for key, item in value.items()))
    if isinstance(value, list):
        return ("array", *map(tagged, value))
    return (type(value).__name__, value)
