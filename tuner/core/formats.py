"""Log formats: what a line of an engine's log looks like and which fact it states.

Matching only; the formats themselves are data of the engines.

A format is tried only on lines that contain one of its plain substrings, so a busy log costs a few substring
searches a line. `pattern` is matched at the beginning of the message; `parts` are searched in the rest of it, each
optional, so that versions may leave out, add and reorder what they print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from tuner.core.literals import parse_settings

Fields = dict[str, Any]


def _int(text: str) -> int:
    return int(float(text.replace(",", "")))


def _clock(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


def _percent(text: str) -> float:
    return round(float(text) / 100, 6)


def _true(text: str) -> bool:
    return text == "True"


CASTS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _int,
    "float": float,
    "bool": _true,
    "percent": _percent,
    "clock": _clock,
    "settings": parse_settings,
}
"""How the text of a field becomes its value. `percent` gives a ratio, `clock` seconds from `1:02:03`."""

_CAST_OF_FIELD = {
    **dict.fromkeys(
        ("tokens", "kv_tokens", "done", "total", "running", "queued", "used_tokens", "new_sequences", "new_tokens",
         "cached_tokens", "retracted", "remaining", "pid", "exit_code", "chunked_prefill_size", "max_prefill_tokens",
         "max_running_requests", "context_length", "max_concurrency_tokens"), "int"),
    **dict.fromkeys(("token_usage", "accept_length", "max_concurrency"), "float"),
    "cuda_graph": "bool",
    "cache_hit": "percent",
    "settings": "settings",
}  # fmt: skip


def cast_of(name: str) -> str:
    """The cast of a field by its name: listed counts are int, `*_gib` and `*_s` are float, the rest is text."""
    known = _CAST_OF_FIELD.get(name)
    return known if known is not None else "float" if name.endswith(("_gib", "_s")) else "str"


class LogFormat(Struct, frozen=True, kw_only=True):
    """One kind of line.

    Named groups of `pattern` and `parts` are the fields of the fact. Groups that share a name before `__` are added
    (`kv_gib__k`, `kv_gib__v`). A field whose text does not read as its type is left out.
    """

    id: str
    kind: str
    """One of `core.facts.KINDS`."""
    contains: tuple[str, ...]
    """Plain substrings of the message, any of which must be there."""
    pattern: re.Pattern[str]
    parts: tuple[re.Pattern[str], ...] = ()
    constants: tuple[tuple[str, Any], ...] = ()
    casts: tuple[tuple[str, str], ...] = ()
    """Field to cast name, where `cast_of` is not right."""
    raw: bool | None = None
    """True: only lines without prefix. False: only lines with one. None: both."""

    def match(self, message: str, prefixed: bool) -> Fields | None:
        """The fields that a message states, or None when it is another kind of line."""
        if self.raw is not None and self.raw == prefixed:
            return None
        found = self.pattern.match(message)
        if found is None:
            return None
        fields: Fields = dict(self.constants)
        casts = dict(self.casts) if self.casts else _NO_CASTS
        _collect(found, fields, casts)
        for part in self.parts:
            hit = part.search(message)
            if hit is not None:
                _collect(hit, fields, casts)
        return fields


_NO_CASTS: dict[str, str] = {}


def _collect(match: re.Match[str], fields: Fields, casts: dict[str, str]) -> None:
    for group, text in match.groupdict().items():
        if text is None:
            continue
        name = group.partition("__")[0]
        try:
            value = CASTS[casts.get(name) or cast_of(name)](text)
        except ValueError:
            continue
        if "__" in group and name in fields:
            value = round(fields[name] + value, 6)
        fields[name] = value


class FormatSet:
    """All formats of one engine."""

    def __init__(self, formats: Iterable[LogFormat]) -> None:
        self.formats = tuple(formats)
        by_needle: dict[str, list[LogFormat]] = {}
        for log_format in self.formats:
            for needle in log_format.contains:
                by_needle.setdefault(needle, []).append(log_format)
        self._by_needle = tuple((needle, tuple(found)) for needle, found in by_needle.items())
        self._needles = tuple(by_needle)

    def interesting(self, text: str) -> bool:
        """Whether any format could match; cheap."""
        for needle in self._needles:  # noqa: SIM110 - a generator costs three times as much, and this is per line
            if needle in text:
                return True
        return False

    def first(self, message: str, prefixed: bool = True) -> tuple[LogFormat, Fields] | None:
        """The format that matches a message, and its fields."""
        for needle, formats in self._by_needle:
            if needle in message:
                for log_format in formats:
                    fields = log_format.match(message, prefixed)
                    if fields is not None:
                        return log_format, fields
        return None

    def all(self, message: str, prefixed: bool = True) -> list[tuple[LogFormat, Fields]]:
        """Every format that matches: more than one is an error of the catalogue, which tests find."""
        matches = []
        for log_format in self.formats:
            if any(needle in message for needle in log_format.contains):
                fields = log_format.match(message, prefixed)
                if fields is not None:
                    matches.append((log_format, fields))
        return matches
