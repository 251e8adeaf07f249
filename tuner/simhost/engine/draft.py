"""The draft model of a speculating server. The versions differ in where its phases come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.simhost.engine.memory import GIB, MIB, gib

if TYPE_CHECKING:
    from tuner.simhost.engine.config import Config
    from tuner.simhost.engine.start import Machine, Steps
    from tuner.simhost.engine.text import Lines

WEIGHTS_BYTES = 1_409_286_144
LAYERS = 1
MODEL = "DeepseekV3ForCausalLMNextN"
_GRAPHS_BYTES = {"draft": 214 * MIB, "draft extend": 148 * MIB}
_TARGET_LAYERS = 61


def cell_bytes(config: Config, *, counted: bool) -> int:
    """Return the KV bytes of one token, with `counted` those of the draft's layers too: 0.5.14 and later count them."""
    return config.cell_bytes + (LAYERS * (config.cell_bytes // _TARGET_LAYERS) if counted else 0)


def load(m: Machine, lines: Lines) -> Steps:
    """Load the draft's weights: a second "Load weight begin" in each rank."""
    for rank in m.everyone():
        m.log.line(f"Load weight begin. avail mem={gib(m.box.free(rank)):.2f} GB", rank)
    begin = m.log.now()
    yield 9.0 * m.rng.uniform(0.95, 1.05)
    for rank in m.everyone():
        m.box.ranks[rank].draft += WEIGHTS_BYTES
        m.log.line(lines.weights_end(m.log.now() - begin, m.box.free(rank), WEIGHTS_BYTES, m.config.model, MODEL), rank)
        yield 0.01


def pool(m: Machine, lines: Lines) -> Steps:
    """Allocate the draft's KV, for as many tokens as the target's."""
    size = (m.tokens + 1) * LAYERS * (m.config.cell_bytes // _TARGET_LAYERS)
    for rank in m.everyone():
        m.box.ranks[rank].draft += size
        m.log.line(lines.kv(m.tokens, size, m.config.kv_dtype), rank)
    for rank in m.everyone():
        m.log.line(f"Memory pool end. avail mem={gib(m.box.free(rank)):.2f} GB", rank)
        yield 0.01


def after_graphs(m: Machine, lines: Lines) -> Steps:
    """Play what follows the target's graphs: in 0.5.9 all of the draft, in 0.5.23 only its graphs."""
    if not m.config.new:
        for rank in m.everyone():
            m.log.line(lines.init_begin(), rank)
        yield 0.2
        for rank in m.everyone():
            for text in lines.init_end(0.02, 0):
                m.log.line(text, rank)
        yield from load(m, lines)
        yield from pool(m, lines)
    for name, size in _GRAPHS_BYTES.items():
        yield from _capture(m, name, size)


def _capture(m: Machine, name: str, size: int) -> Steps:
    new, ranks = m.config.new, m.everyone()
    shown = [0] if new else ranks
    sizes = m.config.graph_sizes
    for rank in shown:
        free = gib(m.box.free(rank))
        title = "draft decode" if name == "draft" else name
        m.log.line(
            f"Capture {title} CUDA graph begin. backend=full, num_tokens_per_req=1, bs={sizes}, avail mem={free:.2f} GB"
            if new
            else f"Capture {name} cuda graph begin. This can take up to several minutes. avail mem={free:.2f} GB",
            rank,
        )
    begin = m.log.now()
    yield 6.0 * m.rng.uniform(0.95, 1.05)
    for rank in ranks:
        m.box.ranks[rank].draft += size
    for rank in shown:
        took, free = m.log.now() - begin, gib(m.box.free(rank))
        title = "draft decode" if name == "draft" else name
        m.log.line(
            f"Capture {title} CUDA graph end. elapsed={took:.2f} s, mem usage={size / GIB:.2f} GB, "
            f"avail mem={free:.2f} GB."
            if new
            else f"Capture {name} cuda graph end. Time elapsed: {took:.2f} s. mem usage={size / GIB:.2f} GB. "
            f"avail mem={free:.2f} GB.",
            rank,
        )
