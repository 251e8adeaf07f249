"""Everything that changes a host: each act goes through `session.acts` here and `probe.agent.acts` there."""

from __future__ import annotations

from msgspec import Struct

from tuner.domain.runs import ProcessId, SwitchOrder


class Act(Struct, frozen=True, kw_only=True, tag_field="act"):
    """Base of all acts."""


class TakeLease(Act, frozen=True, kw_only=True, tag="take-lease"):
    """Take the right to change the host."""

    seize: bool = False
    """True: take it from an operator who holds it."""


class ReleaseLease(Act, frozen=True, kw_only=True, tag="release-lease"):
    """Give the right to change the host back."""


class Switch(Act, frozen=True, kw_only=True, tag="switch"):
    """Stop, start or replace a server: begins a run."""

    order: SwitchOrder


class CancelRun(Act, frozen=True, kw_only=True, tag="cancel-run"):
    """Cancel a run. What was signalled stays signalled; a start is ended."""

    run: str
    back: bool = True
    """True: start again what ran before."""


class ResumeRun(Act, frozen=True, kw_only=True, tag="resume-run"):
    """Finish a run whose supervisor died: a new supervisor goes on from where its record ends."""

    run: str
    back: bool = False
    """True: do not finish it, but start again what ran before."""


class EndLeftovers(Act, frozen=True, kw_only=True, tag="end-leftovers"):
    """End processes that a stopped server of ours left behind: TERM, then KILL, each after a check of its identity."""

    run: str
    processes: tuple[ProcessId, ...]


class Clean(Act, frozen=True, kw_only=True, tag="clean"):
    """Remove gputuner's folder from the host; refused while a run is going on or a server logs into it."""


AnyAct = TakeLease | ReleaseLease | Switch | CancelRun | ResumeRun | EndLeftovers | Clean
