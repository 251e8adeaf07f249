"""`recipe` as it is called: text and JSON, exit codes, one clear line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from tests.support import states
from tests.unit.core.test_recipes import host, server
from tests.unit.core.test_runs import of_server, with_runs
from tuner.cli import run
from tuner.cli.paper import Paper
from tuner.cli.recipe import choose, held_lines, recipe_lines
from tuner.core.run_words import held_words
from tuner.domain.recipe import Recipe
from tuner.errors import TunerError, UsageProblem
from tuner.store.recipes import save_recipe

RECIPE = Recipe(
    name="llama",
    host="root@gpu-box-1",
    engine="sglang",
    version="0.5.9",
    command=("/v/bin/python", "-m", "sglang.launch_server"),
    args=("--model-path", "/m/my llm", "--tp", "8", "--enable-metrics"),
    env={"NCCL_BUFFSIZE": "4194304", "HF_TOKEN": "***"},
    cwd="/srv",
    model="/m/my llm",
    port=30000,
)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in a home of its own; its exit code, output and error output."""
    monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path))

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = run(["recipe", *(str(each) for each in arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_no_recipes_yet(told: Any) -> None:
    code, out, err = told("list")
    assert (code, out) == (0, "")
    assert "recipe read HOST --save" in err
    assert told("list", "--json") == (0, "[]\n", "")


def test_recipes_are_listed(told: Any) -> None:
    save_recipe(RECIPE)
    code, out, _ = told("list")
    assert code == 0
    assert out.splitlines()[-1].split() == ["llama", "root@gpu-box-1", "sglang", "30000", "/m/my", "llm"]
    code, out, _ = told("list", "--json")
    assert json.loads(out) == [
        {
            "name": "llama",
            "host": "root@gpu-box-1",
            "engine": "sglang",
            "version": "0.5.9",
            "model": "/m/my llm",
            "port": 30000,
        }
    ]


def test_a_broken_one_is_told_beside_the_others(told: Any) -> None:
    path = save_recipe(RECIPE).with_name("bad.toml")
    path.write_text("x = 1\n")
    code, out, err = told("list")
    assert code == 1
    assert "llama" in out
    assert err == (
        f"gputuner: there is no field x: {path}:1. Fields are host, engine, command, version, args, env, cwd, log_dir, "
        "model, port, manager, ready_s, origin, like\n"
    )


def test_one_is_shown(told: Any) -> None:
    save_recipe(RECIPE)
    code, out, _ = told("show", "llama")
    assert code == 0
    for line in ("command     /v/bin/python -m sglang.launch_server", "arguments   --model-path '/m/my llm'"):
        assert line in out
    assert json.loads(told("show", "llama", "--json")[1])["args"] == list(RECIPE.args)


def test_one_that_is_not_there(told: Any) -> None:
    code, out, err = told("show", "nothing")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    save_recipe(RECIPE)
    assert "There are llama" in told("show", "nothing")[2]


def test_a_broken_one_says_why_it_is_not_shown(told: Any) -> None:
    path = save_recipe(RECIPE)
    path.write_text('host = "h"\nport = 1.5\n')
    code, _, err = told("show", "llama")
    assert code == 2
    assert f"{path}:1" in err


def test_a_file_is_checked(told: Any, tmp_path: Path) -> None:
    good = save_recipe(RECIPE)
    bad = tmp_path / "mine.toml"
    bad.write_text(
        'host = "h"\nengine = "sglang"\ncommand = "python -m sglang.launch_server"\nport = 99999\nargs = [\n "x",\n]\n'
    )
    assert told("check", good) == (0, f"{good}: fine\n", "")
    code, out, err = told("check", good, bad)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        f"{good}: fine",
        f"{bad}:4: 99999 is no port. Ports are 1 to 65535",
        f"{bad}:6: x belongs to no flag. Take it out",
        f"{bad}:5: they name no LLM. Add --model-path and its path",
    ]
    code, _, err = told("check", tmp_path / "none.toml")
    assert code == 2
    assert "No such file" in err


def test_wrong_usage(told: Any) -> None:
    for arguments in (("read",), ("read", "local", "--replace"), ("check",), ("nonsense",), ("show",)):
        code, out, err = told(*arguments)
        assert (code, out) == (2, ""), arguments
        assert "Traceback" not in err


def test_what_a_server_runs_with_of_the_last_change_is_named() -> None:
    state = states.serving()
    run_ = of_server(state)
    known = with_runs(state, msgspec.structs.replace(run_, preset="graphs-512", title="graphs-512 with x 0.809"))
    words = held_words(known, known.servers[0])
    assert words == "graphs-512 and x 0.809 of the last change"
    assert list(held_lines(words, Paper())) == [f"holds       {words}"]
    by_hand = with_runs(state, msgspec.structs.replace(run_, preset="", title="box-30000 with x 0.809"))
    assert held_words(by_hand, by_hand.servers[0]) == "x 0.809 of the last change"
    bare = with_runs(state, msgspec.structs.replace(run_, preset="", title="box-30000"))
    assert held_words(bare, bare.servers[0]) == held_words(state, state.servers[0]) == ""
    assert list(held_lines("", Paper())) == []


class TestChoose:
    ONE = server("sglang serve --model-path m")
    TWO = msgspec.structs.replace(
        server("vllm serve n", "vllm", port=8000),
        model="n",
        identity=msgspec.structs.replace(server("vllm serve n", "vllm", port=8000).identity, pid=9, key="9:1"),
    )

    def test_the_only_one(self) -> None:
        gone = msgspec.structs.replace(self.TWO, gone=True)
        assert choose(host(self.ONE, gone), None) is self.ONE

    @pytest.mark.parametrize("wanted", ["9", "9:1"])
    def test_one_of_several_by_pid_or_key(self, wanted: str) -> None:
        assert choose(host(self.ONE, self.TWO), wanted) is self.TWO

    def test_several_are_listed_in_one_line(self) -> None:
        with pytest.raises(UsageProblem) as caught:
            choose(host(self.ONE, self.TWO), None)
        assert str(caught.value) == (
            "Several servers run there: 48211 (sglang, port 30000, LLM not known); 9 (vllm, port 8000, n). "
            "Name one with --server PID"
        )

    def test_one_that_does_not_run(self) -> None:
        with pytest.raises(UsageProblem, match="key or PID 7"):
            choose(host(self.ONE), "7")
        with pytest.raises(UsageProblem, match="none runs"):
            choose(host(), "7")

    def test_none(self) -> None:
        with pytest.raises(TunerError, match="No server runs there") as caught:
            choose(host(), None)
        assert caught.value.exit_code == 1


def test_text_of_a_host_is_harmless() -> None:
    recipe = msgspec.structs.replace(RECIPE, env={"X": "\x1b[31mred\x07"}, origin="a\nb")
    text = "\n".join(recipe_lines(recipe, Paper()))
    assert "\x1b" not in text
    assert "\x07" not in text
