"""Tracebacks of ranks that die in SGLang 0.5.9 and 0.5.23, frame by frame."""

from __future__ import annotations

_SITE = "/opt/sglang/lib/python3.12/site-packages"

# File below site-packages, line, function, source line. The caret line is derived where the call spans lines.
_Frame = tuple[str, int, str, str]

_INIT_OLD: tuple[_Frame, ...] = (
    ("sglang/srt/managers/scheduler.py", 3130, "run_scheduler_process", "scheduler = Scheduler("),
    ("sglang/srt/managers/scheduler.py", 368, "__init__", "self.init_model_worker()"),
    ("sglang/srt/managers/scheduler.py", 564, "init_model_worker", "self.init_tp_model_worker()"),
    ("sglang/srt/managers/scheduler.py", 522, "init_tp_model_worker", "self.tp_worker = TpModelWorker("),
    ("sglang/srt/managers/tp_worker.py", 247, "__init__", "self._init_model_runner()"),
    ("sglang/srt/managers/tp_worker.py", 330, "_init_model_runner", "self._model_runner = ModelRunner("),
    ("sglang/srt/model_executor/model_runner.py", 413, "__init__", "self.initialize(min_per_gpu_memory)"),
)
_INIT_NEW: tuple[_Frame, ...] = (
    ("sglang/srt/managers/scheduler.py", 4623, "run_scheduler_process", "scheduler = Scheduler("),
    ("sglang/srt/managers/scheduler.py", 431, "__init__", "self.init_model_worker()"),
)
_FRAMES: dict[tuple[str, bool], tuple[_Frame, ...]] = {
    ("pool", False): (
        *_INIT_OLD,
        ("sglang/srt/model_executor/model_runner.py", 590, "initialize", "self.init_memory_pool(min_per_gpu_memory)"),
        ("sglang/srt/model_executor/model_runner_kv_cache_mixin.py", 416, "init_memory_pool", "raise RuntimeError("),
    ),
    ("pool", True): (
        *_INIT_NEW,
        ("sglang/srt/managers/scheduler.py", 851, "init_model_worker", "self.init_memory_pools()"),
        ("sglang/srt/managers/scheduler.py", 824, "init_memory_pools", "self.init_target_memory_pool()"),
        ("sglang/srt/managers/scheduler.py", 820, "init_target_memory_pool", "self.tp_worker.alloc_memory_pool()"),
        ("sglang/srt/managers/tp_worker.py", 374, "alloc_memory_pool",
         "self.model_runner.alloc_memory_pool(memory_pool_config)"),
        ("sglang/srt/model_executor/model_runner.py", 734, "alloc_memory_pool",
         "result = self.kv_cache_configurator.configure("),
        ("sglang/srt/mem_cache/kv_cache_configurator.py", 227, "configure",
         "config = self._resolve_memory_pool_config(pre_model_load_memory)"),
        ("sglang/srt/mem_cache/kv_cache_configurator.py", 1669, "_resolve_memory_pool_config",
         "available_bytes = self._profile_available_bytes(pre_model_load_memory)"),
        ("sglang/srt/mem_cache/kv_cache_configurator.py", 1560, "_profile_available_bytes", "raise ValueError("),
    ),
    ("weights", False): (
        *_INIT_OLD,
        ("sglang/srt/model_executor/model_runner.py", 497, "initialize", "self.load_model()"),
        ("sglang/srt/model_executor/model_runner.py", 887, "load_model", "self.model = self.loader.load_model("),
        ("sglang/srt/model_loader/loader.py", 641, "load_model", "model = _initialize_model("),
        ("torch/utils/_device.py", 103, "__torch_function__", "return func(*args, **kwargs)"),
    ),
    ("weights", True): (
        *_INIT_NEW,
        ("sglang/srt/managers/scheduler.py", 564, "init_model_worker", "self.init_tp_model_worker()"),
        ("sglang/srt/model_executor/model_runner.py", 612, "load_model", "self.model = self.loader.load_model("),
        ("sglang/srt/model_loader/loader.py", 702, "load_model", "model = _initialize_model("),
        ("torch/utils/_device.py", 103, "__torch_function__", "return func(*args, **kwargs)"),
    ),
    ("capture", False): (
        ("sglang/srt/model_executor/cuda_graph_runner.py", 372, "__init__", "self.capture()"),
        ("sglang/srt/model_executor/cuda_graph_runner.py", 511, "capture", "_capture_one_stream()"),
        ("sglang/srt/model_executor/cuda_graph_runner.py", 689, "capture_one_batch_size", "run_once()"),
    ),
    ("capture", True): (
        ("sglang/srt/model_executor/decode_cuda_graph_runner.py", 402, "__init__", "self.capture()"),
        ("sglang/srt/model_executor/decode_cuda_graph_runner.py", 588, "capture", "_capture_one_stream()"),
        ("sglang/srt/model_executor/decode_cuda_graph_runner.py", 771, "capture_one_batch_size", "run_once()"),
    ),
    ("capture-after", False): (
        *_INIT_OLD,
        ("sglang/srt/model_executor/model_runner.py", 602, "initialize", "self.init_device_graphs()"),
        ("sglang/srt/model_executor/cuda_graph_runner.py", 374, "__init__", "raise Exception("),
    ),
    ("capture-after", True): (
        *_INIT_NEW,
        ("sglang/srt/managers/scheduler.py", 858, "init_model_worker", "self.init_device_graphs()"),
        ("sglang/srt/model_executor/decode_cuda_graph_runner.py", 405, "__init__", "raise Exception("),
    ),
    ("prefill", False): (
        ("sglang/srt/managers/scheduler.py", 3147, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("sglang/srt/managers/scheduler.py", 1117, "event_loop_overlap", "batch_result = self.run_batch(batch)"),
        ("sglang/srt/managers/scheduler.py", 2180, "run_batch",
         "batch_result = self.model_worker.forward_batch_generation("),
        ("sglang/srt/managers/tp_worker.py", 448, "forward_batch_generation", "out = self.model_runner.forward("),
        ("sglang/srt/model_executor/model_runner.py", 2290, "forward", "output = self._forward_raw("),
        ("sglang/srt/model_executor/model_runner.py", 2215, "forward_extend", "return self.model.forward("),
        ("sglang/srt/models/deepseek_v2.py", 1530, "forward_normal_chunked_kv_core",
         "kv = self.kv_b_proj(kv_a_normed)[0]"),
    ),
    ("prefill", True): (
        ("sglang/srt/managers/scheduler.py", 4639, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("sglang/srt/managers/scheduler.py", 1500, "run_event_loop", "dispatch_event_loop(self)"),
        ("sglang/srt/managers/scheduler.py", 4490, "dispatch_event_loop", "scheduler.event_loop_overlap()"),
        ("sglang/srt/managers/scheduler.py", 1588, "event_loop_overlap", "batch_result = self.run_batch(batch)"),
        ("sglang/srt/managers/tp_worker.py", 512, "forward_batch_generation", "out = self.model_runner.forward("),
        ("sglang/srt/models/deepseek_v2.py", 1822, "forward_normal_chunked_kv_core",
         "kv = self.kv_b_proj(kv_a_normed)[0]"),
    ),
    ("peer", False): (
        ("sglang/srt/managers/scheduler.py", 3147, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("sglang/srt/managers/scheduler.py", 1103, "event_loop_overlap", "recv_reqs = self.recv_requests()"),
        ("sglang/srt/managers/scheduler.py", 1246, "recv_requests", "recv_reqs = broadcast_pyobj("),
        ("sglang/srt/utils/common.py", 1322, "broadcast_pyobj",
         "dist.broadcast(tensor_size, src=src, group=dist_group)"),
        ("torch/distributed/c10d_logger.py", 81, "wrapper", "return func(*args, **kwargs)"),
        ("torch/distributed/distributed_c10d.py", 2824, "broadcast", "work.wait()"),
    ),
    ("peer", True): (
        ("sglang/srt/managers/scheduler.py", 4639, "run_scheduler_process", "scheduler.run_event_loop()"),
        ("sglang/srt/managers/scheduler.py", 1500, "run_event_loop", "dispatch_event_loop(self)"),
        ("sglang/srt/managers/scheduler.py", 4490, "dispatch_event_loop", "scheduler.event_loop_overlap()"),
        ("sglang/srt/managers/scheduler.py", 1570, "event_loop_overlap",
         "recv_reqs = self.request_receiver.recv_requests()"),
        ("sglang/srt/managers/scheduler_components/request_receiver.py", 90, "recv_requests",
         "recv_reqs = self._broadcast_reqs_across_ranks(recv_reqs)"),
        ("sglang/srt/managers/scheduler_components/request_receiver.py", 198, "_broadcast_reqs_across_ranks",
         "recv_reqs = broadcast_pyobj("),
        ("sglang/srt/utils/common.py", 2175, "broadcast_pyobj",
         "dist.broadcast(tensor_size, src=src, group=dist_group)"),
        ("torch/distributed/c10d_logger.py", 83, "wrapper", "return func(*args, **kwargs)"),
        ("torch/distributed/distributed_c10d.py", 2974, "broadcast", "work.wait()"),
    ),
}  # fmt: skip
_SHARED = {"distributed": "pool", "pool-oom": "pool"}

_SOLUTIONS = {
    False: (
        "Possible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
        "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)\n"
        "3. disable torch compile by not using --enable-torch-compile\n"
        "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)\n"
    ),
    True: (
        "Possible solutions:\n"
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
        "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
        "3. disable torch compile by not using --enable-torch-compile\n"
        "4. disable CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)\n"
    ),
}
_ISSUE = "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] "
    "Connection closed by peer [127.0.0.1]:{port}"
)


def scheduler_exception(where: str, error: str, *, new: bool) -> str:
    """Return the log record of a rank that raised. Its first line follows the log prefix, the others have none.

    Args:
        where: What the rank was doing, as in `_FRAMES`: pool, capture, prefill, peer and others.
        error: Class and message of the exception.
        new: Whether the version is 0.5.23, not 0.5.9.
    """
    head = "Scheduler hit an exception: Traceback (most recent call last):\n"
    if where == "capture":
        message = error.split(": ", 1)[1]
        return (
            head
            + _frames("capture", new)
            + error
            + "\n\nDuring handling of the above exception, another exception occurred:\n\n"
            + "Traceback (most recent call last):\n"
            + _frames("capture-after", new)
            + f"Exception: Capture cuda graph failed: {message}\n"
            + _SOLUTIONS[new]
            + _ISSUE
            + "\n"
        )
    return head + _frames(_SHARED.get(where, where), new) + error + "\n"


def _frames(where: str, new: bool) -> str:
    out = []
    for path, line, function, source in _FRAMES[where, new]:
        out.append(f'  File "{_SITE}/{path}", line {line}, in {function}\n    {source}\n')
        # Python underlines the part of the line that was running, where that is not all of it.
        name, equals, call = source.partition(" = ")
        if equals:
            out.append("    " + " " * (len(name) + 3) + "^" * len(call) + "\n")
        elif source.startswith("return "):
            out.append("    " + " " * 7 + "^" * (len(source) - 7) + "\n")
    return "".join(out)
