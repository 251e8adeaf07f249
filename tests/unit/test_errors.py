from __future__ import annotations

import pytest

from tuner.errors import TunerError, sentences


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (("Does it work?", "Press R"), "Does it work? Press R"),
        (("It ended.", "Press R."), "It ended. Press R"),
        (("It ended", "", "Does it work?"), "It ended. Does it work?"),
        (("It ended", ""), "It ended"),
        (("it ended", "press R", "gputuner snapshot tells"), "it ended. Press R. gputuner snapshot tells"),
        ((), ""),
    ],
)
def test_sentences_have_one_sign_between_them(parts: tuple[str, ...], line: str) -> None:
    assert sentences(*parts) == line


def test_an_error_is_one_line() -> None:
    assert (
        str(TunerError("No answer", "after 3 s: is it up?", "Try again."))
        == "No answer: after 3 s: is it up? Try again"
    )
