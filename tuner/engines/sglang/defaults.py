"""Values that SGLang chooses by itself, by version and GPU memory: fraction, prefill chunk and CUDA graph sizes.

`gpu_mib` is `memory.total` of `nvidia-smi`, the smallest of all GPUs of the host. Source: `server_args.py` (0.4.6,
0.4.9, 0.5.3, 0.5.9, 0.5.12, 0.5.14, 0.5.16) and `arg_groups/memory_hook.py` (0.5.23).
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from tuner.core.knobs import chosen
from tuner.core.versions import since
from tuner.engines.knobs import load_knobs
from tuner.units import MIB

CARDS_MIB = (
    15_360, 16_384, 23_028, 23_034, 24_564, 32_607, 32_768, 40_960, 46_068, 49_140, 81_559, 81_920, 95_830, 97_871,
    97_887, 143_771, 183_359, 196_592,
)  # fmt: skip
"""`memory.total` in MiB of GPUs that serve LLMs: T4, V100, A10, L4, 4090, 5090, A100, L40S, A6000, H100, H20, RTX PRO
6000, H200, B200, MI300X. Driver and CUDA context take a few hundred MiB of it before any line is printed."""

_KNOBS = Path(__file__).with_name("knobs.toml")
_CONTEXT_MIB = (100, 2_600)
"""Range of the memory that a rank's CUDA context and communicators take, MiB; the upper end is rarely exceeded."""


class AutoInputs(Struct, frozen=True, kw_only=True):
    """The values from which SGLang computes the automatic fraction."""

    gpu_mib: float
    """`memory.total` of the smallest GPU."""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_attention: bool = False
    chunk: int = 8192
    """`chunked_prefill_size`, tokens; 0 or less without chunks."""
    max_prefill_tokens: int = 16384
    graph_bs: int = 0
    """Largest batch size of the decode graphs; 0 if they are off."""
    prefill_sizes: int = 0
    """Number of prefill or piecewise graphs; 0 if they are off."""
    mla: bool = False
    """Whether attention is latent (MLA)."""
    speculative: str | None = None


def auto_fraction(version: str | None, inputs: AutoInputs) -> float:
    """Return the fraction that SGLang uses if none is given, before any factor for multimodal LLMs."""
    gpu, parallel = inputs.gpu_mib, inputs.tp * inputs.pp
    if not since(version, "0.4.7"):
        if gpu <= 81_920:
            steps = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87))
            return next((fraction for tp, fraction in steps if inputs.tp >= tp), 0.88)
        return (gpu - 13 * 1024) / gpu
    if not since(version, "0.5.3"):
        if gpu < 35 * 1024:
            reserved = (2.8 + parallel / 10) * 1024
        elif gpu < 160 * 1024:
            reserved = ((9.5 if gpu < 90 * 1024 else 12) + parallel / 2) * 1024
        else:
            reserved = 32 * 1024
        if inputs.speculative is not None:
            reserved += 6 * 1024 if inputs.speculative == "STANDALONE" and since(version, "0.5.2") else 2 * 1024
        if inputs.dp_attention:
            reserved += 4 * 1024
        return round((gpu - reserved) / gpu, 3)
    tokens = inputs.chunk if inputs.chunk > 0 else inputs.max_prefill_tokens
    reserved = 512 + 1.5 * max(tokens, 2048) + 2 * inputs.graph_bs + parallel / 8 * 1024
    if inputs.dp_attention:
        reserved += inputs.graph_bs * inputs.dp * (4.5 if inputs.graph_bs > 300 else 3)
    if inputs.prefill_sizes > 0:
        heavy = inputs.mla and since(version, "0.5.10")
        reserved += 1.5 * 1024 if heavy else 8 * inputs.prefill_sizes
    if gpu > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if inputs.speculative is not None and not since(version, "0.5.14"):
        if inputs.speculative == "STANDALONE":
            reserved += 6 * 1024
        elif inputs.speculative != "NGRAM":
            reserved += 4 * 1024 if since(version, "0.5.10") else 2 * 1024
    return round((gpu - reserved) / gpu, 3)


def auto_chunk(version: str | None, gpu_mib: float) -> int:
    """Return the tokens of a prefill chunk that SGLang uses if none are given, by the catalogue of knobs."""
    spelling = load_knobs(_KNOBS).spelling("chunked_prefill_size", version)
    tokens = None if spelling is None else chosen(spelling, int(gpu_mib * MIB))
    assert isinstance(tokens, int), "every version has a default by memory"
    return tokens


def auto_graph_bs(version: str | None, gpu_mib: float, tp: int, max_running_requests: int | None = None) -> int:
    """Return the largest batch size of a decode graph that SGLang uses if none is given."""
    wide = tp >= 4
    if not since(version, "0.4.7"):
        if gpu_mib < 25_000:
            return 80 if wide else 8
        return 256 if gpu_mib > 81_920 else 160
    if not since(version, "0.5.3"):
        if gpu_mib < 35 * 1024:
            return 80 if wide else 8
        return 512 if gpu_mib > 160_000 else 256 if gpu_mib > 90 * 1024 else 160
    if gpu_mib < 20 * 1024:
        largest = 8
    elif gpu_mib < 35 * 1024:
        newest = since(version, "0.5.21")
        largest = (160 if newest else 80) if wide else (48 if newest else 24)
    elif gpu_mib < 60 * 1024:
        largest = 160 if wide else 32
    elif gpu_mib < 160 * 1024:
        largest = 512 if wide else 256
    else:
        largest = 512
    if max_running_requests is not None and max_running_requests > 0 and since(version, "0.5.21"):
        largest = min(largest, max_running_requests)
    return largest


def graph_sizes(version: str | None, largest: int, *, speculative: bool = False, padding: bool = True) -> list[int]:
    """Return the batch sizes of the decode graphs that SGLang captures up to `largest`."""
    if largest <= 0:
        return []
    if not since(version, "0.5.3"):
        return _old_graph_sizes(largest, speculative=speculative, padding=padding)
    if not padding:
        return list(range(1, largest + 1))
    if speculative:
        steps = ((1, 9, 1), (10, 33, 2), (40, 65, 4), (72, 257, 8), (272, largest + 1, 16))
    else:
        steps = ((1, 3, 1), (4, 13, 4), (16, 257, 8), (272, 512, 16), (512, largest + 1, 32))
    sizes = [size for first, end, step in steps for size in range(first, end, step) if size <= largest]
    return sizes if largest in sizes or not since(version, "0.5.4") else [*sizes, largest]


def _old_graph_sizes(largest: int, *, speculative: bool, padding: bool) -> list[int]:
    if speculative:
        steps: tuple[tuple[int, int, int], ...] = ((1, 9, 1), (10, 33, 2), (40, 64, 8), (80, 161, 16))
    elif not padding:
        steps = ((1, 33, 1), (48, 161, 16))
    else:
        steps = ((1, 3, 1), (4, 9, 4), (16, 161, 8))
    base = [size for first, end, step in steps for size in range(first, end, step)]
    sizes = [size for size in base if size <= largest]
    sizes += range(168, min(largest, 256) + 1, 8)
    sizes += range(272, largest + 1, 16)
    return sorted({*sizes, largest} if sizes else {largest})


def prefill_sizes(largest: int) -> list[int]:
    """Return the token counts of the prefill (piecewise) graphs up to `largest`, for 0.5.4 and later."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, largest + 1, 512))
    return [size for first, end, step in steps for size in range(first, end, step) if size <= largest]


def card_of(free_mib: float) -> tuple[float, bool]:
    """Infer a GPU's `memory.total` from what was free beside CUDA context and communicators.

    Returns:
        MiB, and whether it is that of a known GPU. Otherwise the MiB are `free_mib` and 600 for the context.
    """
    least, most = _CONTEXT_MIB
    known = [card for card in CARDS_MIB if free_mib + least <= card <= free_mib + most]
    return (float(known[0]), True) if known else (free_mib + 600, False)
