"""Text and bytes as the probe takes them apart."""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.probe.agent.arguments import flag_value, masked_argv, masked_env
from tuner.probe.agent.installation import package_version
from tuner.probe.agent.log_scan import line_start, start_of_last, startup_runs
from tuner.probe.agent.old_logs import looks_like_log
from tuner.probe.agent.origin import container_of, unit_of
from tuner.probe.agent.output import bulk, whole_utf8
from tuner.probe.agent.search import HIT_LIMIT, Searches
from tuner.probe.agent.series import SeriesFilter
from tuner.probe.agent.sockets import address_of


@given(st.text(max_size=30), st.integers(0, 40))
def test_a_character_is_never_cut(text: str, cut: int) -> None:
    data = text.encode("utf-8", "replace")
    part = data[:cut]
    whole = part[: whole_utf8(part)]
    assert whole.decode("utf-8")[:1000] is not None
    assert len(part) - len(whole) < 4
    assert not part or len(part) - len(whole) < len(part) or part[0] >= 0xC0


@given(st.binary(max_size=40))
def test_any_bytes_have_a_cut(data: bytes) -> None:
    assert len(data) - 3 <= whole_utf8(data) <= len(data)


@pytest.mark.parametrize("data", [b"\x80\x80\x80\x80\x80", b"\xff", b"a\xf8", b"\x00"])
def test_what_is_no_character_is_not_waited_for(data: bytes) -> None:
    assert whole_utf8(data) == len(data)


def test_bulk_is_packed_when_long() -> None:
    assert bulk(b"short \xff") == {"data": "short \ufffd"}
    long = b"line \xe2\x82\xac\n" * 1000
    packed = bulk(long)
    assert zlib.decompress(base64.b64decode(packed["z"])) == long


def test_secrets_of_an_environment() -> None:
    env = {
        "HF_TOKEN": "hf_x",
        "AWS_SECRET_ACCESS_KEY": "s",
        "TOY_KEY": "k",
        "MAX_TOKENS": "80",
        "TOKENIZERS_PARALLELISM": "1",
    }
    assert masked_env(env) == {**env, "HF_TOKEN": "***", "AWS_SECRET_ACCESS_KEY": "***", "TOY_KEY": "***"}
    assert masked_env({"ODD": "x"}, ["ODD"]) == {"ODD": "***"}


def test_secrets_of_a_command_line() -> None:
    argv = [
        "x",
        "--api-key",
        "k1",
        "k2",
        "--max-total-tokens",
        "5",
        "--hf-token=t",
        "--tokenizer",
        "/t",
        "--admin-api-key=a",
    ]
    masked = ["x", "--api-key", "***", "***", "--max-total-tokens", "5", "--hf-token=***", "--tokenizer", "/t"]
    assert masked_argv(argv) == [*masked, "--admin-api-key=***"]
    assert masked_argv(["--odd", "x"], ["--odd"]) == ["--odd", "***"]


def test_the_last_flag_wins() -> None:
    assert flag_value(["--port", "1", "--port=2"], ["--port"]) == "2"
    assert flag_value(["--ports", "1"], ["--port"]) is None
    assert flag_value(["--port"], ["--port"]) is None


MARKERS = [b"begin", b"load"]


def test_start_up_lines_keep_their_offsets() -> None:
    data = b"noise\nbegin 1\nload 2\n" + b"x" * 400 + b"\nload 3\nready\nload after\n"
    runs, ended = startup_runs(data, 1000, MARKERS, b"ready")
    assert ended
    assert [text for _, text in runs] == [b"begin 1\nload 2\n", b"load 3\nready\n"]
    assert all(data[offset - 1000 :].startswith(text) for offset, text in runs)


def test_lines_with_little_between_are_one_run() -> None:
    data = b"begin\nshort\nload\n"
    assert startup_runs(data, 0, MARKERS, b"") == ([(0, data)], False)


@given(st.lists(st.sampled_from([b"begin", b"load x", b"", b"noise" * 80, b"ready", b"\xff\x00"]), max_size=30))
def test_runs_are_parts_of_the_block_in_order(lines: list[bytes]) -> None:
    data = b"\n".join(lines)
    runs, ended = startup_runs(data, 0, MARKERS, b"ready")
    assert ended == (b"ready" in data)
    at = -1
    for offset, text in runs:
        assert offset > at
        assert data[offset : offset + len(text)] == text
        at = offset + len(text) - 1
    kept = b"".join(text for _, text in runs)
    before = data.partition(b"ready")[0]
    assert kept.count(b"begin") == before.count(b"begin")


def test_the_last_start_of_a_reused_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = b"begin old\n" + b"noise\n" * 200_000
    path.write_bytes(first + b"[ts] begin new\n" + b"noise\n" * 900_000)
    fd = os.open(path, os.O_RDONLY)
    try:
        size = path.stat().st_size
        assert start_of_last(fd, size, b"begin", 5.0) == len(first)
        assert start_of_last(fd, size, b"absent", 5.0) == 0
        assert start_of_last(fd, size, b"begin old", 0.0) == 0
    finally:
        os.close(fd)


def test_a_tail_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\nthree\n" + "€".encode() * 10)
    fd = os.open(path, os.O_RDONLY)
    try:
        size = path.stat().st_size
        assert [line_start(fd, at, size) for at in (0, 1, 4, 5, 8)] == [0, 4, 4, 8, 8]
        assert line_start(fd, 16, size) == 17
    finally:
        os.close(fd)


METRICS = b"""# HELP toy:running Requests.
# TYPE toy:running gauge
toy:running{rank="0"} 3.0
toy:running{rank="1"} NaN
toy:running_total{rank="0"} 7
toy:up 1
toy:stamped{a="b c"} 5 1700000000
toy:bucket{le="+Inf"} 12
"""


def test_only_wanted_series_that_changed() -> None:
    series = SeriesFilter(["toy:running", "toy:up", "toy:stamped"])
    first = series.changed(METRICS)
    assert first == {'toy:running{rank="0"}': 3.0, "toy:up": 1.0, 'toy:stamped{a="b c"}': 5.0}
    assert series.changed(METRICS) == {}
    assert series.changed(METRICS.replace(b"up 1", b"up 0")) == {"toy:up": 0.0}
    assert series.changed(METRICS.replace(b"NaN", b"4")) == {'toy:running{rank="1"}': 4.0, "toy:up": 1.0}


def test_series_are_found_again_when_lines_move() -> None:
    series = SeriesFilter(["toy:up", "toy:new"])
    assert series.changed(b"toy:a 1\ntoy:up 1\n") == {"toy:up": 1.0}
    assert series.changed(b"toy:up 2\ntoy:a 1\n") == {"toy:up": 2.0}
    assert series.changed(b"toy:up 2\ntoy:new 1\ntoy:a 1\n") == {"toy:new": 1.0}
    assert series.changed(b"") == {"toy:up": None, "toy:new": None}


def test_a_series_without_a_value_is_taken_back_once() -> None:
    series = SeriesFilter(["toy:up", "toy:load"])
    assert series.changed(b"toy:up 1\ntoy:load 2\n") == {"toy:up": 1.0, "toy:load": 2.0}
    assert series.changed(b"toy:up NaN\ntoy:load 2\n") == {"toy:up": None}
    assert series.changed(b"toy:up NaN\ntoy:load +Inf\n") == {"toy:load": None}
    assert series.changed(b"toy:up nonsense\ntoy:load 2\n") == {"toy:load": 2.0}
    assert series.changed(b"toy:up 1\n") == {"toy:up": 1.0, "toy:load": None}
    assert series.changed(b"<html>busy</html>") is None
    assert series.changed(b"toy:up 1\n") == {}
    assert series.changed(b"# nothing left\n") == {"toy:up": None}
    assert series.changed(b"toy:up 1\n") == {"toy:up": 1.0}


LONG = b"a" * 1000 + b" secret" + b"s" * 1000 + b"hit " + b"b" * 3000


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        (b"word " * 100 + b"hit", "word word"),
        (b"word " * 500 + b"hit", "word word"),
        (LONG, "secretsss"),
        (b"x" * 5000 + b"hit", "xxx"),
    ],
    ids=["short", "long", "long word", "one word"],
)
def test_a_hit_begins_with_its_line_or_with_a_word(line: bytes, begins: str) -> None:
    block = b"before\n" + line + b"\nafter\n"
    offset, text = Searches._hit(500, block, False, 7, 7 + len(line), block.find(b"hit"))
    assert offset == 507
    assert text.startswith(begins)
    assert len(text) <= HIT_LIMIT


def test_a_piece_of_a_line_begins_with_a_word_too() -> None:
    block = b"cret --model hit\n"
    assert Searches._hit(0, block, False, 0, 16, 13)[1] == "cret --model hit"
    assert Searches._hit(500, block, True, 0, 16, 13)[1] == "--model hit"
    assert Searches._hit(500, b"crethit\n", True, 0, 7, 4)[1] == ""


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"{}", b"\xff\x00"])
def test_what_is_no_metrics(body: bytes) -> None:
    assert SeriesFilter(["toy:up"]).changed(body) is None


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        ("server.log", True),
        ("server-2.out", True),
        ("server.log.1", True),
        ("server.log-20260101", True),
        ("notes.txt", True),
        ("run.serve", True),
        ("model.safetensors", False),
        ("README", False),
        ("server.log.gz", False),
    ],
)
def test_names_of_older_logs(name: str, is_log: bool) -> None:
    assert looks_like_log(name, "current.serve") is is_log


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "0.0.0.0"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
        ("0" * 32, "::"),
    ],
)
def test_addresses_of_the_socket_table(text: str, address: str) -> None:
    assert address_of(text) == address


ID = "ab12" * 16


@pytest.mark.parametrize(
    ("path", "container", "unit"),
    [
        (f"/docker/{ID}", ("docker", ID), None),
        (f"/system.slice/docker-{ID}.scope", ("docker", ID), None),
        (f"/machine.slice/libpod-{ID}.scope/container", ("podman", ID), None),
        (f"/kubepods.slice/kubepods-besteffort.slice/cri-containerd-{ID}.scope", ("kubernetes", ID), None),
        ("/system.slice/llm.service", None, ("llm.service", False)),
        ("/system.slice/llm.service/payload", None, ("llm.service", False)),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service", None, ("llm.service", True)),
        ("/user.slice/user-1000.slice/session-3.scope", None, None),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope", None, None),
        ("/system.slice/ssh.service", None, None),
        ("/", None, None),
    ],
)
def test_control_groups(path: str, container: object, unit: object) -> None:
    assert container_of([path]) == container
    if container is None:
        assert unit_of([path]) == unit


def test_a_version_from_metadata(tmp_path: Path) -> None:
    (tmp_path / "toy_llm-1.0.dist-info").mkdir()
    (tmp_path / "toy_llm_extras-2.0.dist-info").mkdir()
    assert package_version([str(tmp_path)], "toy-llm") == "1.0"
    (tmp_path / "toy_llm-1.0.dist-info/METADATA").write_text("Name: toy-llm\nVersion: 1.0+cu130\n")
    assert package_version([str(tmp_path)], "toy-llm") == "1.0+cu130"
    assert package_version([str(tmp_path)], "toy") is None
