"""The fraction that a start gets when none is given, seen against one that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.domain.starts import Start
from tuner.engines.sglang import memory
from tuner.engines.sglang.defaults import AutoInputs, auto_fraction, card_of
from tuner.engines.sglang.shape import Shape

_SAME = 0.0006
"""A fraction that differs from the automatic one by less was chosen by SGLang itself."""
_VISION = (0.7, 1.0)
"""Factors that a multimodal model may get."""


def card_mib(start: Start) -> tuple[float | None, bool]:
    """memory.total of the smallest card, and whether it is sure: as told, else by what was free and who took it."""
    told = [rank.total_gib.value for rank in start.ranks if rank.total_gib is not None]
    if told:
        return min(told) * 1024, True
    free = [
        rank.before_weights.value + (0.0 if rank.communicators_gib is None else rank.communicators_gib.value)
        for rank in start.ranks
        if rank.before_weights is not None
    ]
    return card_of(max(free) * 1024) if free else (None, False)


def chosen(shape: Shape, gpu_mib: float) -> float:
    """What SGLang chooses for a shape, before any factor for a multimodal model."""
    return auto_fraction(
        shape.version,
        AutoInputs(
            gpu_mib=gpu_mib,
            tp=shape.tp,
            pp=shape.pp,
            dp=shape.dp,
            dp_attention=shape.dp_attention,
            chunk=shape.chunk,
            max_prefill_tokens=shape.max_prefill,
            graph_bs=max(shape.decode_sizes, default=0),
            prefill_sizes=len(shape.prefill_sizes) if shape.prefill_graphs else 0,
            mla=shape.latent,
            speculative=shape.speculative,
        ),
    )


def new_fraction(base: Start, old: Shape, new: Shape, changes: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """The effective fraction of a start to come, and what is to be said about it.

    Args:
        base: The start it is made from.
        old: Its shape.
        new: The shape of the start to come.
        changes: Canonical name to value.
    """
    effective = memory.effective_fraction(base)
    gpu_mib, sure = card_mib(base)
    said = None if effective is None else effective.said
    factor = effective.value / said if effective is not None and said else 1.0
    factor = factor if abs(factor - 1) > 0.01 else 1.0
    notes: list[str] = []
    if memory.hidden_factor(base)[0] != 1.0 and changes.get("attention_backend") not in (None, "aiter"):
        factor = 1.0  # it goes with the backend
    if factor != 1.0 and effective is not None:
        notes.append(f"fractions here are those in effect; what is given counts {factor:.2f} times: {effective.how}")
    if "mem_fraction_static" not in changes:
        if effective is not None and said is not None and gpu_mib is not None:
            before, after = chosen(old, gpu_mib), chosen(new, gpu_mib)
            if abs(before - said) < _SAME and abs(after - before) >= _SAME:
                notes.append(f"{said:g} is what SGLang chooses by itself; if none is given, it takes {after:g} now")
        return (None if effective is None else effective.value), notes
    given = changes["mem_fraction_static"]
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given) * factor, notes
    if gpu_mib is None:
        return None, [*notes, "which fraction SGLang chooses depends on the card's memory, which no line tells"]
    value = chosen(new, gpu_mib)
    if not sure:
        notes.append(f"the card's memory is taken to be {gpu_mib:.0f} MiB; the fraction SGLang chooses follows from it")
    if said is not None and (vision := _vision(said, chosen(old, gpu_mib))) != 1.0:
        value *= vision
        notes.append(f"the fraction SGLang chooses is multiplied by {vision:.4f} for a multimodal model, as before")
    return value * factor, notes


def _vision(said: float, automatic: float) -> float:
    """The factor of a multimodal model: its product has more digits than anybody gives by hand."""
    least, most = _VISION
    by_hand = abs(said * 1000 - round(said * 1000)) < 1e-6
    factor = said / automatic if automatic > 0 else 1.0
    return factor if not by_hand and least < factor < most else 1.0
