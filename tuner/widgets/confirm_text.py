"""What is asked before anything on a host is changed: which host, which server, what is done, and the way back."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tuner.core.order_words import back_words, detached_words, ladder_words, start_words
from tuner.core.plan_words import reason, verdict
from tuner.core.run_words import holder_words, operator_name, progress
from tuner.core.runs import UNTOUCHED
from tuner.core.tuning import HAZARD
from tuner.domain.preflight import Verdict
from tuner.domain.runs import RunRecord, RunStep, StopOrder, SwitchOrder
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Tuning
from tuner.units import format_duration
from tuner.widgets.spans import Line, clean, wrap_parts, wrap_words
from tuner.widgets.status import age, server_name
from tuner.widgets.tune_text import changes_of, in_words, then_in_words

DRAIN_S = 300.0
"""Longest wait for the requests in flight where the operator wants them to end first, seconds."""
_LABEL = 11
_CHANGES = 6
"""Most changes that are listed."""


class Fact(Struct, frozen=True):
    """One labelled line of the question."""

    label: str
    text: str
    style: str = "text"


class Proposal(Struct, frozen=True, kw_only=True):
    """What the operator is asked."""

    title: str
    facts: tuple[Fact, ...]
    does: str
    """What the key that agrees does, as one word: `applies`."""
    drain: bool | None = None
    """Whether the requests in flight are waited for; None: there is no such choice."""
    back: bool | None = None
    """Whether the host goes back by itself; None: there is no such choice."""
    back_words: str = "goes back by itself if it fails"


def host_fact(state: HostState) -> Fact:
    """Return the host as the operator named it, and as it calls itself."""
    own = state.hello.hostname if state.hello is not None else ""
    named = clean(state.name)
    return Fact("host", f"{named} ({clean(own)})" if own and own not in named else named, "strong")


def server_facts(state: HostState, server: ServerState) -> list[Fact]:
    """Return PID, owner, age and name of a server, and the requests it is working on."""
    identity = server.identity
    words = [f"pid {identity.pid}", f"owner {clean(identity.user)}" if identity.user else "owner not known"]
    if up := age(state, server):
        words.append(f"up {up}")
    words.append(clean(f"{server_name(server)} {server.version or ''}".strip()))
    if identity.port is not None:
        words.append(f"port {identity.port}")
    return [Fact("server", ", ".join(words), "strong")]


def requests_fact(server: ServerState, stop: StopOrder, *, drain: bool, term_drains: bool) -> Fact:
    """Return the requests in flight, and what becomes of them; parameters as in `for_change`."""
    running, queued = server.metrics.running, server.metrics.queued
    if running is None and queued is None:
        return Fact("requests", "how many are in flight is not known", "warn")
    known = (running or 0) + (queued or 0)
    words = f"{running if running is not None else '?'} in flight, {queued if queued is not None else '?'} queued"
    if known and drain:
        words += f"; cut if not done within {format_duration(DRAIN_S)}"
    elif known and term_drains and not stop.manager:
        words += f"; cut if not done within {stop.steps[0].wait_s:.0f} s"
    elif known:
        words += "; cut by the stop"
    return Fact("requests", words, "warn" if known else "text")


def for_change(
    state: HostState,
    server: ServerState | None,
    tuning: Tuning,
    order: SwitchOrder,
    *,
    drain: bool,
    back: bool,
    term_drains: bool = False,
) -> Proposal:
    """Return the question before a switch, a start or a stop.

    Args:
        state: State of the host.
        server: The server that is stopped; None: there is none.
        tuning: What was put together.
        order: Its order.
        drain: Whether the requests in flight are waited for.
        back: Whether the host goes back by itself if the start fails.
        term_drains: Whether the engine finishes its requests after a TERM, and takes no new ones.
    """
    launch = order.start
    name = (launch.title or launch.preset or "the server as it was") if launch is not None else ""
    stops = order.stop is not None and server is not None
    title = f"Switch to {name}?" if stops and launch else f"Start {name}?" if launch else "Stop the server?"
    facts = [host_fact(state)]
    if stops and server is not None and order.stop is not None:
        facts += server_facts(state, server)
        facts.append(requests_fact(server, order.stop, drain=drain, term_drains=term_drains))
    elif order.stop is not None:
        many = 1 + len(order.stop.members)
        left = f"{many} process{'es' if many > 1 else ''} (pid {order.stop.leader.pid}{', ...' if many > 1 else ''})"
        facts.append(Fact("left over", f"{left} of the server before: ended first", "warn"))
    facts += _changes(tuning)
    facts += _memory(tuning)
    if order.stop is not None:
        facts.append(Fact("stop", _stop(order.stop, drain=drain, term_drains=term_drains)))
    if launch is not None:
        usual = f"; usually ready in {format_duration(launch.usual_s)}" if launch.usual_s else ""
        facts.append(Fact("start", f"{start_words(launch) if launch.manager else detached_words(launch)}{usual}"))
        auto = replace(order, auto_back=back and order.back is not None)
        facts.append(Fact("if it fails", back_words(auto).removeprefix("if it fails, ")))
    facts += _doubts(tuning)
    serving = stops and server is not None and (server.metrics.running or server.metrics.queued or 0) > 0
    return Proposal(
        title=clean(title),
        facts=tuple(facts),
        does="switches" if stops and launch else "starts it" if launch else "stops it",
        drain=drain if stops and (serving or drain) else None,
        back=back if order.back is not None and launch is not None else None,
    )


def _stop(stop: StopOrder, *, drain: bool, term_drains: bool) -> str:
    words: list[str] = []
    if drain and term_drains and not stop.manager:
        # The first TERM is the drain: the order then waits longer after it.
        words.append(f"TERM to its main process: no new requests, up to {format_duration(DRAIN_S)} for those in flight")
        stop = replace(stop, steps=stop.steps[1:])
    elif drain:
        words.append(f"up to {format_duration(DRAIN_S)} until none is in flight; new ones are still taken")
    if stop.manager:
        words.append(" ".join(stop.manager))
    if stop.steps:
        words.append(ladder_words(stop))
    if stop.gpus:
        many = f"{len(stop.gpus)} GPUs" if len(stop.gpus) > 1 else "its GPU"
        words.append(f"{many} must give the memory back")
    return clean("; then ".join(words))


def _changes(tuning: Tuning) -> list[Fact]:
    made = [each for each in changes_of(tuning) if each.changed]
    if tuning.launch is None:
        return []
    if tuning.wish.again:
        return [Fact("starts", f"{clean(tuning.launch.title) or 'it'}, exactly as it was")]
    if not made:
        return [Fact("changes", "none: it is started as it was" if tuning.wish.server else "none beside the recipe")]
    knobs = {each.knob.name: each for each in tuning.planned.knobs} if tuning.planned is not None else {}
    words = [f"{clean(e.name)} {in_words(e, e.now, knobs)} -> {then_in_words(e, knobs)}" for e in made[:_CHANGES]]
    more = [f"{len(made) - _CHANGES} more"] if len(made) > _CHANGES else []
    return [Fact("changes", ", ".join([*words, *more]))]


def _memory(tuning: Tuning) -> list[Fact]:
    if tuning.planned is None or tuning.launch is None or tuning.wish.again:
        return []
    then = tuning.planned.then
    good = verdict(then) == "FITS"
    return [Fact("memory", f"{verdict(then).lower()}: {reason(then)}", "text" if good else "warn")]


def _doubts(tuning: Tuning) -> list[Fact]:
    # A note on a hazard is one that nobody but the operator can rule out.
    doubts = [
        each
        for each in tuning.checks
        if each.verdict in (Verdict.WARN, Verdict.UNKNOWN) or (each.id == HAZARD and each.verdict is Verdict.NOTE)
    ]
    # The memory has a line of its own.
    told = [each for each in doubts if each.id != "memory"]
    return [
        Fact("look at" if at == 0 else "", f"{clean(each.title)}: {clean(each.detail)}", "warn")
        for at, each in enumerate(told)
    ]


def for_cancel(state: HostState, run: RunRecord, *, back: bool) -> Proposal:
    """Return the question before a run is cancelled."""
    facts = [host_fact(state), Fact("run", clean(progress(run, state.now))), Fact("cancel", _cancelled(run))]
    if run.back and run.step not in UNTOUCHED:
        after = f"start {clean(run.back)} again" if back else "start nothing"
        facts.append(Fact("then", after))
    return Proposal(
        title="Cancel the change?",
        facts=tuple(facts),
        does="cancels",
        back=back if run.back else None,
        back_words="starts again what ran before",
    )


def _cancelled(run: RunRecord) -> str:
    """Return what the cancel of a run does at its present step."""
    if run.step in UNTOUCHED:
        return "nothing was touched yet: the server goes on as it is"
    if run.step in (RunStep.STOP, RunStep.MEMORY):
        old = f"pid {run.old.pid}" if run.old is not None else "the old server"
        return f"{old} was told to end and is stopped all the same; the new server is not started"
    new = f"the new server (pid {run.new.pid})" if run.new is not None else "the new server"
    return f"{new} is stopped: TERM to its main process, later KILL to what still lives"


def for_option(state: HostState, about: str, title: str) -> Proposal:
    """Return the question before an interrupted run is finished, undone or cleaned up."""
    facts = (host_fact(state), Fact("found", clean(about)), Fact("does", clean(title), "strong"))
    return Proposal(title="Go on with the interrupted change?", facts=facts, does="does it")


def for_lease(state: HostState) -> Proposal:
    """Return the question before another operator loses the right to change the host."""
    holder = state.lease.holder
    who = operator_name(holder) if holder is not None else "nobody"
    return Proposal(
        title=f"Take over from {clean(who)}?",
        facts=(
            host_fact(state),
            Fact("holder", clean(holder_words(state.lease, state.now)) or "nobody holds it", "warn"),
            Fact("then", f"{clean(who)} can only watch from then on, and is told who took over"),
            Fact("", "a change that is going on goes on"),
        ),
        does="takes over",
    )


def proposal_lines(proposal: Proposal, width: int) -> list[Line]:
    """Return the facts of a question, labelled and wrapped."""
    lines: list[Line] = []
    for fact in proposal.facts:
        for at, chunk in enumerate(wrap_words(fact.text, max(16, width - _LABEL - 1))):
            label = fact.label if at == 0 else ""
            lines.append(((f"{label:<{_LABEL}} ", "dim"), (chunk, fact.style)))
    return lines


def answer_lines(proposal: Proposal, width: int) -> list[Line]:
    """Return the keys of a question; choices show whether they are on."""

    def box(on: bool) -> str:
        return f"[{'x' if on else ' '}]"

    parts: list[Line] = [(("Y ", "busy"), (proposal.does, "strong"))]
    if proposal.drain is not None:
        parts.append((("d ", "busy"), (f"{box(proposal.drain)} waits for its requests first", "text")))
    if proposal.back is not None:
        parts.append((("a ", "busy"), (f"{box(proposal.back)} {proposal.back_words}", "text")))
    parts.append((("esc ", "busy"), ("no", "text")))
    return wrap_parts(parts, width, ("   ", "text"))
