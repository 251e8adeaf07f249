"""Benchmarks are run by hand, so what they need of the product is looked at here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(path.name for path in BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_finds_all_that_it_imports(name: str) -> None:
    words = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='not main')"
    argv = [sys.executable, "-c", words, str(BENCHMARKS), str(BENCHMARKS / name)]
    run = subprocess.run(argv, capture_output=True, text=True, cwd=BENCHMARKS.parent)
    assert run.returncode == 0, run.stderr


def test_the_list_names_each() -> None:
    listed = (BENCHMARKS / "README.md").read_text()
    assert [name for name in PROGRAMS if f"`{name.removesuffix('.py')}" not in listed] == []
