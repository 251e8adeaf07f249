"""What the loader of log formats refuses, and that it says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.engines.catalogue import read_formats
from tuner.errors import CatalogError

GOOD = """\
[[format]]
id = "a"
kind = "ready"
contains = ["up"]
pattern = 'up (?P<summary>\\w+)'
[[format.example]]
line = "up now"
fields = { summary = "now" }
"""


def _load(tmp_path: Path, text: str) -> None:
    path = tmp_path / "logs.toml"
    path.write_text(text, "utf-8")
    read_formats(path)


def test_a_format_with_example_is_accepted(tmp_path: Path) -> None:
    _load(tmp_path, GOOD)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD + GOOD.replace('"a"', '"b"').partition("[[format.example]]")[0], 9, "b has no example"),
        (GOOD + GOOD, 9, "two formats are called a"),
        (GOOD.replace('"ready"', '"readyy"'), 1, "unknown kind readyy"),
        (GOOD.replace('["up"]', "[]"), 1, "names no substring"),
        (GOOD.replace("contains", "starts"), 1, "less than 4 characters"),
        (GOOD.replace("(?P<summary>", "(?P<summary"), 1, "bad pattern"),
        (GOOD.replace('kind = "ready"', 'kind = "ready"\ntypes = { summary = "hex" }'), 1, "unknown type hex"),
        (GOOD.replace('kind = "ready"', 'kind = "ready"\ncolour = 1'), 1, "colour"),
        (GOOD.replace('kind = "ready"', 'kind = "ready'), 3, "is not TOML"),
        (GOOD.replace('id = "a"\n', ""), 1, "id"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(CatalogError) as caught:
        _load(tmp_path, text)
    assert caught.value.line == line
    assert words in str(caught.value)
    assert f"logs.toml:{line}" in str(caught.value)


def test_a_missing_file_is_a_catalogue_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        read_formats(tmp_path / "none.toml")
