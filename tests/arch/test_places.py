"""Things are where the map says they are."""

import ast
import re
from pathlib import Path

from tests.arch.tree import ROOT, files_of, imported_modules, parse, project_files, text_of

SQL = re.compile(
    r"\s*(SELECT\s.+|INSERT\s+INTO\s.+|UPDATE\s.+\sSET\s.+|DELETE\s+FROM\s.+|WITH\s.+\sAS\s.+"
    r"|(CREATE|ALTER|DROP)\s+(TABLE|INDEX|FUNCTION|DATABASE)\s.+)",
    re.IGNORECASE | re.DOTALL,
)
ADDRESS_MARKS = ("://", "file:", "--find-links", "--index-url")
MIRROR = re.compile(
    r"https?://[^\s\"'<>]*(?:pypi|/simple\b|artifactory|nexus|mirror)[^\s\"'<>]*", re.IGNORECASE
)
PUBLIC = re.compile(r"https?://pypi\.org/project/", re.IGNORECASE)


def test_sql_is_only_in_store() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in files_of("gateway", "dispatcher", "runtime", "devcluster", "sdk")
        for node in strings(parse(path))
        if SQL.match(str(node.value))
    ]
    assert not found


def test_redis_is_only_in_store() -> None:
    servers = files_of("gateway", "dispatcher", "runtime", "devcluster", "sdk")
    assert not [str(path) for path in servers if "redis" in imported_modules(parse(path))]


def test_the_sdk_knows_no_database() -> None:
    assert not [str(path) for path in files_of("sdk") if "asyncpg" in imported_modules(parse(path))]


def test_the_architecture_page_names_only_files_that_exist() -> None:
    page = text_of(Path("ARCHITECTURE.md"))
    named = set(re.findall(r"[\w./-]+/[\w.-]*\w\.(?:py|sql|json|toml|md|yaml)\b", page))
    assert named, "the map names no file"
    assert not {name for name in named if not (ROOT / name).is_file()}


def test_lock_files_are_hashed_and_name_no_address() -> None:
    locks = [path for path in project_files() if path.parts[0] == "requirements"]
    assert locks
    for path in locks:
        text = text_of(path)
        assert not [mark for mark in ADDRESS_MARKS if mark in text], path
        pinned = re.findall(r"^\S+==\S+", text, re.MULTILINE)
        assert 0 < len(pinned) <= text.count("--hash=sha256:"), path


def test_no_file_names_a_package_mirror() -> None:
    found = []
    for path in project_files():
        text = (ROOT / path).read_bytes().decode(errors="replace")
        found += [f"{path}: {link}" for link in MIRROR.findall(text) if not PUBLIC.match(link)]
    assert not found


def strings(tree: ast.Module) -> list[ast.Constant]:
    """Every text in a module but its docstrings."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documentation
    ]
