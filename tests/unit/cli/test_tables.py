from __future__ import annotations

import msgspec

from tests.unit.core.test_explaining import CORPUS, live
from tests.unit.core.test_snapshot import busy
from tuner.cli.tables import lines, plain, table
from tuner.core.snapshot import snapshot
from tuner.domain.events import GpuTable, ProbeHello, ProblemSeen
from tuner.domain.state import HostState


def text(state: HostState) -> str:
    return "\n".join(lines(snapshot(state)))


def test_a_reading_says_what_is_there() -> None:
    shown = text(busy())
    for words in ("root@box", "2x H200", "READY", "TP0", "tok/s 0.0", "alice", "log-denied", "boom"):
        assert words in shown, shown


def test_a_failure_is_told_with_its_cause_and_what_to_do_first() -> None:
    shown = list(lines(snapshot(live((CORPUS / "seed-3-custom-ar-055.log").read_text()).state)))
    head = shown.index("  fatal in kv-alloc  mem-fraction-too-low  all 8 ranks  high confidence")
    assert shown[head + 1] == "    No room is left for the KV pool"
    assert shown[head + 2].startswith("    do raise --mem-fraction-static to 0.")


def test_a_problem_of_a_server_names_its_pid() -> None:
    problem = ProblemSeen(code="log-pipe", subject="6748:1273740", detail="a pipe")
    assert "  log-pipe  pid 6748  a pipe" in text(msgspec.structs.replace(busy(), problems=(problem,)))


def test_unknown_is_a_dash_and_never_zero() -> None:
    rows = [line.split() for line in text(busy()).splitlines()]
    gpu = next(row for row in rows if row[0] == "1")
    assert set(gpu[1:]) == {"-"}
    assert "running -" in text(busy())


def test_a_host_without_anything_says_so() -> None:
    hello = ProbeHello(protocol=1, python="3.11", pid=1, uid=0, hostname="box", at=0.0)
    shown = text(HostState(name="box", now=0.0, hello=hello, gpu_table=GpuTable(), scanned=True))
    assert "no GPU" in shown
    assert "no server runs here" in shown


def test_what_was_not_told_is_named_and_is_not_called_absent() -> None:
    shown = text(HostState(name="box", now=0.0))
    assert shown.endswith("not told in time: the GPUs, the servers")
    assert "no GPU" not in shown
    assert "no server" not in shown


def test_what_was_not_told_of_a_server_names_its_engine_and_pid() -> None:
    reading = snapshot(busy()) | {"missing": [{"what": "samples", "pid": None}, {"what": "speed", "pid": 7}]}
    assert list(lines(reading))[-1] == "not told in time: the readings of the GPUs, the speed of sglang (pid 7)"


def test_text_of_the_host_cannot_move_the_cursor() -> None:
    assert plain("a\x1b[2Jb\rc\nd\x07") == "ab·c d·"
    assert "\x1b" not in plain("\x9b31m\x1b]0;title\x07x")
    assert plain("x" * 100, 10) == "xxxxxxx..."
    assert plain(None) == plain("") == "-"
    assert plain(0) == "0"


def test_the_table_of_gpus_fits_80_columns() -> None:
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    gpu = {
        "index": 7, "name": name, "error": None, "memory_used_bytes": 90 << 30, "memory_total_bytes": 96 << 30,
        "utilization_ratio": 1.0, "power_w": 600.0, "power_limit_w": 600.0, "temperature_c": 88, "sm_mhz": 2402,
    }  # fmt: skip
    reading = snapshot(busy()) | {"gpus": [gpu, gpu | {"index": 6}], "servers": [], "missing": []}
    assert f"2x {name}" in next(iter(lines(reading)))
    rows = [line for line in lines(reading) if line.startswith("  ")][:3]
    assert max(map(len, rows)) < 80
    assert not any("RTX" in row for row in rows), "the headline names them"
    other = gpu | {"index": 6, "name": "NVIDIA H200", "error": "GPU is lost"}
    rows = [line for line in lines(reading | {"gpus": [gpu, other]}) if line.startswith("  ")][:4]
    assert max(map(len, rows)) < 80
    assert ["RTX PRO" in rows[1], "NVIDIA H200" in rows[2], rows[3]] == [True, True, "  gpu 6: GPU is lost"]


def test_columns_stand_under_their_heads() -> None:
    rows = list(table(("gpu", "name", "W"), [(0, "a", 1), (11, "bbbbb", 1000)]))
    assert rows == ["  gpu  name      W", "    0  a         1", "   11  bbbbb  1000"]
    assert list(table(("gpu",), [])) == ["  gpu"]
