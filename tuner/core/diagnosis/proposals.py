"""Proposals that turn no knob of the engine: the container, the environment, packages, checks on the host."""

from __future__ import annotations

from tuner.core import facts as f
from tuner.core.diagnosis.case import Case
from tuner.domain.findings import Evidence, Move, Remedy
from tuner.domain.starts import Sign

DMESG = "dmesg -T | grep -i -E 'oom|killed process'"
"""What tells the kernel's out-of-memory killer from a person's kill."""
POSSIBLE_SOLUTIONS = "Possible solutions"
"""Heads the list of memory settings that SGLang prints under whatever ended a graph capture."""


def container(flag: str, value: str | None, why: str, move: Move = Move.SET) -> Remedy:
    """A flag of the container the server runs in."""
    return Remedy(knob=flag.lstrip("-"), flag=flag, move=move, value=value, why=why)


def variable(case: Case, name: str, move: Move, why: str, value: str | None = None) -> Remedy:
    """An environment variable, whether the engine's catalogue of knobs has it or not."""
    known = case.remedy(name, move, why, value=value)
    # `CC` is a compiler for the system, and short for another argument of an engine's.
    if known is not None and known.env is not None:
        return known
    return Remedy(knob=name, env=name, move=move, value=value, why=why)


def option(case: Case, knob: str, flag: str, move: Move, why: str, value: str | int | bool | None = None) -> Remedy:
    """A flag of the engine, whether its catalogue of knobs has it or not."""
    return case.remedy(knob, move, why, value=value) or Remedy(knob=knob, flag=flag, move=move, value=value, why=why)


def smaller_tokens(case: Case, why: str) -> Remedy | None:
    """A KV cache of 8-bit numbers; None where it has them already."""
    told = case.setting("kv_cache_dtype") or "auto"
    used = [sign.fields.get("dtype") for sign in case.signs("kv-dtype")]
    used += [fact.fields.get("dtype") for fact in case.start.facts if fact.kind == f.KV_POOL]
    if any("8" in str(dtype) or "4" in str(dtype) for dtype in (told, *used)):
        return None
    value = "fp8" if case.start.engine == "vllm" else "fp8_e5m2"
    return case.remedy("kv_cache_dtype", Move.SET, why, value=value)


def without_custom_all_reduce(case: Case, why: str) -> Remedy | None:
    """Switch custom all-reduce off; None where it is off already."""
    if case.setting("disable_custom_all_reduce") is True:
        return None
    return option(case, "disable_custom_all_reduce", "--disable-custom-all-reduce", Move.SET, why, True)


def no_memory_advice(case: Case) -> list[str]:
    """The engine's own list of memory settings, where it stands under a failure that is not about memory."""
    if POSSIBLE_SOLUTIONS not in case.message and "Possible suggestions" not in case.message:
        return []
    return [
        "the list under the failure (a smaller --mem-fraction-static, a smaller --cuda-graph-max-bs, no CUDA graphs)"
        " is printed for every failure of a capture; memory was not what was lacking here"
    ]


def first_line(text: str, most: int = 240) -> str:
    """The first line of a message that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:most]


def told(case: Case) -> str:
    """The message without its wrapping: pydantic puts a count before it."""
    root = case.root
    if root is None:
        return ""
    if root.failure is None:
        return first_line(case.message)
    for line in root.failure.message.splitlines():
        text = line.strip()
        if text.startswith(("Value error, ", "Assertion failed, ")):
            return text.partition(", ")[2].partition(" [type=")[0][:240]
    return first_line(root.failure.message) or root.failure.exception


def said(case: Case, sign: Sign) -> str:
    """The line of a sign, or the exception that carries it."""
    root = case.root
    if root is not None and root.failure is not None and root.failure.at <= sign.at <= root.failure.end:
        return first_line(f"{root.failure.exception}: {root.failure.message}")
    return first_line(sign.text)


def error_of(case: Case, sign: Sign) -> Evidence:
    """What `said` says, as evidence."""
    return Evidence(what="error", value=said(case, sign), at=sign.at)
