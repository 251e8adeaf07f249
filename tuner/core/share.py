"""The arithmetic of the static share: what a fraction leaves for the KV pool, and which fraction was in effect.

SGLang sizes its pool as `after - before x (1 - fraction)`, both the least free memory of any rank: before the weights,
and when the pool is sized. vLLM sizes it as `total x utilisation - what everything else takes`. Both are a straight
line in the fraction, `pool = slope x fraction - rest`, and that is all that is needed to judge one.

The line, its bounds and how a fraction is rounded are here and nowhere else; what a pool holds is in `core.fit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from tuner.domain.starts import Figure, RankStory, Start
from tuner.units import real

OF_FREE, OF_CARD = "mem_fraction_static", "gpu_memory_utilization"
KNOBS = (OF_FREE, OF_CARD)
"""Canonical names of the two kinds of fraction: of the memory free before the weights, and of the whole card."""
SAME = 0.002
"""Fractions that differ by no more are the same: a log prints sizes with two decimals."""
ON_CPU = "on a CPU the fraction is a share of the host's memory, which other processes use too"
"""Why nothing is told of a fraction there."""


class Share(Struct, frozen=True, kw_only=True):
    """What a start's log tells of its static share. Sizes are GiB of the weakest rank."""

    knob: str
    slope: float
    """GiB by which the pool grows when the fraction grows by 1: free before the weights, or the whole card."""
    rest: float
    """GiB that the pool lacks at a fraction of 0."""
    formula: str
    """The formula with its numbers, and `{f}` for the fraction."""
    after: Figure | None = None
    """Free when the pool is sized (A), if the log tells it."""
    before: Figure | None = None
    """Free before the weights (T); for vLLM the whole card."""

    def pool(self, fraction: float) -> float:
        """Return GiB of the pool at a fraction; negative: what is lacking."""
        return self.slope * fraction - self.rest

    @property
    def of_free(self) -> bool:
        """Whether the fraction is one of the memory that is free before the weights, and not one of the whole card."""
        return self.knob == OF_FREE

    @property
    def f_min(self) -> float:
        """Fraction at or below which there is no pool."""
        return self.rest / self.slope

    def fraction(self, pool: float) -> float:
        """Return the fraction that gives a pool of so many GiB."""
        return (pool + self.rest) / self.slope

    def shortest(self, pool: float) -> float:
        """Return that fraction as somebody would type it: the fewest digits that the log's two decimals allow."""
        return shortest(self.fraction(pool), 0.02 / self.slope)

    def told(self, fraction: float) -> str:
        """Return the arithmetic in one line: `21.70 - 94.04 x (1 - 0.55) = -20.62 GiB`."""
        return f"{self.formula.format(f=f'{fraction:g}')} = {self.pool(fraction):.2f} GiB"


def line_of(before: float, after: float) -> Share:
    """Return SGLang's pool formula for T (`before`) and A (`after`) in GiB; T > 0."""
    formula = f"{after:.2f} - {before:.2f} x (1 - {{f}})"
    return Share(knob=OF_FREE, slope=before, rest=before - after, formula=formula)


def on_cpu(start: Start) -> bool:
    """Return whether the server runs on a CPU, by its arguments or its build: no GPU's memory is shared out then.

    vLLM prints `device_config=cpu`, and its CPU build has a version such as `0.11.0+cpu`.
    """
    build = (start.version or "").partition("+")[2].split(".")
    return "cpu" in (start.setting("device"), start.setting("device_config"), *build)


def up(fraction: float, digits: int = 3) -> float:
    """Round a fraction up, as a lower bound is shown to people."""
    scale = 10.0**digits
    return math.ceil(round(fraction * scale, 6)) / scale


def down(fraction: float, digits: int = 3) -> float:
    """Round a fraction down, as an upper bound is shown to people."""
    scale = 10.0**digits
    return math.floor(round(fraction * scale, 6)) / scale


def share_of(start: Start) -> Share | None:
    """Return the static share of a start; None if its log does not tell enough."""
    before = least(start.ranks, lambda rank: rank.before_weights)
    after = least(start.ranks, lambda rank: rank.after_weights)
    if before is not None and after is not None and before.value > 0:
        return msgspec.structs.replace(line_of(before.value, after.value), before=before, after=after)
    total_gib = least(start.ranks, lambda rank: rank.total_gib)
    pool, fraction = pool_of(start), real(start.setting(OF_CARD))
    if total_gib is None or pool is None or fraction is None or total_gib.value <= 0:
        return None
    taken = total_gib.value * fraction - pool
    return Share(
        knob=OF_CARD,
        slope=total_gib.value,
        rest=taken,
        formula=f"{total_gib.value:.2f} x {{f}} - {taken:.2f}",
        before=total_gib,
    )


def pool_of(start: Start) -> float | None:
    """Return GiB of the weakest rank's pool as allocated, with all of the same budget; None before that."""
    sizes = []
    for rank in start.ranks:
        if rank.kv_gib is None:
            continue
        parts = [rank.kv_gib, rank.mamba_gib]
        if rank.draft_weights_gib is not None and rank.draft_weights_gib.at < rank.kv_gib.at:
            parts.append(rank.draft_kv_gib)  # the draft model was there when the pool was sized, and shares it
        sizes.append(sum(part.value for part in parts if part is not None))
    return min(sizes, default=None)


def shortest(exact: float, unsure: float) -> float:
    """Return `exact` with the fewest digits, four at most, that stay within `unsure` of it."""
    return next((round(exact, n) for n in (1, 2, 3) if abs(round(exact, n) - exact) <= unsure), round(exact, 4))


def effective(start: Start, share: Share | None) -> float | None:
    """Return the fraction that gives the pool which was allocated; None if either is not known.

    With a cap on the tokens it is only a lower bound.
    """
    pool = pool_of(start)
    return None if share is None or pool is None else share.shortest(pool)


def asked(start: Start) -> tuple[str, float] | None:
    """Return name and value of the fraction in the settings; None if it is not there."""
    for knob in KNOBS:
        value = real(start.setting(knob))
        if value is not None:
            return knob, value
    return None


def least(ranks: Iterable[RankStory], of: Callable[[RankStory], Figure | None]) -> Figure | None:
    """Return the smallest figure of any rank, with its place; None if no rank has one."""
    figures = [figure for figure in map(of, ranks) if figure is not None and math.isfinite(figure.value)]
    return min(figures, key=lambda figure: figure.value, default=None)


def least_value(ranks: Iterable[RankStory], of: Callable[[RankStory], Figure | None]) -> float | None:
    """Return the smallest value of any rank; None if no rank has one."""
    figure = least(ranks, of)
    return None if figure is None else figure.value
