"""The files that belong to the project, as the house rules see them."""

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def project_files() -> list[Path]:
    """Every file that git tracks or would track, relative to ROOT."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(name) for name in sorted(set(listed.split("\0"))) if (ROOT / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py"]


def files_of(*folders: str) -> list[Path]:
    """The Python files under top folders."""
    return [path for path in python_files() if path.parts[0] in folders]


@cache
def text_of(path: Path) -> str:
    return (ROOT / path).read_text()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(text_of(path), filename=str(path))


def imported_modules(tree: ast.Module) -> set[str]:
    """The top names of everything imported, function bodies included."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found
