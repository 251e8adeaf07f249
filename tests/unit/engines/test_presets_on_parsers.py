"""Every knob and every bundled preset, held against the parsers of real versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.catalog import load_presets
from tuner.core.helptext import flag_problems
from tuner.core.presets import overlay, resolve
from tuner.core.recipes import lay_over
from tuner.domain.knobs import KnobType
from tuner.domain.presets import ANY_ENGINE
from tuner.domain.recipe import Recipe
from tuner.engines import load_engines

ENGINES = load_engines()
HELPS = Path(__file__).parents[2] / "golden/help"
VERSIONS = (("sglang", "0.5.9"), ("sglang", "0.5.23"), ("vllm", "0.32.0"))
BASES = {
    "sglang": (
        ("/v/bin/python", "-m", "sglang.launch_server"),
        ("--model-path", "m", "--tp", "2", "--mem-frac", "0.8"),
    ),
    "vllm": (("/v/bin/vllm", "serve"), ("m", "-tp", "2", "--gpu-memory-utilization=0.9")),
}
TAKES = {"0": (0, 0), "1": (1, 1), "?": (0, 1), "*": (0, 99), "+": (1, 99)}


def held(engine: str, version: str) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = json.loads((HELPS / f"{engine}-{version}.flags.json").read_text())
    return flags


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_a_parser_has_every_flag_that_the_catalogue_says_it_has(engine: str, version: str) -> None:
    flags = held(engine, version)
    for name, knob in ENGINES[engine].knobs().items():
        spelling = ENGINES[engine].knob(name, version)
        if spelling is not None and spelling.flag is not None:
            assert spelling.flag in flags, name
            switch = flags[spelling.flag][0] == "0"
            assert switch == (knob.type is KnobType.BOOL), name


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_a_parser_takes_every_preset_laid_over_a_server(engine: str, version: str) -> None:
    presets = load_presets().found
    flags = held(engine, version)
    command, args = BASES[engine]
    base = Recipe(name="r", host="h", engine=engine, command=command, args=args)
    laid = 0
    for name in presets:
        preset = resolve(presets, name)
        over = overlay(preset, ENGINES[engine].knobs(), engine, version)
        if preset.engine not in (ANY_ENGINE, engine) or over.problems:
            continue
        launch = lay_over(base, over, preset, ENGINES[engine], known=frozenset(flags))
        line = ENGINES[engine].command_line(launch.argv)
        assert flag_problems(launch.argv[len(command) :], frozenset(flags), ENGINES[engine]) == (), name
        for each in line.arguments:
            if each.flag in flags:
                least, most = TAKES[flags[each.flag][0]]
                assert least <= len(each.values) <= most, (name, each.words)
        laid += 1
    assert laid > 20
