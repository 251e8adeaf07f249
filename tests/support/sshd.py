"""A real OpenSSH server on a loopback port with its own keys and configuration, and the user's files for it.

`SshWorld` is a folder used as a home: keys, known_hosts, config and an agent. `Sshd` is one server in it. All processes
are ended by the PID under which they were started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
USER = __import__("pwd").getpwuid(os.getuid()).pw_name


def free_port() -> int:
    """Return a loopback port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def keygen(path: Path, *, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair with OpenSSH's own tool, so that its file format is the users'."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)], check=True, timeout=30
    )
    return path


def public_key(path: Path) -> str:
    """Return the public key of a key file, as `ssh-ed25519 AAAA...`."""
    return " ".join(path.with_name(path.name + ".pub").read_text().split()[:2])


class Sshd:
    """One server. `start` may be called again after `stop`, with the same port and key, as after a reboot."""

    def __init__(self, folder: Path, authorized: list[Path], options: str = "") -> None:
        assert SSHD, "OpenSSH's sshd is needed: apt-get install openssh-server"
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.host_key = folder / "host_key"
        if not self.host_key.exists():
            keygen(self.host_key)
        self.log = folder / "sshd.log"
        self._authorized = folder / "authorized_keys"
        self.authorize(*authorized)
        self._config = folder / "sshd_config"
        self._config.write_text(
            f"""ListenAddress 127.0.0.1
Port {self.port}
HostKey {self.host_key}
AuthorizedKeysFile {self._authorized}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
LogLevel VERBOSE
{options}
"""
        )
        self._process: subprocess.Popen[bytes] | None = None

    def authorize(self, *keys: Path) -> None:
        """Accept these keys and no others."""
        self._authorized.write_text("".join(public_key(key) + "\n" for key in keys))

    def new_host_key(self) -> None:
        """Make a new host key, as after a new installation; used from the next start on."""
        self.host_key.unlink()
        self.host_key.with_name("host_key.pub").unlink()
        keygen(self.host_key)

    @property
    def pid(self) -> int:
        """Return the PID of the listening process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(SSHD), "-D", "-e", "-f", str(self._config)], stdin=subprocess.DEVNULL, stderr=log
            )
        deadline = time.monotonic() + 10
        while True:
            assert self._process.poll() is None, self.log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                if probe.recv(4) == b"SSH-":
                    return
            assert time.monotonic() < deadline, self.log.read_text()

    def sessions(self) -> list[int]:
        """Return the PIDs of the processes that serve connections: descendants of the listening one that are sshd."""
        return [pid for pid in descendants(self.pid) if _name(pid).startswith("sshd")]

    def cut(self) -> None:
        """Kill the processes that serve connections; the server goes on listening."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def freeze(self) -> list[int]:
        """Stop (SIGSTOP) the processes that serve connections, so that they are silent but exist; return their PIDs."""
        stopped = self.sessions()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        return stopped

    @staticmethod
    def thaw(stopped: list[int]) -> None:
        """Let stopped processes continue."""
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End the server and its connections."""
        if self._process is None:
            return
        self.cut()
        self._process.terminate()
        self._process.wait(timeout=10)
        self._process = None


class SshWorld:
    """A home folder with keys, and any number of servers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ssh = home / ".ssh"
        self.ssh.mkdir(parents=True, mode=0o700)
        self.key = keygen(self.ssh / "id_ed25519")
        self.known_hosts = self.ssh / "known_hosts"
        self._servers: list[Sshd] = []
        self._agent: int | None = None

    def server(self, name: str = "host", *, options: str = "", known: bool = True, start: bool = True) -> Sshd:
        """Return a server that accepts the home's key."""
        server = Sshd(self.home / name, [self.key], options)
        self._servers.append(server)
        if known:
            self.know(server)
        if start:
            server.start()
        return server

    def know(self, server: Sshd) -> None:
        """Write the server's key into known_hosts."""
        with self.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{server.port} {public_key(server.host_key)}\n")

    def config(self, text: str) -> None:
        """Write ~/.ssh/config."""
        (self.ssh / "config").write_text(text)

    def agent(self) -> str:
        """Start an agent; return the path of its socket."""
        path = self.home / "agent.sock"
        process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
        self._agent = process.pid
        self._agent_process = process
        deadline = time.monotonic() + 10
        while not path.exists():
            assert time.monotonic() < deadline
        return str(path)

    def add_to_agent(self, key: Path, socket_path: str) -> None:
        """Add a key without passphrase to an agent."""
        subprocess.run(
            ["ssh-add", "-q", str(key)], check=True, timeout=30, env={**os.environ, "SSH_AUTH_SOCK": socket_path}
        )

    def close(self) -> None:
        """End all servers and the agent."""
        for server in self._servers:
            server.stop()
        if self._agent is not None:
            self._agent_process.terminate()
            self._agent_process.wait(timeout=10)


@contextlib.contextmanager
def world(home: Path) -> Iterator[SshWorld]:
    """Yield an `SshWorld` that is cleaned up at the end."""
    made = SshWorld(home)
    try:
        yield made
    finally:
        made.close()


def descendants(pid: int) -> list[int]:
    """Return all processes below one, without itself."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
