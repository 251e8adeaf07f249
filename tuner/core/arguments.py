"""The arguments of a server's command line, each with its knob and its value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from tuner.core.engine import Engine
from tuner.core.knobs import OFF_WORDS, ON_WORDS, KnobTable, read_value
from tuner.domain.knobs import Knob, KnobKind, KnobType
from tuner.domain.recipe import Argument


class Asked(Struct, frozen=True, kw_only=True):
    """One setting that a command line asks for."""

    name: str
    """Canonical name of the knob; the flag's name where it is no knob of the catalogue."""
    text: str
    """The flag as written; empty for a word without a flag."""
    value: Any
    knob: Knob | None = None


def asked(argv: Sequence[str], engine: Engine) -> dict[str, Asked]:
    """Return what a command line asks for, by name; if a flag is repeated, the last one wins."""
    names = flag_names(engine.knobs())
    found: dict[str, Asked] = {}
    for argument in engine.command_line(argv).arguments:
        if not argument.flag:
            llm = flag_key(engine.behaviour().llm_flag)
            found.setdefault(llm, Asked(name=llm, text="", value=argument.words[0]))
            continue
        knob = knob_of(argument, engine.knobs(), names)
        name = knob.name if knob is not None else argument.name
        found.pop(name, None)
        found[name] = Asked(name=name, text=argument.flag, value=value_of(argument, knob), knob=knob)
    return found


def knob_of(argument: Argument, table: KnobTable, names: dict[str, str]) -> Knob | None:
    """Return the knob that an argument sets, also by a unique abbreviation of its flag; None if it is none.

    Args:
        argument: The argument.
        table: The engine's knobs.
        names: `flag_names` of them.
    """
    key = flag_key(argument.flag)
    for each in (key, argument.name, key.removeprefix("no_")):
        if each in names:
            return table[names[each]]
    knobs = {name for each, name in names.items() if each.startswith(key)} if argument.flag.startswith("--") else set()
    return table[knobs.pop()] if len(knobs) == 1 else None


def value_of(argument: Argument, knob: Knob | None) -> Any:
    """Return the value of an argument as its knob's type; as text, or a list of texts, where that cannot be read."""
    values = argument.values
    if knob is not None and knob.type is KnobType.BOOL:
        word = values[0].lower() if values else "on"
        negated = argument.name.startswith("no_") and not knob.name.startswith("no_")
        return word in ON_WORDS and not negated if word in ON_WORDS | OFF_WORDS else values[0]
    if not values:
        return True
    text = ",".join(values) if knob is not None and knob.type is KnobType.INTS else values[0]
    if knob is not None and (len(values) == 1 or knob.type is KnobType.INTS):
        try:
            value = read_value(knob, text)
        except ValueError:
            return text
        return text if value is None else value
    return values[0] if len(values) == 1 else list(values)


def flag_names(table: KnobTable) -> dict[str, str]:
    """Return the name of the knob by the key of each of its flags, those of all versions."""
    return {
        flag_key(text): knob.name
        for knob in table.values()
        if knob.kind is KnobKind.FLAG
        for text in spellings((knob,))
    }


def spellings(knobs: Iterable[Knob]) -> Iterator[str]:
    """Yield the flags of knobs, as all versions spell them."""
    return (spelled.text for knob in knobs for spelled in knob.spellings if spelled.text.startswith("-"))


def flag_key(flag: str) -> str:
    """Return a flag without leading dashes and value, underscored: engines accept both spellings, or have one."""
    return flag.partition("=")[0].lstrip("-").replace("-", "_")
