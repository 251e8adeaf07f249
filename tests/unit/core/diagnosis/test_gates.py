"""Custom all-reduce that PCIe closes: worth knowing, and a slowdown only where decode steps prove it."""

from __future__ import annotations

import pytest

from tests.support.startlogs import SGLang, findings
from tuner.domain.findings import Severity

CLOSED = (
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this"
    " warning, specify disable_custom_all_reduce=True explicitly."
)


def served(weights: float, rate: float, running: int = 1) -> list[str]:
    log = SGLang("0.5.9", tp=4, before=94.0, weights=weights, fraction=0.88).communicators().each(CLOSED).load()
    log.pool(200_000, 10.0, 8.0).capture(6.0).ready(200_000)
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
