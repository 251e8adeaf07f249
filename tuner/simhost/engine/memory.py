"""What each rank of the simulated server holds on its GPU, in bytes, by the formula that SGLang 0.4.6 to 0.5.23 use.

Everything the server prints or reports about memory comes from here, and the simulated driver counts the same
bytes, so what the log says and what NVML says agree to the byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MIB = 1 << 20
GIB = 1 << 30

MLA_CELL_BYTES = 61 * (512 + 64) * 2
"""KV of one token on each rank: 61 layers of latent (512) and rope (64) in bfloat16. Not divided by TP."""
WEIGHTS_BYTES = 77_663_158_272
"""72.33 GiB: 1T parameters in INT4 over eight ranks."""
CONTEXT_BYTES = 550 * MIB
"""CUDA context and modules of one process."""
WORKSPACE_BYTES = 102 * MIB
"""Attention workspaces, made between the pool and the graphs."""
_COMMUNICATOR_BASE_BYTES = 240 * MIB
_LL_BYTES = MIB // 2
_LL128_BYTES = 4_915_200
_CUSTOM_AR_BYTES = 32 * MIB


def pool_tokens(before: float, after: float, fraction: float, cell_bytes: int, page: int = 1) -> int:
    """Tokens that fit the KV pool; zero or less means that the start fails.

    Args:
        before: Free GiB before the weights, smallest over the ranks.
        after: Free GiB when the pool is sized, smallest over the ranks.
        fraction: mem_fraction_static.
        cell_bytes: KV bytes of one token on one GPU.
        page: Tokens are handed out in pages of so many.
    """
    rest = after - before * (1 - fraction)
    return math.floor(rest * GIB / cell_bytes) // page * page


def communicator_bytes(env: dict[str, str], rank: int, *, custom_all_reduce: bool = False) -> int:
    """Memory of the NCCL communicators of one rank: one ring, its buffers by channel, rounded as NCCL rounds."""
    channels = int(env.get("NCCL_MAX_NCHANNELS", "16"))
    buffer = int(env.get("NCCL_BUFFSIZE", str(4 * MIB)))
    per_channel = _round_up(_LL_BYTES + _LL128_BYTES + buffer, 2 * MIB)
    total = _COMMUNICATOR_BASE_BYTES + channels * per_channel
    if custom_all_reduce:
        total += _CUSTOM_AR_BYTES
    # The last rank closes the ring and keeps one set of buffers fewer: seen as 0.05 GiB on a real box.
    return total - 48 * MIB if rank == 7 else total


def graph_sizes(max_bs: int) -> list[int]:
    """Batch sizes that decode graphs are captured for, without speculation (0.5.3 and later)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4096, 32)]
    return [size for size in sizes if size <= max_bs]


def prefill_graph_sizes(max_tokens: int) -> list[int]:
    """Token counts that prefill graphs are captured for (0.5.14 and later)."""
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
    """Memory of the decode graph of one batch size; the first and largest also brings the shared pool."""
    if first:
        return _even_mib(616 + 2.75 * size)
    return _even_mib(66 + 0.4 * size)


def prefill_graph_bytes(tokens: int, *, first: bool) -> int:
    """Memory of the prefill graph of one token count."""
    return _even_mib(0.11 * tokens) if first else _even_mib(6 + 0.003 * tokens)


def activation_bytes(new_tokens: int, prefix_tokens: int) -> int:
    """Peak memory of one prefill chunk: hidden states of the new tokens, and the prefix unpacked for MLA."""
    return _even_mib(new_tokens * 0.145 + min(prefix_tokens, 131_072) * 0.017)


def gib(size: int) -> float:
    """Bytes as GiB, which the engine prints as "GB"."""
    return size / GIB


@dataclass
class RankMemory:
    """What one rank holds on its GPU, by purpose, in bytes."""

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
        """All bytes of this rank, as NVML would report for its process."""
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
        """The part that goes through PyTorch's allocator."""
        return self.total - self.context - self.communicators


@dataclass
class Box:
    """The ranks on their GPUs, and what others leave of these."""

    capacity: int
    """CUDA's total of one GPU, that is without what the driver keeps."""
    foreign: list[int]
    """Bytes of others by GPU."""
    ranks: list[RankMemory] = field(default_factory=list)

    def free(self, rank: int) -> int:
        """Bytes cudaMemGetInfo would report as free to this rank."""
        return self.capacity - self.foreign[rank] - self.ranks[rank].total

    def least_free(self) -> int:
        """The minimum over the ranks, which the engine sizes its pool with."""
        return min(self.free(rank) for rank in range(len(self.ranks)))


def kv_bytes(tokens: int, page: int = 1, cell_bytes: int = MLA_CELL_BYTES) -> int:
    """Bytes of the KV buffers: one page more than the usable tokens."""
    return (tokens + page) * cell_bytes


def request_table_bytes(requests: int, context_length: int) -> int:
    """The req_to_token table, int32."""
    return requests * (context_length + 4) * 4


def max_requests(tokens: int, context_length: int) -> int:
    """Size of the request table when the user did not choose one."""
    return min(max(int(tokens / context_length * 512), 2048), 4096)


def _round_up(value: int, step: int) -> int:
    return (value + step - 1) // step * step


def _even_mib(mib: float) -> int:
    """Torch's allocator asks the driver in blocks of 2 MiB."""
    return max(1, round(mib / 2)) * 2 * MIB
