"""Named places in the product where a test may make something go wrong on purpose.

Where: a process calls `arm` once at its start with what ORBIT_FAILPOINTS says; sites in gateway and
dispatcher ask `if failpoints.armed:` and then `await failpoints.reach("name")`.
Promise: unarmed, a site costs one attribute test and can do nothing. The settings refuse to arm
without ORBIT_FAILPOINTS_ALLOWED=1. What happens follows from the seed and the order in which each
site is reached.

    ORBIT_FAILPOINTS="gateway.finish_attempts.after=drop@0.1;dispatcher.claim.after=kill@3"

Actions: `sleep:SECONDS`, or `sleep:0..1.5` for any time between; `error` (a fault of our own);
`drop` (what was under way is lost, as with its connection); `kill` (SIGKILL to this process);
`pause:FILE` (writes FILE.here, then waits until FILE exists). `@0.1` fires with that probability,
`@3` at the third time only, `@3+` from then on.
"""

import asyncio
import os
import random
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from runtime.logs import get_logger

PAUSE_POLL_S = 0.01
_POINT = re.compile(
    r"(?P<name>[a-z_]+(\.[a-z_]+)+)=(?P<action>sleep|error|drop|kill|pause)(:(?P<word>[^@]+))?"
    r"(@(?P<when>0?\.\d+|[1-9]\d*\+?))?"
)

armed = False
"""Whether any failpoint is set. Sites test this and nothing else while it is False."""

_log = get_logger(__name__)


class InjectedFault(RuntimeError):
    """A failpoint of action `error`: a fault that no code expects."""


@dataclass(slots=True)
class Failpoint:
    """One rule for one site."""

    name: str
    action: str
    word: str
    chance: float
    first: int
    last: float
    draw: random.Random
    reached: int = field(default=0, init=False)

    def fires(self) -> bool:
        """Count that the site was reached; whether this is a time to act."""
        self.reached += 1
        if not self.first <= self.reached <= self.last:
            return False
        return self.chance >= 1.0 or self.draw.random() < self.chance

    async def act(self) -> bool:
        """Carry out the action; False when what was under way is to be lost."""
        _log.warning("failpoint_fired", failpoint=self.name, action=self.action, at=self.reached)
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "error":
            raise InjectedFault(self.name)
        elif self.action == "sleep":
            await asyncio.sleep(self.draw.uniform(*_read_span(self.word)))
        elif self.action == "pause":
            await _pause(Path(self.word))
        return self.action != "drop"


_points: dict[str, list[Failpoint]] = {}


def read_failpoints(text: str, seed: int) -> list[Failpoint]:
    """The rules of a text as in ORBIT_FAILPOINTS. Raises ValueError."""
    points = []
    for place, part in enumerate(filter(None, (part.strip() for part in text.split(";")))):
        found = _POINT.fullmatch(part)
        if found is None:
            raise ValueError(f"must be `name=action[:word][@when];...`, which {part!r} is not")
        action, word = found["action"], found["word"] or ""
        if (action in ("sleep", "pause")) != bool(word):
            raise ValueError("sleep needs seconds, pause needs a file, the others take no word")
        if action == "sleep":
            _read_span(word)
        when = found["when"] or "1+"
        is_chance = "." in when
        first = 1 if is_chance else int(when.rstrip("+"))
        points.append(
            Failpoint(
                name=found["name"],
                action=action,
                word=word,
                chance=float(when) if is_chance else 1.0,
                first=first,
                last=float("inf") if is_chance or when.endswith("+") else first,
                draw=random.Random(f"{seed}/{place}/{found['name']}"),
            )
        )
    return points


def arm(points: Iterable[Failpoint]) -> None:
    """Set these failpoints in place of all former ones; none disarms."""
    global armed
    _points.clear()
    for point in points:
        _points.setdefault(point.name, []).append(point)
    armed = bool(_points)
    if armed:
        _log.warning("failpoints_armed", failpoints=sorted(_points))


async def passes(name: str) -> bool:
    """Reach a site whose work can be left out: False when a `drop` fires."""
    firing = [point for point in _points.get(name, ()) if point.fires()]
    return all([await point.act() for point in firing])


async def reach(name: str, lost: type[Exception] = ConnectionResetError) -> None:
    """Reach a site; a `drop` raises `lost`, as if the connection had broken right there."""
    if not await passes(name):
        raise lost(f"failpoint {name}")


def _read_span(word: str) -> tuple[float, float]:
    """The least and the most of `0..1.5`, or of `1.5`. Raises ValueError."""
    least, between, most = word.partition("..")
    return float(least), float(most if between else least)


async def _pause(file: Path) -> None:
    file.with_name(f"{file.name}.here").touch()
    while not file.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(PAUSE_POLL_S)
