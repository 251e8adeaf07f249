"""What is wrong with a recipe, as far as it can be told without its host."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from tuner.core.arguments import asked, flag_names, knob_of
from tuner.core.engine import Engine
from tuner.core.knobs import as_words, read_value
from tuner.domain.knobs import Knob, KnobKind, KnobType, Spelling
from tuner.domain.recipe import CommandLine, Recipe
from tuner.domain.server import ServerIdentity

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WITH_UNIT = re.compile(r"(?!0[xX])[+-]?\d[\d_,]*(?:\.\d+)?\s*([A-Za-z]+|%)")
_PORTS = range(1, 65_536)
_ANY = "any-llm"
_CONFIG = "config"
"""The flag of a file that may set everything else."""


class RecipeFault(Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a recipe."""

    field: str
    """The field, `port` or `env.NAME`."""
    what: str
    way_out: str = ""
    word: str = ""
    """The word of the field that is meant; empty: all of it."""


def recipe_faults(recipe: Recipe, engines: Mapping[str, Engine]) -> tuple[RecipeFault, ...]:
    """Return what is wrong with a recipe; empty if nothing can be found.

    Args:
        recipe: The recipe.
        engines: The engines by name.
    """
    found = list(_fields(recipe))
    engine = engines.get(recipe.engine)
    if engine is None:
        near = difflib.get_close_matches(recipe.engine, engines, 1)
        way_out = f"Did you mean {near[0]}?" if near else f"Engines are {', '.join(sorted(engines))}"
        found.append(RecipeFault(field="engine", what=f"there is no engine {recipe.engine}", way_out=way_out))
        return tuple(found)
    line = engine.command_line((*recipe.command, *recipe.args))
    return (*found, *_words(recipe, engine, line), *_settings(recipe, engine, line), *value_faults(recipe, engine))


def value_faults(recipe: Recipe, engine: Engine) -> Iterator[RecipeFault]:
    """Yield the numbers of a recipe with a unit that nothing reads: they are handed on as they stand."""
    table = engine.knobs()
    names = flag_names(table)
    for each in engine.command_line((*recipe.command, *recipe.args)).arguments:
        knob = knob_of(each, table, names) if each.flag else None
        for text in each.values if knob is not None else ():
            if knob is not None and (why := _unreadable(knob, text)):
                yield RecipeFault(field="args", what=f"{each.flag} cannot be {text}", way_out=why, word=each.flag)
    for name, text in recipe.env.items():
        knob = table.find(name)
        if knob is not None and knob.kind is KnobKind.ENV and (why := _unreadable(knob, text)):
            yield RecipeFault(field=f"env.{name}", what=f"{name} cannot be {text}", way_out=why)


def _unreadable(knob: Knob, text: str) -> str:
    """Return what is to be written instead of a number with a unit, a sentence; empty if it may stay as it is."""
    found = _WITH_UNIT.fullmatch(text)
    if found is None or knob.type not in (KnobType.INT, KnobType.FLOAT, KnobType.INTS):
        return ""
    # Engines themselves read 32k, 25.6k and 10G, where a whole number is meant.
    counted = knob.kind is KnobKind.FLAG and knob.type is not KnobType.FLOAT and knob.unit != "seconds"
    if counted and found[1].lower() in ("k", "m", "g", "t"):
        return ""
    try:
        value = read_value(knob, text)
    except ValueError as error:
        return str(error)[:1].upper() + str(error)[1:]
    words = as_words(knob, Spelling(knob=knob.name, kind=knob.kind, text="", setting=""), value)
    return f"Write {' '.join(words)}"


def _fields(recipe: Recipe) -> Iterator[RecipeFault]:
    program = recipe.command[0] if recipe.command else ""
    if not program.strip():
        yield RecipeFault(
            field="command", what="it names no program", way_out="Name interpreter and module, or a program"
        )
    elif "/" in program and not program.startswith("/") and recipe.cwd is None:
        yield RecipeFault(
            field="command", what=f"{program} is relative, and no cwd is given", way_out="Write the whole path"
        )
    for field, path in (("cwd", recipe.cwd), ("log_dir", recipe.log_dir)):
        if path is not None and not path.startswith("/"):
            yield RecipeFault(field=field, what=f"{path} is no whole path", way_out="Write one that begins with /")
    if recipe.port is not None and recipe.port not in _PORTS:
        yield RecipeFault(field="port", what=f"{recipe.port} is no port", way_out="Ports are 1 to 65535")
    if recipe.ready_s is not None and recipe.ready_s <= 0:
        yield RecipeFault(field="ready_s", what=f"a start cannot take {recipe.ready_s:g} s", way_out="Leave it out")
    for name, value in recipe.env.items():
        if not _VARIABLE.fullmatch(name):
            yield RecipeFault(field=f"env.{name}", what=f"{name!r} is no name of a variable")
        elif "\0" in value:
            yield RecipeFault(field=f"env.{name}", what="a variable cannot hold a NUL character")


def _words(recipe: Recipe, engine: Engine, line: CommandLine) -> Iterator[RecipeFault]:
    """Yield words that belong to no flag, and flags that say the same thing differently."""
    takes_llm = engine.model(_identity(engine, (*line.command, _ANY))) == _ANY
    loose = [each.words[0] for each in line.arguments if not each.flag and line.known]
    for word in loose[int(takes_llm) :]:
        yield RecipeFault(field="args", what=f"{word} belongs to no flag", way_out="Take it out", word=word)
    names, seen = flag_names(engine.knobs()), dict[str, tuple[str, tuple[str, ...]]]()
    for each in line.arguments:
        knob = knob_of(each, engine.knobs(), names) if each.flag else None
        if knob is None:
            continue
        before = seen.setdefault(knob.name, (each.flag, each.values))
        if before[1] != each.values:
            yield RecipeFault(
                field="args",
                what=f"{before[0]} {' '.join(before[1])} and {each.flag} {' '.join(each.values)} contradict each other",
                way_out="The last one wins; take the other out",
                word=each.flag,
            )


def _settings(recipe: Recipe, engine: Engine, line: CommandLine) -> Iterator[RecipeFault]:
    argv = (*recipe.command, *recipe.args)
    given = asked(argv, engine)
    model = engine.model(_identity(engine, argv))
    if model is None and line.known and _CONFIG not in given:
        flag = engine.behaviour().llm_flag
        yield RecipeFault(field="args", what="they name no LLM", way_out=f"Add {flag} and its path")
    if model is not None and recipe.model not in (None, model):
        yield RecipeFault(
            field="model", what=f"it is {recipe.model}, and the arguments name {model}", way_out="Leave it out"
        )
    flags = engine.plan().port_flags
    ports = [each.value for each in given.values() if each.text in flags]
    if ports and recipe.port is not None and str(ports[-1]) != str(recipe.port):
        yield RecipeFault(
            field="port", what=f"it is {recipe.port}, and the arguments say {ports[-1]}", way_out="Leave it out"
        )


def _identity(engine: Engine, argv: tuple[str, ...]) -> ServerIdentity:
    return ServerIdentity(key="0:0", engine=engine.name, pid=0, start_ticks=0, argv=argv)
