from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.support import states
from tests.support.sessions import FakeSession, settled
from tuner.domain.events import CheckResult
from tuner.screens.sections import Section, argv_lines, broken, pieces
from tuner.widgets.rows import Rows
from tuner.widgets.spans import text_of

AppOn = Callable[..., tuple[Any, list[FakeSession]]]


def test_a_flag_stands_with_its_value() -> None:
    argv = ("python", "-m", "sglang.launch_server", "--tp", "8", "--enable-metrics", "--host", "0.0.0.0", "extra")
    assert argv_lines(argv) == [
        "python", "-m sglang.launch_server", "--tp 8", "--enable-metrics", "--host 0.0.0.0", "extra",
    ]  # fmt: skip


async def test_shows_what_is_known_and_finds_in_it(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        text = app.screen.query_one("#details", Rows).text
        for part in ("--mem-fraction-static 0.88", "NCCL_MAX_NCHANNELS", "sglang::scheduler_TP7", "PIX", "580.95.05"):
            assert part in text
        assert "HF_TOKEN                   ***" in text
        await pilot.press("slash", *"nchannels", "enter")
        await pilot.pause()
        lines = [line for line in app.screen.query_one("#details", Rows).text.splitlines() if line.strip()]
        assert [line.split() for line in lines] == [["environment"], ["NCCL_MAX_NCHANNELS", "16"]]
        await pilot.press("escape")
        await pilot.pause()
        assert "PIX" in app.screen.query_one("#details", Rows).text


async def test_what_the_host_does_and_what_its_gpus_are(app_on: AppOn) -> None:
    base = states.serving()
    table = base.gpu_table
    assert table is not None
    split = states.REPLACE(table.gpus[0], compute_capability="9.0", mig=True)
    gpus = (split, states.REPLACE(table.gpus[1], compute_capability=None), *table.gpus[2:])
    app, _ = app_on(states.REPLACE(base, gpu_table=states.REPLACE(table, gpus=gpus)))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        text = app.screen.query_one("#details", Rows).text
        lines = [line.split() for line in text.splitlines()]
        assert ["CPU", "use", "11%"] in lines
        assert ["load,", "1", "min", "9.2"] in lines
        assert "  CC 9.0  MIG  PCIe" in text
        assert "  CC n/a  PCIe" in text
        assert text.count("  CC 12.0  PCIe") == 6


async def test_which_all_reduce_runs_and_why(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i", "slash", *"all-reduce", "enter")
        await pilot.pause()
        lines = app.screen.query_one("#details", Rows).text.splitlines()
        assert lines[0].strip() == "all-reduce"
        assert lines[1].strip() == "8 ranks: NCCL for every tensor"
        (way,) = (line for line in lines if "custom all-reduce v1" in line)
        assert way.endswith("off: NODE, PIX, SYS between the GPUs, not NVLink between every two of more than two GPUs")
        assert any("2, 4, 6 or 8 ranks (8 ranks)" in line for line in lines)


async def test_headings_are_jumped_to_and_found(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        box, rows = app.screen.query_one("#details-box"), app.screen.query_one("#details", Rows)
        heads: list[str] = []
        for key in ("n", "n", "p"):
            await pilot.press(key)
            await pilot.pause()
            heads.append(rows.text.splitlines()[round(box.scroll_y)])
        titles = [line for line in rows.text.splitlines() if line.startswith(" ") and not line.startswith("  ")]
        assert set(heads) < set(titles)
        assert heads[0] == heads[2] != heads[1]
        await pilot.press("slash", *"topology")
        await pilot.pause()
        assert "PIX" in rows.text
        assert "HF_TOKEN" not in rows.text


def test_a_long_name_does_not_move_its_value() -> None:
    section = Section("settings")
    section.pair("enable_flashinfer_allreduce_fusion", "x" * 60)
    section.pair("tp_size", 8)
    lines = [text_of(part) for line in section.lines for part in broken(line, 80)]
    assert lines[0].strip() == "enable_flashinfer_allreduce_fusion"
    assert {line.index(word) for line, word in zip(lines[1:], ("x", "x", "8"), strict=True)} == {30}


def test_long_values_break_between_words_and_lose_nothing() -> None:
    words = "phase evidence made of words, and of a/very/long/path/that/no/space/breaks/anywhere/at/all and more"
    found = pieces(words, 24)
    assert "".join(found) == words
    assert all(len(piece) <= 24 for piece in found)
    assert found[:2] == ["phase evidence made of ", "words, and of "]
    wide = pieces("権" * 30, 24)
    assert [len(piece) for piece in wide] == [12, 12, 6]


async def test_the_port_of_the_server_stands_before_those_of_its_ranks(app_on: AppOn) -> None:
    state = states.serving()
    server = state.servers[0]
    identity = states.REPLACE(server.identity, port=30000, ports=(25695, 30000, *range(40000, 40032)))
    app, _ = app_on(states.REPLACE(state, servers=(states.REPLACE(server, identity=identity),)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        lines = app.screen.query_one("#details", Rows).text.splitlines()
        assert ["port", "30000"] in [line.split() for line in lines]
        assert any(line.split()[-3:] == ["and", "25", "more"] for line in lines)


async def test_what_a_dead_rank_held_is_told(app_on: AppOn) -> None:
    state = states.killed()
    server = state.servers[0]
    ranks = tuple(states.REPLACE(rank, last_memory=states.memory()) for rank in server.ranks)
    app, _ = app_on(states.REPLACE(state, servers=(states.REPLACE(server, ranks=ranks),)))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        lines = app.screen.query_one("#details", Rows).text.splitlines()
        (row,) = [line for line in lines if line.split()[:1] == ["TP3"]]
        assert "72.3" in row
        assert row.rstrip().endswith("before it ended")


async def test_asks_the_host_for_its_checks_and_shows_what_they_mean(app_on: AppOn) -> None:
    facts = {
        "shm": {"ok": False, "value": [64 << 20, 64 << 20]},
        "python": {"ok": True, "value": "3.10.12", "detail": "/usr/bin/python3"},
        "time": {"value": time.time() + 3600},
    }
    app, _ = app_on(FakeSession(states.serving(), checks=facts))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i", "c")
        await pilot.pause()
        await pilot.pause()
        box, rows = app.screen.query_one("#details-box"), app.screen.query_one("#details", Rows)
        lines = rows.text.splitlines()
        assert " checks" in lines[round(box.scroll_y) : round(box.scroll_y) + box.size.height], "scrolled into view"
        (shm,) = [line for line in lines if line.split()[:1] == ["shm"]]
        assert shm.split()[1] == "▲"
        assert "ranks exchange data there" in shm
        assert any(line.split()[:3] == ["python", "✔", "3.10.12"] for line in lines)
        assert any(line.split()[:2] == ["clock", "▲"] for line in lines)


async def test_that_the_host_is_asked_stands_in_the_section_and_covers_nothing(app_on: AppOn) -> None:
    session = FakeSession(states.serving())
    answer = asyncio.Event()

    async def checks() -> CheckResult:
        await answer.wait()
        return CheckResult(id=1, checks={"python": {"ok": True, "value": "3.10.12"}})

    session.checks = checks  # type: ignore[method-assign]
    app, _ = app_on(session)
    async with app.run_test(size=(160, 48), notifications=True) as pilot:
        await pilot.press("i", "c")
        await pilot.pause()
        rows = app.screen.query_one("#details", Rows)
        assert "the host is being asked" in rows.text
        answer.set()
        await settled(pilot)
        assert "the host is being asked" not in rows.text
        assert "3.10.12" in rows.text
        assert not list(app._notifications), "no toast lies over the rows"


async def test_a_server_that_died_stays_described(app_on: AppOn) -> None:
    app, _ = app_on(states.failed())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        text = app.screen.query_one("#details", Rows).text
        assert "48211 of root (gone)" in text
        assert "--mem-fraction-static 0.88" in text
        assert "FAILED while allocating KV" in text


async def test_environment_that_may_not_be_read_says_so(app_on: AppOn) -> None:
    state = states.serving()
    identity = states.REPLACE(state.servers[0].identity, env=None)
    app, _ = app_on(states.REPLACE(state, servers=(states.REPLACE(state.servers[0], identity=identity),)))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        assert "environment: permission denied" in app.screen.query_one("#details", Rows).text


async def test_where_memory_comes_from_is_said_in_words(app_on: AppOn) -> None:
    app, _ = app_on(states.shared())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        text = app.screen.query_one("#details", Rows).text
        assert "the server, its log, the driver" in text
        assert "+nvml" not in text
