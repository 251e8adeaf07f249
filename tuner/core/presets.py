"""Compose presets, and say what a host lacks of what they need; `core.overlays` spells them.

A preset is an overlay: it never stands alone, but is laid over the way a server is started on its host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tuner.core.gates import hardware_of
from tuner.core.logtext import clean
from tuner.core.overlays import engine_differs, near, overlay, version_differs
from tuner.domain.gates import Hardware
from tuner.domain.presets import ANY_ENGINE, Preset, Requires
from tuner.domain.state import HostState
from tuner.errors import CatalogError, UsageProblem
from tuner.units import GIB

__all__ = ["overlay", "resolve", "unmet"]

_LISTED = "`gputuner presets list` shows those that exist"


# --- Composing --------------------------------------------------------------------------------------------------------


def resolve(
    presets: Mapping[str, Preset],
    id: str,  # noqa: A002 - the word of the file
    broken: Iterable[CatalogError] = (),
) -> Preset:
    """Return a preset with all that it extends merged into it; its own values win, then those of later bases.

    Args:
        presets: All presets by id.
        id: The one that is wanted.
        broken: Errors of files that are no preset, of which one may be the file of `id`.

    Raises:
        UsageProblem: It does not exist.
        CatalogError: Its file is wrong, it extends one that does not exist, or itself; with file and line.
    """
    if id not in presets:
        for error in broken:
            if error.path.stem == id:
                raise error
        raise UsageProblem(f"There is no preset {clean(id)[:60]}", "", near(id, presets, _LISTED))
    return _resolved(presets, id, ())


def _resolved(presets: Mapping[str, Preset], name: str, path: tuple[str, ...]) -> Preset:
    own = presets[name]
    merged: Preset | None = None
    for base in own.extends:
        where = Path(own.path), own.lines.get("extends")
        if base in (*path, name):
            circle = " -> ".join([*(path[path.index(base) :] if base in path else ()), name, base])
            raise CatalogError(*where, f"{name} extends itself ({circle})", "Take one of them out of extends.")
        if base not in presets:
            raise CatalogError(*where, f"{name} extends {base}, which does not exist", near(base, presets, _LISTED))
        below = _resolved(presets, base, (*path, name))
        merged = below if merged is None else _merged(merged, below, where)
    return own if merged is None else _merged(merged, own, (Path(own.path), own.lines.get("extends")), last=True)


def _merged(low: Preset, high: Preset, where: tuple[Path, int | None], *, last: bool = False) -> Preset:
    """Merge two presets; `high` wins. `last`: `high` is the one that extends, whose identity is kept."""
    engines = {low.engine, high.engine} - {ANY_ENGINE}
    if len(engines) > 1:
        raise CatalogError(*where, f"{high.id} joins presets for {' and '.join(sorted(engines))}", "Keep one engine.")
    links = {low.requires.interconnect, high.requires.interconnect} - {""}
    if len(links) > 1:
        raise CatalogError(*where, f"{high.id} joins presets for hosts with and without NVLink", "Keep one of them.")
    sets = {*high.args, *high.env, *high.flags}
    inherited = {key: low.paths.get(key, low.path) for key in low.lines}
    lines = {**low.lines, **high.lines}
    own = set(high.lines) - set(high.paths)
    paths = {**inherited, **high.paths}
    return msgspec.structs.replace(
        high,
        engine=next(iter(engines), ANY_ENGINE),
        requires=_both(low.requires, high.requires),
        expect=tuple(dict.fromkeys((*low.expect, *high.expect))),
        local=tuple(dict.fromkeys((*low.local, *high.local))),
        extends=high.extends if last else (),
        args=_laid(low.args, high.args, high.unset),
        env=_laid(low.env, high.env, high.unset),
        flags=_laid(low.flags, high.flags, high.unset),
        unset=tuple(dict.fromkeys((*(name for name in low.unset if name not in sets), *high.unset))),
        lines=lines,
        paths={key: path for key, path in paths.items() if not (last and key in own)},
    )


def _laid(low: Mapping[str, Any], high: Mapping[str, Any], unset: tuple[str, ...]) -> dict[str, Any]:
    """Merge two tables in the order in which their values apply."""
    kept = {name: value for name, value in low.items() if name not in high and name not in unset}
    return {**kept, **high}


def _both(low: Requires, high: Requires) -> Requires:
    """Return what two presets need together."""
    compute = tuple(each for each in high.compute if each in low.compute) if low.compute and high.compute else ()
    return Requires(
        gpus=max((each for each in (low.gpus, high.gpus) if each is not None), default=None),
        interconnect=high.interconnect or low.interconnect,
        compute=compute or high.compute or low.compute,
        memory_gib=max((each for each in (low.memory_gib, high.memory_gib) if each is not None), default=None),
        iommu=high.iommu or low.iommu,
        versions={**low.versions, **high.versions},
        words="; ".join(dict.fromkeys(each for each in (low.words, high.words) if each)),
    )


# --- What it needs ----------------------------------------------------------------------------------------------------


def unmet(preset: Preset, state: HostState | None, engine: str, version: str | None) -> tuple[str, ...]:
    """Return what a preset needs and the host or the engine is known not to have, each in words.

    Args:
        preset: A resolved preset.
        state: The host; None: nothing is known of it.
        engine: Id of the server's engine.
        version: Its version; None: not known.
    """
    needs = preset.requires
    missing = [engine_differs(preset, engine), version_differs(preset, engine, version)]
    table = None if state is None else state.gpu_table
    if state is not None and table is not None and table.gpus:
        missing += _unmet_by_cards(needs, state)
    return tuple(each for each in missing if each)


def _unmet_by_cards(needs: Requires, state: HostState) -> list[str]:
    gpus = state.gpu_table.gpus if state.gpu_table is not None else ()
    missing: list[str] = []
    if needs.gpus is not None and len(gpus) < needs.gpus:
        missing.append(f"needs {needs.gpus} GPUs, the host has {len(gpus)}")
    card = _hardware(state)
    if needs.interconnect == "nvlink" and card.full_nvlink is False:
        missing.append(f"needs NVLink between every pair of GPUs, the host has {card.told}")
    if needs.interconnect == "pcie" and card.full_nvlink is True:
        missing.append(f"is for GPUs without NVLink, the host has {card.told}")
    if needs.compute and card.capability and card.capability not in needs.compute:
        missing.append(f"needs compute capability {' or '.join(needs.compute)}, the host has {card.capability}")
    totals = [gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes is not None]
    if needs.memory_gib is not None and totals and min(totals) < needs.memory_gib * GIB:
        missing.append(f"needs {needs.memory_gib:g} GiB on each card, the host has {min(totals) / GIB:.0f} GiB")
    return missing


def _hardware(state: HostState) -> Hardware:
    """Return the GPUs of the servers on a host; of all its GPUs where there is no server."""
    for server in state.servers:
        found = hardware_of(state, server)
        if found.full_nvlink is not None or found.capability:
            return found
    return Hardware()
