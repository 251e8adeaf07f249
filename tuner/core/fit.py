"""GPU memory arithmetic that holds for every engine: cells, tokens, CUDA graphs, NCCL buffers.

GiB are floats here, as logs print them; callers convert them to bytes. Nothing raises: an impossible number gives None
or 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from tuner.domain.starts import Start
from tuner.units import GIB, whole

ROUNDING_GIB = 0.005
"""GiB by which a printed size may be off: half of the last digit that engines print."""
PREFILL_GRAPH_GIB = 8 / 1024
"""GiB of one prefill graph beside the activations that all share: the 8 MiB that SGLang reserves for it."""
NARROW = 1e-3
"""Largest relative error at which a cell is taken as the roundest number of its interval."""

_MOST_TOKENS = float(1 << 50)
_ELEMENT_BYTES = (
    ("fp4", 0.5625), ("nvfp4", 0.5625), ("mxfp8", 1.03125), ("fp8", 1.0), ("float8", 1.0), ("int8", 1.0),
    ("float32", 4.0), ("bf16", 2.0), ("fp16", 2.0), ("float16", 2.0), ("bfloat16", 2.0), ("half", 2.0),
)  # fmt: skip
"""Bytes of one element by the beginning of a data type's name, with its share of the scales."""


def tokens_for(pool: float, cell_bytes: float | None, page: int = 1, cap: int | None = None) -> int:
    """Return how many tokens a pool of `pool` GiB holds: whole pages, at most `cap`; 0 without a pool."""
    if cell_bytes is None or not _positive(cell_bytes) or not math.isfinite(pool) or pool <= 0:
        return 0
    tokens = int(min(pool * GIB / cell_bytes, _MOST_TOKENS))
    if cap is not None and cap >= 0:
        tokens = min(tokens, cap)
    return tokens // max(page, 1) * max(page, 1)


def element_bytes(dtype: object) -> float | None:
    """Return the bytes of one element of a KV data type including its scales; None for `auto` and unknown types."""
    if not isinstance(dtype, str):
        return None
    text = dtype.lower().removeprefix("torch.")
    return next((size for word, size in _ELEMENT_BYTES if text.startswith(word)), None)


class Cell(Struct, frozen=True):
    """Bytes of one token of KV on one rank."""

    value: float
    error: float = 0.0
    """Relative error: the largest share of `value` by which it may be off."""


def printed_cell(size_gib: float, tokens: int, page: int = 1, parts: int = 1) -> Cell | None:
    """Return the cell that follows from a printed pool size and its tokens; None if either is not positive.

    The size is rounded, so there is an interval of cells. Cells are products of powers of two and few other numbers,
    so of a narrow interval the value with the greatest power of two is taken.

    Args:
        size_gib: Printed size, all parts added.
        tokens: Usable tokens; the buffer has one page more.
        page: Tokens per page.
        parts: Number of rounded sizes that were added: 2 for K and V.
    """
    slots = tokens + max(page, 1)
    if tokens <= 0 or not _positive(size_gib):
        return None
    half = ROUNDING_GIB * parts * GIB / slots
    middle = size_gib * GIB / slots
    error = half / middle
    if error > NARROW or half < 1:
        return Cell(middle, error)
    step = 1 << (2 * math.floor(half) + 1).bit_length()
    while step > 1:
        candidate = math.floor((middle + half) / step) * step
        if candidate >= middle - half:
            return Cell(float(candidate), abs(candidate - middle) / middle)
        step //= 2
    return Cell(middle, error)


def cell_bytes(start: Start) -> Cell | None:
    """Return the cell of a start, the most exact that a rank prints; None before the pool is allocated."""
    return min(rank_cells(start).values(), key=lambda cell: cell.error, default=None)


def rank_cells(start: Start) -> dict[int, Cell]:
    """Return the cell of each rank that prints its pool, by rank number."""
    page = whole(start.setting("page_size", "block_size")) or 1
    limit = start.limits.get("max_total_num_tokens")
    parts = 2 if any(f.kind == "kv-pool" and "V size" in f.text for f in start.facts) else 1
    return {
        rank.number: cell
        for rank in start.ranks
        # SGLang up to 0.4.4 prints the tokens at the end of the start, not in the line of the pool.
        if rank.kv_gib is not None and (tokens := rank.kv_tokens or limit) is not None
        if (cell := printed_cell(rank.kv_gib.value, int(tokens.value), page, parts)) is not None
    }


class Capture(Struct, frozen=True):
    """One measured set of CUDA graphs."""

    sizes: int
    """Number of batch sizes or token counts."""
    largest: int
    gib: float


class Estimate(Struct, frozen=True):
    """A value in GiB and how far off it may be."""

    gib: float
    error_gib: float
    note: str = ""
    measured: bool = False


def fit_captures(captures: Iterable[Capture], sizes: int, largest: int = 0) -> Estimate | None:
    """Estimate the memory of a set of CUDA graphs from sets that were captured before; None without any.

    A graph costs about the same whatever its batch, so memory grows with the number of graphs. One measured set gives
    a proportion; several give a line through the smallest and the largest. A set of as many graphs is the answer.
    The error is half of what is added; all of it for larger batches than any that was captured, whose graphs may cost
    more.

    Args:
        captures: Sets of the same kind of graph, LLM, TP size and engine.
        sizes: Number of graphs of the set that is asked for.
        largest: Its largest batch; 0: none that is larger than those of `captures`.
    """
    captures = list(captures)
    off = 1.0 if largest > max((each.largest for each in captures), default=largest) else 0.5
    known = sorted({(each.sizes, round(each.gib, 3)) for each in captures if each.sizes > 0 and each.gib >= 0})
    if sizes <= 0:
        return Estimate(0.0, 0.0, "no graphs", measured=True)
    if not known:
        return None
    same = [gib for count, gib in known if count == sizes]
    if same:
        value = max(same)
        return Estimate(value, max(0.02, value - min(same)), f"{sizes} graphs, as captured before", measured=True)
    low, high = known[0], known[-1]
    if low[0] == high[0]:
        worst = max(gib for _, gib in known)
        value = worst / high[0] * sizes
        note = f"{worst:.2f} GiB / {high[0]} graphs x {sizes}"
        return Estimate(value, max(0.1, abs(value - worst) * off), note)
    slope = max(0.0, (high[1] - low[1]) / (high[0] - low[0]))
    value = max(0.0, low[1] + slope * (sizes - low[0]))
    beyond = max(0, sizes - high[0], low[0] - sizes)
    note = f"{low[1]:.2f} GiB of {low[0]} graphs and {high[1]:.2f} of {high[0]}, for {sizes}"
    return Estimate(value, max(0.1, slope * beyond * off), note)


def fit_prefill(captures: Iterable[Capture], sizes: int, largest: int) -> Estimate | None:
    """Estimate the memory of a set of prefill graphs from sets that were captured before; None without any.

    All share the activations of the longest one, and each takes a little of its own: 8 MiB where the LLM has many
    layers, next to nothing where it has few. The larger of the two estimates counts.

    Args:
        captures: Sets of the same LLM, TP size and engine.
        sizes: Number of graphs of the set that is asked for.
        largest: Tokens of its longest graph.
    """
    if sizes <= 0 or largest <= 0:
        return Estimate(0.0, 0.0, "no prefill graphs", measured=True)
    known = [each for each in captures if each.sizes > 0 and each.largest > 0 and each.gib >= 0]
    same = [each.gib for each in known if (each.sizes, each.largest) == (sizes, largest)]
    if same:
        return Estimate(
            max(same), max(0.05, max(same) - min(same)), f"{sizes} graphs, as captured before", measured=True
        )
    if not known:
        return None
    near = min(known, key=lambda each: abs(math.log(each.largest / largest)))
    own = min(PREFILL_GRAPH_GIB * near.sizes, near.gib)
    many = PREFILL_GRAPH_GIB * sizes + (near.gib - own) * largest / near.largest
    few = near.gib * largest / near.largest
    note = f"{near.gib:.2f} GiB for {near.largest} tokens, for {largest}"
    return Estimate(max(many, few), 0.15 + abs(many - few), note)


def rounded_pool_error(total_gib: float, fraction: float) -> float:
    """Return GiB by which a pool computed from printed numbers may be off: A and T are each rounded."""
    return ROUNDING_GIB * (1.0 + max(0.0, 1.0 - fraction))


def nccl_gib(channels: int, buffer_bytes: int, connections: int = 1) -> float:
    """Return GiB of the buffers of one NCCL communicator on one GPU.

    Each channel and connection takes 0.5 MiB for LL, 4.6875 MiB for LL128 and the buffer for Simple, rounded up to
    2 MiB. A ring has one connection inside a host, ring and trees together about three.
    """
    each = math.ceil((0.5 + 4.6875 + max(buffer_bytes, 0) / (1 << 20)) / 2) * 2
    return max(channels, 0) * max(connections, 1) * each / 1024


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
