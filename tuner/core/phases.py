"""Where in its life a server was when it failed: by the functions on the stack, else by what its log said last.

A function on the stack is the better witness: a rank says that it begins a phase, but rarely that it is between two.
"""

from __future__ import annotations

from collections.abc import Sequence

_BY_FRAME: tuple[tuple[str, str], ...] = (
    # In order: the first entry that any frame contains decides.
    ("self_check_during_idle", "idle-check"),
    ("check_memory", "idle-check"),
    ("on_idle", "idle-check"),
    ("eagle_worker.py:__init__", "draft-init"),
    ("eagle_worker_v2.py:__init__", "draft-init"),
    ("multi_layer_eagle_worker.py:__init__", "draft-init"),
    ("standalone_worker.py:__init__", "draft-init"),
    ("init_draft_worker", "draft-init"),
    ("forward_extend", "prefill"),
    ("forward_split_prefill", "prefill"),
    ("forward_decode", "decode"),
    ("_dummy_sampler_run", "warmup"),
    ("_dummy_pooler_run", "warmup"),
    ("capture_one_batch_size", "graph-capture"),
    ("cuda_graph_runner.py", "graph-capture"),
    ("graph_capture", "graph-capture"),
    ("init_device_graphs", "graph-capture"),
    ("init_cuda_graphs", "graph-capture"),
    ("init_piecewise_cuda_graphs", "graph-capture"),
    ("capture_model", "graph-capture"),
    ("_flashinfer_autotune", "autotune"),
    ("kernel_warmup", "autotune"),
    ("compile_or_warm_up_model", "warmup"),
    ("determine_available_memory", "kv-alloc"),
    ("profile_run", "kv-alloc"),
    ("init_memory_pool", "kv-alloc"),
    ("kv_cache_configurator", "kv-alloc"),
    ("initialize_kv_cache", "kv-alloc"),
    ("initialize_cache", "kv-alloc"),
    ("_initialize_kv_caches", "kv-alloc"),
    ("get_kv_cache_config", "kv-alloc"),
    ("memory_pool_host.py", "kv-alloc"),
    ("/pool_host/", "kv-alloc"),
    ("hiradix_cache.py:__init__", "kv-alloc"),
    ("alloc_memory_pool", "kv-alloc"),
    ("load_model", "weight-load"),
    ("model_loader", "weight-load"),
    (":load_weights", "weight-load"),
    ("_create_c10d_store", "dist-init"),
    ("init_torch_distributed", "dist-init"),
    ("init_parallel_runtime", "dist-init"),
    ("init_distributed_environment", "dist-init"),
    ("initialize_model_parallel", "dist-init"),
    ("init_process_group", "dist-init"),
    ("init_device", "dist-init"),
    ("shm_broadcast.py:__init__", "dist-init"),
    ("parse_args", "args"),
    ("server_args.py", "args"),
    ("create_engine_config", "args"),
    ("create_model_config", "args"),
)
_SERVING = ("run_batch", "event_loop", "forward_thread_func", "forward_batch_generation", "execute_model",
            "run_busy_loop", "process_batch_result", "get_next_batch_to_run")  # fmt: skip


def by_frames(frames: Sequence[str]) -> str | None:
    """The phase that a stack names; None when it names none.

    A module that is being imported tells nothing: any phase imports, and mostly that of the arguments.
    """
    frames = [frame for frame in frames if not frame.endswith(":<module>")]
    for part, phase in _BY_FRAME:
        if any(part in frame for frame in frames):
            return phase
    return None


def serving_frames(frames: Sequence[str]) -> bool:
    """The stack is that of a forward pass of a request, or of the warm-up's."""
    return any(part in frame for frame in frames for part in _SERVING)
