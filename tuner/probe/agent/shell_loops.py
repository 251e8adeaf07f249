"""Whether a shell above a server runs it in a loop, and so would start it again."""

from __future__ import annotations

import os
import re
import stat
from typing import List, Optional, Sequence, Tuple

from .base import PROC, Json, link_of, stat_of, text_of
from .processes import Proc, below_root
from .recognition import program_index

SHELLS = frozenset(("ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"))
_TAKES_VALUE = frozenset(("-O", "+O", "-o", "+o", "--rcfile", "--init-file"))
_RESERVED = frozenset((
    "case", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time",
    "until", "while",
))  # fmt: skip
"""Words of a shell's grammar: a program with such a name cannot be found in a script by it."""
_LOOP = re.compile(r"(?:^|[;&|({]|\b(?:do|then|else)\b)\s*(while|until|for|foreach|repeat)\b")
_AGAIN = re.compile(r"\bexec\s+(?:\S*sh\s+)?[\"']?\$\{?0\}?[\"']?|\bexec\s+\"?\$BASH_SOURCE")
_FUNCTION = re.compile(r"^\s*(?:function\s+[\w:.-]+|[\w:.-]+\s*\(\s*\))\s*(?:\(\s*\))?\s*\{?")
_OPENS = re.compile(r"(?:^|[\s;&|({])(do)(?=$|[\s;#])")
_CLOSES = re.compile(r"(?:^|[\s;&|)}])(done|end)(?=$|[\s;&|)#<>])")
TEXT_LIMIT = 1 << 18
"""Most bytes of a script that are read."""


def loop_above(shell: Proc, started: Sequence[Sequence[str]]) -> Optional[Json]:
    """Return the loop in what a shell runs: file, line, text and whether it surely holds the server; None without one.

    Args:
        shell: A process above the server.
        started: Command lines of the server's leader and of programs between it and the shell.
    """
    path, text = script_of(shell)
    if text is None:
        # What it runs cannot be read: a script that is gone, or another user's.
        return {"file": path, "line": 1, "text": "cannot be read", "certain": False} if path else None
    found = find_loop(text, [word for argv in started for word in launch_words(argv)])
    if found is None:
        return None
    line, words, certain = found
    return {"file": path, "line": line, "text": words[:200], "certain": certain}


def script_of(shell: Proc) -> Tuple[str, Optional[str]]:
    """Return the path of the script that a shell runs and its text.

    The path is empty for a text given with `-c`. The text is None where there is none (somebody types), or where the
    file cannot be read.
    """
    argv = list(shell.argv)
    i = 2 if argv and os.path.basename(argv[0]) == "busybox" else 1
    while i < len(argv):
        arg = argv[i]
        if arg in _TAKES_VALUE:
            i += 2
            continue
        if arg.startswith("-") and not arg.startswith("--") and "c" in arg[1:]:
            rest = [each for each in argv[i + 1 :] if not each.startswith("-")]
            return "", rest[0] if rest else None
        if arg == "--":
            i += 1
            break
        if not arg.startswith(("-", "+")):
            break
        if arg.startswith("-") and not arg.startswith("--") and "s" in arg[1:]:
            return "", None
        i += 1
    if i >= len(argv):
        return "", None
    name = argv[i]
    cwd = link_of("%s/%d/cwd" % (PROC, shell.pid)) or "/"
    path = os.path.normpath(os.path.join(cwd, name))
    for place in below_root(shell.pid, path):
        text = _file_text(place)
        if text is not None:
            return path, text
    # A shell keeps the script open while it runs it, usually as descriptor 255 or 10.
    for number in ("255", "10", "63", "11"):
        text = _file_text("%s/%d/fd/%s" % (PROC, shell.pid, number))
        if text is not None:
            return path, text
    return path, None


def _file_text(path: str) -> Optional[str]:
    """Return the text of a script; None where it cannot be read, or is no plain file.

    What is read from the pipe of `bash <(...)` or from a terminal would be missing in the shell that runs it.
    """
    status = stat_of(path)
    return text_of(path, TEXT_LIMIT) if status is not None and stat.S_ISREG(status.st_mode) else None


def launch_words(leader: Sequence[str]) -> List[str]:
    """Return the words by which the line of a script is known that starts a server: its module, or its program."""
    at = program_index(leader)
    word = os.path.basename(leader[at]) if at is not None else ""
    return [each for each in (word, word[:-3] if word.endswith(".py") else "") if each and each not in _RESERVED]


def find_loop(text: str, launch: Sequence[str]) -> Optional[Tuple[int, str, bool]]:
    """Return the first loop that starts a server: its line, its text, and whether its body names the server.

    A loop beside the line that starts the server is none (it waits for something), unless that line stands in a
    function, which the loop may call. Where no line names the server, any loop may be the one.
    """
    lines = _joined(text)
    again = next(((number, line) for number, line in lines if _AGAIN.search(line)), None)
    if again is not None:
        return again[0], again[1].strip(), True
    loops: List[Tuple[int, str]] = []
    open_loops: List[Tuple[int, str]] = []
    pending: List[Tuple[int, str]] = []
    named = functions = False
    for number, line in lines:
        functions = functions or bool(_FUNCTION.match(line))
        starts = any(re.search(r"(?<![\w.-])%s(?![\w-])" % re.escape(word), line) for word in launch)
        named = named or starts
        for _ in _LOOP.findall(line):
            pending.append((number, line.strip()))
            loops.append((number, line.strip()))
        opened = len(_OPENS.findall(line))
        open_loops += pending[:opened]
        del pending[:opened]
        if starts and open_loops:
            return open_loops[0][0], open_loops[0][1], True
        for _ in _CLOSES.finditer(line):
            if open_loops:
                open_loops.pop()
    if loops and (functions or not named):
        return loops[0][0], loops[0][1], False
    return None


def _joined(text: str) -> List[Tuple[int, str]]:
    """Return the lines of a script with their numbers: continued ones joined, comments and texts of `<<` left out."""
    out: List[Tuple[int, str]] = []
    held, first = "", 0
    ending = ""
    for number, line in enumerate(text.splitlines(), 1):
        if ending:
            if line.strip() == ending:
                ending = ""
            continue
        if not held:
            first = number
        if line.rstrip().endswith("\\") and not line.lstrip().startswith("#"):
            held += line.rstrip()[:-1] + " "
            continue
        whole, held = held + line, ""
        whole = re.sub(r"(?:^|(?<=\s))#.*$", "", whole)
        document = re.search(r"<<-?\s*['\"]?(\w+)['\"]?", whole)
        if document and "<<<" not in whole:
            ending = document.group(1)
        if whole.strip():
            out.append((first, whole))
    if held.strip():
        out.append((first, held))
    return out
