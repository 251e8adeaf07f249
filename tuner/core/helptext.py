"""The flags that an installed engine has, from its own help, and what its parser would say of a command line.

Engines parse their arguments with Python's argparse: a flag may be shortened to any beginning that only one flag has,
and a beginning that several have ends the start, with exit code 2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from tuner.core.engine import Engine

_OPTION = re.compile(r" {2}(-\S.*)")
"""A line that names a flag: indented by two; text about flags, examples and the usage are indented by more."""
_COLUMN = re.compile(r" {2,}")
_FLAG = re.compile(r"(?:^|, )(--?)(\[no-\])?([A-Za-z0-9][\w.-]*)")
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a negative number, and so for a value."""
_NEAR = 3
"""Most flags that are named in place of an unknown one."""


def parse_help(text: str) -> frozenset[str]:
    """Return all flags in the help of an engine, with leading dashes; empty if it is no help of argparse."""
    found: set[str] = set()
    for line in text.splitlines():
        option = _OPTION.fullmatch(line)
        if option is None:
            continue
        for dashes, negation, name in _FLAG.findall(_COLUMN.split(option[1])[0]):
            found.add(dashes + name)
            if negation:
                found.add(f"{dashes}no-{name}")
    return frozenset(found)


def flag_problems(args: Sequence[str], known: frozenset[str], engine: Engine) -> tuple[str, ...]:
    """Return why an engine's parser would refuse arguments, one line for each flag; empty if it takes all.

    Args:
        args: The arguments, without the command.
        known: Flags of the installed version.
        engine: The engine, which says how its parser differs from argparse.
    """
    return tuple(_problems(args, known, engine))


def _problems(args: Sequence[str], known: frozenset[str], engine: Engine) -> Iterator[str]:
    rules = engine.behaviour().flags
    known = known | frozenset(rules.further)
    for word in dict.fromkeys(args):
        flag = word.partition("=")[0]
        if not word.startswith("-") or len(word) < 2 or _NEGATIVE.fullmatch(word) or " " in flag:
            continue
        if rules.underscores and flag.startswith("--"):
            flag = flag.replace("_", "-")
        if rules.dotted:
            flag = flag.partition(".")[0]
        if flag in known or flag == "--":
            continue
        if not flag.startswith("--") and flag[:2] in known:
            # The value may follow a flag of one letter immediately: `-O3`.
            continue
        candidates = sorted(each for each in known if each.startswith(flag))
        if len(candidates) == 1:
            continue  # the parser takes it for that one
        if candidates:
            yield f"{flag} is ambiguous in this version: it could be {_listed(candidates)}"
        else:
            near = difflib.get_close_matches(flag.replace("_", "-"), known, _NEAR)
            yield f"this version has no {flag}" + (f"; it has {_listed(near)}" if near else "")


def _listed(flags: Sequence[str]) -> str:
    more = f" and {len(flags) - _NEAR} more" if len(flags) > _NEAR else ""
    return ", ".join(flags[:_NEAR]) + more
