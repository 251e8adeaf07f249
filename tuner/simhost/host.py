"""The simulated host as a process: accepts SSH clients, plays the scenario, and ends when its stdin does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import asyncssh

from tuner.simhost import register
from tuner.simhost.sshd import Server, Session
from tuner.simhost.world import TICK_S, World


class Host:
    """The SSH server, the clock and the script of a world.

    Args:
        world: The simulated host; its first server is starting already.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.args = world.args
        self.closing = asyncio.Event()
        self._sessions: list[Session] = []

    async def run(self) -> None:
        """Serve until stdin ends or a signal comes."""
        world = self.world
        host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        listener = await asyncssh.create_server(
            lambda: Server("root", user_key, self._session), "127.0.0.1", self.args.port, server_host_keys=[host_key],
            encoding=None, allow_pty=False, agent_forwarding=False, x11_forwarding=False, gss_host=None,
        )  # fmt: skip
        port = listener.get_port()
        identity, known_hosts = self._write_keys(host_key, user_key, port)
        while not world.shown:  # noqa: ASYNC110 - other processes show themselves by files
            await asyncio.sleep(0.004)
        world.first_look()
        facts = {
            "port": port, "host": "127.0.0.1", "user": "root", "identity": str(identity),
            "known_hosts": str(known_hosts), "dir": str(world.dir), "pid": os.getpid(),
            "scenario": self.args.scenario, "version": self.args.version, "bystanders": world.bystanders,
        }  # fmt: skip
        registered = register(self.args.runtime, facts) if self.args.runtime is not None else None
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(sys.stdin.fileno(), self._stdin)
        except PermissionError:
            self.closing.set()  # a file or /dev/null cannot be waited for, and is at its end
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self.closing.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._kernel(), name="kernel"),
                           tasks.create_task(self._script(), name="script")]  # fmt: skip
                await self.closing.wait()
                for task in running:
                    task.cancel()
        finally:
            if registered is not None:
                registered.unlink(missing_ok=True)
            listener.close()
            await asyncio.gather(*(session.end() for session in self._sessions))

    def _session(self) -> Session:
        world = self.world
        env = {
            "HOST_ROOT": str(world.dir / "root"),
            "PATH": f"{world.dir}/bin:{world.dir}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(world.home),
            "USER": "root",
            "LOGNAME": "root",
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
        }
        self._sessions = [session for session in self._sessions if not session.over]
        self._sessions.append(Session(env, str(world.home)))
        return self._sessions[-1]

    def _stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self.closing.set()

    def _write_keys(self, host_key: Any, user_key: Any, port: int) -> tuple[Path, Path]:
        identity, known_hosts = self.world.dir / "id_ed25519", self.world.dir / "known_hosts"
        identity.touch(mode=0o600)
        identity.write_bytes(user_key.export_private_key())
        public = host_key.export_public_key().decode().strip()
        known_hosts.write_text(f"[127.0.0.1]:{port} {public}\n")
        return identity, known_hosts

    async def _kernel(self) -> None:
        while True:
            for _ in range(10):
                await asyncio.sleep(TICK_S / 10)
                if self.world.kernel.news():
                    break
            self.world.tick()

    async def _script(self) -> None:
        """Play the scenario's launches one after the other, until somebody else stops or starts a server."""
        world = self.world
        steps = () if self.args.no_server else world.plan.steps
        pid = next(iter(world.servers), None)
        while steps:
            for step in steps:
                pid = world.start(step.launch) if pid is None else pid
                if not await self._until_over(pid, step.serve_s):
                    return
                pid = None
                await asyncio.sleep(step.pause_s / self.args.speed)
                if world.kernel.strangers:
                    return
            if not world.plan.repeat:
                return

    async def _until_over(self, pid: int, serve_s: float | None) -> bool:
        """Wait until a server has ended; stop it after it has served for `serve_s` seconds.

        Returns:
            False when somebody else stopped it or started another: the play is over then.
        """
        world, ready_at = self.world, None
        wanted = over = False
        while pid in world.servers and world.servers[pid].poll() is None:
            fact = world.fact(pid)
            if world.kernel.strangers:
                return False
            over = fact is not None and fact["over"]
            if serve_s is not None and fact is not None and fact["ready"]:
                ready_at = ready_at or time.monotonic()
                if time.monotonic() - ready_at >= serve_s / self.args.speed:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
                    serve_s, wanted = None, True
            await asyncio.sleep(0.1)
        fact = world.fact(pid)
        return wanted or over or (fact is not None and fact["over"])


def serve(world: World) -> None:
    """Serve clients until the host ends."""

    async def stay() -> None:
        await Host(world).run()

    asyncio.run(stay())
