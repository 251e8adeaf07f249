"""Estimate how T (free memory before the weights) changes with communicators and all-reduce buffers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.core.fit import nccl_gib
from tuner.core.forecast import Row
from tuner.core.versions import since
from tuner.domain.forecast import Source
from tuner.domain.starts import Start
from tuner.engines.sglang import memory
from tuner.engines.sglang.graphs import same_links, same_model
from tuner.engines.sglang.shape import Shape, shape_of

_COMMUNICATORS = 2
"""Number of NCCL communicators whose buffers are connected when T is read: the world's and the TP group's."""
_TOLD_GIB = 0.05
"""GiB below which the printed size of the communicators is no measurement: 0.5.21 and later measure an empty region."""
_FIXED_GIB = 0.40
"""Memory of distributed initialisation with several ranks without its buffers, GiB: 0.32 to 0.44 on two hosts."""
_ALONE_GIB = 0.09
"""Memory of distributed initialisation with one rank, GiB, measured on two H200 hosts."""
_FIRST_GIB = 24 / 1024
"""Buffers of the first implementation of custom all-reduce, GiB: two of 8 MiB and 8 MiB of rank data."""
_SECOND_GIB = 0.10
"""Buffers of the second implementation (0.5.12 and later), GiB, measured on two H200 (0.5.16)."""
_OF_TOLD = 1.2
"""Memory that custom all-reduce takes divided by what it prints: 82 MiB are 0.08 GiB, and two starts on two H200 with
and without it, all else alike, have 138.18 and 138.28 GiB free before the weights: 0.10 +- 0.01."""
_CONFIG = re.compile(r"All Reduce config: symmetric_memory = ([\d.]+) MB, local_buffer = ([\d.]+) MB")


def shift(base: Start, past: Sequence[Start], old: Shape, new: Shape, total: float) -> Row:
    """Return the change of T, GiB; negative if less memory is free.

    Args:
        base: The start that the forecast is made from.
        past: Other starts; one with the links of the start to come gives its measured T.
        old: Shape of `base`.
        new: Shape of the start to come.
        total: T of `base`, GiB.
    """
    if same_links(old, new) and (old.world > 1) == (new.world > 1):
        return Row(0.0)
    for start in past:
        before = memory.before_weights(start)
        if before is not None and same_model(base, start):
            shape = shape_of(start, None)
            if same_links(shape, new) and shape.world == new.world:
                return Row(before - total, Source.MEASURED, 0.02, f"{before:.2f} GiB free before the weights then")
    symmetric = old.symmetric_gib - new.symmetric_gib
    if (old.world > 1) != (new.world > 1):
        several = new if new.world > 1 else old
        taken = _FIXED_GIB - _ALONE_GIB + _all_reduce(base, several) + _buffers(several)
        note = "communicators and all-reduce buffers of several ranks"
        return Row(symmetric + (taken if old.world > 1 else -taken), Source.ESTIMATE, 0.4, note)
    if old.world == 1:
        return Row(symmetric, Source.ESTIMATE, 0.05, "symmetric memory")
    gained = symmetric + _all_reduce(base, old) - _all_reduce(base, new)
    less, error = _fewer(base, old, new)
    moved = (old.channels, old.buffer_bytes) != (new.channels, new.buffer_bytes)
    note = f"NCCL {old.channels} x {old.buffer_bytes >> 10} KiB -> {new.channels} x {new.buffer_bytes >> 10} KiB"
    return Row(gained + less, Source.ESTIMATE, 0.05 + error, note if moved else "other all-reduce buffers")


def _all_reduce(base: Start, shape: Shape) -> float:
    """Return the buffers of custom all-reduce on each GPU, GiB: by the log, else as the version allocates them."""
    if not shape.custom_all_reduce or shape.tp < 2:
        return 0.0
    for line in base.lines:
        if "All Reduce config" in line.text and (found := _CONFIG.search(line.text)) is not None:
            return (float(found[1]) + float(found[2])) / 1024 * _OF_TOLD
    return _SECOND_GIB if since(shape.version, "0.5.12") else _FIRST_GIB


def _buffers(shape: Shape) -> float:
    return _COMMUNICATORS * nccl_gib(shape.channels, shape.buffer_bytes)


def _fewer(base: Start, old: Shape, new: Shape) -> tuple[float, float]:
    """Return the GiB by which NCCL's buffers shrink (negative: grow), and the error.

    If they shrink, the measured size of the communicators is scaled. If they grow, or if it was not measured, the
    computed size of the buffers counts, since a start with few buffers does not show what more of them take.
    """
    before, after = _buffers(old), _buffers(new)
    if before <= 0 or before == after:
        return 0.0, 0.0
    told = [rank.communicators_gib.value for rank in base.ranks if rank.communicators_gib is not None]
    if not told or max(told) < _TOLD_GIB or after > before:
        return before - after, abs(before - after)
    gained = max(0.0, max(told) - _all_reduce(base, old) - _FIXED_GIB) * (1 - after / before)
    return gained, max(0.1, abs(gained) / 4)
