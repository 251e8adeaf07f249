"""The vLLM engine."""

from __future__ import annotations

from tuner.core.engine import Engine
from tuner.engines.vllm.engine import VLLM

ENGINE: Engine = VLLM()
