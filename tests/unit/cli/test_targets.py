from __future__ import annotations

import pytest

from tuner.cli.targets import drain_seconds, parse, seconds
from tuner.domain.runs import MOST_DRAIN_S, LaunchOrder
from tuner.errors import UsageProblem


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("gpu-box-1", None, "gpu-box-1", None),
        ("root@gpu-box-1", "root", "gpu-box-1", None),
        ("root@gpu-box-1:2222", "root", "gpu-box-1", 2222),
        ("10.0.0.7:22", None, "10.0.0.7", 22),
        ("ssh://alice@box.example:2222", "alice", "box.example", 2222),
        ("[fe80::1%eth0]:2222", None, "fe80::1%eth0", 2222),
        ("root@[::1]", "root", "::1", None),
        ("fe80::1", None, "fe80::1", None),
        ("under_score", None, "under_score", None),
    ],
)
def test_a_host_is_read_in_all_its_forms(text: str, user: str | None, host: str, port: int | None) -> None:
    target = parse(text)
    assert (target.scheme, target.user, target.host, target.port) == ("ssh", user, host, port)
    assert target.name == text


def test_some_names_are_no_hosts() -> None:
    assert parse("local").scheme == "local"
    assert parse("demo").scheme == "demo"
    assert parse("root@demo").scheme == "ssh"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-oProxyCommand=touch x",
        "a b",
        "root@",
        "host:",
        "host:0",
        "host:99999",
        "host:abc",
        "a\nb",
        "x;y",
        "u@v@w",
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        parse(text)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2 h", 7200), ("3min", 180)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "0s", "-5s", "5d", "nan", "1e3", "inf"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(UsageProblem):
        seconds(text)


def test_a_stop_does_not_wait_longer_than_a_start_may_take() -> None:
    assert drain_seconds("60s") == 60
    assert drain_seconds("1h") == MOST_DRAIN_S == LaunchOrder().deadline_s
    for text in ("3601s", "30h", "9" * 400):
        with pytest.raises(
            UsageProblem, match=r"^Too long: .* A stop waits at most 1h00m: what is not done by then is cut$"
        ):
            drain_seconds(text)
