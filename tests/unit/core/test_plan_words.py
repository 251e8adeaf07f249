"""The memory of a coming start, in words."""

from __future__ import annotations

import pytest

from tuner.core.plan_words import PURPOSES, VERDICTS, alike, happens, reason
from tuner.domain.forecast import Fit


@pytest.mark.parametrize("fit", list(Fit))
def test_every_verdict_has_a_word_and_a_reason_whatever_is_known(fit: Fit) -> None:
    assert VERDICTS[fit]
    assert reason(fit, None, None, None)
    assert reason(fit, 0.9, 0.5, 0.95, 100)


def test_reasons() -> None:
    assert reason(Fit.FITS, 0.88, 0.77, 0.94, 159277) == "at a fraction of 0.88: 159,277 tokens of KV"
    assert reason(Fit.FITS, 0.88, 0.77, 0.94) == "at a fraction of 0.88"
    assert reason(Fit.TOO_LOW, 0.55, 0.7692, 0.94).endswith("just above 0.7692")
    assert "the weights alone" in reason(Fit.NOWHERE, 0.9, 1.02, 0.94)


def test_what_would_follow_a_pool_that_cannot_be_does_not_happen() -> None:
    assert [what for what in PURPOSES if happens(Fit.TOO_LOW, what)] == ["weights", "draft_weights", "kv_pool"]
    assert all(happens(Fit.FITS, what) for what in PURPOSES)


def test_ranks_are_alike_by_sizes_that_are_known() -> None:
    sizes = {0: {"weights": 7.0}, 1: {"weights": 7.05}, 2: {"weights": None}, 3: {"weights": 7.0, "free": 1.0}}
    assert alike(sizes) == [[0, 1], [2], [3]]
