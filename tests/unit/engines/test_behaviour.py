"""How an engine behaves where no line of its log tells: what the loader refuses, and what is known of each engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.core.phases import by_frames, serving_frames
from tuner.domain.behaviour import Behaviour, Frames, PortBound
from tuner.engines import load_engines
from tuner.engines.behaviour import load_behaviour
from tuner.errors import CatalogError

ENGINES = load_engines()


def test_the_engines_differ_where_they_are_known_to() -> None:
    sglang, vllm = (ENGINES[name].behaviour() for name in ("sglang", "vllm"))
    assert (sglang.port_bound, vllm.port_bound) == (PortBound.LAST, PortBound.FIRST)
    assert (sglang.one_rank_speaks, vllm.one_rank_speaks) == (False, True)
    assert (sglang.driver_overhead_gib, vllm.driver_overhead_gib) == (0.0, 0.55)
    assert not set(sglang.variables) & set(vllm.variables)


def test_a_stack_is_read_by_the_functions_of_its_own_engine() -> None:
    sglang, vllm = (ENGINES[name].behaviour() for name in ("sglang", "vllm"))
    graphs = ("srt/scheduler.py:load_model", "srt/model_runner.py:init_device_graphs")
    assert (by_frames(graphs, sglang), by_frames(graphs[:1], sglang)) == ("graph-capture", "weight-load")
    assert by_frames(("v1/worker.py:compile_or_warm_up_model",), vllm) == "warmup"
    assert by_frames(("v1/worker.py:compile_or_warm_up_model",), sglang) is None
    assert by_frames(("srt/model_runner.py:load_model:<module>",), sglang) is None, "an import tells nothing"
    assert serving_frames(("v1/core.py:run_busy_loop",), vllm)
    assert not serving_frames(("v1/core.py:run_busy_loop",), sglang)


def test_what_a_file_leaves_out_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "behaviour.toml"
    path.write_text('variables = ["TOY_"]\n', "utf-8")
    assert load_behaviour(path) == Behaviour(variables=("TOY_",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('port_bound = "sometimes"', "sometimes"),
        ("ports_bound = 1", "ports_bound"),
        ("one_rank_speaks = ", "cannot be read"),
        ("process_number = 'Rank \\d+'", "exactly one group"),
        ("process_number = 'Rank (\\d+'", "cannot be read"),
        ('[[stack]]\nphase = "lunch"\nframes = ["eat"]', "unknown phase lunch"),
    ],
)
def test_what_is_wrong_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "behaviour.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(CatalogError, match=words):
        load_behaviour(path)


def test_each_value_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text("utf-8")
    chapter = page.partition("\n## Behaviour\n")[2].partition("\n## ")[0]
    names = {*Behaviour.__struct_fields__, *Frames.__struct_fields__}
    assert {name for name in names if f"`{name}`" not in chapter and f"[{name}]" not in chapter} == set()


def test_a_missing_file_is_a_catalogue_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        load_behaviour(tmp_path / "none.toml")
