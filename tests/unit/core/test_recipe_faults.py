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


SIZED = ("--model-path", "m", "--port", "30001")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"args": (*SIZED, "--chunked-prefill-size", "4GiB")},
            "args: --chunked-prefill-size cannot be 4GiB. A whole number of tokens is meant, not '4GiB'",
        ),
        (
            {"args": (*SIZED, "--cuda-graph-bs", "1", "2k", "4GB")},
            "args: --cuda-graph-bs cannot be 4GB. A whole number is meant, not '4GB'",
        ),
        (
            {"args": (*SIZED, "--mem-fraction-static=88%")},
            "args: --mem-fraction-static cannot be 88%. Write 0.88",
        ),
        ({"args": (*SIZED, "--dist-timeout", "5m")}, "args: --dist-timeout cannot be 5m. Write 300"),
        ({"env": {"NCCL_BUFFSIZE": "4MiB"}}, "env.NCCL_BUFFSIZE: NCCL_BUFFSIZE cannot be 4MiB. Write 4194304"),
        (
            {"env": {"NCCL_MAX_NCHANNELS": "2GB"}},
            "env.NCCL_MAX_NCHANNELS: NCCL_MAX_NCHANNELS cannot be 2GB. A whole number is meant, not '2GB'",
        ),
    ],
)
def test_a_number_is_handed_on_as_it_stands_so_its_unit_is_refused(changes: dict[str, Any], fault: str) -> None:
    (found,) = recipe_faults(msgspec.structs.replace(GOOD, **changes), ENGINES)
    assert f"{found.field}: {found.what}. {found.way_out}" == fault


def test_units_that_are_read_are_no_faults() -> None:
    for tokens in ("32k", "25.6k", "1T"):
        assert faults(**VLLM | {"args": ("m", "--max-model-len", tokens, "--kv-cache-memory-bytes", "10G")}) == []
    for size in ("0x400000", "0xff"):
        assert faults(env={"NCCL_BUFFSIZE": size, "OMP_NUM_THREADS": "4,2", "NCCL_ALGO": "2x"}) == []


def test_engines_read_no_unit_of_a_fraction() -> None:
    (fault,) = faults(**VLLM | {"args": ("m", "--cpu-offload-gb", "10G")})
    assert fault == ("args", "--cpu-offload-gb cannot be 10G")


def test_vllm_has_room_for_one_llm() -> None:
    assert faults(**VLLM | {"args": ("m", "n"), "port": None}) == [("args", "n belongs to no flag")]


def test_a_misspelled_engine_is_named() -> None:
    (fault,) = recipe_faults(msgspec.structs.replace(GOOD, engine="sglng"), ENGINES)
    assert fault.way_out == "Did you mean sglang?"
