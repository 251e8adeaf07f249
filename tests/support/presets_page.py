"""Make `presets/README.md` from the bundled presets: what each does, what it needs, and how it is spelled."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tuner.catalog import load_presets, preset_folders
from tuner.cli.presets import requires_words
from tuner.core.presets import overlay, resolve
from tuner.domain.presets import ANY_ENGINE, Preset
from tuner.engines import load_engines
from tuner.paths import presets_dir

PAGE = presets_dir() / "README.md"

_HEAD = """\
# Presets

Named changes of a server's arguments and environment, one TOML file each. This page is generated:
`UPDATE_DOCS=1 pytest tests/unit/test_catalog.py`. [Extending gputuner](../docs/extending.md#a-preset) says how to write
one; `gputuner presets show ID` shows one as any version of an engine spells it, `gputuner presets diff ID HOST` what it
would change on a server that runs.

A preset is laid over the way a server is started: what it does not name stays as it is. Presets of the user
(`presets/` in gputuner's configuration folder) and of the project (`presets/` and `.gputuner/presets/` in the working
folder) replace bundled ones by name, in this order. Files in this folder are shipped in the wheel as `tuner/_presets`.

Figures are of the source that each preset names; none of them is ours unless it says so.
"""
_GROUPS = {ANY_ENGINE: "For any engine", "sglang": "For SGLang", "vllm": "For vLLM"}


def bundled() -> dict[str, Preset]:
    """Return the bundled presets by id, `extends` resolved."""
    assert preset_folders()[0] == presets_dir()
    found = {name: preset for name, preset in load_presets(PAGE.parent.parent).found.items() if _is_bundled(preset)}
    return {name: resolve(found, name) for name in found}


def _is_bundled(preset: Preset) -> bool:
    return preset.path.startswith(str(presets_dir()))


def page() -> str:
    """Return the whole page."""
    presets = bundled()
    parts = [_HEAD]
    for engine, title in _GROUPS.items():
        parts.append(f"\n## {title}\n\n| preset | why | needs | sets |\n| --- | --- | --- | --- |\n")
        parts += [_row(preset) for preset in presets.values() if preset.engine == engine]
    return "".join(parts)


def _row(preset: Preset) -> str:
    needs = "; ".join(requires_words(preset))
    cells = (f"[`{preset.id}`]({preset.id}.toml) {preset.title}", preset.why, needs, "<br>".join(_sets(preset)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _sets(preset: Preset) -> Iterator[str]:
    """Yield what a preset sets as the newest version of its engine spells it, SGLang where it is for any."""
    engines = load_engines()
    engine = engines[preset.engine if preset.engine != ANY_ENGINE else "sglang"]
    overlaid = overlay(preset, engine.knobs(), engine.name, None)
    if overlaid.argv:
        yield f"`{shlex.join(overlaid.argv)}`"
    for name, value in overlaid.env.items():
        yield f"`{name}={value}`"
    gone = [name for name, value in overlaid.values.items() if value is None]
    off = [name for name, value in overlaid.values.items() if value is False and not overlaid.argv]
    for name in (*gone, *off):
        spelling = engine.knob(name, None)
        yield f"no `{spelling.text if spelling is not None else name}`"
