from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tuner.transports.ssh import known_hosts
from tuner.transports.ssh.known_hosts import find, fingerprint, is_for, matches_list, save

BLOB = base64.b64encode(b"\0\0\0\x0bssh-ed25519 and so on").decode()
OTHER = base64.b64encode(b"another key").decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".ssh" / "known_hosts"


def written(file: Path, *lines: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def lines(file: Path, host: str, port: int = 22) -> list[int]:
    return [key.line for key in find([file], host, port)]


def test_names_ports_patterns_and_markers(file: Path) -> None:
    written(
        file,
        f"box ssh-ed25519 {BLOB} comment",
        f"[box]:2222 ssh-ed25519 {BLOB}",
        "# comment",
        "",
        f"*.example.org,!bad.example.org ssh-rsa {BLOB}",
        f"@cert-authority *.example.org ssh-rsa {OTHER}",
        f"@revoked box ssh-rsa {OTHER}",
        f"10.0.0.?,Box2 ssh-rsa {OTHER}",
    )
    assert lines(file, "box") == [1, 7]
    assert lines(file, "BOX") == [1, 7]
    assert lines(file, "box", 2222) == [2]
    assert lines(file, "a.example.org") == [5, 6]
    assert lines(file, "bad.example.org") == [6]
    assert lines(file, "10.0.0.7") == [8]
    assert lines(file, "box2") == [8]
    assert lines(file, "elsewhere") == []
    assert [key.marker for key in find([file], "box", 22)] == ["", "revoked"]
    assert find([file], "box", 22)[0].where == f"{file} line 1"


def test_another_port_falls_back_to_the_bare_name(file: Path) -> None:
    written(file, f"box ssh-ed25519 {BLOB}")
    (key,) = find([file], "box", 2222)
    assert not is_for(key, "box", 2222)
    assert is_for(key, "box", 22)


def test_lines_that_are_none_are_passed_over(file: Path) -> None:
    written(
        file,
        "box",
        "box ssh-rsa",
        "box ssh-rsa !!!",
        "@odd box ssh-rsa " + BLOB,
        "|1|x box y",
        f"|1|a|b ssh-rsa {BLOB}",
    )
    assert lines(file, "box") == []


def test_files_that_do_not_exist_are_passed_over(tmp_path: Path) -> None:
    assert find([tmp_path / "none", tmp_path], "box", 22) == []


def test_a_hashed_name_is_found_and_nothing_else(file: Path) -> None:
    save(file, "box", 2222, "ssh-ed25519", BLOB, hashed=True)
    assert "box" not in file.read_text()
    assert lines(file, "box", 2222) == [1]
    assert lines(file, "box") == []


def test_a_key_is_saved_once(file: Path) -> None:
    assert save(file, "box", 22, "ssh-ed25519", BLOB)
    assert not save(file, "box", 22, "ssh-ed25519", BLOB)
    assert not save(file, "BOX", 22, "ssh-ed25519", BLOB, hashed=True)
    assert save(file, "box", 2222, "ssh-ed25519", BLOB)
    assert file.read_text() == f"box ssh-ed25519 {BLOB}\n[box]:2222 ssh-ed25519 {BLOB}\n"


def test_saving_makes_the_folder_for_the_user_only(file: Path) -> None:
    save(file, "box", 22, "ssh-ed25519", BLOB)
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_torn_last_line_stays_a_line(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("# torn")
    save(file, "box", 22, "ssh-ed25519", BLOB)
    assert file.read_text() == f"# torn\nbox ssh-ed25519 {BLOB}\n"


def test_pattern_lists() -> None:
    assert matches_list(["*", "!a"], "b")
    assert not matches_list(["*", "!a"], "a")
    assert not matches_list(["!a"], "b")
    assert matches_list(["[::1]:22"], "[::1]:22")
    assert not matches_list(["[ab]"], "a")
    assert matches_list(["a?c"], "abc")


def test_names_with_ports() -> None:
    assert known_hosts.name_of("::1", 2222) == "[::1]:2222"
    assert known_hosts.name_of("Box", 22) == "box"


def test_a_fingerprint_is_as_openssh_prints_it() -> None:
    assert fingerprint(base64.b64encode(b"abc").decode()) == "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"
