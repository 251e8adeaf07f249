"""Interrupt switches at random moments, and look each time whether gputuner kept its promises.

`python benchmarks/bench_interruptions.py --runs N [--seed S] [--hosts H]` switches a server over and over, each time
by the command `gputuner apply --yes`, and interrupts that at a random moment of its whole length: the link is cut,
gputuner, probe, supervisor, the old or the new leader or a rank is killed, the disk is full, another process takes the
port, the operator cancels, a second operator orders a switch as well. Then the host is looked at as a user would, by
`gputuner snapshot --json`, and brought back by `gputuner resume` or `gputuner apply --back`. Each time it is checked:

1. no foreign process was signalled: bystanders write down each signal that they get, and one has the PID of a process
   that is gone, or stands in the run's record under a wrong start;
2. at no time more than one server of ours lived;
3. each living process of ours is part of a server, a run or a leftover in the reading;
4. the last good server serves again afterwards.

A violation is printed with seed and number; `--only K` runs that round alone. The exit code is 1 if there was one.
`--engine sglang|vllm` does the same with real engines on this machine's processor behind a real sshd.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changed_host import ALIAS, wait_for
from common import ROOT, own_home
from interrupted_host import EngineHost, InterruptedHost, SimulatedHost
from interrupted_processes import Ours, Recorder, kill, stat_of
from warm_command import Command, Commands

KINDS = (
    "link", "gputuner", "probe", "old leader", "new leader", "rank", "supervisor", "full disk", "write limit", "port",
    "cancel", "second operator",
)  # fmt: skip
STEPS = ("check", "stop", "memory", "launch", "loading", "port", "health", "first-token", "steady")
END_S = {"simulated": 100.0, "sglang": 300.0, "vllm": 300.0}
"""Longest wait for the end of an interrupted run."""
WHOLE_S = {"simulated": 5.0, "sglang": 45.0, "vllm": 45.0}
"""Length of a switch, roughly."""


@dataclass
class Round:
    """What is done in one round, all of it drawn from the seed."""

    number: int
    kinds: list[str]
    when: str
    """`command`: seconds after gputuner was started; `run`: after the run began; else a step of the run."""
    after_s: float
    value: int
    auto_back: bool
    take_over: bool
    lasts_s: float
    resume_back: bool
    plant: bool
    back_anyway: bool
    installed: bool
    rank: float

    @classmethod
    def drawn(cls, seed: int, number: int, whole_s: float, among: Sequence[str] = KINDS) -> Round:
        """Draw a round."""
        chance = random.Random(f"{seed}:{number}")
        kinds = [chance.choice(among)]
        if chance.random() < 0.15:
            kinds.append(chance.choice(among))
        draw = chance.random()
        if draw < 0.1:
            when, after_s = "command", chance.uniform(0.0, 2.5)
        elif draw < 0.55:
            when, after_s = "run", chance.uniform(0.0, whole_s)
        else:
            when, after_s = chance.choice(STEPS), chance.expovariate(1 / (0.03 * whole_s))
        return cls(
            number=number, kinds=kinds, when=when, after_s=after_s, value=chance.randrange(16, 64),
            auto_back=chance.random() < 0.4, take_over=chance.random() < 0.5, lasts_s=chance.uniform(0.2, 4.0),
            resume_back=chance.random() < 0.4, plant=chance.random() < 0.7, back_anyway=chance.random() < 0.15,
            installed=chance.random() < 0.1, rank=chance.random(),
        )  # fmt: skip

    @property
    def words(self) -> str:
        """Return what is done, in one line."""
        when = f"{self.after_s:.2f} s after {self.when}"
        return f"{' and '.join(self.kinds)}, {when}{', auto-rollback' if self.auto_back else ''}"


@dataclass
class Tally:
    """What came of all rounds."""

    rounds: int = 0
    violations: list[str] = field(default_factory=list)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    hit: collections.Counter[str] = field(default_factory=collections.Counter)
    """Step of the run in which the interruption came."""
    ways: collections.Counter[str] = field(default_factory=collections.Counter)
    """How the host was brought back."""
    seconds: list[float] = field(default_factory=list)
    planted: int = 0
    reused: int = 0

    @property
    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return dict(vars(self))

    def add(self, told: Mapping[str, Any]) -> None:
        """Add what another process counted."""
        for name, value in told.items():
            mine = getattr(self, name)
            if isinstance(mine, collections.Counter):
                mine.update(value)
            else:
                setattr(self, name, mine + value)


class Benchmark:
    """All rounds on one host.

    Args:
        host: The host.
        commands: Starts gputuner.
        options: The command line.
        folder: For files of the bystanders.
    """

    def __init__(
        self,
        host: InterruptedHost,
        commands: Commands,
        options: argparse.Namespace,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.host = host
        self.commands = commands
        self.options = options
        self.say = say
        self.tally = Tally()
        self.folder = folder
        self.bystanders = [
            Recorder(folder, "look-alike", ("-m", "sglang.launch_server", "--port", str(host.port)), host.env),
            Recorder(folder, "other-run", (), {**host.env, "GPUTUNER_RUN": "20200101-000000-deadbeef"}),
        ]
        self.others = {name: stat_of(pid) for name, pid in host.bystanders.items()}
        self.extra: list[Recorder] = []
        """Bystanders of the present round."""
        self.good: list[list[str]] = []
        """Command lines of the servers that served, the newest last."""
        self.trouble: list[str] = []

    # -- a round ------------------------------------------------------------------------------------------------------

    def play(self, what: Round) -> None:
        """Switch, interrupt, look, bring back, check."""
        host, began = self.host, time.monotonic()
        self.trouble = []
        server = self.serving()
        self.good.append(host.argv(server))
        known = set(host.runs())
        words = [
            "apply",
            ALIAS,
            "--server",
            str(server.pid),
            "--set",
            f"max_running_requests={self.requests(what.value)}",
            "--yes",
        ]
        # The lease of a probe that was killed in the round before is valid for half a minute.
        command = self.commands.start(*words, "--take-over", *(["--auto-rollback"] if what.auto_back else []))
        started = [command]
        self.wait_until_due(what, command, known)
        run = self.new_run(known)
        record = host.record(run) if run else None
        self.tally.hit["before the run" if record is None else record["step"]] += 1
        undo = [self.interrupt(kind, what, command, server, run, started) for kind in what.kinds]
        lifted = threading.Timer(what.lasts_s, lambda: [each() for each in undo])
        lifted.start()
        self.until_over(command, known, started)
        lifted.cancel()
        lifted.join()
        for each in undo:
            each()
        self.close_terminals(what, started)
        run = self.new_run(known)
        record = host.record(run) if run else None
        outcome = "no run" if record is None else record["outcome"]
        if record is None and self.options.verbose:
            self.say(f"exit code {command.code}: {command.said[-1000:]}")
        reading = self.reading(what)
        self.compare(reading)
        if record is not None and outcome == "running" and what.plant:
            self.plant(run, record)
        self.free_port()
        self.bring_back(what, reading, outcome)
        self.after()
        self.tally.rounds += 1
        self.tally.outcomes[outcome] += 1
        self.tally.kinds.update(what.kinds)
        self.tally.seconds.append(time.monotonic() - began)
        for text in self.trouble:
            self.tally.violations.append(f"seed {self.options.seed}, round {what.number} ({what.words}): {text}")
        self.say(
            f"{what.number}: {what.words}: {outcome} at {record['step'] if record else '-'}, "
            f"{time.monotonic() - began:.1f} s" + "".join(f"\n    VIOLATION {text}" for text in self.trouble)
        )
        if self.trouble and self.options.keep:
            self.keep(what.number, known)

    def serving(self) -> Ours:
        """Return the server that serves now; where there is none, start one by hand and switch it once."""
        leader = self.host.watch.leader()
        if leader is None or not self.host.serves():
            if leader is not None:
                kill(leader.pid, leader.ticks)
                wait_for(lambda: self.host.watch.leader() is None, 20)
            self.host.start_first()
            leader = self.host.watch.leader()
            assert leader is not None, "no server could be started"
            words = ("--server", str(leader.pid), "--set", f"max_running_requests={self.requests(15)}")
            command = self.commands.start("apply", ALIAS, *words, "--yes", "--take-over")
            if command.wait(END_S[self.options.engine]) != 0:
                self.keep(-1, set())
                raise AssertionError(command.said)
            leader = self.host.watch.leader()
        assert leader is not None, "the server that was switched is gone"
        return leader

    def requests(self, value: int) -> int:
        """Return a number of running requests that the server can have."""
        return value if self.options.engine == "simulated" else 2 + value % 13

    def new_run(self, known: set[str]) -> str:
        """Return the newest run that is not known yet; empty where there is none."""
        return max(set(self.host.runs()) - known, default="")

    def wait_until_due(self, what: Round, command: Command, known: set[str]) -> None:
        """Wait for the moment of the interruption, or for the end of the command."""
        if what.when == "command":
            time.sleep(what.after_s)
            return
        # A run may stay without a record for a moment.
        wait_for(lambda: self.record(known) is not None or command.code is not None, 60)
        if what.when != "run":
            later = STEPS[STEPS.index(what.when) :]

            def reached() -> bool:
                record = self.record(known)
                return command.code is not None or (
                    record is not None and (record["step"] in later or record["outcome"] != "running")
                )

            wait_for(reached, END_S[self.options.engine], 0.005)
        until = time.monotonic() + what.after_s
        while time.monotonic() < until and command.code is None:
            time.sleep(0.005)

    def record(self, known: set[str]) -> dict[str, Any] | None:
        """Return the record of the round's run; None where there is none yet."""
        run = self.new_run(known)
        return self.host.record(run) if run else None

    # -- interruptions ------------------------------------------------------------------------------------------------

    def interrupt(
        self, kind: str, what: Round, command: Command, server: Ours, run: str, started: list[Command]
    ) -> Callable[[], None]:
        """Interrupt; return what ends the interruption, which may be called twice."""
        host = self.host

        def nothing() -> None:
            pass

        if kind == "link":
            host.cut()
        elif kind == "gputuner":
            command.send(9)
        elif kind == "cancel":
            command.send(2)
        elif kind == "probe":
            self.kill("probe", what)
        elif kind == "supervisor":
            self.kill("supervisor", what)
        elif kind == "old leader":
            kill(server.pid, server.ticks)
        elif kind == "new leader":
            self.kill_new(server, run, command)
        elif kind == "rank":
            self.kill("member", what)
        elif kind == "port":
            self.extra.append(Recorder(self.folder, f"port-{what.number}", (), host.env, port=host.port))
        elif kind == "second operator":
            words = [
                "apply",
                ALIAS,
                "--server",
                str(server.pid),
                "--set",
                f"max_running_requests={self.requests(what.value + 64)}",
            ]
            started.append(self.commands.start(*words, "--yes", *(["--take-over"] if what.take_over else [])))
        elif kind == "full disk" and host.may_fill_disk:
            host.fill_disk()
            return host.free_disk
        else:
            limited = [each for each in host.watch.look() if each.kind in ("supervisor", "probe")]
            for each in limited:
                host.limit_files(each.pid, limit=True)

            def lift() -> None:
                for each in host.watch.look():
                    host.limit_files(each.pid, limit=False)

            return lift
        return nothing

    def kill(self, kind: str, what: Round) -> None:
        """Kill a process of a kind: all of them, but of ranks one."""
        found = [each for each in self.host.watch.look() if each.kind == kind]
        if kind == "member":
            ranks = self.host.ranks()
            found = [each for each in found if each.pid in ranks]
            found = found[int(what.rank * len(found)) :][:1]
        for each in found:
            kill(each.pid, each.ticks)

    def kill_new(self, server: Ours, run: str, command: Command) -> None:
        """Kill the leader of the new server, as soon as there is one."""

        def new() -> Ours | None:
            leader = self.host.watch.leader()
            return leader if leader is not None and leader.ticks != server.ticks else None

        def over() -> bool:
            record = self.host.record(run) if run else None
            return command.code is not None or (record is not None and record["outcome"] != "running")

        wait_for(lambda: new() or over(), 30)
        leader = new()
        if leader is not None:
            kill(leader.pid, leader.ticks)

    def plant(self, run: str, record: Mapping[str, Any]) -> None:
        """Let a bystander have the PID of a member that is gone, or stand in a run's record under a wrong start."""
        progress = dict(record["progress"])
        recorded = [*(progress.get("members") or ()), *([record["old"]] if record["old"] else [])]
        gone = [each["pid"] for each in recorded if stat_of(each["pid"]) is None]
        for pid in gone[:3]:
            with contextlib.suppress(OSError):
                self.extra.append(Recorder(self.folder, f"pid-{pid}-{time.time():.0f}", (), self.host.env, pid=pid))
                self.tally.reused += 1
                return
        bystander = self.bystanders[0]
        shown = self.host.shown_ticks(bystander.pid)
        if shown is not None:
            wrong = {"pid": bystander.pid, "start_ticks": shown - 700, "uid": 0, "title": "sglang::scheduler_TP9"}
            progress["members"] = [*(progress.get("members") or ()), wrong]
            self.host.write_record(run, {**record, "progress": progress})
            self.tally.planted += 1

    # -- the end of a round -------------------------------------------------------------------------------------------

    def until_over(self, command: Command, known: set[str], started: Sequence[Command]) -> None:
        """Wait until the run has an outcome, or nobody carries it out any more, or there is none and will be none."""
        host = self.host

        def supervised() -> bool:
            return any(each.kind == "supervisor" for each in host.watch.look())

        def over() -> bool:
            records = [host.record(run) for run in set(host.runs()) - known]
            if any(record is None for record in records):
                return not supervised() and all(each.code is not None for each in started)
            going = [record for record in records if record is not None and record["outcome"] == "running"]
            if not going:
                done = all(each.code is not None for each in started)
                return done or (bool(records) and len(started) == 1)
            held = [
                record["supervisor"] for record in going if record["supervisor"] and host.lives(record["supervisor"])
            ]
            return not held

        def surely() -> bool:
            if not over():
                return False
            time.sleep(0.25)
            return over()

        if not wait_for(surely, END_S[self.options.engine], 0.05):
            self.trouble.append(f"the run does not end: {self.record(known)}")

    def close_terminals(self, what: Round, started: Sequence[Command]) -> None:
        """Wait for commands that end by themselves; kill the others, as when their terminals are closed."""
        for command in started:
            if command.wait(8.0 if what.rank < 0.2 else 0.3) is None:
                command.send(9)
                command.wait(5)

    # -- looking ------------------------------------------------------------------------------------------------------

    def reading(self, what: Round) -> dict[str, Any]:
        """Return what a user sees who connects now."""
        code: int | None
        if what.installed:
            done = subprocess.run(
                [sys.executable, "-m", "tuner", "snapshot", ALIAS, "--json"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd=ROOT,
            )  # fmt: skip
            said, code = done.stdout + done.stderr, done.returncode
        else:
            command = self.commands.start("snapshot", ALIAS, "--json")
            code, said = command.wait(60), command.said
            if code is None:
                command.send(9)
        for line in said.splitlines():
            if line.startswith("{"):
                return dict(json.loads(line))
        self.trouble.append(f"no reading, exit code {code}: {said[-400:]}")
        return {}

    def compare(self, reading: Mapping[str, Any]) -> None:
        """Check that each living process of ours is in the reading."""
        if not reading:
            return
        missing = self.missing(reading)
        if missing:
            # What came or went meanwhile is seen in a second reading.
            time.sleep(1.0)
            command = self.commands.start("snapshot", ALIAS, "--json")
            command.wait(60)
            lines = [line for line in command.said.splitlines() if line.startswith("{")]
            again = json.loads(lines[-1]) if lines else {}
            still = {each.pid for each in missing}
            missing = [each for each in self.missing(again) if each.pid in still]
            reading = again
        if missing:
            words = ", ".join(f"{each.pid} {each.kind} {each.title[:60]}" for each in missing)
            shown = [(each["pid"], each["phase"]) for each in reading.get("servers", ())]
            runs = [
                (each["id"], each["outcome"], each["step"], each["leftovers"]) for each in reading.get("runs", ())[:2]
            ]
            self.trouble.append(f"not in the reading: {words}; it has {shown} and {runs}")

    def missing(self, reading: Mapping[str, Any]) -> list[Ours]:
        """Return the living processes of ours that a reading does not show."""
        living = self.host.watch.look()
        listed: set[int] = set()
        sessions: set[int] = set()
        for server in reading.get("servers", ()):
            listed.add(server["pid"])
            listed |= {rank["pid"] for rank in server["ranks"] if rank["pid"]}
            listed |= {member["pid"] if isinstance(member, dict) else member for member in server.get("members") or ()}
            if server["phase"] not in ("failed", "stopped", "gone"):
                sessions.add(server["pid"])
        for run in reading.get("runs", ()):
            listed |= {each["pid"] for each in run["leftovers"]}
            if run["alive"]:
                listed.add(run["new_pid"])
                sessions.add(run["new_pid"])
        return [
            each
            for each in living
            if each.kind in ("leader", "member") and each.pid not in listed and each.session not in sessions
        ]

    # -- back ---------------------------------------------------------------------------------------------------------

    def free_port(self) -> None:
        """End what took the server's port, as its owner would."""
        for each in [each for each in self.extra if each.name.startswith("port-")]:
            if trouble := each.trouble():
                self.trouble.append(f"a foreign process was signalled: {trouble}")
            each.end()
            self.extra.remove(each)

    def bring_back(self, what: Round, reading: Mapping[str, Any], outcome: str) -> None:
        """Bring the host back as a user would, and check that the last good server serves."""
        said = ""
        wanted = self.good[-1]
        left = any(run["interrupted"] for run in reading.get("runs", ()))
        if left or outcome == "running":
            said = self.command("resume", *(["--back"] if what.resume_back else []))
            wanted = [] if not what.resume_back else wanted
        elif not self.host.serves() or (outcome == "ready" and what.back_anyway):
            said = self.command("apply", "--back")
        else:
            self.tally.ways["it serves"] += 1
            return
        if not wait_for(self.host.serves, 3.0, 0.2):
            said += self.command("apply", "--back")
            wanted = self.good[-1]
        if not wait_for(self.host.serves, 5.0, 0.2):
            self.trouble.append(f"nothing serves after that: {said[-1500:]}")
            return
        leader = self.host.watch.leader()
        argv = self.host.argv(leader) if leader is not None else []
        if wanted and argv != wanted:
            self.trouble.append(f"another server than the last good one: {argv} instead of {wanted}")

    def command(self, name: str, *more: str) -> str:
        """Run a command to bring the host back, to its end; return what it said."""
        self.tally.ways[" ".join((name, *more))] += 1
        command = self.commands.start(name, ALIAS, *more, "--yes", "--take-over")
        code = command.wait(END_S[self.options.engine])
        if code is None:
            self.trouble.append(f"{name} does not end: {command.said[-600:]}")
            command.send(9)
        return f"\n$ {name} {' '.join(more)}: exit code {code}\n{command.said[-1200:]}"

    def after(self) -> None:
        """Check the bystanders, and that no second server lived and no process of ours was left behind."""
        for each in (*self.bystanders, *self.extra):
            if trouble := each.trouble():
                self.trouble.append(f"a foreign process was signalled: {trouble}")
        for each in self.extra:
            each.end()
        self.extra.clear()
        for number, each in enumerate(self.bystanders):
            if each.trouble():
                self.bystanders[number] = Recorder(self.folder, f"{each.name}-{time.time():.0f}", (), self.host.env)
        for name, pid in self.host.bystanders.items():
            now, before = stat_of(pid), self.others[name]
            if before is None or now is None or not now.alive or now.ticks != before.ticks:
                self.trouble.append(f"a foreign process was ended: {name} (PID {pid})")
        crowds, self.host.watch.crowds = self.host.watch.crowds, []
        if crowds:
            self.trouble.append(f"two servers lived, seen {len(crowds)} times: {crowds[0].sessions}")

        def strays() -> list[Ours]:
            found = self.host.watch.look()
            return [each for each in found if each.kind == "probe"] + [
                each for each in found if each.kind == "supervisor" and not self.needed(each)
            ]

        if wait_for(lambda: not strays(), 15.0, 0.2) is not True:
            words = [f"{each.pid} {each.kind} {each.title[-60:]} {waits(each.pid)}" for each in strays()]
            self.trouble.append(f"processes of gputuner without a purpose: {words}")

    def needed(self, supervisor: Ours) -> bool:
        """Return whether a server of a supervisor lives."""
        words = supervisor.title.removesuffix(" --again").split()
        run = Path(words[-1]).name if words else ""
        record = self.host.record(run) if run else None
        return record is not None and record["new"] is not None and self.host.lives(record["new"])

    def keep(self, number: int, known: set[str]) -> None:
        """Keep the folders of the round's runs."""
        for run in set(self.host.runs()) - known:
            with contextlib.suppress(OSError):
                import shutil

                shutil.copytree(self.host.folder / "runs" / run, Path(self.options.keep) / f"{number}-{run}")

    def close(self) -> None:
        """End the bystanders."""
        for each in (*self.bystanders, *self.extra):
            each.end()


def waits(pid: int) -> str:
    """Return what the threads of a process wait for, and what its standard files are."""
    found = []
    for name in ("0", "1", "2"):
        with contextlib.suppress(OSError):
            found.append(str(Path(f"/proc/{pid}/fd/{name}").readlink()))
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found.append(f"{(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text()}")
    return ", ".join(found)


def work(options: argparse.Namespace, numbers: Sequence[int], say: Callable[[str], None]) -> Tally:
    """Play rounds on one host."""
    with tempfile.TemporaryDirectory(prefix="gt-") as folder:
        home = Path(folder)
        own_home(home)
        made = SimulatedHost.made if options.engine == "simulated" else EngineHost.made
        with made(home, options) as host:
            commands = Commands(home)
            benchmark = Benchmark(host, commands, options, home, say)
            try:
                for number in numbers:
                    benchmark.play(Round.drawn(options.seed, number, WHOLE_S[options.engine], options.kinds))
            finally:
                commands.close()
                benchmark.close()
            return benchmark.tally


def spread(options: argparse.Namespace, say: Callable[[str], None]) -> Tally:
    """Let several processes play rounds, each on a host of its own."""
    whole = Tally()
    words = [
        sys.executable,
        __file__,
        "--seed",
        str(options.seed),
        "--runs",
        str(options.runs),
        "--first",
        str(options.first),
    ]
    words += [part for kind in options.kinds for part in ("--kind", kind)]
    words += ["--verbose"] if options.verbose else []
    words += ["--engine", options.engine, *(["--keep", options.keep] if options.keep else [])]
    parts = [
        subprocess.Popen([*words, "--part", f"{number}/{options.hosts}"], stdout=subprocess.PIPE, text=True)
        for number in range(options.hosts)
    ]

    def read(part: subprocess.Popen[str]) -> None:
        assert part.stdout is not None
        for line in part.stdout:
            if line.startswith("{"):
                whole.add(json.loads(line))
            else:
                say(line.rstrip("\n"))

    readers = [threading.Thread(target=read, args=(part,)) for part in parts]
    for reader in readers:
        reader.start()
    for reader, part in zip(readers, parts, strict=True):
        reader.join()
        if part.wait():
            whole.violations.append(f"a part ended with {part.returncode}")
    return whole


def main() -> int:
    """Play all rounds; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=20_261_130)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, metavar="K", help="begin with this round")
    parser.add_argument("--only", type=int, action="append", metavar="K", help="this round alone; may be given again")
    parser.add_argument("--hosts", type=int, default=1, help="so many simulated hosts at the same time")
    parser.add_argument("--engine", choices=("simulated", "sglang", "vllm"), default="simulated")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="print what gputuner said where no run began")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="keep the records of rounds with a violation")
    parser.add_argument("--kind", dest="kinds", action="append", choices=KINDS, help="only interruptions of this kind")
    options = parser.parse_args()
    options.kinds = options.kinds or list(KINDS)

    def say(text: str) -> None:
        print(text, flush=True)

    def ended(number: int, frame: object) -> None:
        sys.exit(128 + number)  # so that hosts, disks and bystanders are removed

    signal.signal(signal.SIGTERM, ended)
    numbers = range(options.first, options.runs) if options.only is None else options.only
    if options.part:
        part, of = map(int, options.part.split("/"))
        print(json.dumps(work(options, list(numbers)[part::of], say).json), flush=True)
        return 0
    began = time.monotonic()
    tally = spread(options, say) if options.hosts > 1 else work(options, list(numbers), say)
    print(f"{tally.rounds} rounds, seed {options.seed}, {options.engine}: {time.monotonic() - began:.0f} s")
    if tally.seconds:
        print(f"a round: median {statistics.median(tally.seconds):.1f} s, longest {max(tally.seconds):.1f} s")
    for name, counted in (
        ("interrupted by", tally.kinds), ("in the step", tally.hit), ("outcome of the run", tally.outcomes),
        ("brought back by", tally.ways),
    ):  # fmt: skip
        print(f"{name}: {', '.join(f'{key} {number}' for key, number in counted.most_common())}")
    print(f"bystanders with the PID of a dead member {tally.reused}, recorded under a wrong start {tally.planted}")
    print(f"violations: {len(tally.violations)}")
    for text in tally.violations:
        print(text)
    return 1 if tally.violations else 0


if __name__ == "__main__":
    sys.exit(main())
