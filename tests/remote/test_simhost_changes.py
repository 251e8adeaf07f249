"""Servers on the simulated host are started, stopped and broken by hand, over SSH, as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import shlex
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.remote.test_simhost import connect, until
from tests.remote.test_simhost_seen import watch
from tuner import simhost
from tuner.core.helptext import parse_help
from tuner.domain.server import Phase
from tuner.simhost import SimHost
from tuner.simhost.engine.memory import GIB, MIB

SPEED = 20.0
HELP = Path(__file__).parents[1] / "golden" / "help"


def _state(pid: int) -> str:
    """The letter in the kernel's own process table; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    return _state(pid) not in ("", "Z", "X")


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


class Box:
    """A simulated host and what its operator does there."""

    def __init__(self, host: SimHost, client: asyncssh.SSHClientConnection) -> None:
        self.host = host
        self.client = client
        self.dir = host.address.dir
        self.python = self.dir / "venv" / "bin" / "python"

    def facts(self) -> list[dict[str, Any]]:
        """What each server tells of itself."""
        found = []
        for path in (self.dir / "run").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return found

    def fact(self, pid: int) -> dict[str, Any]:
        return next((fact for fact in self.facts() if fact["pid"] == pid), {})

    def shown(self, pid: int, name: str) -> str:
        """A file of a process below HOST_ROOT."""
        return (self.dir / "root" / "proc" / str(pid) / name).read_bytes().decode()

    def shown_log(self, pid: int) -> str:
        """The file that a process's output goes to; empty where it is not shown."""
        try:
            return str((self.dir / "root" / "proc" / str(pid) / "fd" / "1").readlink())
        except OSError:
            return ""

    def seen(self, pid: int) -> bool:
        return (self.dir / "root" / "proc" / str(pid)).exists()

    def driver(self) -> dict[str, Any]:
        return dict(json.loads((self.dir / "bin" / "gpu-state.json").read_text()))

    def used(self) -> list[int]:
        """Bytes in use by GPU."""
        return [gpu["used"] for gpu in self.driver()["gpus"]]

    def free(self) -> bool:
        return max(self.used()) < 100 * MIB

    async def start(self, *flags: str, env: str = "", fraction: float = 0.88, port: int = 30_400) -> int:
        """Start a server as by hand: detached, output to a file. Returns its PID."""
        graphs = "--cuda-graph-max-bs" if self.host.address.version == "0.5.9" else "--cuda-graph-max-bs-decode"
        words = [
            str(self.python), "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.5-int4", "--tp", "8",
            "--trust-remote-code", "--mem-fraction-static", str(fraction), "--context-length", "131072",
            graphs, "128", "--port", str(port), "--enable-metrics", *flags,
        ]  # fmt: skip
        line = f"cd $HOME; {env} setsid {shlex.join(words)} > $HOME/new.log 2>&1 < /dev/null & echo $!"
        pid = int((await self.client.run(line)).stdout)
        await until(lambda: self.seen(pid))
        return pid

    async def ready(self, pid: int) -> dict[str, Any]:
        await until(lambda: self.fact(pid).get("ready"), 40.0)
        return self.fact(pid)

    async def ended(self, pid: int, seconds: float = 20.0) -> None:
        await until(lambda: not _alive(pid), seconds)

    @property
    def log(self) -> str:
        return (self.dir / "home" / "new.log").read_text()


@contextlib.asynccontextmanager
async def a_box(scenario: str = "healthy", version: str = "0.5.9", **options: Any) -> AsyncIterator[Box]:
    with simhost.start(scenario, version, **{"speed": SPEED, "no_server": True, **options}) as host:
        async with connect(host) as client:
            yield Box(host, client)


@pytest.fixture(params=["0.5.9", "0.5.23"])
async def box(request: pytest.FixtureRequest) -> AsyncIterator[Box]:
    async with a_box(version=request.param) as made:
        yield made


def _get(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# A server by hand


async def test_a_server_by_hand_is_seen_as_what_it_is(box: Box) -> None:
    pid = await box.start("--max-running-requests", "64", env="GPUTUNER_RUN=20261130-1 NCCL_MAX_NCHANNELS=4")
    fact = await box.ready(pid)
    argv = box.shown(pid, "cmdline").rstrip("\0").split("\0")
    assert argv[:3] == [str(box.python), "-m", "sglang.launch_server"]
    assert argv[-2:] == ["--max-running-requests", "64"]
    env = dict(pair.partition("=")[::2] for pair in box.shown(pid, "environ").rstrip("\0").split("\0"))
    assert (env["GPUTUNER_RUN"], env["NCCL_MAX_NCHANNELS"]) == ("20261130-1", "4")
    folder = box.dir / "root" / "proc" / str(pid)
    assert (folder / "cwd").readlink() == box.dir / "home"
    assert (folder / "fd" / "1").readlink() == box.dir / "home" / "new.log"
    assert (folder / "exe").readlink() == box.python
    await until(lambda: f":{30_400:04X} " in box.shown(pid, "net/tcp"))
    stat = box.shown(pid, "stat").rpartition(")")[2].split()
    assert (stat[1], stat[3]) == ("1", str(pid)), "adopted by init, leader of its session"
    titles = {box.shown(m["pid"], "cmdline").rstrip("\0") for m in fact["members"]}
    assert {f"sglang::scheduler_TP{rank}" for rank in range(8)} | {"sglang::detokenizer"} <= titles
    assert all(box.shown(m["pid"], "stat").rpartition(")")[2].split()[1] == str(pid) for m in fact["members"])
    ranks = {m["pid"] for m in fact["members"] if m["kind"] == "scheduler"}

    def held() -> bool:
        """Whether the driver, which looks four times a second, tells the ranks with their titles and memory."""
        there = {each["pid"]: each for each in box.driver()["processes"]}
        whole = all(each["used"] > 80 * GIB and "scheduler_TP" in each["name"] for each in there.values())
        return there.keys() == ranks and whole

    await until(held)
    assert _get(30_400, "/health") == 200
    seen = await watch(
        box.host, lambda s: s.servers and s.servers[0].phase is Phase.READY and len(s.servers[0].ranks) == 8
    )
    assert seen.servers[0].identity.pid == pid
    assert {rank.pid for rank in seen.servers[0].ranks} == ranks


async def test_a_stop_by_term_gives_the_memory_back(box: Box) -> None:
    pid = await box.start()
    fact = await box.ready(pid)
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    await box.ended(pid)
    assert time.monotonic() - began < 6.0 / SPEED + 2.0
    await until(box.free)
    assert box.driver()["processes"] == []
    smi = (await box.client.run("nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits")).stdout.split()
    code = (
        "import pynvml as n; n.nvmlInit(); h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(8)]; "
        "print(*(n.nvmlDeviceGetMemoryInfo(x, version=n.nvmlMemory_v2).used >> 20 for x in h))"
    )
    nvml = (await box.client.run(f"python -c '{code}'")).stdout.split()
    assert smi == nvml == ["4"] * 8
    assert not [m["pid"] for m in fact["members"] if _alive(m["pid"])]
    await until(lambda: not box.seen(pid))
    assert "SIGTERM received" in box.log


async def test_the_console_command_starts_a_server_too(box: Box) -> None:
    line = "sglang serve --model-path /models/qwen3-0.6b --mem-fraction-static 0.05 --port 30401 --context-length 8192"
    pid = int((await box.client.run(f"setsid {line} > $HOME/new.log 2>&1 < /dev/null & echo $!")).stdout)
    fact = await box.ready(pid)
    assert f"{box.dir}/venv/bin/sglang\0serve\0" in box.shown(pid, "cmdline")
    assert [m["title"].rstrip("\0") for m in fact["members"] if m["gpu"] is not None] == ["sglang::scheduler"]
    assert " TP0]" not in box.log
    await until(lambda: [used > GIB for used in box.used()] == [True] + [False] * 7)


# What is refused


async def test_the_help_has_the_flags_of_the_version(box: Box) -> None:
    began = time.monotonic()
    done = await box.client.run("python -m sglang.launch_server --help")
    assert time.monotonic() - began < 2.0
    assert done.exit_status == 0
    real = gzip.decompress((HELP / f"sglang-{box.host.address.version}.txt.gz").read_bytes()).decode()
    assert parse_help(str(done.stdout)) == parse_help(real)


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("0.5.9", "--nope 3", "launch_server.py: error: unrecognized arguments: --nope 3"),
        ("0.5.9", "--tp x", "launch_server.py: error: argument --tensor-parallel-size/--tp-size: invalid int value"),
        ("0.5.23", "--cuda-graph-max-bs 8", "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match "),
    ],
)
async def test_refused_flags_end_it_at_once(version: str, flags: str, said: str) -> None:
    async with a_box(version=version) as box:
        done = await box.client.run(f"python -m sglang.launch_server --model-path /models/kimi-k2.5-int4 {flags}")
        assert done.exit_status == 2
        assert str(done.stderr).startswith("usage: ")
        assert said in str(done.stderr)
        gone = await box.client.run("python -m sglang.launch_server --model-path /models/none")
        assert gone.exit_status == 1
        assert "OSError: /models/none is not a local folder" in str(gone.stderr)


@pytest.mark.parametrize(
    ("fraction", "words"),
    [(0.55, "Not enough memory. Please try to increase"), (0.97, "Capture cuda graph failed: CUDA out of memory")],
)
async def test_fractions_that_cannot_work(fraction: float, words: str) -> None:
    async with a_box() as box:
        pid = await box.start(fraction=fraction)
        await box.ended(pid, 40.0)
        assert words in box.log
        await until(box.free)


async def test_a_second_server_finds_the_memory_taken(box: Box) -> None:
    first = await box.start()
    await box.ready(first)
    line = "nvidia-smi --query-compute-apps=pid --format=csv,noheader"
    assert len((await box.client.run(line)).stdout.split()) == 8
    second = await box.start(port=30_402)
    await box.ended(second, 40.0)
    assert "CUDA out of memory" in box.log
    assert _alive(first)
    assert _get(30_400, "/health") == 200


# Signals, as observed


async def test_term_while_loading_leaves_the_detokenizer(box: Box) -> None:
    pid = await box.start()
    await until(lambda: box.fact(pid).get("phase") == "weights")
    children = {m["kind"]: m["pid"] for m in box.fact(pid)["members"]}
    await until(lambda: box.seen(children["detokenizer"]) and not box.free())
    os.kill(pid, signal.SIGTERM)
    await box.ended(pid, 5.0)
    await until(lambda: not _alive(children["scheduler"]))
    old = box.host.address.version == "0.5.9"
    await until(box.free)
    assert _alive(children["detokenizer"]) is not old
    if not old:
        await until(lambda: box.shown(children["detokenizer"], "stat").rpartition(")")[2].split()[1] == "1")
        again = await box.start()
        await box.ready(again)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
async def test_kill_and_hang_up_take_the_children_along(number: signal.Signals) -> None:
    async with a_box() as box:
        pid = await box.start()
        fact = await box.ready(pid)
        os.kill(pid, number)
        await until(lambda: not [m for m in fact["members"] if _alive(m["pid"])], 5.0)
        await until(box.free)


async def test_a_killed_rank_is_noticed_late() -> None:
    async with a_box(version="0.5.23") as box:
        pid = await box.start()
        fact = await box.ready(pid)
        began = time.monotonic()
        os.kill(next(m["pid"] for m in fact["members"] if m["gpu"] == 2), signal.SIGKILL)
        await until(lambda: "Waiting 60.0 seconds for CUDA coredumps" in box.log)
        assert _alive(pid)
        await box.ended(pid)
        assert time.monotonic() - began > 65.0 / SPEED
        await until(box.free)


async def test_term_with_requests_drains(box: Box) -> None:
    pid = await box.start()
    await box.ready(pid)
    body = json.dumps({"text": "x" * 400, "sampling_params": {"max_new_tokens": 150}}).encode()
    asked = urllib.request.Request("http://127.0.0.1:30400/generate", data=body)

    def ask() -> dict[str, Any]:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return dict(json.load(answer))

    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(asyncio.to_thread(ask))
        await until(lambda: "Prefill batch, #new-seq: 1, #new-token: 100" in box.log)
        os.kill(pid, signal.SIGTERM)
        await until(lambda: "Draining requests" in box.log)
        assert _get(30_400, "/health") == 503
    assert answer.result()["meta_info"]["completion_tokens"] == 150
    await box.ended(pid)
    assert re.search(r"Remaining number of requests 1\b", box.log)


# Faults


async def test_fault_ignore_term() -> None:
    async with a_box() as box:
        pid = await box.start(env="SIMHOST_FAULT=ignore-term")
        await box.ready(pid)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        assert _get(30_400, "/health") == 200
        assert "SIGTERM received" not in box.log
        os.kill(pid, signal.SIGKILL)
        await until(box.free)


async def test_fault_orphans_hold_memory_until_they_die() -> None:
    async with a_box() as box:
        pid = await box.start(env="SIMHOST_FAULT=orphans")
        fact = await box.ready(pid)
        os.kill(pid, signal.SIGKILL)
        ranks = [m["pid"] for m in fact["members"] if m["gpu"] is not None]
        await until(lambda: not box.seen(pid))
        assert all(_alive(rank) for rank in ranks)
        assert box.shown(ranks[0], "stat").rpartition(")")[2].split()[1] == "1"
        assert min(box.used()) > 80 * GIB
        for rank in ranks:
            os.kill(rank, signal.SIGTERM)
        await until(box.free)
    assert not [m["pid"] for m in fact["members"] if _alive(m["pid"])], "the host's end is theirs"


async def test_the_scenarios_server_can_have_faults_too() -> None:
    async with a_box("healthy", no_server=False, traffic="none", fault=["orphans", "ignore-term"]) as box:
        await until(lambda: any(fact["ready"] for fact in box.facts()))
        fact = box.facts()[0]
        assert "SIMHOST_FAULT=orphans,ignore-term" in box.shown(fact["pid"], "environ").split("\0")
        os.kill(fact["pid"], signal.SIGKILL)
        await until(lambda: not box.seen(fact["pid"]))
        assert min(box.used()) > 80 * GIB
        ranks = [m["pid"] for m in fact["members"] if m["gpu"] is not None]
        assert all(_alive(rank) and box.seen(rank) for rank in ranks)
    await until(lambda: not [rank for rank in ranks if _alive(rank)])


async def test_fault_slow_memory() -> None:
    async with a_box() as box:
        pid = await box.start(env=f"SIMHOST_FAULT=slow-memory={2 * SPEED}")
        await box.ready(pid)
        await until(lambda: min(box.used()) > 80 * GIB)
        os.kill(pid, signal.SIGKILL)
        await box.ended(pid)
        began = time.monotonic()
        assert min(box.used()) > 80 * GIB
        await until(box.free)
        assert time.monotonic() - began > 1.5, "the dead still hold it"


async def test_fault_instant_stop() -> None:
    async with a_box() as box:
        pid = await box.start(env="SIMHOST_FAULT=instant-stop")
        await box.ready(pid)
        began = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        await until(box.free)
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(("fault", "phase"), [("hang-loading", "weights"), ("hang-capture", "capture-decode")])
async def test_faults_that_hang_while_loading(fault: str, phase: str) -> None:
    async with a_box() as box:
        pid = await box.start(env=f"SIMHOST_FAULT={fault}")
        await until(lambda: box.fact(pid).get("phase") == phase, 30.0)
        held = -1

        def still() -> bool:
            nonlocal held
            held, before = box.used()[0], held
            return held == before

        await until(still)
        assert _alive(pid)
        os.kill(pid, signal.SIGTERM)
        await box.ended(pid)
        await until(box.free)


async def test_fault_never_listens() -> None:
    async with a_box() as box:
        pid = await box.start(env="SIMHOST_FAULT=never-listens")
        await until(lambda: "max_total_num_tokens=" in box.log, 30.0)
        with pytest.raises(urllib.error.URLError, match="refused"):
            _get(30_400, "/health")
        assert _alive(pid)


async def test_fault_port_taken_by_one_who_is_mute() -> None:
    async with a_box() as box:
        pid = await box.start(env="SIMHOST_FAULT=port-taken")
        await until(lambda: "address already in use" in box.log, 30.0)
        assert _alive(pid), "it holds its memory and never serves"
        squatter = box.fact(pid)["squatter"]["pid"]
        assert "http.server" in box.shown(squatter, "cmdline")
        assert f":{30_400:04X} " in box.shown(squatter, "net/tcp")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not _alive(squatter))


async def test_a_port_whose_owner_answers_makes_it_say_that_it_is_ready() -> None:
    async with a_box("start", no_server=False, speed=20.0, traffic="none") as box:
        await until(lambda: any(fact["ready"] for fact in box.facts()), 40.0)
        old = box.facts()[0]
        os.kill(old["pid"], 0)
        line = f"--model-path /models/qwen3-0.6b --mem-fraction-static 0.5 --context-length 4096 --port {old['port']}"
        graphs = "--cuda-graph-max-bs 8 --max-running-requests 16"
        done = await box.client.run(f"exec python -m sglang.launch_server {line} {graphs}")
        assert done.exit_signal is not None
        assert done.exit_signal[0] == "KILL"
        said = str(done.stdout)
        assert said.index("address already in use") < said.index("The server is fired up and ready to roll!")
        assert _alive(old["pid"])


async def test_fault_rank_dies_at_ready() -> None:
    async with a_box(version="0.5.23") as box:
        pid = await box.start(env="SIMHOST_FAULT=rank-dies")
        await until(lambda: "fired up" in box.log, 30.0)
        await box.ended(pid, 30.0)
        assert "Connection closed by peer" in box.log


# Bystanders and the play


@pytest.fixture(scope="module")
def shared() -> Iterator[SimHost]:
    with simhost.start("healthy", speed=SPEED, bystanders=True, traffic="none") as host:
        yield host


async def test_bystanders_survive_a_switch(shared: SimHost) -> None:
    async with connect(shared) as client:
        box = Box(shared, client)
        pids = shared.address.bystanders
        assert set(pids) == {"tail", "editor", "server"}
        assert "python -m sglang.launch_server" in box.shown(pids["tail"], "cmdline")
        assert "Uid:\t1003" in box.shown(pids["server"], "status")
        await until(lambda: sum(1 for fact in box.facts() if fact["ready"]) == 2)
        mine = next(fact for fact in box.facts() if fact["pid"] != pids["server"])
        bob = box.fact(pids["server"])
        assert {p["gpu"] for p in box.driver()["processes"] if p["pid"] in {m["pid"] for m in bob["members"]}} == {5}
        os.kill(mine["pid"], signal.SIGTERM)
        await box.ended(mine["pid"])
        await until(lambda: sum(used > GIB for used in box.used()) == 1)
        again = await box.start(port=mine["port"])
        await box.ready(again)
        assert all(_alive(pid) for pid in pids.values())
        assert _get(bob["port"], "/health") == 200


async def test_the_play_ends_when_somebody_else_acts() -> None:
    async with a_box("story", no_server=False, speed=40.0) as box:

        def loading() -> list[int]:
            return [f["pid"] for f in box.facts() if f["phase"] == "weights" and "custom-ar" in box.shown_log(f["pid"])]

        os.kill((await until(loading, 30.0))[0], signal.SIGKILL)
        await until(box.free)
        pid = await box.start(fraction=0.8)
        await box.ready(pid)
        # Its pauses are a third of a second here.
        await until(lambda: box.log.count("GET /health") == 0)
        logs = sorted(path.name for path in (box.dir / "data" / "logs").glob("*.log"))
        assert logs == ["base-88-good.log", "frac-055-custom-ar.log", "frac-055-nccl-2ch.log"]
        assert _alive(pid)


async def test_other_processes_of_the_host_are_shown_and_end_with_it() -> None:
    async with a_box() as box:
        line = (
            "setsid python -c 'import time; print(1, flush=True); time.sleep(600)' > $HOME/x 2>&1 < /dev/null & echo $!"
        )
        pid = int((await box.client.run(line)).stdout)
        await until(lambda: box.seen(pid) and "import time" in box.shown(pid, "cmdline"))
        assert "HOST_ROOT=" in box.shown(pid, "environ")
        listener = 'import socket,time; s = socket.create_server(("127.0.0.1", 30491)); time.sleep(600)'
        second = int((await box.client.run(f"setsid python -c '{listener}' > /dev/null 2>&1 & echo $!")).stdout)
        await until(lambda: box.seen(second) and ":771B " in box.shown(second, "net/tcp"))
    await until(lambda: not _alive(pid) and not _alive(second))


async def test_what_is_stopped_before_its_ranks_are_shown_leaves_nothing_over() -> None:
    # At this speed there is time enough before they are.
    async with a_box(version="0.5.23", speed=1.0) as box:
        pid = await box.start()
        await until(lambda: len(_children(pid)) == 10)
        children = _children(pid)
        os.kill(pid, signal.SIGTERM)
        await until(lambda: not _alive(pid) and not any(map(_alive, children)))
        await until(lambda: not box.seen(pid))
        assert not any(map(box.seen, children))


async def test_a_killed_host_takes_all_along() -> None:
    async with a_box() as box:
        server = await box.start()
        await until(lambda: box.fact(server).get("members"))
        other = int((await box.client.run("setsid sleep 600 > /dev/null 2>&1 & echo $!")).stdout)
        await until(lambda: box.seen(other))
        pids = [server, other, *box.fact(server)["children"]]
        os.kill(box.host.pid, signal.SIGKILL)
        await until(lambda: not [pid for pid in pids if _alive(pid)] and not box.dir.exists())


# Speed


async def test_knobs_change_the_memory_of_communicators() -> None:
    sizes = {}
    async with a_box() as box:
        for channels in ("16", "2"):
            pid = await box.start(env=f"NCCL_MAX_NCHANNELS={channels}")
            await until(lambda pid=pid: box.fact(pid).get("phase") == "weights")
            # Of one rank: the last one has 48 MiB less than the others, and any of them may be the first to print.
            found = re.search(r" TP0\] Init torch distributed ends\. .*mem usage=([\d.]+) GB", box.log)
            assert found is not None
            sizes[channels] = float(found[1])
            os.kill(pid, signal.SIGKILL)
            await until(box.free)
    assert sizes["16"] - sizes["2"] == pytest.approx(14 * 10 / 1024, abs=0.02)
