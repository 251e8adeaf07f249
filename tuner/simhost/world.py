"""The simulated host without its SSH server: folders, servers, and the kernel and GPU driver that it plays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.simhost import bystanders, gpus, real, scenarios
from tuner.simhost.engine.config import Spec
from tuner.simhost.engine.faults import VARIABLE, parse
from tuner.simhost.engine.port import reserve
from tuner.simhost.install import install
from tuner.simhost.kernel import Kernel
from tuner.simhost.mirror import Mirror
from tuner.simhost.scenarios import Launch, OldRun, Plan
from tuner.simhost.tree import Process, Tree

if TYPE_CHECKING:
    import argparse

TICK_S = 0.25
ALICE = 1001
"""User id of alice, who shares the host."""
ALICES = "/user.slice/user-1001.slice/session-31.scope"
PORT = 30_000
_CLEAN_ENV = ("PATH", "TERM", "TZ", "LC_ALL", "LANG", "LC_CTYPE")


class World:
    """One simulated host.

    Args:
        args: The parsed command line of the host process.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.own_dir = args.dir is None
        self.dir = Path(args.dir or tempfile.mkdtemp(prefix="gputuner-"))
        self.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.dir = self.dir.resolve()
        self.plan: Plan = scenarios.plan(args.scenario)
        self.now = time.time()
        self.uid = os.getuid()
        """User id of all processes that are root's on this host: that which they truly have."""
        self.root = self.dir / "root"
        self.tree = Tree(self.root, now=self.now, uid=self.uid)
        self.run_dir = self.dir / "run"
        self.logs = self.dir / "data" / "logs"
        self.home = self.dir / "home"
        self.venv = self.dir / "venv"
        self.gpu_state = self.dir / "bin" / "gpu-state.json"
        self.site = self.venv / "lib" / "python3.12" / "site-packages"
        self.driver = gpus.Driver(
            (self.gpu_state,), random.Random(args.seed), mode=args.gpu_mode, lost=set(args.lost_gpu),  # noqa: S311 - a seeded play, no secret
        )  # fmt: skip
        self.port = PORT
        self._port_claim: socket.socket | None = None
        self.launches = 0
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.logged: dict[int, str] = {}
        self.owners: dict[int, int] = {}
        """User id of a server that is somebody else's, by PID."""
        first = self.plan.steps[0].launch if self.plan.steps else None
        self.traffic = args.traffic or (first.traffic if first else "none")
        self.kernel = Kernel(self)
        self.life = -1
        """Writing end of the pipe that ends launched servers when this process is gone."""
        self.bystanders: dict[str, int] = {}
        """PID of each bystander by name."""
        self.janitor_pid: int | None = None
        self.tenant_pid: int | None = None
        self.tenant_bytes = 0.0
        self.life_read, self.life_write = os.pipe()

    # Set-up

    def build(self) -> None:
        """Make the folders and files of the host."""
        install(self)
        # Opened for both, since opening a pipe for writing waits for a reader.
        self.life = os.open(self.run_dir / "life", os.O_RDWR | os.O_NONBLOCK)
        self.tree.build()

    def begin(self) -> None:
        """Start the scenario's first server, before the slow imports, so that both run at the same time."""
        self.janitor_pid = self._fork(self._sweep)
        if self.plan.tenant is not None:
            self.tenant_bytes = self.plan.tenant.used_bytes
            self.tenant_pid = self._fork(lambda: None)
        if not self.args.no_server and self.plan.steps:
            self.port, self._port_claim = reserve(PORT)
            self.start(self.plan.steps[0].launch, older=self.plan.older)
        if self.args.bystanders:
            self.bystanders = {each.name: self._fork(lambda: None) for each in bystanders.LOOK_ALIKES}
            self.bystanders["server"] = self.start(bystanders.bobs_server(self.args.version))
            self.owners[self.bystanders["server"]] = bystanders.BOB + (self.uid == bystanders.BOB)

    def _fork(self, work: Callable[[], None]) -> int:
        """Fork a small process that calls `work` when the host process is gone, however it ended. Returns its PID."""
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                for number in (signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                os.close(self.life_write)
                os.close(self.life)
                select.select([self.life_read], [], [])
                work()
            os._exit(0)
        return pid

    def _sweep(self) -> None:
        """End what still runs there, and remove the folder, repeatedly, since dying servers may still write to it."""
        Mirror(self.root).end_all()
        for _ in range(50 if self.own_dir else 0):
            shutil.rmtree(self.dir, ignore_errors=True)
            if not self.dir.exists():
                return
            select.select([], [], [], 0.1)

    @property
    def python(self) -> str:
        """Return the interpreter of the simulated servers."""
        return str(self.dir / "venv" / "bin" / "python")

    def start(self, launch: Launch, older: tuple[OldRun, ...] = ()) -> int:
        """Start a server; return its PID."""
        self.launches += 1
        path = self.logs / f"{launch.name}.log"
        if path.exists():
            path = self.logs / f"{launch.name}-{self.launches}.log"
        spec = self._spec(launch)
        told = _data(spec)
        told["older"] = [
            {
                "log": str(self.logs / f"{old.launch.name}.log"),
                "spec": _data(self._spec(old.launch, seed=self.args.seed + 100 + number)),
                "started_at": self.now - old.ago_s,
                "served_s": old.served_s,
            }
            for number, old in enumerate(older)
        ]
        spec_path = self.run_dir / f"launch-{self.launches}.spec"
        spec_path.write_text(json.dumps(told))
        env = {name: os.environ[name] for name in _CLEAN_ENV if name in os.environ}
        env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        with path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tuner.simhost.engine", str(spec_path), str(self.life_read)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=self.dir,
                start_new_session=True, pass_fds=(self.life_read,),
            )  # fmt: skip
        self.servers[process.pid] = process
        self.logged[process.pid] = str(path)
        return process.pid

    def _spec(self, launch: Launch, seed: int | None = None) -> Spec:
        args = self.args
        env = {
            "PATH": f"{self.dir}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/root",
            "USER": "root",
            "LANG": "C.UTF-8",
            "VIRTUAL_ENV": f"{self.dir}/venv",
            "CUDA_DEVICE_MAX_CONNECTIONS": "8",
            "NCCL_CUMEM_ENABLE": "0",
            "HF_TOKEN": "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",
            **({VARIABLE: ",".join(args.fault)} if args.fault and not launch.words else {}),
            **launch.env,
        }
        words = [self.python, *launch.words] if launch.words else scenarios.argv(
            self.python, launch, args.version, self.port, metrics=not args.no_metrics, api_key=args.api_key,
            extra=tuple(args.flag),
        )  # fmt: skip
        foreign = {self.plan.tenant.gpu: self.plan.tenant.used_bytes} if self.plan.tenant else {}
        if args.bystanders and not launch.words:
            foreign[bystanders.GPU] = foreign.get(bystanders.GPU, 0) + bystanders.BOB_BYTES
        return Spec(
            version=args.version, argv=words, env=env, cwd=str(self.dir / "home"), run_dir=str(self.run_dir),
            seed=args.seed + self.launches if seed is None else seed,
            pace=scenarios.START_PACE * args.speed,
            speed=args.speed, up_s=launch.up_s, traffic=args.traffic or launch.traffic,
            foreign=foreign, foreign_pid=self.tenant_pid or 0,
            capacity_bytes=gpus.CAPACITY_BYTES, faults={**launch.faults, **parse(env)},
        )  # fmt: skip

    # Kernel and driver

    def tick(self) -> None:
        """Update /proc and the driver from the processes there are."""
        self.kernel.tick()

    def fact(self, pid: int) -> dict[str, Any] | None:
        """Return what a server last published about itself; None before it published anything."""
        return self.kernel.fact(pid)

    def show_neighbour(self, pid: int, cmdline: bytes, *, began: float, **more: Any) -> None:
        """Show a process of alice's."""
        self.tree.put(
            Process(
                pid, 1, cmdline, began, uid=ALICE + (self.uid == ALICE), cgroup=ALICES, exe="/usr/bin/python3.12",
                **{"env": {"USER": "alice", "HOME": "/home/alice"}, "cwd": "/home/alice", **more},
            )
        )  # fmt: skip

    def neighbours(
        self, passed_s: float, holders: list[gpus.Holder], loads: list[dict[str, float]], seen: set[int]
    ) -> None:
        """Show the bystanders and the foreign process on a GPU, which go on whatever becomes of the servers."""
        for each in bystanders.LOOK_ALIKES:
            bystander = self.bystanders.get(each.name)
            if bystander is None or os.waitpid(bystander, os.WNOHANG)[0]:
                self.bystanders.pop(each.name, None)
                continue
            seen.add(bystander)
            self.tree.put(Process(bystander, 1, each.raw(), self.now - 7_200, comm=each.comm, uid=self.uid,
                                  exe=f"/usr/bin/{each.comm}", rss_kb=6_100))  # fmt: skip
        tenant, pid = self.plan.tenant, self.tenant_pid
        if tenant is None or pid is None:
            return
        if os.waitpid(pid, os.WNOHANG)[0]:
            self.tenant_pid = None
            return
        seen.add(pid)
        self.tenant_bytes = min(
            float(tenant.most_bytes), self.tenant_bytes + tenant.growth_bytes_s * passed_s * self.args.speed
        )
        self.show_neighbour(
            pid, b"python\0train.py\0--config\0lora-7b.yaml\0", began=self.now - 5 * 3600,
            env={"USER": "alice", "HOME": "/home/alice", "CUDA_VISIBLE_DEVICES": str(tenant.gpu)},
            cwd="/home/alice/lora", rss_kb=4_212_000, cpu_share=0.9,
        )  # fmt: skip
        holders.append(gpus.Holder(pid, tenant.gpu, int(self.tenant_bytes) // (2 << 20) * (2 << 20), "python"))
        mine = loads[tenant.gpu]
        mine["watts"] = min(1.0, mine["watts"] + 0.05)
        mine["utilization"] = max(mine["utilization"], 0.3)

    @property
    def shown(self) -> bool:
        """Return whether every server has published itself or ended, so that a client that comes now finds it."""
        return all(self.fact(pid) is not None or process.poll() is not None for pid, process in self.servers.items())

    def first_look(self) -> None:
        """Show GPUs that have been busy for long when the first client comes."""
        loads = [{"utilization": 0.0, "watts": 0.055} for _ in range(gpus.COUNT)]
        for pid in self.servers:
            fact = self.fact(pid)
            for load, more in zip(loads, fact["loads"] if fact else (), strict=False):
                load.update({kind: max(load.get(kind, 0.0), value) for kind, value in more.items()})
        self.driver.settle(loads)
        self.tick()

    # End

    def end(self) -> None:
        """End all processes and remove the folder."""
        with contextlib.suppress(OSError):
            self.tick()
        every = (*self.servers, *self.kernel.launched)
        orphans = [m["pid"] for pid in every for m in (self.fact(pid) or {"members": []})["members"]]
        for child in (
            self.janitor_pid,
            self.tenant_pid,
            *(self.bystanders.get(e.name) for e in bystanders.LOOK_ALIKES),
        ):
            if child is not None:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        for pid, process in self.servers.items():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            process.wait()
        # Launched servers, and processes that lost their leader, wait on these pipes.
        os.close(self.life_write)
        if self.life >= 0:
            os.close(self.life)
        self.kernel.mirror.end_all()
        orphans += self.kernel.launched
        for _ in range(200):
            if not any(real.alive(pid) for pid in orphans):
                break
            select.select([], [], [], 0.01)
        if self.own_dir:
            shutil.rmtree(self.dir, ignore_errors=True)


def _data(spec: Spec) -> dict[str, Any]:
    """Return a spec as JSON data."""
    return asdict(spec)
