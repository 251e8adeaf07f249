"""How a start ended, by its log. Exit codes do not tell: vLLM's is 0 either way."""

from __future__ import annotations

from tuner.core import facts as f
from tuner.core.roots import parent_gone, root_of, stop_asked
from tuner.domain.findings import Outcome
from tuner.domain.starts import Start


def outcome_of(start: Start) -> Outcome:
    """Return ready, running, failed, stopped, or unknown if the log holds too little to tell."""
    if root_of(start) is not None:
        return Outcome.FAILED
    ended = any(fact.kind == f.STOPPED for fact in start.facts)
    if stop_asked(start) is not None or ended or parent_gone(start) is not None:
        return Outcome.STOPPED
    if start.ready_at is not None or start.batches:
        return Outcome.READY
    if start.settings_at is not None or start.ranks:
        return Outcome.RUNNING
    return Outcome.UNKNOWN
