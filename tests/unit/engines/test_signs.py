"""Every sign against its own examples and near misses, and no failure in the log of a healthy server."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner.engines
from tuner.core.engine import Engine
from tuner.core.logtext import clean
from tuner.engines import load_engines
from tuner.engines.catalogue import NearMiss
from tuner.engines.signs import COMMON, KINDS, SignEntry, SignExample, SignPattern, read_entries

ENGINES = load_engines()
FOLDER = Path(tuner.engines.__file__).parent
GOLDEN = Path(__file__).parents[2] / "golden"
FILES = {name: FOLDER / name / "signs.toml" for name in ENGINES}
CATALOGUE = [
    *((engine, entry, sign) for _, entry, sign in read_entries(COMMON) for engine in ENGINES.values()),
    *((ENGINES[name], entry, sign) for name, path in FILES.items() for _, entry, sign in read_entries(path)),
]
EXAMPLES = [
    pytest.param(engine, entry, example, id=f"{engine.name}-{entry.id}-{number}")
    for engine, entry, _ in CATALOGUE
    for number, example in enumerate(entry.example, 1)
]
NEAR_MISSES = [
    pytest.param(engine, entry, miss, id=f"{engine.name}-{entry.id}-{number}")
    for engine, entry, _ in CATALOGUE
    for number, miss in enumerate(entry.near_miss, 1)
]


def _signs(engine: Engine, line: str) -> dict[str, dict[str, object]]:
    """Fields by id of the signs of a line, split as the reader splits it."""
    first, *rest = line.split("\n")
    prefix = engine.prefix(first)
    message = "\n".join([engine.message(first, prefix), *rest])
    return {sign.id: sign.fields for sign in engine.signs(message, prefixed=prefix.prefixed)}


@pytest.mark.parametrize(("engine", "entry", "example"), EXAMPLES)
def test_example_carries_its_sign_with_all_it_says(engine: Engine, entry: SignEntry, example: SignExample) -> None:
    assert _signs(engine, example.line)[entry.id] == example.fields


@pytest.mark.parametrize(("engine", "entry", "miss"), NEAR_MISSES)
def test_near_miss_does_not_carry_the_sign(engine: Engine, entry: SignEntry, miss: NearMiss) -> None:
    assert entry.id not in _signs(engine, miss.line)


@pytest.mark.parametrize(("entry", "sign"), {e.id: (e, s) for _, e, s in CATALOGUE}.values(), ids=lambda v: v.id)
def test_everything_a_sign_names_occurs_in_an_example(entry: SignEntry, sign: SignPattern) -> None:
    lines = [example.line for example in entry.example]
    fields = [set(example.fields) for example in entry.example]
    named = {name.partition("__")[0] for e in sign.expressions for name in e.groupindex} | set(sign.each)
    assert named <= set().union(*fields)
    assert [needle for needle in sign.contains if not any(needle in line for line in lines)] == []
    assert [start for start in sign.starts if not any(start in line for line in lines)] == []


@pytest.mark.parametrize("entry", {e.id: e for _, e, _ in CATALOGUE}.values(), ids=lambda e: e.id)
def test_a_field_is_of_one_type(entry: SignEntry) -> None:
    """Code that reads a field may rely on what its examples show; a whole number may stand for a decimal one."""
    types: dict[str, set[str]] = {}
    for example in entry.example:
        for name, value in example.fields.items():
            types.setdefault(name, set()).add("number" if type(value) in (int, float) else type(value).__name__)
    assert {name: kinds for name, kinds in types.items() if len(kinds) > 1} == {}


def test_kinds_are_of_the_closed_list() -> None:
    assert {entry.kind for _, entry, _ in CATALOGUE} <= set(KINDS)


HEALTHY = [
    *(GOLDEN / "corpus" / f"{name}.log" for name in ("ok-1-llama8b", "ok-2-scary-warnings", "seed-1-baseline")),
    *sorted((GOLDEN / "logs").glob("*/*/*healthy*.log")),
    *(GOLDEN / "logs" / "sglang" / "0.5.16" / f"h200-{name}.log" for name in ("base", "auto512", "nccl2ch")),
    *sorted((GOLDEN / "real" / "sglang-0.5.9-cpu").glob("*.log")),
    *(GOLDEN / "real" / "sglang-0.5.16-2xH200" / name / "server.log" for name in ("base", "auto512", "f97", "nccl2ch")),
    *(GOLDEN / "real" / "vllm-0.32.0-cpu" / f"{name}.log" for name in ("tp1-start-stop", "dp2")),
    *(
        GOLDEN / "real" / "sglang-0.5.23-cpu" / f"{name}.log"
        for name in ("serve-default", "nometrics-queue", "titles-dp2", "titles-pp2", "fail-kv-too-big")
    ),
]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_failure_in_the_log_of_a_healthy_server(path: Path) -> None:
    engine = ENGINES["vllm" if "vllm" in str(path.relative_to(GOLDEN)) else "sglang"]
    found = []
    for line in path.read_text("utf-8", "replace").splitlines():
        text = clean(line)
        prefix = engine.prefix(text)
        found += engine.signs(engine.message(text, prefix), prefixed=prefix.prefixed)
    assert [(sign.id, sign.text[:200]) for sign in found if sign.kind == "failure"] == []
