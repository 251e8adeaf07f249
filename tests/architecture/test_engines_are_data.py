"""The core knows no engine by its name: what differs between engines stands in their folders.

A third engine then needs no change in the core. Docstrings and comments may name engines, as examples and sources.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.engines import load_engines

CORE = Path(__file__).parents[2] / "tuner" / "core"
ALLOWED = {
    "causes.py": "the list of causes quotes what each engine prints, for people who look a message up",
    "surroundings.py": "a package that lists of versions name, as torch and triton are, whichever engine runs",
    "wrapping.py": "wrappers are taken off before anything tells whose lines they are round",
}
"""Modules that may name an engine in their texts, and why."""


def named(source: str) -> list[str]:
    """Texts of a module, docstrings excepted, that name an engine."""
    engines = load_engines().values()
    names = {word.lower() for each in engines for word in (each.name, each.title, *each.behaviour().variables)}
    tree = ast.parse(source)
    texts = list(_texts(tree))
    return [
        f"line {node.lineno}: {node.value!r}"
        for node in texts
        if any(name in str(node.value).lower() for name in names)
    ]


def _texts(tree: ast.AST) -> Iterator[ast.Constant]:
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in prose:
            yield node


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_no_text_of_the_core_names_an_engine(path: Path) -> None:
    found = named(path.read_text("utf-8"))
    if str(path.relative_to(CORE)) in ALLOWED:
        assert found, "it may be taken off the list"
    else:
        assert found == []


def test_what_names_an_engine_is_found_and_prose_is_not() -> None:
    source = '"""Of vLLM."""\nNAME = "x"\n"""As in SGLang."""\nif engine == "vllm":\n    env = f"{x}: SGLANG_{NAME}"\n'
    assert named(source) == ["line 4: 'vllm'", "line 5: ': SGLANG_'"]
