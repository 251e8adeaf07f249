"""Judges of the host: its memory, disks, NUMA, limits, and processes that ended without a word."""

from __future__ import annotations

import pytest

from tests.support.small_logs import (
    SIGQUIT,
    findings,
    proposed,
    raised,
    sglang,
    shown,
    start_of,
    verdict,
    vllm,
    without_times,
    wrong_and_sure,
)
from tuner.domain.findings import Confidence, Outcome

HOST_POOL = ("srt/mem_cache/memory_pool_host.py", "__init__")
DMESG = "dmesg -T"


def hicache(asked: str, free: str, **settings: object) -> str:
    given = {"enable_hierarchical_cache": True, "hicache_size": int(float(asked)), "hicache_ratio": 2.0, **settings}
    tp = int(given.pop("tp", 1))  # type: ignore[call-overload]
    error = (
        f"ValueError: Not enough host memory available. Requesting {asked} GB but only have {free} GB free. Please"
        " reduce the size of the hierarchical cache."
    )
    rank = "TP0" if tp > 1 else ""
    return sglang("graph-capture", tp=tp, **given) + raised(rank, HOST_POOL, error=error) + SIGQUIT


@pytest.mark.parametrize(
    ("asked", "free", "usable", "most"), [("100.00", "64.21", 53.5, 53), ("40.00", "44.87", 34.1, 34)]
)
def test_the_host_pool_against_what_is_usable(asked: str, free: str, usable: float, most: int) -> None:
    text = hicache(asked, free)
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("hicache-host-memory", "kv-alloc", (0,))
    evidence = shown(finding)
    assert (evidence["requested"], evidence["free shown"]) == (float(asked), float(free))
    assert (evidence["kept back"], evidence["usable"]) == (10, usable)
    remedy = finding.remedies[0]
    assert (remedy.flag, remedy.move, remedy.max) == ("--hicache-size", "lower", most)
    assert "mem_fraction_static" not in proposed(finding)
    assert bool(finding.wrong_advice) == (float(asked) <= float(free))
    assert wrong_and_sure(text, ["hicache-host-memory"]) == []


def test_every_rank_takes_as_much() -> None:
    assert "Each of the 4 ranks" in verdict(hicache("80.00", "70.00", tp=4)).explanation
    assert "Each of the 2 ranks of this host" in verdict(hicache("80.00", "70.00", tp=4, nnodes=2)).explanation


def test_a_size_that_was_not_given_is_set() -> None:
    finding = verdict(hicache("80.00", "70.00", hicache_size=0))
    assert proposed(finding)["hicache_size"] == ("set", 59)


def test_less_free_than_is_kept_back_leaves_nothing_to_use() -> None:
    finding = verdict(hicache("5.00", "8.00"))
    assert shown(finding)["usable"] == -2.7
    assert "hicache_ratio" not in proposed(finding)


def test_a_host_pool_smaller_than_the_gpus_is_raised() -> None:
    error = "AssertionError: The host memory should be larger than the device memory with the current protocol"
    finding = verdict(sglang("graph-capture", tp=1) + raised("", HOST_POOL, error=error))
    assert finding.cause == "hicache-host-memory"
    assert proposed(finding)["hicache_ratio"][0] == "raise"


# --- Memory of the host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "errno"),
    [
        ("OSError: [Errno 12] Cannot allocate memory", 12),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate"
         " memory: you tried"
         " to allocate 42949672960 bytes. Error code 12 (Cannot allocate memory)", 12),
        ("MemoryError", None),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with shape (1,)", None),
    ],
)  # fmt: skip
def test_an_allocation_on_the_host_that_fails(error: str, errno: int | None) -> None:
    text = sglang("weight-load") + raised("TP1", ("srt/model_loader/loader.py", "load_model"), error=error) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("host-oom-killed", "weight-load", (1,))
    assert shown(finding).get("errno") == errno
    assert "mem_fraction_static" not in proposed(finding)


def test_the_gpus_memory_is_not_the_hosts() -> None:
    error = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
             " capacity of 79.11 GiB of which 1.10 GiB is free.")  # fmt: skip
    text = sglang("graph-capture") + raised("TP0", ("srt/cuda_graph_runner.py", "capture"), error=error)
    assert verdict(text).cause != "host-oom-killed"


@pytest.mark.parametrize("before", [True, False])
def test_the_kernels_own_line_makes_it_sure(before: bool) -> None:
    kernel = ("[8123.456789] Memory cgroup out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB,"
              " anon-rss:62331776kB, file-rss:0kB\n")  # fmt: skip
    end = (
        "[2026-03-01 10:01:40] Subprocess scheduler_1 (pid=4711) crashed with exit code -9. Triggering"
        " SIGQUIT for cleanup...\n"
    )
    finding = verdict(sglang("serving") + (kernel + end if before else end + kernel))
    assert (finding.cause, finding.confidence) == ("host-oom-killed", Confidence.HIGH)
    assert (shown(finding)["pid"], shown(finding)["anon-rss"]) == (4711, 62331776)
    assert "limit" in finding.explanation


# --- Processes that ended ---------------------------------------------------------------------------------------------


def ended(line: str, at: str) -> str:
    return f"[2026-03-01 {at}] {line}\n"


NINE = [
    "Child process unexpectedly failed with exitcode=9. pid=211",
    "Child process unexpectedly failed with an exit code 9. pid=211",
    "Subprocess scheduler_0 (pid=211) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
]


@pytest.mark.parametrize("line", NINE)
def test_signal_nine_after_hours_is_likely_the_kernel(line: str) -> None:
    text = sglang("serving") + ended(line, "14:30:00")
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.confidence) == ("host-oom-killed", "runtime", Confidence.MEDIUM)
    evidence = shown(finding)
    assert (evidence["pid"], evidence["token usage"]) == (211, 0.01)
    assert DMESG in str(proposed(finding)["dmesg"][1])
    assert proposed(finding)["memory"][0] == "raise"
    assert "person" in finding.explanation


@pytest.mark.parametrize("line", NINE)
def test_signal_nine_soon_after_the_start_is_a_process_that_died(line: str) -> None:
    finding = verdict(sglang("serving") + ended(line, "10:01:40"))
    assert (finding.cause, finding.confidence) == ("rank-died", Confidence.MEDIUM)
    assert abs(int(str(shown(finding)["exitcode"]))) == 9
    assert DMESG in str(proposed(finding)["dmesg"][1])
    assert "host memory" in finding.explanation


@pytest.mark.parametrize(
    "lines",
    [
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9). If exit code is -9"
        " (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n",
        "[2026-03-01 10:00:30] Rank 1 scheduler is dead. Please check if there are relevant logs.\n"
        "[2026-03-01 10:00:32] Exit code: -9\nTraceback (most recent call last):\n"
        '  File "/opt/sglang/srt/entrypoints/engine.py", line 5, in launch\n    x()\nEOFError\n',
        "Killed\n",
        "./run.sh: line 19: 867080 Killed                  python -m sglang.launch_server --model-path $MODEL\n",
    ],
)
def test_signal_nine_while_weights_are_loaded_is_likely_the_kernel(lines: str) -> None:
    finding = verdict(sglang("weight-load") + lines)
    assert (finding.cause, finding.phase) == ("host-oom-killed", "weight-load")
    assert finding.confidence is Confidence.MEDIUM


@pytest.mark.parametrize("line", NINE)
def test_without_times_signal_nine_is_less_sure(line: str) -> None:
    finding = verdict(without_times(sglang("serving") + ended(line, "14:30:00")))
    assert (finding.cause, finding.confidence) == ("rank-died", Confidence.LOW)


@pytest.mark.parametrize(("at", "cause"), [("08:20:26", "rank-died"), ("18:20:26", "host-oom-killed")])
def test_a_ready_line_without_time_is_as_old_as_the_one_before(at: str, cause: str) -> None:
    finding = verdict(
        vllm("ready") + f"(EngineCore_DP0 pid=22) ERROR 05-14 {at} [multiproc_executor.py:315] Worker proc VllmWorker-1"
        " died unexpectedly (exit code: -9), shutting down executor.\n"
    )
    assert (finding.cause, finding.ranks, finding.confidence) == (cause, (1,), Confidence.MEDIUM)


def test_which_rank_it_was_is_told_by_its_name() -> None:
    line = "Subprocess scheduler_1 (pid=1346) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    assert verdict(sglang("serving") + ended(line, "10:01:40")).ranks == (1,)
    line = "Subprocess detokenizer (pid=1346) crashed with exit code -9. Triggering SIGQUIT for cleanup..."
    assert verdict(sglang("serving") + ended(line, "10:01:40")).ranks is None


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("(EngineCore_DP0 pid=22) ERROR 05-14 08:20:26 [multiproc_executor.py:315] Worker proc VllmWorker-1 died"
         " unexpectedly (exit code: None), shutting down executor.\n", (1,)),
        ("(APIServer pid=11) ERROR 05-14 08:20:26 [core_client.py:562] Engine core proc EngineCore_DP0 died"
         " unexpectedly,"
         " shutting down client.\n", None),
    ],
)  # fmt: skip
def test_processes_of_vllm(line: str, ranks: tuple[int, ...] | None) -> None:
    text = vllm("ready") + line + (
        "(APIServer pid=11) ERROR 05-14 08:20:35 [async_llm.py:906] AsyncLLM output_handler failed.\n"
        "(APIServer pid=11) ERROR 05-14 08:20:35 [async_llm.py:906] Traceback (most recent call last):\n"
        '(APIServer pid=11) ERROR 05-14 08:20:35 [async_llm.py:906]   File "/vllm/async_llm.py", line 8, in'
        ' output_handler\n'
        "(APIServer pid=11) ERROR 05-14 08:20:35 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError:"
        " EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
    )  # fmt: skip
    finding = verdict(text)
    assert (finding.cause, finding.ranks) == ("rank-died", ranks)


def test_a_child_that_was_asked_to_end_is_a_stop() -> None:
    text = sglang("serving") + (
        "[2026-03-01 10:05:00] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...\n"
        "[2026-03-01 10:05:02] Subprocess scheduler_0 (pid=211) crashed with exit code -15. Triggering SIGQUIT for"
        " cleanup...\n"
    )
    assert start_of(text).outcome is Outcome.STOPPED
    assert findings(text) == ()


@pytest.mark.parametrize("line", ["Fatal Python error: Segmentation fault", "!!!!!!! Segfault encountered !!!!!!!"])
def test_a_crash_in_native_code(line: str) -> None:
    finding = verdict(sglang("serving") + line + "\n")
    assert (finding.cause, finding.confidence) == ("rank-died", Confidence.MEDIUM)


CRASH = "Fatal Python error: Aborted\n"
ENDS = "[2026-03-01 10:05:02] Subprocess scheduler_{} (pid=211) crashed with exit code -6. Triggering SIGQUIT\n"


@pytest.mark.parametrize(
    ("settings", "number", "ranks"),
    [({}, 1, (1,)), ({}, 0, (0,)), ({"dp_size": 2}, 0, None), ({"nnodes": 2, "node_rank": 0}, 0, None)],
)
def test_the_main_process_says_whose_crash_it_was(
    settings: dict[str, object], number: int, ranks: tuple[int, ...] | None
) -> None:
    """With replicas the process of that name deals out requests to them; with nodes its number is its own node's."""
    finding = verdict(sglang("serving", **settings) + CRASH + ENDS.format(number))  # type: ignore[arg-type]
    assert (finding.cause, finding.ranks) == ("rank-died", ranks)
    assert shown(finding)["exitcode"] == -6


def test_threads_that_cannot_be_made_make_it_a_limit() -> None:
    limit = "Resource temporarily unavailable (src/thread.cpp:241)\n"
    text = sglang("dist-init") + limit + CRASH + ENDS.format(1)
    finding = verdict(text)
    assert (finding.cause, finding.confidence, finding.ranks) == ("process-limits", Confidence.MEDIUM, (1,))
    assert "thread.cpp" in str(shown(finding)["error"])
    assert "or the address space for their stacks" in finding.explanation
    assert proposed(finding)["pids-limit"] == ("set", "-1")
    apart = sglang("dist-init") + limit + "[2026-03-01 10:00:09 TP0] something else\n" * 5 + CRASH + ENDS.format(1)
    assert verdict(apart).cause == "rank-died"


def test_a_node_that_serves_no_clients_is_ready_when_it_answers_health_checks() -> None:
    text = sglang("graph-capture", nnodes=2, node_rank=1).replace("TP0", "TP2").replace("TP1", "TP3") + (
        "[2026-03-01 10:00:53] Dummy health check server started in background thread at 127.0.0.1:30000\n"
    )
    assert start_of(text).outcome is Outcome.READY
    finding = verdict(text + "[2026-03-01 10:04:00] Scheduler or DataParallelController 4711 terminated with -9\n")
    assert (finding.cause, finding.phase) == ("rank-died", "runtime")


# --- Peers ------------------------------------------------------------------------------------------------------------

PEER = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [{}]:29105"
BROADCAST = ("srt/managers/scheduler_components/request_receiver.py", "recv_requests")


def test_the_rank_that_does_not_complain_is_missing() -> None:
    text = sglang("serving") + raised("TP1", BROADCAST, error=PEER.format("127.0.0.1")) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.ranks, finding.confidence) == ("rank-died", (0,), Confidence.MEDIUM)
    assert shown(finding)["peer"] == "127.0.0.1"


def test_the_rank_that_others_waited_for_while_loading_is_named() -> None:
    error = (
        "ValueError: TP rank {n} could finish the model loading, but there are other ranks that didn't finish loading."
        " It is likely due to unexpected failures (e.g., OOM) or a slow node."
    )
    head = sglang("kv-alloc", tp=4).replace("[2026-03-01 10:00:40 TP2]", "[")
    head = "".join(line + "\n" for line in head.splitlines() if not line.startswith("[ "))
    frame = ("srt/managers/scheduler.py", "run_scheduler_process")
    text = head + "".join(raised(f"TP{n}", frame, error=error.format(n=n)) for n in (0, 1, 3)) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("rank-died", "weight-load", (2,))
    assert "TP2" in finding.explanation
    assert {remedy.knob for remedy in finding.remedies} == {"dmesg", "storage"}


def test_of_several_silent_ranks_none_is_accused() -> None:
    text = sglang("serving", tp=8) + raised("TP1", BROADCAST, error=PEER.format("127.0.0.1")) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.ranks, finding.confidence) == ("rank-died", None, Confidence.LOW)


def test_a_peer_on_another_node_has_its_own_log() -> None:
    text = (
        sglang("graph-capture", tp=4, nnodes=2, node_rank=1)
        + "".join(raised(f"TP{n}", BROADCAST, error=PEER.format("10.0.1.2")) for n in (2, 3))
        + SIGQUIT
    )
    finding = verdict(text)
    assert (finding.cause, finding.ranks) == ("peer-rank-died", None)
    assert shown(finding)["peer"] == "10.0.1.2"
    assert "10.0.1.2" in finding.remedies[0].why
    assert wrong_and_sure(text, ["peer-rank-died", "rank-died"]) == []


def test_an_error_of_its_own_comes_before_a_lost_peer() -> None:
    text = (
        sglang("serving")
        + raised(
            "TP1",
            ("x.py", "forward_decode"),
            error="RuntimeError: CUDA error: an illegal memory access was encountered",
        )
        + raised("TP0", BROADCAST, error=PEER.format("127.0.0.1"))
    )
    assert verdict(text).cause == "illegal-memory-access"


# --- Disks, limits, NUMA ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device: '/root/.triton/cache/x'",
        "RuntimeError: Data processing error: IO Error: No space left on device (os error 28)",
        "OSError: [Errno 122] Disk quota exceeded",
    ],
)
def test_a_full_disk(error: str) -> None:
    finding = verdict(sglang("weight-load") + raised("TP0", ("srt/model_loader/loader.py", "load_model"), error=error))
    assert finding.cause == "disk-full"
    assert "shm-size" not in proposed(finding)


def test_too_many_open_files() -> None:
    text = sglang("serving") + raised(
        "TP0", ("srt/managers/io.py", "recv"), error="OSError: [Errno 24] Too many open files"
    )
    finding = verdict(text)
    assert finding.cause == "process-limits"
    assert proposed(finding)["ulimit"] == ("set", "nofile=65535")


@pytest.mark.parametrize(
    "line",
    ["setting membind: Invalid argument", "set_mempolicy: Operation not permitted", "numactl: command not found"],
)
def test_a_rank_that_may_not_bind_to_its_node(line: str) -> None:
    text = (
        sglang("args")
        + line
        + "\n"
        + (
            "Traceback (most recent call last):\n"
            '  File "/opt/sglang/srt/entrypoints/engine.py", line 1277, in _wait_for_scheduler_ready\n    raise x\n'
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9"
            " (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n"
        )
    )
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.confidence) == ("numa-bind-failure", "args", Confidence.HIGH)
    assert "SGLANG_NUMA_BIND_V2" in proposed(finding)


def test_such_a_line_in_a_server_that_serves_is_no_failure() -> None:
    assert findings("set_mempolicy: Operation not permitted\n" + sglang("serving")) == ()


KV = "(Worker pid=30) ERROR 05-14 08:16:00 [multiproc_executor.py:1063] "
ON_THE_HOST = "".join(
    f"{KV}{line}\n"
    for line in (
        "WorkerProc hit an exception.",
        "Traceback (most recent call last):",
        '  File "/venv/vllm/v1/executor/multiproc_executor.py", line 1053, in worker_busy_loop',
        '  File "/venv/vllm/v1/worker/cpu_worker.py", line 219, in determine_available_memory',
        "ValueError: Available memory on node 0 (21.8/23.54 GiB) on kv cache allocation is less than requested memory"
        " for kv (500.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by"
        " other processes.",
    )
) + (
    "(EngineCore pid=22) ERROR 05-14 08:16:01 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly"
    " (exit code: 0), shutting down executor.\n"
)


@pytest.mark.parametrize("cut", [0, 2, 3])
def test_a_kv_cache_in_host_memory_that_is_larger_than_it(cut: int) -> None:
    """Also where the head of the traceback is missing: the worker did print an error before it ended."""
    finding = verdict(vllm("args", tp=1, version="0.32.0") + "\n".join(ON_THE_HOST.split("\n")[cut:]))
    assert (finding.cause, finding.phase) == ("bad-argument", "kv-alloc")
    assert finding.ranks == (None if cut else (0,))
    assert (shown(finding)["free"], shown(finding)["KV cache asked for"]) == (21.8, 500.0)
    assert proposed(finding)["VLLM_CPU_KVCACHE_SPACE"][0] == "lower"


def test_a_stack_that_is_only_shown_is_no_failure() -> None:
    shown_only = "".join(
        f"(EngineCore_DP0 pid=22) WARNING 05-14 08:17:00 [core.py:11] {line}\n"
        for line in ("Stack (most recent call last):", '  File "/venv/vllm/x.py", line 1, in step', "    run()")
    )
    assert findings(vllm("ready") + shown_only) == ()
    assert start_of(vllm("ready") + shown_only).outcome is Outcome.READY
