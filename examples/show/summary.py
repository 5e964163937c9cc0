"""The end of the demo: figures, checks and what to try next, for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.show.checks import Check, Fact
from examples.show.database import Counts, Life
from examples.show.story import Told

NEXT = (
    ("make demo FOLDER=/usr/share", "the same on files of your own"),
    ("make test", "all tests, on real stores and processes"),
    ("make bench", "lives a second and latency, measured here"),
    (".venv/bin/orbit dev", "a cluster to play with: export what it prints,"),
    (".venv/bin/python examples/hello.py", "  then run a worker and a client in one file,"),
    (".venv/bin/python examples/batch.py", "  many tasks in one call, twice,"),
    (".venv/bin/python examples/retries.py", "  or tasks that fail"),
)
# These have a lag of their own on purpose: a pause before the retry, and slow work.
NOT_PROMPT = frozenset({"file.lines", "folder.survey"})


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds that half, 95 % and 99 % of the tasks stayed below, and the longest."""

    p50: float
    p95: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return (
            f"p50 {self.p50:.1f}  p95 {self.p95:.1f}  p99 {self.p99:.1f}  "
            f"longest {self.longest:.1f} ms"
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured, all of it from the database's own instants."""

    tasks: int
    elapsed_s: float
    burst_tasks_per_s: float
    submit_to_start: Percentiles
    submit_to_finish: Percentiles
    longest_wait_in_act_3_ms: float
    retries: int
    renewals: int
    attempts_carried_over: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the demo found out."""

    figures: Figures
    told: Told
    checks: Sequence[Check]
    facts: Sequence[Fact]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks) and all(f.agrees for f in self.facts)

    def wrong(self, kind: str) -> int:
        """How much the checks of a kind found."""
        return sum(check.wrong for check in self.checks if check.kind == kind)

    def as_json(self) -> dict[str, Any]:
        kill = self.told.kill
        killed = None
        if kill is not None:
            killed = {
                "name": kill.gateway,
                "worker_sessions": kill.sessions,
                "running_attempts": kill.running,
                "resumed": [asdict(back) for back in kill.returns],
            }
        return {
            "passed": self.passed,
            "lost": self.wrong("lost"),
            "double_starts": self.wrong("double_starts"),
            **asdict(self.figures),
            "gateway_killed": killed,
            "checks": [{**asdict(check), "passed": check.passed} for check in self.checks],
            "facts": [{**asdict(fact), "agrees": fact.agrees} for fact in self.facts],
        }

    def print(self, console: Console) -> None:
        figures = self.figures
        rows = Table.grid(padding=(0, 3))
        rows.add_row("tasks settled", f"{figures.tasks} in {figures.elapsed_s:.1f} s")
        rows.add_row("throughput", f"{figures.burst_tasks_per_s:,.0f} tasks/s in act 2")
        rows.add_row("submit to start", f"{figures.submit_to_start} in act 1")
        rows.add_row("submit to finish", f"{figures.submit_to_finish} in act 1")
        rows.add_row(
            "longest wait to start",
            f"{figures.longest_wait_in_act_3_ms / 1000:.2f} s in act 3, with the killed gateway",
        )
        rows.add_row("retries", str(figures.retries))
        rows.add_row("lease renewals", str(figures.renewals))
        _section(console, "What was measured", rows)
        found = Table.grid(padding=(0, 2))
        for check in self.checks:
            mark = "[green]ok[/]" if check.passed else "[bold red]FAILED[/]"
            kind = f"{check.wrong} {check.kind.replace('_', ' ')}"
            found.add_row(mark, kind, escape(check.statement))
        _section(console, "What was checked", found)
        some = Table.grid(padding=(0, 2))
        for fact in self.facts:
            mark = "[green]agrees[/]" if fact.agrees else "[bold red]DIFFERS[/]"
            text = fact.from_tasks if fact.agrees else f"{fact.from_tasks} / {fact.directly}"
            some.add_row(mark, escape(fact.name), escape(text))
        _section(console, "Some results, against a direct computation", some)
        more = Table.grid(padding=(0, 3))
        for command, what in NEXT:
            more.add_row(f"[cyan]{escape(command)}[/]", escape(what))
        _section(console, "What to try next", more)
        verdict = "[bold green]All checks passed.[/]" if self.passed else "[bold red]Failed.[/]"
        console.print(f"\n{verdict}", highlight=False)


def measure(lives: dict[str, Life], told: Told, counts: Counts, carried: int) -> Figures:
    """Figures of a run from the lives of its tasks."""

    def of(numbers: range) -> list[Life]:
        ids = (told.acknowledged.get(number, "") for number in numbers)
        return [lives[task_id] for task_id in ids if task_id in lives]

    steady, burst, stormy = of(told.steady), of(told.burst), of(told.stormy)
    prompt = [life for life in steady if life.handler not in NOT_PROMPT]
    done = [
        life.completed_at
        for life in burst
        if life.completed_at is not None and life.handler not in NOT_PROMPT
    ]
    rate = 0.0
    if done:
        span = max(done) - min(life.created_at for life in burst)
        rate = len(done) / max(span.total_seconds(), 0.001)
    return Figures(
        tasks=counts.settled,
        elapsed_s=round(told.elapsed_s, 3),
        burst_tasks_per_s=round(rate, 1),
        submit_to_start=_percentiles([_ms(life, life.first_started_at) for life in steady]),
        submit_to_finish=_percentiles([_ms(life, life.completed_at) for life in prompt]),
        longest_wait_in_act_3_ms=round(
            max((_ms(life, life.first_started_at) for life in stormy), default=0.0), 1
        ),
        retries=counts.retries,
        renewals=counts.renewals,
        attempts_carried_over=carried,
    )


def _ms(life: Life, until: datetime | None) -> float:
    return 0.0 if until is None else (until - life.created_at).total_seconds() * 1000


def _percentiles(values: list[float]) -> Percentiles:
    ordered = sorted(values) or [0.0]

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 2)

    return Percentiles(at(0.5), at(0.95), at(0.99), round(ordered[-1], 2))


def _section(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{title}[/]", highlight=False)
    console.print(table, highlight=False)
