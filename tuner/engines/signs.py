"""Read and match signs: log lines whose meaning for a diagnosis is known.

What a line says is data in these files; what follows from it is decided in `core.diagnosis`. `engines/signs.toml` holds
the lines of torch, CUDA, NCCL, compilers, Python and the system, `engines/NAME/signs.toml` those of one engine. A sign
states what a line says, not its cause, and one message may carry several signs.

The kind of a sign is one of

- `failure`: something did not work; the diagnosis decides whether it is the root failure,
- `secondary`: a process reports another one's failure, or its own orderly end after one,
- `harmless`: the line reads like a failure and is none; it suppresses all failures in the same message,
- `info`: a number, a version or a decision that explains something.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.formats import CASTS, HEAD, Cast, Fields
from tuner.domain.starts import Sign
from tuner.engines.catalogue import PatternEntry, check
from tuner.engines.tables import Document, read_document
from tuner.errors import CatalogError

COMMON = Path(__file__).with_name("signs.toml")
KINDS = ("failure", "secondary", "harmless", "info")
KEPT_TEXT = 2000
"""Number of characters of a message that a sign keeps."""

_SEARCHED = 12_000
"""Number of characters of a message that are searched; exceptions are shorter, only messages with prompts are not."""
_WHOLE = re.compile(r"[-+]?\d{1,18}")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3}){1,5}")
_DECIMAL = re.compile(r"[-+]?\d{1,18}\.\d{1,18}")
_TEXT_FIELDS = ("version", "host", "path")
_ROUTINE = "\n".join((
    "Decode batch, #running-req: 3, #token: 4096, token usage: 0.02, cuda graph: True, gen throughput (token/s): 151",
    "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, input throughput (token/s): 12.09, #queue-req: 0",
    '127.0.0.1:41382 - "POST /v1/chat/completions HTTP/1.1" 200 OK "GET /metrics HTTP/1.1" "GET /health HTTP/1.1"',
    "Engine 000: Avg prompt throughput: 512.0 tokens/s, Avg generation throughput: 1973.4 tokens/s, Running: 64 reqs, ",
    "Waiting: 3 reqs, GPU KV cache usage: 41.7%, Prefix cache hit rate: 22.5% Capturing batches (bs=8 avail_mem=62 GB)",
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:07<00:07,  3.61s/it] [2026-02-26 20:05:31 TP0] ",
    "(APIServer pid=27) INFO 11-02 09:20:40 [loggers.py:335] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
))  # fmt: skip
"""Sample of what fills a busy log. Only the choice of gates depends on it, so it need not be complete."""
_GATE = 3
"""Length of a gate, characters; a gate is a short text searched before the needles that contain it."""


def read_number(text: str) -> Any:
    """Convert a field's text to int or float if all of it is a number; else return it unchanged."""
    if _WHOLE.fullmatch(text):
        return int(text)
    if _GROUPED.fullmatch(text):
        return int(text.replace(",", ""))
    return float(text) if _DECIMAL.fullmatch(text) else text


class SignPattern:
    """One sign: how to recognise its lines and which fields to read.

    Named groups of `pattern` and `parts` become fields. A field of `each` is a list with one entry for every match of
    its expression. A field whose text is a number becomes a number; sizes stay text with their unit, so that a
    diagnosis quotes them as printed (`core.quantity` splits them).
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
        each: dict[str, str] | None = None,
        constants: Fields | None = None,
        types: dict[str, str] | None = None,
        raw: bool | None = None,
    ) -> None:
        """Describe a sign; its expressions are compiled at first use, since most are never needed.

        Args:
            id: Identifier, unique among the common signs and those of one engine.
            kind: One of `KINDS`.
            pattern: Regular expression searched in the message; `^` matches its beginning.
            starts: Texts with which a message may begin, of at least `HEAD` characters each.
            contains: Texts that a message may contain. `starts` or `contains` must be given.
            parts: Optional regular expressions searched anywhere in the message for further fields.
            each: Regular expression by field; the field is the list of all its matches.
            constants: Fields that every match gets.
            types: Name of a type in `CASTS` by field; a field whose text does not convert is left out.
            raw: True: only messages without prefix. False: only messages with one. None: both.
        """
        self.id = id
        self.kind = kind
        self.starts = starts
        self.contains = contains
        self.raw = raw
        self.constants = dict(constants or {})
        self._patterns = (pattern, *parts)
        self._each = dict(each or {})
        self._casts: dict[str, Cast] = {field: CASTS[name] for field, name in (types or {}).items()}

    @functools.cached_property
    def expressions(self) -> tuple[re.Pattern[str], ...]:
        """Compiled `pattern`, followed by the compiled `parts`.

        Raises:
            re.error: One of them is invalid.
        """
        return tuple(re.compile(text) for text in self._patterns)

    @functools.cached_property
    def each(self) -> dict[str, re.Pattern[str]]:
        """Compiled expressions of the list fields, by field.

        Raises:
            re.error: One of them is invalid.
        """
        return {field: re.compile(text) for field, text in self._each.items()}

    def match(self, message: str, prefixed: bool) -> Fields | None:
        """Return the fields of a message; None if the message does not carry this sign."""
        if self.raw is not None and self.raw == prefixed:
            return None
        if not (message.startswith(self.starts) or any(needle in message for needle in self.contains)):
            return None
        pattern, *parts = self.expressions
        found = pattern.search(message)
        if found is None:
            return None
        fields = self.constants.copy()
        self._collect(found, fields)
        for part in parts:
            hit = part.search(message)
            if hit is not None:
                self._collect(hit, fields)
        for field, expression in self.each.items():
            rows = []
            for hit in expression.finditer(message):
                row: Fields = {}
                self._collect(hit, row)
                rows.append(row)
            if rows:
                fields[field] = rows
        return fields

    def _collect(self, match: re.Match[str], fields: Fields) -> None:
        for name, text in match.groupdict().items():
            field = name.partition("__")[0]
            if text is None or (field in fields and field not in self.constants):
                continue
            cast = self._casts.get(field)
            if cast is None:
                cast = str if field.endswith(_TEXT_FIELDS) else read_number
            try:
                fields[field] = cast(text.strip())
            except ValueError:
                continue


class SignSet:
    """All signs that one engine's lines may carry."""

    def __init__(self, signs: Iterable[SignPattern], quiet: Iterable[Quiet] = ()) -> None:
        self.signs = tuple(signs)
        rules = tuple(quiet)
        self._busy_starts = tuple(start for rule in rules if rule.busy for start in rule.starts)
        self._busy_texts = tuple(text for rule in rules if rule.busy for text in rule.contains)
        self._quiet_starts = tuple(start for rule in rules for start in rule.starts)
        self._quiet_texts = tuple(text for rule in rules for text in rule.contains)
        self._client_starts = tuple(start for rule in rules if rule.client for start in rule.starts)
        self._client_texts = tuple(text for rule in rules if rule.client for text in rule.contains)
        heads: dict[str, list[int]] = {}
        needles: dict[str, list[int]] = {}
        for index, sign in enumerate(self.signs):
            for start in sign.starts:
                heads.setdefault(start[:HEAD], []).append(index)
            for needle in sign.contains:
                needles.setdefault(needle, []).append(index)
        self._heads = heads
        self._gates = tuple(
            (gate, tuple((needle, tuple(needles[needle])) for needle in members))
            for gate, members in _gates(tuple(needles)).items()
        )

    def match(self, message: str, prefixed: bool = True) -> Sequence[Sign]:
        """Return all signs of a message, in the order of the data files."""
        if message.startswith(self._busy_starts) or any(text in message for text in self._busy_texts):
            return ()
        wanted = list(self._heads.get(message[:HEAD], ()))
        for gate, needles in self._gates:
            if gate in message:
                for needle, indices in needles:
                    if needle in message:
                        wanted += indices
        return self._match(message, prefixed, wanted) if wanted else ()

    def quiet(self, message: str) -> bool:
        """Return whether a message quotes a request or an argument, so that its words are not signs."""
        return message.startswith(self._quiet_starts) or any(text in message for text in self._quiet_texts)

    def of_client(self, message: str) -> bool:
        """Return whether a message holds text that a client sent or received, which may quote anything."""
        return message.startswith(self._client_starts) or any(text in message for text in self._client_texts)

    def _match(self, message: str, prefixed: bool, wanted: list[int]) -> Sequence[Sign]:
        if len(message) > _SEARCHED:
            message = message[:_SEARCHED]
        if self.quiet(message):
            return ()
        found = []
        for index in sorted(set(wanted)):
            sign = self.signs[index]
            fields = sign.match(message, prefixed)
            if fields is not None:
                found.append(Sign(id=sign.id, at=0, text=message[:KEPT_TEXT], fields=fields, kind=sign.kind))
        if any(sign.kind == "harmless" for sign in found):
            found = [sign for sign in found if sign.kind in {"harmless", "info"}]
        return found


def _gates(needles: Sequence[str]) -> dict[str, list[str]]:
    """Choose short texts (gates) so that each needle contains one; return the needles by gate.

    Searching for the few gates first excludes most lines.
    """
    having: dict[str, set[str]] = {}
    for needle in needles:
        for at in range(len(needle) - _GATE + 1):
            having.setdefault(needle[at : at + _GATE], set()).add(needle)
    penalty = {piece: 40 * (piece in _ROUTINE) for piece in having}
    rest = set(needles)
    chosen: dict[str, list[str]] = {}
    while rest:
        gate = min(having, key=lambda piece: (penalty[piece] - len(having[piece]), piece))
        chosen[gate] = sorted(having[gate])
        rest -= having[gate]
        having = {piece: left for piece, found in having.items() if (left := found & rest)}
    return chosen


class SignEntry(PatternEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[sign]]` table as written in the file."""

    each: dict[str, str] = msgspec.field(default_factory=dict)


class Quiet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[quiet]]` table: lines without signs because they quote other text or because they fill a busy log.

    `client` marks lines that quote a client, `busy` those that fill a busy log.
    """

    why: str
    busy: bool = False
    client: bool = False
    starts: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()


def read_signs(*paths: Path) -> SignSet:
    """Load and check several files of signs as one set.

    Raises:
        CatalogError: A table is invalid; the error names its line.
    """
    signs: list[SignPattern] = []
    quiet: list[Quiet] = []
    seen: set[str] = set()
    for path in paths:
        document = read_document(path, "sign", "quiet")
        for line, entry, sign in _entries(document):
            if entry.id in seen:
                raise CatalogError(path, line, f"two signs are called {entry.id}")
            seen.add(entry.id)
            signs.append(sign)
        quiet += _quiet(document)
    return SignSet(signs, quiet)


def read_entries(path: Path) -> list[tuple[int, SignEntry, SignPattern]]:
    """Return line number, entry and pattern of each sign of a file, for tests and tools.

    Raises:
        CatalogError: A sign is invalid; the error names its line.
    """
    entries = list(_entries(read_document(path, "sign")))
    for line, entry, sign in entries:
        try:
            _ = sign.expressions, sign.each
        except re.error as error:
            raise CatalogError(path, line, f"sign {entry.id} has a bad pattern ({error})") from error
    return entries


def _entries(document: Document) -> Iterator[tuple[int, SignEntry, SignPattern]]:
    for line, entry in document.read("sign", SignEntry):
        yield line, entry, _compile(document.path, line, entry)


def _quiet(document: Document) -> Iterator[Quiet]:
    for line, rule in document.read("quiet", Quiet):
        if not rule.starts + rule.contains or not all(rule.starts + rule.contains):
            raise CatalogError(document.path, line, "quiet names no text", "Fill `starts` or `contains`.")
        yield rule


def _compile(path: Path, line: int, entry: SignEntry) -> SignPattern:
    check(path, line, "sign", entry, KINDS)
    if short := [needle for needle in entry.contains if len(needle) < HEAD]:
        raise CatalogError(path, line, f"sign {entry.id} contains less than {HEAD} characters: {short[0]!r}")
    return SignPattern(
        id=entry.id,
        kind=entry.kind,
        pattern=entry.pattern,
        starts=entry.starts,
        contains=entry.contains,
        parts=entry.parts,
        each=entry.each,
        constants=entry.set,
        types=entry.types,
        raw=entry.raw,
    )
