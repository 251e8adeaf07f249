"""Read SGLang's line prefix: `[2026-11-29 16:24:10 DP1 TP3] message`. It has no level; severity follows from the text.

Tags vary by version: `TP` is always there up to 0.4.6, later only if the size of that dimension is above 1; `PP` stands
before `TP` since 0.5.8; `ATTN_CP` and `MOE_DP` exist since 0.5.9. Uvicorn's lines have their own level after the
prefix, and no prefix up to 0.4.x.
"""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime

from tuner.core.engine import LinePrefix
from tuner.domain.logs import Level
from tuner.engines.levels import LEVEL_HEADS, LEVELS

_STAMP = re.compile(r"\[(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)((?: [A-Z][A-Z_]*\d+)*)\] ")
_TAGS_ONLY = re.compile(r"\[((?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+(?: (?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+)*)\] ")
"""A prefix whose time was cut off by a tool."""
_LONGEST_STAMP = 120
_LEVEL = re.compile(r"(INFO|WARNING|ERROR|CRITICAL|DEBUG):? +(?:[\w.-]+\.py:\d+: )?")
_ACTOR = re.compile(r"\([^()\s]+ pid=\d+(?:, ip=[\d.]+)?\) ")
_UVICORN = re.compile(r"(INFO|WARNING|ERROR|CRITICAL|DEBUG): {2,}(?=\S)")
_RECORD = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,60}\] ")

_POLLED = re.compile(r'"GET /(?:metrics|v1/loads|get_load|ready|health|(?:get_)?server_info)[/? ]')
_ROUTINE = ("Decode batch", "Prefill batch")
"""Beginnings of the lines that a busy server prints most. They are never warnings, and searching them would dominate
the cost of `level`."""
_ERROR = re.compile(
    r"hit an exception|crashed with exit code|[Ww]atchdog timeout \(|scheduler is dead|died during initialization"
    r"|SIGQUIT received|[Rr]eceived sigquit|Initialization failed|Health check failed|^Traceback"
    r"|^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b|^Exception\b|Fatal Python error|^Killed\b"
    r"|terminated? (?:with|called)|unexpectedly failed|memory leak detected|: error: |out of memory happened"
)
_NOT_ERROR = re.compile(r"Decode out of memory happened|^Receive: |^Finish: |^Ignore ")
_WARNING = re.compile(
    r"\b(?:[Ww]arn(?:ing)?|WARNING|deprecated|[Ff]ail(?:ed|ure)?|[Cc]annot|sub-optimal|[Dd]isabled? because)\b"
    r"|is disabled because|Retract requests|larger than the profiled|fewer than|was reduced|^Ignore import error"
    r"|UserWarning|FutureWarning|SyntaxWarning|SIGTERM received|\bError\b"
)


def split(text: str) -> LinePrefix:
    """Split a line into prefix and message."""
    if text[:1] == "[":
        end = text.find("] ") + 2
        prefix = _stamp(text[:end]) if 2 < end < _LONGEST_STAMP else None
        if prefix is None:
            return _BARE
        if text[end : end + 4] in LEVEL_HEADS and (found := _LEVEL.match(text, end)) is not None:
            return LinePrefix(prefix.rank, prefix.at, found.end(), _uvicorn_level(found[1], text))
        return prefix
    if text[:4] in LEVEL_HEADS and (found := _UVICORN.match(text)) is not None:
        return LinePrefix(None, None, found.end(), _uvicorn_level(found[1], text))
    if text[:1] == "(" and (found := _ACTOR.match(text)) is not None:
        # Ray prints the actor before the line.
        inner = split(text[found.end() :])
        if inner.prefixed:
            return LinePrefix(inner.rank, inner.at, found.end() + inner.message_start, inner.level)
    return _BARE


@functools.lru_cache(maxsize=1024)
def _stamp(text: str) -> LinePrefix | None:
    """Parse `[time tags] `; None if the text is no prefix. Cached: lines of one rank and second share it."""
    found = _STAMP.fullmatch(text)
    if found is None:
        bare = _TAGS_ONLY.fullmatch(text)
        return None if bare is None else LinePrefix(bare[1], None, bare.end())
    date, clock, tags = found.groups()
    return LinePrefix(tags[1:] if tags else None, _seconds(date, clock), found.end())


_BARE = LinePrefix(None, None, 0, None, False)


def torn(text: str, start: int) -> int:
    """Return the index after `start` at which another record begins in the line, or -1.

    Ranks share one stream without a lock, so one may write into another's line.
    """
    if text.find("[2", start + 1) < 0:
        return -1
    found = _RECORD.search(text, start + 1)
    return -1 if found is None else found.start()


def quick_start(text: str) -> int:
    """Return the index at which the message begins, by a cheap test; -1 if only `split` can tell."""
    start = 0
    if text[:1] == "[" and (text[1:2].isdigit() or text[1:3] in ("TP", "DP", "PP")):
        start = text.find("] ") + 2
    if text[start : start + 4] in LEVEL_HEADS:
        return start if " HTTP/1." in text else -1
    return -1 if text[:1] == "(" or text.find("[2", start) >= 0 else start


def level(message: str) -> Level:
    """Return the severity of a message by its words."""
    if message.startswith(_ROUTINE):
        return Level.INFO
    if _ERROR.search(message) is not None:
        return Level.WARNING if _NOT_ERROR.search(message) is not None else Level.ERROR
    return Level.WARNING if _WARNING.search(message) is not None else Level.INFO


def _uvicorn_level(name: str, text: str) -> Level:
    """Return the severity of uvicorn's line: DEBUG for requests of the probe, WARNING for other answers of 5xx."""
    if ' HTTP/1.1" ' in text:
        if '"GET /' in text and _POLLED.search(text) is not None:
            return Level.DEBUG
        if '" 5' in text:
            return Level.WARNING
    return LEVELS[name]


def _seconds(date: str | None, clock: str) -> float | None:
    try:
        stamp = datetime.fromisoformat(f"{date or '1970-01-01'} {clock.replace(',', '.')}")
    except ValueError:
        return None
    return stamp.replace(tzinfo=UTC).timestamp()
