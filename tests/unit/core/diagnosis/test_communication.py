"""Judges of communication: shared memory, NCCL, rendezvous, peer access, custom all-reduce, hanging captures."""

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
    wrong_and_sure,
)
from tuner.domain.findings import Confidence

INIT = ("srt/model_executor/model_runner.py", "init_torch_distributed")
JOIN = ("torch/distributed_c10d.py", "init_process_group")
PYNCCL = ("srt/distributed/device_communicators/pynccl_wrapper.py", "ncclCommInitRank")
CAPTURE = ("srt/model_executor/cuda_graph_runner.py", "capture")
AR = "srt/distributed/device_communicators/custom_all_reduce.py"
UNHANDLED_SYSTEM = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
UNHANDLED_CUDA = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
SOLUTIONS = (
    "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)"
)


def failed_init(error: str, before: str = "", rank: str = "TP1") -> str:
    return sglang("dist-init") + before + raised(rank, INIT, PYNCCL, error=error) + SIGQUIT


# --- /dev/shm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("box:412:412 [1] misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-AbCdEf to 9637892 bytes,"
         " error: No space left on device (28)", 9637892),
        ("box:412:412 [1] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-XYZ"
         " (size 9637888)", 9637888),
        ("box:412:412 [1] misc/shmutils.cc:72 NCCL WARN Call to posix_fallocate failed : No space left on"
         " device", None),
    ],
)  # fmt: skip
def test_nccls_own_line_about_shared_memory_decides(line: str, size: int | None) -> None:
    text = failed_init(UNHANDLED_SYSTEM, line + "\n")
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("shm-too-small", "dist-init", (1,))
    assert shown(finding).get("segment size") == size
    assert proposed(finding)["shm-size"] == ("raise", "32g")
    assert proposed(finding)["ipc"] == ("set", "host")
    assert wrong_and_sure(text, ["shm-too-small", "nccl-init-failure"]) == []


def test_without_such_a_line_shared_memory_is_not_claimed() -> None:
    finding = verdict(failed_init(UNHANDLED_SYSTEM))
    assert (finding.cause, finding.confidence) == ("nccl-init-failure", Confidence.LOW)
    assert proposed(finding)["NCCL_DEBUG"] == ("set", "INFO")
    assert "shm-size" not in proposed(finding)


def test_a_full_disk_is_not_shared_memory() -> None:
    text = sglang("weight-load") + raised("TP0", ("srt/model_loader/loader.py", "load_model"),
        error="OSError: [Errno 28] No space left on device: '/root/.cache/huggingface/x'")  # fmt: skip
    assert verdict(text).cause == "disk-full"


def test_a_message_queue_that_does_not_fit() -> None:
    text = vllm("dist-init") + (
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:15:52 [core.py:1224] EngineCore failed to start.\n"
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:15:52 [core.py:1224] Traceback (most recent call last):\n"
        '(EngineCore_DP0 pid=22) ERROR 05-14 08:15:52 [core.py:1224]   File "/vllm/shm_broadcast.py", line 9, in init\n'
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:15:52 [core.py:1224] RuntimeError: Insufficient space in /dev/shm for"
        " the message queue: 160.0 MiB required, 63.9 MiB free.\n"
    )
    finding = verdict(text)
    assert finding.cause == "shm-too-small"
    assert (shown(finding)["required"], shown(finding)["free in /dev/shm"]) == (160, 63.9)


# --- NCCL -------------------------------------------------------------------------------------------------------------


def test_memory_that_nccl_lacks_during_capture_lowers_the_fraction() -> None:
    text = (
        sglang("graph-capture")
        + "box:412:412 [0] include/alloc.h:185 NCCL WARN Cuda failure 2 'out of memory'\n"
        + raised("TP0", CAPTURE, error=UNHANDLED_CUDA)
        + SIGQUIT
    )
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("nccl-out-of-memory", "graph-capture", (0,))
    assert shown(finding)["Cuda failure"] == 2
    assert proposed(finding)["mem_fraction_static"][0] == "lower"
    assert not any("SOCKET_IFNAME" in knob for knob in proposed(finding))


def test_before_the_weights_the_fraction_plays_no_part_in_it() -> None:
    text = failed_init(UNHANDLED_CUDA, "box:412:412 [0] include/alloc.h:185 NCCL WARN Cuda failure 2 'out of memory'\n")
    finding = verdict(text)
    assert finding.cause == "nccl-out-of-memory"
    assert "mem_fraction_static" not in proposed(finding)
    assert "gpu-processes" in proposed(finding)


def test_torchs_last_error_says_it_too() -> None:
    error = ("torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled cuda"
             " error (run with"
             " NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclUnhandledCudaError: Call to CUDA function"
             " failed.\n"
             "Last error:\nCuda failure 2 'out of memory'")  # fmt: skip
    assert verdict(sglang("graph-capture") + raised("TP1", CAPTURE, error=error)).cause == "nccl-out-of-memory"


@pytest.mark.parametrize(
    ("line", "knob", "word"),
    [
        ("box:1:1 [5] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
         "ulimit", "lock"),
        ("box:1:1 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 50000",
         "CUDA_VISIBLE_DEVICES", "same GPU"),
        ("box:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface"
         " found", "NCCL_SOCKET_IFNAME", "interface"),
    ],
)  # fmt: skip
def test_what_nccl_says_itself_makes_it_sure(line: str, knob: str, word: str) -> None:
    finding = verdict(failed_init(UNHANDLED_SYSTEM, line + "\n"))
    assert (finding.cause, finding.confidence) == ("nccl-init-failure", Confidence.HIGH)
    assert knob in proposed(finding)
    assert word in finding.explanation


def test_an_interface_that_was_asked_for_is_no_longer_asked_for() -> None:
    said = "box:1:1 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =ib9\n"
    line = "box:1:1 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
    finding = verdict(failed_init(UNHANDLED_SYSTEM, said + line))
    assert proposed(finding)["NCCL_SOCKET_IFNAME"] == ("unset", None)
    assert shown(finding)["NCCL"] == "Bootstrap : no socket interface found"
    assert "ib9" in finding.explanation


def test_ranks_of_a_failed_start_are_those_that_show_it() -> None:
    text = (
        sglang("dist-init", tp=4)
        + "".join(raised(f"TP{n}", INIT, PYNCCL, error=UNHANDLED_SYSTEM) for n in (3, 1))
        + SIGQUIT
    )
    assert verdict(text).ranks == (1, 3)
    assert wrong_and_sure(text, ["nccl-init-failure"]) == []


def test_a_communicator_that_only_warns_is_healthy() -> None:
    text = sglang("serving") + "box:1:1 [0] net.cc:1 NCCL INFO NET/IB : No device found.\n"
    assert findings(text) == ()


# --- Peer access and custom all-reduce --------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["dist-init", "graph-capture"])
def test_devices_without_peer_access(phase: str) -> None:
    error = "RuntimeError: CUDART error: peer access is not supported between these two devices"
    text = sglang(phase, tp=2) + raised("TP1", INIT, (AR, "create_shared_buffer"), error=error) + SIGQUIT
    finding = verdict(text)
    assert finding.cause == "p2p-unsupported"
    assert shown(finding)["GPUs in the TP group"] == 2
    assert proposed(finding)["disable_custom_all_reduce"] == ("set", True)


def test_a_fallback_to_nccl_is_no_failure() -> None:
    text = sglang("dist-init") + "".join(
        f"[2026-03-01 10:00:10 TP{n}] Setup Custom allreduce failed with CUDART error: peer access is not supported"
        " between these two devices. To silence this warning, specify --disable-custom-all-reduce explicitly.\n"
        for n in (0, 1)
    ) + sglang("serving").partition("Init torch distributed begin.\n")[2].partition("begin.\n")[2]  # fmt: skip
    assert start_of(text).outcome == "ready"
    assert [f for f in findings(text) if f.severity in ("fatal", "error")] == []


def registering(error: str, final: str = "") -> str:
    return raised("TP1", CAPTURE, (AR, "capture"), (AR, "register_graph_buffers"), error=error, final=final)


def test_buffers_that_cannot_be_shared_are_not_a_lack_of_memory() -> None:
    text = (
        sglang("graph-capture")
        + "Capturing batches (bs=1 avail_mem=9.87 GB): 100%|██████████| 12/12 [00:14<00:00, 1.17s/it]\n"
        + "".join(f"[2026-03-01 10:00:50 TP{n}] Registering 512 cuda graph addresses\n" for n in (0, 1))
        + registering(
            "RuntimeError: invalid argument", "Exception: Capture cuda graph failed: invalid argument" + SOLUTIONS
        )
        + SIGQUIT
    )
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("custom-ar-ipc-failure", "graph-capture", (1,))
    assert (shown(finding)["avail after capture"], shown(finding)["registered addresses"]) == (9.87, 512)
    assert proposed(finding)["disable_custom_all_reduce"] == ("set", True)
    assert proposed(finding)["PYTORCH_CUDA_ALLOC_CONF"][0] == "unset"
    assert "mem_fraction_static" not in proposed(finding)
    assert finding.wrong_advice
    assert wrong_and_sure(text, ["custom-ar-ipc-failure"]) == []


def test_without_its_frames_it_is_less_sure() -> None:
    text = (
        sglang("graph-capture")
        + "[2026-03-01 10:00:50 TP0] Registering 512 cuda graph addresses\n"
        + raised("TP1", CAPTURE, error="Exception: Capture cuda graph failed: invalid argument" + SOLUTIONS)
    )
    finding = verdict(text)
    assert (finding.cause, finding.confidence) == ("custom-ar-ipc-failure", Confidence.MEDIUM)


def test_an_invalid_argument_elsewhere_is_another_matter() -> None:
    text = sglang("serving") + raised(
        "TP0", ("srt/layers/x.py", "forward_decode"), error="RuntimeError: invalid argument"
    )
    assert verdict(text).cause != "custom-ar-ipc-failure"


@pytest.mark.parametrize("version", ["0.20.2", "0.10.2"])
def test_vllms_raw_lines_without_traceback(version: str) -> None:
    text = (
        vllm("kv-alloc", version=version)
        + "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:364 'invalid argument'\n" * 2
        + "(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224] EngineCore failed to start.\n"
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224] Traceback (most recent call last):\n"
        '(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224]   File "/vllm/multiproc_executor.py", line'
        ' 641, in wait_for_ready\n'
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224] Exception: Worker proc VllmWorker-1 died"
        " unexpectedly (exit code: None). Check root cause above.\n"
    )  # fmt: skip
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("custom-ar-ipc-failure", "graph-capture", None)
    assert shown(finding)["Available KV cache memory"] == 42.1
    assert "gpu_memory_utilization" not in proposed(finding)
    assert wrong_and_sure(text, ["custom-ar-ipc-failure", "rank-died"]) == []


def test_an_illegal_access_in_its_kernel_is_not_ipc() -> None:
    text = (
        vllm("ready")
        + "Failed: Cuda error /csrc/custom_all_reduce.cuh:364 'an illegal memory access was encountered'\n"
    )
    assert verdict(text).cause == "illegal-memory-access"


# --- Hanging captures -------------------------------------------------------------------------------------------------


def hung(rank: int, timeout: int = 600000) -> str:
    return (
        f"[rank{rank}]:[E303 09:48:11.513202118 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught"
        f" collective operation timeout: WorkNCCL(SeqNum=99, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,"
        f" Timeout(ms)={timeout}) ran for {timeout + 9} milliseconds before timing out.\n"
        f"[rank{rank}]:[E303 09:48:11.513911702 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3 Rank {rank}] Exception"
        " (either an error or timeout) detected by watchdog at work: 99, last enqueued NCCL work: 99, last completed"
        " NCCL work: 98.\n"
    )


def test_a_collective_that_times_out_during_capture() -> None:
    bar = "Capturing batches (bs=64 avail_mem=10.20 GB):  21%|██        | 5/23 [01:12<04:31, 12.36s/it]\n"
    text = sglang("graph-capture", tp=4) + bar + hung(1) + hung(2)
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("graph-capture-hang", "graph-capture", (1, 2))
    assert finding.confidence is Confidence.MEDIUM
    evidence = shown(finding)
    assert (evidence["progress"], evidence["collective timeout"], evidence["last completed NCCL work"]) == (
        "5/23",
        600000,
        98,
    )
    assert "mem_fraction_static" not in proposed(finding)
    assert {"disable_cuda_graph", "nccl-tests"} <= set(proposed(finding))


def test_the_same_while_serving_is_a_hanging_pass() -> None:
    finding = verdict(sglang("serving", tp=4) + hung(3))
    assert (finding.cause, finding.ranks) == ("watchdog-hang", (3,))


# --- Rendezvous -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "timeout"),
    [
        ("torch.distributed.DistNetworkError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0", 600000),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", 601),
    ],
)
def test_a_node_that_never_joins(error: str, timeout: int) -> None:
    text = (
        sglang("dist-init", tp=4, nnodes=2, node_rank=1, dist_init_addr="10.0.0.1:20000")
        + "".join(raised(f"TP{n}", INIT, JOIN, error=error) for n in (2, 3))
        + SIGQUIT
    )  # fmt: skip
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("multinode-rendezvous-timeout", "dist-init", (2, 3))
    assert (shown(finding)["timeout"], shown(finding)["nnodes"]) == (timeout, 2)
    assert {"dist_init_addr", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} <= set(proposed(finding))
    assert "mem_fraction_static" not in proposed(finding)
    assert wrong_and_sure(text, ["multinode-rendezvous-timeout"]) == []


def test_one_node_has_no_other_to_wait_for() -> None:
    error = "torch.distributed.DistNetworkError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0"
    text = sglang("dist-init", tp=2) + raised("TP0", INIT, error=error)
    assert verdict(text).cause != "multinode-rendezvous-timeout"


def test_a_host_whose_own_name_leads_nowhere() -> None:
    error = (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection"
        " refused, remote=[127.0.1.1]:43291"
    )
    text = sglang("dist-init", tp=4, nnodes=2, node_rank=1) + raised("TP2", INIT, error=error) + SIGQUIT
    finding = verdict(text)
    assert finding.cause == "multinode-rendezvous-timeout"
    assert "/etc/hosts" in proposed(finding)


def test_peer_access_that_nccl_misses() -> None:
    line = "box:1:1 [1] p2p.cc:1 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'\n"
    finding = verdict(failed_init(UNHANDLED_CUDA, line))
    assert finding.cause == "p2p-unsupported"
    assert proposed(finding)["NCCL_P2P_DISABLE"] == ("set", "1")


def test_a_transfer_that_failed_is_not_a_rank_that_died() -> None:
    line = (
        "box:1:1 [5] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12"
        " opcode=0 len=0 vendor err 129\n"
    )
    error = "RuntimeError: NCCL error: remote process exited or there was a network error (run with NCCL_DEBUG=INFO)"
    finding = verdict(failed_init(error, line))
    assert finding.cause == "nccl-init-failure"
    assert "NCCL_IB_HCA" in proposed(finding)


def test_a_barrier_that_times_out_during_capture_hangs() -> None:
    error = (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms"
        " for recv operation to complete"
    )
    text = sglang("graph-capture", tp=4, nnodes=2) + raised("TP1", CAPTURE, error=error) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.ranks, finding.confidence) == ("graph-capture-hang", (1,), Confidence.MEDIUM)
    assert shown(finding)["collective timeout"] == 1800000


def test_an_invalid_argument_without_any_address_is_a_guess() -> None:
    text = sglang("graph-capture") + raised(
        "TP1", CAPTURE, error="Exception: Capture cuda graph failed: invalid argument" + SOLUTIONS
    )
    finding = verdict(text)
    assert (finding.cause, finding.confidence) == ("custom-ar-ipc-failure", Confidence.LOW)
    off = sglang("graph-capture", disable_custom_all_reduce=True) + raised(
        "TP1", CAPTURE, error="Exception: Capture cuda graph failed: invalid argument" + SOLUTIONS
    )
    assert verdict(off).cause == "inconclusive"


def test_a_call_that_nccl_calls_wrong_is_about_versions_and_arguments() -> None:
    error = "RuntimeError: NCCL error: invalid usage (run with NCCL_WARN for details)"
    frame = ("srt/distributed/device_communicators/pynccl.py", "__init__")
    finding = verdict(sglang("dist-init") + raised("TP0", frame, error=error) + SIGQUIT)
    assert finding.cause == "nccl-init-failure"
    assert "two ranks on one GPU" in finding.explanation
    assert {"version", "gpus"} <= proposed(finding).keys()
