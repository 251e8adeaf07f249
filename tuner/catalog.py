"""Find and check the presets: the bundled ones, those of the user, and those of the project in the working folder."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.engine import Engine
from tuner.core.overlays import Fault, faults, near
from tuner.core.presets import resolve
from tuner.core.toml_lines import item_line, key_lines
from tuner.core.versions import parse_version
from tuner.domain.presets import ANY_ENGINE, Expectation, Preset, Requires
from tuner.engines import load_engines
from tuner.errors import CatalogError
from tuner.paths import config_dir, presets_dir
from tuner.store.toml_files import converted, read_toml

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INTERCONNECTS = ("", "nvlink", "pcie")


class _File(Struct, frozen=True, kw_only=True):
    """The fields of a preset's file."""

    title: str
    why: str
    engine: str = ANY_ENGINE
    requires: Requires = Requires()
    expect: tuple[Expectation, ...] = ()
    extends: tuple[str, ...] = ()
    args: dict[str, Any] = {}
    env: dict[str, str | bool | int | float] = {}
    flags: dict[str, str | bool | int | float] = {}
    unset: tuple[str, ...] = ()


FIELDS = tuple(field.name for field in msgspec.structs.fields(_File))


class Presets(Struct, frozen=True, kw_only=True):
    """The presets that can be used, and what is wrong with the others."""

    found: dict[str, Preset] = {}
    """By id; `extends` not yet resolved."""
    problems: tuple[CatalogError, ...] = ()


def preset_folders(project: Path | None = None) -> list[Path]:
    """Return the folders of presets, the one that wins last: bundled, the user's, the project's.

    Args:
        project: The project's folder; None: the working folder. Its presets are in `presets/` and `.gputuner/presets/`.
    """
    root = Path.cwd() if project is None else project
    folders: list[Path] = []
    for folder in (presets_dir(), config_dir() / "presets", root / "presets", root / ".gputuner" / "presets"):
        if folder.is_dir() and not any(folder.samefile(other) for other in folders):
            folders.append(folder)
    return folders


def load_presets(project: Path | None = None) -> Presets:
    """Read all presets; one of a later folder replaces one with its id. A file that is wrong leaves the others.

    Args:
        project: As in `preset_folders`.
    """
    presets: dict[str, Preset] = {}
    broken: dict[str, CatalogError] = {}
    own = (presets_dir(), config_dir() / "presets")
    shared = (Path.cwd() if project is None else project) / "presets"
    for folder in preset_folders(project):
        for path in sorted(folder.glob("*.toml")):
            try:
                preset = read_preset(path)
            except CatalogError as error:
                if folder == shared and folder != presets_dir() and _is_of_others(path):
                    continue
                presets.pop(path.stem, None)
                broken[path.stem] = error
            else:
                if folder not in own:
                    preset = msgspec.structs.replace(preset, local=(preset.path,))
                presets[preset.id] = preset
                broken.pop(preset.id, None)
    return _checked(presets, broken)


def read_preset(path: Path) -> Preset:
    """Read one file, without looking at the knobs it names.

    Raises:
        CatalogError: It cannot be read, is not TOML, or has a field that does not exist or is of the wrong type.
    """
    text, content = read_toml(path)
    lines = key_lines(text)
    if not _ID.fullmatch(path.stem):
        raise CatalogError(path, None, "its name is no id", "Letters, digits, dots, dashes and underscores, then .toml")
    for name in content:
        if name not in FIELDS:
            raise CatalogError(path, lines.get(name), f"there is no field {name}", f"Fields are {', '.join(FIELDS)}")
    for name in ("title", "why"):
        if not str(content.get(name, "")).strip():
            raise CatalogError(path, lines.get(name, 1), f"it has no {name}", f'Write {name} = "..."')
    for table in ("env", "flags"):
        values = content.get(table)
        for key, value in values.items() if isinstance(values, dict) else ():
            if not isinstance(value, str | int | float):
                at_key = lines.get(f"{table}.{key}", lines.get(table))
                raise CatalogError(path, at_key, f"{table}.{key} is no text", "Write one text or number")
    if isinstance(content.get("extends"), str):
        content["extends"] = [content["extends"]]
    return _preset(path, converted(_File, path, content, text), text, lines)


def _preset(path: Path, file: _File, text: str, lines: dict[str, int]) -> Preset:
    needs = file.requires
    if needs.interconnect not in _INTERCONNECTS:
        line = lines.get("requires.interconnect")
        raise CatalogError(path, line, f"interconnect cannot be {needs.interconnect}", "It is nvlink or pcie")
    if needs.iommu not in ("", "off"):
        raise CatalogError(
            path, lines.get("requires.iommu"), f"iommu cannot be {needs.iommu}", "It is off, or left out"
        )
    for name, span in needs.versions.items():
        if not any(parse_version(part) for part in span.split("-")):
            line = lines.get(f"requires.versions.{name}")
            raise CatalogError(
                path, line, f"{span} is no range of versions", 'For example "0.5.14 -" or "0.5.3 - 0.5.9"'
            )
    for name in file.unset:
        lines[f"unset.{name}"] = item_line(text, name, lines.get("unset", 1))
    return Preset(
        id=path.stem,
        title=file.title.strip(),
        engine=file.engine,
        why=" ".join(file.why.split()),
        requires=needs,
        expect=file.expect,
        extends=file.extends,
        args=file.args,
        env={name: _text(value) for name, value in file.env.items()},
        flags={name: value if isinstance(value, bool) else str(value) for name, value in file.flags.items()},
        unset=file.unset,
        path=str(path),
        lines=lines,
    )


def _text(value: str | float) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _is_of_others(path: Path) -> bool:
    """Return whether a TOML file has no field of a preset: other programs keep presets in a folder of that name too."""
    try:
        return path.is_file() and not set(tomllib.loads(path.read_text("utf-8"))) & set(FIELDS)
    except (OSError, ValueError, RecursionError):
        return False


# --- What they name ---------------------------------------------------------------------------------------------------


def _checked(presets: dict[str, Preset], broken: dict[str, CatalogError]) -> Presets:
    engines = load_engines()
    titles = {name: engine.title for name, engine in engines.items()}
    presets = {name: msgspec.structs.replace(each, titles=titles) for name, each in presets.items()}
    found: dict[str, Preset] = {}
    problems = list(broken.values())
    for name in sorted(presets):
        wrong = [error for error in check_preset(presets, name, engines, broken) if not error.harms]
        if wrong:
            problems += [error.error for error in wrong]
        else:
            found[name] = presets[name]
    return Presets(found=found, problems=tuple(problems))


class Wrong(Struct, frozen=True):
    """An error in a preset, and whether it only is a value that is known to do harm."""

    error: CatalogError
    harms: bool = False


def check_preset(
    presets: Mapping[str, Preset],
    name: str,
    engines: Mapping[str, Engine],
    broken: Mapping[str, CatalogError] | None = None,
) -> list[Wrong]:
    """Return what is wrong with a preset and what it extends; empty: it can be applied to some version of its engines.

    Args:
        presets: All presets by id, of which those that it extends are taken.
        name: Its id.
        engines: The engines by id.
        broken: Errors of the files that could not be read, by id.
    """
    preset = presets[name]
    path = Path(preset.path)
    for base in preset.extends:
        if broken is not None and base in broken:
            return [Wrong(CatalogError(path, preset.lines.get("extends"), f"it extends {base}, which is broken"))]
    try:
        whole = resolve(presets, name)
    except CatalogError as error:
        return [Wrong(error)]
    known = ", ".join([*engines, ANY_ENGINE])
    if whole.engine != ANY_ENGINE and whole.engine not in engines:
        hint = f"Engines are {known}"
        return [Wrong(CatalogError(path, preset.lines.get("engine"), f"there is no engine {whole.engine}", hint))]
    for engine in whole.requires.versions:
        if engine not in engines:
            line = preset.lines.get(f"requires.versions.{engine}")
            return [Wrong(CatalogError(path, line, f"there is no engine {engine}", near(engine, engines)))]
    wanted = [engine for key, engine in engines.items() if whole.engine in (ANY_ENGINE, key)]
    by_engine = {engine.name: _least(whole, engine) for engine in wanted}
    fits = [engine for engine, wrong in by_engine.items() if not wrong]
    if whole.engine == ANY_ENGINE and fits and len(fits) < len(by_engine):
        hint = f'Write engine = "{fits[0]}"'
        return [
            Wrong(_error(msgspec.structs.replace(fault, what=f"{name}: {fault.what}", way_out=hint), path))
            for name, wrong in by_engine.items()
            for fault in wrong
        ]
    once: dict[tuple[str, int | None, str], Fault] = {}
    for fault in (each for wrong in by_engine.values() for each in wrong):
        # Of two engines that say the same, the one that knows what was meant.
        if fault.way_out.startswith("Did you mean") or (fault.path, fault.line, fault.what) not in once:
            once[fault.path, fault.line, fault.what] = fault
    return [Wrong(_error(fault, path), fault.harms) for fault in once.values()]


def _least(preset: Preset, engine: Engine) -> tuple[Fault, ...]:
    """Return the faults in the version of an engine that has the fewest; of two with as many, in the newer."""
    table, least = engine.knobs(), None
    for version in reversed(table.versions):
        found = faults(preset, table, engine.name, version)
        if not found:
            return ()
        if least is None or len(found) < len(least):
            least = found
    return least or ()


def _error(fault: Fault, path: Path) -> CatalogError:
    return CatalogError(Path(fault.path) if fault.path else path, fault.line, fault.what, fault.way_out)
