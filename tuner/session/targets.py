"""Parse the name of a host on the command line into a target."""

from __future__ import annotations

import re
from pathlib import Path

from tuner.domain.link import Target
from tuner.errors import UsageProblem

HOSTS = "HOST is user@host[:port], [IPv6]:port, a host alias of your ~/.ssh/config, or local"

_FORM = re.compile(
    r"(?:ssh://)?"
    r"(?:(?P<user>[^@\s:/\[\]]+)@)?"
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]"
    r"|(?P<six>[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f.]*(?:%[\w.-]+)?)"
    r"|(?P<plain>\w[\w.-]*))"
    r"(?::(?P<port>\d{1,5}))?/?",
    re.ASCII,
)


def parse(text: str) -> Target:
    """Return the target that `text` names.

    Names that look like an option, or that contain spaces, control characters or shell characters, are refused: in
    OpenSSH's configuration, perhaps in a ProxyCommand, they would be taken for something else than a host.

    Raises:
        UsageProblem: The text has none of the accepted forms.
    """
    if text == "local":
        return Target(name=text, scheme="local", host="local")
    form = _FORM.fullmatch(text)
    if form is None or (form["user"] or "").startswith("-"):
        raise UsageProblem("Not a host", repr(text), HOSTS)
    port = int(form["port"]) if form["port"] else None
    if port is not None and not 0 < port < 65_536:
        raise UsageProblem("Not a port", form["port"], "A port is between 1 and 65535")
    host = form["bracketed"] or form["six"] or form["plain"]
    return Target(name=text, scheme="ssh", host=host, user=form["user"], port=port)


def replay(path: Path, speed: float = 1.0) -> Target:
    """Return the target of a journal file; `speed` is relative to the original, 0: as fast as possible."""
    return Target(name=path.name, scheme="replay", host=str(path), options={"speed": repr(speed)})
