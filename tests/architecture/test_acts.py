"""Nothing on a host is changed except through the one door, and the door knows every act."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import tuner
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
    "identity.py": {
        "os.pidfd_open", "signal.pidfd_send_signal", "os.kill",
        # The same calls for Python before 3.9, which has no functions for them.
        "ctypes.CDLL", "ctypes.c_long", "ctypes.get_errno",
    },
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
        "existing_above",
        "disk_of",
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


# The laptop's side.

LAPTOP = Path(tuner.__file__).parent
READING = {"plan", "ping", "search", "cancel", "read", "checks", "nvml", "bye", "preflight"}
"""Orders that change nothing on a host."""


def _sources() -> dict[str, ast.Module]:
    paths = (path for path in LAPTOP.rglob("*.py") if "probe/agent" not in str(path) and "simhost" not in path.parts)
    return {str(path.relative_to(LAPTOP)): ast.parse(path.read_text()) for path in paths}


def test_the_order_that_changes_a_host_is_made_in_one_place() -> None:
    """Every order is a literal, so that each can be listed; the one that changes something is in `session/acts.py`."""
    found: dict[str, set[str]] = {}
    for name, tree in _sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "op":
                        assert isinstance(value, ast.Constant), f"{name}:{node.lineno}: an order that cannot be listed"
                        found.setdefault(str(value.value), set()).add(name)
            if isinstance(node, ast.keyword) and node.arg == "op":
                raise AssertionError(f"{name}:{node.value.lineno}: an order that cannot be listed")
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Subscript) and ast.unparse(target.slice) == "'op'" for target in node.targets
            ):
                raise AssertionError(f"{name}:{node.lineno}: an order that is changed")
    assert set(found) == READING | {"act"}
    assert found["act"] == {"session/acts.py"}


def test_orders_leave_through_the_session_alone() -> None:
    """The link's `send` is called by the session, whose `_send` only requests have, whose `order` only acts have."""
    senders: dict[str, set[str]] = {"_send": set(), "order": set(), "Acts": set(), "Requests": set()}
    for name, tree in _sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Acts", "Requests", "acts.Acts"):
                senders[ast.unparse(node.func).rpartition(".")[2]].add(name)
            if isinstance(node, ast.Attribute) and ast.unparse(node).endswith(("_link.send", "link.send")):
                senders["_send"].add(name)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("self._requests.order", "requests.order"):
                senders["order"].add(name)
    everything = {"session/session.py"}
    assert senders == {"_send": everything, "order": everything, "Acts": everything, "Requests": everything}


def test_every_act_is_confirmed_where_it_is_asked_for() -> None:
    """Whoever calls `act` says whether the operator confirmed it: as a value, or as True after a question."""
    callers: set[str] = set()
    for name, tree in _sources().items():
        for node in ast.walk(tree):
            # A screen's own `self.act` posts a message, which `screens/tune_requests.py` carries out.
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".act"):
                if ast.unparse(node.func) == "self.act":
                    continue
                assert [word.arg for word in node.keywords] == ["confirmed"], f"{name}:{node.lineno}"
                callers.add(name)
    assert callers == {
        "cli/apply.py",
        "cli/following.py",
        "screens/tune_requests.py",
        "session/session.py",
    }


def test_every_act_is_made_where_an_operator_asks_for_it() -> None:
    """No act is made by the core on its own: `core.runs` offers some as options, which a person chooses."""
    names = {kind.__name__ for kind in get_args(AnyAct)}
    makers: dict[str, set[str]] = {name: set() for name in names}
    for name, tree in _sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names:
                makers[ast.unparse(node.func).rpartition(".")[2]].add(name.partition("/")[0])
    assert all(places <= {"cli", "screens", "session", "core"} for places in makers.values()), makers
    assert {name for name, places in makers.items() if "core" in places} == {"ResumeRun", "EndLeftovers"}
    assert {name for name, places in makers.items() if "session" in places} == {"TakeLease"}
