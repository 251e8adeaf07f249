"""A command that is shown can be pasted: a shell reads from it exactly the values that it stands for."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tuner.cli.change_lines import command_lines
from tuner.cli.paper import Paper
from tuner.core.change_words import value_words
from tuner.core.shellwords import shell_line, shell_word
from tuner.domain.knobs import KnobKind
from tuner.domain.recipe import Launch
from tuner.domain.tuning import Change, Tuning, Wish
from tuner.widgets import tune_text
from tuner.widgets.glyphs import ASCII

VALUES = (
    "",
    "plain",
    "a b",
    "it's",
    "a\nb",
    "tab\tand 'quote'\r",
    "\x1b[31mred\\n",
    "zero\u200bwidth",
    "é ü",
    "\x01ff",
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_reads_back_what_was_quoted() -> None:
    line = shell_line(VALUES)
    assert line.isprintable()
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert tuple(read.stdout.decode().split("\0")[:-1]) == VALUES


def test_a_line_break_is_written_as_such() -> None:
    assert shell_word("a\nb") == r"$'a\nb'"


def test_a_value_with_a_line_break_is_shown_and_copied_as_it_is() -> None:
    launch = Launch(argv=("python", "-m", "x"), env={"MY_NL": "a\nb"})
    change = Change(name="MY_NL", kind=KnobKind.ENV, then="a\nb")
    tuning = Tuning(wish=Wish(), launch=launch, changes=(change,))
    paper = Paper(width=100)
    assert r"MY_NL=$'a\nb' python -m x" in "\n".join(command_lines(tuning, paper))
    assert tune_text.command_text(launch) == r"env $'MY_NL=a\nb' python -m x"
    shown = "\n".join(text for line in tune_text.command_lines(launch, 80, ASCII) for text, _ in line)
    assert r"$'MY_NL=a\nb'" in shown


def test_an_empty_value_is_seen() -> None:
    assert value_words("") == "''"
    assert value_words(["a", ""]) == "a ''"
