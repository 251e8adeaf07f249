"""Pictures of the screens: `python -m tests.support.shoot OUT [--only NAME] [--png]`.

Each picture is a state of `tests.support.states` on one screen, at one size, in one mode, the README's too.
The SVG names a web font, which neither converters nor an <img> element load: it is made to do without.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import os
import re
import subprocess
from pathlib import Path

from rich.cells import cell_len

from tests.support import changing, states
from tests.support.sessions import FakeSession, settled
from tuner.app import TunerApp
from tuner.domain.events import SearchResult
from tuner.domain.logs import LogHit
from tuner.domain.state import HostState
from tuner.screens.tune import TuneScreen

SIZES = ((80, 24), (160, 48))
FONTS = '"DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace'
CELL, FONT_SIZE = 12.2, 20.264
"""Width of a cell in the SVG, and the font size at which the first two fonts have that width."""
_TEXT = re.compile(r'(<text class="[^"]+") x="([\d.]+)" (y="[\d.]+") textLength="[\d.]+" ([^>]+>)([^<]*)</text>')


def portable(svg: str) -> str:
    """Return the picture independent of fonts: each word is placed at its cells and stretched to their width.

    Viewers differ in how they treat spaces at the ends of a text, and some do not stretch a text to its length.
    """

    def words(text: re.Match[str]) -> str:
        start, x, y, end, content = text.groups()
        content = html.unescape(content).replace("\xa0", " ")
        return "".join(
            f'{start} x="{float(x) + CELL * cell_len(content[: word.start()]):.1f}" {y} '
            f'textLength="{CELL * cell_len(word[0]):.1f}" lengthAdjust="spacingAndGlyphs" '
            f"{end}{html.escape(word[0])}</text>"
            for word in re.finditer(r"\S+", content)
        )

    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(
        r"font-family: Fira Code[^;]*;\s*font-size: 20px;", f"font-family: {FONTS}; font-size: {FONT_SIZE}px;", svg
    )
    return _TEXT.sub(words, svg)


async def shoot(
    state: HostState | list[HostState],
    keys: tuple[str, ...] = (),
    *,
    size: tuple[int, int] = (160, 48),
    ascii: bool = False,  # noqa: A002
    no_color: bool = False,
    theme: str | None = None,
    title: str = "gputuner",
) -> str:
    """Return the SVG of the app after some keys."""
    if no_color:
        os.environ["NO_COLOR"] = "1"
    now = 0.0

    def clock() -> float:
        return now

    hosts = state if isinstance(state, list) else [state]
    sessions = [FakeSession(each, found=hits(each), facts=changing.FACTS) for each in hosts]
    app = TunerApp(sessions, ascii=ascii, theme=theme, clock=clock, library=changing.FakeLibrary())
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        now = 12.0
        app.tick += 1
        await pilot.pause()
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        for _ in range(100):
            # The host is asked once the choice has rested; not while a change goes on.
            if not isinstance(app.screen, TuneScreen) or app.screen.view.checked:
                break
            await pilot.pause(0.02)
        await settled(pilot)
        await pilot.pause()
        return portable(app.export_screenshot(title=title))


def hits(state: HostState) -> tuple[SearchResult, ...]:
    """Return the host's answer to any search: the newest lines of its first server's log."""
    lines = [line for server in state.servers[:1] for block in server.log.blocks for line in block.lines]
    found = tuple(LogHit(line.offset, line.text) for line in reversed(lines[-9:]))
    return (SearchResult(id=1, hits=found, scanned_bytes=10_600, done=True),)


ALL = {**states.ALL, **changing.ALL}
SHOTS: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"overview-{name}": (name, ()) for name in ALL},
    "logs-serving": ("serving", ("l",)),
    "logs-up": ("serving", ("l", "up", "up", "up")),
    "logs-failed": ("failed", ("l", "e")),
    "overview-explained-unfolded": ("explained", ("u",)),
    "overview-slowed-unfolded": ("slowed", ("u",)),
    "findings-explained": ("explained", ("x",)),
    "findings-explained-down": ("explained", ("x", *["down"] * 6)),
    "findings-slowed": ("slowed", ("x",)),
    "findings-serving": ("serving", ("x",)),
    "findings-empty": ("empty", ("x",)),
    "compare": ("compared", ("d",)),
    "compare-ranks": ("compared", ("d", "z", "v", *["n"] * 8)),
    "compare-choose": ("compared", ("d", "c")),
    "plan": ("slowed", ("m",)),
    "plan-turned": ("slowed", ("m", "left", "left", "left", "left", *["down"] * 3, "left", *["down"] * 3, "right")),
    "plan-high": ("slowed", ("m", *"0.97", "enter")),
    "plan-failed": ("compared", ("m",)),
    "plan-typed": ("slowed", ("m", "down", *"51")),
    "plan-untold": ("serving", ("m",)),
    "compare-alone": ("explained", ("d",)),
    "compare-untold": ("serving", ("d",)),
    "logs-explained": ("explained", ("l",)),
    "logs-explained-unfolded": ("explained", ("l", "u", "down", "down", "down")),
    "logs-slowed": ("slowed", ("l", "home")),
    "logs-filter": ("serving", ("l", "f", *"decode")),
    "logs-search": ("serving", ("l", "slash", *"batch", "enter")),
    "logs-wrap": ("failed", ("l", "w")),
    "details-serving": ("serving", ("i",)),
    "details-troubled": ("troubled", ("i",)),
    "tune": ("tunable", ("t",)),
    "tune-preset": ("tunable", ("t", "2")),
    "tune-forecast": ("tunable", ("t", "3", "tab", "tab")),
    "tune-checks": ("tunable", ("t", "2", "tab", "tab", "tab")),
    "tune-command": ("tunable", ("t", "2", "shift+tab")),
    "tune-unmet": ("tunable", ("t", "5")),
    "tune-knob": ("tunable", ("t", "2", "n", *"mem_fr", "enter", *"0.9", "enter")),
    "tune-complete": ("tunable", ("t", "n", *"graph")),
    "tune-value": ("tunable", ("t", "n", *"mem_fr", "enter", *"1.2")),
    "tune-filter": ("tunable", ("t", "slash", *"nccl")),
    "tune-dry": ("tunable", ("t", "2", "D")),
    "tune-confirm": ("tunable", ("t", "2", "enter")),
    "tune-stop": ("tunable", ("t", "S")),
    "tune-leased": ("leased", ("t", "2")),
    "tune-take-over": ("leased", ("t", "L")),
    "tune-changing": ("changing", ("t",)),
    "tune-cancel": ("changing", ("t", "K")),
    "tune-loading": ("loading", ("t",)),
    "tune-changed": ("changed", ("t",)),
    "tune-broken": ("broken", ("t",)),
    "tune-interrupted": ("interrupted", ("t",)),
    "tune-stale": ("change_stale", ("t",)),
    "tune-empty": ("empty", ("t",)),
    "tune-starting": ("starting", ("t",)),
    "overview-broken": ("broken", ()),
    "help": ("serving", ("question_mark",)),
    "line": ("serving", ("l", "up", "enter")),
    "palette": ("serving", ("ctrl+p",)),
}
"""State and keys of each picture, by name."""
MODES = {"": {}, "-ascii": {"ascii": True}, "-nocolor": {"no_color": True}, "-light": {"theme": "gputuner-light"}}


def main() -> None:
    """Write the requested pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="", help="part of the name")
    parser.add_argument("--mode", default="", choices=[name.lstrip("-") for name in MODES])
    parser.add_argument("--png", action="store_true", help="also convert with rsvg-convert")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    mode = f"-{asked.mode}" if asked.mode else ""
    for name, (state, keys) in SHOTS.items():
        if asked.only not in name:
            continue
        for size in SIZES:
            svg = asyncio.run(shoot(ALL[state](), keys, size=size, **MODES[mode]))  # type: ignore[arg-type]
            path = asked.out / f"{name}-{size[0]}x{size[1]}{mode}.svg"
            path.write_text(svg)
            if asked.png:
                subprocess.run(["rsvg-convert", "-o", str(path.with_suffix(".png")), str(path)], check=True)
            print(path)


if __name__ == "__main__":
    main()
