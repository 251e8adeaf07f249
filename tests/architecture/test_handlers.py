"""Textual calls the handler of every class of a widget's ancestry; one that calls its super's runs it twice."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tuner"


def doubled(source: str) -> list[int]:
    """Return the lines on which a message handler calls the one that it overrides."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr.lstrip("_").startswith("on_")
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
    ]


def test_no_handler_calls_the_one_that_it_overrides() -> None:
    sources = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert [f"{path}:{line}" for path, source in sources.items() for line in doubled(source)] == []


def test_such_a_call_is_found() -> None:
    assert doubled("class A(B):\n    def on_mount(self):\n        super().on_mount()\n        super().x()\n") == [3]
