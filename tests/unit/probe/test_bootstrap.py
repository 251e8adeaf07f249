"""How the probe gets to a host, and what a host says that cannot run it."""

from __future__ import annotations

import ast
import json
import os
import pwd
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tuner.probe import bootstrap
from tuner.probe.bootstrap import STUB, argv, payload

HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)
OLD = [str(path) for path in sorted(HOME.glob(".pyenv/versions/[23].[67].*/bin/python"))]
SOURCE = zlib.compress(b"print('started', flush=True)")
STARTS = b"%d\n" % len(SOURCE) + SOURCE
"""A payload that only says that it came through."""
TOOLS = ("sh", "grep", "sort", "readlink")


def fake_python(path: Path, version: str) -> None:
    """An interpreter that is too old, as far as the script can tell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\ncase "$1" in -c) printf {version};; *) exit 1;; esac\n')
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH without any Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        place = shutil.which(name)
        assert place
        (folder / name).symlink_to(place)
    return folder


def start(bare: Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    root = bare.parent / "root"
    env = {"PATH": str(bare), "HOME": str(bare.parent), "HOST_ROOT": str(root)}
    return subprocess.run(list(argv()), input=data, capture_output=True, env=env, timeout=20.0)


def test_the_payload_is_the_agent_in_sections_with_its_line_numbers() -> None:
    length, _, packed = payload().partition(b"\n")
    assert int(length) == len(packed)
    loop = ast.parse(zlib.decompress(packed)).body[-1]
    assert isinstance(loop, ast.For)
    parts = ast.literal_eval(loop.iter)
    source = Path(bootstrap.__file__).with_name("agent.py").read_text()
    assert len(parts) > 10
    assert max(map(len, parts)) < len(source) / 4
    whole = ast.dump(ast.parse(source), include_attributes=True)
    nodes = [node for part in parts for node in ast.parse(part).body]
    assert ast.dump(ast.Module(nodes, []), include_attributes=True) == whole


def test_no_login_shell_can_misread_it() -> None:
    for text in argv():
        assert not set("'!\n") & set(text)
        assert "\\\\" not in text
    assert sum(map(len, argv())) < 4096


@pytest.mark.parametrize("python", [*OLD, sys.executable])
def test_the_stub_compiles_everywhere_and_says_what_is_too_old(python: str) -> None:
    done = subprocess.run([python, "-c", STUB], input=b"", capture_output=True)
    if python == sys.executable:
        assert done.stdout == b""
        return
    answer = json.loads(done.stdout)
    assert (answer["t"], answer["code"]) == ("problem", "python-old")
    assert python.split("/versions/")[1].startswith(answer["detail"])


@pytest.mark.parametrize("old", [None, "3.6.15"])
def test_a_host_without_a_usable_python_says_so(bare: Path, old: str | None) -> None:
    if old:
        fake_python(bare / "python3", old)
    done = start(bare, STARTS)
    if any(Path("/opt").glob("*/bin/python3")) or Path("/usr/libexec/platform-python").exists():
        assert done.stdout == b"started\n", "this machine has one where no PATH leads, and it must be found"
        return
    assert done.returncode == 3
    answer = {"t": "problem", "seq": 1, "mono": 0.0, "code": "python-old", "detail": old or "none"}
    assert json.loads(done.stdout) == answer


@pytest.mark.parametrize("place", ["bin/python3.9", "miniconda3/bin/python3", ".local/share/uv/python/x/bin/python3"])
def test_a_newer_python_is_found_beside_an_old_one(bare: Path, place: str) -> None:
    fake_python(bare / "python3", "3.6.15")
    path = bare.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(sys.executable)
    assert start(bare, STARTS).stdout == b"started\n"


def test_the_interpreter_of_a_running_program_is_found(bare: Path) -> None:
    process = bare.parent / "root/proc/4711"
    process.mkdir(parents=True)
    place = bare.parent / "hidden/python3.11"
    place.parent.mkdir()
    place.symlink_to(sys.executable)
    (process / "exe").symlink_to(place)
    assert start(bare, STARTS).stdout == b"started\n"
