"""The log lines of SGLang 0.5.9 and 0.5.23, verbatim except for the numbers."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.simhost.engine.memory import gib
from tuner.simhost.engine.models import Model

CUSTOM_AR_OFF = (
    "is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly."
)
FORCED_CUSTOM_AR = (
    "SGLANG_FORCE_CUSTOM_AR_PCIE=1: Enabling custom allreduce on PCIe topology (8 GPUs). "
    "This uses IPC shared memory for low-latency small-tensor allreduce."
)
READY = "The server is fired up and ready to roll!"
SIGQUIT_LAUNCH = "Received sigquit from a child process. It usually means the child failed."
SIGQUIT_SERVING = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
SIGTERM = "SIGTERM received. signum=None frame=None. Draining requests and shutting down..."
SETTLE = "Sleeping 5 seconds before crash diagnostics to let GPU activity settle."
WAIT_COREDUMPS = "Waiting 60.0 seconds for CUDA coredumps before exiting."
NO_COREDUMP = (
    "CUDA user-triggered coredump is not enabled. Set CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1 before CUDA initialization."
)


@dataclass(frozen=True)
class Lines:
    """The lines that differ between the two versions. Sizes are bytes, printed as GiB under the name GB."""

    new: bool
    speculative: bool = False

    def _target(self, what: str) -> str:
        return "verify" if what == "decode" and self.speculative else what

    def init_begin(self) -> str:
        """Return the line that begins a rank's distributed set-up."""
        return "Init parallel begin." if self.new else "Init torch distributed begin."

    def init_end(self, elapsed_s: float, used: int) -> list[str]:
        """Return the lines that end it. 0.5.23 measures around an almost empty region, so its number is meaningless."""
        if self.new:
            return [f"Init parallel ends. elapsed={elapsed_s:.2f} s", "Memory baseline taken. mem usage=0.00 GB"]
        return [f"Init torch distributed ends. elapsed={elapsed_s:.2f} s, mem usage={gib(used):.2f} GB"]

    def custom_ar_off(self) -> str:
        """Return the line that says why custom all-reduce is off, so that NCCL does small all-reduces."""
        return ("CustomAllReduceV2 " if self.new else "Custom allreduce ") + CUSTOM_AR_OFF

    def weights_end(self, elapsed_s: float, free: int, used: int, model: Model, architecture: str = "") -> str:
        """Return the line of a rank whose weights are loaded; `architecture` is that of a draft model."""
        kind = model.quantisation if self.new and model.quantisation else "dtype=torch.bfloat16, "
        return (
            f"Load weight end. elapsed={elapsed_s:.2f} s, type={architecture or model.architecture}, {kind}"
            f"avail mem={gib(free):.2f} GB, mem usage={gib(used):.2f} GB."
        )

    def shards(self, done: int, total: int, elapsed_s: float) -> str:
        """Return the loader's progress bar, with the line ends of the real one."""
        rate = elapsed_s / done if done else 0.0
        left = clock(rate * (total - done)) if done else "?"
        speed = pace(done, elapsed_s)
        body = f"{100 * done // total:3d}% Completed | {done}/{total} [{clock(elapsed_s)}<{left}, {speed}]"
        if self.new:
            return f"\rMulti-thread loading shards: {body}" + ("\n" if done == total else "")
        head = "\n" if done == 0 else ""
        return f"{head}Loading safetensors checkpoint shards: {body}\n" + ("\n" if done == total else "")

    def kv(self, tokens: int, size: int, dtype: str) -> str:
        """Return the line about a rank's KV pool (MLA: one buffer)."""
        dtype = f"dtype: {dtype}, " if self.new else ""
        return f"KV Cache is allocated. {dtype}#tokens: {tokens}, KV size: {gib(size):.2f} GB"

    def capture_begin(self, what: str, free: int, sizes: list[int], *, backend: str = "full") -> str:
        """Return the line that begins a rank's graph capture. `what`: decode or prefill (0.5.23 only)."""
        if not self.new:
            return f"Capture cuda graph begin. This can take up to several minutes. avail mem={gib(free):.2f} GB"
        per_request = 4 if self.speculative else 1
        shape = f"num_tokens={sizes}" if what == "prefill" else f"num_tokens_per_req={per_request}"
        name = self._target(what)
        return f"Capture target {name} CUDA graph begin. backend={backend}, {shape}, avail mem={gib(free):.2f} GB"

    def capture_end(self, what: str, elapsed_s: float, used: int, free: int, sizes: list[int]) -> str:
        """Return the line that ends a rank's graph capture."""
        if not self.new:
            return (
                f"Capture cuda graph end. Time elapsed: {elapsed_s:.2f} s. mem usage={gib(used):.2f} GB. "
                f"avail mem={gib(free):.2f} GB."
            )
        shape = f"bs={sizes}, " if what == "decode" else ""
        return (
            f"Capture target {self._target(what)} CUDA graph end. {shape}elapsed={elapsed_s:.2f} s, "
            f"mem usage={gib(used):.2f} GB, avail mem={gib(free):.2f} GB."
        )

    def capture_bar(self, what: str, size: int, free: int, done: int, total: int, elapsed_s: float) -> str:
        """Return the capture's progress bar, as drawn before and after each size."""
        name = f"bs={size}" if what == "decode" else f"num_tokens={size}"
        title = "Capturing batches" if what == "decode" else "Capturing prefill shape"
        return f"\r{title} ({name} avail_mem={gib(free):.2f} GB): {bar(done, total, elapsed_s)}"

    def capacity(self, tokens: int, args: dict[str, object], running: int, context: int, free: int) -> str:
        """Return the line that TP0 prints when everything is allocated."""
        return (
            f"max_total_num_tokens={tokens}, chunked_prefill_size={args['chunked_prefill_size']}, "
            f"max_prefill_tokens={args['max_prefill_tokens']}, max_running_requests={running}, "
            f"context_len={context}, available_gpu_mem={gib(free):.2f} GB"
        )

    def prefill(self, *, seqs: int, new: int, cached: int, usage: float, running: int, queued: int, pending: int,
                graph: bool, rate: float) -> str:  # fmt: skip
        """Return the line of a prefill batch."""
        head = (
            f"Prefill batch, #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, token usage: {usage:.2f}, "
            f"#running-req: {running}, #queue-req: {queued}, "
        )
        if self.new:
            return head + f"#pending-token: {pending}, cuda graph: {graph}, input throughput (token/s): {rate:.2f}"
        return head + f"input throughput (token/s): {rate:.2f}, cuda graph: {graph}"

    def decode(self, *, running: int, tokens: int, usage: float, queued: int, graph: bool, rate: float,
               accept: float | None) -> str:  # fmt: skip
        """Return the line printed after every forty decode steps."""
        steps = 3 if not self.new else 4
        spec = "" if accept is None else f"accept len: {accept:.2f}, accept rate: {accept / steps:.2f}, "
        return (
            f"Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, {spec}"
            f"cuda graph: {graph}, gen throughput (token/s): {rate:.2f}, #queue-req: {queued}"
        )

    def retract(self, count: int, gained: int, before: float, after: float) -> str:
        """Return the line about requests that go back to the queue because the pool is full."""
        return (
            f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, #new_tokens_gained: {gained}, "
            f"#new_token_ratio: {before:.4f} -> {after:.4f}"
        )

    def model_info_path(self) -> str:
        """Return the path that the server's own warm-up requests."""
        return "/model_info"


def clock(seconds: float) -> str:
    """Format a time as tqdm does: MM:SS, or H:MM:SS."""
    whole = int(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60:02d}:{whole % 60:02d}"
    )


def pace(done: int, elapsed_s: float) -> str:
    """Format a rate as tqdm does: it/s or s/it, whichever is at least 1."""
    if not done or elapsed_s <= 0:
        return "?it/s"
    rate = done / elapsed_s
    return f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"


def bar(done: int, total: int, elapsed_s: float) -> str:
    """Return tqdm's progress bar of ten cells."""
    eighths = round(80 * done / total)
    full, part = divmod(eighths, 8)
    cells = "█" * full + (" ▏▎▍▌▋▊▉"[part] if part else "")
    left = clock(elapsed_s / done * (total - done)) if done else "?"
    return f"{100 * done // total:3d}%|{cells:<10}| {done}/{total} [{clock(elapsed_s)}<{left}, {pace(done, elapsed_s)}]"


def access(port: int, method: str, path: str, status: str) -> str:
    """Return uvicorn's access line."""
    return f'INFO:     127.0.0.1:{port} - "{method} {path} HTTP/1.1" {status}'
