"""What a finding says, as text of a screen: severity, outcome, and where its log says it."""

from __future__ import annotations

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
    """Sign and word of a severity."""
    word, style = _WORDS[severity]
    sign = {"bad": glyphs.bad, "warn": glyphs.warn}.get(style, glyphs.note)
    return f"{sign} {word}", style


def tags_of(server: ServerState) -> dict[int, str]:
    """The tag of each global rank, as the log prints it."""
    if server.start is not None and server.start.ranks:
        return {story.number: story.tag for story in server.start.ranks}
    return {number: rank.tag for number, rank in enumerate(server.ranks)}


def outcome_text(finding: Finding) -> str:
    """`in kv-alloc`; empty without a phase."""
    return f" in {finding.phase}" if finding.phase not in ("", "none") else ""


def place_text(evidence: Evidence) -> str:
    """Where a log says it: a line, or a byte of a log that is followed."""
    if evidence.line is not None:
        where = f"line {evidence.line:,}"
        return f"{clean(evidence.file)} {where}" if evidence.file else where
    return "computed" if evidence.at is None else f"byte {evidence.at:,}"


def new_failures(before: HostState | None, after: HostState) -> dict[str, str]:
    """Servers whose failure has just been explained, by key, each with a sentence that says so.

    Nothing for a host that is seen for the first time: what lies behind is no news.
    """
    known = {each.identity.key: each for each in before.servers} if before is not None else {}
    found: dict[str, str] = {}
    for server in after.servers:
        then = known.get(server.identity.key)
        root = next((each for each in server.findings if each.severity is Severity.FATAL), None)
        if then is None or root is None or any(each.severity is Severity.FATAL for each in then.findings):
            continue
        found[server.identity.key] = f"{clean(server_name(server))} failed{outcome_text(root)}: {root.cause}"
    return found
