"""Builders of remedies outside the engine's catalogue of knobs, and of the error texts that findings quote."""

from __future__ import annotations

from tuner.core import facts as f
from tuner.core.diagnosis.case import Case
from tuner.domain.findings import Evidence, Move, Number, Remedy
from tuner.domain.starts import Sign

DMESG = "dmesg -T | grep -i -E 'oom|killed process'"
"""Shell command whose output tells the kernel's out-of-memory killer from a kill by a person."""
POSSIBLE_SOLUTIONS = "Possible solutions"
"""Heading of the list of memory settings that SGLang prints under every failed graph capture."""


def container(flag: str, value: str | None, why: str, move: Move = Move.SET) -> Remedy:
    """Propose a flag of the container that the server runs in; the knob is the flag without dashes."""
    return Remedy(knob=flag.lstrip("-"), flag=flag, move=move, value=value, why=why)


def variable(case: Case, name: str, move: Move, why: str, value: str | None = None) -> Remedy:
    """Propose an environment variable, even one that the engine's catalogue of knobs lacks."""
    known = case.remedy(name, move, why, value=value)
    # A catalogue entry counts only if it is a variable: `CC` is a compiler here, and an abbreviated flag of an engine.
    if known is not None and known.env is not None:
        return known
    return Remedy(knob=name, env=name, move=move, value=value, why=why)


def engine_variable(
    case: Case, knob: str, move: Move, why: str, value: Number | str | None = None, *, later: bool = False
) -> Remedy | None:
    """Propose an environment variable of the engine's own, by a name that says what it does.

    Args:
        case: The start.
        knob: One of the other names (`also`) that the engine's catalogue has for the variable.
        move: Which way.
        why: What it does for this failure.
        value: To which value.
        later: Propose it also where only another version has it, and say so.

    Returns:
        None if the engine, or this version of it, has no such variable.
    """
    known = case.engine.knobs().find(knob)
    return None if known is None else case.remedy(known.name, move, why, value=value, later=later)


def option(case: Case, knob: str, flag: str, move: Move, why: str, value: str | int | bool | None = None) -> Remedy:
    """Propose a flag of the engine, even one that its catalogue of knobs lacks."""
    return case.remedy(knob, move, why, value=value) or Remedy(knob=knob, flag=flag, move=move, value=value, why=why)


def smaller_tokens(case: Case, why: str) -> Remedy | None:
    """Propose a KV cache of 8-bit numbers; None if the cache already has 8 or 4 bits."""
    told = case.setting("kv_cache_dtype") or "auto"
    used = [sign.fields.get("dtype") for sign in case.signs("kv-dtype")]
    used += [fact.fields.get("dtype") for fact in case.start.facts if fact.kind == f.KV_POOL]
    if any("8" in str(dtype) or "4" in str(dtype) for dtype in (told, *used)):
        return None
    knob = case.engine.knobs().find("kv_cache_dtype")
    return case.remedy("kv_cache_dtype", Move.SET, why, value=knob.smaller or None) if knob is not None else None


def without_custom_all_reduce(case: Case, why: str) -> Remedy | None:
    """Propose to switch custom all-reduce off; None if it is off already."""
    if case.setting("disable_custom_all_reduce") is True:
        return None
    return option(case, "disable_custom_all_reduce", "--disable-custom-all-reduce", Move.SET, why, True)


def no_memory_advice(case: Case) -> list[str]:
    """Return a warning against the engine's list of memory settings under a failure that is not about memory.

    Empty if the engine did not print that list.
    """
    if POSSIBLE_SOLUTIONS not in case.message and "Possible suggestions" not in case.message:
        return []
    return [
        "the list under the failure (a smaller --mem-fraction-static, a smaller --cuda-graph-max-bs, no CUDA graphs)"
        " is printed for every failure of a capture; memory was not what was lacking here"
    ]


def shortened(text: str, most: int) -> str:
    """Return a text, or the whole words of it that `most` characters hold; only a longer word is cut itself.

    Nothing is added, so that what is quoted stands in the log.
    """
    if len(text) <= most:
        return text
    head = text[: most + 1].rpartition(" ")[0]
    return (head if len(head) > most // 2 else text[:most]).rstrip(" ,;:(")


def first_line(text: str, most: int = 240) -> str:
    """Return the first non-blank line of a message, `shortened` to `most` characters; empty if there is none."""
    return shortened(_first_line(text), most)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def quoted(what: str, text: str, at: int | None, most: int = 240) -> Evidence:
    """Cite the first non-blank line of a text, or its first words if it is longer than `most` characters.

    Args:
        what: What the text is.
        text: The text as the log has it.
        at: Where the log says it, as `LogLine.offset` counts.
        most: Largest number of characters that are cited.
    """
    line = _first_line(text)
    return Evidence(what=what, value=shortened(line, most), at=at, cut=len(line) > most)


def listed(items: str, most: int) -> str:
    """Return the first items of a list that commas separate, with how many more there are beyond `most` characters."""
    if len(items) <= most:
        return items
    head = shortened(items, most)
    count = len(items.split(", "))
    return f"{head} and {count - len(head.split(', '))} more; --help lists them"


def told(case: Case) -> str:
    """Return the root failure's message in one line, without the lines that pydantic puts before it."""
    return first_line(_told(case))


def error_told(case: Case, at: int) -> Evidence:
    """Cite the text that `told` returns."""
    return quoted("error", _told(case), at)


def _told(case: Case) -> str:
    root = case.root
    if root is None:
        return ""
    if root.failure is None:
        return case.message
    for line in root.failure.message.splitlines():
        text = line.strip()
        if text.startswith(("Value error, ", "Assertion failed, ")):
            return text.partition(", ")[2].partition(" [type=")[0]
    return _first_line(root.failure.message) or root.failure.exception


def said(case: Case, sign: Sign) -> str:
    """Return the first line of a sign's text; for a sign within the root failure, its exception and message."""
    return first_line(_said(case, sign))


def _said(case: Case, sign: Sign) -> str:
    root = case.root
    if root is not None and root.failure is not None and root.failure.at <= sign.at <= root.failure.end:
        return f"{root.failure.exception}: {root.failure.message}"
    return sign.text


def error_of(case: Case, sign: Sign, what: str = "error") -> Evidence:
    """Cite the text that `said` returns for a sign."""
    return quoted(what, _said(case, sign), sign.at)
