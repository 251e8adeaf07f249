"""What `--json` promises, as complaints in words about one answer; none when it keeps its word."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.core.causes import CAUSES, PHASES
from tuner.core.share import KNOBS

KEYS = {
    "": ["schema", "engine", "engine_version", "engine_version_inferred", "model", "outcome", "phase", "files",
         "findings", "failures", "starts", "rank_report", "plan"],
    "findings": ["cause", "severity", "phase", "ranks", "confidence", "title", "explanation", "evidence", "remedies",
                 "wrong_advice", "refuted_by"],
    "evidence": ["what", "value", "unit", "file", "line", "derived"],
    "remedies": ["knob", "flag", "env", "move", "value", "min", "max", "why"],
    "starts": ["engine", "engine_version", "outcome", "phase", "file", "first_line", "last_line"],
    "rank_report": ["rank", "tag", "phases", "memory", "graphs"],
    "phases": ["phase", "seconds", "before_gib", "after_gib", "used_gib", "ended", "file", "line"],
    "graphs": ["what", "gib", "seconds", "sizes"],
    "plan": ["fit", "fraction", "f_min", "f_max", "kv_tokens", "rows", "warnings", "unknown", "sure",
             "estimated", "context", "f_whole"],
    "rows": ["rank", "what", "gib", "tokens", "source", "error_gib", "note"],
}  # fmt: skip
"""In their order."""
OUTCOMES = {"ready", "running", "failed", "stopped", "unknown"}
SEVERITIES = ("fatal", "error", "performance", "info")
MOVES = {"raise", "lower", "set", "unset", "other"}
FITS = {"fits", "too-low", "too-high", "nowhere", "unknown"}
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![.,]?\d)")
_AROUND = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?(?: std(?:out|err) [FP] )?"
    r"|(?:[A-Z]+ )?\d\d-\d\d \d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\b\d\d:\d\d:\d\d\b"
    r"|\(\w+ (?:rank=\d+ )?pid=\d+(?:, ip=[\d.]+)?\)|\[\w+\.py:\d+\]"
)
_LONGEST = 40
"""Lines that words may run over."""


def strict(text: str) -> Any:
    """JSON as any other tool reads it: no NaN, no key twice, UTF-8."""
    text.encode()

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in found}) == len(found), "a key twice"
        return dict(found)

    def no(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=no, object_pairs_hook=pairs)


def complaints(data: Mapping[str, Any], code: int, lines: Mapping[str, Sequence[str]]) -> list[str]:
    """What an answer of `diagnose --json` owes and does not give.

    Args:
        data: The answer.
        code: The exit code.
        lines: Of each file, without their ends.
    """
    return list(_complaints(data, code, lines))


def _complaints(data: Mapping[str, Any], code: int, lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from _keys("", {key: value for key, value in data.items() if key != "comparison"})
    if data["schema"] != 1 or isinstance(data["schema"], bool):
        yield "schema"
    if data["engine"] not in ("sglang", "vllm", None) or data["outcome"] not in OUTCOMES:
        yield f"engine or outcome: {data['engine']}, {data['outcome']}"
    if data["engine_version"] == "" or data["model"] == "":
        yield "empty where null is meant"
    if list(data["files"]) != list(lines):
        yield f"files: {data['files']}"
    order = [SEVERITIES.index(each["severity"]) for each in data["findings"]]
    if order != sorted(order):
        yield f"findings out of order: {order}"
    if code != (1 if 0 in order or 1 in order else 0):
        yield f"exit code {code}"
    if data["outcome"] == "failed" and not data["findings"]:
        yield "a failed start without a finding"
    for finding in data["findings"]:
        for text in _finding(finding, lines):
            yield f"{finding['cause']}: {text}"
    for start in data["starts"]:
        yield from _keys("starts", start)
        if start["file"] not in lines or not 1 <= start["first_line"] <= start["last_line"]:
            yield f"earlier start: {start}"
    yield from _ranks(data, lines)
    yield from _plan(data)


def _finding(finding: Mapping[str, Any], lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from _keys("findings", finding)
    if finding["cause"] not in CAUSES or finding["phase"] not in PHASES:
        yield f"cause or phase: {finding['phase']}"
    if finding["confidence"] not in ("high", "medium", "low"):
        yield f"confidence {finding['confidence']}"
    ranks = finding["ranks"]
    if ranks is not None and (not ranks or ranks != sorted(set(ranks)) or not all(_whole(each) for each in ranks)):
        yield f"ranks {ranks}"
    for name in ("title", "explanation"):
        if not finding[name] or finding[name] != finding[name].strip():
            yield f"{name}: {finding[name]!r}"
    if len(finding["evidence"]) > 12:
        yield "more than 12 evidence"
    for each in finding["evidence"]:
        yield from _evidence(each, lines)
    for each in finding["remedies"]:
        yield from _remedy(each)


def _evidence(each: Mapping[str, Any], lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from _keys("evidence", each)
    if each["derived"] != (each["line"] is None) or (each["file"] is None) != each["derived"]:
        yield f"derived or not: {each}"
    if each["value"] is not None and isinstance(each["value"], bool | list | dict):
        yield f"value of {each}"
    if each["derived"]:
        if each["unit"] in ("MiB", "KiB", "MB", "bytes", "TiB"):
            yield f"derived in {each['unit']}: {each}"
        return
    if each["file"] not in lines or not _whole(each["line"]) or not 1 <= each["line"] <= len(lines[each["file"]]):
        yield f"no such line: {each}"
        return
    if not holds(lines[each["file"]], each["line"], each["what"], each["value"]):
        yield f"not in its line: {each}: {lines[each['file']][each['line'] - 1][:300]!r}"


def holds(lines: Sequence[str], number: int, what: str, value: Any) -> bool:
    """Whether a line shows what is quoted from it: an argument by its name, a number as one of its own, words in order.

    Args:
        lines: Of the file.
        number: Of the line, from 1.
        what: As the evidence calls it.
        value: As it is quoted.
    """
    line = _said(lines[number - 1])
    if value is None or (re.search(r"\w_\w", what) and _gives(line, what, value)):
        return True
    if re.search(r"\w_\w", what) and any(_gives(each, what, value) for each in lines):
        return False  # another line says it by its name
    if isinstance(value, str):
        first, more = _plain([line]), _plain(_said(each) for each in lines[number : number + _LONGEST])
        return 0 <= (first + more).find(_plain([value]).strip()) < len(first)
    found = {float(each.replace(",", "")) for each in _NUMBER.findall(line)}
    return float(value) in found or (value > 0 and -float(value) in found)


def _said(line: str) -> str:
    """A line without what collectors and loggers put around it: of times, ranks and places no number is quoted."""
    if line.startswith('{"log": '):
        line = json.loads(line)["log"]
    return _AROUND.sub(" ", line)


def _gives(line: str, what: str, value: Any) -> bool:
    """`name=value`, `'name': value`, `--name value`."""
    name = re.escape(what).replace("_", "[-_]")
    between = r"[\"']?(?:=|: ?| set by environment to | +)[\"'(\[]*"
    forms = re.findall(rf"(?<![\w-])(?:--)?{name}{between}([^\s,\"')}}\]]+)", line)
    for text in (form.rstrip(".:") for form in forms):
        if str(value) == text or (_NUMBER.fullmatch(text) and str(value) != value and float(text) == value):
            return True
    return False


def _plain(lines: Iterable[str]) -> str:
    return "".join(" " + " ".join(line.replace(":", " ").split()) for line in lines)


def _remedy(each: Mapping[str, Any]) -> Iterator[str]:
    yield from _keys("remedies", each)
    if each["move"] not in MOVES or not each["knob"] or not each["why"]:
        yield f"remedy {each}"
    if (each["flag"] is not None and not each["flag"].startswith("-")) or each["env"] == "":
        yield f"flag or variable: {each}"
    value, least, most = each["value"], each["min"], each["max"]
    numbers = [part for part in (least, value, most) if isinstance(part, int | float) and not isinstance(part, bool)]
    if numbers != sorted(numbers):
        yield f"out of its interval: {each}"
    if each["knob"] in KNOBS and any(isinstance(part, float) and round(part, 3) != part for part in numbers):
        yield f"more than three digits: {each}"


def _ranks(data: Mapping[str, Any], lines: Mapping[str, Sequence[str]]) -> Iterator[str]:
    numbers = [rank["rank"] for rank in data["rank_report"]]
    if numbers != sorted(set(numbers)):
        yield f"ranks of the report: {numbers}"
    for rank in data["rank_report"]:
        yield from _keys("rank_report", rank)
        for phase in rank["phases"]:
            yield from _keys("phases", phase)
            if phase["phase"] not in PHASES and phase["phase"] != "ready":
                yield f"phase {phase['phase']}"
            if phase["file"] not in lines or not 1 <= phase["line"] <= len(lines[phase["file"]]):
                yield f"place of a phase: {phase}"
            if phase["seconds"] is not None and phase["seconds"] < 0:
                yield f"time runs backwards: {phase}"
        for graph in rank["graphs"]:
            yield from _keys("graphs", graph)
        for name, value in rank["memory"].items():
            if value is not None and (isinstance(value, bool) or (name.endswith("_tokens") and not _whole(value))):
                yield f"{name} is {value!r}"


def _plan(data: Mapping[str, Any]) -> Iterator[str]:
    plan = data["plan"]
    yield from _keys("plan", plan)
    if plan["fit"] not in FITS:
        yield f"fit {plan['fit']}"
    for row in plan["rows"]:
        yield from _keys("rows", row)
        if row["source"] not in ("measured", "formula", "estimate") or row["note"].strip() != row["note"]:
            yield f"row {row}"
        if row["error_gib"] is not None and row["error_gib"] < 0:
            yield f"error of {row}"
    f_min = plan["f_min"]
    if f_min is not None and round(f_min, 4) != f_min:
        yield f"f_min {f_min}"
    memory = [rank["memory"] for rank in data["rank_report"]]
    before = [each["before_weights_gib"] for each in memory if each["before_weights_gib"]]
    after = [each["after_weights_gib"] for each in memory if each["after_weights_gib"] is not None]
    if data["engine"] == "sglang" and f_min is not None and before and after:
        expected = max(0.0, round(1 - min(after) / min(before), 4))
        if not math.isclose(f_min, expected, abs_tol=1e-9):
            yield f"f_min {f_min}, not {expected}"


def _keys(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    if list(found) != KEYS[name]:
        yield f"keys of {name or 'the answer'}: {list(found)}"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def lines_of(path: Path) -> list[str]:
    """The lines of a file as `grep -n` counts them."""
    return path.read_bytes().decode("utf-8", "replace").split("\n")
