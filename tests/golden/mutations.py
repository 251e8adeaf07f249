"""Ways in which a log differs from the one it was: what collectors, terminals, crashes and other servers do to it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Lines = list[str]
Mutation = Callable[[Lines, random.Random], Lines]

_RANK = re.compile(r"\bTP(\d+)\b")
_STAMP = re.compile(r"^\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?( [^\]]*)?\] ")


def reordered(lines: Lines, chance: random.Random) -> Lines:
    """Neighbouring records of different ranks change places, as no lock orders them."""
    out = list(lines)
    for index in range(len(out) - 1):
        a, b = _STAMP.match(out[index]), _STAMP.match(out[index + 1])
        whole = "Traceback" not in out[index] + out[index + 1]
        if a and b and whole and a[1] and b[1] and a[1] != b[1] and chance.random() < 0.5:
            out[index], out[index + 1] = out[index + 1], out[index]
    return out


def thinned(lines: Lines, chance: random.Random) -> Lines:
    """One line in ten is missing."""
    return [line for line in lines if chance.random() > 0.1]


def without_head(lines: Lines, chance: random.Random) -> Lines:
    """The log was rotated, and its beginning is gone."""
    return lines[chance.randrange(len(lines) // 2) :]


def without_tail(lines: Lines, chance: random.Random) -> Lines:
    """It was copied while it was written."""
    return lines[: max(1, len(lines) - chance.randrange(1, 1 + len(lines) // 2))]


def without_stamps(lines: Lines, chance: random.Random) -> Lines:
    """Somebody cut the time off; the rank stays."""
    return [_STAMP.sub(lambda found: f"[{(found[1] or '').strip()}] " if found[1] else "", line) for line in lines]


def torn(lines: Lines, chance: random.Random) -> Lines:
    """Two processes wrote at once: a line goes on behind another."""
    out: Lines = []
    for line in lines:
        if out and chance.random() < 0.03:
            out[-1] += line
        else:
            out.append(line)
    return out


def doubled(lines: Lines, chance: random.Random) -> Lines:
    """A collector delivered some lines twice."""
    return [copy for line in lines for copy in ([line, line] if chance.random() < 0.05 else [line])]


def noisy(lines: Lines, chance: random.Random) -> Lines:
    """Other programs print in between."""
    noise = (
        "",
        "some library: starting up",
        "DEBUG:urllib3.connectionpool:Starting new HTTPS connection (1)",
        "\x1b[32mok\x1b[0m",
    )
    return [piece for line in lines for piece in ((line, chance.choice(noise)) if chance.random() < 0.1 else (line,))]


def renumbered(lines: Lines, chance: random.Random) -> Lines:
    """Ranks are others: TP0 and TP1 have changed places."""
    swap = {"0": "1", "1": "0"}
    if not any("TP1" in line for line in lines):
        return list(lines)
    return [_RANK.sub(lambda found: "TP" + swap.get(found[1], found[1]), line) for line in lines]


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        reordered, thinned, without_head, without_tail, without_stamps, torn, doubled, noisy, renumbered,
    )
}  # fmt: skip
