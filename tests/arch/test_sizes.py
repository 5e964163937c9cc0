"""No file and no function grows past what one can read in one sitting."""

import ast
from collections.abc import Iterator

from tests.arch.tree import parse, python_files, text_of

FILE_LINES_MAX = 400
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = {"utils", "util", "common", "helpers", "base", "manager", "misc"}


def test_files_are_short() -> None:
    too_long = []
    for path in python_files():
        lines = len(text_of(path).splitlines())
        if lines > (TEST_FILE_LINES_MAX if path.parts[0] == "tests" else FILE_LINES_MAX):
            too_long.append(f"{path}: {lines} lines")
    assert not too_long


def test_functions_are_short() -> None:
    too_long = [
        f"{path}: {function.name} has {length} lines"
        for path in python_files()
        for function, length in functions(parse(path))
        if length > FUNCTION_LINES_MAX
    ]
    assert not too_long


def test_modules_open_with_a_docstring() -> None:
    assert not [
        str(path) for path in python_files() if text_of(path) and not ast.get_docstring(parse(path))
    ]


def test_modules_have_telling_names() -> None:
    assert not [str(path) for path in python_files() if path.stem in VAGUE_NAMES]


def functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Each function with its length in lines, decorators not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, (node.end_lineno or 0) - node.lineno + 1
