"""What the user sees while the demo runs: bars that move on a terminal, else plain lines.

Both forms tell the same: which step of the setup runs, how far the tasks are, what has happened.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

PLAIN_INTERVAL_S = 1.0
BAR_WIDTH = 44


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is, as the database tells it. `sessions` are open ones by gateway."""

    total: int
    accepted: int = 0
    settled: int = 0
    waiting: int = 0
    running: int = 0
    retries: int = 0
    renewals: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def facts(self) -> str:
        """The figures beside the bars."""
        places = ", ".join(f"{name} {count}" for name, count in sorted(self.sessions.items()))
        return (
            f"waiting {self.waiting}   running {self.running}   retries {self.retries}   "
            f"renewals {self.renewals}   worker sessions: {places or 'none'}"
        )


class Screen(Protocol):
    """How the demo talks to its user. Lines may hold rich markup; foreign text is escaped."""

    def say(self, line: str) -> None:
        """Something happened."""

    def show(self, progress: Progress) -> None:
        """How far the run is now; may be called as often as one likes."""

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A part of the setup, named before it begins and timed once it is done."""
        yield


class LiveScreen:
    """Spinner, bars and colours on a terminal."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False)

    def show(self, progress: Progress) -> None:
        bars = Table.grid(padding=(0, 2))
        for name, done, style in (
            ("accepted", progress.accepted, "cyan"),
            ("settled", progress.settled, "green"),
        ):
            bar = ProgressBar(progress.total, done, BAR_WIDTH, complete_style=style)
            bars.add_row(name, bar, f"{done} of {progress.total}")
        self._live.update(Group(Text(), bars, Text(progress.facts(), style="dim")))

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        self._live.update(Spinner("dots", escape(what)))
        yield
        self._live.update(Text())
        self.say(f"[green]✔[/] {escape(what)} [dim]{time.monotonic() - began:.1f} s[/]")


class PlainScreen:
    """One line a step and one a second, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = 0.0

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._shown_at < PLAIN_INTERVAL_S:
            return
        self._shown_at = time.monotonic()
        self.say(
            f"{progress.elapsed_s:5.1f} s  accepted {progress.accepted} and settled "
            f"{progress.settled} of {progress.total}   {progress.facts()}"
        )

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        self.say(f"{escape(what)} ...")
        yield
        self.say(f"  done in {time.monotonic() - began:.1f} s")


@contextmanager
def open_screen(*, plain: bool, to_stderr: bool) -> Iterator[tuple[Screen, Console]]:
    """A screen fit for where the output goes, and the console under it for what comes after."""
    console = Console(file=sys.stderr if to_stderr else sys.stdout)
    if plain or not console.is_terminal:
        console = Console(file=console.file, color_system=None, width=100, force_terminal=False)
        yield PlainScreen(console), console
        return
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        yield LiveScreen(console, live), console
