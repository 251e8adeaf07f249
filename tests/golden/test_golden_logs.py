"""Logs of real servers, one folder per engine and version, against what was read out of them when they were checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.summary import LOGS, cases, lines, summarise
from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.engines import load_engines

ENGINES = load_engines()
HEALTHY = [path for path in cases() if "healthy" in path.stem or path.stem in {"h200-base", "h200-auto512"}]


def _id(path: Path) -> str:
    return str(path.relative_to(LOGS).with_suffix(""))


def _engine(path: Path) -> Engine:
    return ENGINES[path.parts[-3]]


def test_there_are_logs_of_many_versions() -> None:
    versions = {path.parts[-2] for path in cases()}
    assert len(versions) >= 15


@pytest.mark.parametrize("path", cases(), ids=_id)
def test_log_is_read_as_expected(path: Path) -> None:
    expected = json.loads(path.with_suffix(".expected.json").read_text("utf-8"))
    assert json.loads(json.dumps(summarise(_engine(path), path))) == expected


@pytest.mark.parametrize("path", HEALTHY, ids=_id)
def test_healthy_log_states_no_cause_of_failure(path: Path) -> None:
    summary = summarise(_engine(path), path)
    assert summary["errors"] == []
    assert summary["ready"] >= 1


@pytest.mark.parametrize("path", cases(), ids=_id)
def test_kinds_are_of_the_closed_list_and_the_prefilter_misses_none(path: Path) -> None:
    engine = _engine(path)
    for line in lines(path):
        found = engine.facts(line, engine.prefix(line), 0)
        assert {fact.kind for fact in found} <= f.KINDS
        assert not found or engine.interesting(line), line


@pytest.mark.parametrize("path", cases(), ids=_id)
def test_start_markers_let_every_line_of_a_start_through(path: Path) -> None:
    """The probe sends only lines with a marker of the start-up section: none that states a fact may be missing."""
    engine = _engine(path)
    plan = engine.plan()
    live = {f.DECODE, f.PREFILL, f.STATS, f.RETRACT, f.NOTICE, f.PROGRESS}
    for line in lines(path):
        if plan.log_end_marker in line:
            assert any(marker in line for marker in plan.start_markers)
            return
        kinds = {fact.kind for fact in engine.facts(line, engine.prefix(line), 0)} - live
        assert not kinds or any(marker in line for marker in plan.start_markers), line
