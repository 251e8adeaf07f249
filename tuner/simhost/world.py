"""The simulated host without its SSH server: folders, servers, and the kernel and GPU driver that it plays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.simhost import gpus, scenarios
from tuner.simhost.engine.config import Spec
from tuner.simhost.scenarios import Launch, OldRun, Plan
from tuner.simhost.tree import HOSTNAME, Process, Tree

if TYPE_CHECKING:
    import argparse

_GUEST = Path(__file__).parent / "guest"
TICK_S = 0.25
_IDLE = {"utilization": 0.0, "watts": 0.055, "pcie_rx": 0.0, "pcie_tx": 0.0, "mem_utilization": 0.0}
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
        self.tree = Tree(self.dir / "root", now=self.now)
        self.run_dir = self.dir / "run"
        self.logs = self.dir / "data" / "logs"
        self.home = self.dir / "home"
        self.site = self.dir / "venv" / "lib" / "python3.12" / "site-packages"
        self.driver = gpus.Driver(
            (self.site / "gpu-state.json", self.dir / "bin" / "gpu-state.json"),
            random.Random(args.seed), mode=args.gpu_mode, lost=set(args.lost_gpu),  # noqa: S311 - a seeded play, no secret
        )  # fmt: skip
        self.launches = 0
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.facts: dict[int, tuple[int, dict[str, Any]]] = {}
        self.logged: dict[int, str] = {}
        self.freeing: list[tuple[float, gpus.Holder]] = []
        """Memory of processes that just died, with the time at which the driver releases it."""
        self.janitor_pid: int | None = None
        self.tenant_pid: int | None = None
        self.tenant_bytes = 0
        self.life_read, self.life_write = os.pipe()

    # Set-up

    def build(self) -> None:
        """Make the folders and files of the host."""
        for folder in (
            self.run_dir,
            self.logs,
            self.site,
            self.dir / "bin",
            self.dir / "venv" / "bin",
            self.home,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_GUEST / "pynvml.py", self.site / "pynvml.py")
        info = self.site / f"sglang-{self.args.version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {self.args.version}\n")
        # A real virtual environment on our own interpreter, which servers run on and which is `python3` on this host.
        venv = self.dir / "venv"
        (venv / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\nversion = 3.12.3\n")
        for name in ("python", "python3"):
            (venv / "bin" / name).symlink_to(sys.executable)
        running = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
        if not running.exists():
            running.symlink_to(self.site.parent)
        self._script("nvidia-smi", f'exec "{sys.executable}" -I -S "{self.dir}/bin/nvidia_smi.py" "$@"\n')
        self._script("hostname", f"echo {HOSTNAME}\n")
        shutil.copyfile(_GUEST / "nvidia_smi.py", self.dir / "bin" / "nvidia_smi.py")
        self.tree.build()

    def _script(self, name: str, body: str) -> None:
        path = self.dir / "bin" / name
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(0o755)

    def begin(self) -> None:
        """Start the scenario's first server, before the slow imports, so that both run at the same time."""
        if self.own_dir:
            self.janitor_pid = self._fork(self._sweep)
        if self.plan.tenant is not None:
            self.tenant_bytes = self.plan.tenant.used_bytes
            self.tenant_pid = self._fork(lambda: None)
        if not self.args.no_server and self.plan.steps:
            self.start(self.plan.steps[0].launch, older=self.plan.older)

    def _fork(self, work: Callable[[], None]) -> int:
        """Fork a small process that calls `work` when the host process is gone, however it ended. Returns its PID."""
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                for number in (signal.SIGINT, signal.SIGHUP):
                    signal.signal(number, signal.SIG_IGN)
                os.close(self.life_write)
                select.select([self.life_read], [], [])
                work()
            os._exit(0)
        return pid

    def _sweep(self) -> None:
        """Remove the folder, repeatedly, since dying servers may still write to it."""
        for _ in range(50):
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
            **launch.env,
        }
        words = scenarios.argv(
            self.python, launch, args.version, 30_000, metrics=not args.no_metrics, api_key=args.api_key,
            extra=tuple(args.flag),
        )  # fmt: skip
        foreign = {self.plan.tenant.gpu: self.plan.tenant.used_bytes} if self.plan.tenant else {}
        return Spec(
            version=args.version, argv=words, env=env, cwd=str(self.dir / "home"), run_dir=str(self.run_dir),
            seed=args.seed + self.launches if seed is None else seed,
            pace=scenarios.START_PACE * args.speed if self.plan.fast else 1.0,
            speed=args.speed, up_s=launch.up_s, traffic=args.traffic or launch.traffic,
            foreign=foreign, foreign_pid=self.tenant_pid or 0,
            capacity_bytes=gpus.CAPACITY_BYTES, faults=launch.faults,
        )  # fmt: skip

    # Kernel and driver

    def tick(self) -> None:
        """Update /proc and the driver from the processes there are."""
        now = time.time()
        loads = [dict(_IDLE) for _ in range(gpus.COUNT)]
        holders: list[gpus.Holder] = []
        seen = {1}
        for pid in list(self.servers):
            gone = self.servers[pid].poll() is not None
            fact = self.fact(pid)
            if fact is None:
                if gone:
                    self._forget(pid)
                continue
            members = fact["members"]
            if gone:
                self._let_go(fact, now)
                members = [{**m, "memory_bytes": 0, "orphan": True} for m in members if _alive(m["pid"])]
                if not members:
                    self._forget(pid)
                    continue
            else:
                seen.add(pid)
                self._show_leader(pid, fact)
                if members:
                    loads = [dict(load) for load in fact["loads"]]
            for member in members:
                seen.add(member["pid"])
                self._show_member(pid, fact, member)
                if member["memory_bytes"] and member["gpu"] is not None:
                    title = member["title"].replace("\0", " ").strip()
                    holders.append(gpus.Holder(member["pid"], member["gpu"], member["memory_bytes"], title))
        self.freeing = [(until, holder) for until, holder in self.freeing if until > now]
        holders += [holder for _, holder in self.freeing]
        self._tick_tenant(holders, loads, seen)
        for pid in self.tree.pids():
            if pid not in seen:
                self.tree.remove(pid)
        self.tree.tick(now)
        self.driver.update(time.monotonic(), loads, holders)

    def fact(self, pid: int) -> dict[str, Any] | None:
        """Return what a server last published about itself; None before it published anything."""
        path = self.run_dir / f"{pid}.json"
        try:
            stamp = path.stat().st_mtime_ns
            known = self.facts.get(pid)
            if known is None or known[0] != stamp:
                self.facts[pid] = (stamp, json.loads(path.read_text()))
        except (OSError, ValueError):
            pass
        found = self.facts.get(pid)
        return found[1] if found else None

    def _let_go(self, fact: dict[str, Any], now: float) -> None:
        """Release the memory of a dead server a moment later."""
        if fact.get("let_go"):
            return
        fact["let_go"] = True
        for member in fact["members"]:
            if member["memory_bytes"] and member["gpu"] is not None:
                holder = gpus.Holder(member["pid"], member["gpu"], member["memory_bytes"], "python")
                self.freeing.append((now + 1.2 / max(1.0, self.args.speed), holder))

    def _forget(self, pid: int) -> None:
        self.servers.pop(pid, None)
        self.facts.pop(pid, None)
        self.logged.pop(pid, None)

    def _show_leader(self, pid: int, fact: dict[str, Any]) -> None:
        self.tree.put(
            Process(
                pid, 1, "\0".join(fact["argv"]).encode() + b"\0", fact["started_at"], session=pid, env=fact["env"],
                cwd=fact["cwd"], exe=self.python, log=self.logged[pid], port=fact["port"], rss_kb=1_066_964,
                cpu_share=0.4 if fact["ready"] else 1.0,
            )
        )  # fmt: skip

    def _show_member(self, leader: int, fact: dict[str, Any], member: dict[str, Any]) -> None:
        kind, title = member["kind"], member["title"]
        titled = title.startswith("sglang::")
        scheduler = kind == "scheduler"
        dead = member["state"] == "Z"
        # Our leader reaps its dead children; the real engine leaves zombies, so zombies are shown.
        self.tree.put(
            Process(
                member["pid"], 1 if member.get("orphan") else leader, title.encode(),
                fact["started_at"] + (0.6 if kind == "resource_tracker" else 1.1),
                comm=title[:15] if titled else "python",
                state=member["state"], session=leader, env=fact["env"], cwd=fact["cwd"], exe=self.python,
                log=self.logged.get(leader), rss_kb=0 if dead else 2_876_628 if scheduler else 1_029_640,
                cpu_share=0.0 if dead else 1.0 if scheduler else 0.02,
            )
        )  # fmt: skip

    def _tick_tenant(self, holders: list[gpus.Holder], loads: list[dict[str, float]], seen: set[int]) -> None:
        tenant, pid = self.plan.tenant, self.tenant_pid
        if tenant is None or pid is None:
            return
        if os.waitpid(pid, os.WNOHANG)[0]:
            self.tenant_pid = None
            return
        seen.add(pid)
        grown = self.tenant_bytes + int(tenant.growth_bytes_s * TICK_S * self.args.speed)
        self.tenant_bytes = min(tenant.most_bytes, grown) // (2 << 20) * (2 << 20)
        self.tree.put(
            Process(
                pid, 1, b"python\0train.py\0--config\0lora-7b.yaml\0", self.now - 5 * 3600, uid=1001,
                env={"USER": "alice", "HOME": "/home/alice", "CUDA_VISIBLE_DEVICES": str(tenant.gpu)},
                cwd="/home/alice/lora", exe="/usr/bin/python3.12",
                cgroup="/user.slice/user-1001.slice/session-31.scope",
                rss_kb=4_212_000, cpu_share=0.9,
            )
        )  # fmt: skip
        holders.append(gpus.Holder(pid, tenant.gpu, self.tenant_bytes, "python"))
        mine = loads[tenant.gpu]
        mine["watts"] = min(1.0, mine["watts"] + 0.05)
        mine["utilization"] = max(mine["utilization"], 0.3)

    @property
    def shown(self) -> bool:
        """Return whether every server has published itself or ended, so that a client that comes now finds it."""
        return all(self.fact(pid) is not None or process.poll() is not None for pid, process in self.servers.items())

    def first_look(self) -> None:
        """Show GPUs that have been busy for long when the first client comes."""
        loads = [dict(_IDLE) for _ in range(gpus.COUNT)]
        for pid in self.servers:
            fact = self.fact(pid)
            loads = [dict(load) for load in fact["loads"]] if fact else loads
        self.driver.settle(loads)
        self.tick()

    # End

    def end(self) -> None:
        """End all processes and remove the folder."""
        orphans = [m["pid"] for pid in self.servers for m in (self.fact(pid) or {"members": []})["members"]]
        for child in (self.janitor_pid, self.tenant_pid):
            if child is not None:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        for pid, process in self.servers.items():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            process.wait()
        # Processes that lost their leader wait on this pipe alone.
        os.close(self.life_write)
        for _ in range(200):
            if not any(_alive(pid) for pid in orphans):
                break
            select.select([], [], [], 0.01)
        if self.own_dir:
            shutil.rmtree(self.dir, ignore_errors=True)


def _data(spec: Spec) -> dict[str, Any]:
    """Return a spec as JSON data."""
    return asdict(spec)


def _alive(pid: int) -> bool:
    """Return whether a process runs. Zombies of a dead leader may remain for long, and count as ended."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self").exists()
    return stat.rpartition(")")[2].split()[0] not in "ZX"
