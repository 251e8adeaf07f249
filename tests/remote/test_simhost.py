"""The simulated host from outside: a real SSH client, real processes, real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tuner import simhost
from tuner.simhost import SimHost
from tuner.simhost.engine.memory import GIB, MIB


async def until(fact: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for something to be true."""
    async with asyncio.timeout(seconds):
        while not (found := fact()):  # noqa: ASYNC110 - facts of other processes, on disk
            await asyncio.sleep(0.02)
    return found


def connect(host: SimHost) -> Any:
    address = host.address
    return asyncssh.connect(
        address.host, address.port, username=address.user, client_keys=[str(address.identity)],
        known_hosts=str(address.known_hosts), config=None, agent_path=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def healthy() -> Iterator[SimHost]:
    with simhost.start("healthy", api_key="sk-demo") as host:
        _until_serving(host)
        yield host


@pytest.fixture
async def client(healthy: SimHost) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with connect(healthy) as connection:
        yield connection


def _until_serving(host: SimHost, seconds: float = 40.0) -> None:
    """The host answers before its server has written its past and listens: on a busy machine long before."""
    until = time.monotonic() + seconds
    waiting = threading.Event()
    while not any(json.loads(path.read_text())["port"] for path in (host.address.dir / "run").glob("*.json")):
        assert time.monotonic() < until, "the simulated server does not listen"
        waiting.wait(0.02)


def _server(host: SimHost) -> dict[str, Any]:
    facts = [json.loads(path.read_text()) for path in (host.address.dir / "run").glob("*.json")]
    return dict(max(facts, key=lambda fact: fact["started_at"]))


def _get(host: SimHost, path: str, key: str | None = "sk-demo", data: bytes | None = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"http://127.0.0.1:{_server(host)['port']}{path}", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return True


def _pids(host: SimHost) -> list[int]:
    """Everything that runs for it."""
    fact = _server(host)
    return [host.pid, fact["pid"], *(member["pid"] for member in fact["members"])]


# SSH


async def test_commands_have_streams_status_and_the_hosts_surroundings(client: Any, healthy: SimHost) -> None:
    done = await client.run("cat; echo out; echo err >&2; exit 7", input="in\n")
    assert (done.stdout, done.stderr, done.exit_status) == ("in\nout\n", "err\n", 7)
    env = dict(line.partition("=")[::2] for line in (await client.run("env")).stdout.splitlines())
    assert env["HOST_ROOT"] == str(healthy.address.dir / "root")
    assert env["USER"] == "root"
    assert (await client.run("hostname; nvidia-smi -L | wc -l")).stdout.split() == ["gpu-box-1", "8"]


async def test_channels_are_independent_and_stream(client: Any) -> None:
    first = await client.create_process("while read line; do echo got $line; done")
    second = await client.create_process("cat")
    first.stdin.write("one\n")
    assert await first.stdout.readline() == "got one\n"
    second.stdin.write("x" * 300_000 + "\n")
    second.stdin.write_eof()
    assert len(await second.stdout.read()) == 300_001
    first.stdin.write("two\n")
    assert await first.stdout.readline() == "got two\n"
    first.stdin.write_eof()
    assert (await first.wait()).exit_status == 0


async def test_much_output_arrives_whole(client: Any) -> None:
    done = await client.run("head -c 20000000 /dev/zero | tr '\\0' 'a'; exit 3")
    assert (len(done.stdout), done.exit_status) == (20_000_000, 3)


async def test_signals_reach_the_command(client: Any) -> None:
    process = await client.create_process("trap 'echo caught; exit 4' TERM; echo ready; while :; do sleep 0.05; done")
    assert await process.stdout.readline() == "ready\n"
    process.terminate()
    done = await process.wait()
    assert (done.stdout, done.exit_status) == ("caught\n", 4)
    killed = await client.create_process("echo ready; exec sleep 60")
    assert await killed.stdout.readline() == "ready\n"
    killed.kill()
    assert (await killed.wait()).exit_signal[0] == "KILL"


@pytest.mark.parametrize("how", ["channel", "connection"])
async def test_a_closed_channel_ends_its_command(healthy: SimHost, how: str) -> None:
    async with connect(healthy) as connection:
        process = await connection.create_process("trap '' HUP; echo $$; while :; do sleep 0.05; done")
        pid = int(await process.stdout.readline())
        assert _alive(pid)
        if how == "channel":
            process.close()
            await until(lambda: not _alive(pid))
    await until(lambda: not _alive(pid))


async def test_only_the_key_opens(healthy: SimHost, tmp_path: Path) -> None:
    address = healthy.address
    other = asyncssh.generate_private_key("ssh-ed25519")
    for user, key in (("root", other), ("alice", str(address.identity))):
        with pytest.raises(asyncssh.PermissionDenied):
            await asyncssh.connect(
                address.host, address.port, username=user, client_keys=[key], password="x",
                known_hosts=str(address.known_hosts), config=None, agent_path=None,
            )  # fmt: skip
    assert address.identity.stat().st_mode & 0o777 == 0o600
    assert address.dir.stat().st_mode & 0o777 == 0o700


async def test_the_hosts_python_has_the_hosts_nvml(client: Any, healthy: SimHost) -> None:
    code = "import sys, pynvml; pynvml.nvmlInit(); print(sys.executable, pynvml.__file__, pynvml.nvmlDeviceGetCount())"
    done = await client.run(f'python3 -c "{code}"')
    executable, path, count = done.stdout.split()
    assert executable == str(healthy.address.dir / "venv" / "bin" / "python3")
    assert path.startswith(str(healthy.address.dir / "venv" / "lib"))
    assert count == "8"


# The host


def test_the_leader_is_in_proc_with_its_log_and_port(healthy: SimHost) -> None:
    root, fact = healthy.address.dir / "root" / "proc", _server(healthy)
    folder = root / str(fact["pid"])
    argv = (folder / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
    assert argv[1:3] == ["-m", "sglang.launch_server"]
    assert Path(argv[0]).exists()
    assert argv[argv.index("--port") + 1] == str(fact["port"])
    log = (folder / "fd" / "1").resolve()
    assert log.name == "base-88.log"
    assert b"VIRTUAL_ENV=" in (folder / "environ").read_bytes()
    assert f":{fact['port']:04X} " in (folder / "net" / "tcp").read_text()
    if sys.platform == "linux":
        assert log.samefile(f"/proc/{fact['pid']}/fd/1")
    titles = {
        (root / name.name / "cmdline").read_bytes().rstrip(b"\0") for name in root.iterdir() if name.name.isdigit()
    }
    assert {b"sglang::scheduler_TP%d" % rank for rank in range(8)} | {b"sglang::detokenizer"} <= titles
    assert all(_alive(member["pid"]) for member in fact["members"])


def test_memory_of_log_server_and_driver_agree(healthy: SimHost) -> None:
    fact = _server(healthy)
    log = next((healthy.address.dir / "data" / "logs").glob("base-88.log")).read_text()
    state = json.loads((healthy.address.dir / "bin" / "gpu-state.json").read_text())
    used = {p["pid"]: p["used"] for p in state["processes"]}
    info = json.loads(_get(healthy, "/server_info")[1])["internal_states"][0]["memory_usage"]
    final = float(re.findall(r"available_gpu_mem=([\d.]+) GB", log)[-1])
    for member in fact["members"]:
        if member["gpu"] is None:
            continue
        gpu = state["gpus"][member["gpu"]]
        assert gpu["used"] == used[member["pid"]] + 4 * MIB
        assert gpu["total"] > gpu["used"] + gpu["reserved"]
    free = (state["gpus"][0]["total"] - state["gpus"][0]["reserved"] - state["gpus"][0]["used"]) / GIB
    # Since the start only prefills have added: what they needed stays reserved.
    assert 0 <= final - free < 2.5
    assert (info["weight"], info["kvcache"], info["graph"], info["token_capacity"]) == (72.33, 10.42, 2.55, 159_277)


def test_the_past_is_told_in_order_and_took_as_long_as_what_follows_will(healthy: SimHost) -> None:
    folder = healthy.address.dir / "data" / "logs"
    log = (folder / "base-88.log").read_text()
    stamps = [time.mktime(time.strptime(s, "%Y-%m-%d %H:%M:%S")) for s in re.findall(r"^\[([-\d: ]{19})", log, re.M)]
    assert stamps == sorted(stamps)
    assert time.time() - stamps[0] == pytest.approx(7_463, abs=60)
    ready = time.mktime(
        time.strptime(re.findall(r"\[([-\d: ]{19})\] The server is fired up", log)[0], "%Y-%m-%d %H:%M:%S")
    )
    assert ready - stamps[0] == pytest.approx(20, abs=3), "what a start usually takes is what the next one takes"
    older = sorted(folder.glob("base-88-*.log"))
    assert len(older) == 3
    for path in older:
        assert "fired up and ready to roll" in path.read_text()
        assert path.stat().st_mtime < time.time() - 3600


async def test_numbers_move(healthy: SimHost) -> None:
    state = healthy.address.dir / "bin" / "gpu-state.json"
    log = healthy.address.dir / "data" / "logs" / "base-88.log"
    watts, size = json.loads(state.read_text())["gpus"][0]["power_mw"], log.stat().st_size
    await until(lambda: json.loads(state.read_text())["gpus"][0]["power_mw"] != watts)
    await until(lambda: log.stat().st_size > size)


# HTTP


def test_what_the_old_version_answers(healthy: SimHost) -> None:
    codes = {path: _get(healthy, path)[0] for path in
             ("/server_info", "/get_server_info", "/model_info", "/v1/models", "/metrics", "/get_load", "/v1/loads",
              "/ready", "/version", "/nonsense")}  # fmt: skip
    assert codes == {
        "/server_info": 200, "/get_server_info": 200, "/model_info": 200, "/v1/models": 200, "/metrics": 200,
        "/get_load": 200, "/v1/loads": 500, "/ready": 404, "/version": 404, "/nonsense": 404,
    }  # fmt: skip
    assert json.loads(_get(healthy, "/server_info")[1])["version"] == "0.5.9"


def test_the_key_is_needed_but_for_health_and_metrics(healthy: SimHost) -> None:
    assert _get(healthy, "/server_info", None) == (401, b'{"error":"Unauthorized"}')
    assert _get(healthy, "/server_info", "wrong")[0] == 401
    assert _get(healthy, "/v1/completions", None, b"{}")[0] == 401
    assert _get(healthy, "/metrics", None)[0] == 200
    assert _get(healthy, "/health", None)[0] == 200


def _series(host: SimHost) -> dict[str, float]:
    text = _get(host, "/metrics")[1].decode()
    return {name: float(value) for name, value in re.findall(r"^(sglang:\S+) (\S+)$", text, re.M)}


def _one(series: dict[str, float], name: str, label: str = "") -> float:
    return next(value for key, value in series.items() if key.startswith(f"sglang:{name}{{") and label in key)


def test_a_streamed_answer_comes_token_by_token_and_is_counted(healthy: SimHost) -> None:
    before = _series(healthy)
    body = json.dumps({"model": "kimi-k2.5-int4", "prompt": "Why is the sky blue? " * 40, "max_tokens": 24,
                       "stream": True, "stream_options": {"include_usage": True}})  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{_server(healthy)['port']}/v1/completions", data=body.encode(),
        headers={"Authorization": "Bearer sk-demo", "Content-Type": "application/json"},
    )  # fmt: skip
    events: list[tuple[float, Any]] = []
    with urllib.request.urlopen(request, timeout=30) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                events.append((time.monotonic(), line[6:].strip()))
    assert events[-1][1] == b"[DONE]"
    chunks = [json.loads(data) for _, data in events[:-1]]
    words = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]).split()
    assert len(words) == 24
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    assert chunks[-1]["choices"] == []
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]][-1] == "length"
    assert events[-2][0] - events[0][0] > 23 * 0.011
    after = _series(healthy)
    assert _one(after, "generation_tokens_total") >= _one(before, "generation_tokens_total") + 24
    assert _one(after, "realtime_tokens_total", "decode") >= _one(before, "realtime_tokens_total", "decode") + 24


def test_an_answer_in_one_piece(healthy: SimHost) -> None:
    body = json.dumps({"text": "Hello", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}).encode()
    status, answer = _get(healthy, "/generate", data=body)
    meta = json.loads(answer)["meta_info"]
    assert status == 200
    assert (meta["completion_tokens"], meta["finish_reason"]) == (5, {"type": "length", "length": 5})
    chat = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()
    assert (
        len(json.loads(_get(healthy, "/v1/chat/completions", data=chat)[1])["choices"][0]["message"]["content"].split())
        == 3
    )


@pytest.mark.parametrize("body", [b"not json", b"[]", b'{"max_tokens": 4}', b'{"prompt": "x", "max_tokens": 999999}'])
def test_a_bad_request_is_refused(healthy: SimHost, body: bytes) -> None:
    assert _get(healthy, "/v1/completions", data=body)[0] == 400


def test_metrics_are_consistent(healthy: SimHost) -> None:
    series = _series(healthy)
    assert _one(series, "max_total_num_tokens") == 159_277
    assert _one(series, "token_usage") == pytest.approx(_one(series, "num_used_tokens") / 159_277)
    buckets = [v for k, v in series.items() if k.startswith("sglang:time_to_first_token_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == _one(series, "time_to_first_token_seconds_count")
    assert 'engine_type="unified",model_name="kimi-k2.5-int4",moe_ep_rank="0",pp_rank="0",tp_rank="0"' in "".join(
        series
    )


# Ends


async def test_nothing_is_left_after_the_end() -> None:
    host = simhost.start("healthy")
    pids, folder = _pids(host), host.address.dir
    assert len(pids) == 12
    assert all(_alive(pid) for pid in pids)
    host.close()
    assert [pid for pid in pids if _alive(pid)] == []
    assert not folder.exists()
    host.close()


_PARENT = """
import sys, json
from tuner import simhost
host = simhost.start("foreign-tenant")
print(json.dumps([host.pid, str(host.address.dir)]), flush=True)
sys.stdin.read()
"""


def _seen(line: bytes) -> tuple[int, Path, list[int]]:
    """Host process, folder, and all that its /proc shows."""
    pid, folder = json.loads(line)
    return pid, Path(folder), [int(p.name) for p in Path(folder).glob("root/proc/[0-9]*") if p.name != "1"]


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who started a simulated host and does not live to end it."""
    env = {**os.environ, "PYTHONPATH": str(Path(simhost.__file__).resolve().parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as it:
        yield it
        it.kill()


@pytest.mark.parametrize("victim", ["parent", "host"])
async def test_nothing_is_left_after_a_kill(parent: subprocess.Popen[bytes], victim: str) -> None:
    assert parent.stdout is not None
    pid, folder, shown = _seen(parent.stdout.readline())
    assert len(shown) == 12  # leader, eight ranks, two helpers, the tenant
    os.kill(parent.pid if victim == "parent" else pid, signal.SIGKILL)
    await until(lambda: not [p for p in (pid, *shown) if _alive(p)] and not folder.exists())


async def test_a_given_folder_is_kept(tmp_path: Path) -> None:
    async with simhost.start("low-fraction", speed=50.0, dir=tmp_path / "here") as host:
        assert host.address.dir == tmp_path / "here"
    assert (tmp_path / "here" / "data" / "logs" / "frac-055.log").exists()


async def test_a_running_demo_is_found_and_a_dead_one_is_not(tmp_path: Path) -> None:
    assert simhost.running(tmp_path) is None
    host = simhost.start("healthy", runtime=tmp_path, no_server=True)
    found = simhost.running(tmp_path)
    assert found == host.address
    assert simhost.runs(tmp_path, host.address.port)
    assert not simhost.runs(tmp_path, 1)
    os.kill(host.pid, signal.SIGKILL)
    host.close()
    entry = tmp_path / f"demo-{host.pid}.json"
    assert entry.exists()
    assert not simhost.runs(tmp_path, host.address.port)
    assert simhost.running(tmp_path) is None
    assert not entry.exists()
    await until(lambda: not host.address.dir.exists())


def test_it_is_there_quickly() -> None:
    began = time.monotonic()
    with simhost.start("healthy"):
        took = time.monotonic() - began
    # Half of this on an idle machine; what is guarded here is that nobody makes it wait for something.
    assert took < 3.0
