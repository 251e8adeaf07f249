"""Two starts side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from textual.widgets import OptionList

from tests.support import explained, states
from tests.support.golden_starts import last_start
from tests.support.sessions import FakeSession, settled, shelf
from tuner.core.compare import compare
from tuner.domain.comparison import Comparison, Difference, Group, Origin, Role
from tuner.domain.starts import Figure, Start
from tuner.domain.state import HostState
from tuner.engines import load_engines
from tuner.screens.compare import StartDialog
from tuner.widgets.comparison_text import told
from tuner.widgets.glyphs import ASCII, UNICODE
from tuner.widgets.keybar import KeyBar
from tuner.widgets.rows import Rows
from tuner.widgets.spans import text_of, width_of

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
NARROW, WIDE = (80, 24), (160, 48)


def case() -> Comparison:
    return compare(explained.good_start(), explained.failed_start(), load_engines()["sglang"], (explained.too_low(),))


def text(comparison: Comparison, width: int = 120, **more: Any) -> str:
    return "\n".join(
        text_of(line).rstrip() for line in told(comparison, ("before", "now"), width, UNICODE, **more).lines
    )


def with_past(state: HostState, *past: Start) -> HostState:
    return states.REPLACE(state, servers=(states.REPLACE(state.servers[0], past=past), *state.servers[1:]))


def shown(app: Any) -> str:
    return app.screen.query_one("#comparison", Rows).text


def test_what_explains_the_outcome_stands_on_top() -> None:
    lines = text(case()).splitlines()
    assert lines[0].startswith(" mem_fraction_static 0.88 -> 0.55 is the only change that matters")
    explains = next(at for at, line in enumerate(lines) if "✖ what explains it" in line)
    assert lines[explains + 1].split() == ["mem_fraction_static", "0.88", "(given)", "0.55", "(given)"]
    acquitted = next(at for at, line in enumerate(lines) if "✔ changed, and not the reason" in line)
    assert explains < acquitted < next(at for at, line in enumerate(lines) if "the two starts" in line)


def test_every_section_is_there_and_numbers_stand_side_by_side() -> None:
    shown_text = text(case())
    for heading in (
        "arguments",
        "environment",
        "versions: the same in both",
        "phases, seconds",
        "memory, GiB",
        "KV pool",
    ):
        assert f"\n {heading}" in shown_text, heading
    row = next(line for line in shown_text.splitlines() if line.strip().startswith("weight-load"))
    assert row.split() == ["weight-load", "8:34", "8:34"]
    row = next(line for line in shown_text.splitlines() if line.strip().startswith("graph-capture"))
    assert row.split() == ["graph-capture", "1:12", "-"]


def test_ranks_that_are_alike_share_a_row() -> None:
    lines = text(case(), each_rank=True).splitlines()
    at = next(at for at, line in enumerate(lines) if line.strip().startswith("free after weights") and "-0.01" in line)
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["rank", "0-4,", "6-7", "21.71", "21.71"],
        ["rank", "5", "21.71", "21.70"],
    ]


def test_what_differs_between_any_two_starts_is_counted_and_shown_when_asked() -> None:
    noise = tuple(
        Difference(
            group=Group.ARGUMENT,
            name=name,
            good=1,
            bad=bad,
            role=Role.NOISE,
            good_origin=Origin.RESOLVED,
            bad_origin=of,
        )
        for name, bad, of in (
            ("port", 2, Origin.RESOLVED),
            ("random_seed", 3, Origin.RESOLVED),
            ("nothing_told", None, Origin.UNKNOWN),
        )
    )
    alone = Difference(group=Group.ENVIRONMENT, name="CUDA_LAUNCH_BLOCKING", bad="1", bad_origin=Origin.MEASURED)
    comparison = states.REPLACE(case(), differences=(*case().differences, *noise, alone))
    assert "i 2 more differ, as between any two starts" in text(comparison)
    assert "random_seed" not in text(comparison)
    shown_text = text(comparison, noise=True)
    assert "random_seed" in shown_text
    assert "nothing_told" not in shown_text
    assert "CUDA_LAUNCH_BLOCKING" not in shown_text, "only one log tells it, and nothing says that it matters"
    assert "NCCL_BUFFSIZE" in shown_text, "one that is acquitted by a number"


def test_a_variable_of_one_log_is_not_called_changed() -> None:
    half = Difference(
        group=Group.ENVIRONMENT, name="NCCL_X", bad="8", bad_origin=Origin.MEASURED, role=Role.ACQUITTED, note="0.1 GiB"
    )
    whole = states.REPLACE(half, name="NCCL_Y", good="4", good_origin=Origin.MEASURED)
    lines = text(states.REPLACE(case(), differences=(half, whole))).splitlines()
    changed = next(at for at, line in enumerate(lines) if "changed, and not the reason" in line)
    alone = next(at for at, line in enumerate(lines) if "shown by one log only, and not the reason" in line)
    assert lines[changed + 1].split()[0] == "NCCL_Y"
    assert lines[alone + 1].split() == ["NCCL_X", "not", "told", "8"]
    measured = next(each for each in case().of(Role.ACQUITTED) if each.group is Group.MEMORY)
    assert not measured.half_known, "a number that both starts have"


def test_versions_that_only_may_be_the_same() -> None:
    good, bad = case().good, case().bad
    for one, other, words in (
        (">=0.5.21", "0.5.23", "versions: may be the same"),
        ("0.5.23", "0.5.23", "versions: the same in both"),
        (None, "0.5.23", "versions: not in both logs"),
    ):
        sides = {"good": states.REPLACE(good, version=one), "bad": states.REPLACE(bad, version=other)}
        assert words in text(states.REPLACE(case(), differences=(), **sides))


def test_starts_that_do_not_compare_say_why() -> None:
    comparison = states.REPLACE(case(), obstacles=("another LLM",))
    assert "▲ These two do not compare: another LLM" in text(comparison)


@pytest.mark.parametrize("width", [60, 79, 120, 159, 240])
def test_lines_fit(width: int) -> None:
    for glyphs in (UNICODE, ASCII):
        lines = told(case(), ("before", "now"), width, glyphs, noise=True, each_rank=True).lines
        assert max(width_of(line) for line in lines) <= width
        if glyphs is ASCII:
            assert all(text_of(line).isascii() for line in lines)


async def test_the_most_telling_start_is_compared_with_at_once(app_on: AppOn) -> None:
    app, _ = app_on(states.compared())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d")
        await settled(pilot)
        assert "pid 40100, ready" in app.screen.query_one("#pair", Rows).text
        assert "mem_fraction_static 0.88 -> 0.55 is the only change that matters" in " ".join(shown(app).split())


async def test_a_start_that_worked_is_the_baseline_whichever_is_on_screen(app_on: AppOn) -> None:
    app, _ = app_on(states.compared())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("full_stop", "d")
        await settled(pilot)
        lines = shown(app).splitlines()
        head = next(line for line in lines if "this start" in line)
        assert head.split() == ["this", "start", "the", "other"]
        assert "0.88 -> 0.55" in " ".join(shown(app).split())


async def test_remedies_are_those_of_the_other_start_where_it_is_the_one_that_failed(app_on: AppOn) -> None:
    failed, worked = (
        last_start(f"evidence/sglang-0.5.16-h200/{name}/server.log") for name in ("oom-pool", "retractions")
    )
    state = states.serving()
    held = states.REPLACE(state.servers[0], start=worked, findings=())
    app, _ = app_on(states.REPLACE(state, servers=(held,)), read_starts=shelf(bad=[failed]))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("d", "c")
        await settled(pilot)
        await pilot.press(*"bad.log", "enter")
        await settled(pilot)
        assert "mem_fraction_static 0.8 -> 0.998 matters most" in " ".join(shown(app).split())


async def test_starts_of_the_history_are_offered(app_on: AppOn) -> None:
    app, _ = app_on(with_past(states.explained(), explained.good_start()))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d")
        await settled(pilot)
        assert "earlier start, ready, fraction 0.88" in app.screen.query_one("#pair", Rows).text
        assert "the only change that matters" in " ".join(shown(app).split())


async def test_a_chosen_start_stays_chosen_while_the_history_grows(app_on: AppOn) -> None:
    chosen = states.REPLACE(explained.good_start(), began=1_772_000_000.0)
    settings = {**explained.SETTINGS, "mem_fraction_static": 0.9}
    newer = states.REPLACE(explained.good_start(), began=1_772_900_000.0, settings=settings)
    state = with_past(states.explained(), chosen)
    app, (session,) = app_on(state)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d")
        await settled(pilot)
        before = shown(app)
        server = with_past(state, newer, chosen).servers[0]
        failed_anew = states.REPLACE(server, start=states.REPLACE(server.start, last=server.start.last + 1))
        session.push(states.REPLACE(state, servers=(failed_anew, *state.servers[1:])))
        await settled(pilot)
        assert shown(app) == before


async def test_a_start_is_chosen_from_the_list(app_on: AppOn) -> None:
    settings = {**explained.SETTINGS, "mem_fraction_static": 0.9}
    other = states.REPLACE(explained.good_start(), settings=settings, began=1_772_000_000.0)
    app, _ = app_on(with_past(states.compared(), other))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d", "c")
        await settled(pilot)
        assert isinstance(app.screen, StartDialog)
        assert app.screen.query_one(OptionList).option_count == 2
        assert re.search(
            r"earlier start of \w+ \d+ \d\d:\d\d, ready",
            str(app.screen.query_one(OptionList).get_option_at_index(1).prompt),
        )
        await pilot.press("down", "enter")
        await settled(pilot)
        assert "earlier start of " in app.screen.query_one("#pair", Rows).text


async def test_a_log_file_is_compared_with(app_on: AppOn) -> None:
    app, _ = app_on(states.explained(), read_starts=shelf(good=[explained.good_start()], empty=[]))
    async with app.run_test(size=NARROW) as pilot:
        for path, words in (
            ("good.log", "the only change that matters"),
            ("empty.log", "No line of an inference server is in that file"),
            ("none.log", "That file cannot be read"),
        ):
            await pilot.press("d", "c")
            await settled(pilot)
            await pilot.press(*path, "enter")
            await settled(pilot)
            assert words in " ".join(shown(app).split()), path
            assert path in app.screen.query_one("#pair", Rows).text


async def test_escape_leaves_the_choice_as_it_was(app_on: AppOn) -> None:
    app, _ = app_on(states.compared())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d", "c")
        await settled(pilot)
        await pilot.press("escape")
        await settled(pilot)
        assert "pid 40100" in app.screen.query_one("#pair", Rows).text


async def test_empty_states_are_words(app_on: AppOn) -> None:
    app, (session,) = app_on(states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d")
        await settled(pilot)
        assert "no other start of its LLM is known" in shown(app)
        assert "c With" in app.screen.query_one(KeyBar).text
        session.push(states.serving())
        await settled(pilot)
        session.push(states.empty())
        await settled(pilot)
        assert "no server, so nothing to compare" in shown(app)
        assert "c With" not in app.screen.query_one(KeyBar).text
        await pilot.press("c", "z", "v", "n", "p", "y")


async def test_a_log_that_tells_more_is_compared_again(app_on: AppOn) -> None:
    state = states.compared()
    held = state.servers[0]
    early = states.REPLACE(held.start, ranks=held.start.ranks[:0])
    app, (session,) = app_on(states.REPLACE(state, servers=(states.REPLACE(held, start=early), *state.servers[1:])))
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("d")
        await settled(pilot)
        before = shown(app)
        session.push(state)
        await settled(pilot)
        assert shown(app) != before
        assert "the only change that matters" in " ".join(shown(app).split())


async def test_keys_show_ranks_and_walk_through_sections(app_on: AppOn) -> None:
    app, _ = app_on(states.compared())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("d")
        await settled(pilot)
        assert "all 8 alike" not in shown(app)
        await pilot.press("z")
        await pilot.pause()
        assert "all 8 alike" in shown(app)
        box = app.screen.query_one("#compare-box")
        await pilot.press("n", "n")
        await pilot.pause()
        top = shown(app).splitlines()[round(box.scroll_y)]
        assert "changed, and not the reason" in top or "the two starts" in top
        await pilot.press("y")
        assert "mem_fraction_static" in app.clipboard


def test_the_numbers_of_a_start_are_not_mixed_up() -> None:
    good = explained.good_start()
    worse = states.REPLACE(good, ranks=tuple(states.REPLACE(rank, kv_tokens=Figure(100.0, 1)) for rank in good.ranks))
    row = next(line for line in text(compare(good, worse)).splitlines() if line.strip().startswith("tokens"))
    assert row.split()[:3] == ["tokens", "159,277", "100"]
