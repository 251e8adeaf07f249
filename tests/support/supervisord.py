"""A real supervisord with a configuration of its own, and the look-alike of an engine's server for it to keep."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.fixtures.proc.running import until

BIN = Path(sys.executable).parent
ENGINE = Path(__file__).parents[1] / "fixtures" / "managed"
_BASE = """
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}
{more}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[unix_http_server]
file={folder}/s.sock
{login}
[supervisorctl]
serverurl=unix://{folder}/s.sock
{login}
"""


def engine(folder: Path, **settings: str) -> dict[str, str]:
    """Return the variables with which the look-alike is found; its package is installed in `folder`."""
    about = folder / "site" / "sglang-0.5.23.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    if not (folder / "site" / "sglang").exists():
        shutil.copytree(ENGINE / "sglang", folder / "site" / "sglang")
    return {"PYTHONPATH": str(folder / "site"), "PYTHONDONTWRITEBYTECODE": "1", **settings}


def command(folder: Path, port: int | str, *more: str, python: str = sys.executable) -> str:
    """Return the command line of a look-alike that serves an LLM in `folder`."""
    model = folder / "toy"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    return " ".join([python, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port), *more])


class Supervisord:
    """One supervisord; `start` starts it, `close` ends it with all that it keeps.

    Args:
        folder: Where its files are.
        programs: Sections of its configuration; each program has its `environment` there.
        more: Lines for its own section.
        login: Lines with user name and password for its socket.
        argv: How it is started; `{config}` stands for the path of the configuration.
        cwd: Its working folder.
        user: Who runs it; None: whoever runs the tests.
    """

    def __init__(
        self,
        folder: Path,
        programs: str,
        *,
        more: str = "",
        login: str = "",
        argv: Sequence[str] = (),
        cwd: Path | None = None,
        user: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.config = folder / "supervisord.conf"
        self.config.write_text(_BASE.format(folder=folder, more=more, login=login) + programs)
        words = argv or (sys.executable, str(BIN / "supervisord"), "-c", "{config}")
        self._argv = [word.format(config=self.config) for word in words]
        self._cwd, self._user, self._env = cwd, user, {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "out").open("wb") as out:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self._cwd or self.folder,
                user=self._user, group=self._user, env=self._env, start_new_session=True,
            )  # fmt: skip
        until(lambda: self._alive and self.control("pid")[0] == 0)

    @property
    def _alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "out").read_text()
        return True

    @property
    def pid(self) -> int:
        """Return its PID."""
        assert self._process is not None
        return self._process.pid

    def control(self, *words: str) -> tuple[int, str]:
        """Run supervisorctl; return its exit code and what it said."""
        done = subprocess.run(
            [sys.executable, str(BIN / "supervisorctl"), "-c", str(self.config), *words],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return done.returncode, (done.stdout + done.stderr).strip()

    def state(self, name: str) -> str:
        """Return the state of a program in supervisord's word: `RUNNING`."""
        return self.control("status", name)[1].split()[1]

    def pid_of(self, name: str) -> int:
        """Return the PID of a program; 0: it has none."""
        return int(self.control("pid", name)[1])

    def close(self) -> None:
        """End it; it ends what it keeps."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)


@contextlib.contextmanager
def kept(folder: Path, programs: str, **options: object) -> Iterator[Supervisord]:
    """Yield a supervisord that runs, and end it afterwards."""
    made = Supervisord(folder, programs, **options)  # type: ignore[arg-type]
    made.start()
    try:
        yield made
    finally:
        made.close()
