"""What must be true after the run, asked of the database, of the handlers' notes, of the results.

Each check stands alone and says what it counted; the demo passes only if all of them do.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from examples.show.database import Database, Life
from examples.show.notebook import Run
from examples.show.story import Told
from examples.show.work import Truth, Work
from store.invariants import INVARIANTS, violations


@dataclass(frozen=True, slots=True)
class Check:
    """What was found to hold, and how many things of some kind break it."""

    kind: str
    wrong: int
    statement: str

    @property
    def passed(self) -> bool:
        return self.wrong == 0


@dataclass(frozen=True, slots=True)
class Fact:
    """A result put together from many tasks, beside the same computed directly."""

    name: str
    from_tasks: str
    directly: str

    @property
    def agrees(self) -> bool:
        return self.from_tasks == self.directly


async def check_database(database: Database, told: Told) -> list[Check]:
    """What the tables say."""
    tasks = list(told.acknowledged.values())
    apart = len(set(tasks))
    keys = await database.submissions()
    repeats = len(tasks) - apart + abs(keys - apart)
    breaches = await violations(database.connection)
    states = await database.attempts_by_state()
    attempts = sum(states.values())
    ended = ", ".join(f"{count} {state.lower()}" for state, count in sorted(states.items()))
    rules = "; ".join(breaches[:3]) or f"{len(INVARIANTS)} invariants of the store hold"
    successes = await database.without_one_success()
    return [
        Check("lost", await database.unsettled(tasks), f"{len(tasks)} acknowledged are settled"),
        Check("refused", len(told.refused), f"{keys} submissions were accepted"),
        Check("submitted_twice", repeats, f"{keys} submission keys are {apart} tasks"),
        Check(
            "double_starts",
            await database.overlaps(),
            f"{attempts} attempts, a task's never authorised at one time",
        ),
        Check("double_successes", successes, f"{apart} tasks have one attempt that succeeded"),
        Check("miscounted", await database.miscounted(), f"attempts add up: {ended}"),
        Check("left_over", await database.left_over(), "no task waits or runs any more"),
        Check("breaches", len(breaches), rules),
    ]


def check_notes(runs: Mapping[str, list[Run]], successes: Mapping[str, str]) -> list[Check]:
    """What the handlers wrote down while they ran, against the attempts that succeeded."""
    overlaps = sum(
        later.began_ns < earlier.ended_ns
        for of_task in runs.values()
        for earlier, later in pairwise(of_task)
    )
    calls = Counter(run.attempt_id for of_task in runs.values() for run in of_task)
    repeated = sum(count > 1 for count in calls.values())
    unseen = sum(calls[attempt_id] == 0 for attempt_id in successes.values())
    processes = len({run.pid for of_task in runs.values() for run in of_task})
    return [
        Check(
            "double_starts",
            overlaps,
            f"{calls.total()} calls noted by {processes} workers, a task's never at one time",
        ),
        Check(
            "stray_calls",
            repeated + unseen,
            f"{len(successes)} successes are one call of a handler each",
        ),
    ]


def check_kill(told: Told, carried: int) -> Check:
    """Whether the workers of the killed gateway went on at the other one."""
    kill = told.kill
    if kill is None:
        return Check("stranded", 1, "no gateway was killed")
    back = f"{len(kill.returns)} worker(s) of {kill.gateway} resumed, with {carried} attempts"
    return Check("stranded", kill.sessions - len(kill.returns), back)


def check_results(lives: Mapping[str, Life], told: Told, work: Work, truth: Truth) -> Check:
    """Every result against a direct computation; files that were changed meanwhile are no proof."""
    right = wrong = changed = 0
    for number, task_id in told.acknowledged.items():
        errand = work.errands[number]
        if not truth.still_holds(errand):
            changed += 1
        elif _result(lives.get(task_id)) == truth.result_of(errand):
            right += 1
        else:
            wrong += 1
    also = f" ({changed} files changed meanwhile)" if changed else ""
    return Check("wrong_results", wrong, f"{right} equal a direct computation{also}")


def facts(
    lives: Mapping[str, Life], told: Told, work: Work, truth: Truth, readme_sha256: str
) -> list[Fact]:
    """A few results that a person can check with `wc`, `ls` and `sha256sum`."""
    known: dict[str, dict[str, int]] = {"file.checksum": {}, "file.words": {}}
    direct: dict[str, dict[str, int]] = {"file.checksum": {}, "file.words": {}}
    for number, task_id in told.acknowledged.items():
        errand = work.errands[number]
        if errand.handler in known and errand.source and truth.still_holds(errand):
            figure = "bytes" if errand.handler == "file.checksum" else "words"
            name = str(errand.source.path.relative_to(work.folder))
            result = _result(lives.get(task_id))
            known[errand.handler][name] = int(result.get(figure, -1))
            direct[errand.handler][name] = int(truth.result_of(errand)[figure])
    sha256 = next(e for e in work.errands if e.handler == "file.checksum"
                  and e.source == work.readme)  # fmt: skip
    sizes, words = "file.checksum", "file.words"
    return [
        Fact("largest file", _most(known[sizes], "bytes"), _most(direct[sizes], "bytes")),
        Fact("most words", _most(known[words], "words"), _most(direct[words], "words")),
        Fact("all files", f"{sum(known[sizes].values()):,} bytes in {len(known[sizes])}",
             f"{sum(direct[sizes].values()):,} bytes in {len(direct[sizes])}"),
        Fact(f"sha256 of {work.readme.path.name}", readme_sha256,
             str(truth.result_of(sha256)["sha256"])),
    ]  # fmt: skip


def readme_number(work: Work, told: Told) -> int | None:
    """The acknowledged task that computed the README's checksum."""
    for number in told.acknowledged:
        errand = work.errands[number]
        if errand.handler == "file.checksum" and errand.source == work.readme:
            return number
    return None


def _most(figures: Mapping[str, int], unit: str) -> str:
    name = max(figures, key=lambda name: (figures[name], name), default="none")
    return f"{name} ({figures.get(name, 0):,} {unit})"


def _result(life: Life | None) -> dict[str, str | int]:
    if life is None or life.state != "SUCCEEDED" or life.result is None:
        return {}
    result: dict[str, str | int] = json.loads(life.result)
    return result
