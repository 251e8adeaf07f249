"""What a preset would change on a server that runs: put together as `apply` does it, and nothing is done."""

from __future__ import annotations

import json

import click
import msgspec

from tuner.catalog import Presets
from tuner.cli import FINE, PROBLEM
from tuner.cli.change_lines import change_words
from tuner.cli.headless import connected, settled
from tuner.cli.library import FileLibrary
from tuner.cli.paper import Paper
from tuner.cli.recipe import behind_the_scenes, choose
from tuner.cli.running import run
from tuner.cli.tables import plain
from tuner.cli.targets import parse
from tuner.core.choices import choices
from tuner.core.presets import unmet
from tuner.core.recipes import read_recipe
from tuner.core.tuning import tune
from tuner.domain.presets import Preset
from tuner.domain.runs import Operator
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import PresetChoice, Tuning, Wish
from tuner.engines import load_engines
from tuner.errors import TunerError

_LABEL = 10
"""Width of the column of labels, in characters."""
_NOBODY = Operator(session="", name="")
"""Operator of an order that is made to be looked at only."""


def listed(library: FileLibrary, host: str, pid: str | None) -> tuple[PresetChoice, ...]:
    """Return the presets in the order of the number keys of a host, each with why it is not for the server there.

    Args:
        library: The presets, and the order that the operator has given them.
        host: The host as on every command line.
        pid: Key or PID of the server, where several run. Where none runs, nothing is said of what a preset needs.
    """
    engines = load_engines()
    target = parse(host)

    async def looked() -> tuple[HostState, ServerState | None]:
        async with connected(target) as (session, ask):
            state = await settled(session, ask, speed=False)
            runs = pid is not None or any(not each.gone for each in state.servers)
            return state, choose(state, pid) if runs else None

    state, server = run(looked())
    engine = engines.get(server.identity.engine) if server is not None else None
    version = server.version if server is not None else None
    return choices(library.presets()[0], library.order(target.name), state, engine, version)


def diff(preset: Preset, presets: Presets, host: str, pid: str | None, *, as_json: bool) -> int:
    """Print what a preset would change on the server of a host; exit code 1 if it must not be applied there.

    Args:
        preset: The preset, with all that it extends.
        presets: All presets.
        host: The host as on every command line.
        pid: Key or PID of the server, where several run.
        as_json: Print one JSON object instead of text.
    """
    engines = load_engines()
    target = parse(host)

    async def looked() -> tuple[Tuning, tuple[str, ...]]:
        async with connected(target) as (session, ask):
            state = await settled(session, ask)
            server = choose(state, pid)
            engine = engines.get(server.identity.engine)
            if engine is None:
                raise TunerError(f"This version does not know the engine {server.identity.engine}", state.name)
            files = await behind_the_scenes(session, read_recipe(state, server, engine), server)
            wish = Wish(server=server.identity.key, preset=preset.id)
            facts = {"env_files": {"settings": list(files)}}
            put_together = tune(session.state, wish, engines, presets.found, run="", operator=_NOBODY, facts=facts)
            return put_together, unmet(preset, session.state, engine.name, server.version)

    tuning, lacking = run(looked())
    launch = tuning.launch
    problems = launch.problems if launch is not None else tuning.refused
    notes = launch.notes if launch is not None else ()
    if as_json:
        answer = {
            "preset": preset.id,
            "host": host,
            "changes": [{**msgspec.to_builtins(each), "changed": each.changed} for each in tuning.changes],
            "notes": list(notes),
            "unmet": list(lacking),
            "problems": list(problems),
        }
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        paper = Paper.of()
        rows = [("change" if each.changed else "drift", change_words(each)) for each in tuning.changes]
        rows = rows or [("change", "nothing: the server has all of it")]
        rows += [("note", note) for note in notes] + [("unmet", each) for each in lacking]
        lines = [line for label, text in rows for line in paper.wrapped(text, label=label, hang=_LABEL)]
        click.echo("\n".join(lines), color=True)
    for problem in problems:
        click.echo(f"gputuner: {plain(problem)}", err=True)
    return PROBLEM if problems else FINE
