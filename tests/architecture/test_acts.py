"""Nothing on a host is changed except through the one door, and the door knows every act."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from tuner.domain.acts import AnyAct
from tuner.domain.runs import RunRecord
from tuner.probe.agent import acts, runs_watch

AGENT = Path(acts.__file__).parent
ALLOWED = {
    # Files in gputuner's folder, which is made by an act.
    "folder.py": {
        "os.makedirs", "os.open(WRITE)", "os.rename", "os.unlink", "os.write", "os.fsync", "os.ftruncate",
        "os.pwrite", "fcntl.flock",
    },
    "leftovers.py": {"shutil.rmtree"},
    # Signals, each after a proof of identity.
    "identity.py": {"os.pidfd_open", "signal.pidfd_send_signal", "os.kill"},
    # The supervisor of a run, and programs that only look.
    "launcher.py": {"subprocess.Popen"},
    "children.py": {"subprocess.Popen", "subprocess.call"},
    "search.py": {"signal.setitimer"},
    # The network namespace of a server, entered by one thread; and the driver's library.
    "polling.py": {"ctypes.CDLL", "ctypes.get_errno"},
    "gpu_binding.py": {"ctypes.CDLL"},
    # The probe itself: its lines, and its end.
    "output.py": {"os.write"},
    "probe.py": {"os.write", "os._exit"},
}  # fmt: skip
"""What each module of the probe may do beyond reading. Who adds to this adds a way to change a host."""

_CHANGES = re.compile(
    r"os\.(?:mkdir|makedirs|mkfifo|mknod|rename|renames|replace|remove|removedirs|unlink|rmdir|link|symlink|truncate"
    r"|ftruncate|write|writev|pwrite|pwritev|fsync|sendfile|copy_file_range|chmod|fchmod|lchmod|chown|fchown|lchown"
    r"|utime|setxattr|removexattr|chroot|putenv|setuid|setgid|seteuid|setegid|setpriority|nice"
    r"|kill|killpg|pidfd_open|abort|_exit|fork|forkpty|posix_spawnp?|exec[a-z]+|spawn[a-z]+|system|popen)"
    r"|signal\.(?:pidfd_send_signal|pthread_kill|raise_signal|setitimer|alarm)"
    r"|subprocess\.\w+|shutil\.\w+|tempfile\.\w+|pathlib\.\w+|ctypes\.\w+|multiprocessing\.\w+|fcntl\.\w+"
    r"|socket\.(?:create_server|bind)|resource\.(?:setrlimit|prlimit)"
)
_HARMLESS = {"subprocess.DEVNULL", "subprocess.PIPE", "subprocess.STDOUT", "subprocess.TimeoutExpired",
             "subprocess.SubprocessError", "fcntl.LOCK_EX", "fcntl.LOCK_NB"}  # fmt: skip


def changes(path: Path) -> set[str]:
    """What a module does, or could do, beyond reading: by any name that reaches it, called or handed on."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute | ast.Name):
            name = ast.unparse(node)
            if _CHANGES.fullmatch(name) and name not in _HARMLESS:
                found.add(name)
            if re.fullmatch(r"os\.O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)", name):
                found.add("os.open(WRITE)")
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "signal", "subprocess", "shutil", "tempfile"):
            found.update(f"{node.module}.{part.name}" for part in node.names)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                name = f"{ast.unparse(node.args[0])}.{node.args[1].value}"
                if _CHANGES.fullmatch(name):
                    found.add(name)
            opens = name in ("open", "os.fdopen") or name.endswith(".open")
            if opens and re.search(r"'[rbt]*[wax+][rbt+]*'", ast.unparse(node)):
                found.add(f"{name}(WRITE)")
            if name.endswith((".write_text", ".write_bytes", ".touch")):
                found.add(name)
    return found


@pytest.mark.parametrize("path", sorted(AGENT.glob("*.py")), ids=lambda path: path.name)
def test_the_probe_changes_nothing_but_where_it_is_listed(path: Path) -> None:
    assert changes(path) <= ALLOWED.get(path.name, set())


def test_the_list_has_no_more_than_is_needed() -> None:
    for name, allowed in ALLOWED.items():
        assert allowed <= changes(AGENT / name), name


def test_only_the_door_and_its_helpers_use_what_changes_a_host() -> None:
    """The listed functions are reached from acts alone."""
    users: dict[str, set[str]] = {"folder": set(), "identity": set(), "launcher": set(), "leftovers": set()}
    harmless = {
        "our_folder",
        "folder_of",
        "run_folder",
        "run_ids",
        "read_json",
        "size_of",
        "alive",
        "boot_id",
        "why_not",
    }
    for path in AGENT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1 and {part.name for part in node.names} - harmless:
                users.get(str(node.module), set()).add(path.name)
    assert users == {
        "folder": {"acts.py", "lease.py", "leftovers.py"},
        "identity": {"leftovers.py"},
        "launcher": {"acts.py"},
        "leftovers": {"acts.py"},
    }


def test_the_door_knows_every_act() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(AnyAct)}
    source = (AGENT / "acts.py").read_text()
    (table,) = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "self.handlers"
    ]
    assert isinstance(table, ast.Dict)
    assert {key.value for key in table.keys if isinstance(key, ast.Constant)} == tags


def test_every_field_of_a_run_is_sent() -> None:
    by_the_probe = {"supervised", "alive"}
    assert set(runs_watch._KNOWN) | by_the_probe == set(RunRecord.__struct_fields__)
