"""The section of `diagnose` about all-reduce: which implementation the ranks use, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tuner.cli.paper import Paper
from tuner.cli.tables import plain
from tuner.core.reduction_words import headline, rows
from tuner.core.report_comparison import Locate
from tuner.domain.findings import Finding
from tuner.domain.gates import AllReduce

CAUSES = frozenset({
    "custom-ar-disabled", "custom-ar-disabled-pcie", "custom-ar-ipc-failure", "nccl-through-host", "p2p-unsupported",
    "risky-setting", "setting-ignored",
})  # fmt: skip
"""Causes that this section explains: it is shown by itself when one of them is found."""
_MARKS = {True: "✓", False: "✗", None: "·"}
_NAME = 28


def concerned(findings: Collection[Finding]) -> bool:
    """Return whether a finding is about all-reduce."""
    return any(finding.cause in CAUSES for finding in findings)


def lines(told: AllReduce, locate: Locate, paper: Paper, *, everything: bool) -> Iterator[str]:
    """Yield the section as text.

    Args:
        told: The ways of the diagnosed start.
        locate: Returns file and line of a place.
        paper: Lays out the lines.
        everything: Show every gate, and ways that nobody asked for.
    """
    yield ""
    yield paper.ink(paper.letters(f"all-reduce of {told.world} ranks"), "strong")
    yield from paper.wrapped(headline(told), indent="  ")
    for row in rows(told, gates=everything, unasked=everything):
        mark = _MARKS[row.good]
        where = "" if row.at is None else f" (line {locate(row.at)[1]})"
        if row.below:
            sign = "?" if row.good is None else mark
            yield from paper.wrapped(row.words + where, indent=" " * (_NAME + 2), label=sign, hang=2)
        else:
            yield from paper.wrapped(row.words + where, indent="  ", label=f"{mark} {plain(row.name)}", hang=_NAME)
