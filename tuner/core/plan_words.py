"""Words for the memory forecast of a start, shared by the command line and the screens."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.domain.forecast import Fit

VERDICTS = {
    Fit.FITS: "FITS",
    Fit.TOO_LOW: "DOES NOT FIT",
    Fit.TOO_HIGH: "DOES NOT FIT",
    Fit.NOWHERE: "DOES NOT FIT",
    Fit.UNKNOWN: "NOT KNOWN",
}
PURPOSES = {
    "weights": "weights",
    "draft_weights": "draft",
    "kv_pool": "KV pool",
    "draft_kv_pool": "draft KV",
    "mamba": "linear attn",
    "request_table": "requests",
    "other": "other",
    "graphs": "CUDA graphs",
    "context": "context",
    "activation": "activations",
    "free": "left",
}
"""Names of the rows of a forecast, in order; eleven letters at most, for the column."""
_BEFORE_POOL = ("weights", "draft_weights", "kv_pool")
_ALIKE_GIB = 0.1
"""GiB by which the sizes of ranks may differ that are shown as one."""


def happens(fit: Fit, what: str) -> bool:
    """Return whether a start gets as far as a purpose: nothing follows a pool that cannot be."""
    return fit not in (Fit.TOO_LOW, Fit.NOWHERE) or what in _BEFORE_POOL


def reason(
    fit: Fit, fraction: float | None, f_min: float | None, f_max: float | None, kv_tokens: int | None = None
) -> str:
    """Return why a start fits or does not, in words."""
    at = "" if fraction is None else f"{fraction:.4g}"
    low = "?" if f_min is None else f"{f_min:.4f}"
    high = "?" if f_max is None else f"{f_max:.3f}"
    match fit:
        case Fit.FITS:
            return f"at a fraction of {at}" + (f": {kv_tokens:,} tokens of KV" if kv_tokens else "")
        case Fit.TOO_LOW:
            return f"refused at {at}: the least fraction that leaves room for a KV pool is just above {low}"
        case Fit.TOO_HIGH:
            return f"{at} leaves too little beside the pool: graphs, activations and 1 GiB fit up to {high}"
        case Fit.NOWHERE if f_min is not None and f_min >= 1:
            return "no fraction works: the weights alone take more than is free"
        case Fit.NOWHERE:
            return (
                f"no fraction works: the pool needs more than {low}, and above {high} graphs and activations do not fit"
            )
        case Fit.UNKNOWN:
            return "the logs do not tell enough"


def alike(sizes: Mapping[int, Mapping[str, float | None]]) -> list[list[int]]:
    """Group the ranks whose sizes differ by at most `_ALIKE_GIB` in every purpose.

    Args:
        sizes: GiB by rank and purpose; None: not known.
    """
    groups: list[list[int]] = []
    for rank, mine in sizes.items():
        for group in groups:
            first = sizes[group[0]]
            if first.keys() == mine.keys() and all(_near(first[what], mine[what]) for what in mine):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _ALIKE_GIB
