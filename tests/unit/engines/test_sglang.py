"""SGLang's lines, processes and answers."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tuner.core.metrics import NAMES
from tuner.domain.events import HttpAnswer
from tuner.domain.logs import Level
from tuner.domain.readings import MemoryTerms, Reading
from tuner.domain.server import Member, ServerIdentity
from tuner.engines.sglang import ENGINE
from tuner.engines.sglang.http import ENDPOINTS
from tuner.units import GIB, from_gib

GOLDEN = Path(__file__).parents[2] / "golden/http/sglang"


def _server(
    argv: str = "python3 -m sglang.launch_server --model-path /m", titles: tuple[str, ...] = ()
) -> ServerIdentity:
    members = tuple(Member(pid=100 + i, ppid=99, start_ticks=1, title=title) for i, title in enumerate(titles))
    return ServerIdentity(key="99:1", engine="sglang", pid=99, start_ticks=1, argv=tuple(argv.split()), members=members)


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
    return ENGINE.read(HttpAnswer(key="99:1", endpoint=endpoint, status=status, series=series, body=body))


class TestPrefix:
    @pytest.mark.parametrize(
        ("line", "rank", "message"),
        [
            ("[2026-11-29 16:24:10] Using x", None, "Using x"),
            ("[2026-11-29 16:24:10.123 TP0] a", "TP0", "a"),
            ("[2026-04-16 01:38:11 DP2 TP2] a", "DP2 TP2", "a"),
            ("[2026-08-20 14:03:20 PP1 TP3 EP1] a", "PP1 TP3 EP1", "a"),
            ("[2026-08-20 14:03:20 DP0 PP1 ATTN_CP1 MOE_DP0 TP3 EP1] a", "DP0 PP1 ATTN_CP1 MOE_DP0 TP3 EP1", "a"),
            ("[07:10:19 TP0] a", "TP0", "a"),
            ("(SGLangWorker pid=38141) [2025-09-18 03:27:10 DP0 TP0] a", "DP0 TP0", "a"),
            ("[2026-11-29 17:00:26] WARNING server_args.py:1841: a", None, "a"),
        ],
    )
    def test_tags_of_every_version(self, line: str, rank: str | None, message: str) -> None:
        prefix = ENGINE.prefix(line)
        assert prefix.prefixed
        assert prefix.rank == rank
        assert line[prefix.message_start :] == message

    @pytest.mark.parametrize(
        "line", ["", "Traceback (most recent call last):", "  0%|  | 0/58", "[x] y", "[2026-11-29] z"]
    )
    def test_other_lines_have_none(self, line: str) -> None:
        prefix = ENGINE.prefix(line)
        assert (prefix.prefixed, prefix.rank, prefix.at, prefix.message_start) == (False, None, None, 0)

    def test_times_are_seconds_of_one_clock(self) -> None:
        first = ENGINE.prefix("[2026-02-28 23:59:58.500] a").at
        second = ENGINE.prefix("[2026-03-01 00:00:02 TP0] a").at
        assert first is not None
        assert second is not None
        assert second - first == 3.5

    def test_a_time_that_is_none_leaves_the_line_readable(self) -> None:
        prefix = ENGINE.prefix("[2026-13-29 16:24:10 TP1] a")
        assert (prefix.rank, prefix.at) == ("TP1", None)

    @pytest.mark.parametrize(
        ("line", "level"),
        [
            ("[2026-11-29 16:24:10] INFO:     Started server process [1]", Level.INFO),
            ("[2026-11-29 16:24:10] ERROR:    [Errno 98] error while attempting to bind", Level.ERROR),
            ('[2026-11-29 16:24:10] INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK', Level.DEBUG),
            (
                '[2026-11-29 16:24:10] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable',
                Level.DEBUG,
            ),
            ('[2026-11-29 16:24:10] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK', Level.INFO),
            (
                '[2026-11-29 16:24:10] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 500 Internal Server Error',
                Level.WARNING,
            ),
            ("INFO:     Started server process [311]", Level.INFO),
            ("[2026-11-29 16:24:10 TP0] Load weight begin.", None),
        ],
    )
    def test_uvicorn_tells_its_level(self, line: str, level: Level | None) -> None:
        assert ENGINE.prefix(line).level is level

    @pytest.mark.parametrize(
        ("message", "level"),
        [
            ("Scheduler hit an exception: Traceback (most recent call last):", Level.ERROR),
            ("torch.OutOfMemoryError: CUDA out of memory.", Level.ERROR),
            ("Subprocess scheduler_0 (pid=1) crashed with exit code -9.", Level.ERROR),
            ("KV cache pool is full. Retract requests. #retracted_reqs: 1", Level.WARNING),
            ("Decode out of memory happened. #retracted_reqs: 3", Level.WARNING),
            ("Ignore import error when loading sglang.srt.models.x: No module named 'y'", Level.WARNING),
            ("Custom allreduce is disabled because it's not supported", Level.WARNING),
            ("Receive: obj=GenerateReqInput(text='torch.OutOfMemoryError: CUDA')", Level.INFO),
            ("Decode batch, #running-req: 1", Level.INFO),
            ("The server is fired up and ready to roll!", Level.INFO),
        ],
    )
    def test_severity_comes_from_the_words(self, message: str, level: Level) -> None:
        assert ENGINE.level(message) is level


class TestTornLines:
    def test_two_records_in_one_line_are_two_facts(self) -> None:
        line = (
            "[2026-02-26 20:01:07 TP0] Memory pool end. avail mem=9.27 GB"
            "[2026-02-26 20:01:08 TP1] Memory pool end. avail mem=9.30 GB"
        )
        facts = ENGINE.facts(line, ENGINE.prefix(line), 40)
        assert [(x.rank, x.fields["available_gib"], x.offset) for x in facts] == [("TP0", 9.27, 40), ("TP1", 9.3, 40)]
        assert facts[0].at is not None
        assert facts[1].at == facts[0].at + 1

    def test_a_record_behind_a_bar_is_found(self) -> None:
        line = (
            "Capturing batches (bs=32 avail_mem=17.00 GB):   0%|          | 0/8 [00:00<?, ?it/s]"
            "[2026-11-29 16:24:07 TP1] Capture target decode CUDA graph end. elapsed=4.70 s, mem usage=0.11 GB."
        )
        facts = ENGINE.facts(line, ENGINE.prefix(line), 0)
        assert [(x.kind, x.rank) for x in facts] == [("progress", None), ("graphs", "TP1")]

    def test_settings_are_kept_apart_from_the_text(self) -> None:
        line = "[2026-02-26 19:52:30] server_args=ServerArgs(" + "a=1, " * 500 + "api_key='sk-secret')"
        (fact,) = ENGINE.facts(line, ENGINE.prefix(line), 0)
        assert len(fact.text) <= 200
        assert "sk-secret" not in fact.text
        assert fact.fields["settings"]["api_key"] == "***"


class TestRanks:
    def test_titles_tell_rank_and_process(self) -> None:
        titles = ("python3 -B -c from multiprocessing.resource_tracker import main", "sglang::scheduler_TP1",
                  "sglang::scheduler_TP0", "sglang::detokenizer")  # fmt: skip
        server = _server("python3 -m sglang.launch_server --model-path /m --tp 2", titles)
        places = ENGINE.ranks(server, {})
        assert [(p.tag, p.pid, p.visible_index) for p in places] == [("TP0", 102, 0), ("TP1", 101, 1)]

    def test_one_scheduler_is_tp0(self) -> None:
        (place,) = ENGINE.ranks(_server(titles=("sglang::scheduler", "sglang::detokenizer")), {})
        assert (place.tag, place.pid, place.visible_index) == ("TP0", 100, 0)

    def test_ranks_are_in_numeric_order(self) -> None:
        titles = tuple(f"sglang::scheduler_TP{i}" for i in (10, 2, 0))
        assert [p.tag for p in ENGINE.ranks(_server(titles=titles), {})] == ["TP0", "TP2", "TP10"]

    def test_underscores_belong_to_the_names_of_dimensions(self) -> None:
        (place,) = ENGINE.ranks(_server(titles=("sglang::scheduler_DP1_PP0_ATTN_CP1_TP3_EP3",)), {"tp_size": 4})
        assert place.tag == "DP1 PP0 ATTN_CP1 TP3 EP3"

    @pytest.mark.parametrize(
        ("title", "settings", "index"),
        [
            ("sglang::scheduler_TP3", {"tp_size": 4, "base_gpu_id": 4}, 7),
            ("sglang::scheduler_TP3", {"tp_size": 4, "gpu_id_step": 2}, 6),
            ("sglang::scheduler_PP1_TP3", {"tp_size": 4, "pp_size": 2}, 7),
            ("sglang::scheduler_TP11", {"tp_size": 16, "nnodes": 2}, 3),
            ("sglang::scheduler_PP1_TP3", {"tp_size": 8, "pp_size": 2, "nnodes": 2}, 3),
            ("sglang::scheduler_DP1_TP1", {"tp_size": 2, "dp_size": 2}, 3),
            ("sglang::scheduler_DP1", {"tp_size": 1, "dp_size": 2}, 1),
            ("sglang::scheduler_DP2_TP2", {"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 2),
            ("sglang::scheduler_DP2_TP2", {"tp_size": 4, "attn_dp_size": 4}, 2),
        ],
    )
    def test_the_gpu_follows_the_placement_formula(self, title: str, settings: dict[str, Any], index: int) -> None:
        (place,) = ENGINE.ranks(_server(titles=(title,)), settings)
        assert place.visible_index == index

    def test_before_titles_the_arguments_order_the_ranks(self) -> None:
        server = _server("python -m sglang.launch_server --model-path /m --tp-size 2 --dp-size 2", ("python -c spawn",))
        places = ENGINE.ranks(server, {})
        assert [(p.tag, p.pid, p.visible_index) for p in places] == [
            ("DP0 TP0", None, 0), ("DP0 TP1", None, 1), ("DP1 TP0", None, 2), ("DP1 TP1", None, 3),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        "argv", ["python -m sglang.launch_server --model m --tp 8 --ep 8", "python3 x.py", "sleep 1"]
    )
    def test_layouts_that_only_titles_tell_give_no_guess(self, argv: str) -> None:
        assert ENGINE.ranks(_server(argv), {}) == []


class TestArguments:
    def test_flags_become_settings(self) -> None:
        server = _server(
            "python3 -m sglang.launch_server --model-path /m --tp 8 --mem-fraction-static=0.88 --enable-metrics "
            "--cuda-graph-bs 1 2 4 --chunked-prefill-size -1 --host 0.0.0.0"
        )
        assert ENGINE.settings_from_argv(server) == {
            "model_path": "/m", "tp_size": 8, "mem_fraction_static": 0.88, "enable_metrics": True,
            "cuda_graph_bs": [1, 2, 4], "chunked_prefill_size": -1, "host": "0.0.0.0",
        }  # fmt: skip
        assert ENGINE.model(server) == "/m"

    def test_sglang_serve_is_understood(self) -> None:
        assert ENGINE.model(_server("/venv/bin/python /venv/bin/sglang serve --model Qwen/Qwen3-8B")) == "Qwen/Qwen3-8B"
        assert ENGINE.model(_server("nothing")) is None


class TestLeader:
    @pytest.mark.parametrize(
        "command",
        [
            "python3 -m sglang.launch_server --model-path /m",
            "/venv/bin/python3.12 -u -m sglang.launch_server --model-path /m",
            "/venv/bin/python -X faulthandler -m sglang.launch_server --model-path /m",
            "/venv/bin/python /venv/bin/sglang serve --model-path /m",
            "sglang serve --model-path /m",
            "python -m sglang serve --model-path /m",
        ],
    )
    def test_is_recognised(self, command: str) -> None:
        assert any(re.search(pattern, command) for pattern in ENGINE.plan().leaders)

    @pytest.mark.parametrize(
        "command",
        [
            "bash -c python3 -m sglang.launch_server --model-path /m",
            "docker run lmsysorg/sglang python3 -m sglang.launch_server",
            "ssh host python3 -m sglang.launch_server",
            "python3 -m sglang.bench_serving --backend sglang",
            "vim sglang.launch_server",
            "tail -f /var/log/sglang serve.log",
            "python3 -m sglang_router.launch_server",
            "grep sglang serve",
            "sglang::scheduler_TP0",
        ],
    )
    def test_is_nothing_else(self, command: str) -> None:
        assert not any(re.search(pattern, command) for pattern in ENGINE.plan().leaders)


class TestHttp:
    def test_health_is_never_asked(self) -> None:
        """Each call of it is a generated token and lines in the log."""
        assert not any("health" in path for endpoint in ENDPOINTS for path in endpoint.paths)

    def test_secrets_are_not_fetched(self) -> None:
        info = next(endpoint for endpoint in ENDPOINTS if endpoint.id == "info")
        assert {"api_key", "admin_api_key", "ssl_keyfile_password"} <= set(info.drop)

    @pytest.mark.parametrize("path", ["0.5.9/metrics.txt", "0.5.16/metrics-h200.txt", "0.5.23/metrics-tp2.txt"])
    def test_the_series_asked_for_tell_as_much_as_all(self, path: str) -> None:
        asked = set(ENDPOINTS[0].series)
        everything = _series(path)
        few = {name: value for name, value in everything.items() if name.partition("{")[0] in asked}
        assert _ask("metrics", series=few) == _ask("metrics", series=everything)
        assert len(few) < 80

    def test_metrics_of_0_5_9_under_load(self) -> None:
        reading = _ask("metrics", series=_series("0.5.9/metrics.txt"))
        assert reading.metrics == {
            "running": 8.0, "queued": 0.0, "used_tokens": 836.0, "max_total_tokens": 32768.0,
            "tok_s": 1855.7101395618645, "generation_tokens_total": 16.0, "prompt_tokens_total": 18.0,
            "requests_total": 2.0, "ttft_sum": 17.176443576812744, "ttft_count": 10.0, "itl_sum": 5.26198935508728,
            "itl_count": 1042.0, "token_usage": 0.0255126953125, "cache_hit": 0.0,
            "realtime_decode_tokens_total": 1059.0, "realtime_prefill_tokens_total": 27.0,
        }  # fmt: skip
        assert (reading.ready, reading.model, reading.kv_tokens, reading.memory) == (True, "tiny", 32768, None)

    def test_ranks_of_one_replica_are_not_added(self) -> None:
        reading = _ask("metrics", series=_series("0.5.23/metrics-tp2.txt"))
        assert reading.metrics is not None
        assert reading.metrics["max_total_tokens"] == 32768.0
        assert reading.metrics["ttft_count"] == 6.0, "streaming and not are parts of one count"
        assert reading.kv_tokens == 32768

    def test_memory_of_each_rank_since_0_5_23(self) -> None:
        reading = _ask("metrics", series=_series("0.5.23/metrics-tp2.txt"))
        kv = from_gib(0.007812738418579102)
        assert reading.memory == {
            "TP0": MemoryTerms(weights_bytes=from_gib(0.00125885009765625), kv_bytes=kv, graphs_bytes=0),
            "TP1": MemoryTerms(weights_bytes=from_gib(0.0015106201171875), kv_bytes=kv, graphs_bytes=0),
        }

    def test_replicas_are_added_and_ratios_averaged(self) -> None:
        series = {}
        for dp, running, usage in ((0, 3.0, 0.2), (1, 5.0, 0.4)):
            for tp in (0, 1):
                labels = f'{{dp_rank="{dp}",model_name="m",moe_ep_rank="{tp}",pp_rank="0",tp_rank="{tp}"}}'
                series[f"sglang:num_running_reqs{labels}"] = running + 100 * tp
                series[f"sglang:token_usage{labels}"] = usage
                series[f"sglang:gen_throughput{labels}"] = 100.0 + dp
                series[f"sglang:weight_memory_usage_gb{labels}"] = 1.0 + tp
        reading = _ask("metrics", series=series)
        assert reading.metrics is not None
        assert reading.metrics["running"] == 8.0
        assert reading.metrics["tok_s"] == 201.0
        assert reading.metrics["token_usage"] == pytest.approx(0.3)
        assert reading.memory is not None
        assert set(reading.memory) == {"DP0 TP0 EP0", "DP0 TP1 EP1", "DP1 TP0 EP0", "DP1 TP1 EP1"}

    def test_not_a_number_is_not_there(self) -> None:
        reading = _ask("metrics", series={"sglang:num_running_reqs": math.nan, "sglang:num_queue_reqs": 2.0})
        assert reading.metrics == {"queued": 2.0}

    def test_an_acceptance_length_below_one_means_no_speculation(self) -> None:
        assert _ask("metrics", series={"sglang:spec_accept_length": 0.0}).metrics is None
        assert _ask("metrics", series={"sglang:spec_accept_length": 2.5}).metrics == {"accept_length": 2.5}

    def test_metrics_of_0_4_6_have_one_label(self) -> None:
        series = {'sglang:num_running_reqs{model_name="m"}': 4.0, 'sglang:gen_throughput{model_name="m"}': 88.0}
        assert _ask("metrics", series=series).metrics == {"running": 4.0, "tok_s": 88.0}

    def test_before_the_warm_up_ended_nothing_says_ready(self) -> None:
        assert _ask("metrics", series={"sglang:num_requests_total": 0.0}).ready is None
        assert _ask("metrics", series={"sglang:num_requests_total": 1.0}).ready is True

    @pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, None), (401, None), (None, None)])
    def test_ready(self, status: int | None, ready: bool | None) -> None:
        assert _ask("ready", status=status) == Reading(ready=ready)

    @pytest.mark.parametrize(
        ("path", "version", "model", "weights_gib", "kv_gib", "tokens"),
        [
            ("0.5.9/server_info.json", "0.5.9", "/models/tiny457", 0.0, 0.02, 32768),
            ("0.5.16/server_info-h200.json", "0.5.16", "/models/llama-68b", 64.26, 53.21, 348715),
            ("0.5.23/server_info-tp2.json", "0.5.23", "/models/tiny", 0.001, 0.008, 32768),
        ],
    )
    def test_server_info(
        self, path: str, version: str, model: str, weights_gib: float, kv_gib: float, tokens: int
    ) -> None:
        body = json.loads((GOLDEN / path).read_text())
        reading = _ask("info", body=body)
        assert (reading.version, reading.model, reading.kv_tokens) == (version, model, tokens)
        assert reading.settings is not None
        assert len(reading.settings) > 300
        assert "internal_states" not in reading.settings
        assert reading.memory is not None
        assert reading.memory[""].weights_bytes == from_gib(weights_gib)
        assert reading.memory[""].kv_bytes == from_gib(kv_gib)
        thin = _ask("info", body=_as_sent(body))
        assert (thin.version, thin.model, thin.kv_tokens, thin.memory) == (version, model, tokens, reading.memory)
        assert len(json.dumps(_as_sent(body))) < 20_000

    def test_graphs_in_parts_are_added(self) -> None:
        state = {"memory_usage": {"weight": 1, "kvcache": 2, "graph": {"prefill": 0.5, "decode": 0.25, "x": None}}}
        reading = _ask("info", body={"version": "0.5.23", "internal_states": [state]})
        assert reading.memory is not None
        assert reading.memory[""].graphs_bytes == round(0.75 * GIB)

    @pytest.mark.parametrize(
        ("settings", "tags"),
        [
            ({"tp_size": 1, "dp_size": 2}, {"DP0", "DP1"}),
            ({"tp_size": 2, "dp_size": 2}, {"DP0 TP0", "DP0 TP1", "DP1 TP0", "DP1 TP1"}),
            ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}, {"DP0 TP0", "DP0 TP1", "DP1 TP2", "DP1 TP3"}),
        ],
    )
    def test_each_replica_answers_for_its_ranks(self, settings: dict[str, Any], tags: set[str]) -> None:
        states = [{"memory_usage": {"weight": 1, "kvcache": 2, "graph": 0}}] * 2
        reading = _ask("info", body={**settings, "internal_states": states})
        assert reading.memory is not None
        assert set(reading.memory) == tags

    def test_loads_adds_what_the_answer_averages(self) -> None:
        row = {
            "num_running_reqs": 3, "num_waiting_reqs": 1, "num_used_tokens": 100, "max_total_num_tokens": 1000,
            "token_usage": 0.1, "gen_throughput": 50.0, "cache_hit_rate": 0.5,
            "memory": {"weight_gb": 10.0, "kv_cache_gb": 5.0, "graph_gb": 1.0, "token_capacity": 1000},
            "speculative": {"accept_length": 2.0, "accept_rate": 0.5},
        }  # fmt: skip
        body = {"version": "0.5.10", "loads": [row, row], "aggregate": {"avg_throughput": 50.0}}
        asked = next(x for x in ENDPOINTS if x.id == "loads")
        assert set(row) == set(asked.keep["loads"]), "what is read, and nothing that changes by itself"
        reading = _ask("loads", body=body)
        assert reading.metrics == {
            "running": 6.0, "queued": 2.0, "used_tokens": 200.0, "max_total_tokens": 2000.0, "token_usage": 0.1,
            "tok_s": 100.0, "cache_hit": 0.5, "accept_length": 2.0,
        }  # fmt: skip
        assert (reading.version, reading.kv_tokens, reading.ready) == ("0.5.10", 1000, True)

    def test_get_load_counts_waiting_requests_once(self) -> None:
        body = [{"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 700, "ts_tic": 1.5}]
        assert _ask("loads", body=body).metrics == {"running": 3.0, "queued": 2.0, "used_tokens": 700.0}

    def test_a_refused_key_says_what_to_do(self) -> None:
        problem = _ask("info", status=401).problem
        assert problem is not None
        assert "API key" in problem
        assert "--enable-metrics" in problem
        assert "\n" not in problem

    def test_metrics_switched_off_are_no_problem(self) -> None:
        assert _ask("metrics", status=404) == Reading()

    @pytest.mark.parametrize("endpoint", ["metrics", "loads", "info", "ready", "other"])
    @pytest.mark.parametrize(
        "body", [None, 7, "x", [], {}, [1], {"loads": 3}, {"loads": [None]}, {"internal_states": {"a": 1}},
                 {"internal_states": [{"memory_usage": {"weight": "x"}}], "version": 5, "tp_size": "a"}],
    )  # fmt: skip
    def test_nonsense_says_nothing(self, endpoint: str, body: Any) -> None:
        reading = _ask(endpoint, body=body)
        assert reading.metrics is None
        assert reading.memory is None

    def test_names_are_the_cores(self) -> None:
        from tuner.engines.sglang import http

        assert {*http._SUMS.values(), *http._MEANS.values()} <= NAMES


def _as_sent(body: dict[str, Any]) -> dict[str, Any]:
    """What is left of an answer after the probe dropped what the plan says."""
    info = next(endpoint for endpoint in ENDPOINTS if endpoint.id == "info")
    sent = {key: value for key, value in body.items() if key not in info.drop}
    for key, kept in info.keep.items():
        sent[key] = [{name: row[name] for name in kept if name in row} for row in sent[key]]
    return sent


class TestNonsenseNumbers:
    def test_a_size_no_machine_has_is_unknown(self) -> None:
        series = {
            'sglang:weight_memory_usage_gb{tp_rank="0"}': 1e300,
            "sglang:max_total_num_tokens": 1e300,
        }
        reading = ENGINE.read(HttpAnswer(key="k", endpoint="metrics", status=200, series=series))
        assert reading.kv_tokens is None
        assert all(terms == MemoryTerms() for terms in (reading.memory or {}).values())
        body = {"memory_usage": {"weight": 1e300, "kvcache": 1.0}, "max_total_num_tokens": 1e300}
        reading = ENGINE.read(HttpAnswer(key="k", endpoint="info", status=200, body=body))
        assert reading.memory == {"": MemoryTerms(kv_bytes=GIB)}
        assert reading.kv_tokens is None

    @pytest.mark.parametrize("tp_size", [math.inf, 10**9, 1 << 20, -(10**9)])
    def test_as_many_ranks_as_no_server_has_get_no_memory(self, tp_size: float) -> None:
        states = [{"memory_usage": {"weight": 1.0}}, {"memory_usage": {"weight": 2.0}}]
        body = {"tp_size": tp_size, "internal_states": states}
        reading = ENGINE.read(HttpAnswer(key="k", endpoint="info", status=200, body=body))
        assert len(reading.memory or {}) <= 2
        assert len(ENGINE.ranks(_server(), {"tp_size": tp_size})) <= 1
