"""Settings out of what a stranger may print."""

from __future__ import annotations

from tuner.core.literals import parse_settings


def test_text_that_is_almost_python_is_kept_as_text() -> None:
    assert parse_settings("A(a={[]: 1}, b=it's, c=3)") == {"a": "{[]: 1}", "b": "it's", "c": 3}


def test_odd_escapes_and_comparisons_warn_of_nothing() -> None:
    # Warnings are errors in tests.
    assert parse_settings(r"A(a='\d', b=1 is 1, c=3)") == {"a": r"\d", "b": "1 is 1", "c": 3}
    assert parse_settings(r"A(a='C:\path\new', b='\\d', c='\x41\400')") == {
        "a": "C:\\path\new",
        "b": r"\d",
        "c": r"A\400",
    }


def test_quotes_without_an_end_are_read_once() -> None:
    odd = r"\'" * 262_144
    assert parse_settings(f"a={odd}, b=1") == {"a": odd, "b": 1}
