"""Help texts of installed engines, kept on this machine."""

from __future__ import annotations

import stat
from pathlib import Path

from tuner.store.help_texts import MOST, HelpTexts

COMMAND = ("/venv/bin/python", "-m", "x", "--help")


def test_a_text_is_that_of_host_command_and_version(tmp_path: Path) -> None:
    texts = HelpTexts(tmp_path / "help")
    texts.keep("box", COMMAND, "1.0", "usage: x")
    assert texts.find("box", COMMAND, "1.0") == "usage: x"
    assert HelpTexts(tmp_path / "help").find("box", COMMAND, "1.0") == "usage: x"
    for host, command, version in (("other", COMMAND, "1.0"), ("box", COMMAND[1:], "1.0"), ("box", COMMAND, "1.1")):
        assert texts.find(host, command, version) is None
    texts.keep("box", COMMAND, "1.0", "usage: y")
    assert texts.find("box", COMMAND, "1.0") == "usage: y"


def test_without_a_version_nothing_is_kept_or_found(tmp_path: Path) -> None:
    texts = HelpTexts(tmp_path / "help")
    texts.keep("box", COMMAND, None, "usage: x")
    texts.keep("box", COMMAND, "1.0", "")
    assert texts.find("box", COMMAND, None) is None
    assert not (tmp_path / "help").exists()


def test_only_the_newest_are_kept_for_their_owner_alone(tmp_path: Path) -> None:
    texts = HelpTexts(tmp_path / "help")
    for number in range(MOST + 5):
        texts.keep("box", COMMAND, str(number), "usage")
    files = list((tmp_path / "help").iterdir())
    assert len(files) == MOST
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert texts.find("box", COMMAND, str(MOST + 4)) == "usage"


def test_a_folder_that_cannot_be_used_costs_the_cache_only(tmp_path: Path) -> None:
    (tmp_path / "help").write_text("a file")
    texts = HelpTexts(tmp_path / "help")
    texts.keep("box", COMMAND, "1.0", "usage")
    assert texts.find("box", COMMAND, "1.0") is None
    (tmp_path / "help").unlink()
    texts.keep("box", COMMAND, "1.0", "usage")
    (file,) = (tmp_path / "help").iterdir()
    file.write_bytes(b"\xff\xfe")
    assert texts.find("box", COMMAND, "1.0") is None
