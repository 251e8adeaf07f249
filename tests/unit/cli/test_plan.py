"""`plan` as it is called: text and JSON, exit codes, one clear line for what is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.golden_starts import GOLDEN, last_start
from tuner.cli import run
from tuner.cli.paper import Paper
from tuner.cli.plan import PlanAnswer, lines
from tuner.domain.history import MemoryRecord
from tuner.engines import load_engines
from tuner.store.history import History

REAL = GOLDEN / "real/sglang-0.5.16-2xH200"
BASE = REAL / "base/server.log"
WORKED = GOLDEN / "corpus/seed-1-baseline.log"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; its exit code, output and error output."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize("log", ["vllm-0.32.0-cpu/tp1-start-stop.log", "sglang-0.5.9-cpu/serve-tp2.log"])
def test_on_a_cpu_the_verdict_says_why_and_nothing_is_missing(log: str, told: Any) -> None:
    _, out, _ = told("plan", "--from", GOLDEN / "real" / log)
    text = " ".join(out.split())
    assert text.endswith(
        "NOT KNOWN on a CPU the fraction is a share of the host's memory, which other processes use too"
    )
    assert "missing" not in out


def test_a_start_that_fits(told: Any) -> None:
    code, out, err = told("plan", "--from", BASE, "--set", "mem-fraction-static=0.968")
    assert (code, err) == (0, "")
    for words in (
        "change    mem_fraction_static 0.85 → 0.968  (--mem-fraction-static)",
        "FITS  at a fraction of 0.968: 455,566 tokens of KV",
        "fraction  above 0.4650, up to 0.968; from 0.502 on it holds one request of the full 32,768 tokens",
        "SGLang switches prefill CUDA graphs off",
        "ranks 0-1",
        "measured",
        "formula",
        "estimate",
    ):
        assert words in out, out
    assert "\x1b" not in out, "no colour where there is no terminal"
    assert max(len(line) for line in out.splitlines()) <= 110


def test_a_start_that_ran_out_of_memory_is_not_said_to_fit_as_it_was(told: Any) -> None:
    log = GOLDEN / "corpus/sg-6318.log"
    code, text, _ = told("plan", "--from", log)
    assert (code, "DOES NOT FIT  0.83 leaves too little" in text, "up to 0.778" in text) == (1, True, True)
    code, text, _ = told("plan", "--from", log, "--set", "mem_fraction_static=0.77")
    assert (code, "FITS  at a fraction of 0.77" in text) == (0, True)


def test_a_change_without_a_value_is_none(told: Any) -> None:
    code, _, error = told("plan", "--from", GOLDEN / "corpus/sg-6318.log", "--set", "mem_fraction_static=")
    assert (code, "A change is knob=value" in error) == (2, True)


def test_a_start_that_is_refused(told: Any) -> None:
    code, out, _ = told("plan", "--from", WORKED, "--set", "mem_fraction_static=0.55")
    assert code == 1
    assert "DOES NOT FIT  refused at 0.55" in out
    assert "just above 0.7691" in " ".join(out.split())
    assert "21.71 - 94.04 x (1 - 0.55) = -20.61 GiB" in out
    assert "activations" not in out, "what would follow a pool that cannot be does not happen"


@pytest.mark.parametrize(
    ("changes", "code", "verdict"),
    [
        (["mem_fraction_static=0.9"], 0, "FITS  at a fraction of 0.9: "),
        (["mem_fraction_static=0.77"], 1, "STARTS  at a fraction of 0.77: 1,200 tokens of KV, too few for one request"),
        (["cuda_graph_max_bs=512", "kv_cache_dtype=fp8_e4m3"], 1, "FITS, NOT SURELY  at a fraction of 0.88: 318,5"),
        (["tp_size=12"], 1, "FITS, NOT SURELY  at a fraction of 0.88"),
    ],
)
def test_a_sure_fit_that_serves_full_length_alone_ends_with_0(
    told: Any, changes: list[str], code: int, verdict: str
) -> None:
    flags = [part for change in changes for part in ("--set", change)]
    found, out, err = told("plan", "--from", WORKED, *flags)
    assert (found, err) == (code, "")
    assert verdict in out, out
    assert json.loads(told("plan", "--from", WORKED, *flags, "--json")[1])["plan"]["fit"] == "fits"


def test_the_least_that_starts_and_the_least_that_serves_are_both_named(told: Any) -> None:
    _, out, _ = told("plan", "--from", WORKED)
    words = "fraction  above 0.7691, up to 0.922; from 0.861 on it holds one request of the full 131,072 tokens"
    assert words in " ".join(out.split()).replace("fraction above", "fraction  above"), out


@pytest.mark.parametrize(("fraction", "words"), [("0.9", "0.9 should fit"), ("0.956", "0.956 lies above 0.922")])
def test_a_failed_start_is_planned_from_as_its_diagnosis_says(told: Any, fraction: str, words: str) -> None:
    failed = GOLDEN / "corpus/seed-3-custom-ar-055.log"
    code, out, _ = told("plan", "--from", failed, "--set", f"mem_fraction_static={fraction}")
    assert code == 1
    assert f"NOT KNOWN  {words}" in out, out
    assert "above 0.7692, up to 0.922, by estimate" in out
    assert "0.77 to 0.922 is safe" in " ".join(told("diagnose", failed)[1].replace("│", " ").split())


def test_json_has_the_rows_of_every_rank(told: Any) -> None:
    code, out, err = told(
        "plan", "--from", BASE, "--from", REAL / "auto512/server.log", "--set", "cuda_graph_max_bs=512", "--json"
    )
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["schema"] == 1
    assert (answer["engine"], answer["model"]) == ("sglang", "/models/llama-68b")
    assert answer["changes"] == [
        {"knob": "cuda_graph_max_bs", "old": 32, "new": 512, "flag": "--cuda-graph-max-bs-decode", "env": None}
    ]
    plan = answer["plan"]
    assert (plan["fit"], plan["f_min"]) == ("fits", 0.465)
    graphs = [row for row in plan["rows"] if row["what"] == "graphs"]
    assert [row["rank"] for row in graphs] == [0, 1]
    assert graphs[0]["source"] == "measured"
    assert graphs[0]["gib"] == pytest.approx(3.51, abs=0.05)
    assert {row["source"] for row in plan["rows"]} <= {"measured", "formula", "estimate"}


def test_no_fraction_works(told: Any) -> None:
    code, out, _ = told("plan", "--from", WORKED, "--set", "tp=4")
    assert code == 1
    assert "no fraction works: the weights alone take more than is free" in out
    assert "to make room: more GPUs" in out


def test_a_variable_that_the_version_ignores_is_told(told: Any) -> None:
    code, out, _ = told("plan", "--from", WORKED, "--set", "SGLANG_CUSTOM_ALLREDUCE_ALGO=1stage")
    assert code == 0
    assert "changes nothing in 0.5.9" in " ".join(out.split())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("foo=1", "SGLang has no knob foo"),
        ("mem_fraction=0.9", "Did you mean mem_fraction_static"),
        ("mem_fraction_static=abc", "mem_fraction_static cannot be abc: a number is meant"),
        ("mem_fraction_static=1.5", "more than 1"),
        ("mem_fraction_static=0", "less than 0.01"),
        ("kv_cache_dtype=fp9", "it is one of auto, fp8_e5m2"),
        ("enable_piecewise_cuda_graph=on", "went after 0.5.9"),
        ("cuda_graph_bs=1,0", "0 is less than 1"),
        ("cuda_graph_max_bs=4611686018427387904", "more than any server counts"),
        ("bad", "A change is knob=value"),
        ("=1", "A change is knob=value"),
        ("\x1b[31mred=1", "has no knob"),
    ],
)
def test_what_is_no_change_is_one_clear_line(told: Any, change: str, words: str) -> None:
    code, out, err = told("plan", "--from", BASE, "--set", change)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_knob_has_one_value(told: Any) -> None:
    code, _, err = told("plan", "--from", BASE, "--set", "mem_fraction_static=0.8", "--set", "fraction=0.9")
    assert code == 2
    assert "mem_fraction_static is set twice" in err


def test_logs_that_tell_nothing_are_one_clear_line(told: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.write_text("hello\n")
    for arguments in (("plan",), ("plan", "--from", tmp_path / "none.log"), ("plan", "--from", empty)):
        code, out, err = told(*arguments)
        assert (code, out) == (2, "")
        assert err


def test_the_knobs_are_listed(told: Any) -> None:
    code, out, _ = told("plan", "--knobs")
    assert code == 0
    assert "mem_fraction_static  --mem-fraction-static" in out
    assert "gpu_memory_utilization  --gpu-memory-utilization" in out
    heads = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert [head.rpartition(" (")[0] for head in heads] == [
        "SGLang, arguments whose memory is forecast", "SGLang, other arguments", "SGLang, variables",
        "vLLM, arguments whose memory is forecast", "vLLM, other arguments", "vLLM, variables",
        "NCCL, variables", "CUDA and PyTorch, variables",
    ]  # fmt: skip
    names = [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "]
    assert names.count("nccl_p2p_level") + names.count("NCCL_P2P_LEVEL") == 1, "what both read comes once"
    engines = load_engines().values()
    assert set(names) == {name for engine in engines for name in engine.knobs()}, "none is left out"
    code, out, _ = told("plan", "--knobs", "--json")
    known = json.loads(out)
    assert "cuda_graph_max_bs" in [knob["name"] for knob in known["sglang"]]


def test_what_was_watched_on_a_host_is_used(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.cli.plan.history_file", lambda: tmp_path / "history")
    assert told("plan", "--host", "box")[0] == 2
    history = History(tmp_path / "history")
    for name, at in (("auto512", 1000.0), ("base", 2000.0)):
        start = last_start(f"real/sglang-0.5.16-2xH200/{name}/server.log")
        kept = msgspec.structs.replace(start, lines=(), signs=(), batches=(), failures=())
        history.keep(MemoryRecord(host="box", engine="sglang", model="m", started_at=at, start=kept))
    code, out, err = told("plan", "--host", "box", "--set", "cuda_graph_max_bs=512")
    assert (code, err) == (0, "")
    assert "from      the newest start watched on box" in out
    assert "with      another start of the LLM" in out
    assert "52 graphs, as captured before" in out
    code, out, _ = told("plan", "--from", BASE, "--host", "box", "--set", "cuda_graph_max_bs=512", "--json")
    answer = json.loads(out)
    assert (code, answer["host"], answer["past"]) == (0, "box", 2)
    assert told("plan", "--host", "other")[0] == 2


def test_a_narrow_terminal_without_letters(told: Any) -> None:
    _, out, _ = told("plan", "--from", BASE, "--json")
    answer = msgspec.json.decode(out.encode(), type=PlanAnswer)
    text = list(lines(answer, "SGLang", Paper(width=60, ascii=True)))
    assert all(line.isascii() for line in text)
    assert max(map(len, text)) <= 70


def test_logs_that_tell_nothing_of_the_start_are_named(told: Any) -> None:
    other, failed = GOLDEN / "real/vllm-0.32.0-cpu/tp1-start-stop.log", REAL / "lowfrac/server.log"
    arguments = ("plan", "--from", BASE, "--from", BASE, "--from", WORKED, "--from", other, "--from", failed)
    code, out, err = told(*arguments, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    assert answer["past"] == 0
    assert answer["files"] == [str(each) for each in (BASE, WORKED, other, failed)], "the same log twice is one"
    assert answer["unused"] == [
        {"file": str(WORKED), "why": "of another LLM"},
        {"file": str(other), "why": "of another engine"},
        {"file": str(failed), "why": "no start in it became ready"},
    ]
    _, out, _ = told(*arguments)
    assert "without" in out
    assert "of another engine" in out


def test_a_plan_from_a_start_that_failed_says_so(told: Any) -> None:
    code, out, _ = told("plan", "--from", REAL / "lowfrac/server.log")
    assert code == 1
    assert "a start that failed" in " ".join(out.split())


def test_a_packed_log_that_breaks_off_is_said_to(told: Any, tmp_path: Path) -> None:
    cut = tmp_path / "base.log.gz"
    packed = gzip.compress(BASE.read_bytes() + b"x" * 100_000)
    cut.write_bytes(packed[:-40])
    code, _, err = told("plan", "--from", cut)
    assert code == 0
    assert err == f"{cut} breaks off: it is read as far as it unpacks\n"


def test_the_standard_input_is_one_log(told: Any) -> None:
    for arguments in (
        ("plan", "--from", "-", "--from", "-"),
        ("compare", "-", "-"),
        ("diagnose", "-", "--baseline", "-"),
    ):
        code, out, err = told(*arguments)
        assert (code, out) == (2, "")
        assert "the standard input can be read once" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "changed"),
    [("custom_all_reduce=off", [("disable_custom_all_reduce", True)]), ("custom_all_reduce=on", [])],
)
def test_a_switch_is_turned_from_both_sides(change: str, changed: list[tuple[str, bool]], told: Any) -> None:
    """The start that is planned from has custom all-reduce on."""
    _, out, err = told("plan", "--from", BASE, "--set", change, "--json")
    assert err == ""
    assert [(each["knob"], each["new"]) for each in json.loads(out)["changes"]] == changed
