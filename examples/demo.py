"""`make demo`: a whole cluster on this machine, real work on a folder's files, a killed gateway.

    python examples/demo.py [FOLDER] [--tasks N] [--plain] [--json] [--keep DIR]

Starts a Postgres, a Valkey, two gateways behind a balancer, a dispatcher and two worker processes
in a temporary folder, runs a few thousand tasks through them, kills a gateway half-way, and then
checks in the database that nothing was lost and nothing ran twice. Needs no root and no Docker.

Exit codes: 0 all checks passed, 1 one failed or a part did not start, 2 wrong usage, 130 Ctrl-C.
"""

import argparse
import asyncio
import json
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape

from devcluster.homes import erase
from devcluster.processes import ProcessFailed
from examples.show import checks
from examples.show.database import Database
from examples.show.notebook import read_notes
from examples.show.screen import Screen, open_screen
from examples.show.stage import ROOT, Stage, stage
from examples.show.story import Story, Told
from examples.show.summary import Summary, measure
from examples.show.work import Truth, Work, plan_work
from orbit_sdk import AsyncClient

TASKS_DEFAULT = 3_000
TASKS = range(100, 20_001)


def main() -> int:
    """Parse, run, tidy up; the exit code."""
    options = _parser().parse_args()
    if options.tasks not in TASKS:
        _parser().error(f"--tasks is {options.tasks}; {TASKS[0]} to {TASKS[-1]} is possible")
    folder = Path(options.folder).expanduser().resolve()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    errors = Console(stderr=True)
    try:
        work = plan_work(folder, options.tasks)
        with (
            _data_folder(options.keep) as data,
            open_screen(plain=options.plain, to_stderr=options.json) as (screen, console),
        ):
            summary = _run(data, work, screen, keep=options.keep is not None)
        summary.print(console)
        if options.keep:
            console.print(
                f"Kept: .venv/bin/orbit dev --data {options.keep} starts it again.", markup=False
            )
    except KeyboardInterrupt:
        errors.print("Stopped; nothing is left running.", highlight=False)
        return 130
    except (ProcessFailed, ValueError, OSError) as error:
        errors.print(f"demo: {error}", highlight=False, markup=False, soft_wrap=True)
        return 1
    if options.json:
        print(json.dumps(summary.as_json(), indent=2))
    return 0 if summary.passed else 1


def _run(data: Path, work: Work, screen: Screen, *, keep: bool) -> Summary:
    which = f"the first {len(work.sources)}" if work.more else f"all {len(work.sources)}"
    screen.say(f"{len(work.errands)} tasks about {which} files of {escape(str(work.folder))}")
    run = f"demo-{secrets.token_hex(4)}"
    with stage(data, screen, keep=keep) as running:
        summary = asyncio.run(_play(running, work, run, screen))
        screen.say("stopping the workers, the gateways, the dispatcher and the stores")
    return summary


async def _play(running: Stage, work: Work, run: str, screen: Screen) -> Summary:
    database = await Database.open(running.cluster.database_url, run)
    try:
        told = await Story(running, work, run, screen).play(database)
        return await _judge(running, work, database, told)
    finally:
        await database.close()


async def _judge(running: Stage, work: Work, database: Database, told: Told) -> Summary:
    lives = {life.id: life for life in await database.lives()}
    carried = await database.carried_over()
    truth = Truth(work)
    readme = checks.readme_number(work, told)
    readme_sha256 = "no task"
    if readme is not None:
        async with AsyncClient(running.cluster.url, running.credential) as client:
            task = await client.get(told.acknowledged[readme])
            readme_sha256 = str((task.result or {}).get("sha256"))
    found = await checks.check_database(database, told)
    notes = read_notes(running.notes)
    found += checks.check_notes(notes, await database.successful_attempts())
    found += [checks.check_kill(told, carried), checks.check_results(lives, told, work, truth)]
    return Summary(
        measure(lives, told, await database.counts(), carried),
        told,
        found,
        checks.facts(lives, told, work, truth, readme_sha256),
    )


@contextmanager
def _data_folder(keep: Path | None) -> Iterator[Path]:
    """The folder to keep, or one that is gone afterwards."""
    if keep is not None:
        yield keep.expanduser().absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="orbit-demo-"))
    folder.chmod(0o711)  # Postgres may run as another user, who must get through.
    try:
        yield folder
    finally:
        erase(folder)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """The first Ctrl-C or SIGTERM begins the stop; it is not disturbed by another."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stderr.write("\nStopping all of it ...\n")
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo.py", description="Run Orbit on this machine and watch it lose a gateway."
    )
    parser.add_argument(
        "folder", nargs="?", default=ROOT, help="whose files to work on; default: this project"
    )
    parser.add_argument(
        "--tasks", type=int, default=TASKS_DEFAULT, help="how many tasks; default: %(default)s"
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a live display")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON on stdout")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="put the cluster's data there and leave it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
