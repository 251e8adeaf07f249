"""`recipe`: read off a running server how it is started, and keep, show and check what was read or written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from tuner.cli import FINE, PROBLEM
from tuner.cli.headless import connected, settled
from tuner.cli.paper import Paper
from tuner.cli.presets import fault_line, readable
from tuner.cli.running import run
from tuner.cli.tables import plain, table
from tuner.core.drift import drift
from tuner.core.engine import Engine
from tuner.core.gates import hardware_of
from tuner.core.recipe_faults import recipe_faults
from tuner.core.recipes import read_recipe
from tuner.core.run_words import held_words
from tuner.core.shellwords import shell_line
from tuner.core.toml_lines import item_line, key_lines
from tuner.domain.link import Target
from tuner.domain.preflight import PreflightAsk
from tuner.domain.recipe import Recipe
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Change
from tuner.engines import load_engines
from tuner.errors import CatalogError, TunerError, UsageProblem
from tuner.session.session import Session
from tuner.store.recipes import load_recipe, load_recipes, save_recipe

_LABEL = 12
"""Width of the column of labels, in characters."""


def read(target: Target, *, server: str | None, save: str | None, replace: bool, as_json: bool) -> int:
    """Print the recipe of a server that runs on a host, and what of that server is not as it was asked for.

    Args:
        target: The host.
        server: Key or PID of the server; None: the only one that runs.
        save: Name under which the recipe is kept; empty: a name is made; None: it is not kept.
        replace: Whether a recipe of that name is replaced.
        as_json: Print one JSON object instead of text.

    Raises:
        UsageProblem: No server or several match, or there is a recipe of that name.
        TunerError: No server runs, or its command line cannot be read.
    """
    engines = load_engines()

    async def reading() -> tuple[Recipe, tuple[Change, ...], str]:
        async with connected(target) as (session, ask):
            state = await settled(session, ask)
            chosen = choose(state, server)
            engine = engines[chosen.identity.engine]
            recipe = read_recipe(state, chosen, engine, save or "")
            files = await behind_the_scenes(session, recipe, chosen)
            return recipe, drift(chosen, engine, files, hardware_of(state, chosen)), held_words(state, chosen)

    recipe, drifted, held = run(reading())
    path = None if save is None else save_recipe(recipe, replace=replace)
    if as_json:
        answer = {
            "recipe": msgspec.to_builtins(recipe),
            "drift": [msgspec.to_builtins(each) for each in drifted],
            "saved": None if path is None else str(path),
        }
        click.echo(json.dumps(answer, ensure_ascii=False))
        return FINE
    paper = Paper.of()
    click.echo(
        "\n".join([*recipe_lines(recipe, paper), *held_lines(held, paper), *_drift_lines(drifted, paper)]), color=True
    )
    if path is not None:
        click.echo(str(path), err=True)
    return FINE


def choose(state: HostState, wanted: str | None) -> ServerState:
    """Return the running server that is meant.

    Args:
        state: The host's state.
        wanted: Its key or PID; None: there must be only one.

    Raises:
        UsageProblem: No server has that key or PID, or several run and none is named.
        TunerError: No server runs.
    """
    running = [each for each in state.servers if not each.gone and not each.identity.orphaned]
    if wanted is not None:
        found = [each for each in running if wanted in (each.identity.key, str(each.identity.pid))]
        if not found:
            raise UsageProblem(f"No server has the key or PID {wanted}", listed(running), "Name one of those that run")
        return found[0]
    if not running:
        raise TunerError("No server runs there", state.name, "Start one, or write its recipe by hand")
    if len(running) > 1:
        raise UsageProblem("Several servers run there", listed(running), "Name one with --server PID")
    return running[0]


def listed(servers: Sequence[ServerState]) -> str:
    """Return in one line which servers run, so that one of them can be named: PID, owner, engine, port and LLM."""
    return "; ".join(plain(_in_a_few_words(each)) for each in servers) or "none runs"


def _in_a_few_words(server: ServerState) -> str:
    identity = server.identity
    owner = f" of {identity.user}" if identity.user else ""
    return f"{identity.pid}{owner} ({server.title}, port {identity.port or '?'}, {server.model or 'LLM not known'})"


async def behind_the_scenes(session: Session, recipe: Recipe, server: ServerState) -> Sequence[Mapping[str, Any]]:
    """Return the variables that files set behind the scenes; empty where the probe cannot tell."""
    ask = PreflightAsk(
        key=server.identity.key, command=recipe.command, cwd=recipe.cwd, like=recipe.like, managers=False
    )
    try:
        facts = (await session.preflight(ask)).facts
    except TunerError as error:
        click.echo(f"gputuner: files that set variables behind the scenes were not looked for: {error}", err=True)
        return ()
    found = facts.get("env_files")
    settings = found.get("settings") if isinstance(found, Mapping) else None
    return [each for each in settings or () if isinstance(each, Mapping)]


def list_all(*, as_json: bool) -> int:
    """Print the user's recipes; exit code 1 if one cannot be read."""
    recipes = load_recipes()
    if as_json:
        rows = [
            {
                "name": each.name,
                "host": each.host,
                "engine": each.engine,
                "version": each.version,
                "model": each.model,
                "port": each.port,
            }
            for each in recipes.found.values()
        ]
        click.echo(json.dumps(rows, ensure_ascii=False))
    elif recipes.found:
        click.echo(
            "\n".join(
                table(
                    ("name", "host", "engine", "port", "LLM"),
                    [
                        (each.name, plain(each.host), each.engine, each.port, plain(each.model or "-"))
                        for each in recipes.found.values()
                    ],
                    left=("name", "host", "engine", "LLM"),
                )
            )
        )
    elif not recipes.problems:
        click.echo("no recipes yet; `gputuner recipe read HOST --save` makes one", err=True)
    for problem in recipes.problems:
        click.echo(f"gputuner: {problem}", err=True)
    return PROBLEM if recipes.problems else FINE


def show(name: str, *, as_json: bool) -> int:
    """Print one recipe with its whole command line.

    Raises:
        UsageProblem: There is no such recipe.
        CatalogError: It cannot be read.
    """
    recipe = named(name)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(recipe), ensure_ascii=False))
    else:
        click.echo("\n".join(recipe_lines(recipe, Paper.of())), color=True)
    return FINE


def named(name: str) -> Recipe:
    """Return a recipe by its name.

    Raises:
        UsageProblem: There is none.
        CatalogError: It cannot be read.
    """
    recipes = load_recipes()
    if (found := recipes.found.get(name)) is not None:
        return found
    for problem in recipes.problems:
        if problem.path.stem == name:
            raise problem
    known = ", ".join(recipes.found)
    raise UsageProblem(
        f"There is no recipe {name}",
        "",
        f"There are {known}" if known else "Make one: gputuner recipe read HOST --save",
    )


def check(files: Sequence[Path]) -> int:
    """Print what is wrong with files of recipes, each in a line; exit code 1 if anything is.

    Raises:
        UsageProblem: A file cannot be read.
    """
    engines = load_engines()
    wrong = 0
    for path in files:
        readable(path, "recipe")
        problems = list(_problems(path, engines))
        for problem in problems:
            click.echo(fault_line(problem))
        wrong += len(problems)
        if not problems:
            click.echo(f"{path}: fine")
    return PROBLEM if wrong else FINE


def _problems(path: Path, engines: Mapping[str, Engine]) -> Iterator[CatalogError]:
    try:
        recipe = load_recipe(path)
    except CatalogError as error:
        yield error
        return
    text = path.read_text("utf-8")
    lines = key_lines(text)
    for fault in recipe_faults(recipe, engines):
        line = lines.get(fault.field, 1)
        if fault.word:
            line = item_line(text, fault.word, line)
        yield CatalogError(path, line, fault.what, fault.way_out)


def recipe_lines(recipe: Recipe, paper: Paper) -> Iterator[str]:
    """Yield a recipe as lines."""
    version = f" {recipe.version}" if recipe.version else ""
    rows = [
        ("recipe", recipe.name),
        ("host", recipe.host),
        ("engine", f"{recipe.engine}{version}"),
        ("LLM", recipe.model),
        ("command", shell_line(recipe.command)),
        *(("arguments" if not number else "", row) for number, row in enumerate(_rows(recipe.args))),
        *(("env" if not number else "", f"{name}={value}") for number, (name, value) in enumerate(recipe.env.items())),
        ("folder", recipe.cwd),
        ("logs", recipe.log_dir),
        ("port", recipe.port),
        ("started by", _manager(recipe)),
        ("ready in", None if recipe.ready_s is None else f"{recipe.ready_s:.0f} s, usually"),
        ("from", recipe.origin),
    ]
    for label, value in rows:
        if value not in (None, ""):
            yield from paper.wrapped(str(value), label=label, hang=_LABEL)


def held_lines(held: str, paper: Paper) -> Iterator[str]:
    """Yield a line that says what a recipe has of a change, `held` as of `run_words.held_words`."""
    if held:
        yield from paper.wrapped(held, label="holds", hang=_LABEL)


def _rows(words: Sequence[str]) -> Iterator[str]:
    """Yield arguments as a shell takes them, a flag with its values in each row."""
    row: list[str] = []
    for word in words:
        if word.startswith("-") and row:
            yield shell_line(row)
            row = []
        row.append(word)
    if row:
        yield shell_line(row)


def _manager(recipe: Recipe) -> str | None:
    manager = recipe.manager
    return None if manager is None else " ".join(filter(None, (manager.kind, manager.name)))


def _drift_lines(drifted: Sequence[Change], paper: Paper) -> Iterator[str]:
    if drifted:
        yield ""
        yield paper.ink("not as it was asked for", "warn")
    for each in drifted:
        now = "not set" if each.now is None else each.now
        yield from paper.wrapped(f"{each.text or each.name} is {now}: {each.drift}", indent="  ", hang=0)
