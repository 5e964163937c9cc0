"""A user's functions as handlers: which argument is the payload, of which type, which the context.

Everything that can be wrong with a function is found when it is registered, not when a task comes.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from orbit_sdk.protocol.frames import AssignedTask, Capability
from orbit_sdk.protocol.limits import (
    CAPABILITIES_MAX,
    HANDLER_CHARS_MAX,
    HANDLER_VERSION_CHARS_MAX,
    PAYLOAD_VERSION_CHARS_MAX,
)
from orbit_sdk.protocol.scalars import is_token
from orbit_sdk.worker.context import TaskContext

HandlerFunction = Callable[..., Any]
F = TypeVar("F", bound=HandlerFunction)

_CONTEXT_NAMES = frozenset({"ctx", "context"})


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered function. `names` are its arguments in order: "payload" or "context"."""

    function: HandlerFunction
    is_async: bool
    names: tuple[str, ...]
    decode: Callable[[bytes], Any]

    def call(self, payload: object, context: TaskContext) -> Any | Awaitable[Any]:
        """Call the function; for an asyncio one the result is to be awaited."""
        given = {"payload": payload, "context": context}
        return self.function(*(given[name] for name in self.names))


class Registry:
    """The handlers of one worker, at most 32, by (handler, version, payload version)."""

    def __init__(self) -> None:
        self._handlers: dict[Capability, Handler] = {}

    def add(self, name: str, version: str, payload_version: str, function: F) -> F:
        """Register a function and return it as it is. Raises ValueError or TypeError, saying what
        is wrong with the route or the function."""
        route = _checked_route(name, version, payload_version)
        if route in self._handlers:
            raise ValueError(
                f"{name!r} {version} (payload {payload_version}) has a handler already"
            )
        if len(self._handlers) == CAPABILITIES_MAX:
            raise ValueError(f"a worker has at most {CAPABILITIES_MAX} handlers; start another one")
        self._handlers[route] = read_handler(function)
        return function

    def find(self, task: AssignedTask) -> Handler:
        """The handler of a task whose route was registered."""
        return self._handlers[Capability(task.handler, task.handler_version, task.payload_version)]

    def routes(self) -> tuple[Capability, ...]:
        """What the worker can do, in order of registration."""
        return tuple(self._handlers)

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._handlers)


def read_handler(function: HandlerFunction) -> Handler:
    """How to call a function.

    A parameter annotated TaskContext, or called `ctx` or `context` without an annotation, gets the
    context. One other parameter gets the payload, converted to its annotation by msgspec: a struct,
    dataclass, TypedDict or builtin. Raises TypeError.
    """
    where = getattr(function, "__qualname__", repr(function))
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except NameError as error:
        raise TypeError(f"{where}: an annotation cannot be resolved: {error}") from None
    names: list[str] = []
    payload_type: Any = Any
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
                raise TypeError(f"{where}: {parameter.name} is keyword-only and has no default")
            continue
        role = _role(parameter)
        if role in names:
            if parameter.default is parameter.empty:
                raise TypeError(f"{where}: takes more than a payload and a TaskContext")
            continue
        names.append(role)
        if role == "payload" and parameter.annotation is not parameter.empty:
            payload_type = parameter.annotation
    try:
        decoder = msgspec.json.Decoder(payload_type)
    except TypeError as error:
        raise TypeError(f"{where}: the payload's type cannot be read from JSON: {error}") from None
    is_async = inspect.iscoroutinefunction(function)
    return Handler(function, is_async, tuple(names), decoder.decode)


def _role(parameter: inspect.Parameter) -> str:
    if parameter.annotation is TaskContext:
        return "context"
    unannotated = parameter.annotation is parameter.empty
    return "context" if unannotated and parameter.name in _CONTEXT_NAMES else "payload"


def _checked_route(name: str, version: str, payload_version: str) -> Capability:
    for what, text, chars_max in (
        ("handler name", name, HANDLER_CHARS_MAX),
        ("version", version, HANDLER_VERSION_CHARS_MAX),
        ("payload version", payload_version, PAYLOAD_VERSION_CHARS_MAX),
    ):
        if not is_token(text, chars_max):
            raise ValueError(
                f"{what} {text!r}: 1 to {chars_max} of A-Z a-z 0-9 _ . : -, no sign in front"
            )
    return Capability(name, version, payload_version)
