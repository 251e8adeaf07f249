"""The knobs of a plan: how a value is shown, which values follow it, and the command line that results."""

from __future__ import annotations

import bisect
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.core.knobs import read_value
from tuner.core.remedies import as_typed
from tuner.domain.knobs import Knob, KnobType, Turning
from tuner.domain.planning import PlanKnob
from tuner.widgets.spans import clean

_FRACTION_STEP = 0.005
_SIZES = (
    1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
    16384, 32768, 65536,
)  # fmt: skip
"""Values that people choose for batch sizes and counts of requests."""
_PLAIN = Turning(place=0)


def label_of(each: PlanKnob) -> str:
    """Return the name to show for a knob."""
    return _turning(each).negates or each.knob.name


def _turning(each: PlanKnob) -> Turning:
    return each.knob.turning or _PLAIN


def value_words(each: PlanKnob, value: Any) -> str:
    """Return a value in a few cells: `256k`, `4 MiB`, `on`."""
    if each.knob.type is KnobType.BOOL:
        return "on" if bool(value) is not bool(_turning(each).negates) else "off"
    if value is None:
        return _turning(each).unset
    if isinstance(value, int) and each.knob.unit == "bytes":
        return f"{value >> 20} MiB" if value % (1 << 20) == 0 else f"{value >> 10} KiB"
    if isinstance(value, int) and value >= 10_240 and value % 1024 == 0:
        return f"{value >> 10}k"
    return clean(as_typed(value)) or "''"


def next_value(each: PlanKnob, value: Any, step: int) -> Any:
    """Return the next sensible value in a direction; at an end the same value."""
    knob = each.knob
    if knob.type is KnobType.BOOL:
        return not value
    if each.choices:
        options: list[Any] = list(each.choices) if "auto" in each.choices else [None, *each.choices]
        at = options.index(value) if value in options else 0
        return options[(at + step) % len(options)]
    if knob.type is KnobType.FLOAT:
        now = float(value) if value is not None else 0.9
        least, most = max(knob.min or 0.0, 0.05), min(knob.max if knob.max is not None else 1.0, 0.995)
        # Move to the next multiple of the step, whatever the value was.
        lines = now / _FRACTION_STEP
        moved = math.floor(lines + 1e-6) + 1 if step > 0 else math.ceil(lines - 1e-6) - 1
        return round(min(most, max(least, moved * _FRACTION_STEP)), 4)
    if knob.type is not KnobType.INT:
        return value
    ladder = _ladder(each)
    if not isinstance(value, int):
        return _turning(each).first
    at = bisect.bisect_right(ladder, value) if step > 0 else bisect.bisect_left(ladder, value) - 1
    return ladder[at] if 0 <= at < len(ladder) else value


def _ladder(each: PlanKnob) -> list[int]:
    knob = each.knob
    values = [1 << power for power in range(24)] if _turning(each).powers else list(_SIZES)
    least = max(_turning(each).least, knob.min or 0)
    kept = [value for value in values if value >= least and (knob.max is None or value <= knob.max)]
    return [-1, *kept] if knob.min == -1 else kept


def typed_value(each: PlanKnob, text: str) -> Any:
    """Parse a typed value of a knob.

    Raises:
        ValueError: The text is no value of the knob; the message says why.
    """
    value = read_value(each.knob, text)
    if each.knob.type is KnobType.BOOL and _turning(each).negates:
        return not value
    if value is None and "auto" in each.choices:
        return "auto"
    if value is not None and each.choices and str(value) not in each.choices:
        raise ValueError(f"it is one of {', '.join(each.choices)}")
    return value


def change_words(knobs: Sequence[PlanKnob], values: Mapping[str, Any]) -> list[str]:
    """Return the changes to a command: environment variables, then arguments."""
    variables, arguments = [], []
    for each in knobs:
        if each.knob.name not in values:
            continue
        value = values[each.knob.name]
        if each.env:
            variables.append(f"unset {each.env}" if value is None else f"{each.env}={_typed(each, value)}")
        elif each.flag:
            arguments.append(_argument(each, value) or f"without {each.flag}")
    return [*variables, *arguments]


def command_line(argv: Sequence[str], knobs: Sequence[PlanKnob], values: Mapping[str, Any]) -> str:
    """Return the whole command with the changes applied, quoted for a shell."""
    words = [clean(word) for word in argv]
    variables: list[str] = []
    for each in knobs:
        if each.knob.name not in values:
            continue
        value = values[each.knob.name]
        if each.env:
            variables += ["-u", each.env] if value is None else [f"{each.env}={_typed(each, value)}"]
        elif each.flag:
            words = _without(words, each.knob)
            words += _argument(each, value).split(" ", 1) if _argument(each, value) else []
    # Variables to unset come first: `env` reads its options before the assignments.
    unset = [word for at, word in enumerate(variables) if word == "-u" or (at and variables[at - 1] == "-u")]
    given = [word for word in variables if word not in unset]
    return shlex.join([*(["env"] if variables else []), *unset, *given, *words])


def _typed(each: PlanKnob, value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return clean(as_typed(value))


def _argument(each: PlanKnob, value: Any) -> str:
    """Return a flag with its value; empty where the flag is left out."""
    if value is None or value is False:
        return ""
    return f"{each.flag}" if value is True else f"{each.flag} {_typed(each, value)}"


def _without(words: Sequence[str], knob: Knob) -> list[str]:
    """Return a command without a knob's flag and its value, under whatever name it was given."""
    names = {_name(name) for name in (knob.name, *knob.also, *(spelled.text for spelled in knob.spellings))}
    names = {name for name in names if len(name) > 1}  # people's `f` and `u` are options of Python and the shell
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("-") and _name(word.partition("=")[0]) in names:
            dropping = "=" not in word and knob.type is not KnobType.BOOL
            continue
        if dropping and not word.startswith("--"):
            dropping = knob.type is KnobType.INTS
            continue
        dropping = False
        kept.append(word)
    return kept


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")
