"""Answers to the screens' questions about starts: which are known, how two differ, what a planned one will need."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from tuner.core.compare import compare, findings_that_weigh, same_llm
from tuner.core.diagnosis import diagnose
from tuner.core.engine import Engine
from tuner.core.planned import NO_SERVER, planned, worked_starts
from tuner.domain.comparison import Comparison, where
from tuner.domain.findings import Finding, Outcome, failed_phase
from tuner.domain.planning import StartChoice
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.engines import load_engines
from tuner.errors import TunerError
from tuner.messages import (
    ComparisonArrived,
    ComparisonRequested,
    ForecastArrived,
    ForecastRequested,
    StartsArrived,
    StartsRequested,
)
from tuner.widgets.spans import clean
from tuner.widgets.status import server_name

ReadStarts = Callable[[str], Sequence[Start]]
"""Returns the starts in a log file of this machine, by its path. Blocks; raises TunerError."""


@functools.cache
def engines() -> Mapping[str, Engine]:
    """Return all engines, by name."""
    return load_engines()


def title_of(start: Start) -> str:
    """Return the engine's name for people; empty where it is not known."""
    engine = engines().get(start.engine)
    return "" if engine is None else engine.title


def _named(start: Start) -> str:
    """Return in words what distinguishes a start from others of its LLM."""
    fraction = start.setting("mem_fraction_static", "gpu_memory_utilization")
    words = [f"failed{where(start.phase)}" if start.outcome is Outcome.FAILED else str(start.outcome)]
    words += [f"fraction {fraction}"] if fraction is not None else []
    words += [f"{start.engine} {start.version}"] if start.version else []
    words += [Path(start.files[0]).name] if start.files else []
    return ", ".join(clean(word) for word in words)


def _when(start: Start) -> str:
    """Return when the start began, in this machine's time zone; empty where unknown."""
    return "" if not start.began else f" of {datetime.fromtimestamp(start.began):%b %d %H:%M}"


class _Known:
    """The starts with which a server's own start can be compared."""

    def __init__(self, state: HostState, server: ServerState) -> None:
        self.starts: dict[str, Start] = {}
        self.choices: list[StartChoice] = []
        own = server.start
        for other in state.servers:
            if other is not server and other.start is not None:
                alike = server_name(other) == server_name(server)
                name = "" if alike else f"{clean(server_name(other))} "
                title = f"{name}pid {other.identity.pid}, {_named(other.start)}"
                self._add(f"server:{other.identity.key}", title, other.start, own)
        for start in server.past:
            if start != own:
                # By its time and not by its place: the list grows while one looks at it.
                name = f"past:{start.began}"
                while name in self.starts:
                    name += "+"
                self._add(name, f"earlier start{_when(start)}, {_named(start)}", start, own)
        # Starts that worked with the same LLM come first: they explain most.
        self.choices.sort(key=lambda each: (not each.same_llm, not self.starts[each.id].worked))

    def _add(self, name: str, title: str, start: Start, own: Start | None) -> None:
        alike = own is None or same_llm(start, own)
        self.starts[name] = start
        self.choices.append(StartChoice(id=name, title=title, outcome=start.outcome, same_llm=alike))


def starts(state: HostState, ask: StartsRequested) -> None:
    """Answer with the starts that a server's own can be compared with."""
    server = state.server(ask.key)
    choices = _Known(state, server).choices if server is not None else []
    ask.reply_to.post_message(StartsArrived(ask, tuple(choices)))


async def comparison(state: HostState, ask: ComparisonRequested, read: ReadStarts | None) -> None:
    """Answer with the comparison of a server's start with another one."""
    post = ask.reply_to.post_message
    server = state.server(ask.key)
    if server is None or server.start is None:
        post(ComparisonArrived(ask, None, "Its log does not tell how it started"))
        return
    try:
        other = await _other(state, server, ask.choice, read)
    except TunerError as error:
        post(ComparisonArrived(ask, None, str(error)))
        return
    if other is None:
        post(ComparisonArrived(ask, None, "No line of an inference server is in that file"))
        return
    own = server.start
    made, own_is_good = await asyncio.to_thread(_held_against, state, server, own, ask.choice, other)
    post(ComparisonArrived(ask, made, own_is_good=own_is_good))


def _held_against(
    state: HostState, server: ServerState, own: Start, choice: str, other: Start
) -> tuple[Comparison, bool]:
    """Return the comparison, and whether the server's own start is its baseline."""
    own_is_good = own.worked and not other.worked
    engine = engines().get(own.engine) if own.engine == other.engine else None
    of_other = _findings(state, server, choice, other)
    good, bad = (own, server.findings), (other, of_other)
    if not own_is_good:
        good, bad = bad, good
    weigh = findings_that_weigh(good[0], bad[0], good[1], bad[1])
    return compare(good[0], bad[0], engine, weigh, (failed_phase(good[1]), failed_phase(bad[1]))), own_is_good


def _findings(state: HostState, server: ServerState, choice: str, start: Start) -> tuple[Finding, ...]:
    """Return the findings of the chosen start: those of its server, or else those made from its log."""
    held = state.server(choice.removeprefix("server:")) if choice.startswith("server:") else None
    engine = engines().get(start.engine)
    if held is not None or engine is None:
        return held.findings if held is not None else ()
    return diagnose(start, engine, worked_starts(state, server))


async def _other(state: HostState, server: ServerState, choice: str, read: ReadStarts | None) -> Start | None:
    if not choice.startswith("file:"):
        return _Known(state, server).starts.get(choice)
    if read is None:
        return None
    found = await asyncio.to_thread(read, choice.removeprefix("file:"))
    return found[-1] if found else None


async def forecast(state: HostState, ask: ForecastRequested) -> None:
    """Answer with the forecast of a server's start with some knobs changed."""
    post = ask.reply_to.post_message
    server = state.server(ask.key)
    if server is None:
        post(ForecastArrived(ask, None, NO_SERVER))
        return
    made = await asyncio.to_thread(planned, state, server, ask.changes, engines())
    post(ForecastArrived(ask, None, made) if isinstance(made, str) else ForecastArrived(ask, made))
