"""A remedy in words: what to do, what of it can be typed, and where its value is safe."""

from __future__ import annotations

import shlex

from tuner.domain.findings import Move, Number, Remedy

_COMMANDS = frozenset({"dmesg", "nvidia-smi", "process", "py-spy"})
"""Subjects of advice whose value is a command to run; the value of others, as of `version`, is words."""


def as_typed(value: Number | str | bool | None) -> str:
    """Return a value as one types it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return "" if value is None else str(value)


def typed(remedy: Remedy) -> str:
    """Return what can be typed as it stands: a part of a command line, a variable, a command; empty if nothing can."""
    value = as_typed(remedy.value)
    if remedy.env or remedy.flag:
        value = shlex.quote(value) if value else ""
    if remedy.env:
        return f"unset {remedy.env}" if remedy.move is Move.UNSET else f"{remedy.env}={value}" if value else ""
    if not remedy.flag:
        return value if remedy.move is Move.OTHER and _is_command(remedy) else ""
    if remedy.move is Move.UNSET or (not value and remedy.move is not Move.SET):
        return ""
    return remedy.flag if isinstance(remedy.value, bool) or not value else f"{remedy.flag} {value}"


def order(remedy: Remedy) -> str:
    """Return what to do: `raise --mem-fraction-static to 0.88`, `set NCCL_P2P_LEVEL=SYS`, a command."""
    name = remedy.flag or remedy.env or remedy.knob.replace("_", " ").replace("-", " ")
    value = "" if isinstance(remedy.value, bool) else as_typed(remedy.value)
    if remedy.move in (Move.RAISE, Move.LOWER):
        return f"{remedy.move} {name}" + (f" to {value}" if value else "")
    if remedy.move is Move.SET:
        sign = "=" if remedy.env and not remedy.flag else " "
        return f"set {name}{sign}{value}" if value else f"set {name}"
    if remedy.move is Move.UNSET:
        return f"leave out {name}" if remedy.flag else f"unset {name}"
    if not remedy.flag and not remedy.env and _is_command(remedy):
        return value
    return f"{name} {value}".rstrip()


def safe(remedy: Remedy, *, mends: bool = False) -> str:
    """Return where the value is safe, in words; empty if that is unknown, or the value itself.

    Where requests of full length need more than a start does, it begins there.

    Args:
        remedy: The remedy.
        mends: Its ends are where it mends what is slow, not where a start fits.
    """
    low = remedy.min if remedy.serves is None else remedy.serves
    least, most = (None if end == remedy.value else end for end in (low, remedy.max))
    if low is not None and remedy.max is not None and (least is not None or most is not None):
        return f"{as_typed(low)} to {as_typed(remedy.max)} {'mends it' if mends else 'is safe'}"
    if least is not None:
        return f"at least {as_typed(least)}"
    return "" if most is None else f"at most {as_typed(most)}"


def _is_command(remedy: Remedy) -> bool:
    return isinstance(remedy.value, str) and remedy.knob in _COMMANDS
