"""Parsers of command-line arguments, and the completion of host names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import UsageProblem

if TYPE_CHECKING:
    from tuner.domain.link import Target


def parse(text: str) -> Target:
    """Return the target that `text` names. `demo` gets a scheme of its own: its host is found or started later.

    Raises:
        UsageProblem: The text names no target.
    """
    from tuner.domain.link import Target
    from tuner.session import targets

    return Target(name=text, scheme="demo", host=text) if text == "demo" else targets.parse(text)


def seconds(text: str) -> float:
    """Parse a duration like `90`, `90s`, `1.5m` or `2h` into seconds.

    Raises:
        UsageProblem: The text is no duration, or not longer than zero.
    """
    form = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    value = 0.0 if form is None else float(form[1]) * {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}[form[2]]
    if value <= 0:
        raise UsageProblem("Not a duration", repr(text), "Write 90s, 1.5m or 2h.")
    return value


def drain_seconds(text: str) -> float:
    """Parse how long the requests in flight are waited for, into seconds.

    Raises:
        UsageProblem: The text is no duration, or longer than any stop waits.
    """
    from tuner.domain.runs import MOST_DRAIN_S
    from tuner.units import format_duration

    value = seconds(text)
    if value > MOST_DRAIN_S:
        most = format_duration(MOST_DRAIN_S)
        raise UsageProblem("Too long", repr(text), f"A stop waits at most {most}: what is not done by then is cut.")
    return value


def complete_hosts(start: str) -> list[str]:
    """Return the host names that begin with `start`, for the shell's completion."""
    names = ["local", "demo"]
    try:
        config = (Path.home() / ".ssh/config").read_text(errors="replace")
    except OSError:
        config = ""
    for line in config.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.lower() == "host":
            names += [name for name in rest.split() if not set(name) & set("*?!")]
    user, at, prefix = start.rpartition("@")
    return [user + at + name for name in dict.fromkeys(names) if name.startswith(prefix)]
