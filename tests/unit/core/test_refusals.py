"""Bad input is said before anything is stopped: no order is made, and the line names the place and the way out."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import states
from tests.unit.core.test_preflight import FACTS, fact
from tuner.core.helptext import parse_help
from tuner.core.presets import resolve
from tuner.core.tuning import tune
from tuner.domain.presets import Preset
from tuner.domain.runs import Lease, Operator
from tuner.domain.tuning import Tuning, Wish
from tuner.engines import load_engines
from tuner.errors import TunerError

ENGINES = load_engines()
ME = Operator(session="s1", name="ada", machine="laptop")
HELP = gzip.decompress((Path(__file__).parents[2] / "golden/help/sglang-0.5.9.txt.gz").read_bytes()).decode()
PRESET = Preset(id="mine", title="Mine", why="a test", engine="sglang", path="/p/mine.toml", lines={"args.tp_size": 7})


def wished(
    preset: Preset | None = None,
    *,
    facts: dict[str, Any] = FACTS,
    lease: Lease | None = None,
    overrides: dict[str, Any] | None = None,
) -> Tuning:
    state = msgspec.structs.replace(states.serving(), lease=lease or Lease())
    wish = Wish(
        server=states.KEY,
        preset=preset.id if preset is not None else "",
        overrides=overrides or {},
        ignore_forecast=True,
    )
    presets = {preset.id: preset} if preset is not None else {}
    return tune(state, wish, ENGINES, presets, run="r1", operator=ME, flags=parse_help(HELP), facts=facts)


def with_args(**args: Any) -> Preset:
    return msgspec.structs.replace(PRESET, args=args)


def refusal(tuning: Tuning) -> str:
    assert tuning.order is None, "something is ordered"
    assert tuning.refused
    return "\n".join(tuning.refused)


def test_a_good_wish_is_ordered() -> None:
    tuning = wished(with_args(mem_fraction_static=0.85))
    assert tuning.refused == ()
    assert tuning.order is not None
    assert tuning.order.stop is not None


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        (with_args(no_such_knob=1), ["no_such_knob", "no knob"]),
        (with_args(tp_size="many"), ["/p/mine.toml:7", "tp_size", "many"]),
        (with_args(mem_fraction_static=7), ["mem_fraction_static", "7"]),
        (msgspec.structs.replace(PRESET, flags={"--chunked-prefilled": "1"}), ["--chunked-prefilled"]),
        (msgspec.structs.replace(PRESET, args={"tp_size": 4}, unset=("tp_size",)), ["tp_size", "set and unset"]),
        (msgspec.structs.replace(PRESET, engine="vllm"), ["vllm", "sglang"]),
        (msgspec.structs.replace(PRESET, extends=("gone",)), ["gone"]),
        (msgspec.structs.replace(PRESET, extends=("mine",)), ["mine"]),
    ],
    ids=["unknown knob", "wrong type", "out of range", "unknown flag", "conflict", "engine", "unknown base", "cycle"],
)
def test_bad_presets(preset: Preset, words: list[str]) -> None:
    said = refusal(wished(preset))
    for word in words:
        assert word in said


def test_a_cycle_is_an_error_of_the_file() -> None:
    with pytest.raises(TunerError):
        resolve({"mine": msgspec.structs.replace(PRESET, extends=("mine",))}, "mine")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (fact("interpreter", exists=False), ["/opt/venv/bin/python does not exist", "recipe"]),
        (fact("llm", exists=False), ["/models/kimi does not exist"]),
        (fact("port", owners=[{"pid": 7, "user": "bob", "title": "nginx"}]), ["pid 7 of bob", "another port"]),
        (fact("rights", may=False, server_user="bob"), ["Connect as bob"]),
        (
            fact("holders", processes=[{"gpu": 1, "pid": 9, "user": "bob", "title": "train", "bytes": 60 << 30}]),
            ["GPU 1: pid 9 of bob", "are left"],
        ),
        (
            fact(
                "manager", loops=[{"pid": 9, "command": "bash run.sh", "file": "/run.sh", "line": 1, "text": "while"}]
            ),
            ["bash run.sh", "kill 9"],
        ),
        (
            fact("manager", systemd={"unit": "x.service", "main": True, "restart": "always", "may": False}),
            ["Restart=always", "sudo systemctl stop x.service"],
        ),
        (fact("manager", container={"kind": "docker", "name": "llm"}), ["docker stop llm"]),
    ],
    ids=["interpreter", "model path", "port", "rights", "GPU", "shell loop", "Restart=always", "docker"],
)
def test_bad_hosts(facts: dict[str, Any], words: list[str]) -> None:
    said = refusal(wished(with_args(mem_fraction_static=0.85), facts=facts))
    for word in words:
        assert word in said


def test_the_lease_of_another() -> None:
    holder = Operator(session="s2", name="bob", machine="desk")
    said = refusal(wished(with_args(mem_fraction_static=0.85), lease=Lease(holder=holder)))
    assert "bob@desk" in said


def test_a_unit_of_which_this_user_is_master_is_used() -> None:
    unit = {"unit": "x.service", "main": True, "restart": "always", "may": True, "timeout_stop_s": 30.0}
    order = wished(with_args(mem_fraction_static=0.85), facts=fact("manager", systemd=unit)).order
    assert order is not None
    assert order.stop is not None
    assert order.back is not None
    assert order.stop.manager == ("systemctl", "stop", "x.service")
    assert order.back.manager == ("systemctl", "start", "x.service")
