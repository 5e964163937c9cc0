"""docs/guarantees.md names real tests, and CI would run them."""

import ast
import re

from tests.arch.tree import ROOT

NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_promise_names_a_test_that_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) >= 25
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert functions if not function else function in functions, f"{path}::{function}"
