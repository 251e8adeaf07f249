"""The LLMs that exist on the simulated host."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.simhost.engine import memory


@dataclass(frozen=True)
class Model:
    """What the size and the log of a server depend on."""

    path: str
    architecture: str
    kind: str
    """`model_type` of its configuration."""
    quantisation: str
    """What 0.5.23 prints of it in the line about loaded weights."""
    weights_bytes: int
    """Bytes of the weights on all ranks together."""
    cell_bytes: int
    """KV bytes of one token in bfloat16, on all ranks together."""
    split: bool
    """Whether ranks share the KV of a token. MLA's latent cannot be split: each rank holds all of it."""
    context: int
    """Context length in tokens, from the LLM's own configuration."""
    shards: int
    """Number of weight files."""
    load_s: float
    """Seconds that loading takes in 0.5.9; 0.5.23 loads with several threads."""
    scale: float = 1.0
    """Size of graphs, activations and workspaces relative to the large LLM."""


KIMI = Model(
    "/models/kimi-k2.5-int4", "KimiK25ForConditionalGeneration", "kimi_k25", "quant=compressed-tensors, bits=4, ",
    memory.WEIGHTS_BYTES * 8, memory.MLA_CELL_BYTES, split=False, context=262_144, shards=64, load_s=505.0,
)  # fmt: skip
SMALL = Model(
    "/models/qwen3-0.6b", "Qwen3ForCausalLM", "qwen3", "", 1_192_135_680, 2 * 28 * 8 * 128 * 2, split=True,
    context=40_960, shards=1, load_s=6.0, scale=0.1,
)  # fmt: skip
MODELS = {model.path: model for model in (KIMI, SMALL)}
