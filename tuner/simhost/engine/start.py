"""A start of the simulated server, phase by phase: what happens, is printed, and takes how long.

The steps are a generator that yields seconds to wait. Its caller decides what a second is: a start in the past only
advances a clock, a live one waits at some pace. All printed times are read from the clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from tuner.simhost.engine import draft, memory
from tuner.simhost.engine.config import Config, Spec
from tuner.simhost.engine.memory import MIB, Box, RankMemory, gib
from tuner.simhost.engine.text import FORCED_CUSTOM_AR, Lines

Steps = Generator[float, None, None]


_BROKEN_FILE = (
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
)
_NO_DEVICE = (
    "torch.AcceleratorError: CUDA error: invalid device ordinal\n"
    "GPU device may be out of range, do you have enough GPUs?\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


class StartFailed(Exception):
    """Ranks raised: `errors` has the message by rank, `where` names the traceback."""

    def __init__(self, where: str, errors: dict[int, str]) -> None:
        super().__init__(where)
        self.where = where
        self.errors = errors


@dataclass
class Log:
    """Writes the server's output with the clock's time."""

    write: Callable[[str], None]
    now: Callable[[], float]
    stamp: Callable[[float], str]
    single: bool = False
    """True for a server of one rank, whose lines have no tag."""

    def line(self, message: str, rank: int | None = None) -> None:
        """Write a line of the main process (None) or of a rank."""
        tag = "" if rank is None or self.single else f" TP{rank}"
        self.write(f"[{self.stamp(self.now())}{tag}] {message}\n")

    def raw(self, text: str) -> None:
        """Write output that does not come from the logger, such as progress bars and warnings."""
        self.write(text)


@dataclass
class Load:
    """The load of a GPU, for the simulated driver."""

    utilization: float = 0.0
    watts: float = 0.12
    """Power that the work draws, as a share of the power limit."""
    pcie_rx: float = 0.0
    pcie_tx: float = 0.0
    """PCIe traffic from the GPU in GB/s; `pcie_rx`: to it."""
    mem_utilization: float = 0.0


UNUSED = Load(watts=0.055)
"""The load of a GPU that no process holds."""


@dataclass
class Machine:
    """The state that a start changes."""

    spec: Spec
    config: Config
    log: Log
    rng: random.Random
    box: Box
    loads: list[Load]
    phase: str = "args"
    titled: bool = False
    """True once the ranks have set their process titles."""
    spawned: bool = False
    tokens: int = 0
    before: int = 0
    max_running: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    look: Callable[[], dict[int, int]] | None = None
    """Reads the bytes that others hold of each GPU now; None: what they held at first they hold for good."""

    def refresh(self) -> None:
        """Take in what others hold of the GPUs now."""
        if self.look is not None:
            held = self.look()
            self.box.foreign[:] = [held.get(gpu, 0) for gpu in self.config.gpus]

    def everyone(self) -> list[int]:
        """Return the ranks in the random order in which they log."""
        order = list(range(self.config.tp))
        self.rng.shuffle(order)
        return order

    def load(self, **kind: float) -> None:
        """Set the load of all GPUs."""
        for gpu in self.config.gpus:
            self.loads[gpu] = Load(**kind)


def machine(spec: Spec, config: Config, log: Log) -> Machine:
    """Return a server before its start."""
    foreign = [spec.foreign.get(gpu, 0) for gpu in config.gpus]
    box = Box(spec.capacity_bytes, foreign, [RankMemory() for _ in range(config.tp)])
    return Machine(spec, config, log, random.Random(spec.seed), box, [Load() for _ in range(8)])  # noqa: S311 - a seeded play, no secret


def steps(m: Machine) -> Steps:
    """Play everything from the first line to the capacity line."""
    lines = Lines(m.config.new, m.config.speculative)
    yield from _args(m)
    yield from _distributed(m, lines)
    yield from _weights(m, lines)
    if m.config.speculative and m.config.new:
        yield from draft.load(m, lines)
    yield from _pool(m, lines)
    if m.config.speculative and m.config.new:
        yield from draft.pool(m, lines)
    if m.config.prefill_graphs:
        yield from _capture(m, lines, "prefill")
    if m.config.graph_sizes:
        yield from _capture(m, lines, "decode")
    if m.config.speculative:
        yield from draft.after_graphs(m, lines)
    wanted = m.config.args["max_running_requests"] or (48 if m.config.speculative else m.max_running)
    m.max_running = min(m.tokens // 2, m.max_running, int(wanted))
    m.log.line(lines.capacity(m.tokens, m.config.args, m.max_running, m.config.context_length, m.box.free(0)), 0)
    if m.config.new:
        for rank in m.everyone():
            m.log.line(
                "Init Unified Radix Cache. Components: (<ComponentType.FULL: 0>,). Tree Core: RustUnifiedTreeCore", rank
            )
            m.log.line(
                "Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False "
                "hicache_attached=False",
                rank,
            )


def _args(m: Machine) -> Steps:
    m.phase = "args"
    yield _about(m, 1.4)
    m.log.line("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
    yield _about(m, 0.3)
    m.log.line(f"server_args={m.config.dump()}")
    yield _about(m, 0.3)
    m.log.line("Using default HuggingFace chat template with detected content format: openai")
    m.spawned = True
    m.phase = "imports"
    yield _about(m, 5.0)
    m.titled = True


def _distributed(m: Machine, lines: Lines) -> Steps:
    m.phase = "distributed"
    begins: dict[int, float] = {}
    beyond = [rank for rank, gpu in enumerate(m.config.gpus) if gpu < 0]
    if beyond:
        raise StartFailed("distributed", dict.fromkeys(beyond, _NO_DEVICE))
    m.refresh()
    for rank in m.everyone():
        m.box.ranks[rank].context = memory.CONTEXT_BYTES - (20 * MIB if m.config.custom_all_reduce else 0)
        m.log.line(lines.init_begin(), rank)
        begins[rank] = m.log.now()
        yield 0.02
    m.load(utilization=0.02, watts=0.14, pcie_rx=0.2, pcie_tx=0.2)
    yield _about(m, 1.0)
    m.log.line("sglang is using nccl==" + ("2.28.9" if m.config.new else "2.27.5"), 0)
    yield _about(m, 0.6)
    if m.config.custom_all_reduce:
        for rank in m.everyone():
            m.log.line(FORCED_CUSTOM_AR, rank)
    elif not m.config.args["disable_custom_all_reduce"]:
        for rank in m.everyone():
            m.log.line(lines.custom_ar_off(), rank)
    yield _about(m, 0.4)
    m.refresh()
    for rank in m.everyone():
        used = memory.communicator_bytes(
            m.spec.env, rank, custom_all_reduce=m.config.custom_all_reduce, ranks=m.config.tp
        )
        m.box.ranks[rank].communicators = used
        for text in lines.init_end(m.log.now() - begins[rank], used):
            m.log.line(text, rank)
        yield 0.01
    # As in the engine, each rank compares with the least of all; so the healthy ranks are the ones that raise.
    least, errors = m.box.least_free(), {}
    for rank in range(m.config.tp):
        mine = m.box.free(rank)
        if least < 0.9 * mine:
            name = "pre_model_load_memory" if m.config.new else "min_per_gpu_memory"
            errors[rank] = (
                "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
                f"{name}={gib(least)}, local_gpu_memory={gib(mine)}, local_gpu_memory * 0.9={gib(mine) * 0.9}"
            )
    if errors:
        raise StartFailed("distributed", errors)
    m.before = least


def _weights(m: Machine, lines: Lines) -> Steps:
    m.phase = "weights"
    for rank in m.everyone():
        m.log.line(f"Load weight begin. avail mem={gib(m.box.free(rank)):.2f} GB", rank)
    begin, total = m.log.now(), m.config.model.shards
    m.log.raw(lines.shards(0, total, 0.0))
    # Shards come from disk one by one, and no two take equally long.
    weights = [m.rng.uniform(0.85, 1.15) for _ in range(total)]
    # 0.5.23 loads with several threads, and spends the time it saves on prefill graphs.
    seconds = m.config.model.load_s
    scale = _about(m, seconds * 0.881 if m.config.new else seconds) / sum(weights)
    for done, weight in enumerate(weights, 1):
        m.load(utilization=0.03, watts=0.15, pcie_rx=0.152 * m.spec.pace * m.rng.uniform(0.8, 1.2), pcie_tx=0.01)
        yield weight * scale
        if done >= total // 3 and "hang_loading" in m.spec.faults:
            yield from _hang(m)
        if done >= total // 3 and "fail_loading" in m.spec.faults:
            raise StartFailed("weights", {min(3, m.config.tp - 1): _BROKEN_FILE})
        m.refresh()
        _load_shard(m, m.config.weights_bytes * done // total)
        m.log.raw(lines.shards(done, total, m.log.now() - begin))
    m.load(utilization=0.1, watts=0.2)
    yield _about(m, 1.5)
    m.timings["load_weight"] = m.log.now() - begin
    for rank in m.everyone():
        used = m.config.weights_bytes
        m.log.line(lines.weights_end(m.log.now() - begin, m.box.free(rank), used, m.config.model), rank)
        yield 0.01


def _load_shard(m: Machine, loaded: int) -> None:
    errors = {}
    for rank, held in enumerate(m.box.ranks):
        need = loaded - held.weights
        if m.box.free(rank) < need:
            errors[rank] = out_of_memory(m, rank, need)
        else:
            held.weights = loaded
    if errors:
        raise StartFailed("weights", errors)


def _pool(m: Machine, lines: Lines) -> Steps:
    m.phase = "pool"
    begin = m.log.now()
    yield _about(m, 0.5)
    if not m.config.new:
        m.log.line(f"Using KV cache dtype: {m.config.kv_dtype}", 0)
    m.refresh()
    config, after = m.config, m.box.least_free()
    cell = draft.cell_bytes(config, counted=config.new and config.speculative)
    tokens = memory.pool_tokens(gib(m.before), gib(after), config.fraction, cell)
    if tokens <= 0:
        raise StartFailed("pool", dict.fromkeys(range(config.tp), _no_memory(m, after)))
    cap = config.args["max_total_tokens"]
    if cap is not None:
        if cap > tokens:
            m.log.line(
                f"max_total_tokens={cap} is larger than the profiled value {tokens}. Use the profiled value instead.", 0
            )
        tokens = min(tokens, int(cap))
    m.tokens = tokens
    wanted = config.args["max_running_requests"]
    m.max_running = int(wanted) if wanted else memory.max_requests(tokens, config.context_length)
    for rank in m.everyone():
        size = memory.kv_bytes(tokens, cell_bytes=config.cell_bytes)
        m.box.ranks[rank].kv = size
        m.log.line(lines.kv(tokens, size, config.kv_dtype), rank)
        yield 0.01
    for rank in m.everyone():
        m.box.ranks[rank].request_table = memory.request_table_bytes(m.max_running, config.context_length)
        if m.box.free(rank) <= 0:
            raise StartFailed("pool-oom", {rank: out_of_memory(m, rank, m.box.ranks[rank].request_table)})
        m.log.line(f"Memory pool end. avail mem={gib(m.box.free(rank)):.2f} GB", rank)
        m.box.ranks[rank].workspace = int(memory.WORKSPACE_BYTES * config.model.scale)
    m.timings["kv_cache_allocation"] = m.log.now() - begin
    if config.new and tokens < config.context_length:
        m.log.line(
            f"KV pool holds {tokens} tokens, fewer than --context-length {config.context_length}. "
            "One full-length request cannot fit in the pool.",
            0,
        )
    yield _about(m, 0.3)


def _no_memory(m: Machine, after: int) -> str:
    fraction = m.config.args["mem_fraction_static"]
    if m.config.new:
        least = 1 - after / m.before
        return (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={fraction}. Raise --mem-fraction-static above {least + 0.001:.3f} "
            f"(minimum viable = 1 - available/pre = {least:.4f}). "
            "If using speculative decoding, draft weights are now counted."
        )
    return (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        f"Current value: self.server_args.mem_fraction_static={fraction}"
    )


def _capture(m: Machine, lines: Lines, what: str) -> Steps:
    m.phase = f"capture-{what}"
    decode = what == "decode"
    if decode:
        sizes, backend, seconds = m.config.graph_sizes, "full", 71.0
    else:
        sizes = list(m.config.args["cuda_graph_config"]["prefill"]["bs"])
        backend, seconds = "breakable", 60.0
    m.refresh()
    begin, start_free = m.log.now(), {rank: m.box.free(rank) for rank in range(m.config.tp)}
    for rank in m.everyone():
        m.log.line(lines.capture_begin(what, m.box.free(rank), sizes, backend=backend), rank)
    if not m.config.new:
        m.log.line(f"Capture cuda graph bs {sizes}", 0)
    hang_after = int(m.spec.faults.get("hang_capture", -1)) if decode else -1
    m.log.raw(f"\r{text_bar(0, len(sizes))}")
    # Twenty sizes take the time of `seconds`; more sizes take longer, though not in proportion.
    seconds *= m.config.model.scale**0.5 * ((0.4 + 0.6 * len(sizes) / 20) if decode else 1.0)
    step = _about(m, seconds) / len(sizes)
    for done, size in enumerate(reversed(sizes)):
        m.log.raw(lines.capture_bar(what, size, m.box.free(0), done, len(sizes), m.log.now() - begin))
        m.load(utilization=0.55, watts=0.32, pcie_rx=0.8, pcie_tx=0.8, mem_utilization=0.2)
        if done == hang_after:
            yield from _hang(m)
        yield step * m.rng.uniform(0.8, 1.2)
        cost = memory.graph_bytes if decode else memory.prefill_graph_bytes
        _grow(m, int(cost(size, first=done == 0) * m.config.model.scale), decode=decode)
        m.log.raw(lines.capture_bar(what, size, m.box.free(0), done + 1, len(sizes), m.log.now() - begin))
    m.log.raw("\n")
    if m.config.custom_all_reduce and not m.config.new:
        m.log.line(f"Registering {len(sizes) * 123} cuda graph addresses", 0)
    m.timings[what] = m.log.now() - begin
    for rank in m.everyone():
        used = start_free[rank] - m.box.free(rank)
        m.log.line(lines.capture_end(what, m.log.now() - begin, used, m.box.free(rank), sizes), rank)
    m.load(utilization=0.0, watts=0.15)


def text_bar(done: int, total: int) -> str:
    """Return the progress bar before its first size is named."""
    return f"{100 * done // total:3d}%|{'':10}| {done}/{total} [00:00<?, ?it/s]"


def _grow(m: Machine, need: int, *, decode: bool) -> None:
    errors: dict[int, str] = {}
    for rank in range(m.config.tp):
        if m.box.free(rank) < need:
            errors[rank] = out_of_memory(m, rank, need)
        elif decode:
            m.box.ranks[rank].graphs += need
        else:
            m.box.ranks[rank].prefill_graphs += need
    if errors:
        raise StartFailed("capture", errors)


def _hang(m: Machine) -> Iterator[float]:
    """Wait for ever: two ranks idle, the others spin in their collective, which draws little power."""
    for rank in range(m.config.tp):
        idle = rank in (2, 5)
        m.loads[m.config.gpus[rank]] = Load(utilization=0.0 if idle else 1.0, watts=0.12 if idle else 0.22)
    while True:
        yield 5.0


def out_of_memory(m: Machine, rank: int, tried: int) -> str:
    """Return PyTorch's out-of-memory message with the numbers of this rank at this moment."""
    mine, free = m.box.ranks[rank], m.box.free(rank)
    private = mine.graphs + mine.prefill_graphs
    reserved = min(mine.activations, 402 * MIB)
    others = (
        f"Process {m.spec.foreign_pid} has {_size(m.box.foreign[rank])} memory in use. " if m.box.foreign[rank] else ""
    )
    pools = f", with {_size(private)} allocated in private pools (e.g., CUDA Graphs)," if private else ","
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_size(tried)}. "
        f"GPU {m.config.gpus[rank]} has a total capacity of {_size(m.box.capacity)} of which {_size(free)} is free. "
        f"{others}"
        f"Including non-PyTorch memory, this process has {_size(mine.total)} memory in use. "
        f"Of the allocated memory {_size(mine.torch - reserved)} is allocated by PyTorch{pools} "
        f"and {_size(reserved)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
        "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
        "Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _size(size: int) -> str:
    """Format bytes as PyTorch's allocator does."""
    if size < MIB:
        return f"{size / 1024:.2f} KiB"
    return f"{size / MIB:.2f} MiB" if size < memory.GIB else f"{gib(size):.2f} GiB"


def _about(m: Machine, seconds: float) -> float:
    return seconds * m.rng.uniform(0.985, 1.015)
