"""Wordings from which the version of an SGLang log is inferred, since no line states it.

Taken from the sources of 22 releases, 0.4.6 to 0.5.23, and from logs of older ones.
"""

from __future__ import annotations

from tuner.core.versions import Trait

TRAITS = (
    Trait("Prefill batch. #new-seq", "", "0.5.2"),
    Trait("Decode batch. #running-req", "", "0.5.3"),
    Trait("cache hit rate: ", "", "0.4.4"),
    Trait("from a child proces. It", "", "0.4.3"),
    Trait("KV Cache is allocated. K size", "", "0.4.4"),
    Trait("Init torch distributed ends. mem usage", "0.4.5", "0.5.8"),
    Trait("Init torch distributed ends. elapsed=", "0.5.9", "0.5.20"),
    Trait("Init parallel begin.", "0.5.21", ""),
    Trait("Load weight end. type=", "", "0.5.8"),
    Trait("Load weight end. elapsed=", "0.5.9", ""),
    Trait(", dtype=torch.bfloat16, avail mem=", "", "0.5.9"),
    Trait(", dtype=torch.float16, avail mem=", "", "0.5.9"),
    Trait("Capture cuda graph begin. This can", "", "0.5.13"),
    Trait("several minutes. avail mem=", "0.4.5", "0.5.13"),
    Trait("Capture target ", "0.5.14", ""),
    Trait("num_tokens_per_bs=", "0.5.14", "0.5.15"),
    Trait("num_tokens_per_req=", "0.5.16", ""),
    Trait("KV Cache is allocated. dtype: ", "0.5.13", ""),
    Trait("available_gpu_mem=", "0.4.7", ""),
    Trait("Current value: self.server_args.mem_fraction_static", "0.5.3", "0.5.9"),
    Trait("Current value: mem_fraction_static", "0.5.10", ""),
    Trait("Loaded weights leave no GPU memory", "0.5.14", ""),
    Trait("Using KV cache dtype: ", "0.5.5", ""),
    Trait("Decode out of memory happened. #retracted", "", "0.4.6"),
    Trait("#aborted_retracted_reqs", "0.5.3", "0.5.4"),
    Trait("#new_tokens_gained: ", "0.5.7", ""),
    Trait("Watchdog timeout (self.watchdog_timeout", "", "0.5.6"),
    Trait("watchdog timeout (self.watchdog_timeout", "0.5.7", ""),
    Trait("SIGQUIT received. signum", "0.5.3", ""),
    Trait("scheduler died during initialization", "0.5.10", ""),
    Trait("crashed with exit code ", "0.5.10", ""),
    Trait("server_args={", "0.5.20", ""),
    Trait("server_args=ServerArgs(", "", "0.5.18"),
    Trait(", tokenizer_worker_num=", "0.5.2", ""),
    Trait(", enable_ep_moe=", "", "0.4.9"),
    Trait(", kv_cache_dtype='auto', quantization_param_path=None, quantization=None", "", "0.4.3"),
    Trait(", input throughput (token/s): 0.00, cuda graph", "0.5.9", "0.5.9"),
    Trait("#pending-token: ", "0.5.11", ""),
)
