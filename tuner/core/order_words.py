"""Words for what a host is ordered to do, shared by the command line and the screens."""

from __future__ import annotations

import shlex

from tuner.domain.runs import LaunchOrder, StopOrder, StopStep, SwitchOrder
from tuner.units import format_duration

_TARGETS = {"leader": "its main process", "tree": "each process of it that lives", "orphans": "what outlived it"}


def steps_of(order: SwitchOrder, way_back: str = "a key") -> tuple[str, ...]:
    """Return the steps of a run in words, in order; each is one line without a full stop.

    Args:
        order: The order.
        way_back: What the operator has to go back with.
    """
    steps: list[str] = []
    if order.stop is not None:
        steps += stop_words(order.stop)
    if order.start is not None:
        steps.append(start_words(order.start))
        steps.append(ready_words(order.start))
        steps.append(back_words(order, way_back))
    return tuple(steps)


def stop_words(stop: StopOrder) -> list[str]:
    """Return how a server is stopped, and how it is proven that it is."""
    words: list[str] = []
    if stop.drain_s:
        words.append(f"wait up to {_time(stop.drain_s)} for the requests in flight")
    ladder = [signal_words(step) for step in stop.steps]
    if stop.manager:
        words.append(f"{shlex.join(stop.manager)}, up to {_time(stop.manager_wait_s)}")
        ladder = ladder[1:]
    lead = f"stop pid {stop.leader.pid}" if not stop.manager else "what is left then"
    if ladder:
        words.append(f"{lead}: {'; then '.join(ladder)}. Before each signal boot, PID, start and owner are checked")
    if stop.gpus:
        gpus = f"{len(stop.gpus)} GPUs" if len(stop.gpus) > 1 else "its GPU"
        words.append(f"wait up to {_time(stop.memory_s)} until {gpus} gave the memory back, by the driver's count")
    return words


def ladder_words(stop: StopOrder) -> str:
    """Return the ladder of signals alone: `TERM to its main process (30 s), KILL to each process of it ...`."""
    return ", ".join(f"{step.signal} to {_TARGETS.get(step.to, step.to)} ({_time(step.wait_s)})" for step in stop.steps)


def signal_words(step: StopStep) -> str:
    """Return one rung of the ladder: `TERM to its main process, up to 30 s`."""
    return f"{step.signal} to {_TARGETS.get(step.to, step.to)}, up to {_time(step.wait_s)}"


def start_words(launch: LaunchOrder) -> str:
    """Return how a server is started."""
    if launch.manager:
        return shlex.join(launch.manager)
    return f"start {launch.title or launch.preset or 'the server'}, {detached_words(launch)}"


def detached_words(launch: LaunchOrder) -> str:
    """Return that a server is started apart from this terminal, and where its log goes."""
    return f"detached from this terminal, log in {launch.log_dir or 'the folder of the run'}"


def ready_words(launch: LaunchOrder) -> str:
    """Return what is awaited until a started server counts as ready, and for how long."""
    proofs = [
        "its own process listens" + (f" on port {launch.port}" if launch.port is not None else ""),
        "health answers" if launch.health is not None else "",
        "a first token comes" if launch.first_token is not None else "",
        f"all {launch.ranks} ranks live" if launch.ranks and launch.ranks > 1 else "",
    ]
    usual = f"; usually {_time(launch.usual_s)}" if launch.usual_s is not None else ""
    told = ", ".join(part for part in proofs if part)
    return f"wait until {told} and all of it stays up{usual}, at most {_time(launch.deadline_s)}"


def back_words(order: SwitchOrder, way_back: str = "a key") -> str:
    """Return what happens if the start fails; `way_back` as in `steps_of`."""
    if order.back is None:
        return "if it fails, nothing is started in its place: there is nothing to go back to"
    what = order.back.title or order.back.preset or "what ran before"
    if order.auto_back:
        return f"if it fails, go back to {what} without being asked, once"
    return f"if it fails, nothing more is started; {way_back} goes back to {what}"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else format_duration(seconds)
