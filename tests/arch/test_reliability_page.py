"""docs/reliability.md explains every number that code names, and lists the races there are."""

import ast
import re

from tests.arch.tree import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROW = re.compile(r"^\| (INV-\d+b?|B-\d+) \|", re.MULTILINE)
INVARIANT = re.compile(r"\bINV-\d+b?\b")
RACE = re.compile(r"^test_b(\d+)_")


def test_every_invariant_that_is_named_is_explained() -> None:
    listed = set(ROW.findall(PAGE))
    for folder in ("tests", "store", "gateway", "dispatcher", "runtime", "sdk", "loadtest"):
        for path in (ROOT / folder).rglob("*.py"):
            unknown = set(INVARIANT.findall(path.read_text())) - listed
            assert not unknown, f"{path.relative_to(ROOT)} names {sorted(unknown)}"


def test_every_known_fault_has_a_race_and_every_race_is_listed() -> None:
    raced = {
        f"B-{found[1]}"
        for path in (ROOT / "tests" / "races").glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (found := RACE.match(node.name))
    }
    listed = {row for row in ROW.findall(PAGE) if row.startswith("B-")}
    assert len(listed) >= 35
    assert raced == listed
