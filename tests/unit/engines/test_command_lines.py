"""Command lines of servers, taken apart; the numbers of values are those of the engines' own parsers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.engines import load_engines

ENGINES = load_engines()
HELPS = Path(__file__).parents[2] / "golden/help"
VALUES = {"0": 0, "1": 1, "?": 1, "*": 2, "+": 2}
"""Number of values to write for each `nargs`."""


def parts(engine: str, *argv: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    line = ENGINES[engine].command_line(argv)
    assert (*line.command, *(word for each in line.arguments for word in each.words)) == argv
    return line.command, [each.words for each in line.arguments]


@pytest.mark.parametrize(
    ("engine", "command"),
    [
        ("sglang", "python3 -m sglang.launch_server"),
        ("sglang", "/venv/bin/python -u -X dev -m sglang.launch_server"),
        ("sglang", "/venv/bin/python3 /venv/bin/sglang serve"),
        ("sglang", "python -m sglang.cli.main serve"),
        ("sglang", "python3 /src/sglang/launch_server.py"),
        ("sglang", "numactl --cpunodebind=0 --membind=0 python3 -m sglang.launch_server"),
        ("vllm", "/venv/bin/python3 /venv/bin/vllm serve"),
        ("vllm", "vllm serve"),
        ("vllm", "python -m vllm.entrypoints.openai.api_server"),
        ("vllm", "nsys profile -o x python -m vllm.entrypoints.cli.main serve"),
    ],
)
def test_the_command_ends_where_the_engines_arguments_begin(engine: str, command: str) -> None:
    flags = ["--host", "0.0.0.0", "--port=8000"]
    assert parts(engine, *command.split(), *flags) == (
        tuple(command.split()),
        [("--host", "0.0.0.0"), ("--port=8000",)],
    )
    assert ENGINES[engine].command_line((*command.split(), *flags)).known


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("/opt/start.sh --model x", "/opt/start.sh"),
        ("/opt/start.sh prod --model x", "/opt/start.sh prod"),
        ("python -u -m my.server --model x", "python -u -m my.server"),
        ("python3.12 -X dev serve.py --model x", "python3.12 -X dev serve.py"),
        ("/opt/start.sh", "/opt/start.sh"),
    ],
)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_script_of_ones_own_ends_before_its_first_flag(engine: str, argv: str, command: str) -> None:
    assert parts(engine, *argv.split())[0] == tuple(command.split())
    assert not ENGINES[engine].command_line(argv.split()).known


def test_nothing_has_no_command() -> None:
    assert parts("sglang") == ((), [])
    assert parts("vllm") == ((), [])


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_every_flag_of_sglang_has_its_values(version: str) -> None:
    held = json.loads((HELPS / f"sglang-{version}.flags.json").read_text())
    expected = [(flag, *["x"] * VALUES[takes]) for flag, (takes, _) in held.items()]
    assert parts("sglang", "sglang", "serve", *(word for each in expected for word in each))[1] == expected


@pytest.mark.parametrize("value", ["text", "7"])
def test_every_flag_of_vllm_leaves_the_llm_its_word(value: str) -> None:
    held = json.loads((HELPS / "vllm-0.32.0.flags.json").read_text())
    for flag, (takes, name) in held.items():
        words = (flag, *[value] * VALUES[takes])
        assert parts("vllm", "vllm", "serve", "LLM", *words, "--port", "1")[1] == [("LLM",), words, ("--port", "1")]
        if takes in "01" and name not in ("help", "model"):
            # What stands behind a list is a part of it, as the parser has it, too.
            assert parts("vllm", "vllm", "serve", *words, "LLM", "--port", "1")[1] == [words, ("LLM",), ("--port", "1")]


def test_a_value_that_is_joined_to_its_flag_is_the_only_one() -> None:
    assert parts("vllm", "vllm", "serve", "--served-model-name=a", "LLM")[1] == [("--served-model-name=a",), ("LLM",)]


def test_an_old_switch_may_have_a_word() -> None:
    found = parts("vllm", "vllm", "serve", "--enable-chunked-prefill", "False", "LLM")[1]
    assert found == [("--enable-chunked-prefill", "False"), ("LLM",)]


def test_sentences_and_negative_numbers_are_values() -> None:
    words = ["--chat-template", "--- {{ x }}", "--chunked-prefill-size", "-1"]
    found = parts("sglang", "sglang", "serve", *words)[1]
    assert found == [("--chat-template", "--- {{ x }}"), ("--chunked-prefill-size", "-1")]
