"""The causes that a diagnosis can name, and the phases in which they show. `docs/findings.md` is made from this table.

An id never changes its meaning: scripts branch on it. A new cause comes with a definition and an example log.
"""

from __future__ import annotations

from msgspec import Struct

PHASES = (
    "args", "cuda-init", "dist-init", "weight-load", "kv-alloc", "draft-init", "autotune", "graph-capture", "warmup",
    "prefill", "decode", "idle-check", "runtime", "none",
)  # fmt: skip
"""Phases that a finding can name: those of a start, what a serving engine was doing, and `none`."""


class Cause(Struct, frozen=True):
    """One kind of root cause."""

    id: str
    title: str
    """Headline of a finding."""
    definition: str
    """How it is told from other causes, and what mends it."""


_CAUSES = (
    # Memory of the GPU
    Cause(
        "mem-fraction-too-low",
        "No room is left for the KV pool",
        "What the fraction allows weights and KV pool together is less than the weights take: free after weights minus"
        " free before them times (1 - fraction) is not positive on the smallest rank. Raise the fraction above"
        " 1 - after/before; where that exceeds about 0.95 the weights do not fit.",
    ),
    Cause(
        "mem-fraction-too-high-graph-capture",
        "CUDA graphs do not fit beside the static share",
        "The pool fits, but what the fraction leaves is less than graph capture needs. Lower the fraction or the"
        " largest batch size of the graphs; the new fraction must stay above the minimum.",
    ),
    Cause(
        "mem-fraction-too-high-activation",
        "A forward pass does not fit beside the static share",
        "The start succeeds; a prefill or decode pass needs more than the fraction leaves. Lower the fraction, the"
        " prefill chunk or the number of running requests.",
    ),
    Cause(
        "logprobs-oom",
        "Log-probabilities of a prompt do not fit",
        "Out of memory while logits of a prompt become 32-bit numbers: tokens x vocabulary x 4 bytes at once. Smaller"
        " prefill chunks, a later logprob_start_len, or no prompt log-probabilities.",
    ),
    Cause(
        "sampler-warmup-oom",
        "The sampler's warm-up does not fit",
        "vLLM: after KV cache and graphs, logits of max_num_seqs dummy requests do not fit. Lower max_num_seqs or"
        " gpu_memory_utilization.",
    ),
    Cause(
        "torch-compile-memory",
        "torch.compile ran out of memory",
        "Out of memory inside inductor or its autotuning during capture. Leave torch.compile out, or compile for"
        " smaller batches.",
    ),
    Cause(
        "moe-autotune-oom",
        "Kernel autotuning ran out of memory",
        "Out of memory in the autotuning or warm-up of kernels between KV pool and graph capture. Lower the fraction"
        " or switch autotuning off.",
    ),
    Cause(
        "profile-run-oom",
        "The memory profiling pass does not fit",
        "vLLM: out of memory in the dummy forward pass that measures activations, before any KV cache exists. The"
        " utilisation plays no part: lower max_num_batched_tokens, then max_num_seqs.",
    ),
    Cause(
        "weights-do-not-fit",
        "The weights do not fit",
        "Out of memory while weights are loaded, or more weights than any sane fraction allows. The fraction plays no"
        " part: quantised or smaller weights, more GPUs.",
    ),
    Cause(
        "draft-model-unbudgeted",
        "The draft model was not budgeted for",
        "Weights or KV pool of the speculative draft come after the target's pool was sized without them. Lower the"
        " fraction or cap the pool, or use a smaller draft.",
    ),
    Cause(
        "lora-memory-unbudgeted",
        "LoRA buffers were not budgeted for",
        "LoRA buffers take memory between the weights and the KV pool; without them the budget would be positive."
        " Fewer or smaller adapters.",
    ),
    Cause(
        "foreign-process-on-gpu",
        "Another process holds memory on the GPU",
        "A process that is not this server's holds memory on one or more of its GPUs. Free the GPU.",
    ),
    Cause(
        "memory-unbalanced",
        "The ranks have unequal free memory",
        "Free memory differs between ranks for another reason than a foreign process: mixed GPUs, or allocations of"
        " one rank when the check is repeated for a draft. A newer version, or skip the check.",
    ),
    Cause(
        "memory-profiling-race",
        "Memory was freed while it was measured",
        "vLLM: free memory grew during profiling, because another process ended. Start again when the GPU is quiet.",
    ),
    Cause(
        "gpu-memory-leak-runtime",
        "GPU memory shrinks while serving",
        "Free memory shrinks over minutes or hours at constant load until a small allocation fails with a nearly empty"
        " KV pool. Another version or transport of multimodal features; a lower fraction only delays it.",
    ),
    Cause(
        "vision-encoder-oom",
        "The vision encoder does not fit",
        "Out of memory in the vision tower or multimodal embedding for the images of one request. Fewer or smaller"
        " images, patch limits, another attention backend for them.",
    ),
    # Memory of the host
    Cause(
        "host-oom-killed",
        "Killed for want of host memory",
        "The kernel or the container's limit killed a process: exit code 9 or -9 or a silent end. It is not GPU memory:"
        " dmesg, container limits, RAM.",
    ),
    Cause(
        "hicache-host-memory",
        "The hierarchical cache asks for more host memory than there is",
        "Pinned host memory for the hierarchical cache exceeds what is free less 10 GiB kept back. Smaller"
        " hicache_size or hicache_ratio.",
    ),
    Cause(
        "shm-too-small",
        "/dev/shm is too small",
        "Shared-memory segments of NCCL or of the engine do not fit into /dev/shm (64 MB in a container by default)."
        " --shm-size or --ipc=host.",
    ),
    Cause(
        "disk-full",
        "A disk is full",
        "A file could not be written because its file system is full: caches, downloads, compiled kernels, logs.",
    ),
    Cause(
        "file-denied",
        "A file may not be read or written",
        "The user the server runs as has no right to a file or folder of its own, a cache as a rule, or the file system"
        " is read-only, as in `Permission denied: '/root/.cache'`. Ownership of mounts, HF_HOME, HOME.",
    ),
    Cause(
        "storage-failed",
        "A disk or a mount does not answer",
        "A file cannot be read or written although nothing forbids it, as in `Stale file handle`, `Transport endpoint"
        " is not connected`, `Input/output error`: a lost mount or a failing disk. Mount it again; dmesg.",
    ),
    Cause(
        "process-limits",
        "A limit of the process is reached",
        "Open files, threads or processes are limited by the container or the system, and the limit is used up. It is"
        " not GPU memory: ulimit -n, ulimit -u, ulimit -l, the container's pids limit.",
    ),
    # Communication
    Cause(
        "nccl-init-failure",
        "NCCL could not be set up",
        "A communicator or its first collective fails for another reason than shared memory or GPU memory. Without"
        " NCCL's own lines the next step is to run again with NCCL_DEBUG=INFO.",
    ),
    Cause(
        "nccl-out-of-memory",
        "NCCL found no GPU memory for its buffers",
        "NCCL reports CUDA's out of memory. Lower the fraction; the network is not the cause.",
    ),
    Cause(
        "multinode-rendezvous-timeout",
        "Ranks of another node never joined",
        "Stores or process groups time out before weights are loaded. Address, port, interface, and whether both nodes"
        " were started.",
    ),
    Cause(
        "interface-missing",
        "The network interface does not exist",
        "Ranks were told to meet through an interface that this host does not have, or that has no address, as in"
        " `Unable to find address for: eth1`. Nothing was waited for: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME.",
    ),
    Cause(
        "ray-gpus-short",
        "The Ray cluster lacks free GPUs",
        "vLLM: Ray has fewer free GPUs than there are ranks, or none on the node of the engine, as in `Cannot provide a"
        " placement group`. Nodes that did not join, or an earlier engine's placement group: `ray status`.",
    ),
    Cause(
        "peer-rank-died",
        "Another rank died first",
        "The log only shows consequences: a connection closed by a peer whose own log is elsewhere. Look there.",
    ),
    Cause(
        "rank-died",
        "A process of the server died without a word",
        "A rank or helper process ended without an error of its own: killed from outside, or crashed in native code.",
    ),
    Cause(
        "graph-capture-hang",
        "Graph capture hangs",
        "Capture stays at N of M without an error: a collective inside it never completes, or an exception is hidden"
        " behind the exchange of custom all-reduce buffers.",
    ),
    Cause(
        "custom-ar-disabled-pcie",
        "Custom all-reduce is off: more than two GPUs without NVLink",
        "Decode pays NCCL's latency for each small all-reduce. A performance note, no error.",
    ),
    Cause(
        "custom-ar-disabled",
        "Custom all-reduce is off",
        "Switched off by a flag or by another gate than PCIe: nodes, world size, platform, peer access.",
    ),
    Cause(
        "custom-ar-ipc-failure",
        "Custom all-reduce cannot share its buffers",
        "Registering captured buffers fails with an invalid argument, because of virtual-memory allocations"
        " (expandable_segments) or the container's IPC. It is not memory.",
    ),
    Cause(
        "p2p-unsupported",
        "The GPUs cannot reach each other's memory",
        "Peer access is not supported between two devices while custom all-reduce is set up.",
    ),
    # Kernels and software
    Cause(
        "unsupported-arch",
        "A kernel has no code for this GPU",
        "A kernel or compiler does not know the GPU's architecture. Another backend or a newer build.",
    ),
    Cause(
        "kernel-smem-exceeded",
        "A kernel asks for more on-chip shared memory than the GPU has",
        "Triton's `out of resource: shared memory` is the memory of one block on the chip: neither VRAM nor /dev/shm.",
    ),
    Cause(
        "jit-toolchain-missing",
        "A kernel could not be compiled",
        "nvcc, ninja, a compiler or headers are missing or too old for just-in-time compilation.",
    ),
    Cause(
        "compile-cache-damaged",
        "A cache of compiled graphs is damaged",
        "vLLM finds a compiled graph of an earlier start that it cannot use: cut off, or made by other packages, as in"
        " `leading to a corrupted compilation artifact`. Remove the cache; the next start compiles again.",
    ),
    Cause(
        "capture-refused",
        "Something cannot be captured in a CUDA graph",
        "CUDA refuses an operation while a graph is captured, as in `operation not permitted when stream is capturing`:"
        " a kernel or library waits for the GPU or uses another stream. Another backend or version; it is not memory.",
    ),
    Cause(
        "driver-too-old",
        "The NVIDIA driver is too old, or there is none",
        "CUDA cannot be initialised: the driver is older than the build needs, or no GPU is visible.",
    ),
    Cause(
        "binary-mismatch",
        "Installed binaries do not match",
        "Import error or undefined symbol: packages built for another torch, CUDA or Python, or torch without CUDA.",
    ),
    Cause(
        "illegal-memory-access",
        "A kernel accessed memory illegally",
        "A kernel fault or corrupted state. It is reported later than it happens, so the shown frame is not the cause;"
        " errors of other ranks are consequences.",
    ),
    Cause(
        "gpu-hardware",
        "The GPU reports a hardware fault",
        "Uncorrectable memory errors, a broken link, or a card that fell off the bus (Xid 48, 63, 79, 94 and others)."
        " No setting causes or mends it: reset or replace the card.",
    ),
    # Arguments and environment
    Cause("bad-argument", "An argument was refused", "The engine refuses a flag, a value or a combination."),
    Cause(
        "worker-forked",
        "Workers must be spawned here, not forked",
        "A worker was forked from a process that had used CUDA, as in `Cannot re-initialize CUDA in forked subprocess`:"
        " a plugin, an import or the script that starts the engine touched a GPU first.",
    ),
    Cause("model-not-found", "Files of the LLM or of an adapter were not found",
          "A path, name or revision that leads to no usable LLM, or to no usable LoRA adapter of it."),
    Cause(
        "unsupported-model",
        "The engine cannot run this LLM like this",
        "The architecture, quantisation or a shape of the LLM is not supported with these arguments.",
    ),
    Cause(
        "attention-backend-unfit",
        "No attention backend fits, or not the one that was asked for",
        "A backend does not take the LLM's head size, a data type or that of the KV cache, as in `Selected backend"
        " FLASHINFER is not valid for this configuration` and `FlashAttention does not support fp8 kv-cache on this"
        " device`. Another backend, or no kv_cache_dtype.",
    ),
    Cause(
        "draft-unfit",
        "The draft model and the target do not fit together",
        "The draft is no draft of this kind, or the target lacks what one needs, as in `object has no attribute"
        " 'set_eagle3_layers_to_capture'`. A draft that was trained for this target and method.",
    ),
    Cause("port-in-use", "A port is taken", "Another process listens on the HTTP port or on an internal one."),
    Cause(
        "numa-bind-failure",
        "Binding to a NUMA node failed",
        "The process dies before Python starts, because numactl or set_mempolicy fails in the container.",
    ),
    # Serving
    Cause(
        "kv-pool-exhausted",
        "The KV pool is full",
        "Requests are put back for want of KV slots, and throughput falls. These are slots, not GPU memory: a larger"
        " pool, fewer or shorter requests, more conservative scheduling.",
    ),
    Cause(
        "context-exceeds-kv-pool",
        "One request can be longer than the KV pool",
        "The allowed context or a request is longer than the whole pool. A larger pool or a shorter context.",
    ),
    Cause(
        "req-slots-exhausted",
        "Request slots ran out",
        "`alloc_req_slots` counts requests, not memory: raising max_running_requests helps, lowering it does not.",
    ),
    Cause(
        "mamba-pool-too-small",
        "Too few state blocks for so many requests",
        "Hybrid LLM: fewer state blocks than running requests allowed. Fewer requests or a larger state pool.",
    ),
    Cause(
        "flashinfer-workspace-too-small",
        "FlashInfer's workspace is too small",
        "A buffer of fixed size overflows; it is not GPU memory. A larger workspace, fewer sequences, another backend.",
    ),
    Cause(
        "kv-pool-leak",
        "KV slots were lost",
        "The engine's own check counts slots that belong to nobody: a fault of the engine, not leaked GPU memory.",
    ),
    Cause(
        "watchdog-hang",
        "A forward pass did not return",
        "The watchdog ended the server: a kernel or a collective hangs.",
    ),
    Cause(
        "prefill-graphs-off",
        "Prefill CUDA graphs are switched off",
        "The fraction leaves less free memory than the engine wants for them, and the time to the first token grows.",
    ),
    Cause(
        "graph-coverage",
        "Batches run without CUDA graphs",
        "Decode batches are larger than the largest captured graph, and run slower.",
    ),
    Cause(
        "start-hang",
        "The start stands still",
        "No line for far longer than this phase took in earlier starts or usually takes, and the GPUs do nothing: a"
        " collective that one rank never reaches, or a process that was stopped.",
    ),
    Cause(
        "start-timeout",
        "The start took longer than it may",
        "vLLM: the main process gave up waiting for its engine, which was still loading or compiling, as in `Timed out"
        " waiting for engine core processes to start`. Raise VLLM_ENGINE_READY_TIMEOUT_S; end workers that are left.",
    ),
    Cause(
        "requests-capped",
        "Requests wait while the pool has room",
        "As many requests run as max_running_requests allows, others wait, and the KV pool is not full.",
    ),
    Cause(
        "scheduler-conservative",
        "The scheduler holds requests back",
        "Requests wait although neither the pool nor the limit of running requests is reached.",
    ),
    Cause(
        "prefix-order",
        "Requests that share prefixes are served in the order they came",
        "The prefix cache hits and requests wait: an order by longest shared prefix would hit more.",
    ),
    Cause(
        "setting-ignored",
        "A setting did not take effect",
        "A flag or variable that this version does not read, that the engine or NCCL overwrites or refuses, or that"
        " changes something which is off.",
    ),
    Cause(
        "risky-setting",
        "A setting is known to do harm on some hosts",
        "A value that hangs, crashes or corrupts where the hardware does not bear it, and nothing rules that out here.",
    ),
    Cause(
        "nccl-through-host",
        "NCCL copies between GPUs through the host's memory",
        "Connections by shared memory between GPUs of one host, where direct copies were not forbidden: slower, safe.",
    ),
    Cause(
        "speculation-loses",
        "Speculation does not pay",
        "With its acceptance length the server is slower than the same server without a draft.",
    ),
    Cause(
        "inconclusive",
        "The log does not hold the cause",
        "The start failed, and what is there does not tell why. The finding says what to collect.",
    ),
)  # fmt: skip

CAUSES: dict[str, Cause] = {cause.id: cause for cause in _CAUSES}
"""The causes by id."""
