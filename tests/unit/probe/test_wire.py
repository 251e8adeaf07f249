from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from tuner.core.redact import MASK
from tuner.core.redact_values import PATHS
from tuner.domain import events as e
from tuner.domain.link import LinkPhase
from tuner.domain.runs import Lease, RunRecord
from tuner.probe import wire
from tuner.probe.wire import Decoder, NeedNvml, encode

HELLO = b'{"t":"hello","seq":1,"protocol":1,"python":"3.11","pid":1,"uid":0,"hostname":"h","at":5.0}\n'


def packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def line(**fields: Any) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def decoded(*blocks: bytes, **options: Any) -> list[Any]:
    decoder = Decoder(**options)
    return [event for block in (HELLO, *blocks) for event in decoder.feed(block)][1:]


def problems(events: list[Any]) -> list[str]:
    return [event.detail for event in events if isinstance(event, e.ProblemSeen)]


def test_lines_become_events() -> None:
    assert decoded(b'{"t":"scanned","seq":2,"mono":1.5}\n') == [e.ScanEnded(seq=2, mono=1.5)]


def test_lines_may_come_in_any_pieces() -> None:
    data = line(t="pong", seq=2, n=1) + line(t="pong", seq=3, n=2)
    for cut in range(len(data)):
        assert decoded(data[:cut], data[cut:]) == [e.Pong(seq=2, n=1), e.Pong(seq=3, n=2)]
    assert decoded(*(bytes([byte]) for byte in data)) == [e.Pong(seq=2, n=1), e.Pong(seq=3, n=2)]


def test_every_event_survives_its_own_encoding() -> None:
    event = e.LinkChanged(phase=LinkPhase.UP, notes=("a",))
    assert decoded(encode(event) + b"\n", recorded=True) == [event]


def test_the_laptops_own_events_do_not_come_from_a_host() -> None:
    assert len(problems(decoded(encode(e.LinkChanged(phase=LinkPhase.DOWN, final=True)) + b"\n"))) == 1


def test_compressed_text_is_inflated() -> None:
    (event,) = decoded(line(t="log", key="k", offset=0, end=5, z=packed("größe")))
    assert event == e.LogBytes(key="k", offset=0, end=5, data="größe")
    (event,) = decoded(line(t="old_log", key="k", path="/x", size=9, z=packed("old")))
    assert event.data == "old"
    (event,) = decoded(line(t="read", id=1, offset=0, end=3, size=9, z=packed("abc")))
    assert event.data == "abc"
    assert type(event) is e.ReadResult


def answer(series: dict[str, float] | None = None, *again: list[float], endpoint: str = "metrics") -> bytes:
    return line(t="http", key="k", endpoint=endpoint, status=200, series=series or {}, again=again)


def test_series_that_were_named_come_back_by_number() -> None:
    named = answer({"a": 1.0, f'b{{model_name="{TOKEN}"}}': 2.0})
    first, second, third = decoded(named, answer({"c": 3.0}, [1, 2.5]), answer(None, [2, 4.0], [0, 1.5]))
    (masked,) = set(first.series) - {"a"}
    assert TOKEN not in masked
    assert second.series == {"c": 3.0, masked: 2.5}
    assert third.series == {"c": 4.0, "a": 1.5}
    assert decoded(encode(third) + b"\n", recorded=True) == [third]


@pytest.mark.parametrize("number", [-1, 1])
def test_a_number_that_stands_for_no_series_is_a_problem(number: int) -> None:
    _, problem, fine = decoded(answer({"a": 1.0}), answer(None, [number, 1.0]), answer(None, [0, 2.0]))
    assert isinstance(problem, e.ProblemSeen)
    assert fine.series == {"a": 2.0}


def test_each_endpoint_numbers_its_own_series() -> None:
    events = decoded(answer({"a": 1.0}), answer({"b": 1.0}, endpoint="other"), answer(None, [0, 2.0], endpoint="other"))
    assert events[-1].series == {"b": 2.0}


@pytest.mark.parametrize("z", ["", "!!!", base64.b64encode(b"no zlib").decode(), packed("x" * 1000)[:-8]])
def test_compressed_text_that_is_none_is_a_problem(z: str) -> None:
    assert len(problems(decoded(line(t="log", key="k", offset=0, end=5, z=z)))) == 1


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_TEXT_BYTES", 1000)
    assert len(problems(decoded(line(t="log", key="k", offset=0, end=5, z=packed("x" * 1001))))) == 1


def test_an_overlong_line_is_skipped_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 1000)
    events = decoded(b"x" * 600, b"x" * 600, b"x" * 600 + b"\n" + line(t="scanned"))
    assert len(events) == 2
    assert "more than" in events[0].detail
    assert events[1] == e.ScanEnded()


def test_the_need_for_a_binding() -> None:
    assert decoded(line(t="need", seq=2, what="nvml")) == [NeedNvml(seq=2)]


def test_unknown_fields_are_ignored() -> None:
    assert decoded(line(t="scanned", seq=2, later={"a": 1})) == [e.ScanEnded(seq=2)]


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"Last login: today\n", b"[]\n", b"{}\n", b'{"t":"new-kind"}\n', b'{"t":"pong","n":"x"}\n', b"\xff\xfe\0\n",
     b"[" * 100_000 + b"\n", b'{"t":"gpus","samples":[[null]]}\n', b'{"t":"log","key":"k","offset":-1e400,"end":1}\n'],
)  # fmt: skip
def test_garbage_is_told_and_nothing_raises(garbage: bytes) -> None:
    events = decoded(garbage + line(t="scanned"))
    assert events[-1] == e.ScanEnded()
    assert len(problems(events)) == (0 if garbage == b"\n" else 1)


def test_much_garbage_is_told_seldom() -> None:
    told = problems(decoded(b"garbage\n" * 1000))
    assert [text.split()[0] for text in told] == ["'garbage'", "10", "100", "1000"]


def test_what_a_login_prints_before_the_first_line_is_no_problem() -> None:
    decoder = Decoder()
    assert list(decoder.feed(b"Welcome to box!\nmotd\n")) == []
    assert not decoder.started
    assert list(decoder.preamble) == ["Welcome to box!", "motd"]
    assert len(list(decoder.feed(HELLO))) == 1
    assert decoder.started


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes_are_taken(blocks: list[bytes]) -> None:
    for event in decoded(*blocks):
        assert isinstance(event, e.ProblemSeen)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
tags = st.sampled_from([kind.__struct_config__.tag for kind in e.AnyEvent.__args__])  # type: ignore[attr-defined]


@settings(deadline=None)
@given(
    tags,
    st.dictionaries(st.sampled_from(["key", "data", "z", "n", "server", "samples", "body", "id", "hits"]), json_values),
)
def test_any_fields_are_taken(tag: str, fields: dict[str, Any]) -> None:
    for event in decoded(line(**{**fields, "t": tag})):
        assert isinstance(event, msgspec.Struct)


CANARY = "canary9in9the9mine"
TOKEN = "hf_CanaryInTheMine0123456789"


def planted() -> list[dict[str, Any]]:
    """Every event with text in it, with secrets wherever they can stand."""
    argv = ["sglang", "serve", "--api-key", CANARY, f"--admin-api-key={CANARY}", "--hf-token", TOKEN]
    member = {"pid": 2, "ppid": 1, "start_ticks": 1, "title": " ".join(argv), "env": {"HF_TOKEN": CANARY, "X": TOKEN}}
    server = {
        "key": "k",
        "engine": "sglang",
        "pid": 1,
        "start_ticks": 1,
        "argv": argv,
        "members": [member],
        "env": {"OPENAI_API_KEY": CANARY, "DB_PASSWORD": CANARY, "URL": f"http://u:{CANARY}@h/", "TUNNEL": TOKEN},
        "log": {"kind": "none", "note": f"api_key={CANARY}"},
    }
    text = f"x api_key='{CANARY}' Authorization: Bearer {CANARY} {TOKEN} http://u:{CANARY}@h/\n"
    return [
        {"t": "server", "server": server},
        {"t": "log_open", "key": "k", "reason": "start", "note": text},
        {"t": "log", "key": "k", "offset": 0, "end": len(text), "data": text},
        {"t": "log", "key": "k", "offset": len(text), "end": 2 * len(text), "z": packed(text)},
        {
            "t": "http",
            "key": "k",
            "endpoint": "info",
            "status": 200,
            "body": {"api_key": CANARY, "a": [{"hf_token": CANARY}, text]},
        },
        {"t": "http", "key": "k", "endpoint": "m", "error": text, "series": {f'a{{model_name="{TOKEN}"}}': 1.0}},
        {"t": "old_log", "key": "k", "path": "/x", "size": 1, "z": packed(text)},
        {"t": "gpu_procs", "processes": [[0, 5, 1]], "infos": [{"pid": 5, "command": " ".join(argv)}]},
        {"t": "gpu_info", "reason": text},
        {"t": "xid", "bus_id": "0", "xid": 1, "text": text},
        {"t": "oom", "pid": 1, "name": "python", "text": text},
        {"t": "problem", "code": "http-auth", "detail": text},
        {"t": "found", "id": 1, "hits": [[0, text]], "done": True, "error": text},
        {"t": "read", "id": 1, "data": text, "error": text},
        {"t": "checks", "id": 1, "checks": {"env": {"HF_TOKEN": CANARY}, "note": text}},
    ]


@pytest.mark.parametrize("event", planted(), ids=lambda event: str(event["t"]))
def test_no_secret_is_in_what_comes_out(event: dict[str, Any]) -> None:
    (out,) = decoded(line(**event))
    if isinstance(out, e.LogBytes):
        return  # by whole lines, in the stream
    text = encode(out).decode()
    assert CANARY not in text
    assert TOKEN not in text
    assert MASK in text


@pytest.mark.parametrize("cut", range(len(f"--api-key {CANARY}")))
def test_a_part_that_begins_within_a_secret_does_not_show_the_rest_of_it(cut: int) -> None:
    rest = f"--api-key {CANARY}"[cut:] + " torn"
    (part,) = decoded(line(t="read", id=1, offset=100, end=100 + len(rest) + 9, size=999, data=rest + "\nwhole ä"))
    assert part.data == "\nwhole ä"
    assert (part.offset, part.end) == (100 + len(rest), 109 + len(rest))
    assert decoded(encode(part) + b"\n", recorded=True) == [part]


def test_a_part_within_one_line_is_empty_and_the_beginning_of_a_log_is_whole() -> None:
    (part,) = decoded(line(t="read", id=1, offset=100, end=100 + len(CANARY), size=999, data=CANARY))
    assert (part.data, part.offset, part.end) == ("", 100 + len(CANARY), 100 + len(CANARY))
    (part,) = decoded(line(t="read", id=1, offset=0, end=9, size=999, data="first\nsec"))
    assert (part.data, part.offset) == ("first\nsec", 0)


@pytest.mark.parametrize("cut", range(len(CANARY)))
def test_a_hit_that_begins_within_a_secret_does_not_show_the_rest_of_it(cut: int) -> None:
    text = CANARY[cut:] + " --tp 2" * 40
    (found,) = decoded(line(t="found", id=1, hits=[[0, text]], done=True))
    assert found.hits[0].text == MASK + " --tp 2" * 40
    assert decoded(encode(found) + b"\n", recorded=True) == [found]


def test_a_hit_that_ends_within_a_secret_does_not_show_its_beginning() -> None:
    (found,) = decoded(line(t="found", id=1, hits=[[0, "[12:00] x" + " --tp 2" * 40 + " hf_ab"]], done=True))
    assert found.hits[0].text.endswith(" --tp 2 hf_" + MASK)


@pytest.mark.parametrize(
    "begins", ["[2026-11-29 16:24:00 TP1] x", "INFO 11-29 16:24:00 x", "WARNING: x", "2026-11-29T16:24:00 x",
               "(EngineCore_DP0 pid=7) x", "  File x", "{'model': 'x'}", '{"level": "x"}']
)  # fmt: skip
def test_what_a_long_line_begins_with_is_shown(begins: str) -> None:
    text = begins + " --tp 2" * 40
    (found,) = decoded(line(t="found", id=1, hits=[[0, text]], done=True))
    assert found.hits[0].text == text


def test_no_secret_is_in_the_excerpt_of_garbage() -> None:
    (detail,) = problems(decoded(f"garbage --api-key {CANARY} {TOKEN}\n".encode()))
    assert CANARY not in detail
    assert TOKEN not in detail
    decoder = Decoder()
    list(decoder.feed(f"motd {TOKEN}\n".encode()))
    assert TOKEN not in str(decoder.preamble)


def test_secrets_in_what_a_run_tells_are_masked() -> None:
    key, token = "sk-abcdefgh12345678", "hf_AbcdefGhijklmnop"
    operator = {"session": "s", "name": f"ann {token}", "machine": token}
    process = {"pid": 1, "start_ticks": 2, "title": f"serve --api-key {key}"}
    recipe = {
        "name": "r", "host": "h", "engine": "sglang", "command": ["serve"], "args": ["--api-key", key],
        "env": {"HF_TOKEN": token},
    }  # fmt: skip
    run = {
        "id": "r", "operator": operator, "began_at": 1.0, "updated_at": 2.0, "argv": ["serve", "--api-key", key],
        "env": {"HF_TOKEN": token, "MODE": "x"}, "detail": f"asked with Bearer {key}", "failure": token, "title": token,
        "steps": [{"step": "stop", "at": 1.0, "detail": token}], "supervisor": process, "old": process, "new": process,
        "leftovers": [{"pid": 3, "title": token}], "cancelled_by": operator, "back": token, "preset": token,
        "supervised": True, "progress": {"more": token}, "recipe": recipe, "back_recipe": recipe, "back_preset": token,
    }  # fmt: skip
    lines = (
        line(t="run", run=run),
        line(t="lease", lease={"holder": operator, "mine": True, "lost_to": operator}),
        line(t="acted", id=1, error=f"--api-key {key}", hint=token),
    )
    events = decoded(*lines)
    assert [type(event) for event in events] == [e.RunChanged, e.LeaseChanged, e.Acted]
    assert not any(secret in repr(events) for secret in (key, token))
    assert events[0].run.argv == ("serve", "--api-key", MASK)
    assert events[0].run.env == {"HF_TOKEN": MASK, "MODE": "x"}
    assert events[0].run.supervised
    assert events[1].lease.mine


def test_a_record_of_a_run_that_is_none_is_a_problem() -> None:
    assert len(problems(decoded(line(t="run", run={"id": "r", "operator": {}})))) == 1


def filled(kind: Any) -> Any:
    """A value of a type with a secret in each of its texts."""
    match kind:
        case inspect.StrType():
            return TOKEN
        case inspect.UnionType():
            return filled(next(each for each in kind.types if not isinstance(each, inspect.NoneType)))
        case inspect.VarTupleType():
            return [filled(kind.item_type)]
        case inspect.DictType():
            return {"PLAIN": filled(kind.value_type)}
        case inspect.StructType():
            return {
                each.encode_name: "/data/toy" if each.encode_name in PATHS else filled(each.type)
                for each in kind.fields
            }
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 1
    raise AssertionError(f"no value is made for {kind}")


@pytest.mark.parametrize(("tag", "name", "kind"), [("run", "run", RunRecord), ("lease", "lease", Lease)])
def test_no_text_of_a_record_is_forgotten(tag: str, name: str, kind: type) -> None:
    planted = json.dumps(filled(inspect.type_info(kind)))
    (event,) = decoded(line(**{"t": tag, name: json.loads(planted)}))
    out = encode(event).decode()
    assert planted.count(TOKEN) > 5
    assert TOKEN not in out
    assert out.count(MASK) == planted.count(TOKEN), "each text stands masked in its place"


def test_a_path_in_which_a_later_start_works_stays_whole() -> None:
    """A folder may be named like a token, and with the mask in its name it is not there."""
    cwd, logs = "/data/sk-experiments", "/data/hf_Downloads"
    recipe = {"name": "r", "host": "h", "engine": "sglang", "command": ["serve"], "cwd": cwd, "log_dir": logs}
    (event,) = decoded(
        line(t="run", run={"id": "r", "operator": {"session": "s", "name": "ann"}, "began_at": 1.0, "updated_at": 2.0,
             "cwd": cwd, "log": f"{logs}/a.log", "failed_log": f"{logs}/b.log", "recipe": recipe, "title": cwd}),
    )  # fmt: skip
    run = event.run
    assert (run.cwd, run.log, run.failed_log) == (cwd, f"{logs}/a.log", f"{logs}/b.log")
    assert (run.recipe.cwd, run.recipe.log_dir) == (cwd, logs)
    assert run.title == f"/data/sk-{MASK}", "what is only shown is masked"
