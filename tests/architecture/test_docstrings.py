"""A docstring is read where somebody opens the file, without the one above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tuner"
CONTINUES = ("Of ", "And ", "The same", "Likewise", "Those ", "Whom ")
"""How sentences begin that go on with another one."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, of fields and constants as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.lstrip()


def continued(source: str) -> list[int]:
    return [line for line, text in docstrings(source) if text.startswith(CONTINUES)]


def test_no_docstring_goes_on_with_the_one_above() -> None:
    sources = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert sources
    assert [f"{path}:{line}" for path, source in sources.items() for line in continued(source)] == []


def test_docstrings_of_fields_and_constants_are_read_too() -> None:
    assert continued('LONG = 1\n"""Of one line."""\n\n\nclass A:\n    at: int = 0\n    """And its place."""\n') == [
        2,
        7,
    ]
