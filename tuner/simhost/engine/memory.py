"""The GPU memory of each rank of the simulated server, in bytes, by the formulas of SGLang 0.4.6 to 0.5.23.

Everything that the server prints or reports about memory is computed here, and the simulated driver counts the same
bytes, so that log and NVML agree exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20
GIB = 1 << 30

MLA_CELL_BYTES = 61 * (512 + 64) * 2
"""KV bytes of one token on each rank: 61 layers of latent (512) and rope (64) in bfloat16; not divided by TP."""
WEIGHTS_BYTES = 77_663_158_272
"""Bytes of a rank's weights (72.33 GiB): 1T parameters in INT4 over eight ranks."""
CONTEXT_BYTES = 550 * MIB
"""Bytes of the CUDA context and modules of one process."""
WORKSPACE_BYTES = 102 * MIB
"""Bytes of attention workspaces, which are made between the pool and the graphs."""
_COMMUNICATOR_BASE_BYTES = 240 * MIB
_LL_BYTES = MIB // 2
_LL128_BYTES = 4_915_200
_CUSTOM_AR_BYTES = 32 * MIB


def pool_tokens(before: float, after: float, fraction: float, cell_bytes: int, page: int = 1) -> int:
    """Return the tokens that fit the KV pool; zero or less means that the start fails.

    Args:
        before: Free GiB before the weights, least over the ranks.
        after: Free GiB when the pool is sized, least over the ranks.
        fraction: mem_fraction_static.
        cell_bytes: KV bytes of one token on one GPU.
        page: Tokens per page.
    """
    rest = after - before * (1 - fraction)
    return math.floor(rest * GIB / cell_bytes) // page * page


def channels(env: Mapping[str, str]) -> int:
    """Return the number of NCCL channels: the least of all limits, but as many as are asked for at least."""
    most = min(number(env, name, 16) for name in ("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"))
    least = max(number(env, name, 1) for name in ("NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"))
    return min(64, max(most, least, 1))


def number(env: Mapping[str, str], name: str, default: int) -> int:
    """Return an integer variable, or the default where it is none, as NCCL does."""
    text = env.get(name, "").strip()
    return int(text) if text.isdigit() else default


def communicator_bytes(env: Mapping[str, str], rank: int, *, custom_all_reduce: bool = False, ranks: int = 8) -> int:
    """Return the bytes of one rank's NCCL communicators: one ring, buffers per channel, rounded as NCCL does."""
    if ranks == 1:
        return 0
    buffer = number(env, "NCCL_BUFFSIZE", 4 * MIB)
    per_channel = _round_up(_LL_BYTES + _LL128_BYTES + buffer, 2 * MIB)
    total = _COMMUNICATOR_BASE_BYTES + channels(env) * per_channel
    if custom_all_reduce:
        total += _CUSTOM_AR_BYTES
    # The last rank closes the ring and has one set of buffers less: measured as 0.05 GiB on a real host.
    return total - 48 * MIB if rank == 7 else total


def graph_sizes(max_bs: int) -> list[int]:
    """Return the batch sizes that have a decode graph without speculation (0.5.3 and later)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4096, 32)]
    return [size for size in sizes if size <= max_bs]


def prefill_graph_sizes(max_tokens: int) -> list[int]:
    """Return the token counts that have a prefill graph (0.5.14 and later)."""
    sizes = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, 8193, 512),
    ]
    return [size for size in sizes if size <= max_tokens]


def graph_bytes(size: int, *, first: bool) -> int:
    """Return the bytes of a decode graph; that of the first and largest batch size includes the shared pool."""
    if first:
        return _even_mib(616 + 2.75 * size)
    return _even_mib(66 + 0.4 * size)


def prefill_graph_bytes(tokens: int, *, first: bool) -> int:
    """Return the bytes of a prefill graph."""
    return _even_mib(0.11 * tokens) if first else _even_mib(6 + 0.003 * tokens)


def activation_bytes(new_tokens: int, prefix_tokens: int) -> int:
    """Return the peak bytes of a prefill chunk: hidden states of new tokens, and the prefix unpacked for MLA."""
    return _even_mib(new_tokens * 0.145 + min(prefix_tokens, 131_072) * 0.017)


def gib(size: int) -> float:
    """Return bytes as GiB, which the engine prints as "GB"."""
    return size / GIB


@dataclass
class RankMemory:
    """Memory of one rank on its GPU, in bytes by purpose."""

    context: int = 0
    communicators: int = 0
    weights: int = 0
    kv: int = 0
    request_table: int = 0
    workspace: int = 0
    prefill_graphs: int = 0
    graphs: int = 0
    activations: int = 0
    draft: int = 0

    @property
    def total(self) -> int:
        """Return all bytes of the rank, as NVML reports them for its process."""
        return (
            self.context
            + self.communicators
            + self.weights
            + self.kv
            + self.request_table
            + self.workspace
            + self.prefill_graphs
            + self.graphs
            + self.activations
            + self.draft
        )

    @property
    def torch(self) -> int:
        """Return the bytes that PyTorch's allocator holds."""
        return self.total - self.context - self.communicators


@dataclass
class Box:
    """The ranks on their GPUs, and foreign memory there."""

    capacity: int
    """Bytes that CUDA reports as one GPU's total, that is without what the driver reserves."""
    foreign: list[int]
    """Bytes of foreign processes, by GPU."""
    ranks: list[RankMemory] = field(default_factory=list)

    def free(self, rank: int) -> int:
        """Return the bytes that cudaMemGetInfo reports as free to this rank."""
        return self.capacity - self.foreign[rank] - self.ranks[rank].total

    def least_free(self) -> int:
        """Return the least free bytes of any rank, by which the engine sizes its pool."""
        return min(self.free(rank) for rank in range(len(self.ranks)))


def kv_bytes(tokens: int, page: int = 1, cell_bytes: int = MLA_CELL_BYTES) -> int:
    """Return the bytes of the KV buffers: one page more than the usable tokens."""
    return (tokens + page) * cell_bytes


def request_table_bytes(requests: int, context_length: int) -> int:
    """Return the bytes of the req_to_token table, int32."""
    return requests * (context_length + 4) * 4


def max_requests(tokens: int, context_length: int) -> int:
    """Return the size of the request table where the user did not set one."""
    return min(max(int(tokens / context_length * 512), 2048), 4096)


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


def _even_mib(mib: float) -> int:
    """Round to blocks of 2 MiB, which Torch's allocator requests from the driver."""
    return max(1, round(mib / 2)) * 2 * MIB
