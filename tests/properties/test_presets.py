"""Whatever a preset sets, and over whatever: no knob is set twice, no base value comes through, nothing raises."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tuner.core.engine import Engine
from tuner.core.knobs import flags_of
from tuner.core.presets import overlay, resolve
from tuner.core.recipes import lay_over
from tuner.core.toml_lines import key_lines
from tuner.domain.knobs import Knob, KnobKind, KnobType
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import Recipe
from tuner.engines import load_engines

ENGINES = load_engines()
COMMANDS = {
    "sglang": ("/venv/bin/python", "-m", "sglang.launch_server"),
    "vllm": ("/venv/bin/vllm", "serve"),
}
WORDS = {
    KnobType.INT: st.integers(1, 64).map(str),
    KnobType.FLOAT: st.floats(0.05, 0.95).map(lambda value: f"{value:.3f}"),
    KnobType.TEXT: st.sampled_from(["auto", "one", "two"]),
    KnobType.BOOL: st.just(""),
    KnobType.INTS: st.just("1 2 4"),
    KnobType.WORDS: st.just("/health"),
}


@st.composite
def engine_and_version(draw: st.DrawFn) -> tuple[Engine, str | None]:
    engine = draw(st.sampled_from(list(ENGINES.values())))
    return engine, draw(st.sampled_from([None, *engine.knobs().versions]))


def values(knob: Knob, choices: tuple[str, ...]) -> st.SearchStrategy[Any]:
    if choices:
        return st.sampled_from(choices)
    low = int(knob.min if knob.min is not None else 1)
    high = min(int(knob.max if knob.max is not None else 64), 1 << 20)
    return {
        KnobType.BOOL: st.booleans(),
        KnobType.INT: st.integers(low, max(low, high)),
        KnobType.FLOAT: st.floats(max(float(low), 0.1), max(float(low), 0.9)),
        KnobType.TEXT: st.sampled_from(["auto", "x", '{"a": 1}']),
        KnobType.INTS: st.lists(st.integers(1, 64), min_size=1, max_size=3),
        KnobType.WORDS: st.just(["/health", "/metrics"]),
    }[knob.type]


@st.composite
def presets(draw: st.DrawFn, engine: Engine, version: str | None) -> Preset:
    table = engine.knobs()
    names = draw(st.lists(st.sampled_from(sorted(table)), unique=True, max_size=6))
    args: dict[str, Any] = {}
    env: dict[str, str] = {}
    for name in names:
        knob, spelling = table[name], table.spelling(name, version or table.newest)
        value = draw(values(knob, spelling.choices if spelling is not None else ()))
        if knob.kind is KnobKind.ENV:
            env[name] = str(int(value)) if isinstance(value, bool) else str(value)
        elif knob.opposite and isinstance(value, bool) and draw(st.booleans()):
            args[knob.opposite] = not value
        else:
            args[name] = value
    rest = sorted(set(table) - set(names))
    unset = tuple(draw(st.lists(st.sampled_from(rest), unique=True, max_size=3)))
    return Preset(id="mine", title="T", why="w", args=args, env=env, unset=unset)


@st.composite
def bases(draw: st.DrawFn, engine: Engine, preset: Preset) -> Recipe:
    """A command line and an environment that set what the preset sets, in any spelling of any version."""
    table = engine.knobs()
    touched = [named.knob for name in (*preset.args, *preset.env, *preset.unset) if (named := table.named(name))]
    others = draw(st.lists(st.sampled_from(list(table.values())), max_size=4))
    args: list[str] = []
    env: dict[str, str] = {}
    for knob in draw(st.permutations([*touched, *others])):
        text = draw(st.sampled_from(flags_of(knob)))
        word = draw(WORDS[knob.type])
        if knob.kind is KnobKind.ENV:
            env[text] = word or "1"
        elif not word:
            args.append(text)
        elif " " not in word and text.startswith("--") and draw(st.booleans()):
            args.append(f"{text}={word}")
        else:
            args += [text, *word.split()]
    model = ("--model-path", "/models/m") if engine.name == "sglang" else ("--model", "/models/m")
    return Recipe(name="r", host="h", engine=engine.name, command=COMMANDS[engine.name], args=(*model, *args), env=env)


@given(st.data())
def test_laid_over_any_base_no_knob_is_set_twice(data: st.DataObject) -> None:
    engine, version = data.draw(engine_and_version())
    preset = data.draw(presets(engine, version))
    base = data.draw(bases(engine, preset))
    laid = overlay(preset, engine.knobs(), engine.name, version)
    launch = lay_over(base, laid, preset, engine)
    table = engine.knobs()
    said = [argument.flag for argument in engine.command_line(launch.argv).arguments if argument.flag]
    for name, value in laid.values.items():
        spellings = set(flags_of(table[name]))
        if table[name].kind is KnobKind.ENV:
            held = {each: launch.env[each] for each in spellings if each in launch.env}
            assert held == {each: text for each, text in laid.env.items() if each in spellings}
        else:
            own = [word for word in laid.argv if word in spellings]
            assert [flag for flag in said if flag in spellings] == own, (name, value)
    assert "/models/m" in launch.argv
    assert _tail(launch.argv, laid)


def _tail(argv: tuple[str, ...], laid: Overlay) -> bool:
    return not laid.argv or argv[-len(laid.argv) :] == laid.argv


@given(st.data())
def test_an_overlay_says_what_it_takes_off_for_all_it_sets(data: st.DataObject) -> None:
    engine, version = data.draw(engine_and_version())
    preset = data.draw(presets(engine, version))
    table = engine.knobs()
    laid = overlay(preset, table, engine.name, version)
    assert all(isinstance(word, str) for word in (*laid.argv, *laid.env.values()))
    for name in laid.values:
        taken = {*laid.unset_flags, *laid.unset_env, *laid.env}
        assert set(flags_of(table[name])) <= taken
    assert not set(laid.unset_env) & set(laid.env)
    assert laid == overlay(preset, table, engine.name, version), "nothing depends on what was asked before"


@given(st.data())
def test_the_last_of_those_that_set_a_value_wins(data: st.DataObject) -> None:
    """Composing is the same as applying the bases one after the other, and then oneself."""
    names = ["tp_size", "page_size", "max_running_requests"]
    count = data.draw(st.integers(1, 5))
    chain: dict[str, Preset] = {}
    for number in range(count):
        picked = st.lists(st.sampled_from(sorted(chain)), unique=True, max_size=3)
        extends = tuple(data.draw(picked)) if chain else ()
        args = data.draw(st.dictionaries(st.sampled_from(names), st.integers(1, 9), max_size=3))
        unset = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
        one = Preset(
            id=f"p{number}",
            title="T",
            why="w",
            extends=extends,
            args=args,
            unset=tuple(name for name in unset if name not in args),
        )
        chain[one.id] = one

    def applied(name: str, held: dict[str, int | None]) -> dict[str, int | None]:
        own = chain[name]
        below: dict[str, int | None] = {}
        for base in own.extends:
            below |= applied(base, {})
        return held | below | dict.fromkeys(own.unset) | own.args

    last = f"p{count - 1}"
    whole = resolve(chain, last)
    assert {**dict.fromkeys(whole.unset), **whole.args} == applied(last, {})
    assert not set(whole.unset) & set(whole.args)


_NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)


@given(
    st.dictionaries(
        _NAMES,
        st.one_of(
            st.integers(), st.text("ab[]{}#=' \\", max_size=9), st.lists(st.text("a[\"'#", max_size=3), max_size=3)
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_the_line_of_a_key_is_the_line_on_which_it_stands(table: dict[str, Any], spread: bool) -> None:
    import tomlkit

    document = tomlkit.document()
    document["head"] = tomlkit.string('a = 1\n[no]\n"x" = 2\n', multiline=True)
    inner = tomlkit.table()
    for name, value in table.items():
        item = tomlkit.item(value)
        if spread and isinstance(item, tomlkit.items.Array):
            item.multiline(True)
        inner[name] = item
    document["inner"] = inner
    text = tomlkit.dumps(document)
    lines, found = text.splitlines(), key_lines(text)
    assert set(found) == {"head", "inner", *(f"inner.{name}" for name in table)}
    for name in table:
        assert lines[found[f"inner.{name}"] - 1].startswith(f"{name} =")


@given(st.text(max_size=200))
def test_lines_are_looked_for_in_any_text(text: str) -> None:
    assert all(1 <= line <= len(text.splitlines()) for line in key_lines(text).values())
