"""`--json` keeps its word on every log there is, on what collectors make of logs, and on what is hardly one."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden import contract
from tests.golden.mutations import MUTATIONS, Lines
from tests.support.golden_starts import GOLDEN
from tuner.cli import run
from tuner.core.forecast import LEAST_TOKENS
from tuner.core.quoted import Quotes
from tuner.core.story import layout_of
from tuner.domain.findings import Evidence
from tuner.domain.logs import LogLine
from tuner.domain.starts import Failure, Start
from tuner.engines import load_engines

LOGS = sorted(path for kind in ("corpus", "evidence", "logs", "real", "case")
              for path in (GOLDEN / kind).rglob("*.log"))  # fmt: skip
PARTS = 8
"""All logs in so many tests."""
Tell = Callable[..., tuple[int, str]]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Tell:
    """Run a command; its exit code and output. Nothing is said on stderr."""

    def call(*arguments: str | Path) -> tuple[int, str]:
        code = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert err == ""
        return code, out

    return call


def complaints(tell: Tell, *paths: Path) -> list[str]:
    code, out = tell("diagnose", *paths, "--json")
    return contract.complaints(contract.strict(out), code, {str(path): contract.lines_of(path) for path in paths})


@pytest.mark.parametrize("part", range(PARTS))
def test_every_log(part: int, tell: Tell) -> None:
    wrong = {str(path): found for path in LOGS[part::PARTS] if (found := complaints(tell, path))}
    assert wrong == {}


def _docker(lines: Lines, _: random.Random) -> Lines:
    return [json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-30T01:02:03.4Z"}) for line in lines]


def _cri(lines: Lines, _: random.Random) -> Lines:
    return [f"2026-11-30T01:02:03.400000000Z stderr F {line}" for line in lines]


def _crlf(lines: Lines, _: random.Random) -> Lines:
    return [line + "\r" for line in lines]


WAYS = {**MUTATIONS, "docker": _docker, "cri": _cri, "crlf": _crlf}


@pytest.mark.parametrize("way", WAYS)
def test_what_becomes_of_logs(way: str, tell: Tell, tmp_path: Path) -> None:
    path, wrong = tmp_path / "a.log", {}
    for seed, log in enumerate(LOGS[len(way) % 3 :: 3]):
        path.write_text("\n".join(WAYS[way](contract.lines_of(log), random.Random(seed))))
        if found := complaints(tell, path):
            wrong[str(log)] = found
    assert wrong == {}


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"hello\n", b"\xff\xfe\xfd text\n" * 3, b"[2026-02-27 12:01:26 TP0] ", b"server_args="]
)
def test_what_is_no_log(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(data)
    code = run(["diagnose", str(path), "--json"])
    out, err = capsys.readouterr()
    assert code == 2
    assert (err.startswith("gputuner: "), len(err.splitlines())) == (True, 1)
    made = contract.strict(out)
    assert made["engine"] is None
    assert contract.complaints(made, 0, {str(path): contract.lines_of(path)}) == [], "all but the exit code as ever"


def test_the_same_log_gives_the_same_bytes_however_it_is_packed_and_cut(tell: Tell, tmp_path: Path) -> None:
    log = GOLDEN / "corpus/seed-3-custom-ar-055.log"
    first = tell("diagnose", log, "--json")
    assert tell("diagnose", log, "--json") == first
    packed, head, tail = tmp_path / "a.gz", tmp_path / "head.log", tmp_path / "tail.log"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    lines = log.read_text().splitlines(keepends=True)
    head.write_text("".join(lines[:30]))
    tail.write_text("".join(lines[30:]))
    whole = json.loads(first[1])
    assert tell("diagnose", packed, "--json")[1].replace(str(packed), str(log)) == first[1]
    parts = json.loads(tell("diagnose", head, tail, "--json")[1])
    assert parts["files"] == [str(head), str(tail)]
    assert [each["cause"] for each in parts["findings"]] == [each["cause"] for each in whole["findings"]]
    assert complaints(tell, head, tail) == []


def test_ranks_of_replicas_are_global_without_the_arguments() -> None:
    engine = load_engines()["sglang"]
    tags = ["DP0 TP0", "DP0 TP1", "DP1 TP0", "DP1 TP1"]
    assert [layout_of(engine, {}, tags).number(tag) for tag in tags] == [0, 1, 2, 3]
    shared = ["DP0 TP0", "DP1 TP1", "DP2 TP2", "DP3 TP3"]
    assert [layout_of(engine, {}, shared).number(tag) for tag in shared] == [0, 1, 2, 3]
    alone = ["DP3 TP0", "DP3 TP1"]
    assert [layout_of(engine, {}, alone).number(tag) for tag in alone] == [0, 1]


def test_a_number_is_told_with_the_line_that_shows_it_or_with_none() -> None:
    texts = ["ready", "OutOfMemoryError: CUDA out of memory.", "Tried to allocate 4.64 GiB", "page_size=64", "4.64"]
    lines = tuple(LogLine(offset=10 + n, text=text) for n, text in enumerate(texts))
    quotes = Quotes(Start(engine="sglang", lines=lines, failures=(Failure(at=11, end=12),)))

    def at(what: str, value: Any, place: int | None) -> int | None:
        return quotes.place(Evidence(what=what, value=value, at=place))

    assert at("tried", 4.64, 12) == 12
    assert at("tried", 4.64, 11) == 12, "further down in the same record"
    assert at("page_size", 64, 11) == 13, "where it is named"
    assert at("sum", 9.28, 11) is None, "computed"
    assert at("elsewhere", 1, 99) == 99, "a line that is not kept is believed"
    assert at("error", "CUDA out of memory", 11) == 11
    assert at("error", "out of memory. Tried to allocate", 11) == 11, "words of several lines"
    assert at("error", "words of no line", 11) is None
    assert at("computed", 1.5, None) is None


STAMPED = "[2026-02-27 12:01:26 TP0] "


@pytest.mark.parametrize(
    ("text", "what", "value", "shown"),
    [
        *(
            (STAMPED + "Load weight begin. avail mem=94.04 GB", "ranks", number, False)
            for number in (0, 1, 2, 12, 26, 27)
        ),
        (STAMPED + "Load weight begin. avail mem=94.04 GB", "pre-load avail", 94.04, True),
        (STAMPED + "max_total_num_tokens=455566", "tokens", 455, False),
        (STAMPED + "#token: 455,566", "tokens", 455_566, True),
        (STAMPED + "#token: 455,566", "tokens", 566, False),
        (STAMPED + "bs [1, 2, 4, 8]", "largest", 8, True),
        (STAMPED + "code: -98", "errno", 98, True),
        (STAMPED + "exit code 9", "exitcode", -9, False),
        (STAMPED + "sglang 0.5.16", "steps", 0.5, False),
        (STAMPED + "Exception: no room\tleft", "error", "Exception no room left", True),
        (STAMPED + "no room", "error", "no room left", False),
        ("(Worker_TP1 pid=214) INFO 05-10 15:59:37 [gpu_worker.py:671] took 3 GiB", "pid", 214, False),
        ("(Worker_TP1 pid=214) INFO 05-10 15:59:37 [gpu_worker.py:671] took 3 GiB", "line", 671, False),
        ("(Worker_TP1 pid=214) INFO 05-10 15:59:37 [gpu_worker.py:671] took 3 GiB", "taken", 3, True),
    ],
)
def test_times_ranks_and_parts_of_numbers_are_nothing_to_quote(text: str, what: str, value: Any, shown: bool) -> None:
    engine = load_engines()["vllm" if "Worker" in text else "sglang"]
    quotes = Quotes(Start(engine=engine.name, lines=(LogLine(offset=1, text=text),)), engine)
    assert (quotes.place(Evidence(what=what, value=value, at=1)) is not None) is shown
    assert contract.holds([text], 1, what, value) is shown


@pytest.mark.parametrize(
    "named",
    ["ServerArgs(model_path='/m', tp_size=2, dp_size=1)", "args: {'tp_size': 2}", "launch --tp-size 2", "--tp-size=2"],
)
def test_an_argument_is_told_with_the_line_that_names_it(named: str) -> None:
    texts = [f"{STAMPED}2 ranks, attn_tp_size=2, tp_size=4", f"{STAMPED}{named}"]
    lines = tuple(LogLine(offset=number, text=text) for number, text in enumerate(texts, 1))
    quotes = Quotes(Start(engine="sglang", lines=lines, settings_at=2), load_engines()["sglang"])
    assert quotes.place(Evidence(what="tp_size", value=2, at=1)) == 2
    assert not contract.holds(texts, 1, "tp_size", 2)
    assert contract.holds(texts, 2, "tp_size", 2)


KEYS_OF_PLAN = ["schema", "engine", "engine_version", "engine_version_inferred", "model", "files", "outcome", "host",
                "past", "unused", "changes", "plan"]  # fmt: skip
KEYS_OF_COMPARE = ["schema", "baseline", "this", "comparable", "obstacles", "summary", "differences", "acquitted",
                   "measures"]  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_plans_and_comparisons(part: int, tell: Tell) -> None:
    base = GOLDEN / "real/sglang-0.5.16-2xH200/base/server.log"
    for log in LOGS[part :: 4 * 4]:
        code, out = tell("compare", base, log, "--json")
        data = contract.strict(out)
        assert (code, list(data), data["schema"]) == (0, KEYS_OF_COMPARE, 1)
        assert json.loads(json.dumps(data)) == data
        if not any(rank for rank in json.loads(tell("diagnose", log, "--json")[1])["rank_report"]):
            continue
        code, out = tell("plan", "--from", log, "--json")
        data = contract.strict(out)
        assert (list(data), data["schema"]) == (KEYS_OF_PLAN, 1)
        assert list(data["plan"]) == contract.KEYS["plan"]
        plan = data["plan"]
        good = plan["fit"] == "fits" and plan["sure"] and plan["kv_tokens"] >= (plan["context"] or 0)
        assert code == (0 if good else 1)
        if good:
            assert plan["kv_tokens"] >= (plan["context"] or LEAST_TOKENS), log
            assert not any("is not forecast" in each for each in plan["warnings"]), log
