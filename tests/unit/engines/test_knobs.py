"""The catalogues of knobs: what the loader refuses, and that each name stands in the settings real servers print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.golden_starts import last_start
from tuner.core.engine import Engine
from tuner.core.knobs import flags_of
from tuner.core.versions import in_range, parse_version
from tuner.domain.knobs import KnobKind
from tuner.engines import load_engines
from tuner.engines.knobs import SHARED, load_knobs, read_knobs
from tuner.errors import CatalogError

ENGINES = load_engines()
FOLDER = SHARED.parent
FILES = [SHARED, *(FOLDER / name / "knobs.toml" for name in ENGINES)]
GOOD = """\
newest = "1.2"
[[knob]]
name = "a"
type = "int"
title = "what it is"
[[knob.spelled]]
versions = "1.0 -"
text = "--a"
[[knob.example]]
version = "1.1"
text = "--a"
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_entry_proves_itself(path: Path) -> None:
    assert len(read_knobs(path).entries) >= 15


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD.partition("[[knob.example]]")[0], 2, "knob a has no example"),
        (GOOD.replace('text = "--a"', 'text = "--a"\nby_memory = [[1024, 2]]', 1), 2, "does not rise from 0 MiB"),
        (GOOD.replace('text = "--a"', 'text = "--a"\ndefault = 1\nby_memory = [[0, 2]]', 1), 2, "or is fixed as well"),
        (GOOD + GOOD.partition("\n")[2], 12, "two knobs are called a"),
        (GOOD.replace('version = "1.1"', 'version = "0.9"'), 2, "absent in 0.9"),
        (GOOD.replace('text = "--a"', 'text = "A"', 1), 2, "and is a flag"),
        (GOOD.replace('type = "int"', 'type = "inch"'), 2, "inch"),
        (GOOD.replace('title = "what it is"', 'title = "x"\ncolour = 1'), 2, "colour"),
        (GOOD.replace('version = "1.1"', 'version = "new"'), 2, "no version"),
        (GOOD.replace('newest = "1.2"', "newest ="), 1, "is not TOML"),
        (GOOD + '[[knob.hazard]]\noutcome = "hang"\nwhy = "w"\n', 2, "a hazard of knob a names no values"),
        (GOOD + '[[knob.hazard]]\nvalue = 1\noutcome = "boom"\nwhy = "w"\n', 2, "boom"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "knobs.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(CatalogError, match=words) as caught:
        read_knobs(path)
    assert caught.value.line == line


def test_a_hazard_that_names_no_knob_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "knobs.toml"
    hazard = '[[knob.hazard]]\nvalue = 1\noutcome = "hang"\nwhy = "w"\ngiven = { b = true }\n'
    path.write_text(GOOD.replace("[[knob.example]]", hazard + "[[knob.example]]"), "utf-8")
    with pytest.raises(CatalogError, match="names b, which is no knob") as caught:
        load_knobs(path)
    assert caught.value.line == 2


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_versions_are_in_order_and_end_with_the_newest(engine: Engine) -> None:
    knobs = engine.knobs()
    assert list(knobs.versions) == sorted(knobs.versions, key=lambda version: parse_version(version) or ())
    assert knobs.versions[-1] == knobs.newest


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_a_flag_means_one_knob(engine: Engine) -> None:
    """Two knobs of one flag would leave it to their order which one a command line sets."""
    meant: dict[str, str] = {}
    for knob in engine.knobs().values():
        for flag in flags_of(knob):
            assert meant.setdefault(flag, knob.name) == knob.name, flag


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_an_opposite_is_no_name_of_another_knob(engine: Engine) -> None:
    knobs = engine.knobs()
    for knob in knobs.values():
        if knob.opposite:
            assert knob.opposite not in knobs
            named = knobs.named(knob.opposite)
            assert named is not None
            assert (named.knob.name, named.opposite, named.turned(True)) == (knob.name, True, False)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_hazards_read_as_sentences_and_each_can_be_met(engine: Engine) -> None:
    for knob in engine.knobs().values():
        for hazard in knob.hazards:
            text = f"{knob.name}: {hazard.why}"
            assert not hazard.why.endswith("."), text
            assert not hazard.way_out.endswith("."), text
            assert len(hazard.why) < 160, text
            assert re.compile(hazard.pattern)
            spans = [spelled.versions for spelled in knob.spellings]
            meets = [v for v in engine.knobs().versions if in_range(parse_version(v) or (), hazard.versions)]
            assert any(in_range(parse_version(v) or (), span) for v in meets for span in spans), text


def test_a_missing_file_is_a_catalogue_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        load_knobs(tmp_path / "none.toml")


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_ranges_do_not_overlap_and_both_engines_have_nccl(engine: Engine) -> None:
    knobs = engine.knobs()
    assert knobs["NCCL_BUFFSIZE"].kind is KnobKind.ENV
    for knob in knobs.values():
        for version in [e.version for path in FILES for e in _examples(path, knob.name)]:
            at = parse_version(version)
            assert at is not None
            holds = [spelled for spelled in knob.spellings if in_range(at, spelled.versions)]
            assert len(holds) <= 1, f"{knob.name} is spelled twice in {version}"


def _examples(path: Path, name: str) -> tuple[object, ...]:
    return next((entry.example for entry in read_knobs(path).entries if entry.name == name), ())


DUMPS = [
    ("logs/sglang/0.4.7/tp4-healthy-pcie.log", "0.4.7"),
    ("logs/sglang/0.5.9/cpu-serve-default.log", "0.5.9"),
    ("real/sglang-0.5.16-2xH200/base/server.log", "0.5.16"),
    ("real/sglang-0.5.23-cpu/serve-default.log", "0.5.23"),
    ("real/sglang-0.5.23-cpu/serve-tp2.log", "0.5.23"),
]


@pytest.mark.parametrize(("name", "version"), DUMPS, ids=lambda value: value if value[0].isdigit() else "")
def test_flags_of_a_version_stand_in_the_settings_it_prints(name: str, version: str) -> None:
    settings = last_start(name).settings
    knobs = ENGINES["sglang"].knobs()
    spelled = {knob.name: knobs.spelling(knob.name, version) for knob in knobs.values() if knob.kind is KnobKind.FLAG}
    known = {name: spelling.setting for name, spelling in spelled.items() if spelling is not None}
    assert len(known) > 20
    if len(settings) > 200:
        assert {name: key for name, key in known.items() if key not in settings} == {}
        absent = {name for name, spelling in spelled.items() if spelling is None}
        last = {name: knobs[name].spellings[-1].text.lstrip("-").replace("-", "_") for name in absent}
        assert {name for name, key in last.items() if key in settings} == set()


def test_the_settings_of_a_command_line_are_found_in_the_catalogue() -> None:
    knobs = ENGINES["vllm"].knobs()
    given = last_start("real/vllm-0.32.0-cpu/tp2-worker-sigkill.log").given
    found = {key: knob.name for key in given if (knob := knobs.find(key)) is not None}
    assert found == {
        "max_model_len": "context_length",
        "enforce_eager": "enforce_eager",
        "load_format": "load_format",
        "tensor_parallel_size": "tp_size",
        "max_num_seqs": "max_running_requests",
    }


@pytest.mark.parametrize(
    ("engine", "name", "version", "text"),
    [
        ("sglang", "cuda_graph_max_bs", "0.5.13", "--cuda-graph-max-bs"),
        ("sglang", "cuda_graph_max_bs", "0.5.20", "--cuda-graph-max-bs-decode"),
        ("sglang", "SGLANG_CUSTOM_ALLREDUCE_ALGO", "0.5.9", None),
        ("sglang", "SGLANG_CUSTOM_ALLREDUCE_ALGO", "0.5.10", "SGLANG_CUSTOM_ALLREDUCE_ALGO"),
        ("sglang", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "0.5.11", None),
        ("sglang", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "0.5.12", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"),
        ("sglang", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "0.5.20", None),
        ("sglang", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "0.5.23", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"),
        ("vllm", "tp_size", "0.32.0", "--tensor-parallel-size"),
        ("vllm", "swap_space", "0.18.1", None),
        ("vllm", "gpu_memory_utilization", "0.9.2", "--gpu-memory-utilization"),
    ],
)
def test_how_versions_spell_a_knob(engine: str, name: str, version: str, text: str | None) -> None:
    spelling = ENGINES[engine].knob(name, version)
    assert (None if spelling is None else spelling.text) == text


def test_the_default_utilisation_changed_with_its_version() -> None:
    old, new = (ENGINES["vllm"].knob("gpu_memory_utilization", version) for version in ("0.19.1", "0.20.2"))
    assert old is not None
    assert new is not None
    assert (old.default, new.default) == (0.9, 0.92)
