"""Every way to add up a tensor against its own examples, version by version, and the variables that do nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tuner.engines
from tuner.core.gates import Held, all_reduce
from tuner.core.ignored import ignored, overwritten
from tuner.core.versions import in_range, parse_version
from tuner.domain.gates import CardRule, GateRule, Hardware, Look, OverwriteRule, PathExample, PathState, VariableRule
from tuner.domain.starts import Start
from tuner.engines import load_engines
from tuner.engines.gates import PathEntry, load_gates, read_paths
from tuner.errors import CatalogError

ENGINES = load_engines()
FILES = {name: Path(tuner.engines.__file__).parent / name / "gates.toml" for name in ENGINES}
PATHS = [(name, entry) for name, file in FILES.items() for entry in read_paths(file)]
RULES = {name: load_gates(file) for name, file in FILES.items()}


def _start(engine: str, version: str, ranks: int, settings: dict[str, Any], env: dict[str, str]) -> Start:
    size = {"sglang": "tp_size", "vllm": "tensor_parallel_size"}[engine]
    return Start(
        engine=engine,
        version=version,
        settings={size: ranks, **settings},
        env={"PATH": "/usr/bin", **env},
    )


@pytest.mark.parametrize(
    ("engine", "entry", "example"),
    [
        pytest.param(name, entry, example, id=f"{name}-{entry.id}-{number}")
        for name, entry in PATHS
        for number, example in enumerate(entry.example, 1)
    ],
)
def test_path_does_what_its_example_says(engine: str, entry: PathEntry, example: PathExample) -> None:
    start = _start(engine, example.version, example.ranks, example.settings, example.env)
    hardware = Hardware(
        full_nvlink=example.nvlink,
        capability=example.capability,
        told="NV18" if example.nvlink else "PHB",
        platform=entry.platform or "cuda",
    )
    told = all_reduce(start, ENGINES[engine], hardware)
    assert told is not None
    path = next(path for path in told.paths if path.id == entry.id)
    closed = path.closed
    assert (path.state, closed.what if closed is not None else "") == (example.state, example.closed)


@pytest.mark.parametrize(
    ("engine", "rule", "example"),
    [
        pytest.param(name, rule, example, id=f"{rule.name}-{number}")
        for name, rules in RULES.items()
        for rule in rules.variables
        for number, example in enumerate(rule.example, 1)
    ],
)
def test_variable_is_read_by_the_versions_that_its_examples_say(
    engine: str, rule: VariableRule, example: dict[str, Any]
) -> None:
    env = {rule.name: example.get("value", "1"), **example.get("env", {})}
    start = _start(engine, example["version"], example.get("ranks", 2), {}, env)
    hardware = Hardware(full_nvlink=example.get("nvlink"))
    found = ignored(Held(start, ENGINES[engine], hardware), all_reduce(start, ENGINES[engine], hardware))
    assert (rule.name in [each.name for each in found]) is example["ignored"]


@pytest.mark.parametrize(
    ("engine", "rule", "example"),
    [
        pytest.param(name, rule, example, id=f"{name}-{rule.name}-{example['version']}")
        for name, rules in RULES.items()
        for rule in rules.overwrites
        for example in rule.example
    ],
)
def test_engine_overwrites_what_its_examples_say(engine: str, rule: OverwriteRule, example: dict[str, Any]) -> None:
    start = _start(engine, example["version"], 8, {}, {rule.name: example["value"]})
    assert overwritten(rule, example["value"], Held(start, ENGINES[engine])) == example["becomes"]


@pytest.mark.parametrize("card", RULES["sglang"].cards, ids=lambda card: card.name)
def test_a_card_is_known_by_its_names_only(card: CardRule) -> None:
    assert card.example
    for example in card.example:
        first = next(each for each in RULES["sglang"].cards if re.search(each.name, example["line"]))
        assert first is card, example


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_everything_has_an_example(rules: Any) -> None:
    assert [rule.name for rule in (*rules.variables, *rules.overwrites) if not rule.example] == []


def _closings(rule: GateRule) -> list[str]:
    return [closing.sign for closing in (*rule.closed_by, *rule.passed_by)]


@pytest.mark.parametrize("name", ENGINES)
def test_gates_name_signs_paths_and_variables_that_there_are(name: str) -> None:
    signs = {sign.id for sign in ENGINES[name]._signs.signs}  # type: ignore[attr-defined]
    ids = [path.id for path in RULES[name].paths]
    for path in RULES[name].paths:
        named = [sign for gate in path.gates for sign in _closings(gate)]
        assert {*named, *(closing.sign for closing in path.proven_by)} <= signs, path.id
        others = [gate.name for gate in path.gates if gate.test is Look.PATH]
        assert all(ids.index(other) < ids.index(path.id) for other in others)
    assert {each for rule in RULES[name].variables for each in rule.acts_on} <= set(ids)
    assert ids[-1] == "nccl"


@pytest.mark.parametrize("name", ENGINES)
def test_a_version_has_a_way_once(name: str) -> None:
    known = {example.version for _, entry in PATHS for example in entry.example}
    for version in known:
        at = parse_version(version)
        assert at is not None
        ids = [path.id for path in RULES[name].paths if in_range(at, path.versions)]
        assert len(ids) == len(set(ids)), version


def test_the_order_is_that_of_the_version() -> None:
    def order(version: str) -> list[str]:
        told = all_reduce(_start("sglang", version, 8, {}, {}), ENGINES["sglang"])
        assert told is not None
        return [path.id for path in told.paths]

    # fmt: off
    assert order("0.4.6") == ["custom-v1", "nccl"]
    assert order("0.5.9") == ["flashinfer-fusion", "nccl-symm", "custom-v1", "mscclpp", "torch-symm", "nccl"]
    assert order("0.5.16") == [
        "flashinfer-fusion", "nccl-symm", "mscclpp", "custom-v2", "custom-v1", "torch-symm", "nccl",
    ]
    assert order("0.5.23") == [
        "flashinfer-fusion", "mscclpp", "custom-v2", "custom-v1", "nccl-symm", "pcie-ipc", "torch-symm", "nccl",
    ]
    # fmt: on


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("ranks", range(2, 17))
def test_something_always_takes_the_tensor(name: str, ranks: int) -> None:
    for version in ("0.4.6", "0.8.5", "0.5.9", "0.5.23", "0.33.0", None):
        told = all_reduce(_start(name, version or "", ranks, {}, {}), ENGINES[name])
        assert told is not None
        assert told.used[-1].id == "nccl"
        assert told.paths[-1].state is PathState.OPEN


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[[path]]\nid = "x"\ntitle = "x"\n', "no example"),
        ('[[path]]\nid = "x"\ntitle = "x"\ncolour = "red"\n', "path is wrong"),
        ('[[variable]]\nname = "X"\n', "variable is wrong"),
        ("[[path", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "gates.toml"
    file.write_text(text, "utf-8")
    with pytest.raises(CatalogError, match=complaint):
        load_gates(file)
