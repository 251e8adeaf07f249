"""Knobs by any of their names and versions, and values as people type them."""

from __future__ import annotations

import pytest

from tuner.core.knobs import KnobTable, as_words, chosen, left_out_words, read_value
from tuner.domain.knobs import Hazard, Knob, KnobKind, KnobType, SpelledAs
from tuner.engines import load_engines

GRAPHS = Knob(
    name="cuda_graph_max_bs",
    kind=KnobKind.FLAG,
    type=KnobType.INT,
    title="largest batch with a graph",
    min=1,
    also=("max_cudagraph_capture_size",),
    spellings=(
        SpelledAs(versions="0.4 - 0.5.13", text="--cuda-graph-max-bs"),
        SpelledAs(versions="0.5.14 - 0.6", text="--cuda-graph-max-bs-decode", setting="decode_bs", default=8),
    ),
)
LEVEL = Knob(
    name="NCCL_P2P_LEVEL",
    kind=KnobKind.ENV,
    type=KnobType.TEXT,
    title="how far",
    spellings=(SpelledAs(text="NCCL_P2P_LEVEL"),),
    hazards=(Hazard(value="SYS", outcome="hang", why="IOMMU", versions="0.5 -"),),
)
TABLE = KnobTable([GRAPHS, LEVEL], newest="0.5.20")


@pytest.mark.parametrize(
    "name",
    ["cuda_graph_max_bs", "--cuda-graph-max-bs", "cuda-graph-max-bs-decode", "decode_bs", "MAX_CUDAGRAPH_CAPTURE_SIZE"],
)
def test_a_knob_is_found_by_all_its_names(name: str) -> None:
    assert TABLE.find(name) is GRAPHS


def test_a_name_that_is_none_is_no_knob() -> None:
    assert TABLE.find("cuda_graph") is None
    assert TABLE.spelling("cuda_graph", "0.5.9") is None
    assert TABLE.absent("cuda_graph", "0.5.9") == "there is no knob cuda_graph"


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.5.13", "--cuda-graph-max-bs"),
        ("0.5.13.post1", "--cuda-graph-max-bs"),
        ("0.5.14", "--cuda-graph-max-bs-decode"),
        ("0.5.14 - 0.5.18", "--cuda-graph-max-bs-decode"),
        (">=0.5.14", "--cuda-graph-max-bs-decode"),
    ],
)
def test_a_version_spells_it_its_way(version: str, text: str) -> None:
    spelling = TABLE.spelling("cuda_graph_max_bs", version)
    assert spelling is not None
    assert (spelling.text, spelling.flag, spelling.env, spelling.assumed) == (text, text, None, False)


@pytest.mark.parametrize("version", [None, "unknown"])
def test_an_unknown_version_takes_the_newest_spelling_and_says_so(version: str | None) -> None:
    spelling = TABLE.spelling("cuda_graph_max_bs", version)
    assert spelling is not None
    assert spelling.text == "--cuda-graph-max-bs-decode"
    assert spelling.setting == "decode_bs"
    assert spelling.default == 8
    assert spelling.assumed


def test_a_newer_version_than_any_checked_is_assumed() -> None:
    spelling = TABLE.spelling("cuda_graph_max_bs", "0.5.21")
    assert spelling is not None
    assert spelling.assumed


def test_why_a_version_does_not_have_it() -> None:
    assert TABLE.absent("cuda_graph_max_bs", "0.3.2") == "--cuda-graph-max-bs came with 0.4"
    assert TABLE.absent("cuda_graph_max_bs", "0.7.0") == "--cuda-graph-max-bs-decode went after 0.6"
    assert TABLE.absent("cuda_graph_max_bs", "0.5.9") == ""


def test_a_value_is_found_under_the_key_of_its_version() -> None:
    assert TABLE.value({"cuda_graph_max_bs": 32}, "cuda_graph_max_bs", "0.5.9") == 32
    assert TABLE.value({"decode_bs": 64, "cuda_graph_max_bs": None}, "cuda_graph_max_bs", "0.5.16") == 64
    assert TABLE.value({}, "cuda_graph_max_bs") is None
    assert TABLE.value({"x": 1}, "y") is None


def test_hazards_by_value_and_version() -> None:
    assert [hazard.outcome for hazard in TABLE.hazards("nccl_p2p_level", "sys", "0.5.9")] == ["hang"]
    assert TABLE.hazards("NCCL_P2P_LEVEL", "SYS", "0.4.9") == ()
    assert TABLE.hazards("NCCL_P2P_LEVEL", "PIX", "0.5.9") == ()


def _knob(kind: KnobType, unit: str = "", **bounds: float) -> Knob:
    return Knob(
        name="k", kind=KnobKind.FLAG, type=kind, title="", unit=unit, spellings=(SpelledAs(text="--k"),), **bounds
    )


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (KnobType.INT, "512", 512),
        (KnobType.INT, "-1", -1),
        (KnobType.INT, "4_096", 4096),
        (KnobType.INT, "16,384", 16384),
        (KnobType.INT, "8k", 8 << 10),
        (KnobType.INT, "auto", None),
        (KnobType.INTS, "1,2,4", [1, 2, 4]),
        (KnobType.INTS, "[1, 2]", [1, 2]),
        (KnobType.FLOAT, "0.88", 0.88),
        (KnobType.FLOAT, "88%", 0.88),
        (KnobType.FLOAT, "none", None),
        (KnobType.BOOL, "on", True),
        (KnobType.BOOL, "False", False),
        (KnobType.TEXT, "fp8_e4m3", "fp8_e4m3"),
        (KnobType.TEXT, "none", None),
    ],
)
def test_values_as_people_type_them(kind: KnobType, text: str, value: object) -> None:
    assert read_value(_knob(kind), text) == value


@pytest.mark.parametrize(
    ("kind", "unit", "text", "value"),
    [
        (KnobType.INT, "tokens", "32k", 32 << 10),
        (KnobType.INT, "bytes", "4194304", 4 << 20),
        (KnobType.INT, "bytes", "16MiB", 16 << 20),
        (KnobType.INT, "bytes", "16 MB", 16 << 20),
        (KnobType.INT, "bytes", "128 Ki", 128 << 10),
        (KnobType.INT, "bytes", "1G", 1 << 30),
        (KnobType.INT, "KiB", "512", 512),
        (KnobType.INT, "KiB", "16MiB", 16 << 10),
        (KnobType.FLOAT, "GiB", "4", 4.0),
        (KnobType.FLOAT, "GiB", "4GiB", 4.0),
        (KnobType.FLOAT, "GiB", "512 MiB", 0.5),
        (KnobType.FLOAT, "GB", "4GB", 4.0),
        (KnobType.FLOAT, "GB", "1GiB", 1.073741824),
        (KnobType.INT, "seconds", "90s", 90),
        (KnobType.INT, "seconds", "1.5m", 90),
        (KnobType.FLOAT, "seconds", "2h", 7200.0),
        (KnobType.FLOAT, "", "1e-3", 0.001),
    ],
)
def test_a_unit_is_of_what_the_knob_counts(kind: KnobType, unit: str, text: str, value: object) -> None:
    assert read_value(_knob(kind, unit), text) == value


@pytest.mark.parametrize(
    "text", ["4GiB", "4 GB", "4g", "16MiB", "16mb", "8KiB", "8kb", "4Ki", "90s", "5min", "2h", "8%"]
)
@pytest.mark.parametrize("unit", ["tokens", "requests", ""])
@pytest.mark.parametrize("kind", [KnobType.INT, KnobType.INTS])
def test_what_counts_things_takes_no_unit_of_anything_else(kind: KnobType, unit: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^a whole number{f' of {unit}' if unit else ''} is meant, not '{text}'$"):
        read_value(_knob(kind, unit), text)


@pytest.mark.parametrize(
    ("kind", "unit", "text"),
    [
        (KnobType.FLOAT, "", "0.9GiB"),
        (KnobType.FLOAT, "", "90s"),
        (KnobType.FLOAT, "GiB", "90%"),
        (KnobType.FLOAT, "GiB", "90s"),
        (KnobType.FLOAT, "seconds", "50%"),
        (KnobType.FLOAT, "seconds", "4GiB"),
        (KnobType.INT, "seconds", "4k"),
        (KnobType.INT, "bytes", "4min"),
        (KnobType.INT, "bytes", "0.3KiB"),
        (KnobType.INT, "GiB", "512MiB"),
        (KnobType.INT, "KiB", "100%"),
    ],
)
def test_what_measures_takes_only_its_own_units(kind: KnobType, unit: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"number{f' of {unit}' if unit else ''} is meant, not "):
        read_value(_knob(kind, unit), text)


def test_every_unit_of_the_catalogue_is_one_that_numbers_are_read_by() -> None:
    known = {"", "tokens", "requests", "bytes", "KiB", "GiB", "GB", "seconds"}
    for engine in load_engines().values():
        for knob in engine.knobs().values():
            numeric = knob.type in (KnobType.INT, KnobType.FLOAT, KnobType.INTS)
            assert knob.unit in (known if numeric else {""}), knob.name


def test_a_whole_number_is_written_without_point() -> None:
    knob = KnobTable([_knob(KnobType.FLOAT, "GiB")])
    spelling = knob.spelling("k", None)
    assert spelling is not None
    assert as_words(knob["k"], spelling, 4.0) == ("4",)
    assert as_words(knob["k"], spelling, 0.85) == ("0.85",)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (KnobType.INT, "many", "a whole number is meant"),
        (KnobType.INT, "1.5", "a whole number is meant"),
        (KnobType.INT, "9" * 40, "more than any server counts"),
        (KnobType.FLOAT, "nan", "a number is meant"),
        (KnobType.FLOAT, "x", "a number is meant"),
        (KnobType.FLOAT, "1.5", "more than 1"),
        (KnobType.FLOAT, "-0.5", "less than 0"),
        (KnobType.BOOL, "maybe", "on or off"),
    ],
)
def test_what_is_no_value_is_refused_in_words(kind: KnobType, text: str, words: str) -> None:
    knob = _knob(kind, min=0, max=1) if kind is KnobType.FLOAT else _knob(kind)
    with pytest.raises(ValueError, match=words):
        read_value(knob, text)


def test_a_default_by_memory_is_told_for_the_smallest_gpu_or_as_its_steps() -> None:
    table = load_engines()["sglang"].knobs()
    knob, gib = table["chunked_prefill_size"], 1 << 30
    old, new = table.spelling(knob.name, "0.5.9"), table.spelling(knob.name, "0.5.23")
    assert old is not None
    assert new is not None
    assert [chosen(old, size * gib) for size in (16, 24, 48, 80, 192)] == [2048, 2048, 4096, 8192, 16384]
    assert [chosen(new, size * gib) for size in (16, 24, 48, 80, 192)] == [2048, 4096, 4096, 8192, 16384]
    assert chosen(old, None) is None
    assert left_out_words(knob, old, 80 * gib) == "8192, by the memory of the smallest GPU"
    steps = "2048, 4096 from 35 GiB, 8192 from 60 GiB, 16384 from 160 GiB"
    assert left_out_words(knob, old) == f"by the memory of the smallest GPU: {steps}"


def test_what_a_left_out_knob_is_is_told_where_it_is_known() -> None:
    table = load_engines()["sglang"].knobs()
    words = {
        "max_prefill_tokens": "16384",
        "disable_radix_cache": "off",
        "context_length": "the longest that the LLM has",
        "max_total_tokens": "",
    }
    for name, text in words.items():
        spelling = table.spelling(name, "0.5.23")
        assert spelling is not None
        assert left_out_words(table[name], spelling) == text
