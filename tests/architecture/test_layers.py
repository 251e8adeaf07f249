"""What may know what, checked on the sources and again on what really gets imported."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tuner"
ABOVE = ("cli", "app", "screens", "widgets", "messages", "__main__")
"""Parts that may know the terminal."""


def modules() -> list[str]:
    """Every module of the package by its dotted name."""
    return [info.name for info in pkgutil.walk_packages(tuner.__path__, "tuner.")]


def headless() -> list[str]:
    """Modules that must work without a terminal, but the files that are programs of their own."""
    names = [name for name in modules() if name.split(".")[1] not in ABOVE]
    return [name for name in names if not name.endswith("__main__")]


def test_the_layers_hold() -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_below_the_app_nothing_imports_the_terminal() -> None:
    # In a process of its own; a static check cannot see an import that is made inside a function at import time.
    code = (
        "import importlib, sys\n"
        f"for name in {headless()!r}:\n"
        "    importlib.import_module(name)\n"
        "    for bad in ('textual', 'rich', 'plotext'):\n"
        "        assert bad not in sys.modules, f'{name} imports {bad}'\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_command_line_answers_without_the_heavy_parts() -> None:
    code = (
        "import sys\n"
        "from tuner.cli import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'textual', 'rich', 'asyncssh', 'plotext', 'pynvml', 'asyncio', 'msgspec', 'sqlite3'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_forbidden_calls(path: Path) -> None:
    """What the linter bans by name, here also through a loop's method.

    A task group keeps its tasks. The simulated host, a program of its own, has no session: it may start a task that
    it keeps, and end the process groups that it made.
    """
    module = path.relative_to(PACKAGE)
    if module == Path("session/tasks.py") or module.parent == Path("probe/agent"):
        return
    simulated = module.parts[0] == "simhost"
    tree = ast.parse(path.read_text())
    lost = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        where = f"{module}:{node.lineno}: {name}"
        starts_task = re.search(r"(^|\.)ensure_future$|(asyncio|loop|loop\(\))\.create_task$", name)
        if starts_task:
            assert simulated, f"{where}: use session.tasks.spawn or a task group"
            assert node not in lost, f"{where}: a task that nothing keeps may be collected while it runs"
        assert name not in {"os.system", "os.popen", "eval", "exec"}, where
        assert name != "os.killpg" or simulated, where
        assert not any(word.arg == "shell" for word in node.keywords), f"{where}: never through a shell"
