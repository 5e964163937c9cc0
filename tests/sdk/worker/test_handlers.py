"""How functions are read as handlers, and what is said of those that cannot be."""

import functools
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pytest

from orbit_sdk.protocol.frames import Capability
from orbit_sdk.worker.context import TaskContext
from orbit_sdk.worker.effects import Run
from orbit_sdk.worker.handlers import HandlerFunction, Registry, read_handler
from tests.sdk.worker.wired import Wired


class Struct(msgspec.Struct):
    n: int


@dataclass
class Data:
    n: int


class Typed(TypedDict):
    n: int


def context() -> TaskContext:
    wired = Wired()
    wired.connect()
    wired.assign()
    (run,) = wired.taken(Run)
    assert isinstance(run, Run)
    return TaskContext(run, lambda: wired.now)


def called(function: HandlerFunction, payload: bytes = b'{"n":1}') -> object:
    handler = read_handler(function)
    return handler.call(handler.decode(payload), context())


def takes_context_only(ctx):  # type: ignore[no-untyped-def]
    return ctx


def test_arguments_are_found_by_annotation_name_and_place() -> None:
    assert called(lambda: 1) == 1
    assert called(lambda p: p) == {"n": 1}
    assert isinstance(called(takes_context_only), TaskContext)

    def swapped(where: TaskContext, what: Data) -> tuple[int, int]:
        return what.n, where.epoch

    assert called(swapped) == (1, 1)

    def with_default(payload: Struct, retries: int = 3) -> tuple[int, int]:
        return payload.n, retries

    assert called(with_default) == (1, 3)

    def named_context_but_typed(context: Typed) -> Typed:
        return context

    assert called(named_context_but_typed) == {"n": 1}
    assert called(functools.partial(swapped)) == (1, 1)


@pytest.mark.parametrize("annotation", [Struct, Data, Typed, dict[str, int]])
def test_payloads_are_converted_or_refused(annotation: type) -> None:
    def handler(payload: object) -> None: ...

    handler.__annotations__["payload"] = annotation
    decode = read_handler(handler).decode
    assert decode(b'{"n":1}')
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"n":"1"}')


def test_large_numbers_and_exact_bytes_survive() -> None:
    assert read_handler(lambda p: p).decode(b"123456789012345678901234567890") == (
        123456789012345678901234567890
    )
    assert context().payload == b'{"n":1}'


def two_payloads(a: int, b: int) -> None: ...


def keyword_only(*, payload: int) -> None: ...


def unresolved(payload: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def unreadable(payload: complex | list[object] | tuple[int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (two_payloads, "more than a payload"),
        (keyword_only, "keyword-only"),
        (unresolved, "cannot be resolved"),
        (unreadable, "cannot be read from JSON"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_when_registered(
    function: HandlerFunction, words: str
) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__}: .*{words}"):
        read_handler(function)


def test_routes_are_checked_and_unique() -> None:
    registry = Registry()
    registry.add("a", "1", "1", lambda: None)
    registry.add("a", "2", "1", lambda: None)
    assert registry.routes() == (Capability("a", "1", "1"), Capability("a", "2", "1"))
    with pytest.raises(ValueError, match="has a handler already"):
        registry.add("a", "1", "1", lambda: None)
    for bad in ("", "-a", "a b", "x" * 129):
        with pytest.raises(ValueError, match="handler name"):
            registry.add(bad, "1", "1", lambda: None)
    with pytest.raises(ValueError, match="payload version"):
        registry.add("b", "1", "x" * 33, lambda: None)
    for number in range(30):
        registry.add(f"h{number}", "1", "1", lambda: None)
    with pytest.raises(ValueError, match="at most 32"):
        registry.add("one-more", "1", "1", lambda: None)


def test_remaining_time_follows_the_clock_and_ends_with_cancellation() -> None:
    wired = Wired()
    wired.connect()
    wired.receive(wired.gateway.assign(attempt_timeout_ms=60_000))
    (run,) = wired.taken(Run)
    assert isinstance(run, Run)
    ctx = TaskContext(run, lambda: wired.now)
    assert ctx.remaining() == 60
    wired.now += 45
    assert ctx.remaining() == 15
    wired.now += 45
    assert ctx.remaining() == 0
    wired.now -= 90
    ctx.raise_if_cancelled()
    ctx.cancelled.set()
    assert ctx.remaining() == 0
    assert ctx.deadline.tzinfo is not None
    assert ctx.business_key is None
    assert "lease_secret" not in repr(ctx.task)
