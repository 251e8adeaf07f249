"""Words for runs, leases and operators, shared by the command line and the screens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tuner.core.recipes import WITH
from tuner.core.runs import UNTOUCHED, ended_at, failed_server, in_the_way, lives, preset_of, server_of
from tuner.domain.findings import Finding, Severity
from tuner.domain.runs import Lease, Leftover, MemoryBack, Operator, RunOutcome, RunRecord, RunStep
from tuner.domain.state import HostState, ServerState
from tuner.units import GIB, format_duration

STEP_NAMES: dict[RunStep, str] = {
    RunStep.CHECK: "check",
    RunStep.DRAIN: "drain",
    RunStep.STOP: "stop",
    RunStep.MEMORY: "memory",
    RunStep.LAUNCH: "launch",
    RunStep.LOADING: "loading",
    RunStep.PORT: "port",
    RunStep.HEALTH: "health",
    RunStep.FIRST_TOKEN: "first token",
    RunStep.STEADY: "steady",
    RunStep.END: "end",
}
STEP_DOING: dict[RunStep, str] = {
    RunStep.CHECK: "checking",
    RunStep.DRAIN: "waiting for its requests",
    RunStep.STOP: "stopping",
    RunStep.MEMORY: "waiting for the GPU memory",
    RunStep.LAUNCH: "launching",
    RunStep.LOADING: "loading",
    RunStep.PORT: "listening",
    RunStep.HEALTH: "waiting for health",
    RunStep.FIRST_TOKEN: "waiting for the first token",
    RunStep.STEADY: "watching it for a moment",
    RunStep.END: "ending",
}
"""Activity of a run at each step, as words that follow a colon."""
STARTING = (
    RunStep.LAUNCH,
    RunStep.LOADING,
    RunStep.PORT,
    RunStep.HEALTH,
    RunStep.FIRST_TOKEN,
    RunStep.STEADY,
)
"""Steps of a start, in order."""
NEAR_S = 100.0
"""Seconds from which on the end of a start's patience is told."""
TAKE_OVER = "ask them, or take it over (--take-over, or L on the Tune screen); they are told and can only watch then"
"""The way out where another operator holds the lease."""
GIVE_BACK = "press L on its Tune screen to give it back, or take it over (--take-over, or L here)"
"""The way out where another gputuner of the same operator holds the lease."""
_KILLED = re.compile(r"^the server was ended by (?:SIG\w+|signal \d+) (?=after )")
_ALL_BACK = 0.98
"""Share of the memory of a stopped server from which on it counts as given back, for the words only."""


def operator_name(operator: Operator) -> str:
    """Return an operator as `name@machine`."""
    return f"{operator.name}@{operator.machine}" if operator.machine else operator.name


def going_on(run: RunRecord) -> bool:
    """Return whether a supervisor carries the run out at present."""
    return run.outcome is RunOutcome.RUNNING and run.supervised


def interrupted(run: RunRecord) -> bool:
    """Return whether the supervisor of the run died before the run had ended."""
    return run.outcome is RunOutcome.RUNNING and not run.supervised


def stops_only(run: RunRecord) -> bool:
    """Return whether the run stops a server and starts none."""
    return run.old is not None and run.new is None and not (run.title or run.preset or run.argv)


def name_of(run: RunRecord) -> str:
    """Return what the run starts: its title, which begins with the preset's id; else the id, else `the server`."""
    return run.title or run.preset or "the server"


def aim(run: RunRecord) -> str:
    """Return what the run is about: `switching to base-88`, `starting base-88`, `stopping pid 48211`."""
    if stops_only(run) and run.old is not None:
        return f"stopping pid {run.old.pid}"
    if run.going_back:
        return f"going back to {run.back or 'what ran before'}"
    return f"{'switching to' if run.old is not None else 'starting'} {name_of(run)}"


def left_s(run: RunRecord, now: float | None) -> float | None:
    """Return the seconds until the present wait ends at the latest; None where that is not known.

    Args:
        run: The run.
        now: Host wall clock, seconds since the epoch.
    """
    return None if run.until is None or now is None else max(0.0, run.until - now)


def wait_words(seconds: float) -> str:
    """Return the rest of a wait: `12 s left`, `9:48 left`."""
    return f"{seconds:.0f} s left" if seconds < 100 else f"{format_duration(seconds)} left"


def cause_title(findings: Sequence[Finding]) -> str:
    """Return the title of the cause of a failed start; empty where the findings do not tell it.

    Args:
        findings: Findings about that start, the root cause first.
    """
    first = next(iter(findings), None)
    return first.title if first is not None and first.severity in (Severity.FATAL, Severity.ERROR) else ""


def cause_of(state: HostState, run: RunRecord) -> str:
    """Return the title of the cause for which the start of a run failed; empty where it is not known."""
    server = failed_server(state, run)
    return cause_title(server.findings) if server is not None and run.cancelled_by is None else ""


def progress(run: RunRecord, now: float | None, cause: str = "") -> str:
    """Return a run in one line: `switching to graph-bs-512: stopping, 12 s left, TERM sent`.

    Args:
        run: The run.
        now: Host wall clock, seconds since the epoch.
        cause: Title of the cause for which its start failed; empty: it did not fail, or the cause is not known.
    """
    if interrupted(run):
        return f"{aim(run)}: interrupted while {STEP_DOING[run.step]}, its supervisor is gone"
    if run.outcome is not RunOutcome.RUNNING:
        return outcome(run, cause)
    doing = "cancelling" if run.cancelled_by is not None and not run.going_back else STEP_DOING[run.step]
    parts = [f"{aim(run)}: {doing}", run.detail]
    seconds = left_s(run, now)
    # While a server starts the wait is the limit of patience, and says little until it is near.
    if seconds is not None and (run.step not in STARTING or seconds < NEAR_S):
        # Before the detail, which a narrow screen cuts.
        parts.insert(1, wait_words(seconds))
    return ", ".join(part for part in parts if part)


def outcome(run: RunRecord, cause: str = "") -> str:
    """Return how a run ended, in one line; `cause` as in `progress`."""
    name, took = name_of(run), format_duration(max(0.0, ended_at(run) - run.began_at))
    # The detail of a run that went back tells of what it went back to.
    why = run.failure or (run.detail if run.outcome is not RunOutcome.BACK else "")
    if cause:
        # How the process ended follows from the cause: an engine kills its own processes, as the kernel does.
        why = f"{cause} ({_KILLED.sub('', why)})" if why else cause
    because = f": {why}" if why else ""
    match run.outcome:
        case RunOutcome.READY:
            hard = f"; the server before: {cut}" if (cut := cut_words(run)) else ""
            return f"{name} serves, {took} after the order{hard}"
        case RunOutcome.STOPPED:
            old = f"pid {run.old.pid} is stopped" if run.old is not None else "stopped"
            hard = f", {cut}" if (cut := cut_words(run)) else ""
            return f"{old}{hard}" + (", all its memory came back" if memory_is_back(run) else "")
        case RunOutcome.REFUSED:
            return f"{name} was refused before anything was touched{because}"
        case RunOutcome.FAILED:
            return f"{name} did not start{because}"
        case RunOutcome.BACK:
            if run.cancelled_by is not None:
                return f"{name} was cancelled; {run.back or 'what ran before'} serves again"
            return f"{name} did not start{because}; {run.back or 'what ran before'} serves again"
        case RunOutcome.CANCELLED:
            return f"cancelled before anything was touched: the server still runs as it did{because}"
        case RunOutcome.STUCK:
            return f"stuck{because}; nothing was started"
        case RunOutcome.RUNNING:
            return aim(run)


def held_words(state: HostState, server: ServerState) -> str:
    """Return what a server runs with of the change that started it: preset and values set by hand; empty: nothing."""
    preset, title = preset_of(state, server)
    name, _, values = title.partition(WITH)
    held = " and ".join(part for part in (name if preset else "", values) if part)
    return f"{held} of the last change" if held else ""


def cut_words(run: RunRecord) -> str:
    """Return how the server that was to be stopped was cut off from what it still worked on; empty: it was not."""
    first = next((at for at, step in enumerate(run.steps) if step.step in STARTING), len(run.steps))
    unclean = {step.step for step in run.steps[:first] if step.unclean}
    if RunStep.STOP in unclean:
        return "ended by SIGKILL, which cut its requests in flight"
    return "its requests in flight were cut" if RunStep.DRAIN in unclean else ""


def memory_is_back(run: RunRecord) -> bool:
    """Return whether each watched GPU has given the memory of the stopped server back; False if none was watched."""
    return bool(run.memory) and all(returned(each) for each in run.memory)


def returned(gpu: MemoryBack) -> bool:
    """Return whether a GPU has given back what the stopped server held there."""
    return gpu.after_bytes is not None and gpu.before_bytes - gpu.after_bytes >= _ALL_BACK * gpu.held_bytes


def leftover_words(left: Leftover) -> str:
    """Return a process that a stop left behind: PID, owner, title, and the GPU memory it holds."""
    parts = [f"pid {left.pid}", left.user or (f"uid {left.uid}" if left.uid is not None else ""), left.title]
    if left.gpu_bytes:
        parts.append(f"holds {left.gpu_bytes / GIB:.1f} GiB of GPU memory")
    parts.append("of the stopped server" if left.ours else "not ours: never signalled")
    return " ".join(parts[:3]).strip() + "".join(f", {part}" for part in parts[3:])


def way_on(state: HostState, run: RunRecord) -> str:
    """Return what an interrupted run has left on the host, in words; empty for other runs."""
    if not interrupted(run):
        return ""
    if run.new is not None and run.alive:
        return f"pid {run.new.pid}, which it started, lives"
    new = server_of(state, run)
    if new is not None and not new.gone:
        return f"pid {new.identity.pid}, which it started, lives"
    if run.step in UNTOUCHED:
        return "nothing was touched yet"
    if run.old is not None and lives(state, run.old):
        return f"pid {run.old.pid}, which it was to stop, still lives"
    if run.step in (RunStep.STOP, RunStep.MEMORY):
        return "the old server is not seen any more, and nothing was started yet"
    return "what it started does not live"


def left_words(state: HostState, run: RunRecord) -> str:
    """Return an interrupted run in one line: what it was about, how far it got, and what it has left."""
    return f"{aim(run)}: interrupted while {STEP_DOING[run.step]}, {way_on(state, run)}"


def way_words(state: HostState, run: RunRecord) -> tuple[str, str]:
    """Return why an interrupted run must not be finished or undone, and the way out; both are empty where it may be."""
    other = in_the_way(state, run)
    if other is None:
        return "", ""
    identity = other.identity
    where = f" on port {identity.port}" if identity.port is not None else ""
    gpus = ", ".join(str(gpu) for gpu in sorted({rank.gpu for rank in other.ranks if rank.gpu is not None}))
    why = f"pid {identity.pid}{where} was started since, and runs on GPU {gpus}: what fits beside it is not checked"
    return why, f"stop it first (gputuner stop {state.name} --server {identity.pid}), or make the change anew"


def lease_way_out(lease: Lease, me: Operator | None = None) -> str:
    """Return what the operator `me` can do where somebody holds the lease."""
    return GIVE_BACK if lease.holder is not None and _own(lease.holder, me) else TAKE_OVER


def _own(holder: Operator, me: Operator | None) -> bool:
    """Return whether a holder of the lease is another gputuner of the same user on the same machine."""
    return me is not None and (holder.name, holder.machine) == (me.name, me.machine)


def holder_words(lease: Lease, now: float | None, me: Operator | None = None) -> str:
    """Return who may change the host, and since when; empty while nobody else does.

    Args:
        lease: The lease of the host.
        now: Host wall clock, seconds since the epoch.
        me: Who asks; None: not known. Another gputuner of the same user on the same machine is told as their own.
    """
    holder = lease.holder
    if holder is None or lease.mine:
        return ""
    who = operator_name(holder)
    if _own(holder, me):
        who = f"your own dashboard in another terminal ({who})"
    words = f"{who} holds the lease of this host"
    if holder.since is not None and now is not None:
        words += f", taken {format_duration(max(0.0, now - holder.since))} ago"
    if lease.beat_at is not None and now is not None and now - lease.beat_at > 10:
        words += f"; last sign of life {format_duration(max(0.0, now - lease.beat_at))} ago"
    return words
