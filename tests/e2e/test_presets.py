"""`presets diff ID HOST`: what a preset would change on a server that runs, through the real SSH of the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tuner.store.settings import keep_preset_order

GPUTUNER = Path(sys.executable).with_name("gputuner")

pytestmark = pytest.mark.timeout(90)


def diff(*arguments: str) -> tuple[int, dict[str, Any], str]:
    ran = subprocess.run(
        [GPUTUNER, "presets", "diff", *arguments, "--json"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
        start_new_session=True,
    )
    return ran.returncode, json.loads(ran.stdout), ran.stderr


def test_a_preset_is_held_against_what_the_server_really_has() -> None:
    code, told, _ = diff("graphs-16", "demo")
    assert code == 0
    (change,) = [each for each in told["changes"] if each["changed"]]
    assert (change["name"], change["now"], change["then"]) == ("cuda_graph_max_bs", 128, 16)
    assert (change["text"], change["source"]) == ("--cuda-graph-max-bs-decode", "argv")
    assert (told["unmet"], told["problems"]) == ([], [])


def test_a_host_rules_a_preset_out() -> None:
    """The demo's GPUs hang on PCIe, where the protocol corrupts data."""
    code, told, err = diff("nccl-ll128", "demo")
    assert code == 1
    (problem,) = told["problems"]
    assert "NCCL_PROTO=LL128 can corrupt" in problem
    assert told["unmet"] == ["needs NVLink between every pair of GPUs, the host has NODE, SYS between the GPUs"]
    assert "can corrupt" in err


def test_the_keys_of_a_host_are_the_operators_then_those_for_its_server(tmp_path: Path) -> None:
    keep_preset_order("demo", ["nccl-tree", "nccl-ll128"], tmp_path / "config/preset-keys.toml")
    ran = subprocess.run(
        [GPUTUNER, "presets", "list", "demo"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=80,
        check=True,
        start_new_session=True,
        env={**os.environ, "GPUTUNER_HOME": str(tmp_path)},
    )
    head, *rows = [line.split() for line in ran.stdout.splitlines() if line.startswith("  ")]
    assert head == ["key", "id", "engine", "host", "fits", "title"]
    assert [row[:5] for row in rows[:4]] == [
        ["1", "nccl-tree", "any", "any", "yes"],
        ["2", "nccl-ll128", "any", "nvlink", "no"],
        ["3", "custom-all-reduce-off", "any", "any", "yes"],
        ["4", "custom-all-reduce-on", "any", "any", "yes"],
    ]
    assert ["-", "vllm-ngram", "vllm", "any", "no"] in [row[:5] for row in rows], "the demo's server is SGLang"
