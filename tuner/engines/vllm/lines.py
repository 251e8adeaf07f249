"""Read vLLM's line prefix: `(Worker_TP1 pid=4311) INFO 11-02 09:15:10 [gpu_worker.py:805] message`.

The tag is missing in the single API server up to 0.10.0 and, since 0.31, on everything that is not a record of vLLM
itself. Times have no year and are read as of the year 2000, a leap year: only differences are meaningful, and those
across New Year are wrong. `--logging-config.formatter json` writes one JSON object per line, with the year.
"""

from __future__ import annotations

import functools
import json
import re
from datetime import UTC, datetime
from typing import Any

from tuner.core.engine import LinePrefix
from tuner.domain.logs import Level
from tuner.engines.levels import LEVEL_HEADS, LEVELS

_TAG = re.compile(r"\((?P<name>[^()\s]+)(?: rank=(?P<rank>\d+))? pid=\d+(?:, ip=[\d.:a-f]+)?\) ")
_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<at>\d\d-\d\d \d\d:\d\d:\d\d) "
    r"(?:\[[^\]\n]{1,200}?:\d+\]|[\w./-]{1,200}:\d+\]) ?"
)
_UVICORN = re.compile(r"(?P<level>INFO|WARNING|ERROR|CRITICAL): {2,}(?=\S)")
_TORN = re.compile(
    r"(?<=[^ (])(?:\([A-Za-z_]\w*(?: rank=\d+)? pid=\d+\) )?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d \["
)
_LONGEST_STAMP = 160
_POLLED = re.compile(r'"GET /(?:metrics|health|version|v1/models)[/? ]')
_PARTS = re.compile(r"(PCP|DCP|DP|PP|TP|EP)(\d+)")

_ERROR = re.compile(
    r"^Traceback|^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b|^Exception\b|Fatal Python error|^Killed\b"
    r"|^Process \S+:$|: error: |NCCL WARN|^Failed: Cuda error|terminate called"
)
_WARNING = re.compile(r"Warning\b|\bwarn(?:ing)?\b|\bleaked\b|\[W\d|^\[rank\d+\]:\[W")


def split(text: str) -> LinePrefix:
    """Split a line into prefix and message."""
    if text.startswith('{"'):
        return _json_prefix(text)
    end = text.find("] ") + 2
    if 2 < end < _LONGEST_STAMP and (prefix := _stamp(text[:end])) is not None:
        return prefix
    return _prefix(text)


@functools.lru_cache(maxsize=1024)
def _stamp(text: str) -> LinePrefix | None:
    """Parse a complete prefix; None if the text is not one. Cached, since the lines of a traceback share it."""
    prefix = _prefix(text)
    return prefix if prefix.prefixed and prefix.message_start == len(text) else None


def _prefix(text: str) -> LinePrefix:
    tag = _TAG.match(text)
    start = 0 if tag is None else tag.end()
    rank = None if tag is None else rank_of(tag["name"], tag["rank"])
    actor = "" if tag is None else tag["name"]
    record = _RECORD.match(text, start)
    if record is not None:
        at, level = _full_seconds(f"2000-{record['at']}"), LEVELS[record["level"]]
        return LinePrefix(rank, at, record.end(), level, actor=actor, source=text[record.end("at") : record.end()])
    uvicorn = _UVICORN.match(text, start)
    if uvicorn is not None:
        polled = " HTTP/1." in text and _POLLED.search(text) is not None
        level = Level.DEBUG if polled else LEVELS[uvicorn["level"]]
        return LinePrefix(rank, None, uvicorn.end(), level, actor=actor)
    # A tag without a record marks other output of that process: a progress bar, a traceback, a Python warning.
    return _BARE if tag is None else LinePrefix(rank, None, start, None, False, actor=actor)


_BARE = LinePrefix(None, None, 0, None, False)


def message_of(text: str, prefix: LinePrefix) -> str:
    """Return a line without its prefix; of a JSON record, its message."""
    if prefix.prefixed and prefix.message_start == 0 and text.startswith('{"'):
        record = _json_record(text)
        if record is not None:
            return str(record.get("message", ""))
    return text[prefix.message_start :]


def torn(text: str, start: int) -> int:
    """Return the index after `start` at which another process's record begins in the line, or -1."""
    if text.find(".py:", start + 1) < 0 or text.startswith('{"'):
        return -1
    found = _TORN.search(text, start + 1)
    return -1 if found is None else found.start()


def quick_start(text: str) -> int:
    """Return the index at which the message begins, by a cheap test; -1 if only `split` can tell."""
    if text[:2] == '{"':
        return -1
    start = text.find(") ") + 2 if text[:1] == "(" else 0
    if text[start : start + 4] in LEVEL_HEADS:
        if " HTTP/1." in text:
            return start
        start = text.find("] ", start) + 2
        if start < 2:
            return -1
    return -1 if text.find(".py:", start) >= 0 else start


def level(message: str) -> Level:
    """Return the severity of output that is not a log record, by its words."""
    if _ERROR.search(message) is not None:
        return Level.ERROR
    return Level.WARNING if _WARNING.search(message) is not None else Level.INFO


@functools.lru_cache(maxsize=1024)
def rank_of(name: str, rank: str | None = None) -> str | None:
    """Return the rank tag of a process name: `Worker_DP0_TP1` is `DP0 TP1`; None for API servers and single workers.

    Args:
        name: Process name of the tag.
        rank: Number of the tag's `rank=` part, which old versions print; it is the TP rank.
    """
    if rank is not None:
        return f"TP{rank}"
    if not name.startswith(("Worker", "EngineCore")):
        return None
    return " ".join(f"{part}{number}" for part, number in _PARTS.findall(name)) or None


def _json_prefix(text: str) -> LinePrefix:
    record = _json_record(text)
    if record is None:
        return _BARE
    name = str(record.get("vllm_process_name") or record.get("processName") or "")
    level_name = str(record.get("levelname", ""))
    at = _full_seconds(str(record.get("asctime", "")))
    return LinePrefix(rank_of(name), at, 0, LEVELS.get(level_name), actor=name)


@functools.lru_cache(maxsize=16)
def _json_record(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "message" in record and "levelname" in record else None


def _full_seconds(at: str) -> float | None:
    try:
        return datetime.fromisoformat(at.replace(",", ".")).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
