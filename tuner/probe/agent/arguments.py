"""Command lines and environments: reading values from them, and masking secrets in them."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence

MASK = "***"

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:PG)?(?:API_?KEYS?|KEY|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASS|(?<=_)PWD|CREDENTIALS?|AUTH)$", re.I
)
_SHORT_NUMBER = re.compile(r"\d{1,7}")
"""A short number, such as the value of MAX_TOKENS. Secrets made of digits are longer."""
_SECRET_FLAG = re.compile(r"^--(?:[\w-]+[-_])?(?:api[-_]key|auth[-_]token|hf[-_]token|token|password|secret)$")


def masked_env(env: Dict[str, str], names: Sequence[str] = ()) -> Dict[str, str]:
    """Return an environment with the values of secrets masked. Short numbers are not secrets: `MAX_TOKENS=8` stays."""
    return {
        name: MASK
        if value and (name in names or (_SECRET_NAME.search(name) and not _SHORT_NUMBER.fullmatch(value)))
        else value
        for name, value in env.items()
    }


def masked_argv(argv: Sequence[str], flags: Sequence[str] = ()) -> List[str]:
    """Return a command line with the values of secret flags masked."""
    out: List[str] = []
    hide = False
    for arg in argv:
        name, equals, _ = arg.partition("=")
        secret = name in flags or bool(_SECRET_FLAG.match(name))
        if hide and not arg.startswith("--"):
            out.append(MASK)  # several keys may follow one flag
            continue
        hide = secret and not equals
        out.append(name + "=" + MASK if secret and equals else arg)
    return out


def flag_value(argv: Sequence[str], flags: Sequence[str]) -> Optional[str]:
    """Return the value of the last of `flags` on a command line, given as `--flag value` or `--flag=value`."""
    value = None
    for i, arg in enumerate(argv):
        name, equals, rest = arg.partition("=")
        if name in flags:
            if equals:
                value = rest
            elif i + 1 < len(argv):
                value = argv[i + 1]
    return value
