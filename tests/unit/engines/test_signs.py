"""Every sign against its own examples and near misses, and no failure in the log of a healthy server."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner.engines
from tuner.core.engine import Engine
from tuner.core.logtext import clean
from tuner.engines import load_engines
from tuner.engines.catalogue import Example, NearMiss
from tuner.engines.signs import COMMON, KINDS, SignEntry, SignPattern, read_entries, read_signs
from tuner.errors import CatalogError

ENGINES = load_engines()
FOLDER = Path(tuner.engines.__file__).parent
GOLDEN = Path(__file__).parents[2] / "golden"
FILES = {name: FOLDER / name / "signs.toml" for name in ENGINES}
GATES = {name: FOLDER / name / "gates.toml" for name in ENGINES}
CATALOGUE = [
    *((engine, entry, sign) for _, entry, sign in read_entries(COMMON) for engine in ENGINES.values()),
    *((ENGINES[name], entry, sign) for name, path in FILES.items() for _, entry, sign in read_entries(path)),
    *((ENGINES[name], entry, sign) for name, path in GATES.items() for _, entry, sign in read_entries(path)),
]
EXAMPLES = [
    pytest.param(engine, entry, example, id=f"{engine.name}-{entry.id}-{number}")
    for engine, entry, _ in CATALOGUE
    for number, example in enumerate(entry.example, 1)
]
NEAR_MISSES = [
    pytest.param(engine, entry, miss, id=f"{engine.name}-{entry.id}-{number}")
    for engine, entry, _ in CATALOGUE
    for number, miss in enumerate(entry.near_miss, 1)
]


def _signs(engine: Engine, line: str) -> dict[str, dict[str, object]]:
    """Fields by id of the signs of a line, split as the reader splits it."""
    first, *rest = line.split("\n")
    prefix = engine.prefix(first)
    message = "\n".join([engine.message(first, prefix), *rest])
    return {sign.id: sign.fields for sign in engine.signs(message, prefixed=prefix.prefixed)}


@pytest.mark.parametrize(("engine", "entry", "example"), EXAMPLES)
def test_example_carries_its_sign_with_all_it_says(engine: Engine, entry: SignEntry, example: Example) -> None:
    assert _signs(engine, example.line)[entry.id] == example.fields


@pytest.mark.parametrize(("engine", "entry", "miss"), NEAR_MISSES)
def test_near_miss_does_not_carry_the_sign(engine: Engine, entry: SignEntry, miss: NearMiss) -> None:
    assert entry.id not in _signs(engine, miss.line)


@pytest.mark.parametrize(("entry", "sign"), {e.id: (e, s) for _, e, s in CATALOGUE}.values(), ids=lambda v: v.id)
def test_everything_a_sign_names_occurs_in_an_example(entry: SignEntry, sign: SignPattern) -> None:
    lines = [example.line for example in entry.example]
    fields = [set(example.fields) for example in entry.example]
    named = {name.partition("__")[0] for e in sign.expressions for name in e.groupindex} | set(sign.each)
    assert named <= set().union(*fields)
    assert [needle for needle in sign.contains if not any(needle in line for line in lines)] == []
    assert [start for start in sign.starts if not any(start in line for line in lines)] == []


@pytest.mark.parametrize("entry", {e.id: e for _, e, _ in CATALOGUE}.values(), ids=lambda e: e.id)
def test_a_field_is_of_one_type(entry: SignEntry) -> None:
    """Code that reads a field may rely on what its examples show; a whole number may stand for a decimal one."""
    types: dict[str, set[str]] = {}
    for example in entry.example:
        for name, value in example.fields.items():
            types.setdefault(name, set()).add("number" if type(value) in (int, float) else type(value).__name__)
    assert {name: kinds for name, kinds in types.items() if len(kinds) > 1} == {}


def test_kinds_are_of_the_closed_list() -> None:
    assert {entry.kind for _, entry, _ in CATALOGUE} <= set(KINDS)


HEALTHY = [
    *(GOLDEN / "corpus" / f"{name}.log" for name in ("ok-1-llama8b", "ok-2-scary-warnings", "seed-1-baseline")),
    *sorted((GOLDEN / "logs").glob("*/*/*healthy*.log")),
    *(GOLDEN / "logs" / "sglang" / "0.5.16" / f"h200-{name}.log" for name in ("base", "auto512", "nccl2ch")),
    *sorted((GOLDEN / "real" / "sglang-0.5.9-cpu").glob("*.log")),
    *(GOLDEN / "real" / "sglang-0.5.16-2xH200" / name / "server.log" for name in ("base", "auto512", "f97", "nccl2ch")),
    *(GOLDEN / "real" / "vllm-0.32.0-cpu" / f"{name}.log" for name in ("tp1-start-stop", "dp2")),
    *(
        GOLDEN / "real" / "sglang-0.5.23-cpu" / f"{name}.log"
        for name in ("serve-default", "nometrics-queue", "titles-dp2", "titles-pp2", "fail-kv-too-big")
    ),
]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_failure_in_the_log_of_a_healthy_server(path: Path) -> None:
    engine = ENGINES["vllm" if "vllm" in str(path.relative_to(GOLDEN)) else "sglang"]
    found = []
    for line in path.read_text("utf-8", "replace").splitlines():
        text = clean(line)
        prefix = engine.prefix(text)
        found += engine.signs(engine.message(text, prefix), prefixed=prefix.prefixed)
    assert [(sign.id, sign.text[:200]) for sign in found if sign.kind == "failure"] == []


def test_a_healthy_log_holds_a_consequence_only_after_its_operator_asked_it_to_stop() -> None:
    for path in HEALTHY:
        engine = ENGINES["vllm" if "vllm" in str(path.relative_to(GOLDEN)) else "sglang"]
        stopping = False
        for line in path.read_text("utf-8", "replace").splitlines():
            text = clean(line)
            prefix = engine.prefix(text)
            stopping = stopping or "SIGTERM" in text or "[shutdown]" in text or "crashed with exit code -15" in text
            found = engine.signs(engine.message(text, prefix), prefixed=prefix.prefixed)
            assert stopping or not [sign.id for sign in found if sign.kind == "secondary"], (path, text[:200])


def test_the_quick_choice_of_signs_misses_none() -> None:
    """Gates rule out most signs before they are tried; trying all of them must find no more."""
    for name, engine in ENGINES.items():
        signs = read_signs(COMMON, FILES[name])
        for path in sorted((GOLDEN / "logs" / name).glob("*/*.log")):
            for line in path.read_text("utf-8", "replace").splitlines()[:400]:
                prefix = engine.prefix(line)
                message = engine.message(line, prefix)
                if signs.quiet(message):
                    assert not signs.match(message, prefix.prefixed)
                    continue
                every = {sign.id for sign in signs.signs if sign.match(message, prefix.prefixed) is not None}
                found = {sign.id for sign in signs.match(message, prefix.prefixed)}
                kinds = {sign.id: sign.kind for sign in signs.signs}
                harmless = any(kinds[each] == "harmless" for each in every)
                assert found == {each for each in every if not harmless or kinds[each] in {"harmless", "info"}}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
@pytest.mark.parametrize(
    "message",
    [
        "Receive: obj=GenerateReqInput(rid='8c1f', text='{}')",
        "Finish: obj=GenerateReqInput(text='hi'), out={{'text': '{}'}}",
        '{{"event": "request.received", "obj": {{"messages": [{{"role": "user", "content": "{}"}}]}}}}',
        "Received request cmpl-1: prompt: '{}', params: SamplingParams(n=1)",
        '10.0.0.5:40110 - "GET /v1/models?q={} HTTP/1.1" 200 OK',
        "server_args=ServerArgs(model_path='/models/x', chat_template='{}')",
        "non-default args: {{'model': '{}'}}",
    ],
)
def test_words_of_requests_and_arguments_are_no_signs(engine: Engine, message: str) -> None:
    for said in (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23 GiB",
        "RuntimeError: NCCL error: unhandled system error",
        "Killed process 4711 (python) total-vm:1kB",
        "CUDA error: an illegal memory access was encountered",
    ):
        assert not engine.signs(message.format(said), prefixed=True)


def test_a_harmless_message_silences_the_failures_in_it() -> None:
    signs = ENGINES["vllm"].signs(
        "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit."
        " This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
        prefixed=True,
    )
    assert [sign.kind for sign in signs if sign.kind != "info"] == ["harmless"]


def test_one_message_may_carry_several_signs() -> None:
    message = "Capture cuda graph failed: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has a total capacity"
    found = [sign.id for sign in ENGINES["sglang"].signs(f"Exception: {message} of 95.00 GiB", prefixed=False)]
    assert {"cuda-oom", "graph-capture-failed"} <= set(found)


GOOD = """\
[[sign]]
id = "a"
kind = "info"
contains = ["upon"]
pattern = 'upon (?P<what>\\w+)'
[[sign.example]]
line = "upon time"
fields = { what = "time" }
"""


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD + GOOD.replace('"a"', '"b"').partition("[[sign.example]]")[0], 9, "b has no example"),
        (GOOD + GOOD, 9, "two signs are called a"),
        (GOOD.replace('"info"', '"infos"'), 1, "unknown kind infos"),
        (GOOD.replace('["upon"]', "[]"), 1, "names no substring"),
        (GOOD.replace('["upon"]', '["up"]'), 1, "less than 4 characters"),
        (GOOD.replace('contains = ["upon"]', 'starts = ["up"]'), 1, "less than 4 characters"),
        (GOOD.replace("(?P<what>", "(?P<what"), 1, "bad pattern"),
        (GOOD.replace('"info"', '"info"\ntypes = { what = "hex" }'), 1, "unknown type hex"),
        (GOOD.replace('"info"', '"info"\neach = { others = "(" }'), 1, "bad pattern"),
        (GOOD.replace('"info"', '"info"\ncolour = 1'), 1, "colour"),
        (GOOD.replace('"info"', '"info'), 3, "is not TOML"),
        (GOOD + '[[quiet]]\nwhy = "x"\n', 9, "quiet names no text"),
        (GOOD + '[[quiet]]\nstarts = ["x"]\n', 9, "why"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "signs.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(CatalogError) as caught:
        read_entries(path)
        read_signs(path)
    assert caught.value.line == line
    assert words in str(caught.value)
    assert f"signs.toml:{line}" in str(caught.value)


def test_an_id_of_all_engines_is_not_used_again_by_one(tmp_path: Path) -> None:
    for name in ("signs.toml", "more.toml"):
        (tmp_path / name).write_text(GOOD, "utf-8")
    with pytest.raises(CatalogError, match="two signs are called a"):
        read_signs(tmp_path / "signs.toml", tmp_path / "more.toml")


def test_fields_are_numbers_where_the_text_is_wholly_one(tmp_path: Path) -> None:
    path = tmp_path / "signs.toml"
    path.write_text(GOOD.replace("(?P<what>\\w+)", "(?P<what>[^;]+);(?P<x_version>[^;]*);"), "utf-8")
    signs = read_signs(path)

    def what(text: str) -> object:
        return signs.match(f"upon {text};2.28;")[0].fields["what"]

    texts = ("3", "-3", "152,000", "0.4650", "448.00 MiB", "1,2", "1e5", "9" * 30, "3.10.12")
    values = [3, -3, 152000, 0.465, "448.00 MiB", "1,2", "1e5", "9" * 30, "3.10.12"]
    assert [what(text) for text in texts] == values
    assert signs.match("upon 3;2.28;")[0].fields["x_version"] == "2.28"
