"""The simulated kernel and GPU driver: /proc and the driver's state follow from the processes that there are."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.simhost import gpus, real
from tuner.simhost.mirror import Mirror
from tuner.simhost.tree import Process

if TYPE_CHECKING:
    from tuner.simhost.world import World

_IDLE = {"utilization": 0.0, "watts": 0.055, "pcie_rx": 0.0, "pcie_tx": 0.0, "mem_utilization": 0.0}


class Kernel:
    """Shows the processes of one world, and what they hold.

    Args:
        world: The simulated host.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.facts: dict[int, tuple[int, dict[str, Any]]] = {}
        self.launched: dict[int, float] = {}
        """Start of each server that someone on the host launched, in seconds since the epoch, by PID."""
        self.strangers = 0
        """Number of servers that were launched by someone on the host so far."""
        self.mirror = Mirror(world.root, world.uid)
        self.freeing: list[tuple[float, gpus.Holder]] = []
        """Memory of processes that just died, with the time at which the driver releases it."""
        self._let_go: set[tuple[int, int]] = set()
        """Leader and member whose memory is being released, or is."""
        self._port: int | None = None
        self._open: dict[int, int | None] = {}
        """The port that each leader was last shown with while it ran."""
        self._began: dict[tuple[int, int], int] = {}
        """Start ticks of each member at first sight, by the PIDs of leader and member: a PID may be used again."""
        self._families: set[int] = set()
        """Leaders whose members were shown while they ran."""
        self._at = time.time()

    def fact(self, pid: int) -> dict[str, Any] | None:
        """Return what a server last published about itself; None before it published anything."""
        path = self.world.run_dir / f"{pid}.json"
        try:
            stamp = path.stat().st_mtime_ns
            known = self.facts.get(pid)
            if known is None or known[0] != stamp:
                self.facts[pid] = (stamp, json.loads(path.read_text()))
        except (OSError, ValueError):
            pass
        found = self.facts.get(pid)
        return found[1] if found else None

    def news(self) -> bool:
        """Return whether a server came, forked, opened its port or went, all of which is shown without delay."""
        if self._arrivals():
            return True
        for pid, port in self._open.items():
            fact = self.fact(pid) or {}
            if not self._runs(pid) or fact.get("port") != port or (fact.get("members") and pid not in self._families):
                return True
        return False

    def tick(self) -> None:
        """Update /proc and the driver from the processes there are."""
        world, now = self.world, time.time()
        loads = [dict(_IDLE) for _ in range(gpus.COUNT)]
        holders: list[gpus.Holder] = []
        seen = {1}
        for pid in self._arrivals():
            fact = self.fact(pid)
            if fact is not None:
                # As the mirror counts it, which may have shown it before: the clock of another process may differ.
                self.launched[pid] = real.started_at(pid) or fact["started_at"]
                self.strangers += 1
        known: set[int] = set()
        for pid in [*world.servers, *self.launched]:
            fact = self.fact(pid)
            if fact is None:
                if not self._runs(pid):
                    self._forget(pid)
                continue
            known |= {pid, *(child for child in fact["children"] if self._same(pid, child))}
            self._server(pid, fact, now, loads, holders, seen)
        self.freeing = [(until, holder) for until, holder in self.freeing if until > now]
        holders += [holder for _, holder in self.freeing]
        world.neighbours(now - self._at, holders, loads, seen)
        self._at = now
        known |= seen
        for pid, process in self.mirror.look().items():
            if pid not in known:
                seen.add(pid)
                world.tree.put(process)
        for pid in world.tree.pids():
            if pid not in seen:
                world.tree.remove(pid)
        world.tree.adopt()
        world.tree.tick(now)
        world.driver.update(time.monotonic(), loads, holders)

    def _arrivals(self) -> list[int]:
        """Return the PIDs of servers that were launched since the last tick."""
        found = []
        for name in os.listdir(self.world.run_dir):  # noqa: PTH208 - names only
            stem, dot, kind = name.partition(".")
            if dot and kind == "json" and stem.isdigit() and int(stem) not in self.launched:
                pid = int(stem)
                fact = self.fact(pid) if pid not in self.world.servers else None
                if fact is not None and fact["launched"]:
                    found.append(pid)
        return found

    def _runs(self, pid: int) -> bool:
        """Return whether a leader runs."""
        process = self.world.servers.get(pid)
        if process is not None:
            return process.poll() is None
        began = real.started_at(pid)
        return real.alive(pid) and (began is None or abs(began - self.launched[pid]) < 1.0)

    def _server(
        self, pid: int, fact: dict[str, Any], now: float, loads: list[dict[str, float]], holders: list[gpus.Holder],
        seen: set[int],
    ) -> None:  # fmt: skip
        runs = self._runs(pid)
        if runs:
            self._open[pid] = fact["port"]
        else:
            self._open.pop(pid, None)
        if pid in self.world.servers and pid not in self.world.owners and fact["wanted_port"] not in (None, self._port):
            self._port = fact["wanted_port"]
            (self.world.run_dir / "port").write_text(str(self._port))
        if runs:
            seen.add(pid)
            self._show_leader(pid, fact)
            for load, more in zip(loads, fact["loads"], strict=False):
                load.update({kind: max(load[kind], value) for kind, value in more.items()})
        elif pid in self.launched and (real.stat_of(pid) or "?")[0] == "Z":
            seen.add(pid)
            self._show_leader(pid, fact, state="Z")
        left = False
        if runs and fact["members"]:
            self._families.add(pid)
        # What was never shown while its leader ran was not started by it, for all that the host knows.
        for member in fact["members"] if pid in self._families else ():
            same = self._same(pid, member["pid"])
            alive = same and real.alive(member["pid"]) if not runs else member["state"] != "Z"
            title = member["title"].replace("\0", " ").strip()
            holder = gpus.Holder(member["pid"], member["gpu"] or 0, member["memory_bytes"], title)
            if alive or runs:
                left = True
                seen.add(member["pid"])
                self._show_member(pid, fact, member, orphan=not runs)
            if member["memory_bytes"] and member["gpu"] is not None:
                if alive:
                    holders.append(holder)
                elif (pid, member["pid"]) not in self._let_go:
                    self._let_go.add((pid, member["pid"]))
                    holder.name = "python"
                    self.freeing.append((now + fact["release_s"] / max(1.0, self.world.args.speed), holder))
        squatter = fact["squatter"]
        if squatter is not None and real.alive(squatter["pid"]):
            seen.add(squatter["pid"])
            self.world.show_neighbour(squatter["pid"], f"python3\0-m\0http.server\0{squatter['port']}\0".encode(),
                                      began=fact["started_at"], port=squatter["port"])  # fmt: skip
        if not runs and not left and pid not in seen:
            self._forget(pid)

    def _same(self, leader: int, pid: int) -> bool:
        """Return whether a PID of a server's family is not that of a later process."""
        stat = real.stat_of(pid)
        return stat is None or self._began.setdefault((leader, pid), stat[3]) == stat[3]

    def _forget(self, pid: int) -> None:
        self.world.servers.pop(pid, None)
        self.world.logged.pop(pid, None)
        self.facts.pop(pid, None)
        self._open.pop(pid, None)
        self._let_go = {pair for pair in self._let_go if pair[0] != pid}
        self._families.discard(pid)
        self._began = {pair: ticks for pair, ticks in self._began.items() if pair[0] != pid}
        if self.launched.pop(pid, None) is not None:
            (Path(self.world.run_dir) / f"{pid}.json").unlink(missing_ok=True)

    def _show_leader(self, pid: int, fact: dict[str, Any], state: str = "S") -> None:
        world = self.world
        self.world.tree.put(
            Process(
                pid, fact["ppid"], "\0".join(fact["argv"]).encode(errors="surrogateescape") + b"\0",
                self.launched.get(pid, fact["started_at"]), state=state, session=fact["session"], env=fact["env"],
                cwd=fact["cwd"],
                exe=world.python, log=world.logged.get(pid) or fact["log"],
                port=None if state == "Z" else fact["port"], rss_kb=1_066_964,
                cpu_share=0.4 if fact["ready"] else 1.0, uid=world.owners.get(pid, world.uid),
            )
        )  # fmt: skip

    def _show_member(self, leader: int, fact: dict[str, Any], member: dict[str, Any], *, orphan: bool) -> None:
        kind, title = member["kind"], member["title"]
        titled = title.startswith("sglang::")
        scheduler = kind == "scheduler"
        dead = member["state"] == "Z"
        # Our leader reaps its dead children; the real engine leaves zombies, so zombies are shown.
        self.world.tree.put(
            Process(
                member["pid"], 1 if orphan else leader, title.encode(),
                fact["started_at"] + (0.6 if kind == "resource_tracker" else 1.1),
                comm=title[:15].rstrip("\0") if titled else "python",
                state=member["state"], session=fact["session"], env=fact["env"], cwd=fact["cwd"],
                exe=self.world.python, log=self.world.logged.get(leader) or fact["log"],
                rss_kb=0 if dead else 2_876_628 if scheduler else 1_029_640,
                cpu_share=0.0 if dead else 1.0 if scheduler else 0.02,
                uid=self.world.owners.get(leader, self.world.uid),
            )
        )  # fmt: skip
