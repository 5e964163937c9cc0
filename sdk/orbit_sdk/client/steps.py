"""The words between the pure flows and the shells that carry them out.

A flow is a generator: it yields a `Send` or a `Pause` and is resumed with what came of it. It never
sees a socket, so the blocking and the asyncio client run the very same decisions.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send one request and wait at most `timeout_s` for the whole answer.

    `repeatable`: sending it twice does no harm, since the server knows it by its key or only reads.
    """

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    timeout_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Let this much time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, of whatever status."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer came. `sent` is False only if the request surely did not reach a server."""

    reason: str
    sent: bool


Step = Send | Pause
Reply = Answer | NoAnswer | None
Flow = Generator[Step, Reply, T]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Time and chance, handed in: monotonic seconds, a share in [0, 1), a fresh key."""

    clock: Callable[[], float]
    share: Callable[[], float]
    new_key: Callable[[], str]
