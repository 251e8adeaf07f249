"""What holds for every registered screen, whatever the state and the size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import changing, states
from tuner.screens import SCREENS
from tuner.screens.base import TunerScreen
from tuner.widgets.keybar import KeyBar
from tuner.widgets.rows import Rows
from tuner.widgets.spans import width_of

AppOn = Callable[..., tuple[Any, list[Any]]]
ALL = {**states.ALL, **changing.ALL}
SIZES = ((80, 24), (160, 48))


def painted(app: Any) -> list[str]:
    """The screen as text, with the filters that the terminal sees."""
    height = app.size.height
    filters = app.get_line_filters()
    lines = []
    for strip in app.screen._compositor.render_strips()[:height]:
        for each in filters:
            strip = strip.apply_filter(each, app.screen.styles.background)
        lines.append(strip.text)
    return lines


@pytest.mark.parametrize("name", ALL)
async def test_every_screen_draws_every_state_at_every_size(app_on: AppOn, name: str) -> None:
    app, _ = app_on(ALL[name](), library=changing.FakeLibrary())
    async with app.run_test(size=SIZES[0]) as pilot:
        for size in SIZES:
            await pilot.resize_terminal(*size)
            for entry in SCREENS:
                await pilot.press(entry.key)
                await pilot.pause()
                assert isinstance(app.screen, entry.screen)
                for rows in app.screen.query(Rows):
                    if rows.size.width:
                        for line in rows.lines:
                            assert width_of(line) <= rows.size.width, rows.id
                keys = app.screen.query_one(KeyBar).text
                assert "? Help" in keys
                assert "q Quit" in keys


@pytest.mark.parametrize("entry", SCREENS, ids=lambda entry: entry.name)
async def test_ascii_mode_paints_ascii_only(app_on: AppOn, entry: Any) -> None:
    app, _ = app_on(states.troubled(), ascii=True)
    async with app.run_test(size=(160, 48)) as pilot:
        for keys in ((entry.key,), ("question_mark",)):
            await pilot.press(*keys)
            await pilot.pause()
            text = "".join(painted(app))
            assert text.isascii(), sorted({char for char in text if not char.isascii()})


async def test_ascii_mode_keeps_every_meaning(app_on: AppOn) -> None:
    app, _ = app_on(states.serving(), ascii=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = "\n".join(painted(app))
        for part in (
            "+ READY",
            "* up",
            "W weights 72.3",
            "K KV pool",
            "G graphs",
            "# foreign",
            "! throttle: TP2 power cap",
        ):
            assert part in text


async def test_without_colour_everything_has_a_sign_or_a_word(app_on: AppOn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app, _ = app_on(states.failed())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.no_color
        styles = {
            segment.style.color.get_truecolor()
            for strip in app.screen._compositor.render_strips()
            for each in [strip.apply_filter(app.get_line_filters()[-1], app.screen.styles.background)]
            for segment in each
            if segment.style and segment.style.color
        }
        assert all(color.red == color.green == color.blue for color in styles)
        text = "\n".join(painted(app))
        assert "✖ FAILED" in text
        assert "● up" in text


async def test_nothing_covers_what_a_small_terminal_needs(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(60, 6), notifications=True) as pilot:
        app.notify("Copied 20 lines, and a word on where they are", timeout=60)
        await pilot.pause()
        await pilot.pause()
        text = "\n".join(painted(app))
        assert "gputuner needs 80x24" in text
        assert "this terminal has 60x6" in text
        assert "Copied" not in text
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "Copied" in "\n".join(painted(app))


@pytest.mark.parametrize("size", [(40, 10), (30, 6)])
async def test_a_very_small_terminal_is_told_its_size(app_on: AppOn, size: tuple[int, int]) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        lines = [line.strip() for line in painted(app)]
        assert "gputuner needs 80x24" in lines
        assert f"this terminal has {size[0]}x{size[1]}" in lines


async def test_too_small_says_what_it_needs_and_recovers(app_on: AppOn) -> None:
    app, _ = app_on(states.serving())
    async with app.run_test(size=(79, 23)) as pilot:
        await pilot.pause()
        text = "\n".join(painted(app))
        assert "gputuner needs 80x24" in text
        assert "this terminal has 79x23" in text
        assert "TP0" not in text
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        text = "\n".join(painted(app))
        assert "needs" not in text
        assert "TP0" in text


async def test_a_screen_in_the_background_catches_up(app_on: AppOn) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("l")
        await pilot.pause()
        session.push(states.failed())
        await pilot.pause()
        await pilot.press("o")
        await pilot.pause()
        assert "FAILED while allocating KV" in app.screen.query_one("#notes", Rows).text


async def test_nothing_is_repainted_that_did_not_change(app_on: AppOn, monkeypatch: pytest.MonkeyPatch) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        painted_rows: list[str] = []
        original = Rows.render_line

        def counting(self: Rows, y: int) -> Any:
            painted_rows.append(f"{self.id}:{y}")
            return original(self, y)

        monkeypatch.setattr(Rows, "render_line", counting)
        state = session.state
        session.push(states.REPLACE(state, mono=state.mono + 0.2))
        await pilot.pause()
        assert painted_rows == []
        hotter = states.REPLACE(state, samples=states.samples([86.8, 86.8, 89.2, 86.8, 70.1, 86.8, 86.8, 86.8]))
        session.push(hotter)
        await pilot.pause()
        assert [row for row in painted_rows if row.startswith("table:")] == ["table:6"]


def test_screens_are_of_the_registry() -> None:
    assert len({entry.key for entry in SCREENS}) == len(SCREENS)
    for entry in SCREENS:
        assert issubclass(entry.screen, TunerScreen)
        assert entry.name == entry.screen.ENTRY
