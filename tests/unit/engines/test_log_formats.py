"""Every format of every engine against its own examples and near misses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tuner.engines
from tuner.core.engine import Engine
from tuner.core.formats import FormatSet
from tuner.engines import load_engines
from tuner.engines.catalogue import FormatEntry, FormatExample, NearMiss, read_entries

ENGINES = load_engines()
FOLDER = Path(tuner.engines.__file__).parent
CATALOGUES = {name: read_entries(FOLDER / name / "logs.toml") for name in ENGINES}
SETS = {name: FormatSet(f for _, f in entries) for name, entries in CATALOGUES.items()}
EXAMPLES = [
    pytest.param(ENGINES[name], entry, example, id=f"{name}-{entry.id}-{number}")
    for name, entries in CATALOGUES.items()
    for entry, _ in entries
    for number, example in enumerate(entry.example, 1)
]
NEAR_MISSES = [
    pytest.param(ENGINES[name], miss, id=f"{name}-{entry.id}-{number}")
    for name, entries in CATALOGUES.items()
    for entry, _ in entries
    for number, miss in enumerate(entry.near_miss, 1)
]


def test_every_engine_has_formats() -> None:
    assert {"sglang", "vllm"} <= set(CATALOGUES)
    assert all(len(entries) > 30 for entries in CATALOGUES.values())


@pytest.mark.parametrize(("engine", "entry", "example"), EXAMPLES)
def test_example_is_recognised_by_its_format_alone(engine: Engine, entry: FormatEntry, example: FormatExample) -> None:
    prefix = engine.prefix(example.line)
    (fact,) = engine.facts(example.line, prefix, 7)
    message = example.line[prefix.message_start :]
    assert (fact.format, fact.kind, fact.offset) == (entry.id, entry.kind, 7)
    assert _without_none(fact.fields) == example.fields
    assert fact.rank == example.rank
    assert [f.id for f, _ in SETS[engine.name].all(message, prefix.prefixed)] == [entry.id]
    assert engine.interesting(example.line)


@pytest.mark.parametrize(("engine", "miss"), NEAR_MISSES)
def test_near_miss_is_recognised_by_none(engine: Engine, miss: NearMiss) -> None:
    assert engine.facts(miss.line, engine.prefix(miss.line), 0) == []


@pytest.mark.parametrize("name", CATALOGUES)
def test_each_substring_of_a_format_is_in_one_of_its_examples(name: str) -> None:
    engine = ENGINES[name]
    unproven = []
    for entry, _ in CATALOGUES[name]:
        messages = [example.line[engine.prefix(example.line).message_start :] for example in entry.example]
        unproven += [(entry.id, start) for start in entry.starts if not any(m.startswith(start) for m in messages)]
        unproven += [(entry.id, needle) for needle in entry.contains if not any(needle in m for m in messages)]
    assert unproven == []


@pytest.mark.parametrize("name", CATALOGUES)
def test_each_field_of_a_format_is_read_in_one_of_its_examples(name: str) -> None:
    unproven = []
    for entry, log_format in CATALOGUES[name]:
        groups = {group.partition("__")[0] for e in log_format.expressions for group in e.groupindex}
        shown = {key for example in entry.example for key in example.fields}
        unproven += [(entry.id, group) for group in sorted(groups - shown)]
    assert unproven == []


@pytest.mark.parametrize("name", CATALOGUES)
def test_phases_are_phases(name: str) -> None:
    from tuner.domain.server import Phase

    named = {entry.set["phase"] for entry, _ in CATALOGUES[name] if "phase" in entry.set}
    assert named <= {phase.value for phase in Phase}


def _without_none(value: Any) -> Any:
    """TOML has no null: settings that are None are left out of the examples."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return value
