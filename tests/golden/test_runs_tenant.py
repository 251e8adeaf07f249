"""Changes of a real server beside another user's process on the same GPUs, as its host wrote them down.

Two H200, SGLang 0.5.16, a Llama of 68e9 parameters with dummy weights at --tp 2. `real/INDEX.md` says what was done.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.units import GIB

HOST = Path(__file__).parent / "runs/sglang-0.5.16-2xH200-tenant"
SWITCH, BACK, STOP = "20261130-152241-3d1f5a00", "20261130-152530-fcd02d7d", "20261130-152719-8cd96ee7"
FOREIGN = {2134, 3217}
"""Two processes of user 65534 that held 0.5 GiB of the first and 3.6 GiB of the second GPU each, all the time."""
LOOK_ALIKE = 2446
"""`python3 -c "..." -m sglang.launch_server --port 30000`, which is no server."""


def state(run: str) -> dict[str, Any]:
    return dict(json.loads((HOST / "runs" / run / "state.json").read_text()))


def step(run: str, name: str) -> dict[str, Any]:
    return dict(next(each for each in state(run)["steps"] if each["step"] == name))


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_drain_ends_with_the_last_request_and_needs_no_kill() -> None:
    stop = step(SWITCH, "stop")
    assert stop["detail"] == "all 5 processes have ended, after SIGTERM"
    assert not stop.get("unclean")
    assert 9 < stop["ended"] - stop["at"] < 12, "of the 60 s that the 16 requests in flight had"


@pytest.mark.parametrize(("run", "held_gib"), [(SWITCH, 114.9), (STOP, 111.7)])
def test_the_memory_of_the_server_came_back_and_the_tenants_stayed(run: str, held_gib: float) -> None:
    memory = state(run)["memory"]
    assert [round(each["held_bytes"] / GIB, 1) for each in memory] == [held_gib, held_gib]
    for each in memory:
        more = each["before_bytes"] - each["after_bytes"] - each["held_bytes"]
        assert 0 <= more < 16 * 1024 * 1024, "what the driver itself held for it"
    assert [round(each["after_bytes"] / GIB, 1) for each in memory] == [1.0, 7.2], "theirs, with what the driver needs"


def test_only_the_servers_own_processes_were_signalled() -> None:
    audited = [each for each in entries(HOST / "audit.ndjson") if each.get("act") == "signal"]
    assert [(each["signal"], each["pid"]) for each in audited] == [("TERM", 2443), ("TERM", 4117)]
    for run in (SWITCH, BACK, STOP):
        journal = (each for each in entries(HOST / "runs" / run / "journal.ndjson") if "pid" in each)
        assert not {each["pid"] for each in journal} & {*FOREIGN, LOOK_ALIKE}


def test_after_a_rank_was_killed_back_starts_what_ran_before() -> None:
    assert state(SWITCH)["exit_code"] == -9, "SGLang ends its leader when a rank has died"
    went_back = state(BACK)
    assert (went_back["outcome"], went_back["title"]) == ("ready", "the server as it was (pid 2443)")
    assert "--disable-custom-all-reduce" in went_back["argv"]
    assert "--disable-custom-all-reduce" not in state(SWITCH)["argv"]


def test_the_key_is_in_nothing_that_was_written() -> None:
    written = [path.read_text() for path in HOST.rglob("*") if path.is_file()]
    assert len(written) > 8
    assert not [text for text in written if "plantedsecret" in text]
