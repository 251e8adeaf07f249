"""The environment of a clone is made when it has to be, and only then."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

DO = Path(__file__).parents[3] / ".ci/do"


class Clone:
    """A clone with an interpreter, and what was done to its environment."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.python = folder / "usr/python3"
        self.python.parent.mkdir()
        self.python.touch()
        self.done: list[str] = []
        self._patch = monkeypatch
        (folder / "pyproject.toml").write_text('[dependency-groups]\ndev = ["pytest"]\n')
        self._do = module()
        monkeypatch.setattr(self._do, "ROOT", folder)
        monkeypatch.setattr(self._do, "VENV", folder / ".venv")
        monkeypatch.setattr(self._do, "make_environment", self._made)
        monkeypatch.setattr(self._do, "install", lambda wanted, _: self.done.append(" ".join(wanted[2:]) or "product"))
        self.runs_on(3, 11, 7)

    def _made(self) -> None:
        (self.folder / ".venv/bin").mkdir(parents=True)
        (self.folder / ".venv/bin/python").symlink_to(self.python)
        self.done.append("made")

    def runs_on(self, *version: int) -> None:
        words = SimpleNamespace(
            version_info=version, version=".".join(map(str, version)), executable=str(self.python), stderr=sys.stderr
        )
        self._patch.setattr(self._do, "sys", words)

    def set_up(self, *, tools: bool) -> list[str]:
        self.done = []
        self._do.set_up(tools=tools)
        return self.done


def module() -> ModuleType:
    spec = spec_from_loader("ci_do", SourceFileLoader("ci_do", str(DO)))
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(made)
    finally:
        sys.dont_write_bytecode = before
    return made


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    return Clone(tmp_path, monkeypatch)


def test_the_second_time_nothing_is_done(clone: Clone) -> None:
    assert clone.set_up(tools=False) == ["made", "product"]
    assert clone.set_up(tools=False) == []
    assert clone.set_up(tools=True) == ["pytest"], "the tools are added to what is there"
    assert clone.set_up(tools=True) == clone.set_up(tools=False) == []


def test_another_patch_version_of_python_changes_nothing(clone: Clone) -> None:
    clone.set_up(tools=True)
    clone.runs_on(3, 11, 14)
    assert clone.set_up(tools=True) == []


def test_another_minor_version_does(clone: Clone) -> None:
    clone.set_up(tools=True)
    clone.runs_on(3, 12, 0)
    assert clone.set_up(tools=True) == ["made", "pytest"]


def test_an_interpreter_that_is_gone_does(clone: Clone) -> None:
    clone.set_up(tools=True)
    clone.python.unlink()
    clone.python = clone.python.with_name("python3.11")
    clone.python.touch()
    assert clone.set_up(tools=True) == ["made", "pytest"]


def test_other_dependencies_do(clone: Clone) -> None:
    clone.set_up(tools=True)
    (clone.folder / "pyproject.toml").write_text('[dependency-groups]\ndev = ["pytest", "ruff"]\n')
    assert clone.set_up(tools=True) == ["made", "pytest ruff"]


APT = """#!/bin/sh
echo "$*" >> {folder}/asked
[ "$1" = install ] && for name in {brings}; do /bin/ln -s /bin/true {folder}/$name; done
exit {code}
"""


def packaged(folder: Path, monkeypatch: pytest.MonkeyPatch, *, brings: str, root: bool) -> ModuleType:
    """A machine without OpenSSH's server, whose packages bring some programs."""
    apt, code = folder / "apt-get", 0 if brings else 100
    apt.write_text(APT.format(folder=folder, brings=brings, code=code))
    apt.chmod(0o755)
    (folder / "ssh-keygen").symlink_to("/bin/true")
    (folder / "ssh-agent").symlink_to("/bin/true")
    do = module()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(do, "SYSTEM_PROGRAMS", ())
    monkeypatch.setattr(do, "IN_CI", False)
    monkeypatch.setattr(do, "SERVICES", folder / "no-service-manager")
    monkeypatch.setattr(do.os, "geteuid", lambda: 0 if root else 1000)
    return do


def test_root_is_given_the_programs_that_tests_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do = packaged(tmp_path, monkeypatch, brings="sshd", root=True)
    assert do.all_tests() == (do.TESTS, do.SSHD_TESTS)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["update -qq", "install -y -qq --no-install-recommends openssh-server"]
    assert do.all_tests() == (do.TESTS, do.SSHD_TESTS)
    assert len((tmp_path / "asked").read_text().splitlines()) == 2, "and once is enough"


@pytest.mark.parametrize(("root", "brings"), [(False, "sshd"), (True, "")])
def test_others_are_told_what_to_install_and_ci_is_let_fail(
    root: bool, brings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    do = packaged(tmp_path, monkeypatch, brings=brings, root=root)
    assert do.all_tests() == (do.TESTS,)
    assert capsys.readouterr().err.endswith("They need: apt install openssh-server\n")
    assert (tmp_path / "asked").exists() == root
    monkeypatch.setattr(do, "IN_CI", True)
    assert do.all_tests() == (do.TESTS, (*do.SSHD_TESTS, "--no-skips"))


def test_no_daemon_is_installed_where_services_start_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian's openssh-server listens on port 22 from its installation on, which nobody asked for."""
    do = packaged(tmp_path, monkeypatch, brings="sshd", root=True)
    do.SERVICES.mkdir()
    assert do.all_tests() == (do.TESTS,)
    assert capsys.readouterr().err.endswith("They need: apt install openssh-server\n")
    assert not (tmp_path / "asked").exists()
    monkeypatch.setattr(do, "IN_CI", True)
    assert do.all_tests() == (do.TESTS, (*do.SSHD_TESTS, "--no-skips"))
    assert (tmp_path / "asked").exists()
