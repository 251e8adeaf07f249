"""`diagnose` and `compare` as they are called: files and standard input, text and JSON, exit codes."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_starts import GOLDEN
from tuner.cli import run
from tuner.cli.paper import Paper

FAILED = GOLDEN / "corpus/seed-3-custom-ar-055.log"
WORKED = GOLDEN / "corpus/seed-1-baseline.log"
REAL = GOLDEN / "real/sglang-0.5.16-2xH200"


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; its exit code, output and error output."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_a_quotation_that_is_cut_ends_with_an_ellipsis_and_json_has_the_words_of_the_log(told: Any) -> None:
    log = GOLDEN / "real/sglang-0.5.23-cpu/fail-bad-attention-backend.log"
    _, out, _ = told("diagnose", log)
    assert "'trtllm_mla' … (line 478)" in " ".join(out.replace("│", "").split())
    assert out.count("…") == 1, "what is whole has none"
    _, out, _ = told("diagnose", log, "--json")
    (error,) = (each for each in json.loads(out)["findings"][0]["evidence"] if each["what"] == "error")
    assert error["value"].endswith("'trtllm_mla'")
    assert list(error) == ["what", "value", "unit", "file", "line", "derived"]


def test_a_failed_start_is_explained(told: Any) -> None:
    code, out, err = told("diagnose", FAILED)
    assert (code, err) == (1, "")
    for words in (
        "Kimi-K2.5-INT4 · 8 ranks",
        "FAILED in kv-alloc",
        "✗ mem-fraction-too-low · fatal in kv-alloc · all 8 ranks · high confidence",
        "21.70 - 94.04 x (1 - 0.55) = -20.62 GiB",
        "raise --mem-fraction-static to",
        "TP7 94.08 before, 21.74 after",
    ):
        assert words in out, out
    assert "\x1b" not in out, "no colour where there is no terminal"


@pytest.mark.parametrize(
    ("name", "words", "not_said"),
    [
        ("f97", ["and up to 0.9680", "the remedy above wants at most 0.958", "0.502 to 0.958 mends it"], ["is safe"]),
        ("lowfrac", ["and up to 0.9420, by estimate", "0.466 to 0.942 is safe", "above 0.942, by estimate,"], []),
        ("retract", ["max_total_tokens=20000 bounds the KV pool, not the fraction"], ["such a start", "1.0000"]),
    ],
)
def test_one_safe_interval_is_told(told: Any, name: str, words: list[str], not_said: list[str]) -> None:
    out = " ".join(told("diagnose", REAL / name / "server.log")[1].replace("│", " ").split())
    assert [each for each in words if each not in out] == [], out
    assert [each for each in not_said if each in out] == [], out


def test_a_fraction_that_fits_only_by_the_expected_values_is_said_to(told: Any) -> None:
    out = " ".join(told("diagnose", GOLDEN / "corpus/sg-4233.log")[1].split())
    assert "up to 0.8850; 0.89 fits, but not surely" in out


def test_nothing_is_told_of_a_fraction_on_a_cpu(told: Any) -> None:
    logs = [GOLDEN / f"real/sglang-0.5.23-cpu/{name}.log" for name in ("serve-default", "nometrics-queue")]
    assert "fraction" not in told("diagnose", logs[0])[1]
    assert "least fraction" not in told("compare", *logs)[1]
    assert "least fraction" in told("compare", REAL / "base/server.log", REAL / "f97/server.log")[1]


def test_a_packed_log_that_breaks_off_is_said_to(told: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    packed = gzip.compress(FAILED.read_bytes())
    path.write_bytes(packed[:-20])
    code, out, err = told("diagnose", path)
    assert code == 1
    assert "mem-fraction-too-low" in out
    assert err == f"{path} breaks off: it is read as far as it unpacks\n"


def test_the_same_as_json(told: Any) -> None:
    code, out, _ = told("diagnose", FAILED, "--json")
    data = json.loads(out)
    assert code == 1
    assert (data["schema"], data["engine"], data["outcome"]) == (1, "sglang", "failed")
    finding, aside = data["findings"]
    assert (aside["cause"], aside["severity"]) == ("setting-ignored", "info")
    assert (finding["cause"], finding["phase"], finding["ranks"]) == (
        "mem-fraction-too-low",
        "kv-alloc",
        list(range(8)),
    )
    lines = FAILED.read_text().splitlines()
    for evidence in finding["evidence"]:
        if not evidence["derived"]:
            assert evidence["file"] == str(FAILED)
            assert f"{evidence['value']}" in lines[evidence["line"] - 1]
    assert data["plan"]["f_min"] == 0.7692
    assert len(data["rank_report"]) == 8
    assert "comparison" not in data


def test_a_healthy_log_says_nothing_and_ends_with_zero(told: Any) -> None:
    code, out, _ = told("diagnose", WORKED)
    assert code == 0
    assert "READY" in out
    assert "159,277 tokens" in out
    assert "nothing found" in out


def test_a_baseline_gives_what_changed_and_the_value_that_worked(told: Any) -> None:
    code, out, _ = told("diagnose", FAILED, "--baseline", WORKED)
    assert code == 1
    assert "raise --mem-fraction-static to 0.88" in out
    assert "mem_fraction_static 0.88 -> 0.55 is the only change that matters" in out
    assert "NCCL and custom all-reduce 0.42 against 0.39 GiB: 0.03 GiB, the pool lacks 20.6" in out
    _, out, _ = told("diagnose", FAILED, "--baseline", WORKED, "--json")
    comparison = json.loads(out)["comparison"]
    assert comparison["differences"][0]["name"] == "mem_fraction_static"
    assert {each["name"] for each in comparison["acquitted"]} >= {"communicators", "disable_custom_all_reduce"}


def test_a_baseline_without_its_arguments_is_read_off_its_pool(told: Any) -> None:
    code, out, _ = told("diagnose", FAILED, "--baseline", GOLDEN / "case/baseline-without-arguments.log", "--json")
    comparison = json.loads(out)["comparison"]
    assert code == 1
    assert comparison["baseline"]["fraction"] == 0.88
    assert comparison["baseline"]["fraction_origin"] == "effective"
    (cause,) = (each for each in comparison["differences"] if each["explains"])
    assert (cause["baseline"], cause["this"], cause["baseline_origin"]) == (0.88, 0.55, "effective")


def test_standard_input_and_packed_logs(told: Any, tmp_path: Path) -> None:
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(FAILED.read_bytes()))
    _, plain, _ = told("diagnose", FAILED, "--json")
    code, out, _ = told("diagnose", packed, "--json")
    assert code == 1
    assert (
        json.loads(out)["findings"][0]["evidence"][0]["line"] == json.loads(plain)["findings"][0]["evidence"][0]["line"]
    )
    ran = subprocess.run(
        [sys.executable, "-m", "tuner", "diagnose", "-", "--json"],
        input=FAILED.read_bytes(),
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, json.loads(ran.stdout)["findings"][0]["cause"]) == (1, "mem-fraction-too-low")


def test_several_files_are_parts_of_one_start(told: Any, tmp_path: Path) -> None:
    lines = FAILED.read_text().splitlines(keepends=True)
    first, second = tmp_path / "server.log.1", tmp_path / "server.log"
    first.write_text("".join(lines[:40]))
    second.write_text("".join(lines[40:]))
    code, out, _ = told("diagnose", first, second, "--json")
    data = json.loads(out)
    assert (code, data["findings"][0]["cause"]) == (1, "mem-fraction-too-low")
    assert data["files"] == [str(first), str(second)]
    places = {(each["what"], each["file"], each["line"]) for each in data["findings"][0]["evidence"] if each["file"]}
    assert {Path(file).name for _, file, _ in places} == {"server.log.1", "server.log"}
    for _, file, line in places:
        assert 1 <= line <= len(Path(file).read_text().splitlines())


def test_the_last_of_several_starts_is_judged_and_the_others_are_listed(told: Any, tmp_path: Path) -> None:
    both = tmp_path / "server.log"
    both.write_text(WORKED.read_text() + FAILED.read_text())
    code, out, _ = told("diagnose", both, "--json")
    data = json.loads(out)
    assert (code, data["outcome"]) == (1, "failed")
    (earlier,) = data["starts"]
    assert (earlier["outcome"], earlier["first_line"], earlier["last_line"]) == ("ready", 1, 102)
    assert data["findings"][0]["remedies"][0]["value"] == 0.88, "what worked before, in the same log"
    _, out, _ = told("diagnose", both)
    assert "earlier starts in this log" in out
    assert "lines 1 to 102" in " ".join(out.split())


def test_two_starts_side_by_side(told: Any) -> None:
    code, out, _ = told("compare", REAL / "base/server.log", REAL / "f97/server.log")
    assert code == 0
    assert "base/server.log" in out.splitlines()[0]
    assert "f97/server.log" in out.splitlines()[0]
    for words in (
        "mem_fraction_static",
        "455,598 tokens, the baseline's 348,715",
        "+30.7 %",
        "graph-capture",
        "prefill memory",
    ):
        assert words in out, out
    assert "random_seed" not in out
    code, out, _ = told("compare", REAL / "base/server.log", REAL / "f97/server.log", "--all")
    assert "random_seed" in out


def test_two_starts_as_json(told: Any) -> None:
    code, out, _ = told("compare", REAL / "base/server.log", REAL / "lowfrac/server.log", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["schema"] == 1
    assert data["this"]["f_min"] == 0.465
    assert data["differences"][0]["explains"]
    assert {each["group"] for each in data["measures"]} >= {"phase", "memory", "pool", "graphs"}


def test_remedies_are_those_of_the_one_that_failed_whichever_is_named_first(told: Any) -> None:
    logs = [GOLDEN / "evidence/sglang-0.5.16-h200" / name / "server.log" for name in ("oom-pool", "retractions")]
    _, out, _ = told("compare", *logs)
    assert "mem_fraction_static 0.998 -> 0.8 matters most" in out, out
    _, out, _ = told("compare", *reversed(logs))
    assert "mem_fraction_static 0.8 -> 0.998 matters most" in out, out


def test_two_llms_do_not_compare_and_are_shown_all_the_same(told: Any) -> None:
    code, out, _ = told("compare", WORKED, REAL / "base/server.log")
    assert code == 0
    assert "These two do not compare: other LLMs" in out
    assert "138.18 GiB" in out
    assert "\nwhat differs\n" in out
    assert "a part in it" not in out, "nothing can be weighed"
    assert not re.search(r" x \d|[+-]\d+\.\d %|[+-]\d+\.\d\d$", out, re.MULTILINE), "no number is held against another"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose"], "Missing argument"),
        (["diagnose", "absent.log"], "absent.log"),
        (["diagnose", "."], "."),
        (["compare", "absent.log", "absent.log"], "absent.log"),
        (["compare", str(WORKED)], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_two(arguments: list[str], words: str, told: Any) -> None:
    code, out, err = told(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
    if not err.startswith("Usage"):
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Dear all,\nthe server is down.\n", "no line of SGLang or vLLM is in this text: "),
        ("# Notes\n\nStart it with sglang; vllm would do. See https://vllm.ai\n", "no line of SGLang or vLLM is in"),
        ("", "the log is empty: "),
    ],
)
def test_a_text_of_no_engine_is_refused(text: str, words: str, told: Any, tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text(text)
    code, out, err = told("diagnose", letter)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
    assert str(letter) in err
    assert "Give the server's whole log" in err
    code, out, _ = told("diagnose", letter, "--json")
    data = json.loads(out)
    assert (code, data["engine"], data["outcome"], data["phase"]) == (2, None, "unknown", "none")
    assert [(each["cause"], each["severity"]) for each in data["findings"]] == [("inconclusive", "info")]
    for arguments in (("compare", letter, WORKED), ("compare", WORKED, letter), ("plan", "--from", letter)):
        code, out, err = told(*arguments)
        assert (code, out, len(err.splitlines())) == (2, "", 1), arguments


@pytest.mark.parametrize("name", ["README.md", "docs/diagnose.md", "docs/forecast.md", "pyproject.toml"])
def test_what_only_mentions_engines_is_no_log(name: str, told: Any) -> None:
    code, out, _ = told("diagnose", Path(__file__).parents[3] / name)
    assert (code, out) == (2, "")


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-02 10:00:00 TP0] Init torch distributed begin.",
        "INFO 01-02 10:00:00 [api_server.py:1] vLLM API server version 0.9.1",
        '  File "/venv/lib/python3.12/site-packages/sglang/srt/server.py", line 3, in main',
        "/venv/lib/python3.11/site-packages/vllm/triton_utils/dispatcher.py:138: FutureWarning: old",
    ],
)
def test_one_line_of_an_engine_is_a_log(line: str, told: Any, tmp_path: Path) -> None:
    (tmp_path / "cut.log").write_text(f"{line}\n")
    code, out, err = told("diagnose", tmp_path / "cut.log")
    assert code in (0, 1)
    assert err == ""
    assert str(tmp_path / "cut.log") in out


def test_an_end_that_is_not_in_the_log_is_unknown(told: Any, tmp_path: Path) -> None:
    cut = tmp_path / "cut.log"
    cut.write_text("[2026-01-02 10:00:00] sglang: a line that means nothing\n")
    _, out, _ = told("compare", WORKED, cut)
    assert "Neither failed" not in out
    assert "Whether the other start failed is unknown: its log just ends." in " ".join(out.split())
    _, out, _ = told("compare", cut, cut)
    assert "Whether they failed is unknown" in out


def test_an_all_reduce_that_ended_the_start_does_not_run(told: Any) -> None:
    _, out, _ = told("diagnose", GOLDEN / "corpus/sg-9706.log")
    section = " ".join(out[out.index("all-reduce of 8 ranks") :].split())
    assert "custom all-reduce v1 failed; without, NCCL for every tensor" in section
    assert "✗ custom all-reduce v1 failed: Custom all-reduce cannot share its buffers" in section
    assert "✓ custom" not in section


def test_a_list_is_not_cut_inside_a_word(told: Any) -> None:
    log = GOLDEN / "real/sglang-0.5.23-cpu/fail-bad-attention-backend.log"
    finding = json.loads(told("diagnose", log, "--json")[1])["findings"][0]
    listed = re.findall(r"'[^']*'", log.read_text().partition("(choose from ")[2].partition(")")[0])
    (remedy,) = finding["remedies"]
    names = re.findall(r"'[^']*'", remedy["why"])
    assert names == listed[: len(names)]
    assert remedy["why"].endswith(f"and {len(listed) - len(names)} more; --help lists them")
    assert finding["explanation"].endswith("invalid choice: 'nosuch'.")
    error = next(each["value"] for each in finding["evidence"] if each["what"] == "error")
    assert error.count("'") % 2 == 0, error
    assert "FAILED in args" in told("diagnose", log)[1]


def test_small_amounts_are_told_in_a_unit_that_shows_them(told: Any) -> None:
    log = GOLDEN / "real/vllm-0.32.0-cpu/kv-too-small.log"
    _, out, _ = told("diagnose", log)
    assert "0.00 GiB" not in out
    assert "896.0 KiB are lacking" in out
    assert re.search(r"KV cache needed +1\.0 MiB +computed", out)
    assert re.search(r"KV cache available +128\.0 KiB +computed", out)
    evidence = json.loads(told("diagnose", log, "--json")[1])["findings"][0]["evidence"]
    sizes = {each["what"]: (each["value"], each["unit"], each["derived"]) for each in evidence}
    assert sizes["KV cache needed"] == (1 / 1024, "GiB", True)


def test_both_commands_name_the_same_phase(told: Any) -> None:
    log = GOLDEN / "corpus/vl-17939.log"
    assert "FAILED in warmup" in told("diagnose", log)[1]
    out = told("compare", log, log)[1]
    assert "FAILED in warmup" in out
    assert "Both failed in warmup" in out
    assert "graph-capture  " in out, "the furthest phase stays in the tables"


def test_no_line_is_longer_than_the_terminal(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = GOLDEN / "evidence/sglang-0.5.16-h200"
    for columns in ("61", "80", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        for arguments in (
            ("diagnose", FAILED, "--baseline", WORKED),
            ("diagnose", deep / "tp2-ok-dp-attention/server.log", "--baseline", deep / "ok-40l-f90/server.log"),
            ("compare", REAL / "base/server.log", deep / "tp2-ok-dp-attention/server.log", "--all"),
            ("plan", "--from", deep / "tp2-ok-dp-attention/server.log"),
            ("diagnose", REAL / "retract/server.log"),
            ("compare", REAL / "base/server.log", REAL / "auto512/server.log", "--all"),
        ):
            _, out, _ = told(*arguments)
            assert max(map(len, out.splitlines())) < int(columns), out


def test_what_keeps_two_starts_from_comparing_is_told_whole(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "61")
    _, out, _ = told("compare", WORKED, REAL / "base/server.log")
    assert "other LLMs: /models/Kimi-K2.5-INT4 and /models/llama-68b" in " ".join(out.split())


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    assert Paper.of(Screen()).colour
    assert not Paper.of(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Paper.of(Screen()).colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Paper.of(Screen()).colour
    assert Paper.of(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")).ascii


def test_an_output_without_our_letters_gets_others(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.cli.explain.Paper", type("P", (), {"of": staticmethod(lambda: Paper(ascii=True))}))
    _, out, _ = told("diagnose", FAILED, "--baseline", WORKED)
    out.encode("ascii")
    assert "x mem-fraction-too-low" in out


def test_text_of_a_log_cannot_move_the_cursor(told: Any, tmp_path: Path) -> None:
    evil = tmp_path / "evil.log"
    text = FAILED.read_text().replace("/models/Kimi-K2.5-INT4", "/models/\\x1b[2J\x1b[2Jevil")
    evil.write_text(text)
    _, out, _ = told("diagnose", evil)
    assert "\x1b" not in out


def test_files_are_completed(tmp_path: Path) -> None:
    gputuner = Path(sys.executable).with_name("gputuner")
    shutil.copy(WORKED, tmp_path / "one.log")
    ran = subprocess.run(
        [gputuner],
        env={"_GPUTUNER_COMPLETE": "bash_complete", "COMP_WORDS": "gputuner diagnose o", "COMP_CWORD": "2", "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "file" in ran.stdout


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/odd\xff.log"
    Path(os.fsdecode(odd)).write_bytes(FAILED.read_bytes())
    for more in ([], ["--json"]):
        ran = subprocess.run(
            [sys.executable, "-m", "tuner", "diagnose", odd, *more], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (1, "")
        assert "odd" in ran.stdout


def test_two_starts_that_fail_alike_explain_nothing(told: Any, tmp_path: Path) -> None:
    log = GOLDEN / "evidence/sglang-0.5.16-h200/port-in-use/server.log"
    other = tmp_path / "other.log"
    other.write_text(log.read_text().replace("port=39389", "port=31999"))
    _, out, _ = told("compare", log, other, "--json", "--all")
    data = json.loads(out)
    assert data["baseline"]["outcome"] == data["this"]["outcome"] == "failed"
    assert {each["role"] for each in data["differences"] if each["name"] == "port"} == {"noise"}
    assert "versions that both logs show are the same" in data["summary"]
    _, out, _ = told("diagnose", log, "--baseline", log)
    assert "Both failed" in out
    assert "this start" not in out, "no table of nothing"


def test_what_a_remedy_also_names_is_not_denied(told: Any) -> None:
    folder = GOLDEN / "evidence/sglang-0.5.16-h200"
    _, out, _ = told("compare", folder / "ok-40l-f90/server.log", folder / "oom-capture-prefill/server.log")
    assert "mem_fraction_static 0.9 -> 0.985 matters most" in out, out
    assert "cuda_graph_backend_prefill" in out


def _roles(out: str) -> dict[str, str]:
    return {each["name"]: each["role"] for each in json.loads(out)["differences"]}


def test_a_remedy_that_is_only_a_test_explains_nothing(told: Any) -> None:
    folder = GOLDEN / "evidence/sglang-0.5.16-h200"
    names = ("tp2-ok-expandable-segments", "tp2-rank1-hangs-serving")
    _, out, _ = told("compare", *(folder / name / "server.log" for name in names), "--json")
    assert _roles(out)["watchdog_timeout"] == "possible"


def test_a_draft_explains_what_it_took(told: Any) -> None:
    folder = GOLDEN / "evidence/sglang-0.5.16-h200"
    names = ("ok-40l-f50", "low-fraction-draft")
    _, out, _ = told("compare", *(folder / name / "server.log" for name in names), "--json")
    roles = _roles(out)
    assert next(iter(roles)) == "speculative_draft_model_path"
    assert (roles["speculative_draft_model_path"], roles["after weights"]) == ("explains", "follows")


def test_parts_of_a_log_in_a_deep_folder(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "logs of a server that was started" / "on some day" / "by somebody"
    folder.mkdir(parents=True)
    lines = FAILED.read_text().splitlines(keepends=True)
    parts = [folder / "the first part.log", folder / "the second part.log"]
    for part, text in zip(parts, (lines[:30], lines[30:]), strict=True):
        part.write_text("".join(text))
    for columns in ("61", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        code, out, err = told("diagnose", *parts)
        assert (code, err) == (1, "")
        words = " ".join(out.replace("│", " ").split())
        assert "part.log:1 " in words
        assert out.index("dist-init") < out.index("weight-load"), "in the order of the parts"
        assert max(map(len, out.splitlines())) < int(columns), out
