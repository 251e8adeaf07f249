"""Quote words for a shell so that a pasted command has exactly the values that are shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def shell_word(word: str) -> str:
    r"""Return a word as a shell takes it, on one line.

    A word with a line break or another character that is not printable is written as `$'a\nb'`, which bash, zsh and ksh
    read; a terminal would swallow or replace such a character.
    """
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(_escaped(letter) for letter in word)}'"


def shell_line(words: Iterable[str]) -> str:
    """Return words as one command line."""
    return " ".join(shell_word(word) for word in words)


_NAMED = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\\": r"\\", "'": r"\'"}


def _escaped(letter: str) -> str:
    if letter in _NAMED:
        return _NAMED[letter]
    if letter.isprintable():
        return letter
    # Bytes rather than \u: they do not depend on the shell's locale.
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))
