"""Judges of causes on the host: memory, disks, NUMA, process limits, and processes that the kernel killed."""

from __future__ import annotations

import math
from collections.abc import Callable

from tuner.core.diagnosis import processes
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import (
    container,
    engine_variable,
    error_of,
    option,
    quoted,
    said,
    variable,
)
from tuner.core.quantity import quantity
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Sign
from tuner.units import GIB

_KEPT_BACK_GIB = 10
"""Free host memory that SGLang does not use for the host pool, GiB (0.4.6 to 0.5.23)."""
_LIMITS = ("open-files", "threads-exhausted")


def out_of_host_memory(case: Case) -> Finding | None:
    """Diagnose a lack of host memory that the kernel's log or a failed allocation proves."""
    if case.root_sign("cuda-oom") is not None:
        return None  # some kernel libraries raise the GPU's out-of-memory as Python's MemoryError
    kernel = case.root_sign("host-oom") or (case.sign("host-oom") if processes.ended(case) is not None else None)
    failed = case.root_sign("host-allocation-failed")
    compiler = case.root_sign("compiler-killed") is not None
    if kernel is None and failed is None and not compiler:
        return None
    sign = kernel or failed
    if kernel is not None:
        scope = "container's limit" if "cgroup" in str(kernel.fields.get("scope", "")) else "host's memory"
        words = f"The kernel killed a process of the server: the {scope} was used up."
    elif failed is not None:
        words = "An allocation of host memory failed."
    else:
        words = "A compiler that was started for a kernel was killed, as the kernel does when memory is used up."
    return case.finding(
        "host-oom-killed",
        f"{words} It is not GPU memory, and the fraction plays no part.",
        evidence=[
            *(
                [
                    case.quote("pid", sign, "pid"),
                    case.quote("process", sign, "command"),
                    case.quote("anon-rss", sign, "anon_rss"),
                    case.quote("errno", sign, "errno"),
                    case.quote("tried", sign, "tried"),
                ]
                if sign is not None
                else []
            ),
            quoted("error", case.message.replace("\n", " "), sign.at if sign else None)
            if kernel is None and case.message
            else None,
            *processes.memory_users(case),
        ],
        remedies=processes.memory_remedies(case),
        refuted_by="gigabytes of host memory available inside the container at that moment",
        confidence=Confidence.HIGH,
    )


def hierarchical_cache(case: Case) -> Finding | None:
    """Diagnose a host pool of the hierarchical cache that exceeds host memory or is smaller than the GPU's pool."""
    sign = case.root_sign("hicache-host-memory")
    smaller = case.root_sign("hicache-smaller-than-pool")
    if smaller is not None:
        return _smaller_than_pool(case)
    if sign is None:
        return None
    asked, free = quantity(sign.fields.get("requested")), quantity(sign.fields.get("free"))
    if asked is None or free is None:
        return None
    kept = _KEPT_BACK_GIB * GIB / 1e9
    usable = round(free.value - kept, 1)
    nodes = case.setting("nnodes")
    ranks = case.layout.world // max(1, nodes if isinstance(nodes, int) else 1)
    most = max(0, math.floor(free.value - kept))
    sized = bool(case.setting("hicache_size"))
    several = f" Each of the {ranks} ranks of this host takes as much for itself." if ranks > 1 else ""
    return case.finding(
        "hicache-host-memory",
        f"The host pool of the hierarchical cache asks for {asked.value:g} GB. {free.value:g} GB are free, of which"
        f" {_KEPT_BACK_GIB} GiB are kept back, so that {usable:g} GB can be used.{several} These are decimal GB of"
        " host memory: the fraction and GPU memory play no part.",
        evidence=[
            case.quote("requested", sign, "requested"),
            case.quote("free shown", sign, "free"),
            Evidence(what="kept back", value=_KEPT_BACK_GIB, unit="GiB", at=sign.at),
            case.derived("usable", usable, "GB"),
            case.arg("hicache_size"),
            case.arg("hicache_ratio"),
        ],
        remedies=[
            case.remedy("hicache_size", Move.LOWER if sized else Move.SET, f"at most {most} GB fit now, per rank",
                        value=most, most=most)
            if sized or most else None,
            case.remedy("hicache_ratio", Move.LOWER, "the pool is this many times the one on the GPU")
            if not sized else None,
            case.advice("host-memory", "free -g: page cache does not count, HugePages do; more memory for the"
                        " container"),
        ],
        wrong_advice=["the two numbers of the message do not show the 10 GiB that are kept back"]
        if asked.value <= free.value else [],
        refuted_by=f"more than {asked.value + kept:.1f} GB of host memory available at that moment",
    )  # fmt: skip


def _smaller_than_pool(case: Case) -> Finding:
    story = case.story
    return case.finding(
        "hicache-host-memory",
        "The host pool of the hierarchical cache is smaller than the pool on the GPU, which versions up to 0.5.14"
        " refuse.",
        evidence=[
            case.arg("hicache_size"),
            case.arg("hicache_ratio"),
            case.figure("KV pool", story.kv_gib if story is not None else None),
        ],
        remedies=[
            case.remedy("hicache_ratio", Move.RAISE, "above 1: the host pool in multiples of the GPU's"),
            case.remedy("hicache_size", Move.RAISE, "above the pool on the GPU, in decimal GB per rank"),
            case.remedy("enable_hierarchical_cache", Move.UNSET, "without it no host pool is needed"),
        ],
        refuted_by="a host pool larger than the GPU's in the arguments",
    )


def host_pool(case: Case) -> Finding | None:
    """Diagnose a KV cache in host memory that asks for more than is free (vLLM without a GPU)."""
    sign = case.root_sign("host-kv-short")
    if sign is None:
        return None
    free, total, desired = (sign.fields.get(name) for name in ("free", "total", "desired"))
    if not all(isinstance(each, int | float) for each in (free, total, desired)):
        return None
    return case.finding(
        "bad-argument",
        f"The KV cache lies in host memory here: {desired:g} GiB are asked for, and {free:g} of {total:g} GiB are free"
        f" on NUMA node {sign.fields.get('node')}. Nothing was killed, and no GPU is involved.",
        evidence=[
            case.quote("KV cache asked for", sign, "desired", "GiB"),
            case.quote("free", sign, "free", "GiB"),
            case.quote("memory of the node", sign, "total", "GiB"),
        ],
        remedies=[
            engine_variable(case, "cpu_kv_cache", Move.LOWER, f"whole GiB, fewer than the {free:g} that are free"),
            option(case, "kv_cache_memory_bytes", "--kv-cache-memory-bytes", Move.LOWER, "where it was given instead"),
            case.advice("host-memory", "free -g and numactl -H: what else uses the memory of that node"),
        ],
        refuted_by=f"more than {desired:g} GiB free on that node when it is started",
    )


def no_host_pool(case: Case) -> Finding | None:
    """Diagnose a budget for the KV cache in host memory that holds not even one block (vLLM without a GPU)."""
    sign = case.root_sign("no-kv-memory")
    if sign is None or case.setting("device", "device_config") != "cpu":
        return None
    told = case.sign_before(sign.at, "host-kv-set")
    given = f": {told.fields.get('asked')} GiB were asked for" if told is not None else ""
    override = case.arg("num_gpu_blocks_override")
    return case.finding(
        "mem-fraction-too-low",
        f"The KV cache lies in host memory here, and what is set aside for it holds nothing{given}. No GPU is"
        " involved.",
        evidence=[
            case.quote("KV cache asked for", told, "asked", "GiB") if told is not None else None,
            case.quote("memory of the node", told, "total", "GiB") if told is not None else None,
            error_of(case, sign),
            override or case.arg("gpu_memory_utilization"),
        ],
        remedies=[
            option(case, "num_gpu_blocks_override", "--num-gpu-blocks-override", Move.UNSET, "as many blocks as the"
                   " memory holds") if override is not None else None,
            engine_variable(case, "cpu_kv_cache", Move.RAISE, "whole GiB of host memory for the cache; unset, the share"
                            " of gpu_memory_utilization counts"),
            case.remedy("mem_fraction_static", Move.RAISE, "of host memory, despite its name, where that is unset")
            if told is None else None,
        ],
        confidence=Confidence.HIGH if told is not None else Confidence.MEDIUM,
        refuted_by="the same failure with GiB given in that variable",
    )  # fmt: skip


def disk_full(case: Case) -> Finding | None:
    """Diagnose a full file system; /dev/shm is `shm_too_small`'s."""
    sign = case.root_sign("disk-full")
    if sign is None or "/dev/shm" in case.message or "</torch_" in case.message:
        return None
    path = sign.fields.get("full_path")
    return case.finding(
        "disk-full",
        f"A file system is full{f', that of {path}' if path else ''}: downloads, caches and compiled kernels go there."
        " Neither GPU memory nor host memory is lacking.",
        evidence=[
            error_of(case, sign),
            case.quote("file", sign, "full_path"),
            case.quote("errno", sign, "errno"),
        ],
        remedies=[
            case.advice("disk", "df -h and df -i of that path"),
            variable(case, "HF_HOME", Move.SET, "downloads go there; a larger disk"),
            variable(case, "TMPDIR", Move.SET, "temporary files go there"),
        ],
        refuted_by="df -h showing space, and df -i inodes, on that path",
    )


def storage(case: Case) -> Finding | None:
    """Diagnose a disk, mount or file server that fails to read or write a file."""
    sign = case.root_sign("storage-failed")
    path = _own_file(sign)
    if sign is None or (path is None and case.phase != "weight-load"):
        return None  # without a path the error may be that of a closed terminal
    return case.finding(
        "storage-failed",
        f"{path or 'A file'} could not be read or written: {sign.fields.get('error')}. What it lies on does not answer:"
        " a mount that was lost, a server of files that restarted, or a failing disk. Permissions and memory play no"
        " part.",
        evidence=[
            case.quote("file", sign, "file_path"),
            case.quote("errno", sign, "errno"),
            error_of(case, sign),
        ],
        remedies=[
            case.advice("mounts", "ls of that folder on the host and inside the container; mount it again, and start"
                        " the container anew: it keeps the old mount"),
            case.advice("dmesg", "what the kernel says of the disk or of the mount", "dmesg -T"),
        ],
        phase="args" if case.phase == "none" else None,
        refuted_by="the whole of that file being read inside the container: cat FILE > /dev/null",
    )  # fmt: skip


def _own_file(sign: Sign | None) -> str | None:
    """Return the path that a sign names; None if it names none or one of /dev, /proc or /sys."""
    path = str(sign.fields.get("file_path") or "") if sign is not None else ""
    return path if path and not path.startswith(("/dev/", "/proc/", "/sys/")) else None


def denied(case: Case) -> Finding | None:
    """Diagnose a file of the server, usually in a cache, that its user may not read or write."""
    sign = case.root_sign("file-denied")
    path = _own_file(sign)
    if sign is None or path is None:
        return None
    error = str(sign.fields.get("error"))
    return case.finding(
        "file-denied",
        f"{path} may not be written, or not be read, by the user the server runs as: {error}. Neither memory nor the"
        " LLM is at fault.",
        evidence=[
            case.quote("file", sign, "file_path"),
            case.quote("errno", sign, "errno"),
            error_of(case, sign),
        ],
        remedies=[
            case.advice("permissions", "ls -ld of it inside the container, and id: a mounted folder keeps the owner"
                        " that it has on the host"),
            variable(case, "HF_HOME", Move.SET, "downloads go there; a folder that may be written")
            if "huggingface" in path or path.startswith("/.cache") else
            variable(case, "HOME", Move.SET, "caches lie below it; a folder that may be written"),
        ],
        phase="args" if case.phase == "none" else None,
        refuted_by="that very user writing a file there",
    )  # fmt: skip


def limits(case: Case) -> Finding | None:
    """Diagnose a limit on open files or threads of the process or container."""
    own, crash = case.root_sign(*_LIMITS), case.root_sign("native-crash")
    sign = own or (case.just_before(crash, *_LIMITS) if crash is not None else None)
    if sign is None:
        return None
    end = processes.end_of(case, crash) if crash is not None else None
    files = sign.id == "open-files"
    words = (
        "The process has as many open files (sockets count) as it may have."
        if files
        else "A thread or process could not be made: their number is limited, or the address space for their stacks."
    )
    return case.finding(
        "process-limits",
        f"{words} Neither GPU memory nor host memory is lacking.",
        evidence=[
            Evidence(what="error", value=said(case, own or sign), at=sign.at),
            case.quote("errno", sign, "errno"),
            *(processes.of_the_end(case, end) if end is not None else ()),
        ],
        ranks=case.ranks or (processes.numbers(case, end) if end is not None else None),
        confidence=Confidence.HIGH if own else Confidence.MEDIUM,
        remedies=[
            container("--ulimit", "nofile=65535", "in systemd LimitNOFILE; check with ulimit -n")
            if files
            else container(
                "--pids-limit",
                "-1",
                "in systemd TasksMax; check with ulimit -u; and ulimit -v,"
                " which bounds the address space for the stacks of threads",
            ),
        ],
        refuted_by="a limit far above what /proc/PID shows in use",
    )


def locked(case: Case) -> Finding | None:
    """Diagnose memory that could not be registered with a network card because of the limit on locked memory."""
    root = case.root
    if root is None or root.failure is None or case.root_sign("memory-registration-failed") is None:
        return None
    sign = case.root_sign("memlock") or case.sign_before(root.at, "memlock")
    if sign is None:
        return None
    return case.finding(
        "process-limits",
        "The pool could not be registered with the network card: memory that may be locked is limited, in a container"
        " to 64 KiB as a rule. Neither GPU memory nor the fraction plays a part.",
        evidence=[
            case.quote("call", sign, "call"),
            quoted("error", case.message.partition("\n")[2], root.failure.message_at),
        ],
        remedies=[
            container("--ulimit", "memlock=-1", "lets the process lock memory; check with ulimit -l"),
            container("--cap-add", "IPC_LOCK", "or lets it ignore the limit"),
        ],
        confidence=Confidence.MEDIUM,
        refuted_by="ulimit -l inside the container saying unlimited",
    )


def numa(case: Case) -> Finding | None:
    """Diagnose a process that ended before Python started because numactl could not bind it to a NUMA node."""
    sign = case.root_sign("numa-failed")
    end = processes.ended(case)
    if sign is None and end is not None and end.fields.get("exit_code") in (1, None):
        sign = case.sign("numa-failed")
    if sign is None:
        return None
    return case.finding(
        "numa-bind-failure",
        "Ranks are started through numactl, which binds them to the NUMA node of their GPU; that was refused, and the"
        " process ended before Python began: there is no traceback. A container's seccomp profile or a cpuset without"
        " that node does this.",
        evidence=[
            case.quote("error", sign, "detail"),
            *([case.quote("exitcode", end, "exit_code"), case.quote("pid", end, "pid")] if end is not None else []),
        ],
        remedies=[
            container("--cap-add", "SYS_NICE", "lets the container set memory policies"),
            _unbound(case),
            case.remedy("numa_node", Move.UNSET, "no node asked for, none to bind to"),
            case.advice("cpuset", "grep Mems_allowed_list /proc/self/status inside the container"),
        ],
        refuted_by="numactl --cpunodebind=0 --membind=0 true succeeding inside the container",
        phase="args" if case.phase in ("none", "args") else None,
        confidence=Confidence.HIGH if end is not None or case.root_sign("numa-failed") else Confidence.MEDIUM,
    )  # fmt: skip


def _unbound(case: Case) -> Remedy | None:
    """Propose to start the ranks without numactl: by a switch that is on by itself, or one that was set."""
    bind = case.engine.knob("numa_bind", case.start.version)
    by_itself = bind is not None and bind.default is True
    move, value = (Move.SET, "0") if by_itself else (Move.UNSET, None)
    return engine_variable(case, "numa_bind", move, "starts the ranks without numactl", value)


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (
    hierarchical_cache,
    host_pool,
    no_host_pool,
    out_of_host_memory,
    disk_full,
    denied,
    storage,
    locked,
    limits,
    numa,
    processes.crashed,
    processes.host_memory_killed,
    processes.process_ended,
    processes.leader_gone,
    processes.peer_lost,
)
