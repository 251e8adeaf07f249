from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuner.widgets.spans import clean, clip, clip_line, fit, spread, text_of, width_of, wrap_parts

LINES = st.lists(st.tuples(st.text(max_size=30), st.just("text")), max_size=6)


def test_clip_shows_the_cut() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 6) == "abcde…"
    assert clip("日本語の行", 5) == "日本…"


@given(LINES, st.integers(0, 60))
def test_a_clipped_line_never_exceeds_its_width(line: list[tuple[str, str]], width: int) -> None:
    assert width_of(clip_line([(clean(text), style) for text, style in line], width)) <= width


@given(LINES, LINES, st.integers(20, 120))
def test_spread_fills_or_clips(left: list[tuple[str, str]], right: list[tuple[str, str]], width: int) -> None:
    safe = [[(clean(text), style) for text, style in line] for line in (left, right)]
    assert width_of(spread(*safe, width)) <= width


def test_fit_leaves_parts_out_whole() -> None:
    parts = [(("first", "text"),), (("a long second part", "text"),), (("third", "text"),)]
    assert text_of(fit(parts, 14, (" | ", "dim"))) == "first | third"


def test_wrap_breaks_between_parts_only() -> None:
    parts = [(("aaaa", "text"),), (("bbbb", "text"),), (("cccc", "text"),)]
    assert [text_of(line) for line in wrap_parts(parts, 11, ("  ", "dim"), indent=1)] == ["aaaa  bbbb", " cccc"]


@given(st.text())
def test_cleaned_text_cannot_move_the_cursor(text: str) -> None:
    cleaned = clean(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 or char in "\u202e\u2066" for char in cleaned)
