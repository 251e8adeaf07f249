"""Start a server so that it outlives everybody, and so that no start goes unrecorded."""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..agent.arguments import masked_argv
from ..agent.base import HOST_ROOT
from ..agent.processes import read_stat
from ..agent.programs import find_program, is_program
from .members import TOKEN
from .orders import Launch, ProcessId
from .pulse import Pulse, reset_signals
from .record import plain


class LaunchFailed(Exception):
    """The program could not be started."""


def environment(launch: Launch, run: str) -> Dict[str, str]:
    """Return the whole environment of a server that is to be started."""
    base = dict(os.environ) if launch.base is None else launch.base
    env = {name: value for name, value in base.items() if name not in launch.unset}
    env.update(launch.env)
    env[TOKEN] = run
    if HOST_ROOT:
        env["HOST_ROOT"] = HOST_ROOT  # a simulated host knows its processes by it
    return env


def program_of(launch: Launch, env: Dict[str, str]) -> str:
    """Return the path of the program that a launch runs. Raises LaunchFailed, naming it."""
    path = find_program(launch.argv[0], env, folder_of(launch, env))
    if path is None:
        raise LaunchFailed("%s is not there" % launch.argv[0])
    if not is_program(path):
        raise LaunchFailed("%s is not executable" % path)
    return path


def folder_of(launch: Launch, env: Dict[str, str]) -> str:
    """Return the working folder of a server that is to be started."""
    return launch.cwd or env.get("HOME") or "/"


def log_of(launch: Launch, folder: str, run: str, *, back: bool) -> str:
    """Return the path of the log of a server that is to be started. `folder`: that of the run."""
    name = launch.log_name or (run if launch.log_dir else "server")
    return os.path.join(launch.log_dir or folder, name + ("-back" if back else "") + ".log")


def open_log(launch: Launch, log: str, frame: Optional[Dict[str, Any]] = None) -> int:
    """Return a descriptor that appends to the log of a server that is to be started. Raises OSError.

    Others may be able to write in its folder, so a link there is not followed, and a pipe is not waited for. An engine
    prints its arguments, keys among them: the file is as open to others as the umask of the server before lets it be,
    and to nobody where that is not known.
    """
    umask = int((frame or {}).get("umask", 0o077)) if launch.log_dir else 0o077
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    own = os.umask(umask)
    try:
        fd = os.open(log, flags, 0o666)
    finally:
        os.umask(own)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no plain file", log)
    os.set_blocking(fd, True)
    return fd


def spawn(
    launch: Launch, env: Dict[str, str], log: str, pulse: Pulse, recorded: Callable[[ProcessId], None],
    frame: Optional[Dict[str, Any]] = None,
) -> ProcessId:  # fmt: skip
    """Start a server in a session of its own.

    The child runs the program only after `recorded` has returned. So if the supervisor is killed before that, nothing
    was started, and if it is killed after it, the record names the process.

    Args:
        launch: What is to be started.
        env: Its whole environment.
        log: File to which its output is appended.
        pulse: Reaps the child.
        recorded: Writes the identity of the child down.
        frame: Limits and the like of the server that is started again; see `frames`.

    Raises:
        LaunchFailed: It could not be started; nothing runs.
    """
    program = program_of(launch, env)
    cwd = folder_of(launch, env)
    try:
        os.makedirs(os.path.dirname(log), exist_ok=True)
        out = open_log(launch, log, frame)
    except OSError as e:
        raise LaunchFailed("the log %s: %s" % (log, e.strerror)) from None
    go_read, go_write = os.pipe()
    result_read, result_write = os.pipe()
    sys.stdout.flush()
    try:
        pid = os.fork()
    except OSError as e:
        for fd in (out, go_read, go_write, result_read, result_write):
            os.close(fd)
        raise LaunchFailed("fork: %s" % e.strerror) from None
    if pid == 0:
        _become(program, launch.argv, env, cwd, out, go_read, result_write, (go_write, result_read), frame)
    pulse.exits.pop(pid, None)  # an earlier child may have had this PID
    for fd in (out, go_read, result_write):
        os.close(fd)
    try:
        seen = read_stat(pid) or read_stat(pid, "/proc")
        title = plain(" ".join(masked_argv(launch.argv, launch.secret_flags))[:300])
        identity = ProcessId(pid, seen.ticks if seen is not None else 0, os.getuid(), title)
        recorded(identity)
        os.write(go_write, b"go")
    finally:
        os.close(go_write)
    trouble = b""
    while True:
        block = os.read(result_read, 4096)
        if not block:
            break
        trouble += block
    os.close(result_read)
    if trouble:
        while pid not in pulse.exits:
            pulse.wait(0.05)
        raise LaunchFailed(trouble.decode("utf-8", "replace"))
    return identity


def _become(
    program: str, argv: List[str], env: Dict[str, str], cwd: str, out: int, go: int, result: int,
    unused: Tuple[int, int], frame: Optional[Dict[str, Any]],
) -> None:  # fmt: skip
    """Turn the forked child into the server. Never returns."""
    code = 127
    try:
        for fd in unused:
            os.close(fd)
        os.setsid()
        if os.read(go, 2) != b"go":
            os._exit(code)  # the supervisor died before it could write the start down
        reset_signals()
        what = cwd
        try:
            os.chdir(cwd)
            if frame:
                from .frames import apply_frame

                apply_frame(frame)
            what = "/dev/null"
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            keep = 3
            if result != keep:
                os.dup2(result, keep, inheritable=False)
                result = keep
            os.closerange(keep + 1, max(256, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65_536 else 4096))
            what = program
            os.execve(program, argv, env)  # noqa: S606
        except OSError as e:
            words = "is no program that this host can run" if e.errno == errno.ENOEXEC else e.strerror
            os.write(result, ("%s: %s" % (what, words)).encode("utf-8", "replace"))
        except ValueError as e:
            os.write(result, ("%s: %s" % (what, e)).encode("utf-8", "replace"))
    finally:
        os._exit(code)
