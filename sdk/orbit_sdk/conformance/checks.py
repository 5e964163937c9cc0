"""What a check is, and how one says that it failed or could not be tried.

A check is a coroutine over a `Bench`. Its docstring is its entry in the report: `NUMBERS: what is
required`, an empty line, what is tried. What both versions of the worker socket promise is one
check, tried in each.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from orbit_sdk.conformance.contract import V1, V2, Version

if TYPE_CHECKING:
    from orbit_sdk.conformance.bench import Bench

Run: TypeAlias = Callable[["Bench"], Awaitable[None]]

LONG_PHASES: Final = ("slowness", "leaving", "revocation", "lifetimes")

_ENTRY: Final = re.compile(r"((?:R|OP)-\d+(?:, (?:R|OP)-\d+)*): (.+?)\n\n(.+)", re.DOTALL)
_SECRETS: Final = ("lease_secret", "instance_secret")
_SHOWN_CHARS_MAX: Final = 2_000


class CheckFailed(Exception):
    """The server did otherwise. `frame` is what it said, if it said anything."""

    def __init__(self, reason: str, frame: object = None) -> None:
        super().__init__(reason)
        self.frame = frame


class Skipped(Exception):
    """The check needs something that this run was not given."""


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of the suite."""

    name: str
    phase: str
    numbers: tuple[str, ...]
    requirement: str
    tried: str
    run: Run
    versions: tuple[Version, ...] = ()
    """The versions it is tried in; none: it does not depend on one, and is tried once."""

    @property
    def takes_long(self) -> bool:
        """Whether it mostly waits for what the server does by the clock."""
        return self.phase in LONG_PHASES

    def matches(self, patterns: tuple[str, ...]) -> bool:
        """Whether a number, the name or the phase is like one of the patterns; none means all."""
        words = (*self.numbers, self.name, self.phase)
        return not patterns or any(
            fnmatchcase(word, pattern) for word in words for pattern in patterns
        )


class Suite:
    """The checks in the order of their writing."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def of(self, *versions: Version) -> Callable[[Run], Run]:
        """A decorator that takes a coroutine into the suite, to be tried in these versions.

        It raises TypeError if the coroutine's docstring is no entry.
        """
        return partial(self._take, versions)

    def _take(self, versions: tuple[Version, ...], run: Run) -> Run:
        text = inspect.cleandoc(run.__doc__ or "")
        entry = _ENTRY.fullmatch(text)
        name: str = getattr(run, "__name__", "")
        if entry is None or any(name == known.name for known in self.checks):
            raise TypeError(f"{name}: the docstring is no entry, or the name is taken")
        numbers, requirement, tried = (" ".join(part.split()) for part in entry.groups())
        phase = run.__module__.rpartition(".")[2]
        taken = Check(name, phase, tuple(numbers.split(", ")), requirement, tried, run, versions)
        self.checks.append(taken)
        return run


suite: Final = Suite()
check: Final = suite.of(V1, V2)
check_v1: Final = suite.of(V1)
check_v2: Final = suite.of(V2)
check_once: Final = suite.of()
"""For the HTTP API, and for what no version changes."""


def expect(holds: bool, reason: str, frame: object = None) -> None:
    """Fail the check unless it holds; the frame is what the report shows."""
    if not holds:
        raise CheckFailed(reason, frame)


def expect_equal(found: object, wanted: object, what: str, frame: object = None) -> None:
    """Fail the check, naming both values, unless they are equal."""
    if found != wanted:
        raise CheckFailed(f"{what} is {found!r}, not {wanted!r}", frame)


def shown(frame: object) -> str:
    """A frame or an answer as text for the report: secrets masked, long ones cut."""
    text = frame if isinstance(frame, str) else json.dumps(masked(frame), ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + " …"


def masked(value: Any) -> Any:
    """The same without the secrets in it (R-118)."""
    if isinstance(value, dict):
        return {key: "(hidden)" if key in _SECRETS else masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value
