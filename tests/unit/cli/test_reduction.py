"""The section of `diagnose` about all-reduce: when it comes, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.golden_starts import GOLDEN
from tuner.cli import run

H200 = GOLDEN / "real/sglang-0.5.16-2xH200"


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command prints."""
    run([str(each) for each in arguments])
    return capsys.readouterr().out


def section(text: str) -> list[str]:
    """The lines from its heading on, each without its indent."""
    _, found, rest = text.partition("\nall-reduce of ")
    return [line.strip() for line in f"{found}{rest}".strip().splitlines()]


def test_it_comes_with_a_finding_that_it_explains(capsys: pytest.CaptureFixture[str]) -> None:
    lines = section(told(capsys, "diagnose", H200 / "nccl2ch/server.log"))
    assert lines[:2] == ["all-reduce of 2 ranks", "NCCL for every tensor"]
    text = "\n".join(lines)
    assert "off: disable_custom_all_reduce=True (line 9)" in text
    assert "2 for collectives: NCCL_MAX_NCHANNELS=2 took effect (line 92)" in text
    assert "P2P/IPC (8 connections) (line 81)" in text


def test_it_is_not_there_unasked_where_nothing_is_to_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "all-reduce of" not in told(capsys, "diagnose", H200 / "base/server.log")


def test_all_shows_every_way_and_every_gate(capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(section(told(capsys, "diagnose", "--all", H200 / "base/server.log")))
    assert "custom all-reduce v2 (up to 16 MiB), and NCCL for the rest" in text
    assert "✓ custom all-reduce v2" in text
    assert "✓ 2 to 8 ranks (2 ranks)" in text
    assert "✗ asked for (enable_mscclpp=False)" in text
    assert "? compute capability 9 or 10" in text


@pytest.mark.parametrize("name", ["real/vllm-0.32.0-cpu/kv-too-small.log", "corpus/ok-1-llama8b.log"])
def test_one_rank_and_no_gpu_have_none(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert "all-reduce of" not in told(capsys, "diagnose", "--all", GOLDEN / name)


def test_the_json_has_its_findings_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(told(capsys, "diagnose", "--json", H200 / "nccl2ch/server.log"))
    assert [finding["cause"] for finding in data["findings"]] == ["custom-ar-disabled"]
    assert not {"all_reduce", "gates", "paths"} & set(data)
