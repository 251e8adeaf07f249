"""Log formats: what a line of an engine's log looks like and which fact it states.

Matching only; the formats themselves are data of the engines.

A format is tried only on messages that begin with one of its `starts` or contain one of its `contains`, so a busy log
costs one dictionary look-up and a few substring searches a line. `pattern` is matched at the beginning of the
message; `parts` are searched in it, each optional, so that versions may leave out, add and reorder what they print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from tuner.core.literals import parse_settings

Fields = dict[str, Any]

HEAD = 4
"""First characters of a message, which choose the formats to try; no entry of `starts` may be shorter."""


def _int(text: str) -> int:
    if len(text) > 4 and "," in text:
        text = text.replace(",", "")
    if len(text) > 18:
        raise ValueError("more than any counter holds")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value - value:  # not zero for infinity and NaN
        raise ValueError("not a number")
    return value


def _clock(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + _float(part)
    return seconds


def _percent(text: str) -> float:
    return round(_float(text) / 100, 6)


def _true(text: str) -> bool:
    return text == "True"


Cast = Callable[[str], Any]

CASTS: dict[str, Cast] = {
    "str": str,
    "int": _int,
    "float": _float,
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
         "max_running_requests", "context_length"), "int"),
    **dict.fromkeys(("token_usage", "accept_length", "max_concurrency"), "float"),
    "cuda_graph": "bool",
    "cache_hit": "percent",
    "settings": "settings",
}  # fmt: skip


def cast_of(name: str) -> str:
    """Return the cast of a field by its name: listed counts are int, `*_gib` and `*_s` are float, the rest is text."""
    known = _CAST_OF_FIELD.get(name)
    return known if known is not None else "float" if name.endswith(("_gib", "_s")) else "str"


class _Group(Struct, frozen=True):
    """One named group of a regular expression, with its field and cast."""

    index: int
    field: str
    cast: Cast
    added: bool


class LogFormat:
    """The format of one kind of log line.

    Named groups of `pattern` and `parts` are the fields of the fact. Groups that share a name before `__` are added
    (`kv_gib__k`, `kv_gib__v`). A field whose text does not read as its type is left out.
    """

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - as the data files call it
        kind: str,
        pattern: str,
        starts: tuple[str, ...] = (),
        contains: tuple[str, ...] = (),
        parts: tuple[str, ...] = (),
        constants: Fields | None = None,
        types: dict[str, str] | None = None,
        raw: bool | None = None,
    ) -> None:
        """Compile a format.

        Args:
            id: Unique within the engine.
            kind: One of `core.facts.KINDS`.
            pattern: Regular expression that the message must match from its beginning.
            starts: How a message of this kind may begin; at least `HEAD` characters each.
            contains: What it may contain instead; one of `starts` and `contains` is needed.
            parts: Regular expressions searched anywhere, each optional.
            constants: Fields that every match has.
            types: Field to name in `CASTS`, where `cast_of` is not right.
            raw: True: only lines without prefix. False: only lines with one. None: both.

        Raises:
            re.error: An expression is wrong.
        """
        self.id = id
        self.kind = kind
        self.starts = starts
        self.contains = contains
        self.raw = raw
        self.constants = dict(constants or {})
        self.expressions = tuple(re.compile(text) for text in (pattern, *parts))
        read = [(expression, _groups(expression, types or {})) for expression in self.expressions]
        (self._pattern, self._groups), *self._parts = read

    def match(self, message: str, prefixed: bool) -> Fields | None:
        """Return the fields that a message states, or None if it is another kind of line."""
        if self.raw is not None and self.raw == prefixed:
            return None
        found = self._pattern.match(message)
        if found is None:
            return None
        fields = self.constants.copy()
        _collect(found, self._groups, fields)
        for part, groups in self._parts:
            hit = part.search(message)
            if hit is not None:
                _collect(hit, groups, fields)
        return fields


def _groups(expression: re.Pattern[str], types: dict[str, str]) -> tuple[_Group, ...]:
    groups = []
    for name, index in expression.groupindex.items():
        field, added, _ = name.partition("__")
        groups.append(_Group(index, field, CASTS[types.get(field) or cast_of(field)], bool(added)))
    return tuple(groups)


def _collect(match: re.Match[str], groups: tuple[_Group, ...], fields: Fields) -> None:
    for group in groups:
        text = match[group.index]
        if text is None:
            continue
        try:
            value = group.cast(text)
        except ValueError:
            continue
        field = group.field
        if group.added and field in fields:
            value = round(fields[field] + value, 6)
        fields[field] = value


class FormatSet:
    """All formats of one engine."""

    def __init__(self, formats: Iterable[LogFormat]) -> None:
        self.formats = tuple(formats)
        heads: dict[str, dict[str, LogFormat]] = {}
        needles: dict[str, list[LogFormat]] = {}
        for log_format in self.formats:
            for start in log_format.starts:
                heads.setdefault(start[:HEAD], {})[log_format.id] = log_format
            for needle in log_format.contains:
                needles.setdefault(needle, []).append(log_format)
        self._heads = {head: tuple(found.values()) for head, found in heads.items()}
        self._needles = tuple((needle, tuple(found)) for needle, found in needles.items())
        self._texts = tuple(needles)

    def interesting(self, text: str, start: int = 0) -> bool:
        """Return whether any format could match the message that begins at `start` in a text: a cheap test."""
        if text[start : start + HEAD] in self._heads:
            return True
        for needle in self._texts:  # noqa: SIM110 - a generator costs three times as much, and this is per line
            if needle in text:
                return True
        return False

    def first(self, message: str, prefixed: bool = True) -> tuple[LogFormat, Fields] | None:
        """Return the first format that matches a message, and its fields; None if none does."""
        for log_format in self._heads.get(message[:HEAD], ()):
            fields = log_format.match(message, prefixed)
            if fields is not None:
                return log_format, fields
        for needle, formats in self._needles:
            if needle in message:
                for log_format in formats:
                    fields = log_format.match(message, prefixed)
                    if fields is not None:
                        return log_format, fields
        return None

    def all(self, message: str, prefixed: bool = True) -> list[tuple[LogFormat, Fields]]:
        """Return every format that matches. More than one is an error in the data files, which tests find."""
        matches = []
        for log_format in self.formats:
            if message.startswith(log_format.starts) or any(needle in message for needle in log_format.contains):
                fields = log_format.match(message, prefixed)
                if fields is not None:
                    matches.append((log_format, fields))
        return matches
