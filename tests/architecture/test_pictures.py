"""The README's pictures show the screens as they are. `--update-pictures` draws them again; then look at each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.shoot import ALL, SHOTS, shoot

ROOT = Path(__file__).parents[2]
PICTURES = sorted(set(re.findall(r"docs/img/([\w-]+)\.svg", (ROOT / "README.md").read_text())))


def test_the_readme_has_pictures() -> None:
    assert PICTURES


@pytest.mark.parametrize("picture", PICTURES)
async def test_a_picture_is_what_the_screen_shows(picture: str, request: pytest.FixtureRequest) -> None:
    name, columns, rows = re.fullmatch(r"(.+)-(\d+)x(\d+)", picture).groups()  # type: ignore[union-attr]
    state, keys = SHOTS[name]
    drawn = await shoot(ALL[state](), keys, size=(int(columns), int(rows)))
    path = ROOT / f"docs/img/{picture}.svg"
    if request.config.getoption("--update-pictures"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(drawn)
    assert path.read_text() == drawn, "draw it again with --update-pictures, and look at it"


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_needs_no_font_and_no_network(picture: str) -> None:
    svg = (ROOT / f"docs/img/{picture}.svg").read_text()
    assert "@font-face" not in svg
    assert re.findall(r"(?:url\(|href=)[\"']?https?:", svg) == []
    texts = re.findall(r"<text ([^>]*clip-path[^>]*)>([^<]*)</text>", svg)
    assert texts
    for attributes, content in texts:
        assert "textLength=" in attributes
        assert not re.search(r"\s|&#160;|\xa0", content), "viewers drop spaces at the ends of a text"


def test_no_picture_is_left_over() -> None:
    assert {path.stem for path in (ROOT / "docs/img").glob("*.svg")} == set(PICTURES)
