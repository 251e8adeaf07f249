from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.domain.link import Target
from tuner.errors import UsageProblem
from tuner.session.targets import parse, replay


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("root@gpu-1", "root", "gpu-1", None),
        ("gpu-1", None, "gpu-1", None),
        ("alice@10.0.0.7:2222", "alice", "10.0.0.7", 2222),
        ("[::1]:22", None, "::1", 22),
        ("root@[fe80::1%eth0]:2200", "root", "fe80::1%eth0", 2200),
        ("::1", None, "::1", None),
        ("2001:db8::5", None, "2001:db8::5", None),
        ("ssh://root@host:1/", "root", "host", 1),
        ("first.last@box_2.example.org", "first.last", "box_2.example.org", None),
    ],
)
def test_hosts(text: str, user: str | None, host: str, port: int | None) -> None:
    assert parse(text) == Target(name=text, scheme="ssh", host=host, user=user, port=port)


def test_this_machine() -> None:
    assert parse("local").scheme == "local"


def test_a_recording() -> None:
    assert replay(Path("/x/a.ndjson"), 10) == Target(
        name="a.ndjson", scheme="replay", host="/x/a.ndjson", options={"speed": "10"}
    )


@pytest.mark.parametrize(
    "text",
    ["", " ", "a b", "-oProxyCommand=x", "root@", "@host", "host:0", "host:65536", "host:x", "a@-b", "-u@host",
     "[::1", "h;rm", "$(x)", "a\nb", "host/path", "[nonsense]:22", "ho st:22"],
)  # fmt: skip
def test_what_is_no_host_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        parse(text)
    assert "\n" not in str(refused.value)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_any_text_is_a_host_or_refused(text: str) -> None:
    try:
        target = parse(text)
    except UsageProblem:
        return
    assert target.host
    assert not target.host.startswith("-")
    assert not set(target.host) & set(" \t\n;|&$`'\"<>(){}\\*?!~")
