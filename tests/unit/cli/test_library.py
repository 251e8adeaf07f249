"""Presets and recipes of this machine, as the dashboard keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.cli.library import FileLibrary
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.errors import UsageProblem


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config/presets"


def preset(name: str) -> Preset:
    return Preset(id=name, title="T", why="w", args={"max_running_requests": 8})


def test_a_preset_that_is_saved_is_known(own: Path) -> None:
    library = FileLibrary()
    assert library.save_preset(preset("mine")) == str(own / "mine.toml")
    assert "mine" in library.presets()[0]


@pytest.mark.parametrize("name", ["mine", "nccl-ring", "broken"])
def test_a_preset_that_is_there_is_not_replaced_be_it_bundled_or_broken(own: Path, name: str) -> None:
    library = FileLibrary()
    library.save_preset(preset("mine"))
    (own / "broken.toml").write_text("title =")
    before = {path: path.read_text() for path in own.iterdir()}
    with pytest.raises(UsageProblem, match=f"There is a preset {name} already"):
        library.save_preset(preset(name))
    assert {path: path.read_text() for path in own.iterdir()} == before


def test_a_name_that_no_file_can_have_is_told() -> None:
    library, name = FileLibrary(), "x" * 300
    with pytest.raises(UsageProblem, match="File name too long"):
        library.save_preset(preset(name))
    with pytest.raises(UsageProblem, match="File name too long"):
        library.save_recipe(Recipe(name=name, host="h", engine="sglang", command=("/bin/python",)))


def test_bundled_presets_stand_before_those_that_are_saved(own: Path) -> None:
    library = FileLibrary()
    bundled = list(library.presets()[0])
    assert bundled == sorted(bundled)
    for name in ("aaa", "zzz"):
        library.save_preset(preset(name))
    (own / f"{bundled[3]}.toml").write_text('title = "T"\nwhy = "mine in its place"\n')
    assert list(library.presets()[0]) == [*bundled, "aaa", "zzz"]
