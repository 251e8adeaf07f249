"""What an engine's HTTP answers mean, in one vocabulary for all engines."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class MemoryTerms(Struct, frozen=True, kw_only=True):
    """What the engine says its GPU memory is made of, for one rank. None: not told."""

    weights_bytes: int | None = None
    kv_bytes: int | None = None
    graphs_bytes: int | None = None
    activation_bytes: int | None = None
    context_bytes: int | None = None
    """CUDA context, NCCL communicators and all-reduce buffers."""


class Reading(Struct, frozen=True, kw_only=True):
    """One HTTP answer, read by its engine. Every field is None where the answer does not tell."""

    ready: bool | None = None
    version: str | None = None
    model: str | None = None
    settings: dict[str, Any] | None = None
    """Resolved server args, secrets masked."""
    metrics: dict[str, float] | None = None
    """Names of `core.metrics.NAMES`."""
    memory: dict[str, MemoryTerms] | None = None
    """By rank tag; the empty tag stands for every rank."""
    kv_tokens: int | None = None
    problem: str | None = None
    """One line for the screen when the answer is of no use: what, and what to do."""
