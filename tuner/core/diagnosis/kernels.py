"""Judges of causes in kernels and software: GPU architectures, compilers, drivers, packages."""

from __future__ import annotations

from collections.abc import Callable

from tuner.core.diagnosis import compiling, faults
from tuner.core.diagnosis.backends import backend_of, other_attention
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import error_of, no_memory_advice, option, variable
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Sign

_UNKNOWN_ARCH = (
    "unsupported-architecture", "ptxas-failed", "processor-unknown", "gpu-unsupported-by-torch", "kernel-unsupported",
    "architecture-required", "kernel-backend-unavailable", "symm-mem-table",
)  # fmt: skip
_NO_CODE = ("PassManager::run failed", "Cannot select", "not supported on .target")
_BINARIES = ("operator-missing", "version-mismatch", "import-failed")
_CPU_BUILD = ("not compiled with CUDA", "_cuda_setDevice")
"""Said by a torch that was built without CUDA: in words, and by a function that only builds with CUDA have."""
_NO_GPU = ("Found no NVIDIA driver", "No CUDA GPUs", *_CPU_BUILD, "no CUDA-capable", "infer device type",
           "nvidia-smi not found", "libcuda.so.1", "NVML Shared Library", "No accelerator (", "select device driver",
           "No GPU memory values")  # fmt: skip
_OTHER_STATE = ("system not yet initialized", "version mismatch", "initialization failed", "unsupported display driver",
                "communicate with", "unknown error", "initialization error")  # fmt: skip
_PLENTY_GIB = 1.0
"""Free GPU memory, GiB, below which a library that cannot be initialised is taken to lack memory."""
_EARLY = frozenset({"args", "none", "dist-init", "cuda-init"})


def unsupported_architecture(case: Case) -> Finding | None:
    """Diagnose a kernel or compiler that does not support the architecture of this GPU."""
    sign = case.root_sign(*_UNKNOWN_ARCH)
    failed = case.root_sign("triton-failed")
    if sign is None and failed is not None and any(text in failed.text for text in _NO_CODE):
        sign = failed
    if sign is None and case.root_sign("triton-failed", "jit-failed", "extension-build-failed", "cuda-error"):
        sign = case.sign("processor-unknown", "gpu-unsupported-by-torch")
    if sign is None:
        return None
    arch = next((s for s in (sign, *case.signs(*_UNKNOWN_ARCH)) if s.fields.get("arch")), None)
    compiler = sign.id in ("ptxas-failed", "processor-unknown") or "nvcc" in case.message[:4000]
    backend = None if compiler else backend_of(case)
    name = str(arch.fields["arch"]) if arch is not None else "this GPU"
    special = _of_a_build(case, sign) or _of_other_gpus(case, sign, backend)
    who = "The compiler" if compiler else "The kernel" if backend is None else f"The backend {backend.value}"
    words = f"{who} has no code for {name}. Memory is not what is lacking: the build is older than the GPU, or made for"
    words += " other GPUs only."
    if _no_eight_bit(sign):
        words = (
            "A kernel computes in 8-bit floating point, which this GPU does not have. Memory is not what is lacking,"
        )
        words += " and no newer build changes it."
    elif need := _made_for(sign):
        words = f"{sign.fields.get('what') or who} is made for {need}, and this GPU is none of them. Memory"
        words += " is not what is lacking, and no newer build changes it."
    return case.finding(
        "unsupported-arch",
        words,
        evidence=[
            backend,
            case.quote("gpu-name", arch, "arch") if arch is not None else None,
            case.quote("exit status", sign, "exit_code"),
            case.quote("function", sign, "function"),
            case.quote("GPU", sign, "gpu_name"),
            case.quote("error", sign, "error") or case.quote("needs", sign, "need"),
        ],
        remedies=special or [
            other_attention(case, backend) if not compiler else None,
            case.remedy("enable_torch_symm_mem", Move.UNSET, "its table of sizes does not know this GPU")
            if sign.id == "symm-mem-table" else None,
            case.advice("version", "torch and triton built for CUDA 12.8 or newer know this architecture", ">=cu128")
            if compiler or backend is None else
            case.advice("version", "a newer build of the kernels may know this architecture"),
            variable(case, "CUDA_HOME", Move.SET, "a CUDA toolkit of 12.8 or newer, if it is nvcc that refuses")
            if compiler else None,
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="the same kernel running on another GPU of this model with the same packages",
        confidence=Confidence.MEDIUM if sign is failed else Confidence.HIGH,
    )  # fmt: skip


def _made_for(sign: Sign) -> str:
    """Return the GPUs that a kernel says it is made for; empty if it names none, as when a build lacks the code."""
    return str(sign.fields.get("need") or "")


def _no_eight_bit(sign: Sign) -> bool:
    """Return whether the GPU lacks the 8-bit floating point type that Triton names."""
    return sign.fields.get("eight_bit") is not None


def _of_other_gpus(case: Case, sign: Sign, backend: Evidence | None) -> list[Remedy | None]:
    """Return remedies for a kernel that is made for other GPUs; empty if it is not."""
    if _no_eight_bit(sign):
        return [
            case.remedy("kv_cache_dtype", Move.UNSET, "the LLM's own data type, which every GPU has")
            if case.setting("kv_cache_dtype") not in (None, "auto")
            else None,
            case.advice(
                "checkpoint",
                "weights in 16 bits, or quantised to integers (AWQ, GPTQ): this GPU has no 8-bit"
                " floating point of that kind, which begins with compute capability 8.9",
            ),
        ]
    if not _made_for(sign):
        return []
    if str(sign.fields.get("what", "")).lower() in ("bfloat16", "bf16"):
        why = "16-bit numbers of another kind, which this GPU has; some LLMs overflow in them"
        return [option(case, "dtype", "--dtype", Move.SET, why, "float16")]
    other = other_attention(case, backend)
    return [other or case.advice("backend", "another implementation of it, or a GPU it is made for")]


def _of_a_build(case: Case, sign: Sign) -> list[Remedy | None]:
    """Return remedies if FlashInfer or the selection of 8-bit kernels refuses this GPU; empty if neither does."""
    if "--fp8-gemm-backend" in sign.text or "--fp8-gemm-backend" in case.message:
        why = "takes kernels that this GPU has; triton's are compiled for it"
        return [case.remedy("fp8_gemm_backend", Move.SET, why, value="auto")]
    if "sm75 or higher" in case.message:
        why = "FlashInfer read no architecture at all, and no too old one: name that of this GPU"
        return [
            variable(case, "FLASHINFER_CUDA_ARCH_LIST", Move.SET, f"{why}, as 9.0a or 12.0f"),
            variable(case, "TORCH_CUDA_ARCH_LIST", Move.UNSET, "if it is set to something else"),
        ]
    if "No supported CUDA architectures found" in case.message:
        return [
            case.advice(
                "cuda-toolkit",
                "12.9 or newer: FlashInfer compiles the kernel with its nvcc, and an older one cannot for 12.x",
                ">=12.9",
            ),
            variable(case, "FLASHINFER_CUDA_ARCH_LIST", Move.SET, "that of this GPU, as 9.0a or 12.0f"),
            option(case, "attention_backend", "--attention-backend", Move.SET, "needs no FlashInfer", "triton"),
        ]
    return []  # fmt: skip


def shared_memory_of_a_block(case: Case) -> Finding | None:
    """Diagnose a Triton kernel that needs more on-chip shared memory than the GPU has."""
    sign = case.root_sign("triton-out-of-resources")
    if sign is None or "memory" not in str(sign.fields.get("resource", "memory")):
        return None
    required, limit = sign.fields.get("required"), sign.fields.get("limit")
    moe = case.on_stack("fused_moe")
    return case.finding(
        "kernel-smem-exceeded",
        f"One block of a kernel wants {required} bytes of the memory on the chip, and this GPU has {limit}. That is"
        " neither GPU memory nor /dev/shm: the kernel's block sizes were chosen for a larger GPU.",
        evidence=[
            case.quote("required", sign, "required", "bytes"),
            case.quote("limit", sign, "limit", "bytes"),
            case.arg("moe_runner_backend", "attention_backend"),
        ],
        remedies=[
            case.advice("kernel-config", "a tuned configuration of the fused MoE kernel for this GPU"
                        if moe else "block sizes or stages of this kernel for this GPU"),
            case.advice("version", "newer versions choose block sizes by the GPU"),
            case.remedy("moe_runner_backend", Move.SET, "another implementation") if moe else
            other_attention(case, backend_of(case)),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="the same kernel running on a GPU of the same model",
    )  # fmt: skip


def torch_without_cuda(case: Case) -> Finding | None:
    """Diagnose a GPU asked of a torch that was built without CUDA: no driver or GPU of the host would help."""
    sign = case.root_sign("cuda-unavailable")
    if sign is None or not any(text in str(sign.fields.get("detail", "")) for text in _CPU_BUILD):
        return None
    return case.finding(
        "binary-mismatch",
        "The torch of this environment was built without CUDA, as its packages for CPUs are, and the server asks it for"
        " a GPU. Whether the host has a GPU and a driver plays no part.",
        title="The installed torch was built without CUDA",
        evidence=[error_of(case, sign), case.arg("device")],
        remedies=[
            case.advice("packages", "install torch built for CUDA, best with the engine and its pinned dependencies:"
                        " python -c 'import torch; print(torch.version.cuda)' prints None until then"),
            option(case, "device", "--device", Move.SET, "if the CPU is meant, with an engine built for it", "cpu"),
        ],
        refuted_by="torch.version.cuda being a number in the same environment",
        phase="cuda-init" if case.phase in _EARLY else None,
    )  # fmt: skip


def no_cuda(case: Case) -> Finding | None:
    """Diagnose CUDA failing to initialise: the driver, no visible GPU, or a build without CUDA."""
    sign = case.root_sign("cuda-unavailable")
    own = sign is not None
    if sign is None and case.phase in _EARLY and case.root is not None and not _explained(case):
        earlier = case.sign_before(case.root.at, "cuda-unavailable")
        sign = earlier if case.setting("device") != "cpu" else None
    if sign is None:
        return None
    detail = str(sign.fields.get("detail", ""))
    if "busy or unavailable" in detail:
        return _taken(case, sign)
    none = any(text in detail for text in _NO_GPU)
    found = sign.fields.get("found_version")
    words = (
        "No GPU can be used: torch was built without CUDA, no driver is loaded, or none is visible to this process."
        if none
        else "CUDA cannot be initialised: the driver is older than the CUDA this build was made for."
    )
    if any(text in detail for text in _OTHER_STATE):
        words = (
            "CUDA cannot be initialised: driver, kernel module and libraries do not fit together, or a service of the"
            " driver (the fabric manager) is not running."
        )
    if found is not None:
        words += f" The driver knows CUDA {_cuda(found)}."
    return case.finding(
        "driver-too-old",
        words + " Until that is mended no setting of the engine helps; an engine may also fall back to the CPU without"
        " a word.",
        evidence=[
            case.quote("found version", sign, "found_version"),
            case.quote("CUDA error", sign, "code"),
            error_of(case, sign),
            case.arg("device"),
        ],
        remedies=[
            case.advice("nvidia-fabricmanager", "must run on hosts with NVSwitch, in the driver's version")
            if "not yet initialized" in detail else None,
            case.advice("nvidia-smi", "shows the driver's version and the newest CUDA it can serve, or that there is"
                        " none", "nvidia-smi"),
            case.advice("driver", "a newer driver, or packages built for an older CUDA") if not none else
            variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "GPUs that exist; in a container also --gpus all"),
            case.advice("packages", "python -c 'import torch; print(torch.version.cuda)' shows what torch was built"
                        " for; None means without CUDA"),
        ],
        refuted_by="torch.cuda.is_available() being True in the same environment",
        phase="cuda-init" if case.phase in _EARLY else None,
        confidence=Confidence.HIGH if own else Confidence.MEDIUM,
    )  # fmt: skip


def _taken(case: Case, sign: Sign) -> Finding:
    """Build the finding for a GPU in exclusive compute mode that another process uses."""
    return case.finding(
        "foreign-process-on-gpu",
        "CUDA refuses the GPU because it is busy: another process has it, and its compute mode admits one only.",
        evidence=[error_of(case, sign)],
        remedies=[
            case.advice("gpu-processes", "nvidia-smi: which process has it; nvidia-smi -q -d COMPUTE: the mode"),
            variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "other GPUs"),
        ],
        refuted_by="no other process on that GPU",
        phase="cuda-init" if case.phase in _EARLY else None,
        confidence=Confidence.MEDIUM,
    )


def _explained(case: Case) -> bool:
    """Return whether the root failure has a sign that other judges explain, so that CUDA is not the cause."""
    ids = ("argument-error", "validation-error", "llm-not-found", "llm-files-missing", "port-in-use", "llm-gated")
    return case.root_sign(*ids) is not None


def _cuda(version: object) -> str:
    """Format CUDA's numeric version: 12040 becomes `12.4`."""
    text = str(version)
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if text.isdigit() and int(text) >= 1000 else text


def binaries(case: Case) -> Finding | None:
    """Diagnose packages that were built for different versions, or that are missing."""
    sign = next((s for name in _BINARIES if (s := case.root_sign(name)) is not None), None)
    if sign is None:
        return None
    wanted = sign.fields.get("wanted")
    module = sign.fields.get("module") if "name" not in sign.fields else None
    subject = wanted or module
    missing = subject is not None or "asked" in sign.fields
    return case.finding(
        "binary-mismatch",
        (
            f"{f'The package {subject}' if subject else 'A package'} is not installed in the environment the server"
            " runs in, or not for this Python."
            if missing
            else "A compiled package looks for something that the installed torch, CUDA or C++ library does not have:"
            " they were built for different versions. It fails before anything is loaded; memory plays no part."
        ),
        evidence=[
            case.quote("symbol", sign, "symbol"),
            case.quote("library", sign, "library") or case.quote("library", sign, "binary_path"),
            case.quote("package", sign, "package"),
            case.quote("found version", sign, "found_version") or case.quote("found version", sign, "have_version"),
            case.quote("needed version", sign, "needed_version") or case.quote("needed version", sign, "need_version"),
            case.quote("module", sign, "module"),
            case.quote("name", sign, "name"),
            error_of(case, sign),
        ],
        remedies=[
            case.advice("packages", "install the engine with its pinned dependencies into a fresh environment, or use"
                        " its container image"),
            case.advice("version", "torch, CUDA and kernel packages of one release: pip list shows what is there"),
        ],
        refuted_by="the import working in the same environment: python -c 'import ...'",
        phase="args" if case.phase == "none" else None,
        confidence=Confidence.MEDIUM if missing else Confidence.HIGH,
    )  # fmt: skip


def library_not_initialised(case: Case) -> Finding | None:
    """Diagnose a CUDA library that failed to initialise although at least 1 GiB of GPU memory is free.

    With less free memory it is an out-of-memory failure, which `memory.driver_oom` judges.
    """
    sign = case.root_sign("library-not-initialised")
    story = case.story
    last = story.last_available if story is not None else None
    status = str(sign.fields.get("status_text", "")) if sign is not None else ""
    unset = status.endswith(("NOT_INITIALIZED", "ALLOC_FAILED"))
    if sign is None or not unset or last is None or last.value < _PLENTY_GIB:
        return None
    return case.finding(
        "binary-mismatch",
        f"{status} usually means that memory is short, and {last.value:g} GiB are free. Then it is"
        " a library of another CUDA than torch was built for, found first on the library path, or a context that an"
        " earlier fault spoiled.",
        evidence=[case.quote("status", sign, "status_text"), case.figure("last avail mem", last)],
        remedies=[
            variable(case, "LD_LIBRARY_PATH", Move.UNSET, "so that torch finds the libraries it came with"),
            case.advice("packages", "nvidia-cublas and nvidia-cudnn of torch's own CUDA"),
            variable(case, "CUDA_LAUNCH_BLOCKING", Move.SET, "shows an earlier fault where it happens", "1"),
        ],
        refuted_by="less than 1 GiB free on that GPU at the moment of the failure",
        confidence=Confidence.LOW,
    )


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (
    shared_memory_of_a_block,
    torch_without_cuda,
    no_cuda,
    unsupported_architecture,
    *compiling.JUDGES,
    binaries,
    library_not_initialised,
    *faults.JUDGES,
)
