"""Matching of log formats, without any engine."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.core.formats import FormatSet, LogFormat, cast_of
from tuner.core.literals import parse_settings


def _format(**changes: Any) -> LogFormat:
    values: dict[str, Any] = {"id": "f", "kind": "graphs", "contains": ("graph",), "pattern": "graph end"}
    return LogFormat(**{**values, **changes})


def test_parts_are_found_in_any_order_and_may_be_missing() -> None:
    parts = (r"mem usage=(?P<used_gib>[\d.]+)", r"avail mem=(?P<available_gib>[\d.]+)")
    one = _format(parts=parts)
    assert one.match("graph end. mem usage=1.20 GB. avail mem=5.00 GB.", True) == {
        "used_gib": 1.2,
        "available_gib": 5.0,
    }
    assert one.match("graph end. avail mem=5.00 GB. mem usage=1.20 GB.", True) == {
        "used_gib": 1.2,
        "available_gib": 5.0,
    }
    assert one.match("graph end. 9 s", True) == {}
    assert one.match("a graph end", True) is None


def test_groups_that_share_a_name_are_added() -> None:
    one = _format(pattern=r"graph K (?P<kv_gib__k>[\d.]+) V (?P<kv_gib__v>[\d.]+)")
    assert one.match("graph K 26.60 V 26.60", True) == {"kv_gib": 53.2}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("tokens", "2,207,968", 2207968),
        ("available_gib", "9.27", 9.27),
        ("elapsed_s", "21", 21.0),
        ("cuda_graph", "True", True),
        ("cuda_graph", "False", False),
        ("cache_hit", "41.7", 0.417),
        ("summary", "12", "12"),
    ],
)
def test_fields_are_cast_by_name(name: str, text: str, value: object) -> None:
    one = _format(pattern=f"graph (?P<{name}>\\S+)")
    assert one.match(f"graph {text}", True) == {name: value}


def test_a_field_may_have_another_type() -> None:
    one = _format(pattern=r"graph (?P<elapsed_s>\S+)", types={"elapsed_s": "clock"})
    assert one.match("graph 1:02:03", True) == {"elapsed_s": 3723.0}


def test_a_value_that_does_not_read_is_left_out() -> None:
    one = _format(pattern=r"graph (?P<tokens>\S+) (?P<used_gib>\S+)")
    assert one.match("graph None 1.5", True) == {"used_gib": 1.5}


def test_constants_are_in_every_match() -> None:
    assert _format(constants={"phase": "graph-capture"}).match("graph end", True) == {"phase": "graph-capture"}


@pytest.mark.parametrize(
    ("raw", "prefixed", "found"),
    [
        (None, True, True),
        (None, False, True),
        (True, True, False),
        (True, False, True),
        (False, True, True),
        (False, False, False),
    ],
)
def test_raw_limits_a_format_to_lines_with_or_without_prefix(raw: bool | None, prefixed: bool, found: bool) -> None:
    assert (_format(raw=raw).match("graph end", prefixed) is not None) is found


def test_a_set_tries_only_formats_whose_substring_is_there() -> None:
    formats = FormatSet([_format(), _format(id="g", contains=("tree",), pattern="graph")])
    hit = formats.first("graph end")
    assert hit is not None
    assert hit[0].id == "f"
    assert formats.first("graph begin") is None
    assert formats.interesting("a tree")
    assert not formats.interesting("a bush")
    assert [f.id for f, _ in formats.all("graph end in a tree")] == ["f", "g"]


def test_a_message_may_be_chosen_by_its_beginning() -> None:
    formats = FormatSet(
        [_format(contains=(), starts=("graph e", "tree")), _format(id="g", contains=(), starts=("graph b",))]
    )
    assert formats.interesting("[x] graph b", 4)
    assert not formats.interesting("[x] graph b")
    hit = formats.first("graph end")
    assert hit is not None
    assert hit[0].id == "f"
    assert formats.first("a graph end") is None
    assert [f.id for f, _ in formats.all("graph end")] == ["f"]


@pytest.mark.parametrize(("name", "text"), [("tokens", "9" * 30), ("used_gib", "9" * 400), ("used_gib", "nan")])
def test_numbers_beyond_reason_are_left_out(name: str, text: str) -> None:
    assert _format(pattern=f"graph (?P<{name}>\\S+)").match(f"graph {text}", True) == {}


def test_names_without_a_rule_are_text() -> None:
    assert cast_of("what") == "str"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("ServerArgs(a=1, b='x, y', c=[1, 2], d=None)", {"a": 1, "b": "x, y", "c": [1, 2], "d": None}),
        ("{'a': 1, 'b': {'c': (1, 'z')}, 'd': True}", {"a": 1, "b": {"c": (1, "z")}, "d": True}),
        ("model='./m', dtype=torch.bfloat16, n=2", {"model": "./m", "dtype": "torch.bfloat16", "n": 2}),
        ("ServerArgs(a='it\\'s', b=\"q)\")", {"a": "it's", "b": "q)"}),
        ("ServerArgs(a=<Enum.X: 1>, b=f(1, 2))", {"a": "<Enum.X: 1>", "b": "f(1, 2)"}),
        ("ServerArgs(a=1, b='torn in the mid", {"a": 1}),
        ("ServerArgs(a=1, b=[1, 2", {"a": 1}),
        ("{}", {}),
        ("ServerArgs()", {}),
        ("", {}),
        ("no settings here", {}),
    ],
)
def test_settings_are_read_out_of_any_repr(text: str, settings: dict[str, Any]) -> None:
    assert parse_settings(text) == settings


def test_secrets_are_masked_and_lookalikes_are_not() -> None:
    masked = parse_settings(
        "ServerArgs(api_key='sk', admin_api_key=['a'], ssl_keyfile_password='p', hf_token='h', tokenizer_path='/m', "
        "max_total_tokens=7, api_key_file=None)"
    )
    assert masked == {
        "api_key": "***", "admin_api_key": "***", "ssl_keyfile_password": "***", "hf_token": "***",
        "tokenizer_path": "/m", "max_total_tokens": 7, "api_key_file": None,
    }  # fmt: skip
