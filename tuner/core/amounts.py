"""Numbers as people type them, by what they count: `8k` tokens, `16MiB`, `90s`, `88%`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"([+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_COUNTS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_TIMES = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_MEMORY = {"bytes": 1, "KiB": 1 << 10, "GiB": 1 << 30, "GB": 10**9}
"""Bytes in one of what a knob of memory counts."""
_LARGEST = 1 << 50
"""Largest value that is accepted: a pebibyte, more than any setting counts."""


def whole(text: str, unit: str) -> int:
    """Parse a whole number: `512`, `4_096`, `16,384`, and as `unit` allows `8k`, `16MiB`, `1.5m`.

    Args:
        text: What was typed.
        unit: What the number counts: `bytes`, `KiB`, `GiB`, `GB` (decimal), `seconds`; anything else, `tokens` or
            nothing, counts things, of which `k` and `m` are 1024 and 1024 times 1024.

    Raises:
        ValueError: It is no such number; the message says in one line what is meant.
    """
    value = _parsed(text, unit)
    if value is None or not value.is_integer():
        raise ValueError(f"a whole number{_of(unit)} is meant, not {text.strip()!r}")
    if abs(value) > _LARGEST:
        raise ValueError(f"{text.strip()} is more than any server counts")
    return int(value)


def real(text: str, unit: str) -> float:
    """Parse a number: `0.88`, `1e-3`, and as `unit` allows `88%`, `4GiB`, `1.5m`.

    Args:
        text: What was typed.
        unit: As in `whole`; only a number without unit is a share and can be a percentage.

    Raises:
        ValueError: It is no such number; the message says in one line what is meant.
    """
    word = text.strip()
    share = not unit and word.endswith("%")
    try:
        value = float(word.removesuffix("%") if share else word) / (100 if share else 1)
    except ValueError:
        measured = _parsed(word, unit) if unit in _MEMORY or unit == "seconds" else None
        value = math.nan if measured is None else measured
    if not math.isfinite(value):
        raise ValueError(f"a number{_of(unit)} is meant, not {word!r}")
    return value


def _parsed(text: str, unit: str) -> float | None:
    """Return a number in `unit`; None if it is none, or has a suffix that does not go with it."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    suffix = found[2].lower()
    if unit in _MEMORY:
        factor = _in_bytes(suffix, unit) / _MEMORY[unit] if suffix else 1
    else:
        factors: Mapping[str, int] = _TIMES if unit == "seconds" else _COUNTS
        factor = factors.get(suffix, 0)
    return float(found[1].replace("_", "").replace(",", "")) * factor if factor else None


def _in_bytes(suffix: str, unit: str) -> int:
    """Return the bytes of a suffix of memory in lower case; 0 if it is none.

    `MB` is binary, as engines mean it, but for a knob that counts decimal gigabytes.
    """
    if suffix in ("b", "bytes"):
        return 1
    form = re.fullmatch("([kmgt])(i?b?)", suffix)
    if form is None:
        return 0
    decimal = unit == "GB" and form[2] == "b"
    return int((1000 if decimal else 1024) ** ("kmgt".index(form[1]) + 1))


def _of(unit: str) -> str:
    return f" of {unit}" if unit else ""
