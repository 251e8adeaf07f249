"""`presets`: list, check, compare and spell the presets of the wheel, the user and the project."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from tuner.catalog import Presets, check_preset, load_presets, read_preset
from tuner.cli import FINE, PROBLEM
from tuner.cli.library import FileLibrary
from tuner.cli.paper import Paper
from tuner.cli.tables import plain, table
from tuner.cli.targets import complete_hosts
from tuner.core.choices import KEYS
from tuner.core.engine import Engine
from tuner.core.hazards import shown
from tuner.core.knobs import left_out_words
from tuner.core.overlays import overlay, range_words
from tuner.core.presets import resolve
from tuner.core.shellwords import shell_line, shell_word
from tuner.core.versions import parse_version
from tuner.domain.presets import ANY_ENGINE, Overlay, Preset
from tuner.engines import load_engines
from tuner.errors import CatalogError, UsageProblem, sentences
from tuner.paths import presets_dir

_LABEL = 10
"""Width of the column of labels, in characters."""
_NEAR = 0.8
"""Similarity from which a word that is no preset is taken for a misspelled one, and not for a host."""
_UNSET, _UNTOUCHED = "default", "-"
"""What stands for a value that is left to the engine, and for one that a preset does not touch."""


def list_all(*, as_json: bool) -> int:
    """Print all presets; what is wrong with other files goes to stderr."""
    presets = load_presets()
    _complain(presets.problems)
    order = list(FileLibrary().presets()[0])
    _listing(presets, order, None, as_json=as_json)
    if order and not as_json:
        click.echo("\nThe keys of the Tune screen, where those before it fit; of a host: `gputuner presets list HOST`.")
        click.echo("`gputuner presets show ID` tells why one exists, what it needs, and what it sets.")
    return FINE


def list_on(host: str, pid: str | None, *, as_json: bool) -> int:
    """Print all presets in the order in which the Tune screen lists them for a server of a host.

    Args:
        host: The host as on every command line.
        pid: Key or PID of the server, where several run.
        as_json: Print one JSON array instead of text.
    """
    from tuner.cli import preset_on_host

    presets = load_presets()
    _complain(presets.problems)
    found = preset_on_host.listed(FileLibrary(), host, pid)
    unfit = {each.id for each in found if each.unmet}
    _listing(presets, [each.id for each in found], unfit, as_json=as_json)
    if unfit and not as_json:
        click.echo("\n`gputuner presets diff ID HOST` tells what a preset would change there, or why it does not fit.")
    return FINE


def _listing(presets: Presets, order: Sequence[str], unfit: Collection[str] | None, *, as_json: bool) -> None:
    """Print presets in an order, which is that of their keys.

    Args:
        presets: All presets.
        order: Their ids.
        unfit: Those that do not fit the server that is meant; None: none is.
        as_json: Print one JSON array, by id, instead of a table.
    """
    rows = [_row(presets, name) for name in (sorted(order) if as_json else order)]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
    elif rows:
        marks = {row["id"]: origin(presets.found[row["id"]]) for row in rows}
        columns = [
            {
                "key": at if at <= KEYS else None,
                "id": row["id"],
                **({"from": marks[row["id"]]} if any(marks.values()) else {}),
                "engine": row["engine"],
                "host": row["requires"]["interconnect"] or "any",
                **({"fits": "no" if row["id"] in unfit else "yes"} if unfit is not None else {}),
                "title": row["title"],
            }
            for at, row in enumerate(rows, start=1)
        ]
        head = list(columns[0])
        click.echo("\n".join(table(head, [list(each.values()) for each in columns], head)))


def origin(preset: Preset) -> str:
    """Return whose a preset is: `yours`, `project` (of the working folder), or nothing where it is a bundled one."""
    if preset.local:
        return "project"
    return "" if Path(preset.path).parent == presets_dir() else "yours"


def _row(presets: Presets, name: str) -> dict[str, Any]:
    preset = resolve(presets.found, name)
    return {
        "id": preset.id,
        "title": preset.title,
        "engine": preset.engine,
        "why": preset.why,
        "requires": msgspec.to_builtins(preset.requires),
    }


def check(files: Sequence[Path]) -> int:
    """Print what is wrong with presets, each in a line; those of `files`, or all that are found.

    Raises:
        UsageProblem: A file cannot be read.
    """
    engines, presets = load_engines(), load_presets()
    errors: list[CatalogError] = []
    checked = 0
    if not files:
        errors += presets.problems
        checked = len(presets.found) + len(presets.problems)
        names: list[str] = list(presets.found)
        known: Mapping[str, Preset] = presets.found
    else:
        own: dict[str, Preset] = {}
        for path in files:
            readable(path)
            checked += 1
            try:
                preset = read_preset(path)
            except CatalogError as error:
                errors.append(error)
            else:
                own[preset.id] = preset
        names, known = list(own), {**presets.found, **own}
    for name in names:
        errors += [wrong.error for wrong in check_preset(known, name, engines)]
    for line in dict.fromkeys(fault_line(error) for error in errors):
        click.echo(line)
    if errors:
        return PROBLEM
    click.echo(f"{checked} preset{'s are' if checked != 1 else ' is'} in order")
    return FINE


def readable(path: Path, what: str = "preset") -> None:
    """Check that a file that the operator named can be read.

    Raises:
        UsageProblem: It cannot.
    """
    problem = f"The {what} cannot be read"
    try:
        if not path.is_dir() and not path.is_file() and path.exists():
            raise UsageProblem(problem, f"{path}: it is no file")
        path.read_text("utf-8")
    except OSError as error:
        raise UsageProblem(problem, f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageProblem(problem, f"{path}: it is not UTF-8") from error


def show(name: str, engine: str | None, version: str | None, *, as_json: bool) -> int:
    """Print a preset, and how it is spelled for one version of an engine; exit code 1 if that version refuses it."""
    spelled = spell(load_presets(), name, engine, version)
    if spelled.overlay.problems:
        _refuse(spelled.overlay)
        return PROBLEM
    if as_json:
        overlaid = spelled.overlay
        answer = {"argv": list(overlaid.argv), "env": overlaid.env, "notes": list(overlaid.notes)}
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        click.echo("\n".join(_story(spelled, Paper.of())), color=True)
    return FINE


class Spelled(Struct, frozen=True, kw_only=True):
    """A preset, spelled for one version of an engine."""

    preset: Preset
    """With all that it extends."""
    engine: Engine
    version: str
    overlay: Overlay


def spell(presets: Presets, name: str, engine: str | None, version: str | None) -> Spelled:
    """Compose a preset and spell it.

    Args:
        presets: All presets.
        name: Id of the preset.
        engine: Id of the engine; None: the preset's own, SGLang if it is for any.
        version: Version of the engine; None: the newest known.

    Raises:
        UsageProblem: There is no such preset or engine, or the version has no number.
        CatalogError: Its file is wrong.
    """
    engines = load_engines()
    preset = found(presets, name)
    wanted = engine or (preset.engine if preset.engine != ANY_ENGINE else next(iter(engines)))
    if wanted not in engines:
        raise UsageProblem(f"There is no engine {plain(wanted, 40)}", "", f"It is one of {', '.join(engines)}")
    if version is not None and parse_version(version) is None:
        raise UsageProblem(f"{plain(version, 40)} is no version", "", "For example 0.5.9")
    chosen = engines[wanted]
    knobs = chosen.knobs()
    return Spelled(
        preset=preset,
        engine=chosen,
        version=version or knobs.newest,
        overlay=overlay(preset, knobs, chosen.name, version or knobs.newest),
    )


def found(presets: Presets, name: str) -> Preset:
    """Return a preset with all that it extends.

    Raises:
        UsageProblem: There is none of that id.
        CatalogError: Its file is wrong.
    """
    return resolve(presets.found, name, presets.problems)


def _story(spelled: Spelled, paper: Paper) -> Iterator[str]:
    """Yield a preset as text: why, what it needs, what it sets, what is expected of it."""
    preset, overlaid = spelled.preset, spelled.overlay
    yield paper.letters(f"{paper.ink(preset.id, 'strong')}  {plain(preset.title)}")
    yield from paper.wrapped(preset.why, label="why", hang=_LABEL)
    for each in requires_words(preset):
        yield from paper.wrapped(each, label="needs", hang=_LABEL)
    yield from paper.wrapped(f"{spelled.engine.title} {spelled.version}", label="for", hang=_LABEL)
    if overlaid.argv:
        yield from paper.wrapped(shell_line(overlaid.argv), label="argv", hang=_LABEL)
    for key, value in overlaid.env.items():
        yield from paper.wrapped(f"{key}={shell_word(value)}", label="env", hang=_LABEL)
    knobs = spelled.engine.knobs()
    for name in overlaid.values:
        spelling = knobs.spelling(name, spelled.version)
        words = left_out_words(knobs[name], spelling) if spelling is not None else ""
        if words:
            yield from paper.wrapped(f"{name}: {words}", label="default", hang=_LABEL)
    for note in overlaid.notes:
        yield from paper.wrapped(note, label="note", hang=_LABEL)
    for expected in preset.expect:
        yield from paper.wrapped(f"{expected.what} ({expected.source})", label="expect", hang=_LABEL)
    yield from paper.wrapped(preset.path, label="file", hang=_LABEL)


def requires_words(preset: Preset) -> Iterator[str]:
    """Yield in words what a preset needs of host and engine."""
    needs = preset.requires
    if needs.gpus is not None:
        yield f"{needs.gpus} GPUs or more"
    if needs.interconnect:
        yield {"nvlink": "NVLink between all GPUs", "pcie": "GPUs without NVLink between all of them"}[
            needs.interconnect
        ]
    if needs.compute:
        yield f"compute capability {' or '.join(needs.compute)}"
    if needs.memory_gib is not None:
        yield f"{needs.memory_gib:g} GiB or more on each GPU"
    if needs.iommu:
        yield "IOMMU and ACS off"
    for engine, versions in needs.versions.items():
        yield f"{engine} {range_words(versions)}"
    if needs.words:
        yield needs.words


# --- Two of them ------------------------------------------------------------------------------------------------------


def diff(first: str, second: str, engine: str | None, version: str | None, pid: str | None, *, as_json: bool) -> int:
    """Print what two presets set differently, or what a preset would change on the server of a host.

    Args:
        first: Id of a preset.
        second: Id of another one, or a host.
        engine: As in `spell`; of a host its own.
        version: As in `spell`; of a host its own.
        pid: Key or PID of the server on the host, where several run.
        as_json: Print one JSON object instead of text.
    """
    presets = load_presets()
    if second not in presets.found and not any(error.path.stem == second for error in presets.problems):
        close = difflib.get_close_matches(second, list(presets.found), 1, _NEAR)
        if close and second not in complete_hosts(second):
            raise UsageProblem(f"There is no preset {plain(second, 60)}", "no host either", f"Did you mean {close[0]}?")
        from tuner.cli import preset_on_host

        return preset_on_host.diff(found(presets, first), presets, second, pid, as_json=as_json)
    a = spell(presets, first, engine, version)
    own = found(presets, second).engine
    b = spell(presets, second, engine or (a.engine.name if own == ANY_ENGINE else own), version)
    for one in (a, b):
        if one.overlay.problems:
            _refuse(one.overlay)
            return PROBLEM
    sides = _settings(a), _settings(b)
    names = [name for name in dict.fromkeys((*sides[0], *sides[1])) if sides[0].get(name) != sides[1].get(name)]
    head = ("name", a.preset.id, b.preset.id)
    rows = [(name, *(side.get(name, _UNTOUCHED) for side in sides)) for name in names]
    if as_json:
        changes = [{"name": name, "a": sides[0].get(name), "b": sides[1].get(name)} for name in names]
        click.echo(json.dumps({"a": a.preset.id, "b": b.preset.id, "changes": changes}, ensure_ascii=False))
    elif rows:
        click.echo("\n".join(table(head, rows, head)))
    else:
        click.echo("They set the same.")
    return FINE


def _settings(spelled: Spelled) -> dict[str, str]:
    """Return all that a preset sets, as text: knobs by canonical name, other flags and variables by their own."""
    overlaid, knobs = spelled.overlay, spelled.engine.knobs()
    known = {name: _UNSET if value is None else shown(value) for name, value in overlaid.values.items()}
    flags = {flag: shown(value) for flag, value in spelled.preset.flags.items()}
    others = {name: value for name, value in overlaid.env.items() if knobs.named(name) is None}
    gone = {name: _UNSET for name in spelled.preset.unset if knobs.named(name) is None}
    return {**known, **flags, **others, **gone}


def _refuse(overlaid: Overlay) -> None:
    for problem in overlaid.problems:
        click.echo(f"gputuner: {plain(problem)}", err=True)


def _complain(problems: Sequence[CatalogError]) -> None:
    for error in problems:
        click.echo(f"gputuner: {fault_line(error)}", err=True)


def fault_line(error: CatalogError) -> str:
    """Return an error of a file in the form in which editors and compilers take one."""
    return plain(f"{error.detail}: {sentences(error.title, error.hint)}")
