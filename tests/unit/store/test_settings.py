from __future__ import annotations

from pathlib import Path

import pytest

from tuner import paths
from tuner.store.settings import Settings, load


def test_without_a_file_all_is_as_usual(tmp_path: Path) -> None:
    assert load(tmp_path / "none.toml") == Settings()


def test_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('theme = "nord"\nascii = true\n[keymap]\n"logs.search" = "ctrl+f"\n')
    assert load(path) == Settings(theme="nord", ascii=True, keymap={"logs.search": "ctrl+f"})


def test_a_wrong_setting_keeps_its_default_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('theme = 5\nascii = true\ncolour = "red"\n')
    settings = load(path)
    assert (settings.theme, settings.ascii) == (None, True)
    assert len(settings.problems) == 2
    assert "theme" in settings.problems[0]
    assert "colour" in settings.problems[1]


@pytest.mark.parametrize(
    "content", [b"theme = ", b"\xff\xfe", b"[[[", b"problems = ['x']", b"x = " + b"9" * 5000, b"x = " + b"[" * 5000]
)
def test_a_broken_file_is_told_and_not_fatal(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(content)
    settings = load(path)
    assert (settings.theme, settings.ascii, settings.keymap) == (None, False, {})
    assert str(path) in settings.problems[0]


def test_a_folder_in_its_place_is_told(tmp_path: Path) -> None:
    assert "directory" in load(tmp_path).problems[0]


def test_all_files_can_be_put_below_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path))
    for path in (paths.history_file(), paths.settings_file(), paths.state_dir()):
        assert path.is_relative_to(tmp_path)


def test_presets_are_found() -> None:
    assert paths.presets_dir().is_dir()
