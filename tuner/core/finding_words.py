"""Words for findings, shared by the command line and the screens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.domain.findings import Confidence, Number
from tuner.units import format_small

RANKS_NAMED = 4
"""Most ranks that are named one by one; of more, the rest are counted."""
_SIZES = ("GB", "GiB", "MB", "MiB")
_COUNTED = ("blocks", "ranks", "requests", "tokens")


def sureness(confidence: Confidence) -> str:
    """Return a confidence in words."""
    return f"{confidence} confidence"


def everyone(count: int) -> str:
    """Return the words for all ranks of a start."""
    return "both ranks" if count == 2 else f"all {count} ranks"


def ranks_text(ranks: Sequence[int] | None, tags: Mapping[int, str]) -> str:
    """Return `all 8 ranks` or the tags of some; empty if a finding is about no rank, or there is only one."""
    if not ranks or len(tags) == 1:
        return ""
    if len(set(ranks)) == len(tags):
        return everyone(len(tags))
    named = ", ".join(tags.get(rank, f"rank {rank}") for rank in ranks[:RANKS_NAMED])
    return named + (f" and {len(ranks) - RANKS_NAMED} more" if len(ranks) > RANKS_NAMED else "")


def value_text(value: Number | str | bool | None, unit: str = "", *, cut: bool = False) -> str:
    """Return a value as text: sizes with two decimals, counts with thousands separators; an ellipsis if it is cut."""
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int):
        text = f"{value:,}" if unit else str(value)
    elif isinstance(value, float) and unit == "GiB" and 0 < abs(value) < 0.005:
        return format_small(value)
    elif isinstance(value, float):
        text = f"{value:,.2f}" if unit in _SIZES else f"{value:,.4f}".rstrip("0").rstrip(".")
    else:
        text = f"{value} …" if cut else value
    if value == 1 and unit in _COUNTED:
        unit = unit.removesuffix("s")
    return f"{text} {unit}".rstrip()
