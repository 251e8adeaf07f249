"""What is wrong with a recipe, said before anybody starts a server with it."""

from __future__ import annotations

from typing import Any

import msgspec.structs
import pytest

from tuner.core.recipe_faults import recipe_faults
from tuner.domain.recipe import Recipe
from tuner.engines import load_engines

ENGINES = load_engines()
GOOD = Recipe(
    name="r",
    host="h",
    engine="sglang",
    command=("/v/bin/python", "-m", "sglang.launch_server"),
    args=("--model-path", "m", "--tp", "2", "--port", "30001"),
    env={"A": "1"},
    cwd="/srv",
    log_dir="/logs",
    model="m",
    port=30001,
    ready_s=3.0,
)
VLLM: dict[str, Any] = {"engine": "vllm", "command": ("/v/bin/vllm", "serve"), "args": ("m", "-tp", "2"), "port": 8000}


def faults(**changes: Any) -> list[tuple[str, str]]:
    return [(each.field, each.what) for each in recipe_faults(msgspec.structs.replace(GOOD, **changes), ENGINES)]


def test_a_good_one_has_none() -> None:
    assert faults() == []
    assert faults(**VLLM) == []
    assert faults(command=("/opt/start.sh", "prod"), args=("--fast",), model=None, port=None) == []
    assert faults(args=("--config", "/srv/a.yaml"), model=None, port=None) == []
    assert faults(args=("--model-path", "m", "--tp", "2", "--tensor-parallel-size", "2"), port=None) == []


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"engine": "sglng"}, "engine", "there is no engine sglng"),
        ({"command": ("",)}, "command", "it names no program"),
        (
            {"command": ("v/bin/python", "-m", "sglang.launch_server"), "cwd": None},
            "command",
            "v/bin/python is relative",
        ),
        ({"cwd": "srv"}, "cwd", "srv is no whole path"),
        ({"log_dir": "~/logs"}, "log_dir", "~/logs is no whole path"),
        ({"port": 70000, "args": ("--model-path", "m")}, "port", "70000 is no port"),
        ({"port": 30002}, "port", "it is 30002, and the arguments say 30001"),
        ({"ready_s": -1.0}, "ready_s", "a start cannot take -1 s"),
        ({"env": {"A B": "1"}}, "env.A B", "'A B' is no name of a variable"),
        ({"env": {"A": "\0"}}, "env.A", "a variable cannot hold a NUL character"),
        ({"args": ("m", "--model-path", "m"), "port": None}, "args", "m belongs to no flag"),
        ({"args": ("--tp", "2"), "model": None, "port": None}, "args", "they name no LLM"),
        ({"model": "other"}, "model", "it is other, and the arguments name m"),
        (
            {"args": ("--model-path", "m", "--tp", "2", "--tensor-parallel-size=4"), "port": None},
            "args",
            "--tp 2 and --tensor-parallel-size 4 contradict each other",
        ),
        (VLLM | {"args": ("m", "-tp", "2", "--port=8000", "--host", "x"), "port": 1}, "port", "it is 1"),
    ],
)
def test_each_fault_is_told_alone(changes: dict[str, Any], field: str, words: str) -> None:
    (fault,) = faults(**changes)
    assert fault[0] == field
    assert fault[1].startswith(words)


def test_vllm_has_room_for_one_llm() -> None:
    assert faults(**VLLM | {"args": ("m", "n"), "port": None}) == [("args", "n belongs to no flag")]


def test_a_misspelled_engine_is_named() -> None:
    (fault,) = recipe_faults(msgspec.structs.replace(GOOD, engine="sglng"), ENGINES)
    assert fault.way_out == "Did you mean sglang?"
