"""What HOST means on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import UsageProblem

if TYPE_CHECKING:
    from tuner.domain.link import Target

HOSTS = "HOST is user@host[:port], a host alias of your ~/.ssh/config, local, or demo."

_FORM = re.compile(
    r"(?:ssh://)?"
    r"(?:(?P<user>[^@\s:/]+)@)?"
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<plain>[A-Za-z0-9_][\w.-]*)|(?P<bare>[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*))"
    r"(?::(?P<port>\d{1,5}))?"
    r"/?"
)


def parse(text: str) -> Target:
    """The target that `text` names.

    Raises:
        UsageProblem: it has none of the accepted forms. Text with spaces, control characters or a leading dash is
            refused, for it would reach ssh's own configuration as something else than a host.
    """
    from tuner.domain.link import Target

    if text == "local":
        return Target(name="local", scheme="local", host="local")
    form = _FORM.fullmatch(text)
    if form is None:
        raise UsageProblem("Not a host", repr(text), HOSTS)
    port = int(form["port"]) if form["port"] else None
    if port is not None and not 0 < port < 65_536:
        raise UsageProblem("Not a port", form["port"], "A port is between 1 and 65535.")
    host = form["bracketed"] or form["plain"] or form["bare"]
    return Target(name=text, scheme="ssh", host=host, user=form["user"], port=port)


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
