"""Writes docs/findings.md from the table of causes: run it with `python -m tests.architecture.findings_page`."""

from __future__ import annotations

from pathlib import Path

from tuner.core.causes import CAUSES, PHASES

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"

_HEAD = """# Findings

Every cause that `gputuner diagnose` and the dashboard can name. An id never changes its meaning, so scripts may branch
on it. This page is made from `tuner/core/causes.py`; what a finding says beside its cause is in
[diagnose.md](diagnose.md).

A finding shows in one of these phases: {phases}.

| cause | title | when it is this, and what mends it |
| --- | --- | --- |
"""


def page() -> str:
    """The whole page."""
    rows = (f"| `{cause.id}` | {cause.title} | {cause.definition} |" for cause in CAUSES.values())
    return _HEAD.format(phases=", ".join(f"`{phase}`" for phase in PHASES)) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
