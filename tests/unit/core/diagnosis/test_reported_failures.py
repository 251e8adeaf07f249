"""Failures as users report them: what is named, what is proposed, and what must not be."""

from __future__ import annotations

import pytest

from tests.support.small_logs import SIGQUIT, findings, proposed, raised, sglang, shown, verdict, vllm
from tuner.domain.findings import Confidence, Finding, Severity

CORE = (("vllm/v1/engine/core.py", "run_engine_core"), ("vllm/v1/executor/uniproc_executor.py", "_init_executor"))
LOADING = (("srt/managers/scheduler.py", "run_scheduler_process"), ("srt/model_executor/model_runner.py", "initialize"))
PASS = (("srt/managers/scheduler.py", "event_loop_overlap"), ("srt/managers/scheduler.py", "run_batch"))
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of 79.11 GiB of"
    " which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated"
    " memory 75.10 GiB is allocated by PyTorch, and 80.00 MiB is reserved by PyTorch but unallocated."
)


def traceback(error: str, *frames: tuple[str, str]) -> str:
    lines = ["Traceback (most recent call last):"]
    for path, function in frames:
        lines += [f'  File "/opt/{path}", line 11, in {function}', "    run()"]
    return "\n".join([*lines, error]) + "\n"


def tagged(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.rstrip("\n").split("\n"))


def core(error: str, *frames: tuple[str, str], header: str = "EngineCore failed to start.") -> str:
    """An exception of vLLM's engine as the log holds it, with the process's own traceback behind it."""
    told = traceback(error, *CORE, *frames)
    logged = tagged("(EngineCore_DP0 pid=22) ERROR 05-14 08:16:20 [core.py:866] ", f"{header}\n{told}")
    return logged + tagged("(EngineCore_DP0 pid=22) ", f"Process EngineCore_DP0:\n{told}")


def asked(error: str, version: str = "0.20.2") -> str:
    """An exception of vLLM's main process while it reads its arguments."""
    frames = (("bin/vllm", "<module>"), ("vllm/engine/arg_utils.py", "create_engine_config"))
    return vllm("args", tp=1, version=version) + tagged("(APIServer pid=11) ", traceback(error, *frames))


def fatal(text: str) -> list[Finding]:
    return [each for each in findings(text) if each.severity in (Severity.FATAL, Severity.ERROR)]


# --- Software ---------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_too_old_is_not_told_to_take_a_newer_build() -> None:
    error = (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has"
        " compute capability 7.5. You can use float16 instead by explicitly setting the `dtype` flag."
    )
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/v1/worker/gpu_worker.py", "init_device")))
    assert finding.cause == "unsupported-arch"
    assert proposed(finding) == {"dtype": ("set", "float16")}
    assert "compute capability of at least 8.0" in finding.explanation


def test_a_gpu_without_eight_bit_floating_point() -> None:
    error = (
        "triton.compiler.errors.CompilationError: at 10:4:\n"
        'ValueError("type fp8e4nv not supported in this architecture.'
        " The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')\")"
    )
    text = vllm("dist-init", tp=1, kv_cache_dtype="fp8") + core(error, ("vllm/attention/layer.py", "forward"))
    finding = verdict(text)
    assert finding.cause == "unsupported-arch"
    assert proposed(finding)["kv_cache_dtype"][0] == "unset"
    assert ">=cu128" not in [each.value for each in finding.remedies]


def test_a_backend_that_takes_no_eight_bit_cache_says_nothing_of_the_gpu() -> None:
    """L40S, RTX 5090 and B200 have 8-bit floating point, and FlashAttention 2 takes no such cache on them."""
    error = "NotImplementedError: FlashAttention does not support fp8 kv-cache on this device."
    text = vllm("dist-init", tp=1, kv_cache_dtype="fp8") + core(error, ("vllm/attention/layer.py", "__init__"))
    finding = verdict(text)
    assert finding.cause == "attention-backend-unfit"
    assert "no newer build" not in finding.explanation
    changes = proposed(finding)
    assert (changes["attention_backend"][0], changes["kv_cache_dtype"][0]) == ("set", "unset")
    assert shown(finding)["backend"] == "FlashAttention"


def test_another_type_that_triton_lacks_is_not_told_as_eight_bit() -> None:
    error = (
        'triton.compiler.errors.CompilationError: at 10:4:\nValueError("type bf16 not supported in this architecture")'
    )
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/attention/layer.py", "forward")))
    assert "8-bit" not in finding.explanation


@pytest.mark.parametrize(
    ("error", "package"),
    [
        ("ImportError: fastsafetensors is not installed. Please install it with pip.", "The package fastsafetensors"),
        ("ImportError: Please install vllm[audio] for audio support", "The package vllm[audio]"),
        ("ImportError: this needs another package; please install it.", "A package"),
        ("ImportError: please install the latest version.", "A package"),
        ("ImportError: Please install via `pip install decord`.", "The package decord"),
    ],
)
def test_a_package_that_is_missing_is_named_by_its_name(error: str, package: str) -> None:
    finding = verdict(asked(error))
    assert finding.cause == "binary-mismatch"
    assert finding.explanation.startswith(f"{package} is not installed")


def test_a_kernel_that_a_build_lacks_for_a_new_gpu_asks_for_a_newer_one() -> None:
    error = "RuntimeError: No implemented fp8_scaled_mm for current compute capability: 120"
    finding = verdict(sglang("graph-capture", tp=1) + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == "unsupported-arch"
    assert proposed(finding)["version"] == ("other", ">=cu128")


@pytest.mark.parametrize(
    ("error", "move"),
    [
        ("ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. Reason:"
         " ['sink setting not supported']", "unset"),
        ("ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(head_size=72,"
         " dtype=torch.bfloat16).", "set"),
        ("RuntimeError: FlashAttention forward only supports head dimension at most 256", "set"),
    ],
)  # fmt: skip
def test_an_attention_backend_that_does_not_fit_is_no_matter_of_the_gpu(error: str, move: str) -> None:
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/attention/selector.py", "get_attn_backend")))
    assert finding.cause == "attention-backend-unfit"
    assert proposed(finding)["attention_backend"][0] == move
    assert "this GPU" not in finding.explanation


def test_no_platform_is_no_refused_argument() -> None:
    error = (
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to"
        " turn on verbose logging to help debug the issue."
    )
    text = "INFO 06-30 13:53:06 [__init__.py:248] No platform detected, vLLM is running on UnspecifiedPlatform\n"
    finding = verdict(text + traceback(error, ("bin/vllm", "<module>"), ("vllm/config/__init__.py", "__post_init__")))
    assert (finding.cause, finding.phase) == ("driver-too-old", "cuda-init")


def test_cc_is_a_compiler_and_no_argument_of_the_engine() -> None:
    error = (
        "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment"
        " variable or set triton.knobs.build.impl."
    )
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/v1/worker/gpu_worker.py", "profile_run")))
    assert finding.cause == "jit-toolchain-missing"
    assert (finding.remedies[0].env, finding.remedies[0].flag) == ("CC", None)


LAUNCHER = (
    "torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmp4/cuda_utils.c', '-O3',"
    " '-shared', '-fPIC', '-lcuda', '-I/usr/include/python3.12']' returned non-zero exit status 1."
)


@pytest.mark.parametrize(
    ("before", "words", "knobs"),
    [
        ("/tmp/tmp4/cuda_utils.c:6:10: fatal error: Python.h: No such file or directory\n", "Python's own headers",
         ["packages"]),
        ("", "/usr/bin/gcc failed", ["packages", "libcuda.so"]),
    ],
)  # fmt: skip
def test_a_launcher_of_triton_needs_headers_and_no_cuda_toolkit(before: str, words: str, knobs: list[str]) -> None:
    text = vllm("dist-init", tp=1) + before + core(LAUNCHER, ("triton/runtime/build.py", "_build"))
    finding = verdict(text)
    assert finding.cause == "jit-toolchain-missing"
    assert words in finding.explanation
    assert [each.knob for each in finding.remedies] == knobs


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RuntimeError: Error building extension 'x'", "and that failed. The GPU"),
        ("RuntimeError: Error building extension 'x': [1/3] /usr/bin/nvcc -c x.cu", "/usr/bin/nvcc failed."),
        ("RuntimeError: Ninja build failed. Ninja output:\nnvcc fatal   : Unknown option '-x'", "Unknown option '-x'."),
    ],
)
def test_what_is_not_known_of_a_build_is_left_out(error: str, words: str) -> None:
    finding = verdict(sglang("graph-capture", tp=1) + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == "jit-toolchain-missing"
    assert words in finding.explanation


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Cannot find any available NVCC compiler",
        "RuntimeError: Assertion error (csrc/jit/compiler.hpp:187): (major > 12 or (major == 12 and minor >= 3)) and"
        ' "NVCC version should be >= 12.3"',
    ],
)
def test_a_compiler_that_deep_gemm_lacks(error: str) -> None:
    finding = verdict(sglang("graph-capture", tp=1) + raised("", *LOADING, error=error) + SIGQUIT)
    assert (finding.cause, finding.phase) == ("jit-toolchain-missing", "graph-capture")
    assert "CUDA_HOME" in proposed(finding)


def test_a_package_that_is_wanted_is_named() -> None:
    error = (
        "ImportError: Please install mooncake by following the instructions at https://example.net/build.html to run"
        " SGLang with MooncakeTransferEngine."
    )
    finding = verdict(sglang("kv-alloc", tp=1) + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == "binary-mismatch"
    assert "mooncake is not installed" in finding.explanation


# --- The LLM and the arguments ----------------------------------------------------------------------------------------


def test_kernels_that_cannot_be_downloaded_are_not_the_llm() -> None:
    error = (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='kernels.example.net', port=443): Max retries"
        " exceeded with url: /x.cubin"
    )
    text = sglang("kv-alloc", tp=1) + raised("", *LOADING, ("flashinfer/jit/loader.py", "get"), error=error) + SIGQUIT
    assert verdict(text).cause == "inconclusive"
    hub = text.replace("kernels.example.net", "huggingface.co")
    assert verdict(hub).cause == "model-not-found"


def test_a_tokenizer_of_its_own_code_asks_for_trust_and_not_for_another_path() -> None:
    error = (
        "RuntimeError: Failed to load the tokenizer. If the tokenizer is a custom tokenizer not yet available in the"
        " HuggingFace transformers library, consider setting `trust_remote_code=True` in LLM or using the"
        " `--trust-remote-code` flag in the CLI."
    )
    finding = verdict(sglang("args", tp=1) + traceback(error, ("sglang/launch_server.py", "<module>")))
    assert proposed(finding)["trust_remote_code"] == ("set", True)
    assert "model_path" not in proposed(finding)
    trusted = sglang("args", tp=1, trust_remote_code=True)
    finding = verdict(trusted + traceback(error, ("sglang/launch_server.py", "<module>")))
    assert "trust_remote_code" not in proposed(finding)


def test_a_refused_token_is_proposed_beside_another_name() -> None:
    error = (
        "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-68)\n\n"
        "Repository Not Found for url: https://huggingface.co/api/models/foo/bar/tree/main."
    )
    finding = verdict(asked(error))
    assert (finding.cause, finding.remedies[0].flag) == ("model-not-found", "--model")
    assert "HF_TOKEN" in proposed(finding)


def test_a_quantisation_that_is_not_the_checkpoints_is_no_matter_of_the_gpu() -> None:
    finding = verdict(asked(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, Quantization"
        " method specified in the model config (fp8) does not match the quantization method specified in the"
        " `quantization` argument (awq). [type=value_error]"
    ))  # fmt: skip
    assert (finding.cause, finding.phase) == ("unsupported-model", "args")
    assert "GPU" not in finding.explanation
    assert proposed(finding)["quantization"][0] == "unset"


def test_a_data_type_that_a_quantisation_does_not_compute_in() -> None:
    finding = verdict(asked(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n  Value error, torch.bfloat16"
        " is not supported for quantization method awq. Supported dtypes: [torch.float16] [type=value_error]"
    ))  # fmt: skip
    assert finding.cause == "unsupported-model"
    assert proposed(finding)["dtype"] == ("set", "float16")


def test_a_value_that_is_no_json_is_not_an_argument_to_leave_out() -> None:
    line = "vllm serve: error: argument --speculative-config/-sc: Value {method:eagle} cannot be converted to"
    finding = verdict("usage: vllm serve [model_tag] [options]\n" + line + " <function loads at 0x7f>.\n")
    assert (finding.cause, finding.remedies[0].flag, finding.remedies[0].move) == (
        "bad-argument", "--speculative-config", "set",
    )  # fmt: skip
    assert "double quotes" in finding.remedies[0].why


def test_a_keyword_that_this_version_does_not_take_is_to_be_left_out() -> None:
    error = "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'swap_space'"
    text = vllm("args", tp=1) + traceback(error, ("run.py", "<module>"), ("vllm/entrypoints/llm.py", "__init__"))
    assert proposed(verdict(text)) == {"swap_space": ("unset", None)}


def test_an_argument_may_be_named_in_words() -> None:
    text = vllm("args", tp=1, tool_call_parser="qwen99")
    error = "KeyError: 'invalid tool call parser: qwen99 (chose from { deepseek_v3,hermes })'"
    finding = verdict(text + tagged("(APIServer pid=11) ", traceback(error, ("bin/vllm", "<module>"))))
    assert (finding.cause, finding.remedies[0].knob) == ("bad-argument", "tool_call_parser")


def test_weights_that_are_missing_are_not_weights_of_another_shape() -> None:
    error = "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}"
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/model_executor/model_loader/x.py", "load_weights")))
    assert finding.cause == "unsupported-model"
    assert "a shard is missing" in finding.explanation
    assert "files" in proposed(finding)


@pytest.mark.parametrize(
    ("owner", "attribute", "knobs"),
    [
        ("Qwen2ForCausalLM", "set_embed", {"speculative_draft_model_path": "set", "speculative_algorithm": "set"}),
        ("Qwen2_5_VLModel", "set_eagle3_layers_to_capture", {"speculative_algorithm": "unset"}),
    ],
)
def test_a_draft_that_is_none_or_a_target_that_takes_none(owner: str, attribute: str, knobs: dict[str, str]) -> None:
    error = f"AttributeError: '{owner}' object has no attribute '{attribute}'"
    text = sglang("weight-load", tp=1, speculative_algorithm="EAGLE3")
    finding = verdict(text + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == "draft-unfit"
    assert {knob: move for knob, (move, _) in proposed(finding).items() if knob != "version"} == knobs


@pytest.mark.parametrize(
    "error",
    [
        "KeyError: 'layers.0.mlp.experts.w13_bias'",
        "AssertionError: param_data.shape=torch.Size([16000, 4096]), loaded_weight.shape=torch.Size([16032, 4096])",
    ],
)
def test_weights_that_this_version_has_no_place_for(error: str) -> None:
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/model_executor/models/x.py", "load_weights")))
    assert (finding.cause, finding.phase) == ("unsupported-model", "weight-load")


def test_a_check_of_a_configuration_names_the_argument_that_makes_it() -> None:
    finding = verdict(asked(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n  Value error,"
        " num_speculative_tokens:3 must be divisible by n_predict=2 [type=value_error]"
    ))  # fmt: skip
    assert (finding.cause, finding.remedies[0].flag) == ("bad-argument", "--speculative-config")


@pytest.mark.parametrize(
    ("config", "given", "flag"),
    [
        ("KVTransferConfig", {"kv_transfer_config": {"kv_role": "x"}}, "--kv-transfer-config"),
        ("BrandNewConfig", {"brand_new_config": {"x": 1}}, "--brand-new-config"),
        ("BrandNewConfig", {}, None),
        ("VllmConfig", {"kv_transfer_config": {"kv_role": "x"}}, None),
    ],
)
def test_a_configuration_is_an_argument_where_the_start_or_the_catalogue_has_it(
    config: str, given: dict[str, object], flag: str | None
) -> None:
    error = (
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n  Value error, not like this"
        " [type=value_error]"
    )
    frames = (("bin/vllm", "<module>"), ("vllm/engine/arg_utils.py", "create_engine_config"))
    text = vllm("args", tp=1, **given) + tagged("(APIServer pid=11) ", traceback(error, *frames))
    assert verdict(text).remedies[0].flag == flag


def test_an_adapter_of_a_rank_that_the_pool_was_not_made_for() -> None:
    error = (
        "ValueError: LoRA adapter sql with rank 64 is incompatible with the current LoRA memory pool configuration."
        " Please ensure that the LoRA adapter's rank is within the configured `--max-lora-rank`."
    )
    finding = verdict(sglang("kv-alloc", tp=1) + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == "bad-argument"
    assert proposed(finding)["max_lora_rank"] == ("raise", 64)


def test_workers_that_were_forked_are_to_be_spawned() -> None:
    error = (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use"
        " the 'spawn' start method"
    )
    finding = verdict(vllm("args") + core(error, ("vllm/v1/worker/gpu_worker.py", "init_device")))
    assert finding.cause == "worker-forked"
    assert proposed(finding)["VLLM_WORKER_MULTIPROC_METHOD"] == ("set", "spawn")


# --- The host ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "path", "knob"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub/models--x'",
         "/root/.cache/huggingface/hub/models--x", "HF_HOME"),
        ("OSError: [Errno 30] Read-only file system: '/.config/vllm'", "/.config/vllm", "HOME"),
    ],
)  # fmt: skip
def test_a_folder_that_may_not_be_written_is_not_the_llm(error: str, path: str, knob: str) -> None:
    finding = verdict(asked(error))
    assert (finding.cause, finding.phase) == ("file-denied", "args")
    assert shown(finding)["file"] == path
    assert knob in proposed(finding)


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/s3/cache'",
        "OSError: [Errno 116] Stale file handle: '/models/x/model.safetensors'",
        "OSError: [Errno 5] Input/output error: '/root/.cache/huggingface/x'",
    ],
)
def test_a_mount_that_is_gone_is_no_matter_of_permissions(error: str) -> None:
    finding = verdict(asked(error))
    assert (finding.cause, finding.phase) == ("storage-failed", "args")
    assert "by the user" not in finding.explanation
    assert "permissions" not in proposed(finding)
    assert "mounts" in proposed(finding)


@pytest.mark.parametrize(("path", "own"), [("/devel/cache/x", True), ("/dev/nvidia0", False)])
def test_only_the_systems_own_folders_are_no_files_of_the_server(path: str, own: bool) -> None:
    finding = verdict(asked(f"PermissionError: [Errno 13] Permission denied: '{path}'"))
    assert (finding.cause == "file-denied") is own


def test_a_file_of_the_llm_that_may_not_be_read_is_the_llms() -> None:
    finding = verdict(asked("PermissionError: [Errno 13] Permission denied: '/models/x/config.json'"))
    assert finding.cause == "model-not-found"
    assert "may not be read" in finding.explanation


def test_memory_that_cannot_be_pinned_is_the_hosts() -> None:
    """CUDA calls it `out of memory`, with all of the GPU free."""
    frames = (*LOADING, ("srt/mem_cache/memory_pool_host.py", "init_kv_buffer"))
    text = sglang("kv-alloc", tp=1, enable_hierarchical_cache=True, hicache_ratio=2.0)
    finding = verdict(text + raised("", *frames, error="RuntimeError: CUDA error: out of memory") + SIGQUIT)
    assert finding.cause == "hicache-host-memory"
    assert proposed(finding)["hicache_ratio"][0] == "lower"
    assert "mem_fraction_static" not in proposed(finding)


@pytest.mark.parametrize(
    ("card", "cause"), [("Cannot allocate memory [12]", "process-limits"), ("Bad address [14]", "inconclusive")]
)
def test_a_pool_that_a_network_card_may_not_lock(card: str, cause: str) -> None:
    before = f"E0511 07:42:36.355509 10240 rdma_context.cpp:198] Failed to register memory 0x2e1cbac200: {card}\n"
    error = "RuntimeError: Mooncake memory registration failed."
    finding = verdict(sglang("kv-alloc", tp=1) + before + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == cause


def test_a_gpu_in_exclusive_mode_is_somebody_elses() -> None:
    error = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    finding = verdict(sglang("dist-init", tp=1) + raised("", *LOADING, error=error) + SIGQUIT)
    assert finding.cause == "foreign-process-on-gpu"


@pytest.mark.parametrize(
    ("path", "knob"),
    [
        ("/root/.cache/vllm/torch_compile_cache/ab12/rank_0_0/inductor_cache/cxy.py", "VLLM_DISABLE_COMPILE_CACHE"),
        ("/root/.triton/cache/ABC/_fwd_kernel.json.tmp.pid_1_2", "TRITON_CACHE_DIR"),
        ("/tmp/torchinductor_root/xy/cxy.py", "TORCHINDUCTOR_CACHE_DIR"),
    ],
)
def test_a_file_of_a_cache_of_kernels_that_is_gone(path: str, knob: str) -> None:
    finding = verdict(
        vllm("dist-init", tp=1) + core(f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'")
    )
    assert finding.cause == "compile-cache-damaged"
    assert knob in proposed(finding)


def test_a_port_between_processes_is_none_for_clients() -> None:
    error = "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5557')"
    finding = verdict(vllm("dist-init", tp=1) + core(error))
    assert (finding.cause, shown(finding)["port"]) == ("port-in-use", 5557)
    assert "clients" not in finding.explanation


@pytest.mark.parametrize("told", [True, False])
def test_without_a_gpu_the_variable_for_the_cache_is_named(told: bool) -> None:
    head = vllm("dist-init", tp=1).replace("max_seq_len=40960,", "max_seq_len=40960, device_config=cpu,")
    line = (
        "(EngineCore_DP0 pid=22) INFO 05-14 08:16:10 [cpu_worker.py:262] Explicitly set (0.0/23.54) GiB for KV"
        " cache on node 0.\n"
    )
    error = (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when"
        " initializing the engine (this flag also controls CPU memory reservation on the CPU backend)."
    )
    finding = verdict(head + (line if told else "") + core(error, ("vllm/v1/engine/core.py", "x")))
    assert finding.cause == "mem-fraction-too-low"
    assert "host memory" in finding.explanation
    assert proposed(finding)["VLLM_CPU_KVCACHE_SPACE"][0] == "raise"
    assert ("mem_fraction_static" in proposed(finding)) is not told


# --- Several hosts ----------------------------------------------------------------------------------------------------


def test_a_cluster_of_ray_without_enough_gpus() -> None:
    error = (
        "ValueError: Cannot provide a placement group of placement_group_specs=[{'node:10.0.0.1': 0.001, 'GPU': 1.0}]"
        " within 1800 seconds. See `ray status` and `ray list nodes` to make sure the cluster has enough resources."
    )
    finding = verdict(vllm("args", tp=16) + core(error, ("vllm/v1/executor/ray_utils.py", "_wait_until_pg_ready")))
    assert (finding.cause, finding.phase, finding.ranks) == ("ray-gpus-short", "dist-init", None)
    assert shown(finding)["waited"] == 1800
    assert finding.title == "The Ray cluster lacks free GPUs"


def test_a_node_of_ray_without_gpus_is_the_engines_own() -> None:
    error = "ValueError: Current node has no GPU available. current_node_resource={'memory': 1.0}."
    finding = verdict(vllm("args", tp=16) + core(error, ("vllm/v1/executor/ray_utils.py", "initialize_ray_cluster")))
    assert (finding.cause, finding.phase) == ("ray-gpus-short", "dist-init")
    assert "on the node where the engine itself runs" in finding.explanation


@pytest.mark.parametrize("nodes", [{}, {"nnodes": 2, "dist_init_addr": "10.0.0.1:5000"}], ids=["one", "two"])
def test_an_interface_that_is_not_there_was_not_waited_for(nodes: dict[str, object]) -> None:
    """SGLang prints `nnodes=1` also where nobody asked for it."""
    error = (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find"
        " address for: eth9"
    )
    frames = (*LOADING, ("srt/model_executor/model_runner.py", "init_torch_distributed"))
    text = sglang("dist-init", **nodes)
    finding = verdict(text + "".join(raised(rank, *frames, error=error) for rank in ("TP0", "TP1")) + SIGQUIT)
    assert (finding.cause, finding.phase, finding.ranks) == ("interface-missing", "dist-init", (0, 1))
    assert shown(finding)["interface"] == "eth9"
    assert "before the time ran out" not in finding.explanation


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_images_are_what_vllms_encoder_ran_out_of_memory_for() -> None:
    frames = (
        ("vllm/v1/engine/core.py", "run_busy_loop"),
        ("vllm/v1/worker/gpu_model_runner.py", "execute_model"),
        ("vllm/v1/worker/gpu_model_runner.py", "_execute_mm_encoder"),
    )
    error = OOM.format(tried="3.20 GiB")
    text = vllm("ready", tp=1) + core(error, *frames, header="EngineCore encountered a fatal error.")
    finding = verdict(text)
    assert finding.cause == "vision-encoder-oom"
    assert proposed(finding)["limit_mm_per_prompt"][0] == "lower"
    assert ">=0.5.9" not in [each.value for each in finding.remedies]


def test_a_vocabulary_that_no_llm_has_is_no_sum() -> None:
    """The last pass that was logged is the warm-up's, of 6 tokens."""
    frames = (*PASS, ("srt/model_executor/model_runner.py", "forward_extend"),
              ("srt/layers/logits_processor.py", "forward"))  # fmt: skip
    serving = sglang("ready", tp=1, chunked_prefill_size=8192)
    finding = verdict(serving + raised("", *frames, error=OOM.format(tried="6.20 GiB")))
    assert (finding.cause, finding.confidence) == ("logprobs-oom", Confidence.MEDIUM)
    assert "words x 4 bytes" not in finding.explanation
    finding = verdict(serving + raised("", *frames, error=OOM.format(tried="36.20 GiB")))
    assert finding.cause == "mem-fraction-too-high-activation"


@pytest.mark.parametrize(
    ("upto", "frame", "cause", "phase", "sure"),
    [
        ("kv-alloc", "capture_model", "mem-fraction-too-high-graph-capture", "graph-capture", Confidence.MEDIUM),
        ("dist-init", "init_device", "foreign-process-on-gpu", "dist-init", Confidence.LOW),
        ("dist-init", "load_model", "weights-do-not-fit", "weight-load", Confidence.MEDIUM),
    ],
)
def test_a_driver_without_memory_is_told_by_the_phase(
    upto: str, frame: str, cause: str, phase: str, sure: Confidence
) -> None:
    """vLLM prints no free memory on the way."""
    error = core("torch.AcceleratorError: CUDA error: out of memory", ("vllm/v1/worker/gpu_worker.py", frame))
    finding = verdict(vllm(upto, tp=1, gpu_memory_utilization=0.97) + error)
    assert (finding.cause, finding.phase, finding.confidence) == (cause, phase, sure)
    assert "has nothing on the GPU yet" not in finding.explanation


def test_advice_against_giving_up_graphs_is_spelled_as_the_engine_does() -> None:
    text = vllm("kv-alloc", tp=1, version="0.11.2", gpu_memory_utilization=0.97)
    error = core(OOM.format(tried="2.32 GiB"), ("vllm/v1/worker/gpu_model_runner.py", "capture_model"))
    finding = verdict(text + error)
    assert finding.cause == "mem-fraction-too-high-graph-capture"
    assert any("--enforce-eager" in each for each in finding.wrong_advice)
    assert not any("--disable-cuda-graph" in each for each in finding.wrong_advice)


@pytest.mark.parametrize(("free", "value"), [("60.2", 0.76), ("10.2", 0.12), ("0.6", None)])
def test_a_full_gpu_is_no_reason_to_ask_for_nothing(free: str, value: float | None) -> None:
    error = (
        f"ValueError: Free memory on device ({free}/79.11 GiB) on startup is less than desired GPU memory utilization"
        " (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    finding = verdict(vllm("dist-init", tp=1) + core(error, ("vllm/v1/worker/gpu_worker.py", "init_device")))
    assert finding.cause == "foreign-process-on-gpu"
    told = proposed(finding).get("gpu_memory_utilization")
    assert told == (None if value is None else ("lower", value))


# --- What is no cause -------------------------------------------------------------------------------------------------

STATS = (
    "(APIServer pid=11) INFO 05-14 08:20:40 [loggers.py:335] Engine 000: Avg prompt throughput: 512.0 tokens/s, Avg"
    " generation throughput: 1973.4 tokens/s, Running: 64 reqs, Waiting: 0 reqs, GPU KV cache usage: 41.7%\n"
)
TEMPLATE = (
    tagged("(APIServer pid=11) ", "ERROR:    Exception in ASGI application\n" + traceback(
        "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/...",
        ("uvicorn/protocols/http/httptools_impl.py", "run_asgi"),
        ("vllm/entrypoints/openai/api_server.py", "create_chat_completion"),
    ))
    + '(APIServer pid=11) INFO:     10.0.0.9:40112 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error\n'
)  # fmt: skip
ADAPTER = tagged("(APIServer pid=11) ERROR 05-14 08:20:20 [serving_models.py:170] ", traceback(
    "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
    ("vllm/entrypoints/openai/serving_models.py", "load_lora_adapter"),
))  # fmt: skip


@pytest.mark.parametrize("request_error", [TEMPLATE, ADAPTER])
def test_an_exception_where_a_client_is_answered_is_no_failure_of_the_server(request_error: str) -> None:
    """Also where the log ends there, or begins behind the start."""
    assert fatal(vllm("ready", tp=1) + request_error) == []
    assert fatal(STATS + request_error) == []


USAGE = "usage: launch_server.py [-h] sglang\nlaunch_server.py: error: unrecognized arguments: --nosuch 4\n"
CHECK = traceback("AssertionError: tp_size must be positive", ("sglang/launch_server.py", "<module>"),
                  ("sglang/srt/server_args.py", "__post_init__"))  # fmt: skip
OTHERS = traceback("KeyError: 'API_KEY'", ("app/proxy.py", "<module>"), ("app/proxy.py", "main"))
REFUSED = traceback(
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='llm', port=30000): Max retries exceeded",
    ("app/bench.py", "<module>"), ("usr/lib/python3/requests/adapters.py", "send"),
)  # fmt: skip


@pytest.mark.parametrize("other", [OTHERS, REFUSED], ids=["proxy", "bench"])
def test_another_program_that_writes_to_the_same_log_is_not_the_server(other: str) -> None:
    """A sidecar or a client, also while the server still starts; a script that starts the engine has its frames."""
    loading = sglang("weight-load", tp=2)
    assert fatal(sglang("serving", tp=2) + other) == []
    assert fatal(loading + other + sglang("graph-capture", tp=2).removeprefix(loading)) == []
    own = other.replace("app/proxy.py", "app/sglang/launch_server.py").replace("app/bench.py", "app/sglang/bench.py")
    assert fatal(loading + own)
    # With nothing behind it, it may be the script that started the engine.
    assert [each.confidence for each in fatal(loading + other)] == [Confidence.LOW]


@pytest.mark.parametrize("place", ["vllm/lib/python3.12/site-packages/requests/api.py", "vllm-bench/client.py",
                                   "vllm/lib/python3.12/json/decoder.py", "vllm/bin/bench.py"])  # fmt: skip
def test_an_environment_that_is_called_like_the_engine_is_not_the_engine(place: str) -> None:
    head = vllm("args", tp=1)
    rest = vllm("ready", tp=1).removeprefix(head)
    other = traceback("KeyError: 'API_KEY'", ("app/proxy.py", "<module>"), (place, "get"))
    assert fatal(head + other + rest) == []
    assert fatal(vllm("ready", tp=1) + other) == []
    assert fatal(vllm("ready", tp=1) + other.replace(place, "vllm/lib/python3.12/site-packages/vllm/v1/x.py"))


SPAWNED = (("usr/lib/python3.12/multiprocessing/spawn.py", "spawn_main"),
           ("usr/lib/python3.12/multiprocessing/spawn.py", "_main"))  # fmt: skip
STRING = 'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'


def spawned(error: str, *frames: tuple[str, str]) -> str:
    """What Python prints of a child that failed before any code of the engine ran in it."""
    return STRING + traceback(error, *SPAWNED, *frames).partition("\n")[2]


SYNCHRONIZE = ("usr/lib/python3.12/multiprocessing/synchronize.py", "__setstate__")
TORCH = ("venv/lib/python3.12/site-packages/torch/__init__.py", "<module>")


@pytest.mark.parametrize("head", [sglang("args", tp=2), vllm("args", tp=2)], ids=["sglang", "vllm"])
@pytest.mark.parametrize(
    ("child", "cause"),
    [
        (spawned("OSError: [Errno 28] No space left on device", SYNCHRONIZE), "disk-full"),
        (spawned("ImportError: /venv/lib/libtorch_cuda.so: undefined symbol: ncclMemFree", TORCH), "binary-mismatch"),
        (spawned("FileNotFoundError: [Errno 2] No such file or directory", SYNCHRONIZE), "bad-argument"),
    ],
    ids=["disk", "torch", "semaphore"],
)
def test_a_child_that_the_engine_spawned_is_the_engines_own(head: str, child: str, cause: str) -> None:
    """Its frames are Python's and torch's: none is of the engine's package."""
    assert verdict(head + child).cause == cause


@pytest.mark.parametrize(
    "words",
    [
        "[2026-03-01 10:01:30] Error in processing image\n"
        + traceback(
            "PIL.UnidentifiedImageError: cannot identify image file", ("sglang/srt/multimodal/base.py", "load")
        ),
        "[2026-03-01 10:01:30] Error in detect_and_parse: Expecting value: line 1 column 1 (char 0)\n"
        + traceback("json.decoder.JSONDecodeError: Expecting value", ("sglang/srt/function_call/qwen.py", "parse")),
    ],
)
def test_what_a_ready_server_says_of_one_request_ends_it_not(words: str) -> None:
    assert fatal(sglang("ready", tp=1) + words) == []


def test_what_a_shell_tells_of_a_client_that_was_killed_is_not_the_server() -> None:
    shell = "/entrypoint.sh: line 8:   77 Killed                  python3 warmup_client.py\n"
    before, ready = sglang("graph-capture", tp=1), sglang("ready", tp=1)
    assert fatal(before + shell + ready.removeprefix(before)) == []
    assert fatal(before + shell)


def test_what_announces_a_requests_traceback_announces_no_other() -> None:
    asked = "[2026-03-01 10:01:30] Error in request: The input (61709 tokens) is longer than the context length.\n"
    asked += traceback("ValueError: The input (61709 tokens) is longer than the context length.",
                       ("sglang/srt/entrypoints/openai/serving_base.py", "handle_request"))  # fmt: skip
    own = "[2026-03-01 10:01:31] " + traceback(OOM.format(tried="2.00 GiB"), ("sglang/srt/managers/x.py", "run_batch"))
    assert fatal(sglang("ready", tp=1) + asked) == []
    assert fatal(sglang("ready", tp=1) + asked + own)
    assert fatal(sglang("ready", tp=2) + asked + own.replace("31]", "31 TP0]"))


def test_another_programs_exception_before_anything_is_known_gives_way_to_the_engines() -> None:
    finding = verdict(OTHERS + USAGE)
    assert (finding.cause, finding.confidence) == ("bad-argument", Confidence.HIGH)
    assert verdict(OTHERS + sglang("args", tp=1).replace("server_args=", "x=") + CHECK).cause == "bad-argument"


def test_an_engine_that_died_is_told_by_the_requests_that_met_it() -> None:
    dead = tagged("(APIServer pid=11) ERROR 05-14 08:20:20 [serving_chat.py:170] ", traceback(
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the"
        " root cause.", ("vllm/entrypoints/openai/serving_chat.py", "create_chat_completion"),
    ))  # fmt: skip
    assert [each.severity for each in fatal(STATS + dead)] == [Severity.FATAL]


def test_a_client_that_left_is_nobodys_failure() -> None:
    """Another line came between asyncio's own two and the traceback."""
    text = sglang("serving", tp=2) + (
        "[2026-03-01 10:02:20] Task exception was never retrieved\n"
        '[2026-03-01 10:02:20] INFO:     127.0.0.1:5688 - "GET /health HTTP/1.1" 200 OK\n'
        "future: <Task finished name='Task-12' exception=ConnectionResetError(104, 'Connection reset by peer')>\n"
    )
    gone = traceback("ConnectionResetError: [Errno 104] Connection reset by peer",
                     ("uvicorn/protocols/http/h11_impl.py", "run_asgi"))  # fmt: skip
    assert fatal(text + gone) == []


def test_a_message_ends_where_pythons_process_tells_of_its_end() -> None:
    text = vllm("dist-init", tp=1) + core("OSError: [Errno 28] No space left on device")
    finding = verdict(text)
    assert finding.cause == "disk-full"
    assert "Process EngineCore" not in str(shown(finding)["error"])


def test_lines_that_are_logged_twice_say_the_same() -> None:
    text = vllm("kv-alloc", tp=1) + core("RuntimeError: CUDA error: an illegal memory access was encountered")
    twice = "".join(f"{line}\n{line}\n" for line in text.rstrip("\n").split("\n"))
    assert verdict(twice).cause == verdict(text).cause == "illegal-memory-access"


def test_the_word_of_a_child_that_failed_is_no_cause() -> None:
    finding = verdict(sglang("graph-capture", tp=2) + SIGQUIT)
    assert (finding.cause, finding.confidence) == ("inconclusive", Confidence.LOW)
    assert "only follows from" in finding.explanation


def test_a_bar_tells_the_phase_where_the_line_that_begins_it_is_missing() -> None:
    text = vllm("dist-init", tp=1) + (
        "(EngineCore_DP0 pid=22) Loading safetensors checkpoint shards:  25% Completed | 4/16 [00:10<00:30,  2.5s/it]\n"
        "(APIServer pid=11) ERROR 05-14 08:16:20 [core_client.py:562] Engine core proc EngineCore_DP0 died"
        " unexpectedly, shutting down client.\n"
    )
    assert (verdict(text).cause, verdict(text).phase) == ("rank-died", "weight-load")


def test_a_bus_error_may_be_shared_memory() -> None:
    died = "[2026-03-01 10:00:40] Rank 1 scheduler died during initialization (exit code: -7).\n"
    finding = verdict(sglang("weight-load", tp=2) + died)
    assert (finding.cause, finding.ranks) == ("rank-died", (1,))
    assert finding.remedies[0].flag == "--shm-size"


def test_a_log_of_consequences_says_that_it_is_one() -> None:
    error = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    text = vllm("args", tp=1) + tagged("(APIServer pid=11) ", traceback(error, ("bin/vllm", "<module>")))
    finding = verdict(text)
    assert (finding.cause, finding.confidence) == ("inconclusive", Confidence.LOW)
    assert "only follows from" in finding.explanation
    assert "NCCL_DEBUG" not in str(finding.remedies)


def test_tracebacks_that_torch_puts_a_rank_before_are_read() -> None:
    text = (
        "INFO 03-22 18:40:47 [llm_engine.py:240] Initializing a V0 LLM engine (v0.8.2) with config: model='/m/x'\n"
        "INFO 03-22 18:41:00 [model_runner.py:1146] Model loading took 14.99 GB and 5.1 seconds\n"
    )
    frames = (("run.py", "<module>"), ("vllm/worker/worker.py", "determine_num_available_blocks"),
              ("vllm/worker/model_runner.py", "profile_run"))  # fmt: skip
    finding = verdict(text + tagged("[rank0]: ", traceback(OOM.format(tried="2.32 GiB"), *frames)))
    assert (finding.cause, finding.ranks) == ("profile-run-oom", (0,))


def test_a_process_that_crashed_of_an_illegal_access_is_the_rank_that_the_launcher_names() -> None:
    finding = verdict(
        sglang("serving", tp=2) + "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered\n"
        "Fatal Python error: Aborted\n"
        "[2026-03-01 10:03:01] Subprocess scheduler_1 (pid=1256) crashed with exit code -6. Triggering SIGQUIT for"
        " cleanup...\n"
    )
    assert (finding.cause, finding.ranks) == ("illegal-memory-access", (1,))


# --- Words ------------------------------------------------------------------------------------------------------------


def test_a_hanging_pass_of_one_gpu_waits_for_no_other_rank() -> None:
    watchdog = "[2026-03-01 10:09:00{tag}] Watchdog timeout (self.watchdog_timeout=300)\n"
    alone = verdict(sglang("serving", tp=1) + watchdog.format(tag="") + SIGQUIT)
    assert alone.cause == "watchdog-hang"
    assert not {"disable_custom_all_reduce", "NCCL_DEBUG"} & set(proposed(alone))
    assert "collective" not in alone.explanation
    two = verdict(sglang("serving", tp=2) + watchdog.format(tag=" TP1") + SIGQUIT)
    assert {"disable_custom_all_reduce", "NCCL_DEBUG", "watchdog_timeout"} <= set(proposed(two))


def test_more_time_is_asked_of_whoever_counted_it() -> None:
    nccl = (
        "[rank1]:[E301 10:12:00.123 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) ran for 600012"
        " milliseconds before timing out.\n"
    )
    finding = verdict(sglang("serving", tp=2) + nccl)
    assert (finding.cause, finding.ranks) == ("watchdog-hang", (1,))
    assert "dist_timeout" in proposed(finding)
    assert "watchdog_timeout" not in proposed(finding)


def test_an_error_of_python_code_says_where_and_asks_for_no_debugging_of_cuda() -> None:
    error = "AttributeError: 'NoneType' object has no attribute 'decode'"
    finding = verdict(sglang("serving", tp=1) + raised("", *PASS, error=error) + SIGQUIT)
    assert (finding.cause, finding.confidence) == ("inconclusive", Confidence.LOW)
    assert shown(finding)["raised in"] == "scheduler.py, run_batch"
    assert [each.knob for each in finding.remedies] == ["version"]


def test_a_warm_up_that_was_answered_wrongly_is_the_warm_ups() -> None:
    text = sglang("graph-capture", tp=1) + (
        "[2026-03-01 10:00:53] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)\n"
        "[2026-03-01 10:02:55] Initialization failed. warmup error: "
    )
    error = "AssertionError: res=<Response [503]>, res.text='squid'"
    finding = verdict(text + traceback(error, ("srt/entrypoints/http_server.py", "_execute_server_warmup")))
    assert finding.phase == "warmup"
