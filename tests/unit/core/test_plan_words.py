"""The memory of a coming start, in words."""

from __future__ import annotations

import msgspec
import pytest

from tuner.core.plan_words import PURPOSES, alike, good, happens, reason, verdict, whole
from tuner.domain.forecast import Fit, Forecast

FITS = Forecast(fit=Fit.FITS, sure=True, fraction=0.88, f_min=0.7691, f_max=0.906, kv_tokens=159_277, context=131_072,
                f_whole=0.861)  # fmt: skip


def but(**changes: object) -> Forecast:
    return msgspec.structs.replace(FITS, **changes)


@pytest.mark.parametrize("fit", list(Fit))
def test_every_verdict_has_a_word_and_a_reason_whatever_is_known(fit: Fit) -> None:
    assert verdict(Forecast(fit=fit))
    assert reason(Forecast(fit=fit))
    assert reason(but(fit=fit))
    assert good(but(fit=fit)) is (fit is Fit.FITS)


def test_reasons() -> None:
    assert reason(FITS) == "at a fraction of 0.88: 159,277 tokens of KV"
    assert reason(but(kv_tokens=None)) == "at a fraction of 0.88"
    assert reason(but(fit=Fit.TOO_LOW, fraction=0.55)).endswith("just above 0.7691")
    assert "the weights alone" in reason(but(fit=Fit.NOWHERE, f_min=1.02))


def test_what_fits_only_if_the_errors_do_not_come_true_is_no_sure_fit() -> None:
    doubtful = but(sure=False, fraction=0.92)
    assert (verdict(FITS), verdict(doubtful), good(doubtful)) == ("FITS", "FITS, NOT SURELY", False)
    assert reason(doubtful).endswith("Up to 0.906 it fits even if all errors come true")


def test_a_pool_that_holds_no_request_of_full_length_starts_and_is_no_good() -> None:
    small = but(fraction=0.77, kv_tokens=1_200)
    assert (verdict(small), good(small)) == ("STARTS", False)
    assert reason(small).endswith("1,200 tokens of KV, too few for one request of full length")
    assert whole(small) == "from 0.861 on it holds one request of the full 131,072 tokens"
    assert whole(but(f_whole=0.952)).endswith("(it would need 0.952)")
    assert whole(but(f_whole=None)).startswith("at no safe fraction")
    assert whole(but(f_min=0.8603)) == "", "the same at three digits"
    assert whole(but(context=None)) == "", "how long a request may be is not known"


@pytest.mark.parametrize(("fraction", "words"), [(0.9, "0.9 should fit"), (0.956, "0.956 lies above 0.906")])
def test_where_tokens_are_not_known_the_interval_still_is(fraction: float, words: str) -> None:
    assert reason(but(fit=Fit.UNKNOWN, fraction=fraction, kv_tokens=None)).startswith(words)


def test_what_would_follow_a_pool_that_cannot_be_does_not_happen() -> None:
    assert [what for what in PURPOSES if happens(Fit.TOO_LOW, what)] == ["weights", "draft_weights", "kv_pool"]
    assert all(happens(Fit.FITS, what) for what in PURPOSES)


def test_ranks_are_alike_by_sizes_that_are_known() -> None:
    sizes = {0: {"weights": 7.0}, 1: {"weights": 7.05}, 2: {"weights": None}, 3: {"weights": 7.0, "free": 1.0}}
    assert alike(sizes) == [[0, 1], [2], [3]]
