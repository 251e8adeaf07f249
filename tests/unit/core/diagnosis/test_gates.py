"""Custom all-reduce that PCIe closes: worth knowing, and a slowdown only where decode steps prove it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from tests.golden.diagnoses import CORPUS
from tests.support.startlogs import SGLang, findings
from tuner.domain.findings import Severity
from tuner.domain.forecast import Fit, Forecast
from tuner.domain.starts import Start
from tuner.engines import load_engines

CLOSED = (
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this"
    " warning, specify disable_custom_all_reduce=True explicitly."
)


def served(weights: float, rate: float, running: int = 1) -> list[str]:
    log = SGLang("0.5.9", tp=4, before=94.0, weights=weights, fraction=0.88).communicators().each(CLOSED).load()
    log.pool(200_000, 94.0 * 0.88 - weights, 94.0 * 0.12).capture(6.0).ready(200_000)
    for _ in range(6):
        log.rank(
            0, f"Decode batch, #running-req: {running}, #token: 4096, token usage: 0.10, cuda graph: True,"
            f" gen throughput (token/s): {rate:.2f}, #queue-req: 0",
        )  # fmt: skip
    return log.lines


@pytest.mark.parametrize(
    ("weights", "rate", "running", "severity"),
    [
        (15.0, 21.0, 1, Severity.PERFORMANCE),  # 48 ms a step, 16 ms to read the weights
        (15.0, 40.0, 1, Severity.INFO),
        (70.0, 21.0, 1, Severity.INFO),
        (15.0, 84.0, 4, Severity.PERFORMANCE),
        (15.0, 168.0, 8, Severity.INFO),  # too many requests to tell
    ],
)
def test_only_steps_that_reading_the_weights_does_not_explain_are_a_slowdown(
    weights: float, rate: float, running: int, severity: Severity
) -> None:
    (finding,) = findings(served(weights, rate, running))
    assert (finding.cause, finding.severity) == ("custom-ar-disabled-pcie", severity)
    assert ("reading the weights once, about" in [e.what for e in finding.evidence]) == (
        severity is Severity.PERFORMANCE
    )


@pytest.mark.parametrize(("weights", "offered"), [(15.0, True), (60.0, False)])
def test_two_gpus_are_no_advice_where_the_weights_do_not_fit_on_them(weights: float, offered: bool) -> None:
    (finding,) = findings(served(weights, 4.0))
    assert any(remedy.knob == "tp_size" for remedy in finding.remedies) is offered


def test_two_gpus_are_no_advice_before_the_log_shows_what_the_weights_take() -> None:
    log = SGLang("0.5.9", tp=4, before=94.0, weights=15.0, fraction=0.88).communicators().each(CLOSED)
    (finding,) = findings(log.lines)
    assert [remedy.env for remedy in finding.remedies] == ["NCCL_P2P_LEVEL"]
    cut = (CORPUS / "sg-8513.log").read_text().splitlines()[:11]
    found = {each.cause: each for each in findings(cut)}["custom-ar-disabled-pcie"]
    assert "tp_size" not in [remedy.knob for remedy in found.remedies]


@pytest.mark.parametrize(
    ("fit", "place"), [(Fit.FITS, 0), (Fit.UNKNOWN, -1), (Fit.NOWHERE, None), (Fit.TOO_HIGH, None)]
)
def test_two_gpus_come_first_only_where_the_forecast_confirms_them(
    fit: Fit, place: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sglang = load_engines()["sglang"]
    known = sglang.forecast

    def forecast(base: Start, changes: Mapping[str, Any], past: Sequence[Start] = ()) -> Forecast:
        made = known(base, changes, past)
        return msgspec.structs.replace(made, fit=fit) if changes == {"tp_size": 2} else made

    monkeypatch.setattr(type(sglang), "forecast", lambda _, *arguments: forecast(*arguments))
    (finding,) = findings(served(15.0, 21.0))
    knobs = [remedy.knob for remedy in finding.remedies]
    assert ("tp_size" in knobs) == (place is not None)
    if place is not None:
        assert knobs[place] == "tp_size"
        assert len(knobs) > 1


@pytest.mark.parametrize("supported", ["[2]", "[2, 8]", ""])
@pytest.mark.parametrize("weights", [15.0, 70.0])
def test_a_size_that_is_supported_is_advised_where_the_weights_fit(supported: str, weights: float) -> None:
    line = "Custom allreduce is disabled due to an unsupported world size: 4."
    line += f" Supported world sizes: {supported}. To silence" if supported else ""
    log = SGLang("0.5.9", tp=4, before=94.0, weights=weights, fraction=0.88).communicators().each(line).load()
    log.pool(200_000, 94.0 * 0.88 - weights, 94.0 * 0.12).capture(6.0).ready(200_000)
    (finding,) = findings(log.lines)
    assert finding.cause == "custom-ar-disabled"
    values = [remedy.value for remedy in finding.remedies]
    fits = weights * 2 < 94.0
    assert values == ([2] if fits else [])
