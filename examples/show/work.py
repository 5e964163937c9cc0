"""The demo's work: which files, which tasks about them, and what each result must be.

The expected results are computed here, directly and without the cluster, once all tasks are done.
A file that was changed in between proves nothing either way; it is left out and counted.
"""

import hashlib
import os
import stat
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from pathlib import Path

from orbit_sdk import Submission
from orbit_sdk.client.models import RetryPolicy

# Every file is read several times over, so a folder of giants would take all day.
FILE_BYTES_MAX = 16 * 1024 * 1024
ALL_BYTES_MAX = 128 * 1024 * 1024
SURVEYS = 4
SURVEY_SECONDS = 8.0
# Paths travel in the payload, which has 256 KiB; no path is longer than 4 KiB.
SURVEY_FILES_MAX = 60
# Of this many files, one is also packed and one also meets the flaky handler.
RARE_EVERY = 8
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "venv", "dist", "build"})

QUICK_RETRY = RetryPolicy(max_attempts=6, initial_delay_ms=200, max_delay_ms=1_000)


@dataclass(frozen=True, slots=True)
class Source:
    """A file as it was when the demo began."""

    path: Path
    size: int
    changed_ns: int

    def unchanged(self) -> bool:
        try:
            now = self.path.stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns) == (self.size, self.changed_ns)


@dataclass(frozen=True, slots=True)
class Errand:
    """One task to be: its handler and the file it is about (None: the survey of all files)."""

    handler: str
    source: Source | None


@dataclass
class Work:
    """All tasks of a run, the slow ones first. `more`: the folder holds files beyond `sources`."""

    folder: Path
    sources: list[Source]
    more: bool
    errands: list[Errand] = field(default_factory=list)

    @property
    def surveyed(self) -> list[Source]:
        return self.sources[:SURVEY_FILES_MAX]

    @cached_property
    def readme(self) -> Source:
        """The README of the folder itself, or whatever comes first."""
        here = (source for source in self.sources if source.path.parent == self.folder)
        readmes = (source for source in here if source.path.name.lower().startswith("readme"))
        return next(readmes, self.sources[0])

    def submission(self, number: int, run: str) -> Submission:
        """The task with this number. Its key makes a repeated submission the same task."""
        errand = self.errands[number]
        payload: dict[str, object]
        if errand.source is None:
            paths = [str(source.path) for source in self.surveyed]
            payload = {"paths": paths, "seconds": SURVEY_SECONDS}
        else:
            payload = {"path": str(errand.source.path)}
        return Submission(
            handler=errand.handler,
            payload=payload,
            key=f"{run}-{number}",
            business_key=run,
            retry=QUICK_RETRY,
        )


def plan_work(folder: Path, tasks: int) -> Work:
    """Find the files of a folder and spread `tasks` tasks over them.

    Raises ValueError, in words for the user, if there is nothing to work on.
    """
    # Each file is checked and counted, some more than that, so all of it fits once at least.
    files_max = max(1, (tasks - SURVEYS) // 3)
    sources: list[Source] = []
    bytes_left = ALL_BYTES_MAX
    more = False
    for source in _files(folder):
        more = len(sources) == files_max or source.size > bytes_left
        if more:
            break
        sources.append(source)
        bytes_left -= source.size
    if not sources:
        raise ValueError(f"{folder} holds no files that can be read")
    work = Work(folder, sources, more)
    work.errands = [Errand("folder.survey", None)] * SURVEYS
    work.errands += islice(_errands(sources), tasks - SURVEYS)
    return work


def _errands(sources: list[Source]) -> Iterator[Errand]:
    for round_ in count():
        for place, source in enumerate(sources, start=round_):
            yield Errand("file.checksum", source)
            yield Errand("file.words", source)
            if place % RARE_EVERY == 0:
                yield Errand("file.lines", source)
            if place % RARE_EVERY == RARE_EVERY // 2:
                yield Errand("file.pack", source)


def _files(folder: Path) -> Iterator[Source]:
    """Readable plain files in a settled order; no hidden folders, caches or giants."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in SKIPPED_FOLDERS and not name.startswith(".")
        )
        for name in sorted(names):
            path = Path(place, name)
            try:
                text = str(path)
                text.encode()
                facts = path.lstat()
            except (OSError, UnicodeEncodeError):
                continue
            plain = stat.S_ISREG(facts.st_mode) and os.access(path, os.R_OK)
            if plain and facts.st_size <= FILE_BYTES_MAX:
                yield Source(path, facts.st_size, facts.st_mtime_ns)


class Truth:
    """Expected results, each computed once."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._known: dict[tuple[str, Path | None], dict[str, str | int]] = {}

    def result_of(self, errand: Errand) -> dict[str, str | int]:
        """What the task must have returned."""
        key = (errand.handler, errand.source.path if errand.source else None)
        if key not in self._known:
            self._known[key] = self._compute(errand)
        return self._known[key]

    def still_holds(self, errand: Errand) -> bool:
        """Whether the files of the task are as they were when the demo began."""
        if errand.source is not None:
            return errand.source.unchanged()
        return all(source.unchanged() for source in self._work.surveyed)

    def _compute(self, errand: Errand) -> dict[str, str | int]:
        if errand.source is None:
            return self._survey()
        data = errand.source.path.read_bytes()
        match errand.handler:
            case "file.checksum":
                return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            case "file.words":
                return {"words": len(data.split())}
            case "file.lines":
                return {"lines": data.count(b"\n")}
            case _:
                return {"packed_bytes": len(zlib.compress(data))}

    def _survey(self) -> dict[str, str | int]:
        found = Counter(
            word for source in self._work.surveyed for word in source.path.read_bytes().split()
        )
        count_, word = max(((times, word) for word, times in found.items()), default=(0, b""))
        return {
            "word": repr(word[:40]),
            "count": count_,
            "words": found.total(),
        }
