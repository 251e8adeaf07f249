"""Judges of kernels and software: architectures, compilers, drivers, binaries, illegal accesses, hanging passes."""

from __future__ import annotations

import pytest

from tests.support.small_logs import (
    SIGQUIT,
    findings,
    proposed,
    raised,
    sglang,
    shown,
    verdict,
    vllm,
    wrong_and_sure,
)
from tuner.domain.findings import Confidence, Severity

DECODE = ("srt/model_executor/model_runner.py", "forward_decode")
EXTEND = ("srt/model_executor/model_runner.py", "forward_extend")
CAPTURE = ("srt/model_executor/cuda_graph_runner.py", "capture_one_batch_size")
MOE = ("srt/layers/moe/fused_moe_triton/fused_moe.py", "invoke_fused_moe_kernel")
IMPORT = (
    'Traceback (most recent call last):\n  File "/opt/sglang/launch_server.py", line 6, in <module>\n    import x\n'
)


def serving(error: str, *frames: tuple[str, str], rank: str = "TP1") -> str:
    return sglang("serving") + raised(rank, *frames, error=error) + SIGQUIT


# --- Architectures ----------------------------------------------------------------------------------------------------


def test_a_backend_without_code_for_the_gpu() -> None:
    text = sglang("serving", attention_backend="trtllm_mha") + raised(
        "TP0", EXTEND, ("srt/layers/attention/trtllm_mha_backend.py", "forward_extend"),
        error="RuntimeError: Error in function 'TllmGenFmhaRunner' at /ws/fmhaRunner.cuh:30: Unsupported architecture",
    )  # fmt: skip
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("unsupported-arch", "prefill", (0,))
    assert shown(finding)["backend"] == "trtllm_mha"
    assert proposed(finding)["attention_backend"] == ("set", "triton")
    assert "mem_fraction_static" not in proposed(finding)


@pytest.mark.parametrize(
    ("error", "arch"),
    [
        ("triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n`ptxas`"
         " stderr:\nptxas fatal"
         "   : Value 'sm_121a' is not defined for option 'gpu-name'", "sm_121a"),
        ("RuntimeError: Ninja build failed. Ninja output:\nnvcc fatal   : Unsupported gpu architecture 'compute_120a'",
         "compute_120a"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", None),
        ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", None),
        ("AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. Please use `--attention-backend"
         " flashinfer`.", None),
        ("RuntimeError: No supported CUDA architectures found for major versions [10].", None),
    ],
)  # fmt: skip
def test_compilers_and_kernels_that_do_not_know_the_gpu(error: str, arch: str | None) -> None:
    text = sglang("graph-capture") + raised("TP0", CAPTURE, error=error) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.phase) == ("unsupported-arch", "graph-capture")
    assert shown(finding).get("gpu-name") == arch
    assert wrong_and_sure(text, ["unsupported-arch"]) == []


@pytest.mark.parametrize(
    ("error", "knob", "value"),
    [
        ("RuntimeError: No supported CUDA architectures found for major versions [10].", "cuda-toolkit", ">=12.9"),
        ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "FLASHINFER_CUDA_ARCH_LIST", None),
        ("ValueError: DeepGEMM backend requested via --fp8-gemm-backend=deep_gemm, but DeepGEMM is not available.",
         "fp8_gemm_backend", "auto"),
    ],
)  # fmt: skip
def test_a_build_without_the_gpu_has_remedies_of_its_own(error: str, knob: str, value: str | None) -> None:
    finding = verdict(sglang("graph-capture") + raised("TP0", CAPTURE, error=error) + SIGQUIT)
    assert finding.cause == "unsupported-arch"
    assert proposed(finding)[knob][1] == value
    assert "version" not in proposed(finding)


def test_a_solutions_list_under_it_is_called_wrong() -> None:
    text = sglang("graph-capture") + raised(
        "TP0", CAPTURE, error="RuntimeError: CUDA error: no kernel image is available for execution on the device",
        final="Exception: Capture cuda graph failed: CUDA error: no kernel image is available\nPossible"
              " solutions:\n1. set"
        " --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
    )  # fmt: skip
    finding = verdict(text)
    assert finding.cause == "unsupported-arch"
    assert "mem-fraction-static" in finding.wrong_advice[0]


# --- On-chip memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [(EXTEND, MOE), (DECODE, ("srt/layers/attention/triton_ops/x.py", "_fwd"))])
def test_a_block_that_wants_more_than_the_chip_has(frames: tuple[tuple[str, str], ...]) -> None:
    error = (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 180224, Hardware"
        " limit: 166912."
    )
    finding = verdict(serving(error, *frames))
    assert finding.cause == "kernel-smem-exceeded"
    assert (shown(finding)["required"], shown(finding)["limit"]) == (180224, 166912)
    assert not {"shm-size", "mem_fraction_static"} & set(proposed(finding))


def test_request_slots_are_no_resource_of_a_kernel() -> None:
    error = "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for --max-running-requests."
    assert verdict(serving(error, EXTEND)).cause != "kernel-smem-exceeded"


# --- Compiling at run time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "compiler"),
    [
        ("RuntimeError: Error building extension 'batch_prefill': [1/3] /usr/local/cuda-11.8/bin/nvcc -c x.cu\n"
         "/venv/flashinfer/vec_dtypes.cuh:21:10: fatal error: cuda_fp8.h: No such file or"
         " directory", "/usr/local/cuda-11.8/bin/nvcc"),
        ("FileNotFoundError: [Errno 2] No such file or directory:"
         " '/usr/local/cuda/bin/nvcc'", "/usr/local/cuda/bin/nvcc"),
        ("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", None),
        ("OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.", None),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", None),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "ninja"),
    ],
)  # fmt: skip
def test_a_kernel_that_cannot_be_compiled(error: str, compiler: str | None) -> None:
    text = serving(error, EXTEND, ("flashinfer/jit/core.py", "load_cuda_ops"))
    finding = verdict(text)
    assert finding.cause == "jit-toolchain-missing"
    assert shown(finding).get("compiler") == compiler
    assert ("CC" if "Failed to find C compiler" in error else "CUDA_HOME") in proposed(finding)
    assert wrong_and_sure(text, ["jit-toolchain-missing"]) == []


def test_a_compiler_that_was_killed_lacked_memory() -> None:
    error = ("RuntimeError: Error building extension 'x': [1/3] /usr/local/cuda/bin/nvcc -c x.cu\n"
             "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
             "c++: fatal error: Killed signal terminated program cc1plus\nninja: build stopped: subcommand"
             " failed.")  # fmt: skip
    assert verdict(serving(error, EXTEND)).cause == "host-oom-killed"


# --- Drivers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your"
         " GPU driver",
         "12.2"),
        ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "older"),
        ("RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "older"),
        ("RuntimeError: No CUDA GPUs are available", "No GPU"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "No GPU"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "service"),
    ],
)  # fmt: skip
def test_cuda_that_cannot_be_initialised(error: str, words: str) -> None:
    text = sglang("dist-init") + raised("TP0", ("torch/cuda/__init__.py", "_lazy_init"), error=error) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.phase) == ("driver-too-old", "cuda-init")
    assert finding.confidence is Confidence.HIGH
    assert words in finding.explanation


@pytest.mark.parametrize(
    "error",
    [
        "AssertionError: Torch not compiled with CUDA enabled",
        "AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'",
    ],
)
def test_a_torch_without_cuda_is_no_matter_of_the_driver(error: str) -> None:
    text = sglang("dist-init") + raised("TP0", ("torch/cuda/__init__.py", "set_device"), error=error) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.confidence) == ("binary-mismatch", "cuda-init", Confidence.HIGH)
    assert finding.title == "The installed torch was built without CUDA"
    assert [remedy.knob for remedy in finding.remedies] == ["packages", "device"]
    assert "driver" not in " ".join(remedy.why for remedy in finding.remedies)


def test_a_warning_about_the_driver_explains_what_fails_after_it_less_surely() -> None:
    text = (
        "/venv/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: The NVIDIA driver on your system"
        " is too old (found version 12020).\n"
        + sglang("args")
        + 'Traceback (most recent call last):\n  File "/opt/sglang/launch_server.py", line 6, in <module>\n    x()\n'
        "RuntimeError: get_device_capability failed\n"
    )
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.confidence) == ("driver-too-old", "cuda-init", Confidence.MEDIUM)
    assert shown(finding)["found version"] in ("12020", 12020)


def test_such_a_warning_on_a_cpu_explains_nothing() -> None:
    text = (
        "/venv/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: Found no NVIDIA driver on your system.\n"
        + sglang("args", device="cpu")
        + "launch_server.py: error: unrecognized arguments: --nosuch\n"
    )
    assert verdict(text).cause == "bad-argument"
    healthy = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.\n" + sglang(
        "serving", device="cpu"
    )
    assert findings(healthy) == ()


# --- Packages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "what", "value"),
    [
        ("ImportError: /venv/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
         "symbol", "_ZN3c104cuda9SetDeviceEa"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
         "library", "libcudart.so.12"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /venv/x.so)",
         "library", "GLIBCXX_3.4.32"),
        ("ImportError: cannot import name 'fused_marlin_moe' from 'sgl_kernel' (/venv/sgl_kernel/__init__.py)",
         "name", "fused_marlin_moe"),
        ("RuntimeError: operator torchvision::nms does not exist", "library", "torchvision"),
        ("Exception: flashinfer_python is installed with version 0.2.5, which is less than the minimum required version"
         " 0.2.9. Please reinstall", "package", "flashinfer_python"),
        ("ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nAttempted locations:\n1. x\n"
         "GPU Info:\n- Compute capability: 86\nError details from previous import attempts:\n- ImportError:"
         " /venv/sgl_kernel/sm100/common_ops.abi3.so: undefined symbol: _ZNK3c106SymInt6sym_neERKS0_", "symbol",
         "_ZNK3c106SymInt6sym_neERKS0_"),
    ],
)  # fmt: skip
def test_packages_that_were_not_built_for_each_other(error: str, what: str, value: str) -> None:
    finding = verdict(IMPORT + error + "\n")
    assert (finding.cause, finding.phase) == ("binary-mismatch", "args")
    assert shown(finding)[what] == value


def test_a_missing_package_is_less_sure() -> None:
    finding = verdict(IMPORT + "ModuleNotFoundError: No module named 'flashinfer'\n")
    assert (finding.cause, finding.confidence) == ("binary-mismatch", Confidence.MEDIUM)


def test_an_optional_package_that_is_ignored_is_healthy() -> None:
    text = sglang("serving") + (
        "[2026-03-01 10:01:30 TP0] Ignore import error when loading sglang.srt.models.x: No module named 'torchaudio'\n"
    )
    assert findings(text) == ()


# --- Faults and hangs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", ["TP0", "TP1"])
def test_an_illegal_access_is_reported_late(rank: str) -> None:
    error = (
        "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously"
        " reported at some other API call, so the stacktrace below might be incorrect."
    )
    other = "TP1" if rank == "TP0" else "TP0"
    text = serving(error, DECODE, rank=rank) + raised(
        other, ("srt/utils.py", "broadcast_pyobj"), time="10:03:01",
        error="RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:21877",
    )  # fmt: skip
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("illegal-memory-access", "decode", (int(rank[2]),))
    assert proposed(finding)["CUDA_LAUNCH_BLOCKING"] == ("set", "1")
    assert "speculative_algorithm" not in proposed(finding)
    assert wrong_and_sure(text, ["illegal-memory-access"]) == []


def test_with_speculation_it_can_be_left_out() -> None:
    text = sglang("serving", speculative_algorithm="EAGLE") + raised(
        "TP1", DECODE, error="torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    )
    assert proposed(verdict(text))["speculative_algorithm"][0] == "unset"


def watchdog(ranks: int, line: str = "Watchdog timeout (self.watchdog_timeout=300)") -> str:
    return "".join(f"[2026-03-01 10:08:00 TP{n}] {line}\n" for n in range(ranks))


def test_a_pass_that_does_not_return() -> None:
    prefill = (
        "[2026-03-01 10:02:30 TP0] Prefill batch, #new-seq: 1, #new-token: 7777, #cached-token: 0, token usage: 0.02,"
        " #running-req: 0, #queue-req: 0\n"
    )
    text = sglang("serving", tp=4) + prefill + watchdog(4) + SIGQUIT + "Killed\n"
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("watchdog-hang", "prefill", (0, 1, 2, 3))
    evidence = shown(finding)
    assert (evidence["watchdog_timeout"], evidence["#new-token of the last prefill"]) == (300, 7777)
    assert finding.confidence is Confidence.MEDIUM
    assert "memory" not in proposed(finding)


def test_a_soft_watchdog_does_not_end_the_server() -> None:
    line = "Scheduler watchdog timeout (self.watchdog_timeout=120, self.soft=True)"
    finding = verdict(sglang("serving") + watchdog(1, line))
    assert (finding.cause, finding.severity) == ("watchdog-hang", Severity.ERROR)


def test_a_call_of_vllm_that_does_not_return() -> None:
    wait = ("(EngineCore_DP0 pid=22) INFO 05-14 08:{m}:40 [shm_broadcast.py:466] No available shared memory"
            " broadcast block found in 60 seconds. This typically happens when some processes are hanging or doing some"
            " time-consuming work\n")  # fmt: skip
    text = (
        vllm("ready")
        + wait.format(m=30) + wait.format(m=31)
        + "(EngineCore_DP0 pid=22) ERROR 05-14 08:35:40 [core.py:900] EngineCore encountered a fatal error.\n"
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:35:40 [core.py:900] Traceback (most recent call last):\n"
        '(EngineCore_DP0 pid=22) ERROR 05-14 08:35:40 [core.py:900]   File "/vllm/v1/engine/core.py", line 1, in step\n'
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:35:40 [core.py:900] TimeoutError: RPC call to execute_model"
        " timed out.\n"
    )  # fmt: skip
    finding = verdict(text)
    assert finding.cause == "watchdog-hang"
    assert shown(finding)["waits for a worker"] == 2


def test_waiting_for_a_worker_that_compiles_is_healthy() -> None:
    text = vllm("kv-alloc") + (
        "(EngineCore_DP0 pid=22) INFO 05-14 08:16:20 [shm_broadcast.py:466] No available shared memory broadcast block"
        " found in 60 seconds. This typically happens when some processes are hanging or doing some"
        " time-consuming work\n"
    )
    assert [f for f in findings(text) if f.severity in (Severity.FATAL, Severity.ERROR)] == []


def test_a_library_that_is_not_initialised_with_memory_to_spare() -> None:
    error = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    finding = verdict(sglang("graph-capture") + raised("TP0", CAPTURE, error=error))
    assert (finding.cause, finding.confidence) == ("binary-mismatch", Confidence.LOW)
    short = sglang("graph-capture").replace("avail mem=11.20 GB", "avail mem=0.31 GB")
    assert verdict(short + raised("TP0", CAPTURE, error=error)).cause != "binary-mismatch"


def test_a_thrown_illegal_access_is_found_behind_the_crash() -> None:
    text = sglang("serving") + (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 1] Process group watchdog thread terminated with exception: CUDA error: an illegal memory"
        " access was encountered\n"
    )
    assert verdict(text).cause == "illegal-memory-access"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: misaligned address",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle)`",
        "RuntimeError: CUDA error: device-side assert triggered",
    ],
)
def test_what_a_fault_leaves_behind_is_less_sure(error: str) -> None:
    finding = verdict(serving(error, DECODE))
    assert (finding.cause, finding.confidence) == ("illegal-memory-access", Confidence.MEDIUM)


@pytest.mark.parametrize(
    "text",
    [
        serving("RuntimeError: CUDA error: uncorrectable ECC error encountered", DECODE),
        sglang("serving")
        + "[8123.7] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"
        + raised("TP1", DECODE, error="RuntimeError: CUDA error: unknown error"),
    ],
)
def test_a_card_that_fails_is_no_fault_of_a_kernel(text: str) -> None:
    finding = verdict(text)
    assert (finding.cause, finding.ranks) == ("gpu-hardware", (1,))


def test_an_xid_of_a_kernel_stays_with_the_kernel() -> None:
    xid = "[8123.7] NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python3, Ch 00000010\n"
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    finding = verdict(sglang("serving") + xid + raised("TP1", DECODE, error=error))
    assert (finding.cause, shown(finding)["Xid"]) == ("illegal-memory-access", 31)
    assert findings(sglang("serving") + xid) == ()


def test_a_warm_up_that_does_not_come_back() -> None:
    text = sglang("ready").rpartition("[2026-03-01 10:00:55]")[0] + (
        "[2026-03-01 10:11:00] Initialization failed. warmup error: Traceback (most recent call last):\n"
        '  File "/opt/sglang/srt/entrypoints/http_server.py", line 1, in _wait_and_warmup\n'
        "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out. (read"
        " timeout=600)\n"
    )
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.confidence) == ("watchdog-hang", "warmup", Confidence.MEDIUM)


def test_a_table_without_this_gpu() -> None:
    text = sglang("dist-init") + raised(
        "TP0", ("srt/distributed/device_communicators/torch_symm_mem.py", "__init__"), error="KeyError: 12"
    )
    assert verdict(text).cause == "unsupported-arch"


@pytest.mark.parametrize("words", ["PassManager::run failed", "LLVM ERROR: Cannot select: x"])
def test_a_compiler_that_gives_up_is_less_sure(words: str) -> None:
    finding = verdict(sglang("graph-capture") + raised("TP0", CAPTURE, error=f"RuntimeError: {words}"))
    assert (finding.cause, finding.confidence) == ("unsupported-arch", Confidence.MEDIUM)


def test_a_damaged_cache_of_compiled_graphs() -> None:
    text = vllm("dist-init") + (
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224] EngineCore failed to start.\n"
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224] Traceback (most recent call last):\n"
        '(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224]   File "/vllm/compile.py", line 1, in load\n'
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:16:16 [core.py:1224] RuntimeError: vLLM failed to compile the model."
        " The most likely reason for this is that a previous compilation failed, leading to a corrupted compilation"
        " artifact.\n"
    )
    finding = verdict(text)
    assert finding.cause == "compile-cache-damaged"
    assert "cache" in proposed(finding)


def test_a_gpu_that_is_busy_belongs_to_somebody_else() -> None:
    error = "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
    finding = verdict(sglang("dist-init") + raised("TP0", ("torch/cuda/__init__.py", "_lazy_init"), error=error))
    assert (finding.cause, finding.phase) == ("foreign-process-on-gpu", "cuda-init")
