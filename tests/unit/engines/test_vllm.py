"""vLLM's lines, processes and answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tuner.core.metrics import NAMES
from tuner.domain.events import HttpAnswer
from tuner.domain.logs import Level
from tuner.domain.readings import Reading
from tuner.domain.server import Member, ServerIdentity
from tuner.engines.vllm import ENGINE, http
from tuner.engines.vllm.http import ENDPOINTS

GOLDEN = Path(__file__).parents[2] / "golden/http/vllm"


def _server(
    argv: str = "/venv/bin/python3 /venv/bin/vllm serve /m", titles: tuple[tuple[int, int, str], ...] = ()
) -> ServerIdentity:
    members = tuple(Member(pid=pid, ppid=ppid, start_ticks=1, title=title) for pid, ppid, title in titles)
    return ServerIdentity(key="9:1", engine="vllm", pid=9, start_ticks=1, argv=tuple(argv.split()), members=members)


def _series(path: str) -> dict[str, float]:
    series = {}
    for line in (GOLDEN / path).read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            series[name] = float(value)
    return series


def _ask(
    endpoint: str, *, status: int | None = 200, series: dict[str, float] | None = None, body: Any = None
) -> Reading:
    return ENGINE.read(HttpAnswer(key="9:1", endpoint=endpoint, status=status, series=series, body=body))


class TestPrefix:
    @pytest.mark.parametrize(
        ("line", "rank", "level", "message"),
        [
            ("INFO 05-10 15:58:40 [api_server.py:1839] a", None, Level.INFO, "a"),
            ("INFO 04-11 09:10:11 api_server.py:149] a", None, Level.INFO, ""),
            ("(APIServer pid=27) WARNING 11-02 09:20:40 [loggers.py:335] a", None, Level.WARNING, "a"),
            ("(ApiServer_1 pid=27) INFO 11-02 09:20:40 [loggers.py:335] a", None, Level.INFO, "a"),
            ("(MainProcess pid=27) INFO 11-02 09:20:40 [v1/worker/gpu_worker.py:740] a", None, Level.INFO, "a"),
            ("(EngineCore pid=27) ERROR 11-02 09:20:40 [core.py:1] a", None, Level.ERROR, "a"),
            ("(EngineCore_0 pid=27) INFO 11-02 09:20:40 [core.py:1] a", None, Level.INFO, "a"),
            ("(EngineCore_DP1 pid=27) INFO 11-02 09:20:40 [core.py:1] a", "DP1", Level.INFO, "a"),
            ("(VllmWorker rank=3 pid=27) INFO 11-02 09:20:40 [core.py:1] a", "TP3", Level.INFO, "a"),
            ("(Worker pid=27) INFO 11-02 09:20:40 [core.py:1] a", None, Level.INFO, "a"),
            ("(Worker_TP1 pid=27) DEBUG 11-02 09:20:40 [core.py:1] a", "TP1", Level.DEBUG, "a"),
            ("(Worker_DP0_PP1_TP3_EP7 pid=27) INFO 11-02 09:20:40 [core.py:1] a", "DP0 PP1 TP3 EP7", Level.INFO, "a"),
            ("INFO:     Started server process [27409]", None, Level.INFO, "Started server process [27409]"),
            (
                "(APIServer pid=27) INFO:     Application startup complete.",
                None,
                Level.INFO,
                "Application startup complete.",
            ),
            (
                'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
                None,
                Level.DEBUG,
                '127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
            ),
        ],
    )
    def test_records_of_every_version(self, line: str, rank: str | None, level: Level, message: str) -> None:
        prefix = ENGINE.prefix(line)
        assert prefix.prefixed
        assert (prefix.rank, prefix.level) == (rank, level)
        assert line[prefix.message_start :].endswith(message)

    def test_a_tag_alone_is_output_of_that_process(self) -> None:
        prefix = ENGINE.prefix("(Worker_TP1 pid=27) Traceback (most recent call last):")
        assert (prefix.prefixed, prefix.rank) == (False, "TP1")

    @pytest.mark.parametrize(
        "line", ["", "Traceback", '{"a": 1}', '{"log": "x"}', '{"broken', "[W1129 16:21:22.76 utils.cpp:68] x"]
    )
    def test_other_lines_have_none(self, line: str) -> None:
        prefix = ENGINE.prefix(line)
        assert (prefix.prefixed, prefix.rank, prefix.message_start) == (False, None, 0)

    def test_times_are_seconds_of_one_clock(self) -> None:
        times = [
            ENGINE.prefix(f"INFO {at} [a.py:1] a").at for at in ("02-29 23:59:59", "03-01 00:00:01", "13-01 00:00:00")
        ]
        assert times[0] is not None
        assert times[1] is not None
        assert times[1] - times[0] == 2.0
        assert times[2] is None

    def test_json_records_are_read(self) -> None:
        record = {
            "asctime": "2026-11-29 16:33:52,087", "levelname": "INFO", "name": "vllm.v1", "process": 2488,
            "message": "CPU KV cache size: 1,048,576 tokens", "vllm_process_name": "Worker_TP1",
        }  # fmt: skip
        line = json.dumps(record)
        prefix = ENGINE.prefix(line)
        assert (prefix.prefixed, prefix.rank, prefix.level) == (True, "TP1", Level.INFO)
        (fact,) = ENGINE.facts(line, prefix, 5)
        assert (fact.kind, fact.rank, fact.offset, fact.fields["tokens"]) == ("kv-pool", "TP1", 5, 1048576)
        assert fact.at == prefix.at
        assert fact.at is not None
        assert fact.at % 1 == pytest.approx(0.087, abs=1e-6)

    def test_two_records_in_one_line_are_two_facts(self) -> None:
        line = (
            "(Worker_TP0 pid=1) INFO 05-10 15:59:37 [a.py:3] Graph capturing finished in 20 secs, took 1.21 GiB"
            "(Worker_TP1 pid=2) INFO 05-10 15:59:38 [a.py:3] Graph capturing finished in 21 secs, took 1.22 GiB"
        )
        facts = ENGINE.facts(line, ENGINE.prefix(line), 0)
        assert [(x.rank, x.fields["used_gib"]) for x in facts] == [("TP0", 1.21), ("TP1", 1.22)]

    @pytest.mark.parametrize(
        ("message", "level"),
        [
            ("Traceback (most recent call last):", Level.ERROR),
            ("ValueError: No available memory", Level.ERROR),
            ("Process EngineCore:", Level.ERROR),
            ("/usr/lib/python3.11/x.py:254: UserWarning: resource_tracker: There appear to be 1 leaked", Level.WARNING),
            ("nanobind: leaked 4 instances!", Level.WARNING),
            ("Loading safetensors checkpoint shards:  50% Completed | 2/4", Level.INFO),
        ],
    )
    def test_severity_of_raw_output(self, message: str, level: Level) -> None:
        assert ENGINE.level(message) is level


class TestRanks:
    def test_workers_by_title(self) -> None:
        titles = ((10, 9, "VLLM::EngineCore"), (12, 10, "VLLM::Worker_TP1"), (11, 10, "VLLM::Worker_TP0"))
        places = ENGINE.ranks(_server(titles=titles), {"tensor_parallel_size": 2})
        assert [(p.tag, p.pid, p.visible_index) for p in places] == [("TP0", 11, 0), ("TP1", 12, 1)]

    def test_a_single_worker_is_tp0(self) -> None:
        titles = ((10, 9, "VLLM::EngineCore"), (11, 10, "VLLM::Worker"))
        assert [(p.tag, p.pid) for p in ENGINE.ranks(_server(titles=titles), {})] == [("TP0", 11)]

    def test_without_worker_the_engine_core_is_the_rank(self) -> None:
        titles = ((10, 9, "VLLM::EngineCore"), (11, 9, "python3 -c from multiprocessing.resource_tracker import main"))
        assert [(p.tag, p.pid, p.visible_index) for p in ENGINE.ranks(_server(titles=titles), {})] == [("TP0", 10, 0)]

    def test_replicas_with_equal_workers_are_told_apart_by_parent(self) -> None:
        titles = (
            (20, 9, "VLLM::EngineCore_DP0"), (21, 9, "VLLM::EngineCore_DP1"), (22, 9, "VLLM::DPCoordinator"),
            (30, 20, "VLLM::Worker_TP0"), (31, 20, "VLLM::Worker_TP1"),
            (32, 21, "VLLM::Worker_TP0"), (33, 21, "VLLM::Worker_TP1"),
        )  # fmt: skip
        places = ENGINE.ranks(_server(titles=titles), {"tensor_parallel_size": 2})
        assert [(p.tag, p.pid, p.visible_index) for p in places] == [
            ("DP0 TP0", 30, 0), ("DP0 TP1", 31, 1), ("DP1 TP0", 32, 2), ("DP1 TP1", 33, 3),
        ]  # fmt: skip

    def test_replicas_without_workers_are_engine_cores(self) -> None:
        titles = ((20, 9, "VLLM::EngineCore_DP0"), (21, 9, "VLLM::EngineCore_DP1"))
        assert [(p.tag, p.pid) for p in ENGINE.ranks(_server(titles=titles), {})] == [("DP0", 20), ("DP1", 21)]

    def test_titles_of_moe_workers_name_every_dimension(self) -> None:
        titles = ((20, 9, "VLLM::EngineCore_DP1"), (30, 20, "VLLM::Worker_DP1_PP1_TP0_EP2"))
        settings = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
        (place,) = ENGINE.ranks(_server(titles=titles), settings)
        assert (place.tag, place.visible_index) == ("DP1 PP1 TP0 EP2", 6)

    def test_older_versions_have_no_titles_so_the_arguments_order_the_ranks(self) -> None:
        command = "/venv/bin/python3 /venv/bin/vllm serve /m -tp 2"
        places = ENGINE.ranks(_server(command, ((10, 9, command), (11, 10, command))), {})
        assert [(p.tag, p.pid, p.visible_index) for p in places] == [("TP0", None, 0), ("TP1", None, 1)]

    def test_nothing_known_gives_no_rank(self) -> None:
        assert ENGINE.ranks(_server("sleep 1"), {}) == []


class TestArguments:
    def test_flags_become_settings(self) -> None:
        server = _server(
            "/usr/bin/python3 /venv/bin/vllm serve /m -tp 4 --max-model-len=8k --gpu_memory_utilization 0.9"
        )
        assert ENGINE.settings_from_argv(server) == {
            "model": "/m", "tensor_parallel_size": 4, "max_model_len": "8k", "gpu_memory_utilization": 0.9,
        }  # fmt: skip
        assert ENGINE.model(server) == "/m"
        assert ENGINE.model(_server("/venv/bin/python3 /venv/bin/vllm serve --model /n")) == "/n"

    @pytest.mark.parametrize(
        ("options", "settings"),
        [
            ("--tensor-parallel-size 4 /m", {"tensor_parallel_size": 4}),
            ("-tp 4 /m --port 8001", {"tensor_parallel_size": 4, "port": 8001}),
            ("--enforce-eager /m", {"enforce_eager": True}),
            ("--no-enable-prefix-caching /m", {"no_enable_prefix_caching": True}),
            ("--kv-cache-dtype fp8 /m", {"kv_cache_dtype": "fp8"}),
            ("--port 8001 /m", {"port": 8001}),
            ("--cudagraph-capture-sizes 1 2 4 /m", {"cudagraph_capture_sizes": [1, 2, 4]}),
            ("/m --served-model-name a b", {"served_model_name": ["a", "b"]}),
            ("/m --served-model-name 7 foo", {"served_model_name": [7, "foo"]}),
            ("--served-model-name a 7 b --port 1 /m", {"served_model_name": ["a", 7, "b"], "port": 1}),
            ("--trust-remote-code /m", {"trust_remote_code": True}),
            ("--enable-lora /m", {"enable_lora": True}),
            ("--enable-auto-tool-choice /m --port 1", {"enable_auto_tool_choice": True, "port": 1}),
            ("--disable-log-requests /m", {"disable_log_requests": True}),
            ("--disable-access-log-for-endpoints /health /m", {"disable_access_log_for_endpoints": "/health"}),
            ("--host 0.0.0.0 /m", {"host": "0.0.0.0"}),
            (
                "--tool-call-parser hermes /m --chat-template a b",
                {
                    "tool_call_parser": "hermes",
                    "chat_template": ["a", "b"],
                },
            ),
            ("--unheard-of a b --model /m", {"unheard_of": ["a", "b"]}),
        ],
    )
    def test_the_model_stands_anywhere_among_the_flags(self, options: str, settings: dict[str, object]) -> None:
        server = _server(f"/venv/bin/python3 /venv/bin/vllm serve {options}")
        assert ENGINE.settings_from_argv(server) == {"model": "/m"} | settings

    def test_the_older_entry_point(self) -> None:
        server = _server("python3 -m vllm.entrypoints.openai.api_server --model /m --port 8001")
        assert ENGINE.settings_from_argv(server) == {"model": "/m", "port": 8001}
        assert ENGINE.model(server) == "/m"


class TestLeader:
    @pytest.mark.parametrize(
        "command",
        [
            "/venv/bin/python3 /venv/bin/vllm serve /models/tiny --port 18000",
            "vllm serve /models/tiny",
            "python3 -m vllm.entrypoints.openai.api_server --model /m",
            "python -m vllm.entrypoints.cli.main serve /m",
        ],
    )
    def test_is_recognised(self, command: str) -> None:
        assert any(re.search(pattern, command) for pattern in ENGINE.plan().leaders)

    @pytest.mark.parametrize(
        "command",
        ["bash -c vllm serve /m", "docker run vllm/vllm-openai vllm serve", "vllm bench serve --model m",
         "VLLM::EngineCore", "grep vllm serve"],
    )  # fmt: skip
    def test_is_nothing_else(self, command: str) -> None:
        assert not any(re.search(pattern, command) for pattern in ENGINE.plan().leaders)


class TestHttp:
    def test_the_series_asked_for_tell_as_much_as_all(self) -> None:
        asked = set(ENDPOINTS[0].series)
        everything = _series("0.32.0/metrics.txt")
        few = {name: value for name, value in everything.items() if name.partition("{")[0] in asked}
        assert _ask("metrics", series=few) == _ask("metrics", series=everything)
        assert len(few) < 40

    def test_metrics_of_0_32_under_load(self) -> None:
        reading = _ask("metrics", series=_series("0.32.0/metrics.txt"))
        assert reading.metrics == {
            "running": 4.0, "queued": 0.0, "realtime_decode_tokens_total": 2918.0, "prompt_tokens_total": 16.0,
            "retracted_total": 0.0, "requests_total": 4.0, "ttft_sum": 0.19704699516296387, "ttft_count": 8.0,
            "itl_sum": 7.806668932998946, "itl_count": 2910.0, "token_usage": 0.0007324665812122877,
            "cache_hit": 0.0, "max_total_tokens": 2097152.0, "used_tokens": 1536,
        }  # fmt: skip
        assert (reading.model, reading.kv_tokens, reading.ready) == ("tiny", 2097152, None)

    def test_engines_are_added_and_ratios_averaged(self) -> None:
        series = {
            'vllm:num_requests_running{engine="0",model_name="m"}': 2.0,
            'vllm:num_requests_running{engine="1",model_name="m"}': 3.0,
            'vllm:kv_cache_usage_perc{engine="0",model_name="m"}': 0.2,
            'vllm:kv_cache_usage_perc{engine="1",model_name="m"}': 0.4,
            'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="100"}': 1.0,
            'vllm:cache_config_info{engine="1",block_size="16",num_gpu_blocks="100"}': 1.0,
            'vllm:prefix_cache_hits_total{engine="0"}': 25.0,
            'vllm:prefix_cache_queries_total{engine="0"}': 100.0,
            'vllm:spec_decode_num_drafts_total{engine="0"}': 10.0,
            'vllm:spec_decode_num_accepted_tokens_total{engine="0"}': 15.0,
        }
        reading = _ask("metrics", series=series)
        assert reading.metrics is not None
        assert reading.metrics["running"] == 5.0
        assert reading.metrics["token_usage"] == pytest.approx(0.3)
        assert reading.metrics["cache_hit"] == 0.25
        assert reading.metrics["max_total_tokens"] == 3200.0
        assert reading.metrics["used_tokens"] == 960
        assert (reading.metrics["spec_drafts_total"], reading.metrics["spec_accepted_total"]) == (10.0, 15.0)
        assert reading.kv_tokens == 1600

    def test_names_of_older_versions(self) -> None:
        series = {
            'vllm:gpu_cache_usage_perc{model_name="m"}': 0.5,
            'vllm:time_per_output_token_seconds_sum{model_name="m"}': 2.0,
            'vllm:time_per_output_token_seconds_count{model_name="m"}': 100.0,
            'vllm:gpu_prefix_cache_hits_total{model_name="m"}': 1.0,
            'vllm:gpu_prefix_cache_queries_total{model_name="m"}': 4.0,
        }
        reading = _ask("metrics", series=series)
        assert reading.metrics == {"itl_sum": 2.0, "itl_count": 100.0, "token_usage": 0.5, "cache_hit": 0.25}

    @pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, None), (None, None)])
    def test_health_proves_readiness(self, status: int | None, ready: bool | None) -> None:
        assert _ask("ready", status=status) == Reading(ready=ready)

    def test_version(self) -> None:
        assert _ask("version", body={"version": "0.32.0"}) == Reading(version="0.32.0")

    def test_models_tell_the_effective_context_length(self) -> None:
        reading = _ask("models", body=json.loads((GOLDEN / "0.32.0/models.json").read_text()))
        assert (reading.model, reading.settings) == ("/models/tiny", {"max_model_len": 2048})

    @pytest.mark.parametrize("endpoint", ["metrics", "version", "models", "ready", "other"])
    @pytest.mark.parametrize("body", [None, 7, "x", [], {}, {"data": 3}, {"data": [None]}, {"version": 3}])
    def test_nonsense_says_nothing(self, endpoint: str, body: Any) -> None:
        reading = _ask(endpoint, body=body)
        assert reading in (Reading(), Reading(ready=True))

    def test_names_are_the_cores(self) -> None:
        assert {*http._SUMS.values(), *http._OLDER.values()} <= NAMES
