"""Every scenario ends as it says, in both versions, and every line has the shape of a real one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.simhost.shapes import lines_of, shape
from tuner import simhost
from tuner.simhost import SimHost
from tuner.simhost.scenarios import SCENARIOS

_TESTS = Path(__file__).resolve().parents[1]
_GOLDEN = _TESTS / "golden" / "logs" / "sglang"
_REAL = {"0.5.9": ("0.5.9",), "0.5.23": ("0.5.23", "0.5.16", "0.5.9")}
"""Versions whose real logs may show a line of this one: templates between were compared and are the same."""
VERSIONS = tuple(_REAL)


async def until(fact: Callable[[], Any], seconds: float = 25.0) -> Any:
    """Wait for something to be true."""
    async with asyncio.timeout(seconds):
        while not (found := fact()):  # noqa: ASYNC110 - facts of other processes, on disk
            await asyncio.sleep(0.02)
    return found


def known_shapes(version: str) -> set[str]:
    paths = [path for real in _REAL[version] for path in sorted((_GOLDEN / real).glob("*.log"))]
    paths += [_TESTS / "data" / "simhost" / f"facts-{facts}.txt" for facts in _REAL if facts in ("0.5.9", version)]
    assert len(paths) > 4
    return {shape(line) for path in paths for line in lines_of(path.read_text(errors="replace"))}


def newest(host: SimHost) -> Path:
    return max((host.address.dir / "data" / "logs").glob("*.log"), key=lambda path: path.stat().st_mtime_ns)


def log_of(host: SimHost, name: str) -> str:
    path = host.address.dir / "data" / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


def facts_of(host: SimHost) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (host.address.dir / "run").glob("*.json")]
    return sorted(found, key=lambda fact: float(fact["started_at"]))


def gpus_of(host: SimHost) -> dict[str, Any]:
    return dict(json.loads((host.address.dir / "bin" / "gpu-state.json").read_text()))


def shown(host: SimHost) -> set[int]:
    proc = host.address.dir / "root" / "proc"
    return {int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()} - {1}


def check_shapes(host: SimHost, version: str) -> None:
    known = known_shapes(version)
    for path in (host.address.dir / "data" / "logs").glob("*.log"):
        for line in lines_of(path.read_text()):
            # A rank may speak while the bar's line is still open: the real one tears in the same way.
            for part in re.split(r"(?<=.)(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line):
                assert shape(part) in known, f"{path.name}: {part[:300]}"


async def gone(host: SimHost) -> None:
    """The server and its memory are gone."""
    await until(lambda: not shown(host))
    await until(lambda: gpus_of(host)["processes"] == [])


@pytest.mark.parametrize("version", VERSIONS)
async def test_healthy(version: str) -> None:
    async with simhost.start("healthy", version) as host:
        assert facts_of(host)[0]["ready"]
        check_shapes(host, version)


@pytest.mark.timeout(150)  # a whole start, of nine processes that are begun for it: 7 s on an idle machine
@pytest.mark.parametrize("version", VERSIONS)
async def test_start(version: str) -> None:
    async with simhost.start("start", version, speed=10) as host:
        assert "fired up" not in log_of(host, "base-88")
        await until(lambda: "The server is fired up and ready to roll!" in log_of(host, "base-88"), 60)
        await until(lambda: re.search(r"gen throughput \(token/s\): [1-9]", log_of(host, "base-88")))
        check_shapes(host, version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_low_fraction(version: str) -> None:
    async with simhost.start("low-fraction", version, speed=50) as host:
        await until(lambda: "Received sigquit" in log_of(host, "frac-055"))
        await gone(host)
        log = log_of(host, "frac-055")
        assert log.count("Scheduler hit an exception: Traceback (most recent call last):\n") == 8
        assert (
            log.count("mem_fraction_static=0.55\n" if version == "0.5.9" else "minimum viable = 1 - available/pre") == 8
        )
        check_shapes(host, version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_oom_capture(version: str) -> None:
    async with simhost.start("oom-capture", version, speed=50) as host:
        await until(lambda: "Received sigquit" in log_of(host, "frac-097"))
        await gone(host)
        log = log_of(host, "frac-097")
        assert "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate" in log
        assert "graph end" not in log.replace("prefill CUDA graph end", "")
        check_shapes(host, version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_oom_prefill(version: str) -> None:
    async with simhost.start("oom-prefill", version, speed=100) as host:
        await until(lambda: "SIGQUIT received" in log_of(host, "frac-094"), 40)
        await gone(host)
        log = log_of(host, "frac-094")
        assert log.count("Scheduler hit an exception") == 1
        found = re.findall(r"TP(\d)\] Scheduler hit(?s:.*?)OutOfMemoryError: .*allocate ([\d.]+) \w+. GPU (\d)", log)
        assert found
        assert found[0][0] == found[0][2] == "0"
        assert log.index("fired up") < log.index("OutOfMemoryError")
        check_shapes(host, version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_foreign_tenant(version: str) -> None:
    async with simhost.start("foreign-tenant", version, speed=50) as host:
        log = log_of(host, "base-88")
        before = {int(r): float(v) for r, v in re.findall(r"TP(\d)\] Load weight begin\. avail mem=([\d.]+)", log)}
        assert before[0] - before[2] == pytest.approx(2.4, abs=0.02)
        state = gpus_of(host)
        ranks = {member["pid"] for member in facts_of(host)[0]["members"]}
        foreign = [p for p in state["processes"] if p["pid"] not in ranks]
        assert [p["gpu"] for p in foreign] == [2]
        pid, used = foreign[0]["pid"], foreign[0]["used"]
        folder = host.address.dir / "root" / "proc" / str(pid)
        assert (folder / "cmdline").read_bytes().startswith(b"python\0train.py\0")
        assert "Uid:\t1001\t1001" in (folder / "status").read_text()
        await until(lambda: any(p["pid"] == pid and p["used"] > used for p in gpus_of(host)["processes"]))
        gpu = gpus_of(host)["gpus"][2]
        assert gpu["used"] + gpu["reserved"] <= gpu["total"]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: pid not in shown(host))
        check_shapes(host, version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_rank_killed(version: str) -> None:
    async with simhost.start("rank-killed", version, speed=50) as host:
        await until(lambda: "SIGQUIT received" in log_of(host, "base-88"))
        await gone(host)
        log = log_of(host, "base-88")
        assert "Connection closed by peer" in log
        assert "TP3] Scheduler hit an exception" not in log
        assert ("Waiting 60.0 seconds for CUDA coredumps" in log) == (version == "0.5.23")
        check_shapes(host, version)


async def test_the_gpu_of_a_dead_rank_rests_while_the_others_wait_for_it() -> None:
    async with simhost.start("rank-killed", "0.5.23", speed=8) as host:

        def resting() -> bool:
            gpus = gpus_of(host)["gpus"]
            freed = [gpu["index"] for gpu in gpus if gpu["used"] < 1 << 30]
            return freed == [3] and gpus[3]["util"] == 0 and gpus[3]["sm_mhz"] < 1000 and gpus[2]["util"] > 90

        await until(resting, 40)


@pytest.mark.parametrize("version", VERSIONS)
async def test_hang_capture(version: str) -> None:
    async with simhost.start("hang-capture", version, speed=50) as host:
        await until(lambda: "11/20" in log_of(host, "base-88"))

        def stuck() -> bool:
            watts = [gpu["power_mw"] / 1000 for gpu in gpus_of(host)["gpus"]]
            busy = [gpu["util"] for gpu in gpus_of(host)["gpus"]]
            return watts[2] < 85 and watts[5] < 85 and watts[0] > 120 and busy[0] > 95 and busy[2] < 5

        await until(stuck)
        log = log_of(host, "base-88")
        assert "12/20" not in log
        assert "Capture cuda graph end" not in log
        assert "decode CUDA graph end" not in log
        assert not facts_of(host)[-1]["ready"]
        assert len(shown(host)) == 11
        check_shapes(host, version)


@pytest.mark.timeout(150)
async def test_story() -> None:
    async with simhost.start("story", "0.5.9", speed=20) as host:
        assert "fired up" in log_of(host, "base-88-good")
        await until(lambda: re.search(r"gen throughput \(token/s\): 89\.\d", log_of(host, "base-88")), 60)
        for name, fraction in (("frac-055-nccl-2ch", 0.55), ("frac-055-custom-ar", 0.55), ("frac-050", 0.5)):
            assert f"mem_fraction_static={fraction}\n" in log_of(host, name)
            assert "Received sigquit" in log_of(host, name)
        assert "SGLANG_FORCE_CUSTOM_AR_PCIE=1" in log_of(host, "frac-055-custom-ar")
        assert "avail mem=21.70 GB, mem usage=72.33 GB" in log_of(host, "frac-055-custom-ar")
        await until(lambda: "SIGTERM received" in log_of(host, "base-88"), 40)
        await until(lambda: len(list((host.address.dir / "data" / "logs").glob("frac-055-nccl-2ch*.log"))) == 2, 40)
        assert len({fact["pid"] for fact in facts_of(host)}) >= 4
        check_shapes(host, "0.5.9")


def test_every_scenario_has_a_test() -> None:
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals() if name.startswith("test_")}
    assert set(SCENARIOS) <= tested


# Signals


@pytest.mark.parametrize("version", VERSIONS)
async def test_sigterm_drains_and_ends_as_the_version_does(version: str) -> None:
    async with simhost.start("healthy", version, speed=20, traffic="none") as host:
        fact = facts_of(host)[0]
        reader, writer = await asyncio.open_connection("127.0.0.1", fact["port"])
        body = json.dumps({"prompt": "x", "max_tokens": 80, "stream": True})
        writer.write(f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        await reader.readuntil(b"data: ")
        os.kill(fact["pid"], signal.SIGTERM)
        rest = (await reader.readuntil(b"[DONE]")).decode()
        writer.close()
        assert rest.count('"text"') >= 60
        await gone(host)
        log = log_of(host, "base-88")
        assert "Remaining number of requests 1. " in log
        assert log.rindex("Remaining number of requests 0.") > log.index("SIGTERM received")
        assert ("Finished server process" in log) == (version == "0.5.23")
        check_shapes(host, version)


async def test_a_dead_rank_is_a_zombie_of_a_server_that_takes_its_time() -> None:
    async with simhost.start("healthy", "0.5.23", traffic="none") as host:
        killed = next(m["pid"] for m in facts_of(host)[0]["members"] if m["gpu"] == 3)
        os.kill(killed, signal.SIGKILL)
        stat = host.address.dir / "root" / "proc" / str(killed) / "stat"
        await until(lambda: ") Z " in stat.read_text())
        await until(lambda: all(p["gpu"] != 3 for p in gpus_of(host)["processes"]))
        await until(lambda: "Sleeping 5 seconds before crash diagnostics" in log_of(host, "base-88"))
        assert len(shown(host)) == 11


async def test_sigterm_while_loading_kills_at_once_and_the_new_version_leaves_an_orphan() -> None:
    async with simhost.start("low-fraction", "0.5.23", speed=1) as host:
        fact = await until(lambda: next((f for f in facts_of(host) if f["phase"] == "weights"), None))
        helpers = {m["pid"] for m in fact["members"] if m["kind"] in ("detokenizer", "resource_tracker")}
        await until(lambda: shown(host) > helpers)
        os.kill(fact["pid"], signal.SIGTERM)
        await until(lambda: shown(host) == helpers)
        for helper in helpers:
            stat = (host.address.dir / "root" / "proc" / str(helper) / "stat").read_text()
            assert stat.rpartition(")")[2].split()[1] == "1"
        assert "SIGTERM received" not in log_of(host, "frac-055")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
async def test_the_ranks_go_with_their_leader(number: signal.Signals) -> None:
    async with simhost.start("healthy", "0.5.9", speed=20) as host:
        os.kill(facts_of(host)[0]["pid"], number)
        await gone(host)


@pytest.mark.parametrize("version", VERSIONS)
async def test_sigterm_to_the_whole_group_is_taken_for_a_crash(version: str) -> None:
    async with simhost.start("healthy", version, speed=20, traffic="none") as host:
        os.killpg(facts_of(host)[0]["pid"], signal.SIGTERM)
        await gone(host)
        log = log_of(host, "base-88")
        # The old version does not watch its processes, and drains what is no more.
        for words in ("SIGQUIT received", "Subprocess scheduler_"):
            assert (words in log) == (version == "0.5.23")
        assert "Scheduler hit an exception" not in log
        check_shapes(host, version)


async def test_a_rank_that_dies_while_loading() -> None:
    async with simhost.start("low-fraction", "0.5.9", speed=1) as host:
        fact = await until(lambda: next((f for f in facts_of(host) if f["phase"] == "weights"), None))
        os.kill(next(m["pid"] for m in fact["members"] if m["gpu"] == 5), signal.SIGKILL)
        await until(
            lambda: "Rank 5 scheduler is dead. Please check if there are relevant logs." in log_of(host, "frac-055")
        )
        assert "Exit code: -9" in log_of(host, "frac-055")
        await gone(host)


async def test_the_port_is_closed_until_the_server_is_up_and_health_until_it_is_warm() -> None:
    async with simhost.start("hang-capture", "0.5.9", speed=50) as host:
        await until(lambda: "11/20" in log_of(host, "base-88"))
        fact = facts_of(host)[-1]
        assert fact["port"] is None
        port = int(fact["argv"][fact["argv"].index("--port") + 1])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


# Options


async def test_no_server_shows_idle_gpus() -> None:
    async with simhost.start("healthy", no_server=True) as host:
        state = gpus_of(host)
        assert state["processes"] == []
        assert shown(host) == set()
        assert all(gpu["power_mw"] < 45_000 for gpu in state["gpus"])


async def test_without_metrics_the_endpoint_is_not_there() -> None:
    async with simhost.start("healthy", no_metrics=True) as host:
        reader, writer = await asyncio.open_connection("127.0.0.1", facts_of(host)[0]["port"])
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()
        await writer.wait_closed()


async def test_what_the_new_version_answers() -> None:
    async with simhost.start("healthy", "0.5.23") as host:
        port = facts_of(host)[0]["port"]

        async def get(path: str) -> tuple[int, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            return int(head.split()[1]), body

        assert (await get("/ready"))[0] == 200
        assert (await get("/get_load"))[0] == 404
        load = json.loads((await get("/v1/loads"))[1])["loads"][0]
        assert load["max_total_num_tokens"] == 159_277
        info = json.loads((await get("/server_info"))[1])
        assert info["internal_states"][0]["memory_usage"]["graph"]["decode"] == pytest.approx(2.55, abs=0.01)
        metrics = (await get("/metrics"))[1].decode()
        for name in ("weight_memory_usage_gb", "kv_cache_memory_usage_gb"):
            assert len(re.findall(rf"^sglang:{name}\{{.*tp_rank=\"\d\"", metrics, re.M)) == 8
        assert "sglang:engine_startup_time" not in metrics
