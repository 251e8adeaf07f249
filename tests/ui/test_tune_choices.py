"""The list of presets on the Tune screen: its number keys, moving in it, and what is said of the chosen one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support import changing, states
from tests.support.sessions import settled
from tests.ui.test_contract import painted
from tests.ui.test_tune import NARROW, WIDE, AppOn, press, rows, told, tuned
from tuner.catalog import read_preset
from tuner.domain.preflight import Verdict
from tuner.domain.presets import Preset
from tuner.errors import CatalogError
from tuner.paths import presets_dir
from tuner.screens.confirm import ConfirmDialog
from tuner.widgets.keybar import KeyBar
from tuner.widgets.tune_list import BARE


class Sorted(changing.FakeLibrary):
    """A library whose new presets come between those that are there, as the letters have it."""

    def presets(self) -> tuple[Mapping[str, Preset], tuple[CatalogError, ...]]:
        return dict(sorted(self.known.items())), self.problems


def numbers(app: Any) -> dict[str, str]:
    """Return the preset of each number key on screen."""
    lines = [line[1:].split() for line in rows(app, "#presets").splitlines()[1:]]
    return {words[0]: words[1] for words in lines if words[0].isdigit()}


async def test_a_saved_preset_moves_no_number_key_now_and_later(app_on: AppOn) -> None:
    library = Sorted()
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t")
        before = numbers(app)
        assert before["1"] == "base-88"
        await press(pilot, "1", "w", *"aaa first by its letters", "enter")
        assert numbers(app) == {**before, "7": "aaa"}
        await press(pilot, "2", "w", *"aa even more so", "enter")
        assert numbers(app) == {**before, "7": "aaa", "8": "aa"}
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t")
        assert numbers(app) == {**before, "7": "aaa", "8": "aa"}


async def test_a_server_that_ends_moves_no_number_key(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        before = numbers(app)
        assert before["5"] == "nvlink-sharp", "it is not for this server"
        host.push(states.REPLACE(changing.tunable(), servers=()))
        await settled(pilot)
        assert "is for vllm" not in rows(app, "#presets"), "for no server"
        assert numbers(app) == before


async def test_after_a_stop_the_server_would_be_started_as_it_ran(app_on: AppOn) -> None:
    (server,) = changing.tunable().servers
    app, _ = tuned(app_on, states.REPLACE(changing.tunable(), servers=(states.REPLACE(server, gone=True),)))
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t")
        assert "nothing: the server would be started again as it ran" in rows(app, "#tune")


async def test_an_empty_preset_is_not_saved(app_on: AppOn) -> None:
    library = changing.FakeLibrary()
    app, _ = tuned(app_on, changing.changed(), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "0", "w")
        assert app.screen.entry == ""
        assert "Nothing to save: change a knob (n) or choose a preset first" in told(app)
        await press(pilot, "down", "w")
        assert app.screen.view.chosen == BARE
        assert app.screen.entry == ""
        await press(pilot, "n", *"cuda_graph_max_bs=64", "enter", "w", *"mine", "enter")
    assert [each.id for each in library.saved] == ["mine"]


async def test_another_preset_is_shown_from_its_top(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=(160, 24)) as pilot:
        await press(pilot, "t", "2", "ctrl+d")
        box = app.screen.query_one("#tune-box")
        assert box.scroll_y > 0
        await press(pilot, "2")
        assert box.scroll_y > 0, "it is the same"
        await press(pilot, "3")
        assert box.scroll_y == 0


def risky() -> changing.FakeLibrary:
    """Return a library with the bundled preset that hangs where IOMMU or ACS is on."""
    library = changing.FakeLibrary()
    library.known["nccl-p2p-far"] = read_preset(presets_dir() / "nccl-p2p-far.toml")
    return library


async def test_what_is_dangerous_is_never_cut_where_one_decides(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable(), risky())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "slash", *"p2p-far", "enter", "down")
        assert app.screen.view.chosen == "nccl-p2p-far"
        assert "a hang or corrupt data where IOMMU or ACS redirects it." in rows(app, "#tune-title").replace("\n", "")
        assert app.screen.query_one("#tune-box").size.height >= len(rows(app, "#tune").splitlines())
        while not app.screen.view.checked:
            await pilot.pause(0.02)
        assert "checks ▲" in rows(app, "#tune-tabs"), "it is to be looked at"
        await press(pilot, "tab", "tab", "tab")
        text = " ".join(rows(app, "#tune").split())
        assert "note IOMMU and ACS that IOMMU and ACS are off is the operator's word" in text
        await press(pilot, "enter")
        assert isinstance(app.screen, ConfirmDialog)
        text = " ".join(rows(app, "#question").split())
        assert "look at IOMMU and ACS: that IOMMU and ACS are off is the operator's word" in text
        assert "otherwise NCCL_P2P_LEVEL=SYS can hang" in text


async def test_harm_that_refuses_nothing_is_a_warning(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"NCCL_BUFFSIZE=33554432", "enter")
        tuning = app.screen.view.tuning
        (check,) = (each for each in tuning.checks if each.id == "hazard")
        assert check.verdict is Verdict.WARN
        assert check.detail.startswith("NCCL_BUFFSIZE=33554432 can be slow: ")


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_page_keys_home_and_end_go_through_the_list(app_on: AppOn, size: tuple[int, int]) -> None:
    library = changing.FakeLibrary()
    for number in range(100):
        library.known[f"more-{number:02}"] = Preset(id=f"more-{number:02}", title="T", why="w")
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=size) as pilot:
        await press(pilot, "t", "pagedown")
        first = app.screen.view.chosen
        assert first not in ("", "base-88")
        await press(pilot, "pagedown", "pageup")
        assert app.screen.view.chosen == first
        await press(pilot, "end")
        assert app.screen.view.chosen == [each.id for each in app.screen.view.presets][-1]
        await press(pilot, "pagedown")
        assert app.screen.view.chosen == [each.id for each in app.screen.view.presets][-1], "it ends there"
        await press(pilot, "home")
        assert app.screen.view.chosen == ""


async def test_with_the_cursor_on_a_knob_the_page_keys_scroll_the_sections(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=(160, 24)) as pilot:
        await press(pilot, "t", "2", "n", *"mem_fraction_static=0.87", "enter", "pagedown")
        assert app.screen.view.chosen == "nccl-2ch-128k"
        box = app.screen.query_one("#tune-box")
        assert box.scroll_y > 0
        await press(pilot, "home")
        assert box.scroll_y == 0
        await press(pilot, "end")
        assert box.scroll_y == box.max_scroll_y


async def test_while_a_value_is_typed_its_knob_is_named(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "n", *"chunked_prefill", "enter", *"2048")
        line = next(line for line in painted(app) if "2048" in line)
        assert line.split() == ["chunked_prefill_size", "2048"]
        await press(pilot, "escape")
        assert "chunked_prefill_size" not in "\n".join(painted(app))
        await press(pilot, "w", "2", "w", *"fast")
        assert ["save", "as", "fast"] in [line.split() for line in painted(app)]


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_steps_of_a_dry_run_are_broken_once_and_keep_their_indent(
    app_on: AppOn, size: tuple[int, int]
) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=size) as pilot:
        await press(pilot, "t", "2", "D")
        lines = [line.strip().strip("│").rstrip() for line in painted(app)]
        first = next(at for at, line in enumerate(lines) if line.lstrip().startswith("1  stop pid"))
        last = next(at for at, line in enumerate(lines) if line.lstrip().startswith("4  wait until"))
        column, room = lines[first].index("stop pid"), max(map(len, lines[first : last + 1]))
        for before, line in itertools.pairwise(lines[first : last + 1]):
            if line[:column].isspace():
                assert line[column] != " "
                assert len(f"{before} {line.split()[0]}") > room - 5, "a line is as full as its words allow"
        assert "Nothing was sent to the host." in "\n".join(lines)
        assert "y copies, escape closes" in "\n".join(lines)


@pytest.mark.parametrize(
    ("state", "bar"),
    [
        ("tunable", "enter Apply  n Knob  w Save  S Stop  D Dry run  r Recipe  ? Help  q Quit"),
        ("broken", "enter Apply  B Go back  C Clean up  v Why  o Overview  l Logs  ? Help  q Quit"),
        ("loading", "K Cancel  n Knob  w Save  D Dry run  r Recipe  L Lease  ? Help  q Quit"),
        ("interrupted", "enter Apply  f Finish  B Go back  n Knob  w Save  S Stop  ? Help  q Quit"),
    ],
)
async def test_the_key_bar_shows_what_matters_in_the_present_state(app_on: AppOn, state: str, bar: str) -> None:
    app, _ = tuned(app_on, changing.ALL[state]())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert bar in app.screen.query_one(KeyBar).text
