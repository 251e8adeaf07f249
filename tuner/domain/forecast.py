"""The memory of a start that has not happened yet."""

from __future__ import annotations

import enum

from msgspec import Struct


class Source(enum.StrEnum):
    """Where a number of a forecast comes from."""

    MEASURED = "measured"
    """A start of this host printed it."""
    FORMULA = "formula"
    """The engine computes it so."""
    ESTIMATE = "estimate"
    """Fitted or assumed; `ForecastRow.error_bytes` says how far off it may be."""


class Fit(enum.StrEnum):
    """Whether a start will fit."""

    FITS = "fits"
    TOO_LOW = "too-low"
    """The fraction is at or below the minimum: no KV pool."""
    TOO_HIGH = "too-high"
    """What is left beside the static share is too little for graphs and activations."""
    NOWHERE = "nowhere"
    """No fraction works."""
    UNKNOWN = "unknown"
    """A number that is needed is not known."""


class Effective(Struct, frozen=True, kw_only=True):
    """The fraction that a start really ran with, or would have run with."""

    value: float
    error: float = 0.0
    """Largest amount by which `value` may be off."""
    said: float | None = None
    """The fraction that its arguments or its error text state; None if they do not."""
    how: str = ""
    """How it was found, in words: `its arguments`, `1 - (21.71 - 10.42) / 94.04, from the KV pool`."""
    at: int | None = None
    """Place of the line that says it."""
    multiplied_by: str = ""
    """The setting that makes the engine multiply the stated fraction; empty if none does."""


class ForecastRow(Struct, frozen=True, kw_only=True):
    """One purpose of one rank's memory."""

    rank: int
    what: str
    """Purpose: a key of `core.plan_words.PURPOSES`, such as `weights`, `kv_pool`, `graphs` or `free`."""
    size_bytes: int | None
    tokens: int | None = None
    """Tokens of a KV pool; None for other purposes."""
    source: Source = Source.MEASURED
    error_bytes: int | None = None
    note: str = ""
    """How it was found, with the numbers: `21.71 - 94.03 x (1 - 0.88)`."""


class Forecast(Struct, frozen=True, kw_only=True):
    """The memory that a start would take, per rank, and the interval in which its fraction is safe."""

    fit: Fit
    rows: tuple[ForecastRow, ...] = ()
    fraction: float | None = None
    """The effective fraction of the start."""
    f_min: float | None = None
    """1 - A/T, to four digits: at or below it there is no pool."""
    f_max: float | None = None
    """Largest safe fraction: leaves graphs, the largest activation need, their errors and 1 GiB. At or below `f_min`:
    no fraction works. None: not known, or a cap on the tokens and not the fraction bounds the pool."""
    sure: bool = False
    """Whether the start fits even if every error of the rows comes true; False unless `fit` is `FITS`."""
    estimated: bool = False
    """Whether no start has shown graphs or passes of the LLM, so that `f_max` rests on estimates alone."""
    kv_tokens: int | None = None
    """KV tokens of the server's weakest rank."""
    context: int | None = None
    """Tokens of the longest request; None if unknown."""
    f_whole: float | None = None
    """Least fraction whose pool holds one request of `context` tokens, rounded up to three digits; None if unknown or
    above 1."""
    warnings: tuple[str, ...] = ()
    """Warnings in words: `less than 4 GiB are left: SGLang switches prefill graphs off`, ..."""
    changed: dict[str, tuple[object, object]] = {}
    """Knobs that differ from the start that was changed: old and new value by canonical name."""
    unknown: tuple[str, ...] = ()
    """Numbers that are missing, in words, with what would tell them."""
