"""The transcript as a page: ids, secrets and times replaced, so that every run writes the same.

What is equal in a run stays equal on the page, times keep their order, and every frame is still one
of the contract.
"""

import inspect
import json
import re
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.transcripts.stage import Acted, Frame, Line

PAGE_FILE = Path(__file__).parents[2] / "docs" / "transcripts.md"
WIDTH = 118

HEAD = """\
# Transcripts

What is said on a worker socket, taken from a real run by `make transcripts`; a test compares. The
words are explained in [protocol.md](protocol.md).

Every frame is one of the contract. Ids and times were replaced: an id begins with what it names
(`7a5c` task, `a77e` attempt, `5e55` session, `1257` instance, `0bee` queue, `4a3e` namespace, `c1`
message of a worker, `17e3` item of one, `5e` message of a gateway), and a time is a second later
than the one before it, so that one sees what is equal and what is later, and not by how much.
"""

PARTS = {
    "v1": """\
One message a frame, and one answer to each.
""",
    "v2": """\
The same in batches, each item judged alone, with `protocol_version` `"2"`. Hello, welcome and
capacity are otherwise those of v1, so only what differs is shown here.
""",
}

KINDS = {
    "task_id": "7a5c",
    "attempt_id": "a77e",
    "session_id": "5e55",
    "instance_id": "1257",
    "queue_id": "0bee",
    "namespace_id": "4a3e",
    "message_id": "17e3",
}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
SECRETS = ("instance_secret", "lease_secret")


class Replacer:
    """Replaces what differs from run to run, the same by the same."""

    def __init__(self, lines: Sequence[Line]) -> None:
        found = {text for line in lines for text in _times(line.said)}
        times = sorted(found, key=datetime.fromisoformat)
        self._times = {
            text: f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}Z"
            for n, text in enumerate(times)
        }
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def line(self, line: Line) -> Line:
        """The same line with its replacements."""
        if isinstance(line.said, str):
            return line
        sender = "5e" if line.way.startswith("gateway") else "c1"
        return Line(line.way, self._frame(line.said, sender))

    def _frame(self, frame: Frame, sender: str) -> Frame:
        own = {"message_id": sender, "reply_to": ""}
        return {
            name: self._id(own[name], item) if name in own else self._value(item, name)
            for name, item in frame.items()
        }

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, dict):
            if name == "task":
                value = {**value, "id": self._id(KINDS["task_id"], value["id"])}
            return {key: self._value(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item, name) for item in value]
        if name in KINDS:
            return self._id(KINDS[name], value)
        if name in SECRETS:
            return self._secret(name, value)
        return self._times.get(value, value) if isinstance(value, str) else value

    def _id(self, prefix: str, text: str) -> str:
        if text not in self._known:
            number = self._counts[prefix] = self._counts.get(prefix, 0) + 1
            self._known[text] = f"{prefix}{number:0{32 - len(prefix)}x}"
        return self._known[text]

    def _secret(self, name: str, text: str) -> str:
        if text not in self._known:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            self._known[text] = f"{name}_{number}".ljust(42, "_") + "A"
        return self._known[text]


def _times(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _times(item)]
    if isinstance(value, list):
        return [text for item in value for text in _times(item)]
    return [value] if isinstance(value, str) and TIME.fullmatch(value) else []


def replaced(lines: Sequence[Line]) -> list[Line]:
    """The lines of one scene with their replacements."""
    replacer = Replacer(lines)
    return [replacer.line(line) for line in lines]


def page(acted: Sequence[Acted]) -> str:
    """The whole page: a part a version, a section a scene."""
    parts = [HEAD]
    for version, scenes in groupby(acted, lambda scene: scene.version):
        parts.append(f"## {version.subprotocol}\n\n{PARTS[version.name]}")
        for scene in scenes:
            heading, _, text = inspect.cleandoc(scene.text).partition("\n\n")
            lines = "\n".join(_shown(line) for line in replaced(scene.lines))
            parts.append(f"### {heading[0].upper()}{heading[1:]}\n\n{text}\n")
            parts.append(f"```\n{lines}\n```\n")
    return "\n".join(parts)


def _shown(line: Line) -> str:
    said = line.said if isinstance(line.said, str) else _json(line.said, 2)
    return f"{line.way}\n  {said}"


def _json(value: Any, indent: int) -> str:
    """JSON that breaks an object or a list into lines only where it does not fit into one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list):
        return flat
    margin = " " * (indent + 1)
    if isinstance(value, list):
        return f"[\n{margin}" + f",\n{margin}".join(_json(i, indent + 1) for i in value) + "]"
    rows: list[str] = []
    for key, item in value.items():
        text = f"{json.dumps(key)}: {_json(item, indent + 1)}"
        last = rows[-1] if rows else ""
        if rows and "\n" not in last + text and len(last) + len(text) + indent + 4 <= WIDTH:
            rows[-1] = f"{last}, {text}"
        else:
            rows.append(text)
    return "{" + f",\n{margin}".join(rows) + "}"
