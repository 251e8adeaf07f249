"""Wordings from which the version of a vLLM log is inferred if its first lines, which state it, are missing.

Taken from the sources of 25 releases, 0.8 to 0.33.
"""

from __future__ import annotations

from tuner.core.versions import Trait

TRAITS = (
    Trait("(VllmWorker rank=", "", "0.10.0"),
    Trait("(EngineCore_0 pid=", "", "0.10.0"),
    Trait("(EngineCore_DP0 pid=", "0.10.2", ""),
    Trait("(EngineCore pid=", "0.18.1", ""),
    Trait("(APIServer pid=", "0.10.2", ""),
    Trait("Available KV cache memory: ", "0.9.2", ""),
    Trait("Estimated CUDA graph memory: ", "0.18.1", ""),
    Trait("torch.compile takes ", "", "0.17.1"),
    Trait("torch.compile took ", "0.18.1", ""),
    Trait("[shutdown] ", "0.23.0", ""),
    Trait("[backbone] ", "0.32.0", ""),
    Trait("(MainProcess pid=", "0.31.0", ""),
    Trait("# GPU blocks: ", "", "0.10.0"),
    Trait("all-reduce backends (in dispatch order)", "0.22.1", ""),
    Trait("Auto-fit max_model_len", "0.14.1", ""),
)
