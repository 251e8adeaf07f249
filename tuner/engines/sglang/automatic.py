"""The memory fraction of a start to come, derived from a known start: given, kept or chosen by SGLang itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.domain.starts import Start
from tuner.engines.sglang import memory
from tuner.engines.sglang.defaults import AutoInputs, auto_fraction, card_of
from tuner.engines.sglang.shape import Shape
from tuner.units import real

_SAME = 0.0006
"""Largest difference from the automatic fraction at which a fraction counts as chosen by SGLang itself."""
_VISION = (0.7, 1.0)
"""Range of the factor that SGLang applies to the fraction for a multimodal LLM."""


def card_mib(start: Start) -> tuple[float | None, bool]:
    """Return the memory of the smallest GPU in MiB (`memory.total`), and whether it is certain.

    It is what the log states, else inferred from the free memory and what the communicators took; None if unknown.
    """
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
    """Return the fraction that SGLang chooses for a shape, before any factor for a multimodal LLM."""
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
    """Return the effective fraction of a start to come, None if unknown, and notes about it for the operator.

    Args:
        base: The start that the forecast is made from.
        old: Shape of `base`.
        new: Shape of the start to come.
        changes: New value by canonical knob name.
    """
    effective = memory.effective_fraction(base)
    gpu_mib, sure = card_mib(base)
    said = None if effective is None else effective.said
    factor = effective.value / said if effective is not None and said else 1.0
    factor = factor if abs(factor - 1) > 0.01 else 1.0
    notes: list[str] = []
    if memory.hidden_factor(base)[0] != 1.0 and changes.get("attention_backend") not in (None, "aiter"):
        factor = 1.0  # only aiter has the hidden factor, and the new start uses another backend
    if factor != 1.0 and effective is not None:
        notes.append(f"fractions here are those in effect; what is given counts {factor:.2f} times: {effective.how}")
    if "mem_fraction_static" not in changes:
        if effective is not None and said is not None and gpu_mib is not None:
            before, after = chosen(old, gpu_mib), chosen(new, gpu_mib)
            if abs(before - said) < _SAME and abs(after - before) >= _SAME:
                notes.append(f"{said:g} is what SGLang chooses by itself; if none is given, it takes {after:g} now")
        return (None if effective is None else effective.value), notes
    given = real(changes["mem_fraction_static"])
    if given is not None:
        return given * factor, notes
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
    """Return the factor that a start's fraction got for a multimodal LLM; 1.0 if it got none.

    A fraction of at most three decimals counts as given by hand, since products with the factor have more.
    """
    least, most = _VISION
    by_hand = abs(said * 1000 - round(said * 1000)) < 1e-6
    factor = said / automatic if automatic > 0 else 1.0
    return factor if not by_hand and least < factor < most else 1.0
