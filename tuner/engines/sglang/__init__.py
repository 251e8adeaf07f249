"""The SGLang engine."""

from __future__ import annotations

from tuner.core.engine import Engine
from tuner.engines.sglang.engine import SGLang

ENGINE: Engine = SGLang()
