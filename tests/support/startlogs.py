"""Logs of starts, composed line by line in each version's wording, for tests of what a diagnosis makes of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.diagnosis import diagnose
from tuner.core.reading import starts_of
from tuner.core.versions import at_least
from tuner.domain.findings import Finding
from tuner.domain.starts import Start
from tuner.engines import load_engines

ENGINES = load_engines()
GIB = 1 << 30


def read(lines: Sequence[str]) -> Start:
    """Return the last start in some lines."""
    return starts_of(list(enumerate(lines, 1)), ENGINES)[-1]


def findings(lines: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings in some lines."""
    start = read(lines)
    return diagnose(start, ENGINES[start.engine])


def oom(tried: str, free: str, *, gpu: int = 0, capacity: str = "94.97 GiB", in_use: str = "94.00 GiB",
        allocated: str = "91.00 GiB", reserved: str = "200.00 MiB", private: str = "") -> str:  # fmt: skip
    """Return Torch's out-of-memory message, as one line."""
    graphs = f", with {private} allocated in private pools (e.g., CUDA Graphs)," if private else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU {gpu} has a total capacity of"
        f" {capacity} of which {free} is free. Including non-PyTorch memory, this process has {in_use} memory in"
        f" use. Of the allocated memory {allocated} is allocated by PyTorch{graphs} and {reserved} is reserved by"
        " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory"
        " Management"
    )


class SGLang:
    """A log that grows: each method adds what all ranks print in a step.

    Args:
        version: Version of SGLang whose wording is used.
        tp: Number of ranks.
        before: Free GiB before the weights, one value for all ranks or one each.
        weights: GiB of a rank's weights.
        fraction: `mem_fraction_static` in the arguments; None leaves it out.
        extra: Further arguments, as Python source.
    """

    def __init__(self, version: str = "0.5.9", *, tp: int = 1, before: float | Sequence[float] = 94.0,
                 weights: float = 72.0, fraction: float | None = 0.88, extra: str = "") -> None:  # fmt: skip
        self.version, self.tp, self.weights = version, tp, weights
        self.before = [before] * tp if isinstance(before, int | float) else list(before)
        self.lines: list[str] = []
        told = f", mem_fraction_static={fraction}" if fraction is not None else ""
        args = f"model_path='/models/a', tp_size={tp}{told}, context_length=32768{', ' + extra if extra else ''}"
        if at_least(version, "0.5.20"):
            pairs = (pair.partition("=") for pair in args.split(", "))
            self.main("server_args={" + ", ".join(f"'{name}': {value}" for name, _, value in pairs) + "}")
        else:
            self.main(f"server_args=ServerArgs({args})")

    def main(self, text: str) -> SGLang:
        """Add a line of the main process."""
        self.lines.append(f"[2026-02-26 20:00:{len(self.lines) % 60:02d}] {text}")
        return self

    def rank(self, number: int, text: str) -> SGLang:
        """Add a line of a rank; further lines of the text have no prefix."""
        tag = f" TP{number}" if self.tp > 1 or not at_least(self.version, "0.4.7") else ""
        head, *rest = text.split("\n")
        self.lines += [f"[2026-02-26 20:00:{len(self.lines) % 60:02d}{tag}] {head}", *rest]
        return self

    def each(self, text: str) -> SGLang:
        """Add the same line for every rank."""
        for number in range(self.tp):
            self.rank(number, text)
        return self

    def communicators(self, used: float = 0.4) -> SGLang:
        """Add the distributed initialisation."""
        words = "parallel" if at_least(self.version, "0.5.21") else "torch distributed"
        self.each(f"Init {words} begin.")
        if at_least(self.version, "0.5.21"):
            return self.each("Init parallel ends. elapsed=2.00 s")
        elapsed = "elapsed=2.00 s, " if at_least(self.version, "0.5.9") else ""
        return self.each(f"Init {words} ends. {elapsed}mem usage={used:.2f} GB")

    def load(self, *, draft: float | None = None) -> SGLang:
        """Add the loading of weights; with `draft` also that of a draft model of that many GiB."""
        for number, before in enumerate(self.before):
            self._load(number, before, self.weights, "LlamaForCausalLM")
        if draft is not None:
            for number, before in enumerate(self.before):
                self._load(number, before - self.weights, draft, "LlamaForCausalLMEagle")
        return self

    def _load(self, number: int, before: float, size: float, name: str) -> None:
        self.rank(number, f"Load weight begin. avail mem={before:.2f} GB")
        elapsed = "elapsed=5.00 s, " if at_least(self.version, "0.5.9") else ""
        dtype = "" if at_least(self.version, "0.5.10") else " dtype=torch.bfloat16,"
        self.rank(
            number,
            f"Load weight end. {elapsed}type={name},{dtype} avail mem={before - size:.2f} GB, mem usage={size:.2f} GB.",
        )

    def pool(self, tokens: int, size: float, after: float) -> SGLang:
        """Add the allocation of the KV pool."""
        dtype = "dtype: torch.bfloat16, " if at_least(self.version, "0.5.13") else ""
        self.each(
            f"KV Cache is allocated. {dtype}#tokens: {tokens}, K size: {size / 2:.2f} GB, V size: {size / 2:.2f} GB"
        )
        return self.each(f"Memory pool end. avail mem={after:.2f} GB")

    def capture(self, after: float | None = None, used: float = 1.0, free: float = 8.0) -> SGLang:
        """Add the graph capture; without `after` only its beginning."""
        if at_least(self.version, "0.5.14"):
            head = "Capture target decode CUDA graph"
            self.each(f"{head} begin. backend=full, num_tokens_per_req=1, bs=[1, 2], avail mem={free:.2f} GB")
            if after is not None:
                self.each(f"{head} end. elapsed=4.00 s, mem usage={used:.2f} GB, avail mem={after:.2f} GB.")
            return self
        self.each(f"Capture cuda graph begin. This can take up to several minutes. avail mem={free:.2f} GB")
        if after is not None:
            self.each(
                f"Capture cuda graph end. Time elapsed: 4.00 s. mem usage={used:.2f} GB. avail mem={after:.2f} GB."
            )
        return self

    def ready(self, tokens: int, available: float = 6.0) -> SGLang:
        """Add capacity, HTTP and warm-up."""
        self.rank(
            0, f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384,"
            f" max_running_requests=2048, context_len=32768, available_gpu_mem={available:.2f} GB",
        )  # fmt: skip
        self.main("INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)")
        return self.main("The server is fired up and ready to roll!")

    def prefill(self, tokens: int) -> SGLang:
        """Add a prefill batch."""
        dot = "," if at_least(self.version, "0.5.4") else "."
        return self.rank(
            0,
            f"Prefill batch{dot} #new-seq: 1, #new-token: {tokens}, #cached-token: 0, token usage: 0.01,"
            " #running-req: 1, #queue-req: 0",
        )

    def decode(self, rate: float, running: int = 8, usage: float = 0.4) -> SGLang:
        """Add a decode batch."""
        dot = "," if at_least(self.version, "0.5.4") else "."
        return self.rank(
            0, f"Decode batch{dot} #running-req: {running}, #token: 4096, token usage: {usage:.2f}, cuda graph: True,"
            f" gen throughput (token/s): {rate:.2f}, #queue-req: 0",
        )  # fmt: skip

    def fail(self, message: str, frames: Sequence[str], ranks: Sequence[int] | None = None) -> SGLang:
        """Add the same exception on some ranks (None: all), and the main process's line about it."""
        for number in range(self.tp) if ranks is None else ranks:
            stack = ""
            for path, _, function in (frame.partition(":") for frame in frames):
                stack += f'\n  File "/sgl/python/sglang/srt/{path}", line 1, in {function}\n    call()'
            self.rank(number, f"Scheduler hit an exception: Traceback (most recent call last):{stack}\n{message}\n")
        return self.main("Received sigquit from a child process. It usually means the child failed.")


POOL_FRAMES = ("managers/scheduler.py:run_scheduler_process", "model_executor/model_runner.py:init_memory_pool")
LOAD_FRAMES = ("managers/scheduler.py:run_scheduler_process", "model_executor/model_runner.py:load_model")
CAPTURE_FRAMES = (
    "managers/scheduler.py:run_scheduler_process",
    "model_executor/cuda_graph_runner.py:capture_one_batch_size",
)
PREFILL_FRAMES = ("managers/scheduler.py:event_loop_overlap", "managers/scheduler.py:run_batch",
                  "model_executor/model_runner.py:forward_extend", "models/llama.py:forward")  # fmt: skip
DECODE_FRAMES = ("managers/scheduler.py:event_loop_overlap", "managers/scheduler.py:run_batch",
                 "model_executor/model_runner.py:forward_decode", "models/llama.py:forward")  # fmt: skip
