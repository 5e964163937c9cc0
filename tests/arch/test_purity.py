"""Decisions take time, ids and chance as arguments, and do no IO."""

import ast
from pathlib import Path

import pytest

from tests.arch.tree import imported_modules, parse, python_files

PURE = (
    "sdk/orbit_sdk/protocol/*.py",
    *(f"sdk/orbit_sdk/{name}.py" for name in ("backoff", "business_json")),
    *(
        f"sdk/orbit_sdk/client/{name}.py"
        for name in ("answers", "bodies", "exchange", "flows", "models", "steps")
    ),
    *(
        f"sdk/orbit_sdk/worker/{name}.py"
        for name in (
            "attempt",
            "desk",
            "dialect",
            "effects",
            "holdings",
            "lease",
            "limits",
            "mail",
            "outcomes",
            "relay",
            "session",
        )
    ),
    *(
        f"gateway/worker/{name}.py"
        for name in ("actions", "answers", "attempts", "dialect*", "session", "slots")
    ),
    "gateway/http/held_items.py",
    *(
        f"dispatcher/{name}.py"
        for name in ("ledger", "limits", "matching", "sharing", "slots", "view")
    ),
)
BANNED_MODULES = {
    "asyncio",
    "asyncpg",
    "httpx",
    "os",
    "random",
    "redis",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "websockets",
}
BANNED_CALLS = {"datetime.now", "datetime.utcnow", "date.today", "open", "print", "input"}


def files_like(pattern: str) -> list[Path]:
    return [path for path in python_files() if path.match(pattern)]


@pytest.mark.parametrize("pattern", PURE)
def test_pure_modules_use_no_clock_no_chance_and_no_io(pattern: str) -> None:
    files = files_like(pattern)
    assert files, "a core that moved must move in this list too"
    for path in files:
        tree = parse(path)
        assert not imported_modules(tree) & BANNED_MODULES, path
        assert not called_names(tree) & BANNED_CALLS, path


def called_names(tree: ast.Module) -> set[str]:
    """What is called by a plain name, or by a name and one attribute."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
