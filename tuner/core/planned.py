"""The memory forecast of a server's next start: from which start it is made, and which earlier ones help.

The Plan screen, `gputuner apply` and the Tune screen forecast by this, so that all tell one safe interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core.compare import same_llm
from tuner.core.engine import Engine
from tuner.core.forecast import on_gpus
from tuner.core.knobs import read_value
from tuner.core.report_plan import as_seen
from tuner.core.switching import settings_of
from tuner.domain.knobs import Knob, KnobKind
from tuner.domain.planning import PlanKnob, Planned
from tuner.domain.recipe import Launch
from tuner.domain.starts import Start
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Change

NO_SERVER = "there is no server to plan from"
NO_START = "its log does not tell how much memory its start took, and no earlier start of it is known"


def known_starts(state: HostState, server: ServerState) -> list[Start]:
    """Return the starts beside a server's own: those of the host's other servers, then its earlier ones."""
    others = [each.start for each in state.servers if each is not server and each.start is not None]
    return [*others, *(start for start in server.past if start != server.start)]


def worked_starts(state: HostState, server: ServerState) -> list[Start]:
    """Return the known starts of a server's LLM that became ready."""
    own = server.start
    alike = (start for start in known_starts(state, server) if own is None or same_llm(start, own))
    return [start for start in alike if start.worked]


def base_of(state: HostState, server: ServerState | None, past: Sequence[Start] = ()) -> Start | None:
    """Return the start from which a server's next one is forecast; None if none tells its memory.

    Args:
        state: State of the host.
        server: The server; None: the first of `past` is taken.
        past: Earlier starts on this host, newest first.
    """
    if server is None:
        return next((each for each in past if each.ranks), None)
    if server.start is not None and server.start.ranks:
        return server.start
    return next(iter(worked_starts(state, server)), None)


def forecast_changes(
    launch: Launch | None, changes: Sequence[Change], engine: Engine | None, base: Start | None = None
) -> dict[str, Any]:
    """Return what a launch changes as the forecast wants it: canonical knob name to value, None where it is unset.

    Args:
        launch: The new start.
        changes: What it changes of the running server.
        engine: Its engine.
        base: The start that is changed. It may be another than the running server's, or its log may tell other values:
            what the launch sets and this start had otherwise is a change as well.
    """
    if launch is None or engine is None:
        return {}
    table = engine.knobs()
    moved = {each.name: each.then for each in changes if each.changed and each.name in table}
    moved = {name: launch.values.get(name, value) for name, value in moved.items()}
    if base is None or base.engine != engine.name:
        return moved
    settings = settings_of(launch.argv, engine)
    for name, knob in table.items():
        if not knob.forecast or knob.kind is not KnobKind.FLAG or name in moved:
            continue
        had, asked = table.value(base.settings, name, base.version), table.value(settings, name, base.version)
        if had is not None and asked is not None and str(had) != str(asked):
            moved[name] = asked
    return moved


def planned(
    state: HostState,
    server: ServerState | None,
    changes: Mapping[str, Any],
    engines: Mapping[str, Engine],
    past: Sequence[Start] = (),
) -> Planned | str:
    """Forecast the memory of a start with some knobs changed, beside that of the unchanged one.

    Takes some 10 ms.

    Args:
        state: State of the host.
        server: Server whose start is changed; None: the first of `past` is.
        changes: Canonical knob name to new value; None lets the engine choose.
        engines: Engines by name.
        past: Earlier starts on this host, newest first, for a server that is not known.

    Returns:
        The forecasts, or in words why there are none.
    """
    base = base_of(state, server, past)
    engine = engines.get(base.engine) if base is not None else None
    if base is None or engine is None:
        return NO_START if server is not None else NO_SERVER
    # The same starts as a diagnosis of this server uses, so that both tell one safe interval.
    others = tuple(start for start in (server.past if server is not None else past) if start is not base)
    now, then = engine.forecast(base, {}, others), engine.forecast(base, changes, others)
    if server is not None and base is server.start:
        now, then = as_seen(now, server.findings), as_seen(then, server.findings, changes)
    gpus = len(state.gpu_table.gpus) if state.gpu_table is not None else None
    nodes = changes.get("nnodes", base.setting("nnodes", "num_nodes"))
    then = on_gpus(then, gpus, nodes if isinstance(nodes, int) else 1, len(base.ranks))
    return Planned(base=base, knobs=knobs_of(engine, base), now=now, then=then, title=engine.title, past=len(others))


def knobs_of(engine: Engine, base: Start) -> tuple[PlanKnob, ...]:
    """Return the knobs that a plan offers for the version of a start, with the values in that start."""
    table = engine.knobs()
    found: list[PlanKnob] = []
    offered = [(knob.turning.place, name) for name, knob in table.items() if knob.turning is not None]
    for _, name in sorted(offered):
        knob, spelling = table[name], table.spelling(name, base.version)
        if spelling is None:
            continue
        if knob.kind is KnobKind.FLAG:
            value = table.value(base.settings, name, base.version)
        else:
            value = _read(knob, base.env.get(spelling.text))
        found.append(
            PlanKnob(
                knob=knob,
                flag=spelling.flag,
                env=spelling.env,
                value=spelling.default if value is None else value,
                assumed=value is None,
                choices=spelling.choices,
            )
        )
    return tuple(found)


def _read(knob: Knob, text: str | None) -> Any:
    try:
        return None if text is None else read_value(knob, text)
    except ValueError:
        return text
