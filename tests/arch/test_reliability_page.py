"""docs/reliability.md explains every number that code names, and lists the races there are."""

import re

from tests.arch.tree import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text()
ROW = re.compile(r"^\| (INV-\d+b?|B-\d+) \|", re.MULTILINE)
INVARIANT = re.compile(r"\bINV-\d+b?\b")


def test_every_invariant_that_is_named_is_explained() -> None:
    listed = set(ROW.findall(PAGE))
    for folder in ("tests", "store", "gateway", "dispatcher", "runtime", "sdk", "loadtest"):
        for path in (ROOT / folder).rglob("*.py"):
            unknown = set(INVARIANT.findall(path.read_text())) - listed
            assert not unknown, f"{path.relative_to(ROOT)} names {sorted(unknown)}"
