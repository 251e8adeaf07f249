from __future__ import annotations

from pathlib import Path

import pytest

from tuner.core.doctor import examine
from tuner.domain.link import Target
from tuner.domain.state import HostState, LinkState
from tuner.transports.ssh import config
from tuner.transports.ssh.config import options, without_effect
from tuner.transports.ssh.route import route


def found(tmp_path: Path, text: str, host: str = "gpu-1") -> dict[str, str]:
    file = tmp_path / "config"
    file.write_text(text)
    return {name: value for name, (_, value) in options([file], host).items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ControlMaster auto", "auto"),
        ("ControlMaster=auto", "auto"),
        ("ControlMaster = auto", "auto"),
        ("  controlmaster\tauto  # why not", "auto"),
        ('ControlMaster "auto"', "auto"),
        ("Host gpu-*\n ControlMaster auto", "auto"),
        ("Host a gpu-1\n ControlMaster auto", "auto"),
        ("Host * !gpu-1\n ControlMaster auto", None),
        ("Host other\n ControlMaster auto", None),
        ("Host other\n X y\nMatch all\n ControlMaster auto", "auto"),
        ("Match originalhost gpu-1,b\n ControlMaster auto", "auto"),
        ("Match !host gpu-1\n ControlMaster auto", None),
        ("Match exec true\n ControlMaster auto", None),
        ("ControlMaster auto\nControlMaster no", "auto"),
        ("ControlMaster no\nHost *\nControlMaster auto", "no"),
        ('ControlMaster "auto', None),
        ("\n\n#x", None),
    ],
)
def test_the_first_value_that_applies(tmp_path: Path, text: str, value: str | None) -> None:
    assert found(tmp_path, text).get("controlmaster") == value


def test_included_files_are_read_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("Tunnel yes\nHost other\nCheckHostIP yes\n")
    seen = found(tmp_path, f"Host gpu-1\nInclude {tmp_path}/b {tmp_path}/none\nTunnel no\nLocalCommand x\n")
    assert seen == {"tunnel": "yes", "localcommand": "x"}


def test_files_that_include_themselves_end(tmp_path: Path) -> None:
    assert found(tmp_path, f"Include {tmp_path}/config\nTunnel yes\n") == {"tunnel": "yes"}


def test_earlier_files_win(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("Tunnel yes\n")
    (tmp_path / "system").write_text("Tunnel no\nCheckHostIP yes\n")
    seen = options([tmp_path / "user", tmp_path / "system", tmp_path / "none"], "h")
    assert {name: value for name, (_, value) in seen.items()} == {"tunnel": "yes", "checkhostip": "yes"}


async def test_a_system_file_that_cannot_be_read_is_a_note_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = tmp_path / "ssh_config"
    system.write_text('Match exec: "a: b\n')
    monkeypatch.setattr(config, "SYSTEM_FILE", system)
    monkeypatch.setattr(config, "USER_FILE", tmp_path / "none")
    with config.copied() as files:
        (hop,) = await route(Target(name="h", host="h"), files)
    check = next(c for c in examine({}, HostState(name="h", link=LinkState(notes=hop.notes)), None))
    assert check.value.startswith(f"{system} (")
    assert "line 1" in check.value
    assert check.cost == "not honoured, the SSH library cannot read it"


def test_what_happens_instead_has_no_colon_of_its_own() -> None:
    values = {key: (key, "a: b") for key in config._WITHOUT_EFFECT}
    for note in without_effect(values):
        what, _, instead = note.rpartition(": ")
        assert what.endswith(" a: b")
        assert instead.startswith("not honoured, ")


def test_notes_say_what_happens_instead(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "ControlMaster auto\nControlPath x\nForwardAgent no\nStrictHostKeyChecking no\nUser me\nRemoteCommand none\n"
    )
    notes = without_effect(options([file], "h"))
    assert [note.split(":")[0] for note in notes] == ["ControlMaster auto", "StrictHostKeyChecking no"]
    assert "always asked" in notes[1]
    file.write_text("StrictHostKeyChecking ask\n")
    assert without_effect(options([file], "h")) == ()


def test_a_copy_has_the_same_lines_without_comments_at_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "etc" / "none")
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    (ssh / "more").write_text("Port 1 # one\n")
    (ssh / "config").write_text(
        '# first\nHost a#b c # d\n  ProxyCommand x # y\n  SetEnv "A=1 # 2" # 3\n'
        "Include more none # both\nInclude none\n"
    )
    with config.copied() as copy:
        (file,) = copy.files
        lines = Path(file).read_text().splitlines()
        assert lines[:4] == ["# first", "Host a#b c", "  ProxyCommand x # y", '  SetEnv "A=1 # 2"']
        included = lines[4].removeprefix("Include ")
        assert Path(included).read_text() == "Port 1\n"
        assert lines[5] == ""
        assert copy.originals([file]) == [ssh / "config"]
        assert copy.original(f"{included} line 1: no") == f"{ssh / 'more'} line 1: no"
    assert not Path(file).exists()
