"""Parts of a finding as text for a screen: severity, phase, and place in the log."""

from __future__ import annotations

from tuner.core.runs import stopped_by_run
from tuner.domain.findings import Evidence, Finding, Severity
from tuner.domain.state import HostState, ServerState
from tuner.widgets.glyphs import Glyphs
from tuner.widgets.spans import Span, clean
from tuner.widgets.status import server_name

_WORDS = {
    Severity.FATAL: ("FAILED", "bad"),
    Severity.ERROR: ("BROKEN", "bad"),
    Severity.PERFORMANCE: ("SLOW", "warn"),
    Severity.INFO: ("NOTE", "busy"),
}


def severity_span(severity: Severity, glyphs: Glyphs) -> Span:
    """Return the symbol and the word of a severity."""
    word, style = _WORDS[severity]
    sign = {"bad": glyphs.bad, "warn": glyphs.warn}.get(style, glyphs.note)
    return f"{sign} {word}", style


def tags_of(server: ServerState) -> dict[int, str]:
    """Return the tag of each global rank, as the log prints it."""
    if server.start is not None and server.start.ranks:
        return {story.number: story.tag for story in server.start.ranks}
    return {rank.number: rank.tag for rank in server.ranks if rank.number is not None}


def outcome_text(finding: Finding) -> str:
    """Return the finding's phase as ` in kv-alloc`; empty without one."""
    return f" in {finding.phase}" if finding.phase not in ("", "none") else ""


def place_text(evidence: Evidence) -> str:
    """Return where the evidence stands in the log: a line number, or a byte offset where the log is followed."""
    if evidence.line is not None:
        where = f"line {evidence.line:,}"
        return f"{clean(evidence.file)} {where}" if evidence.file else where
    return "computed" if evidence.at is None else f"byte {evidence.at:,}"


def new_failures(before: HostState | None, after: HostState) -> dict[str, str]:
    """Return a sentence for each server whose failure was explained since `before`, by server key.

    Empty for a host that is seen for the first time: an old failure is no news. What a run stopped has not failed, also
    where it had to be killed.
    """
    known = {each.identity.key: each for each in before.servers} if before is not None else {}
    found: dict[str, str] = {}
    for server in after.servers:
        then = known.get(server.identity.key)
        root = next((each for each in server.findings if each.severity is Severity.FATAL), None)
        if then is None or root is None or stopped_by_run(after, server):
            continue
        if any(each.severity is Severity.FATAL for each in then.findings):
            continue
        found[server.identity.key] = f"{clean(server_name(server))} failed{outcome_text(root)}: {root.cause}"
    return found
