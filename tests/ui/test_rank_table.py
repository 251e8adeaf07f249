from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import states
from tuner.core import throttle
from tuner.domain.gpu import GpuSample
from tuner.domain.server import Phase
from tuner.domain.state import RankMemory
from tuner.units import GIB, from_gib
from tuner.widgets import notes
from tuner.widgets.glyphs import ASCII, UNICODE
from tuner.widgets.memory_bar import bar, cells_of, scale
from tuner.widgets.rank_table import layout_for, row_line, rows_of, stack, table_lines
from tuner.widgets.spans import text_of, width_of


@given(st.lists(st.integers(0, 100 * GIB), max_size=6), st.integers(GIB, 200 * GIB), st.integers(1, 80))
def test_cells_never_exceed_the_bar(values: list[int], total: int, width: int) -> None:
    cells = cells_of(values, total, width)
    assert sum(cells) <= width
    assert all(count >= 0 for count in cells)
    assert all(value > 0 for value, count in zip(values, cells, strict=True) if count)


def test_a_term_smaller_than_a_cell_keeps_one() -> None:
    assert cells_of([from_gib(72.3), from_gib(10.4), from_gib(2.6), from_gib(1.5)], from_gib(95.6), 28)[2] == 1


@given(st.integers(1, 950), st.integers(0, 900), st.integers(18, 60))
def test_equal_printed_numbers_make_equal_bars(weights: int, kv: int, width: int) -> None:
    total, tenth = from_gib(95.6), GIB // 10
    low, high = ([weights * tenth + by, kv * tenth] for by in (-tenth // 3, tenth // 3))
    assert cells_of(low, total, width) == cells_of(high, total, width)


def test_bar_has_its_width_and_its_signs() -> None:
    terms = (("weights", from_gib(48)), ("kv", from_gib(24)), ("foreign", from_gib(12)))
    line = bar(terms, from_gib(96), 18, UNICODE)
    assert text_of(line) == "▐████████▒▒▒▒  ##▌"
    assert text_of(bar(terms, from_gib(96), 18, ASCII)) == "[WWWWWWWWKKKK  ##]"
    assert text_of(bar((), None, 18, UNICODE)) == "▐memory unknown  ▌"


def test_scale_numbers_stand_over_their_cells() -> None:
    assert scale(from_gib(96), 42).split() == ["0", "24", "48", "72", "96"]
    assert scale(from_gib(95.59), 42).endswith("95.6")
    assert len(scale(from_gib(141.1), 42)) == 42


def test_stack_adds_up_to_what_the_driver_says() -> None:
    memory = RankMemory(weights_bytes=70 * GIB, kv_bytes=10 * GIB, total_bytes=85 * GIB)
    terms = stack(memory, 90 * GIB, 3 * GIB)
    assert sum(value for _, value in terms) == 90 * GIB
    assert dict(terms) == {"weights": 70 * GIB, "kv": 10 * GIB, "other": 7 * GIB, "foreign": 3 * GIB}


def test_other_servers_on_a_gpu_have_a_segment_of_their_own() -> None:
    state = states.shared()
    first, second = state.servers
    rows = rows_of(state, first)
    assert dict(rows[0].terms)["servers"] == from_gib(21.6)
    assert dict(rows[2].terms)["foreign"] == from_gib(2.4)
    assert dict(rows[0].terms)["other"] < 1024, "what is left of it is rounding"
    assert dict(rows_of(state, second)[0].terms)["servers"] == from_gib(43.3)
    for row in rows[:4]:
        assert sum(value for _, value in row.terms) == row.used_bytes
    # Where the driver does not tell processes apart, what is known of the ranks counts.
    assert dict(rows_of(states.REPLACE(state, processes=()), first)[0].terms)["servers"] == from_gib(21.6)
    line = text_of(table_lines(state, first, 112, UNICODE)[4])
    assert re.search(r"▐█+▒+▓+░+ +◇+#▌", line)
    legend = text_of(notes.legend_line(rows, first, 130, UNICODE))
    assert "◇ other servers 21.6" in legend
    narrow = text_of(notes.legend_line(rows, first, 80, UNICODE))
    assert narrow == " █ weights 30.1  ▒ KV 10.4  ▓ graphs 1.3  ░ context 1.5  ◇ other servers 21.6"


def test_no_server_no_segment() -> None:
    state = states.two_servers()
    for server in state.servers:
        assert all("servers" not in dict(row.terms) for row in rows_of(state, server))


def test_old_numbers_of_gpus_are_dim() -> None:
    state = states.serving()
    row = rows_of(state, state.servers[0])[0]
    layout = layout_for([row], 112, UNICODE)
    numbers = row_line(row, layout, UNICODE, old=True)[-len(layout.columns) :]
    assert {style for _, style in numbers} == {"dim"}


def test_missing_is_not_zero() -> None:
    state = states.unknown_numbers()
    lines = [text_of(line) for line in table_lines(state, state.servers[0], 112, UNICODE)]
    blind = next(line for line in lines if line.startswith(" TP0"))
    assert blind.count("n/a") == 6
    lost = next(line for line in lines if line.startswith(" TP6"))
    assert "fell off the bus" in lost
    assert "86.8" not in lost


def test_ranks_come_first_then_gpus_without_one() -> None:
    state = states.two_servers()
    rows = rows_of(state, state.servers[0])
    assert [row.label for row in rows] == ["TP0", "TP1", "TP2", "TP3", "vLLM", "vLLM", "vLLM", "vLLM"]
    assert [row.label for row in rows_of(states.empty(), None)] == ["gpu"] * 8


@pytest.mark.parametrize("name", states.ALL)
@pytest.mark.parametrize("width", [80, 100, 112, 160])
def test_every_line_fits(name: str, width: int) -> None:
    state = states.ALL[name]()
    for glyphs in (UNICODE, ASCII):
        for line in table_lines(state, state.servers[0] if state.servers else None, width, glyphs):
            assert width_of(line) <= width, text_of(line)


def test_columns_of_numbers_are_flush() -> None:
    state = states.serving()
    lines = [text_of(line) for line in table_lines(state, state.servers[0], 112, UNICODE)][2:]
    ends = {line.index("▌") for line in lines}
    assert len(ends) == 1
    for line in lines:
        assert line[ends.copy().pop() + 1 :][:6] in ("  86.8", "  89.2")


def test_throttle_names() -> None:
    assert throttle.reasons(None) == ()
    assert throttle.reasons(0x1) == ("idle",)
    assert throttle.limits(0x1) == ()
    assert throttle.limits(0x4 | 0x20) == ("power cap", "sw thermal")
    assert throttle.limits(0x8 | 0x40) == ("hw thermal",)
    assert throttle.limits(0x8) == ("hw slowdown",)
    assert throttle.reasons(0x1000) == ("reason 0x1000",)
    assert GpuSample(0).throttle_mask is None


@pytest.mark.parametrize(("phase", "shown"), [(Phase.STOPPED, "○ ended"), (Phase.FAILED, "✖ dead")])
def test_ranks_of_a_server_that_was_stopped_are_no_alarm(phase: Phase, shown: str) -> None:
    state = states.serving()
    server = state.servers[0]
    ranks = tuple(states.REPLACE(rank, alive=False) for rank in server.ranks)
    server = states.REPLACE(server, phase=phase, ranks=ranks, gone=True)
    lines = table_lines(states.REPLACE(state, servers=(server,)), server, 160, UNICODE)
    ended = next(line for line in lines if text_of(line).startswith(" TP1"))
    assert text_of(ended).rstrip().endswith(shown)
    assert ("bad" in {style for _, style in ended}) is (phase is Phase.FAILED)


@pytest.mark.parametrize("halted", ["T", "t"])
def test_a_rank_that_a_signal_or_a_debugger_stopped_is_told_with_the_way_out(halted: str) -> None:
    state = states.serving()
    server = state.servers[0]
    pid = server.ranks[1].pid
    members = tuple(
        states.REPLACE(member, state=halted) if member.pid == pid else member for member in server.identity.members
    )
    server = states.REPLACE(server, identity=states.REPLACE(server.identity, members=members))
    state = states.REPLACE(state, servers=(server,))
    (row,) = [line for line in table_lines(state, server, 160, UNICODE) if text_of(line).startswith(" TP1")]
    assert text_of(row).rstrip().endswith("✖ halted")
    told = " ".join(text_of(line) for item in notes.note_items(state, server, 160, UNICODE) for line in item)
    assert f"TP1 was stopped by a signal or a debugger and does nothing; `kill -CONT {pid}`" in told
