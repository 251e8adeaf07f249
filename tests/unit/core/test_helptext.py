"""The flags in the help of real engines, and what their parsers say of a command line.

The helps are those that SGLang 0.5.9 and 0.5.23 and vLLM 0.32.0 print; beside each is what its own parser held: every
flag with the number of values that it takes.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from tuner.core.helptext import flag_problems, parse_help
from tuner.engines import load_engines

HELPS = Path(__file__).parents[2] / "golden/help"
NAMES = ("sglang-0.5.9", "sglang-0.5.23", "vllm-0.32.0")
ENGINES = load_engines()
HIDDEN = {"--forward-pass-metrics-ipc-name", "--forward-pass-metrics-worker-id"}
"""Flags of SGLang 0.5.23 that its help does not show."""


@cache
def known(name: str) -> frozenset[str]:
    return parse_help(gzip.decompress((HELPS / f"{name}.txt.gz").read_bytes()).decode())


@cache
def held(name: str) -> dict[str, list[str]]:
    flags: dict[str, list[str]] = json.loads((HELPS / f"{name}.flags.json").read_text())
    return flags


def problems(name: str, args: str) -> list[str]:
    return list(flag_problems(args.split(), known(name), ENGINES[name.partition("-")[0]]))


@pytest.mark.parametrize("name", NAMES)
def test_a_help_names_just_the_flags_that_the_parser_has(name: str) -> None:
    assert set(held(name)) - known(name) == (HIDDEN if name == "sglang-0.5.23" else set())
    assert known(name) <= set(held(name))


@pytest.mark.parametrize("name", NAMES)
def test_every_flag_of_a_version_is_taken_by_it(name: str) -> None:
    args = [word for flag in held(name) for word in (flag, "1")]
    assert flag_problems(args, known(name) | HIDDEN, ENGINES[name.partition("-")[0]]) == ()


@pytest.mark.parametrize(
    ("name", "args", "problem"),
    [
        (
            "sglang-0.5.23",
            "--cuda-graph-max-bs 64",
            "--cuda-graph-max-bs is ambiguous in this version: "
            "it could be --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        ),
        (
            "sglang-0.5.9",
            "--cuda-graph-max-bs-decode=64",
            "this version has no --cuda-graph-max-bs-decode; it has --cuda-graph-max-bs, --cuda-graph-bs",
        ),
        ("sglang-0.5.9", "--mem_fraction_static 0.8", "this version has no --mem_fraction_static"),
        ("sglang-0.5.9", "--xyzzy", "this version has no --xyzzy"),
        ("sglang-0.5.9", "-tp 8", "this version has no -tp"),
        ("vllm-0.32.0", "--mem-fraction-static 0.8", "this version has no --mem-fraction-static"),
        ("vllm-0.32.0", "--enable-p", "--enable-p is ambiguous in this version: it could be --enable-p"),
    ],
)
def test_what_a_parser_would_refuse_is_said(name: str, args: str, problem: str) -> None:
    told = problems(name, args)
    assert len(told) == 1
    assert told[0].startswith(problem)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sglang-0.5.9", "--model-path m --tensor-parallel-size 8 --tp-size=8 --chunked-prefill-size -1"),
        ("sglang-0.5.23", "--enable-tf32-matmul --no-enable-tf32-matmul --mem-fraction-static .8"),
        ("vllm-0.32.0", "m --max_model_len 8k -tp 2 -O3 -O 2 --compilation-config.mode=3 -cc.cudagraph_mode=FULL"),
        ("vllm-0.32.0", "m --no-enable-prefix-caching --hf-overrides.rope.type yarn"),
    ],
)
def test_what_a_parser_takes_is_no_problem(name: str, args: str) -> None:
    assert problems(name, args) == []


def test_a_value_is_no_flag_although_it_begins_with_a_dash() -> None:
    args = ["--chat-template", "-- what a template", "--chunked-prefill-size", "-1", "--watchdog-timeout", "-.5", "-"]
    assert flag_problems(args, known("sglang-0.5.9"), ENGINES["sglang"]) == ()


def test_a_flag_may_be_shortened_to_what_only_one_flag_has() -> None:
    assert problems("sglang-0.5.9", "--tp 8 --mem-frac=0.8 --model x") == []


def test_a_line_about_a_flag_names_none() -> None:
    text = "usage: x [-h] [--one ONE]\n" + " " * 9 + "--two TWO\n\noptions:\n"
    text += (
        "  -o {a,b}, --one {a,b}  as --three, --four\n" + " " * 24 + "--five is better\n  --[no-]six\n   --seven 1\n"
    )
    assert parse_help(text) == {"-o", "--one", "--six", "--no-six"}


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):\n  File x\nImportError: no", "\0" * 99])
def test_no_help_has_no_flags(text: str) -> None:
    assert parse_help(text) == frozenset()
