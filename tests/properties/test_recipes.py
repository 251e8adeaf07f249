"""A preset laid over a command line: nothing else is lost, nothing is said twice, a second time changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec.structs
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.core.arguments import asked, flag_key
from tuner.core.helptext import flag_problems
from tuner.core.presets import overlay
from tuner.core.recipes import lay_over, of_session, read_recipe
from tuner.domain.knobs import Knob, KnobKind, KnobType
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import Recipe
from tuner.domain.server import ServerIdentity
from tuner.domain.state import HostState, ServerState
from tuner.engines import load_engines

ENGINES = load_engines()
HELPS = Path(__file__).parents[1] / "golden/help"
VERSIONS = {"sglang": ("0.5.9", "0.5.23"), "vllm": ("0.32.0",)}
HELD = {
    (engine, version): json.loads((HELPS / f"{engine}-{version}.flags.json").read_text())
    for engine, versions in VERSIONS.items()
    for version in versions
}
COMMANDS = {
    "sglang": (("/v/bin/python3", "-m", "sglang.launch_server"), ("/v/bin/python3", "/v/bin/sglang", "serve")),
    "vllm": (("/v/bin/python3", "/v/bin/vllm", "serve"), ("python3", "-m", "vllm.entrypoints.openai.api_server")),
}
ARITY = {"0": (0, 0), "1": (1, 1), "?": (0, 1), "*": (0, 3), "+": (1, 3)}
WORDS = st.one_of(
    st.integers(-5, 1 << 20).map(str),
    st.floats(0, 1, allow_nan=False).map(lambda value: f"{value:.3f}"),
    st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=12).filter(
        lambda word: not word.startswith("-")
    ),
    st.sampled_from(("a b", "-- not a flag", '{"a": [1, "--b"]}', "***", "", "true")),
)
NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{1,12}", fullmatch=True)
VARIABLES = st.dictionaries(NAMES, st.text(max_size=20).filter(lambda value: "\0" not in value), max_size=8)


@st.composite
def command_lines(draw: st.DrawFn, engine: str, version: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """A command of an engine, and arguments that its parser takes, each as its words."""
    held = HELD[engine, version]
    command = draw(st.sampled_from(COMMANDS[engine]))
    found: list[tuple[str, ...]] = []
    for flag in draw(st.lists(st.sampled_from(sorted(set(held) - {"--model", "-h", "--help"})), max_size=12)):
        least, most = ARITY[held[flag][0]]
        words = draw(st.lists(WORDS, min_size=least, max_size=most))
        joined = len(words) == 1 and flag.startswith("--") and draw(st.booleans())
        found.append((f"{flag}={words[0]}",) if joined else (flag, *words))
    if command[-1] == "serve" and engine == "vllm":
        found.insert(0, ("org/llm",))
    return command, found


def values(knob: Knob) -> st.SearchStrategy[object]:
    least, most = int(max(knob.min or 1, 1)), int(min(knob.max or 4096, 4096))
    if knob.type is KnobType.BOOL:
        return st.booleans()
    if knob.type is KnobType.INT:
        return st.integers(least, max(least, most))
    if knob.type is KnobType.FLOAT:
        return st.sampled_from((0.5, 0.75, 0.9))
    if knob.type is KnobType.INTS:
        return st.lists(st.integers(1, 64), min_size=1, max_size=3)
    return st.sampled_from(("auto", "x"))


@st.composite
def presets(draw: st.DrawFn, engine: str) -> Preset:
    table = ENGINES[engine].knobs()
    flags = sorted(name for name, knob in table.items() if knob.kind is KnobKind.FLAG)
    chosen = draw(st.lists(st.sampled_from(flags), unique=True, max_size=6))
    cut = draw(st.integers(0, len(chosen)))
    return Preset(
        id="p",
        title="t",
        why="w",
        args={name: draw(values(table[name])) for name in chosen[:cut]},
        unset=tuple(chosen[cut:]),
        env=draw(st.dictionaries(st.sampled_from(("NCCL_PROTO", "NCCL_BUFFSIZE", "OTHER")), st.just("1"))),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Recipe, list[tuple[str, ...]], Preset, Overlay]:
    engine, version = draw(st.sampled_from(sorted(HELD)))
    command, arguments = draw(command_lines(engine, version))
    recipe = Recipe(
        name="r",
        host="h",
        engine=engine,
        command=command,
        args=tuple(word for each in arguments for word in each),
        env=draw(VARIABLES),
    )
    preset = draw(presets(engine))
    return engine, recipe, arguments, preset, overlay(preset, ENGINES[engine].knobs(), engine, version)


@settings(deadline=None)
@given(cases())
def test_what_a_preset_does_not_name_stays_in_its_order(
    case: tuple[str, Recipe, list[tuple[str, ...]], Preset, Overlay],
) -> None:
    engine, recipe, arguments, preset, over = case
    launch = lay_over(recipe, over, preset, ENGINES[engine])
    rest = list(launch.argv[len(recipe.command) : len(launch.argv) - len(over.argv)])
    named = {flag_key(flag) for flag in over.unset_flags} | {flag_key(word) for word in over.argv if word[:1] == "-"}
    names = {each.name for flag in named for each in _read(engine, recipe, f"--{flag.replace('_', '-')}")}
    for words in arguments:
        key = flag_key(words[0]).partition(".")[0]
        canonical = _read(engine, recipe, words[0])[0].name
        if rest[: len(words)] == list(words):
            assert key not in named or not words[0].startswith("-")
            del rest[: len(words)]
        else:
            same = {key, key.removeprefix("no_"), f"no_{key}", canonical}
            assert same & (named | names) or _knob(engine, key) & {_knob_name(engine, each) for each in named}, words
    assert rest == []
    assert launch.argv[len(launch.argv) - len(over.argv) :] == over.argv


@settings(deadline=None)
@given(cases())
def test_a_second_time_changes_nothing(case: tuple[str, Recipe, list[tuple[str, ...]], Preset, Overlay]) -> None:
    engine, recipe, _, preset, over = case
    once = lay_over(recipe, over, preset, ENGINES[engine])
    base = msgspec.structs.replace(recipe, args=once.argv[len(recipe.command) :], env=once.env)
    twice = lay_over(base, over, preset, ENGINES[engine])
    assert (twice.argv, twice.env, twice.unset) == (once.argv, once.env, once.unset)


@settings(deadline=None)
@given(cases())
def test_no_knob_that_is_set_is_said_twice(case: tuple[str, Recipe, list[tuple[str, ...]], Preset, Overlay]) -> None:
    engine, recipe, _, preset, over = case
    launch = lay_over(recipe, over, preset, ENGINES[engine])
    found = [_knob_name(engine, flag_key(each.flag)) for each in ENGINES[engine].command_line(launch.argv).arguments]
    for name in over.values:
        assert found.count(name) <= 1
    got = asked(launch.argv, ENGINES[engine])
    assert not set(preset.unset) & set(got)


@settings(deadline=None)
@given(cases(), VARIABLES)
def test_a_recipe_that_is_read_starts_the_same_server(
    case: tuple[str, Recipe, list[tuple[str, ...]], Preset, Overlay], more: dict[str, str]
) -> None:
    engine, base, _, _, _ = case
    env = base.env | more | {"SSH_TTY": "x", "TERM": "y"}
    identity = ServerIdentity(
        key="1:2", engine=engine, pid=1, start_ticks=2, argv=(*base.command, *base.args), env=env, cwd="/srv"
    )
    server = ServerState(identity=identity)
    recipe = read_recipe(HostState(name="h", servers=(server,)), server, ENGINES[engine])
    launch = lay_over(recipe, Overlay(), None, ENGINES[engine], server=server)
    assert launch.argv == identity.argv
    assert launch.env == {name: value for name, value in env.items() if not of_session(name)}
    assert launch.unset == ()


@settings(deadline=None)
@given(st.sampled_from(sorted(HELD)).flatmap(lambda key: st.tuples(st.just(key), command_lines(*key))))
def test_what_a_parser_takes_is_taken_apart_as_it_does(
    case: tuple[tuple[str, str], tuple[tuple[str, ...], list[tuple[str, ...]]]],
) -> None:
    (engine, version), (command, arguments) = case
    line = ENGINES[engine].command_line((*command, *(word for each in arguments for word in each)))
    assert line.command == command
    assert [each.words for each in line.arguments] == arguments
    words = [word for each in arguments for word in each]
    assert flag_problems(words, frozenset(HELD[engine, version]), ENGINES[engine]) == ()


def _read(engine: str, recipe: Recipe, word: str) -> tuple[object, ...]:
    return ENGINES[engine].command_line((*recipe.command, word)).arguments


def _knob_name(engine: str, key: str) -> str:
    for name, knob in ENGINES[engine].knobs().items():
        if key.removeprefix("no_") in {flag_key(each.text).removeprefix("no_") for each in knob.spellings}:
            return name
    return key


def _knob(engine: str, key: str) -> set[str]:
    return {_knob_name(engine, key)}
