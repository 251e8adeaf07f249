"""What `apply` is asked for: knobs, presets, recipes and servers by name, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import states
from tests.unit.core.test_runs import record, with_runs
from tuner.cli.recipe import choose
from tuner.cli.wishes import Options, named, override, server_meant, wish_of
from tuner.domain.recipe import Recipe
from tuner.domain.runs import RunOutcome
from tuner.engines import load_engines
from tuner.errors import CatalogError, TunerError, UsageProblem

ENGINES = load_engines()
SGLANG = ENGINES["sglang"]
REPLACE = msgspec.structs.replace
RECIPE = Recipe(name="r", host="h", engine="sglang", command=("python", "-m", "sglang.launch_server"), port=30001)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("mem_fraction_static=0.9", "mem_fraction_static", 0.9),
        ("--mem-fraction-static = 90%", "mem_fraction_static", 0.9),
        ("custom_all_reduce=off", "disable_custom_all_reduce", True),
        ("cuda_graph_max_bs=auto", "cuda_graph_max_bs", None),
        ("NCCL_MAX_NCHANNELS=4", "NCCL_MAX_NCHANNELS", 4),
        ("NCCL_BUFFSIZE=4MiB", "NCCL_BUFFSIZE", 4 << 20),
        ("context_length=32k", "context_length", 32768),
        ("cpu_offload_gb=512MiB", "cpu_offload_gb", 0.5),
        ("watchdog_timeout=10min", "watchdog_timeout", 600.0),
    ],
)
def test_a_knob_is_set_under_any_of_its_names(text: str, name: str, value: Any) -> None:
    assert override(SGLANG, "0.5.23", text) == (name, value)


@pytest.mark.parametrize(
    ("text", "version", "words"),
    [
        ("mem_fraction_static", None, "A change is knob=value"),
        ("mem_fractoin_static=0.9", None, "Did you mean mem_fraction_static"),
        ("mem_fraction_static=much", None, "cannot be much"),
        ("kv_cache_dtype=float99", "0.5.23", "it is one of"),
        ("mem_fraction_static=", None, "A change is knob=value"),
        (
            "chunked_prefill_size=4GiB",
            "0.5.23",
            "chunked_prefill_size cannot be 4GiB: a whole number of tokens is meant, not '4GiB'",
        ),
        ("max_running_requests=1GB", None, "a whole number is meant, not '1GB'"),
        ("mem_fraction_static=80GiB", None, "a number is meant, not '80GiB'"),
        ("watchdog_timeout=5MiB", None, "a number of seconds is meant, not '5MiB'"),
    ],
)
def test_what_cannot_be_set_is_a_wrong_use_with_a_way_out(text: str, version: str | None, words: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        override(SGLANG, version, text)
    assert words in str(caught.value)


def test_unknown_names_and_broken_files_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "mine.toml").write_text('title = "Mine"\nwhy = "w"\n[args]\nmax_running_requests = 8\n')
    (folder / "broken.toml").write_text('title = "Broken"\nwhy = "w"\n[args]\nmax_running_requests = "many"\n')
    presets, recipe = named(Options(preset="mine"))
    assert recipe is None
    assert presets["mine"].args == {"max_running_requests": 8}
    with pytest.raises(UsageProblem, match="Did you mean mine"):
        named(Options(preset="mien"))
    with pytest.raises(CatalogError, match=r"broken\.toml:4"):
        named(Options(preset="broken"))
    with pytest.raises(
        UsageProblem, match=r"No engine has a knob mem_fractoin_static\. Did you mean mem_fraction_static"
    ):
        named(Options(overrides=("mem_fractoin_static=0.9",)))
    with pytest.raises(UsageProblem, match="There is no recipe"):
        named(Options(recipe="none"))
    with pytest.raises(CatalogError):
        named(Options(recipe=str(tmp_path / "none.toml")))
    file = tmp_path / "other.toml"
    file.write_text('host = "h"\nengine = "trtllm"\ncommand = ["/venv/bin/serve"]\n')
    with pytest.raises(UsageProblem, match=r"There is no engine trtllm: recipe other\. Engines are sglang, vllm"):
        named(Options(recipe=str(file)))


def test_the_only_server_is_meant_and_of_several_one_is_named() -> None:
    one, two = states.serving(), states.two_servers()
    assert server_meant(one, Options(), None) is one.servers[0]
    with pytest.raises(UsageProblem, match="--server PID") as caught:
        server_meant(two, Options(), None)
    with pytest.raises(UsageProblem) as read:
        choose(two, None)
    assert str(read.value) == str(caught.value)
    for each in two.servers:
        words = f"{each.identity.pid} of {each.identity.user} ({each.title}, port {each.identity.port}, {each.model})"
        assert words in str(caught.value)
    second = two.servers[1]
    assert server_meant(two, Options(pid=second.identity.pid), None) is second
    with pytest.raises(UsageProblem, match="No server has the PID 1"):
        server_meant(two, Options(pid=1), None)


def test_a_recipe_replaces_the_server_on_its_port_and_no_other() -> None:
    state = states.serving()
    assert server_meant(state, Options(), RECIPE) is None
    assert server_meant(state, Options(), REPLACE(RECIPE, port=30000)) is state.servers[0]


def test_one_goes_back_from_what_was_changed_and_from_no_other_server() -> None:
    one, two = states.serving(), states.two_servers()
    first, second = two.servers
    assert second.identity.port != first.identity.port
    elsewhere = with_runs(one, record(1, port=31999, outcome=RunOutcome.STOPPED))
    assert server_meant(elsewhere, Options(back=True), None) is None, "what was stopped had another port"
    assert server_meant(elsewhere, Options(), None) is one.servers[0]
    beside = with_runs(two, record(1, port=second.identity.port))
    assert server_meant(beside, Options(back=True), None) is second
    assert server_meant(beside, Options(back=True, pid=first.identity.pid), None) is first


def test_without_a_server_a_run_or_an_ended_one_is_taken_up() -> None:
    nothing = REPLACE(states.serving(), servers=())
    with pytest.raises(TunerError, match="--recipe"):
        server_meant(nothing, Options(), None)
    with pytest.raises(UsageProblem, match="No server runs there"):
        server_meant(nothing, Options(start=False), None)
    assert server_meant(with_runs(nothing, record(1)), Options(), None) is None
    ended = states.explained()
    assert server_meant(ended, Options(), None) is ended.servers[0]


def test_going_back_needs_something_that_was_good() -> None:
    state = states.serving()
    with pytest.raises(TunerError, match="There is nothing to go back to"):
        wish_of(state, state.servers[0], Options(back=True), None, ENGINES)
    known = with_runs(state, record(1, outcome=RunOutcome.READY, port=30000))
    assert wish_of(known, known.servers[0], Options(back=True), None, ENGINES).again == "run-1"


def test_a_knob_that_is_set_twice_must_be_set_alike() -> None:
    state = states.serving()
    twice = Options(overrides=("max_running_requests=8", "max_running_requests=9"))
    with pytest.raises(UsageProblem, match="set twice"):
        wish_of(state, state.servers[0], twice, None, ENGINES)
    alike = Options(overrides=("max_running_requests=8", "--max-running-requests=8"))
    assert wish_of(state, state.servers[0], alike, None, ENGINES).overrides == {"max_running_requests": 8}
