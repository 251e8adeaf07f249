"""How an engine behaves where no line of its log tells: what the loader refuses, and what is known of each engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.domain.behaviour import Behaviour, PortBound
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
    ],
)
def test_what_is_wrong_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "behaviour.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(CatalogError, match=words):
        load_behaviour(path)


def test_a_missing_file_is_a_catalogue_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        load_behaviour(tmp_path / "none.toml")
