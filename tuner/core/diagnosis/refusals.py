"""Judges of refused server args that no other judge recognises: they quote the engine and the args it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import POSSIBLE_SOLUTIONS, error_told, option, told, variable
from tuner.core.roots import is_consequence
from tuner.domain.findings import Confidence, Finding, Move, Remedy
from tuner.domain.starts import Failure

_REFUSED = ("flag-conflict", "lora-rank")
"""Signs of refusals that are recognised by their text, wherever they are raised."""
_OTHERS = ("architecture-required", "kernel-unsupported", "unsupported-architecture", "cuda-unavailable",
           "import-failed", "toolchain-missing", "disk-full", "open-files", "download-failed")  # fmt: skip
"""Signs in the text of a refusal that are causes of their own, left to other judges."""
_CHOSEN_BY_ARGUMENT = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)+")
_NAMED = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
_WORD_IN_NAME = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORDS = re.compile(r"[a-z]+(?: [a-z]+)+")
_NOT_TAKEN = re.compile(r"unexpected keyword argument '(\w+)'")
_OF_LIBRARIES = ("NCCL_", "HF_", "CUDA_", "FLASHINFER_")
"""Prefixes of environment variables that libraries of every engine read."""
_CHECKS = frozenset({"ValueError", "AssertionError", "ValidationError", "NotImplementedError", "TypeError", "KeyError",
                     "ArgumentError", "JSONDecodeError"})  # fmt: skip
_REFUSALS = _CHECKS | {"RuntimeError", "AttributeError", "FileNotFoundError", "NotADirectoryError"}
_TELLING = 5
"""Least length, characters, of a value searched for in a message: shorter ones occur by chance."""
_OTHER_MATTERS = ("memory", "CUDA", "NCCL", "timed out", "timeout")
"""Words of failures that are not refusals, although they may recommend server args."""


def by_its_checks(case: Case) -> Finding | None:
    """Diagnose server args that the engine's own checks refused; the finding quotes the engine."""
    failure = _raised(case)
    if failure is None or case.root_sign(*_OTHERS) is not None:
        return None
    if case.root_sign(*_REFUSED) is not None:
        return _refusal(case, failure, sure=True)
    validated = case.root_sign("validation-error") is not None or failure.exception == "ValidationError"
    frames = case.engine.behaviour().frames
    if not validated and not (case.phase in ("args", "none") and case.on_stack(*frames.arguments)):
        return None
    if case.start.ready_at is not None or case.on_stack(*frames.core):
        return None
    if (case.start.ranks and not validated) or _known(case, failure):
        return None
    return _refusal(case, failure, sure=validated)


def by_its_words(case: Case) -> Finding | None:
    """Diagnose a failure that names a server arg, or that ended the main process before anything was loaded.

    It runs after all other judges, for failures that none of them recognises.
    """
    failure = _raised(case)
    if failure is None or case.start.ready_at is not None or not failure.whole or _known(case, failure):
        return None
    text = failure.message
    if POSSIBLE_SOLUTIONS in text or any(word in text for word in _OTHER_MATTERS):
        return None
    quoted = _quoted(case, text)
    named = bool(quoted or _CHOSEN_BY_ARGUMENT.search(text) or _variables(case, text))
    child = case.on_stack(*case.engine.behaviour().frames.child)
    main = failure.rank is None and not failure.header and not case.start.ranks and not child
    if not (named and (failure.exception in _CHECKS or (main and quoted))) and not main:
        return None
    return _refusal(case, failure, quoted=quoted, guess=not named)


def _raised(case: Case) -> Failure | None:
    failure = case.root.failure if case.root is not None else None
    if failure is None or is_consequence(case.start, failure):
        return None
    return failure if failure.exception in _REFUSALS else None


def _known(case: Case, failure: Failure) -> bool:
    """Return whether the failure's own lines carry a failure sign other than `validation-error`."""
    own = (failure.message_at, failure.final_at)
    return any(s.at in own and s.kind == "failure" and s.id != "validation-error" for s in case.start.signs)


def _quoted(case: Case, text: str) -> list[str]:
    """Return names of server args whose value appears in the message as a path or in quotes, one per value."""
    found: dict[str, str] = {}
    for name, value in case.start.settings.items():
        if isinstance(value, str) and len(value) >= _TELLING and value not in found:
            whole = rf"(?<![\w/]){re.escape(value)}(?![\w/])" if "/" in value else rf"['\"`]{re.escape(value)}['\"`]"
            if re.search(whole, text):
                found[value] = name
    return list(found.values())


def _refusal(
    case: Case, failure: Failure, *, sure: bool = False, quoted: Iterable[str] = (), guess: bool = False
) -> Finding:
    """Build the finding that quotes the engine and proposes changes of the server args and variables it names.

    Args:
        case: The start.
        failure: The exception that refuses the args.
        sure: Whether it is known to be a refusal.
        quoted: Server args whose values the message quotes.
        guess: Whether the message names no server arg, so that the finding has low confidence.
    """
    said = told(case)
    flags = list(dict.fromkeys(_CHOSEN_BY_ARGUMENT.findall(failure.message)))
    flags = flags or _of_a_config(case)
    spoken = _in_words(failure.message)
    named = dict.fromkeys((*_NAMED.findall(failure.message), *spoken))
    known = [n for n in named if n in case.start.settings or _is_knob(case, n)]
    variables = _variables(case, failure.message)
    names = [*quoted, *known]
    remedies = list(_for_names(case, flags, names if not variables else quoted, variables))
    untaken = _NOT_TAKEN.search(failure.message)
    if untaken is not None:
        flag = f"--{untaken[1].replace('_', '-')}"
        remedies = [Remedy(knob=untaken[1], flag=flag, move=Move.UNSET, why="this version does not take it")]
    lora = case.root_sign("lora-rank")
    if lora is not None:
        rank = lora.fields.get("rank")
        why = "at least the rank of the adapter"
        remedies = [option(case, "max_lora_rank", "--max-lora-rank", Move.RAISE, why, rank)]
    if failure.exception == "JSONDecodeError":
        remedies.append(case.advice("arguments", "one that takes JSON: double quotes in it"))
    asked = bool(remedies) and not guess
    return case.finding(
        "bad-argument",
        f"{'The engine refuses its arguments' if asked else 'The engine ends before it loads anything'}:"
        f" {said.rstrip('.')}." + (" Nothing was loaded yet." if asked and not case.start.ranks else ""),
        evidence=[
            error_told(case, failure.message_at),
            *(case.arg(name) for name in names[:4]),
        ],
        remedies=remedies or [case.advice("arguments", "what the message names; --help lists what is allowed")],
        refuted_by="the same arguments accepted by the same version",
        phase="args" if case.phase in ("none", "args") else None,
        confidence=Confidence.LOW if guess else
        Confidence.HIGH if (flags or known or sure) and case.phase in ("none", "args") else Confidence.MEDIUM,
    )  # fmt: skip


def _variables(case: Case, text: str) -> list[str]:
    """Return the environment variables that a text names, of the engine and of libraries, each once."""
    prefixes = "|".join(map(re.escape, (*case.engine.behaviour().variables, *_OF_LIBRARIES)))
    return list(dict.fromkeys(re.findall(rf"\b(?:{prefixes})[A-Z0-9_]{{3,60}}\b", text)))


def _of_a_config(case: Case) -> list[str]:
    """Return the flag whose JSON pydantic refused: `SpeculativeConfig` belongs to --speculative-config.

    Empty for a configuration that is built from several server args, since no flag has its name.
    """
    sign = case.root_sign("validation-error")
    name = _WORD_IN_NAME.sub("_", str(sign.fields.get("config") or "")).lower() if sign is not None else ""
    known = name in case.start.settings or name in case.start.given or _is_knob(case, name)
    return [f"--{name.replace('_', '-')}"] if known else []


def _in_words(text: str) -> list[str]:
    """Return candidate names made of two to four adjacent words, longest first.

    `invalid tool call parser: x` yields `tool_call_parser`.
    """
    runs = [run.split() for run in _WORDS.findall(text)]
    return [
        "_".join(run[start : start + size])
        for size in (4, 3, 2)
        for run in runs
        for start in range(len(run) - size + 1)
    ]


def _is_knob(case: Case, name: str) -> bool:
    return case.engine.knob(name, case.start.version) is not None


def _for_names(
    case: Case, flags: Iterable[str], names: Iterable[str], variables: Iterable[str]
) -> Iterable[Remedy | None]:
    seen: set[str] = set()
    for name in (*(flag.lstrip("-").replace("-", "_") for flag in flags), *names):
        if name not in seen and len(seen) < 3:
            seen.add(name)
            flag = f"--{name.replace('_', '-')}"
            yield option(case, name, flag, Move.OTHER, "as the message says")
    yield from (variable(case, name, Move.OTHER, "as the message says") for name in variables)


LAST: tuple[Callable[[Case], Finding | None], ...] = (by_its_words,)
"""Judges that run after all others."""
