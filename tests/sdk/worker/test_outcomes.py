"""Whatever a handler returns or raises becomes a finish that the server accepts."""

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_sdk.protocol.frames import AttemptRef, FinishBody, FinishFrame, encode_frame
from orbit_sdk.protocol.limits import JSON_BYTES_MAX
from orbit_sdk.protocol.states import Outcome
from orbit_sdk.worker.outcomes import (
    Report,
    TaskCancelled,
    TaskFailed,
    TaskUnknown,
    raised,
    succeeded,
)
from tests.contract.oracle import accepts


class Point(msgspec.Struct):
    x: int


@dataclass
class Box:
    at: datetime
    id: UUID


def is_a_frame(report: Report) -> bool:
    ref = AttemptRef("1" * 32, "2" * 32, "1", "A" * 43)
    code = msgspec.UNSET if report.error_code is None else report.error_code
    body = FinishBody(ref, report.outcome, msgspec.Raw(report.result), code)
    return accepts(encode_frame(FinishFrame("1", "3" * 32, "4" * 32, body)), "clientFrame")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON_VALUES | st.binary() | st.builds(object) | st.sets(st.integers()))
def test_any_returned_value_makes_an_acceptable_finish(value: object) -> None:
    assert is_a_frame(succeeded(value))


@given(st.text(), st.sampled_from([ValueError, KeyError, TaskCancelled, TimeoutError]))
def test_any_exception_makes_an_acceptable_finish(text: str, kind: type[Exception]) -> None:
    report = raised(kind(text))
    assert report.outcome is Outcome.FAILED
    assert is_a_frame(report)


@given(st.text(max_size=70), st.booleans(), JSON_VALUES)
def test_any_accepted_code_makes_an_acceptable_finish(
    code: str, retryable: bool, result: object
) -> None:
    try:
        failure = TaskFailed(code, result, retryable=retryable)
        unknown = TaskUnknown(code, result)
    except ValueError:
        return
    assert is_a_frame(raised(failure))
    assert is_a_frame(raised(unknown))


def test_values_of_python_become_json() -> None:
    box = Box(datetime(2030, 1, 1, tzinfo=UTC), UUID(int=1))
    assert succeeded({"p": Point(1), "b": box}).result == (
        b'{"p":{"x":1},"b":{"at":"2030-01-01T00:00:00+00:00",'
        b'"id":"00000000-0000-0000-0000-000000000001"}}'
    )
    assert succeeded(None) == Report(Outcome.SUCCEEDED, b"{}")
    assert succeeded(b'{"exact":1.10}').result == b'{"exact":1.10}'


def test_the_size_limit_is_exact() -> None:
    assert succeeded("x" * (JSON_BYTES_MAX - 2)).outcome is Outcome.SUCCEEDED
    assert succeeded("x" * (JSON_BYTES_MAX - 1)).error_code == "result_too_large"


@pytest.mark.parametrize("value", [float("nan"), b"null", b"[1", {1: object()}, 2**70])
def test_what_json_cannot_say_fails_the_attempt(value: object) -> None:
    assert succeeded(value).error_code == "result_not_json"


def test_unretryable_codes_carry_the_prefix_once() -> None:
    assert TaskFailed("no_stock", retryable=False).code == "fatal.no_stock"
    assert TaskFailed("fatal.no_stock", retryable=False).code == "fatal.no_stock"
    assert TaskFailed("x" * 64).code == "x" * 64
    with pytest.raises(ValueError, match="error code"):
        TaskFailed("x" * 64, retryable=False)
    for bad in ("", "-x", "a b", "x\n"):
        with pytest.raises(ValueError, match="error code"):
            TaskUnknown(bad)


def test_a_long_message_is_cut_and_a_broken_one_is_mended() -> None:
    report = raised(ValueError("ü" * 10_000))
    assert len(report.result) < 10_000
    assert raised(ValueError("\ud800")).result == b'{"error":"ValueError","message":"?"}'
