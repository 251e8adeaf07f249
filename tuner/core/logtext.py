"""Raw log text to lines: torn lines joined, progress bars reduced, control sequences made harmless.

Nothing here knows an engine. Remote text is data: what could move a cursor, reorder text or pretend to be markup
leaves as visible, harmless characters.
"""

from __future__ import annotations

import re
import zlib

MAX_LINE = 65_536
"""Characters of one line that are kept; a megabyte line is cut with a marker that says by how much."""

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b\n]*\x1b\\|\x1b[ -/]*[0-~]?"
)
# Everything below space but tab, DEL, the C1 block, and the characters that reorder or hide text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_DIRTY = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
# tqdm ends a bar with "12.1s/it]" or "3.4it/s]"; a process that logs meanwhile writes on behind it.
_AFTER_BAR = re.compile(r"(?<=it/s\])(?=.)|(?<=s/it\])(?=.)|(?<=B/s\])(?=.)")
_OF_REQUEST = re.compile(r'"[A-Z]{3,7} /\S* HTTP/\d')
_ELAPSED = re.compile(r"elapsed[=:] ?[\d.]+ ?s|took [\d.]+ ?s(?:econds)?|[Tt]ime elapsed: [\d.]+ s")


def clean(text: str) -> str:
    """Return one line without escape sequences; other control characters become a middle dot."""
    if _DIRTY.search(text) is None and "\r" not in text:
        return text
    return _CONTROL.sub("·", _ANSI.sub("", text))


def of_a_request(text: str) -> bool:
    """Return whether a line is an access-log line; those are printed even while the engine hangs."""
    return " HTTP/" in text and _OF_REQUEST.search(text) is not None


def without_escapes(text: str) -> str:
    """Return text without escape sequences, other control characters left as they are."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def cut(text: str) -> str:
    """Return `clean` of the first `MAX_LINE` characters of a line, with a marker if there were more."""
    if len(text) <= MAX_LINE:
        return clean(text)
    return f"{clean(text[:MAX_LINE])} … [{len(text) - MAX_LINE:,} more characters]"


def split(partial: str, partial_start: int, data: str, offset: int, end: int) -> tuple[list[tuple[int, str]], str, int]:
    """Cut text into lines.

    Args:
        partial: Torn last line of the text before.
        partial_start: Byte offset of its first byte.
        data: New text, decoded; it stands for the bytes [offset, end).
        offset: Byte offset of the first new byte.
        end: Byte offset after the last.

    Returns:
        (offset, text) of each complete line, then the new torn line and its offset. Offsets are exact as long as
        decoding and masking kept the length, and otherwise monotone and within the piece.
    """
    if not data:
        return [], partial, partial_start
    ascii_only = data.isascii()
    exact = (len(data) if ascii_only else len(data.encode("utf-8", "surrogatepass"))) == end - offset
    pieces = data.split("\n")
    lines: list[tuple[int, str]] = []
    position = offset
    start = partial_start if partial else offset
    for piece in pieces[:-1]:
        text = partial + piece if partial else piece
        lines.append((start, text))
        partial = ""
        position += (len(piece) if ascii_only else len(piece.encode("utf-8", "surrogatepass"))) + 1
        start = position if exact else min(position, end)
    rest = pieces[-1]
    if partial:
        # A line without end must not grow without bound: a bar keeps its last state, the rest its beginning.
        # A return at the very end may be half of a line end, so the text before it is still the last state.
        joined = partial + rest
        bar = joined.rstrip("\r").rfind("\r")
        torn = joined[bar:] if bar >= 0 else joined[: MAX_LINE + 1]
        return lines, torn, start
    return lines, rest if len(rest) <= MAX_LINE else rest[: MAX_LINE + 1], start


def segments(text: str) -> list[str]:
    """Return what a terminal would show of a line with carriage returns: usually one text.

    A progress bar keeps its last state; text that another process wrote behind the bar becomes a line of its own.
    """
    if text.endswith("\r"):
        text = text.rstrip("\r")
    if "\r" not in text and "it/s]" not in text and "s/it]" not in text:
        return [text]
    result: list[str] = []
    bar = ""
    for piece in text.split("\r"):
        head, *tail = _AFTER_BAR.split(piece)
        bar = head if head.strip() else bar
        if tail:
            result.append(bar)
            result.extend(part for part in tail if part.strip())
            bar = ""
    if bar:
        result.append(bar)
    return result or [""]


def fold_key(message: str) -> int:
    """Return a key, never 0, that is equal for messages which differ only in how long something took."""
    if "elapsed" in message or "took" in message:
        message = _ELAPSED.sub("", message)
    return zlib.crc32(message.encode("utf-8", "surrogatepass")) | 1
