"""What the core may expect of any engine. A new engine is accepted when this passes for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.core.metrics import NAMES
from tuner.core.series import HOLD_S
from tuner.domain.events import HttpAnswer
from tuner.domain.logs import Level
from tuner.domain.plan import NUMBERS_EVERY_S, NUMBERS_IDLE_S, EnginePlan, ProbePlan
from tuner.domain.readings import Reading
from tuner.domain.server import Member, ServerIdentity
from tuner.engines import load_engines

GOLDEN = Path(__file__).parents[1] / "golden"
ENGINES = load_engines()


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


def _server(engine: Engine, argv: tuple[str, ...] = (), titles: tuple[str, ...] = ()) -> ServerIdentity:
    members = tuple(Member(pid=20 + i, ppid=10, start_ticks=1, title=title) for i, title in enumerate(titles))
    return ServerIdentity(key="10:1", engine=engine.name, pid=10, start_ticks=1, argv=argv, members=members)


def test_it_is_found_under_its_own_name(engine: Engine) -> None:
    assert ENGINES[engine.name] is engine
    assert engine.plan().name == engine.name
    assert engine.title


def test_there_are_golden_logs_of_it(engine: Engine) -> None:
    assert list((GOLDEN / "logs" / engine.name).glob("*/*.log"))


class TestPlan:
    def test_it_travels_as_json_and_comes_back_equal(self, engine: Engine) -> None:
        plan = ProbePlan(engines=(engine.plan(),))
        assert msgspec.json.decode(msgspec.json.encode(plan), type=ProbePlan) == plan

    def test_patterns_compile_and_recognise_no_shell(self, engine: Engine) -> None:
        plan = engine.plan()
        assert plan.leaders
        for pattern in (*plan.leaders, *plan.titles):
            assert not re.search(pattern, "bash"), pattern
            assert not re.search(pattern, f"grep {engine.name}"), pattern
            assert not re.search(pattern, f"vim {engine.name}.log"), pattern

    def test_engines_do_not_take_each_others_processes(self) -> None:
        leaders = {"sglang": "python3 -m sglang.launch_server --model m", "vllm": "/v/bin/python /v/bin/vllm serve m"}
        titles = {"sglang": "sglang::scheduler_TP0", "vllm": "VLLM::EngineCore"}
        for name, engine in ENGINES.items():
            for patterns, lines in ((engine.plan().leaders, leaders), (engine.plan().titles, titles)):
                found = {other for other, line in lines.items() if any(re.search(p, line) for p in patterns)}
                assert found <= {name}

    def test_endpoints_are_distinct_and_well_formed(self, engine: Engine) -> None:
        endpoints = engine.plan().endpoints
        ids = [endpoint.id for endpoint in endpoints]
        assert len(ids) == len(set(ids))
        for endpoint in endpoints:
            assert endpoint.paths
            assert all(path.startswith("/") for path in endpoint.paths)
            assert endpoint.parse in {"json", "prometheus", "status"}
            assert bool(endpoint.series) == (endpoint.parse == "prometheus")
            assert endpoint.unless is None or endpoint.unless in ids
            assert endpoint.every_s >= 1.0
            assert 0 < endpoint.timeout_s <= endpoint.every_s
            assert endpoint.every_s <= endpoint.idle_s

    def test_numbers_are_asked_for_as_often_as_the_core_waits_for_them(self, engine: Engine) -> None:
        numbers = [endpoint for endpoint in engine.plan().endpoints if endpoint.id in ("metrics", "loads")]
        assert {(endpoint.every_s, endpoint.idle_s) for endpoint in numbers} == {(NUMBERS_EVERY_S, NUMBERS_IDLE_S)}
        assert HOLD_S > NUMBERS_IDLE_S

    def test_a_log_ends_its_start_with_a_marked_line(self, engine: Engine) -> None:
        plan: EnginePlan = engine.plan()
        assert plan.log_end_marker
        assert any(marker in plan.log_end_marker or plan.log_end_marker in marker for marker in plan.start_markers)


class TestBehaviour:
    def test_titles_and_variables_are_its_own(self, engine: Engine) -> None:
        behaviour = engine.behaviour()
        assert any(re.search(title, behaviour.process_title) for title in engine.plan().titles)
        assert behaviour.variables
        assert all(prefix == prefix.upper() and prefix.endswith("_") for prefix in behaviour.variables)
        own = [knob.name for knob in engine.knobs().values() if knob.name.startswith(behaviour.variables)]
        assert own, "its catalogue of knobs has some of them"

    def test_a_stack_of_its_own_names_a_phase(self, engine: Engine) -> None:
        behaviour = engine.behaviour()
        assert {"args", "dist-init", "weight-load", "kv-alloc"} <= {entry.phase for entry in behaviour.stack}
        frames = behaviour.frames
        assert frames.arguments
        assert set(frames.core) <= set(frames.child)
        assert bool(frames.profile) == behaviour.profiles_before_pool
        assert not set(frames.serving) & {part for entry in behaviour.stack for part in entry.frames}


class TestLines:
    @pytest.mark.parametrize(
        "line",
        ["", " ", "\t", "[", "(", "{", '{"', "[2026", "a" * 70_000, "[b]bold[/b]", "\x00\uffff", "INFO:", "é" * 300],
    )
    def test_any_line_has_a_prefix_and_a_level(self, engine: Engine, line: str) -> None:
        prefix = engine.prefix(line)
        assert 0 <= prefix.message_start <= len(line)
        assert isinstance(engine.level(line), Level)
        assert list(engine.facts(line, prefix, 0)) == []

    def test_facts_carry_where_they_stood(self, engine: Engine) -> None:
        for path in sorted((GOLDEN / "logs" / engine.name).glob("*/*.log"))[:6]:
            for number, line in enumerate(path.read_text("utf-8", "replace").splitlines()):
                prefix = engine.prefix(line)
                for fact in engine.facts(line, prefix, number):
                    assert fact.kind in f.KINDS
                    assert fact.offset == number
                    assert fact.format
                    msgspec.json.encode(fact)


class TestRanks:
    def test_a_server_without_processes_gives_none_or_the_ordered_ones(self, engine: Engine) -> None:
        assert list(engine.ranks(_server(engine), {})) == []

    def test_tags_are_distinct(self, engine: Engine) -> None:
        titles = ("sglang::scheduler_TP0", "sglang::scheduler_TP1", "VLLM::Worker_TP0", "VLLM::Worker_TP1", "", "x")
        tags = [place.tag for place in engine.ranks(_server(engine, titles=titles), {})]
        assert tags == ["TP0", "TP1"]

    @pytest.mark.parametrize(
        "settings", [{"tp_size": "x"}, {"tensor_parallel_size": None}, {"tp_size": [1]}, {"nnodes": 0}]
    )
    def test_odd_settings_break_nothing(self, engine: Engine, settings: dict[str, Any]) -> None:
        titles = ("sglang::scheduler_TP1", "VLLM::Worker_TP1")
        assert [p.tag for p in engine.ranks(_server(engine, titles=titles), settings)] == ["TP1"]

    @pytest.mark.parametrize("argv", [(), ("",), ("--model",), ("serve",), ("x", "serve"), ("-m", "a", "--b=", "--")])
    def test_odd_command_lines_break_nothing(self, engine: Engine, argv: tuple[str, ...]) -> None:
        server = _server(engine, argv)
        assert isinstance(engine.settings_from_argv(server), dict)
        assert engine.model(server) is None


class TestAnswers:
    def test_an_endpoint_of_nobody_says_nothing(self, engine: Engine) -> None:
        assert engine.read(HttpAnswer(key="10:1", endpoint="nobody", status=200, body={"a": 1})) == Reading()

    @pytest.mark.parametrize("status", [None, 200, 301, 400, 401, 403, 404, 500, 503])
    def test_any_status_is_read(self, engine: Engine, status: int | None) -> None:
        for endpoint in engine.plan().endpoints:
            reading = engine.read(HttpAnswer(key="10:1", endpoint=endpoint.id, status=status, error="x", body="<html>"))
            assert reading.metrics is None
            assert reading.problem is None or "\n" not in reading.problem

    def test_metrics_have_the_cores_names(self, engine: Engine) -> None:
        series = {f'{name}{{engine="0",tp_rank="0"}}': 2.0 for e in engine.plan().endpoints for name in e.series}
        reading = engine.read(HttpAnswer(key="10:1", endpoint="metrics", status=200, series=series))
        assert reading.metrics is not None
        assert set(reading.metrics) <= NAMES
        assert {"running", "queued", "token_usage", "ttft_sum", "itl_count"} <= set(reading.metrics)
        assert {"realtime_decode_tokens_total", "generation_tokens_total"} & set(reading.metrics)

    def test_real_metrics_are_read(self, engine: Engine) -> None:
        paths = sorted((GOLDEN / "http" / engine.name).glob("*/metrics*.txt"))
        assert paths
        for path in paths:
            series = {
                name: float(value)
                for name, _, value in (line.rpartition(" ") for line in path.read_text().splitlines())
                if name and not name.startswith("#")
            }
            reading = engine.read(HttpAnswer(key="10:1", endpoint="metrics", status=200, series=series))
            assert reading.metrics is not None
            assert {"running", "queued", "token_usage", "max_total_tokens"} <= set(reading.metrics)
            assert reading.kv_tokens is not None
            json.dumps(reading.metrics)
