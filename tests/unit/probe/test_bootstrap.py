"""How the probe gets to a host, and what a host says that cannot run it."""

from __future__ import annotations

import ast
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from graphlib import CycleError
from pathlib import Path

import pytest

from tests.fixtures.proc.running import pythons
from tuner.probe import bootstrap
from tuner.probe.bootstrap import STUB, argv, modules, payload, supervisor

FOLDER = Path(bootstrap.__file__).with_name("agent")
HOME = Path(pwd.getpwuid(os.getuid()).pw_dir)
OLD = [str(path) for path in sorted(HOME.glob(".pyenv/versions/[23].[67].*/bin/python"))]
SOURCE = zlib.compress(b"print('started', flush=True)")
STARTS = b"%d\n" % len(SOURCE) + SOURCE
"""A payload that only says that it came through."""
TOOLS = ("sh", "grep", "id", "ls", "readlink", "sort")
AUDIT = """
import os, sys

def hook(event, args):
    if event == "import":
        os.write(2, b"import %s\\n" % args[0].encode())
    elif event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(2, b"write %s\\n" % str(args[0]).encode())

sys.addaudithook(hook)
"""


def fake_python(path: Path, version: str) -> None:
    """An interpreter that is too old, as far as the script can tell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\ncase "$1" in -c) printf {version};; *) exit 1;; esac\n')
    path.chmod(0o755)


@pytest.fixture
def host() -> Iterator[Path]:
    """A folder that only we and root write, and none of those it is in: /tmp is one that everybody does."""
    with tempfile.TemporaryDirectory(dir=HOME, prefix=".gputuner-test-") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def bare(host: Path) -> Path:
    """A PATH without any Python, on a host that has none elsewhere."""
    folder = host / "bin"
    folder.mkdir()
    for name in TOOLS:
        place = shutil.which(name)
        assert place
        (folder / name).symlink_to(place)
    return folder


def start(bare: Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    host = bare.parent
    command = [text.replace(" /opt/", f" {host}/opt/").replace(" /usr/", f" {host}/usr/") for text in argv()]
    env = {"PATH": str(bare), "HOME": str(host), "HOST_ROOT": str(host / "root")}
    return subprocess.run(command, input=data, capture_output=True, env=env, timeout=20.0)


def test_the_payload_holds_every_module_of_the_folder_as_it_is() -> None:
    length, _, packed = payload().partition(b"\n")
    assert int(length) == len(packed)
    loader, *parts = zlib.decompress(packed).split(b"\0")
    ast.parse(loader)
    sent = dict(zip(parts[::2], parts[1::2], strict=True))
    files = {path.stem.encode(): path.read_bytes() for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert sent == files
    assert len(parts) == 2 * len(files)
    assert {path.name for path in FOLDER.iterdir()} - {"__pycache__"} == {path.name for path in FOLDER.glob("*.py")}


def test_what_is_not_sent_does_nothing() -> None:
    (docstring,) = ast.parse((FOLDER / "__init__.py").read_text()).body
    assert isinstance(docstring, ast.Expr)


def test_each_module_comes_after_those_it_imports() -> None:
    done: set[str] = set()
    for name, source in modules().items():
        imports = [node for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in imports:
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, f"{name}: nothing above the folder is on the host"
                assert node.module in done, f"{name}: write `from .{node.module or 'MODULE'} import NAME`"
                continue
            tops = {part.name.split(".")[0] for part in node.names} if isinstance(node, ast.Import) else {node.module}
            assert tops <= sys.stdlib_module_names, name
        done.add(name)
    assert name == "probe"


def test_modules_that_import_each_other_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / f"{name}.py").write_text(f"from .{other} import x\n")
    monkeypatch.setattr(bootstrap, "files", lambda package: tmp_path)
    with pytest.raises(CycleError):
        modules()


@pytest.mark.parametrize("python", pythons())
def test_no_file_is_written_and_none_is_looked_for_that_is_ours(python: str, tmp_path: Path) -> None:
    """The interpreter itself tells what it opens, and which modules it does not have and must find."""
    order = b'{"op":"bye"}\n'
    done = subprocess.run(
        [python, "-ISBuc", AUDIT + STUB], input=payload() + order, capture_output=True, cwd=tmp_path, timeout=20.0
    )
    assert json.loads(done.stdout.partition(b"\n")[0])["t"] == "hello"
    found = [line.split() for line in done.stderr.decode().splitlines()]
    imported = [name for kind, name in found if kind == "import"]
    assert "queue" in imported, "what the standard library has is found"
    assert not [name for name in imported if name.startswith("gputuner")]
    assert not [name for kind, name in found if kind == "write"]
    assert not list(tmp_path.iterdir())


def test_a_fault_names_its_module_and_line() -> None:
    lines = (FOLDER / "probe.py").read_text().splitlines()
    (number,) = [at for at, line in enumerate(lines, 1) if line.strip() == 'op = order["op"]']
    done = subprocess.run(
        [sys.executable, "-ISBuc", STUB],
        input=payload() + b'{}\n{"op":"bye"}\n',
        capture_output=True,
        timeout=20.0,
    )
    assert b"(probe.py line %d)" % number in done.stdout
    assert b'File "<gputuner-probe/probe.py>", line %d' % number in done.stderr


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
    assert done.returncode == 3
    answer = {"t": "problem", "seq": 1, "mono": 0.0, "code": "python-old", "detail": old or "none"}
    assert json.loads(done.stdout) == answer


@pytest.mark.parametrize(
    "place",
    [
        "bin/python3.9",
        "miniconda3/bin/python3",
        ".local/share/uv/python/x/bin/python3",
        "opt/conda/bin/python3",
        "usr/libexec/platform-python",
    ],
)
def test_a_newer_python_is_found_beside_an_old_one(bare: Path, place: str) -> None:
    fake_python(bare / "python3", "3.6.15")
    path = bare.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(sys.executable)
    assert start(bare, STARTS).stdout == b"started\n"


def runs(bare: Path, program: Path) -> None:
    """Make it look as if a process ran a program."""
    process = bare.parent / "root/proc/4711"
    process.mkdir(parents=True)
    (process / "exe").symlink_to(program)


def own_python(place: Path) -> Path:
    """An interpreter, as far as the script can tell."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    place.chmod(0o755)
    return place


def is_tried(bare: Path) -> bool:
    """True when the script starts anything as an interpreter."""
    return start(bare, STARTS).stdout == b"started\n"


@pytest.mark.parametrize("name", ["python3", "python3.9", "python3.11"])
def test_the_interpreter_of_a_running_program_is_found(bare: Path, name: str) -> None:
    runs(bare, own_python(bare.parent / "srv/bin" / name))
    assert is_tried(bare)


@pytest.mark.parametrize(
    "name", ["lib/python3.10/site-packages/ray/raylet", "bin/python3.11-config", "bin/xpython3", "bin/python3.x"]
)
def test_a_running_program_that_only_sounds_like_python_is_not_run(bare: Path, name: str) -> None:
    runs(bare, own_python(bare.parent / "srv" / name))
    assert not is_tried(bare)


@pytest.mark.parametrize("gap", [" ", "\n"])
def test_a_path_is_not_taken_apart_into_programs(bare: Path, gap: str) -> None:
    victim = own_python(bare.parent / "python3-tools/reboot")
    runs(bare, own_python(Path(f"{bare.parent}/x{gap}{victim}{gap}/python3")))
    assert not is_tried(bare)


def test_a_link_called_python_does_not_run_another_program(bare: Path) -> None:
    own_python(bare.parent / "reboot")
    (bare.parent / "python3").symlink_to("reboot")
    runs(bare, bare.parent / "python3")
    assert not is_tried(bare)


@pytest.fixture(params=["running", "in /opt"])
def place(request: pytest.FixtureRequest, bare: Path) -> Path:
    """An installation whose bin/python3 is found."""
    folder = bare.parent / "opt/a"
    if request.param == "running":
        folder = bare.parent / "srv/a"
        runs(bare, folder / "bin/python3")
    own_python(folder / "bin/python3")
    assert is_tried(bare)
    return folder


@pytest.mark.parametrize("part", ["..", "", "bin", "bin/python3"])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_an_interpreter_that_others_can_write_or_swap_is_not_run(bare: Path, place: Path, part: str, mode: int) -> None:
    (place / part).chmod(mode)
    assert not is_tried(bare)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("part", ["", "bin", "bin/python3"])
def test_an_interpreter_of_another_user_is_not_run(bare: Path, place: Path, part: str) -> None:
    os.chown(place / part, 65534, 65534)
    assert not is_tried(bare)


@pytest.mark.parametrize("python", pythons())
def test_the_supervisor_is_one_file_that_starts_quickly(python: str, tmp_path: Path) -> None:
    """It has all that it imports, compiles only what it needs, and leaves its errors in the folder of the run."""
    own = Path(bootstrap.__file__).with_name("supervisor")
    program = tmp_path / "supervisor.py"
    program.write_bytes(supervisor())
    (tmp_path / "order.json").write_text("torn")
    began = time.monotonic()
    done = subprocess.run([python, "-ISB", program, tmp_path], cwd="/", timeout=20.0, capture_output=True)
    took = time.monotonic() - began
    assert done.returncode == 1
    assert (done.stdout, done.stderr) == (b"", b"")
    assert "order.json is no order" in (tmp_path / "supervisor.err").read_text()
    assert (tmp_path / "supervisor.err").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["order.json", "supervisor.err", "supervisor.py"]
    assert took < 1.0, "0.1 s where nothing else runs"
    every = "import sys\nfor name in sorted(Finder.sources):\n    __import__(name)\nprint(*Finder.sources)\n"
    (tmp_path / "all.py").write_bytes(supervisor().replace(b"\nmain()\n", b"\n" + every.encode()))
    done = subprocess.run([python, "-ISB", tmp_path / "all.py", tmp_path], cwd="/", timeout=20.0, capture_output=True)
    assert done.returncode == 0, (tmp_path / "supervisor.err").read_text()
    packed = (tmp_path / "supervisor.err").read_text().split()
    names = {f"gputuner_run.supervisor.{path.stem}" for path in own.glob("*.py") if path.stem != "__init__"}
    assert names <= set(packed), "no module of its folder is left over"
    assert {name.split(".")[0] for name in packed if "." in name and "/" not in name} >= {"gputuner_run"}


def test_the_supervisor_imports_nothing_else_of_ours() -> None:
    for path in Path(bootstrap.__file__).with_name("supervisor").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                place = (node.module or "").split(".")
                assert (node.level, len(place)) == (1, 1) or (node.level, place[0], len(place)) == (2, "agent", 2), path
            elif isinstance(node, ast.Import | ast.ImportFrom):
                tops = {x.name.split(".")[0] for x in node.names} if isinstance(node, ast.Import) else {node.module}
                assert tops <= sys.stdlib_module_names, path
