"""Arguments of the command line as values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import UsageProblem

if TYPE_CHECKING:
    from tuner.domain.link import Target


def parse(text: str) -> Target:
    """The target that `text` names; the scheme `demo` stands for a simulated host that is still to be found or started.

    Raises:
        UsageProblem: it names none.
    """
    from tuner.domain.link import Target
    from tuner.session import targets

    return Target(name=text, scheme="demo", host=text) if text == "demo" else targets.parse(text)


def seconds(text: str) -> float:
    """`90`, `90s`, `1.5m`, `2h` as seconds.

    Raises:
        UsageProblem: it is no duration, or none longer than zero.
    """
    form = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    value = 0.0 if form is None else float(form[1]) * {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600}[form[2]]
    if value <= 0:
        raise UsageProblem("Not a duration", repr(text), "Write 90s, 1.5m or 2h.")
    return value


def complete_hosts(start: str) -> list[str]:
    """Names that HOST may have and that begin with `start`: for the shell's completion."""
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
