"""How fast the simulated server decodes and reads prompts, by its knobs.

A decode step is computation and 122 all-reduces of a few KiB, whose latency counts; a prefill chunk is computation and
all-reduces of many MiB, whose bandwidth counts. So a knob can help one and hurt the other. All factors are 1 for what
the scenarios' server has: 16 channels, NCCL for every all-reduce, KV in bfloat16, Triton for attention. They are
plausible, not measured.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.simhost.engine import memory
from tuner.simhost.engine.config import Config
from tuner.simhost.engine.memory import MIB

_DECODE_SHARE = 0.37
"""Share of a decode step of one short request that is all-reduce."""
_PREFILL_SHARE = 0.45
_PROTOCOLS = {"LL": (0.90, 1.6), "LL128": (0.97, 1.05), "SIMPLE": (1.18, 0.98)}
"""Factors on all-reduce time in decode and prefill."""
EAGER = 2.4
"""Factor of a step without CUDA graph."""


@dataclass(frozen=True)
class Speed:
    """Factors on the seconds of the parts of a decode step, and of a prefill."""

    step: float = 1.0
    per_request: float = 1.0
    per_token: float = 1.0
    prefill: float = 1.0
    phase: float | None = None
    """Phase of the slow drift, as temperatures and neighbours bring it; None: no drift."""

    def drift(self, at: float) -> float:
        """Return the factor of the drift at a time in seconds."""
        return 1.0 if self.phase is None else 1.0 + 0.003 * math.sin(at / 15.4 + self.phase)


def speed(config: Config, seed: int | None = None) -> Speed:
    """Return the speed of a server. With a seed it differs a little from start to start, as real ones do."""
    env = config.environment
    decode, prefill = _nccl(env)
    per_request = per_token = 1.0
    if config.tp == 1:
        decode = prefill = 0.0
    elif config.new and env.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE") == "1":
        decode = 0.30
    elif config.custom_all_reduce and config.args["disable_custom_all_reduce"] is not True:
        two = env.get("SGLANG_CUSTOM_ALLREDUCE_ALGO", "").lower() in ("2stage", "twoshot")
        # One stage sends all data to all ranks: quickest when there is little of it.
        decode, per_request = (0.58, 1.05) if two else (0.46, 1.3)
    step = 1.0 - _DECODE_SHARE + _DECODE_SHARE * decode
    reading = 1.0 - _PREFILL_SHARE + _PREFILL_SHARE * prefill
    if config.kv_bytes_per_value == 1:
        step, per_token = step + 0.01, 0.62
    if config.args["attention_backend"] == "flashinfer":
        per_token, reading = per_token * 0.8, reading * 0.94
    if config.args["disable_overlap_schedule"] is True:
        step += 0.06
    chunk = config.chunk
    reading *= (1 + 150 / chunk) / (1 + 150 / 8192)
    scale = config.model.scale
    noise, phase = 1.0, None
    if seed is not None:
        rng = random.Random(seed)  # noqa: S311 - noise, no secret
        noise, phase = rng.gauss(1.0, 0.004), rng.uniform(0.0, 2 * math.pi)
    return Speed(step * noise * scale**0.5, per_request * scale, per_token * scale, reading * noise * scale, phase)


def _nccl(env: Mapping[str, str]) -> tuple[float, float]:
    """Return the factors on all-reduce time, in decode and in prefill, that NCCL's variables bring."""
    channels = memory.channels(env)
    decode = 1.0 + 0.014 * math.log2(channels / 16)
    prefill = math.sqrt(16 / channels) if channels < 16 else 1.0 - 0.03 * math.log2(channels / 16)
    latency, bandwidth = _PROTOCOLS.get(env.get("NCCL_PROTO", "").upper(), (1.0, 1.0))
    decode, prefill = decode * latency, prefill * bandwidth
    if "TREE" in env.get("NCCL_ALGO", "").upper():
        decode, prefill = decode * 1.12, prefill * 1.1
    buffer = memory.number(env, "NCCL_BUFFSIZE", 4 * MIB)
    prefill *= 1.15 if buffer < MIB else 0.97 if buffer >= 8 * MIB else 1.0
    if env.get("NCCL_P2P_DISABLE") == "1" or env.get("NCCL_P2P_LEVEL") in ("LOC", "0"):
        decode, prefill = decode * 1.55, prefill * 1.7
    elif env.get("NCCL_P2P_LEVEL") in ("SYS", "5"):
        decode, prefill = decode * 0.88, prefill * 0.85
    return decode, prefill
