"""Judges of the launch: arguments, the LLM and its files, ports."""

from __future__ import annotations

import pytest

from tests.support.small_logs import (
    SIGQUIT,
    findings,
    proposed,
    raised,
    sglang,
    shown,
    verdict,
    vllm,
    wrong_and_sure,
)
from tuner.domain.findings import Confidence

USAGE = "usage: launch_server.py [-h] --model-path MODEL_PATH [--attention-backend {triton,fa3}] sglang\n"
SERVE = 'Traceback (most recent call last):\n  File "/venv/bin/vllm", line 8, in <module>\n    sys.exit(main())\n'


def vllm_args(error: str) -> str:
    return (
        vllm("args") + SERVE + '  File "/venv/vllm/engine/arg_utils.py", line 2240, in create_engine_config\n'
        "    model_config = self.create_model_config()\n" + error + "\n"
    )


def pydantic(message: str, config: str = "ModelConfig") -> str:
    return vllm_args(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {config}\n  Value error, {message}"
        " [type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.11/v/value_error"
    )


def sglang_args(error: str, *frames: tuple[str, str]) -> str:
    places = frames or (("srt/server_args.py", "__post_init__"),)
    lines = "".join(f'  File "/opt/sglang/{path}", line 11, in {name}\n    x()\n' for path, name in places)
    return (
        f'Traceback (most recent call last):\n  File "/opt/sglang/launch_server.py", line 6, in'
        f" <module>\n{lines}{error}\n"
    )


# --- The parser of the command line -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "argument", "value"),
    [
        ("launch_server.py: error: argument --attention-backend: invalid choice: 'nosuch' (choose from"
         " 'triton', 'fa3')",
         "--attention-backend", "nosuch"),
        ("sglang serve: error: argument --kv-cache-dtype: invalid choice: 'fp4' (choose from auto, fp8_e5m2)",
         "--kv-cache-dtype", "fp4"),
        ("launch_server.py: error: argument --tensor-parallel-size/--tp-size: invalid int value: 'two'",
         "--tensor-parallel-size", "two"),
        ("launch_server.py: error: unrecognized arguments: --enable-nosuch 4", "--enable-nosuch", None),
        ("launch_server.py: error: argument --port: expected one argument", "--port", None),
    ],
)  # fmt: skip
def test_a_refused_command_line_names_the_argument(line: str, argument: str, value: str | None) -> None:
    finding = verdict(USAGE + line + "\n")
    assert (finding.cause, finding.phase, finding.ranks) == ("bad-argument", "args", None)
    assert finding.confidence is Confidence.HIGH
    assert shown(finding)["argument"] == argument
    assert shown(finding).get("value") == value
    assert finding.remedies[0].flag == argument


@pytest.mark.parametrize(
    "line",
    [
        "launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode,"
        " --cuda-graph-max-bs-prefill",
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode,"
        " --cuda-graph-max-bs-prefill",
    ],
)
def test_a_renamed_flag_is_given_its_new_name(line: str) -> None:
    finding = verdict(USAGE + line + "\n")
    assert finding.cause == "bad-argument"
    assert finding.remedies[0].flag == "--cuda-graph-max-bs-decode"
    assert "--cuda-graph-max-bs-decode" in finding.explanation


def test_a_missing_argument_is_said() -> None:
    finding = verdict(USAGE + "launch_server.py: error: the following arguments are required: --model-path/--model\n")
    assert shown(finding)["required"] == "--model-path/--model"


def test_an_error_of_a_compiler_is_no_refused_argument() -> None:
    text = sglang("serving") + "kernel.cu(12): error: argument of type int is incompatible with parameter\n"
    assert findings(text) == ()


# --- The engine's own checks ------------------------------------------------------------------------------------------


def test_a_context_longer_than_the_llm_allows_is_bounded_by_it() -> None:
    finding = verdict(pydantic(
        "User-specified max_model_len (200000) is greater than the derived max_model_len"
        " (max_position_embeddings=131072.0 or model_max_length=None in model's config.json)."
    ))  # fmt: skip
    assert (finding.cause, finding.phase) == ("bad-argument", "args")
    assert (shown(finding)["asked"], shown(finding)["derived"]) == (200000, 131072)
    (remedy,) = finding.remedies
    assert (remedy.flag, remedy.move, remedy.max) == ("--max-model-len", "lower", 131072)


def test_sglang_words_it_alike() -> None:
    finding = verdict(sglang("args") + sglang_args(
        "ValueError: User-specified context_length (262144) is greater than the derived context_length (131072)."
        " This may lead to incorrect model outputs or CUDA errors.", ("srt/configs/model_config.py", "__init__")
    ))  # fmt: skip
    assert finding.remedies[0].flag == "--context-length"
    assert finding.remedies[0].max == 131072


@pytest.mark.parametrize(
    ("text", "most"),
    [
        (pydantic("Total number of attention heads (28) must be divisible by tensor parallel size (8)."), 4),
        (sglang("weight-load", tp=8) + raised("TP3", ("srt/models/x.py", "load_model"),
                                              error="AssertionError: 14 is not divisible by 4"), 2),
    ],
)  # fmt: skip
def test_heads_that_cannot_be_divided_ask_for_a_size_that_divides_them(text: str, most: int) -> None:
    finding = verdict(text)
    assert finding.cause == "bad-argument"
    assert proposed(finding)["tp_size"] == ("lower", most)


@pytest.mark.parametrize(
    "text",
    [
        vllm("args") + "(EngineCore_DP0 pid=22) ERROR 05-14 08:15:46 [core.py:1224] EngineCore failed to start.\n"
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:15:46 [core.py:1224] Traceback (most recent call last):\n"
        '(EngineCore_DP0 pid=22) ERROR 05-14 08:15:46 [core.py:1224]   File "/vllm/v1/executor.py", line 1, in init\n'
        "(EngineCore_DP0 pid=22) ERROR 05-14 08:15:46 [core.py:1224] ValueError: World size (8) is larger than the"
        " number of available GPUs (4) in this node. If this is intentional and you are using:\n",
        sglang("dist-init", tp=8) + raised("TP4", ("srt/model_runner.py", "init_torch_distributed"),
               error="RuntimeError: CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously"),
    ],
)  # fmt: skip
def test_more_ranks_than_gpus_is_a_matter_of_arguments(text: str) -> None:
    finding = verdict(text)
    assert finding.cause == "bad-argument"
    assert "CUDA_VISIBLE_DEVICES" in proposed(finding)
    assert "mem_fraction_static" not in proposed(finding)


def test_a_batch_shorter_than_a_request_has_a_bound() -> None:
    finding = verdict(pydantic(
        "max_num_batched_tokens (2048) is smaller than max_model_len (4096). This effectively limits the maximum"
        " sequence length to max_num_batched_tokens", "SchedulerConfig"))  # fmt: skip
    assert finding.remedies[0].knob in ("max_num_batched_tokens", "chunked_prefill_size", "max_prefill_tokens")
    assert (finding.remedies[0].move, finding.remedies[0].min) == ("raise", 4096)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            sglang_args("AssertionError: Please set --page-size to 64 when --attention-backend is flashmla"),
            "--page-size",
        ),
        (
            sglang_args(
                "ValueError: Cannot use --enable-dp-attention with --disable-cuda-graph",
                ("srt/server_args.py", "check_server_args"),
            ),
            "--enable-dp-attention",
        ),
        (
            pydantic("Chunked MM input disabled but max_tokens_per_mm_item (4096) is larger", "VllmConfig"),
            "Chunked MM input",
        ),
    ],
)
def test_other_refusals_are_told_in_the_engines_words(text: str, words: str) -> None:
    finding = verdict(text)
    assert (finding.cause, finding.phase) == ("bad-argument", "args")
    assert words in str(shown(finding)["error"])


def test_a_value_error_while_serving_is_no_argument() -> None:
    text = sglang("serving") + raised("TP0", ("srt/managers/scheduler.py", "event_loop_overlap"),
                                      error="ValueError: unexpected shape") + SIGQUIT  # fmt: skip
    assert verdict(text).cause != "bad-argument"


# --- The LLM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "model"),
    [
        ("OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/no/such'. Use"
         " `repo_type` argument if needed.", "/models/no/such"),
        ("OSError: Qwen/Qwen99 is not a local folder and is not a valid model identifier listed on"
         " 'https://huggingface.co/models'\nIf this is a private repository", "Qwen/Qwen99"),
        ("OSError: Incorrect path_or_model_id: '/models/no'. Please provide either the path to a local folder or the"
         " repo_id of a model on the Hub.", "/models/no"),
        ("OSError: /models/empty does not appear to have a file named config.json. Checkout"
         " 'https://huggingface.co//models/empty/tree/main' for available files.", "/models/empty"),
        ("OSError: Can't load tokenizer for '/models/y'. If you were trying to load it from"
         " 'https://huggingface.co/models', make sure", "/models/y"),
    ],
)  # fmt: skip
def test_an_llm_that_is_not_there(error: str, model: str) -> None:
    text = sglang_args(error, ("srt/utils/hf_transformers_utils.py", "get_config"))
    finding = verdict(text)
    assert (finding.cause, finding.phase) == ("model-not-found", "args")
    assert shown(finding)["model"] == model
    assert proposed(finding)["model_path"][0] == "set"


def test_an_invalid_repository_of_vllm() -> None:
    finding = verdict(pydantic("Invalid repository ID or local directory specified: '/models/no'.\nPlease verify"))
    assert (finding.cause, shown(finding)["model"]) == ("model-not-found", "/models/no")


def test_an_adapter_that_is_not_there_is_not_the_llm() -> None:
    error = (
        "RuntimeError: Failed to load LoRA adapter a: Repo id must be in the form 'repo_name' or"
        " 'namespace/repo_name': '/models/none-lora'. Use `repo_type` argument if needed."
    )
    finding = verdict(sglang("kv-alloc") + raised("TP0", ("srt/lora/lora_manager.py", "load"), error=error) + SIGQUIT)
    assert (finding.cause, shown(finding)["adapter"]) == ("model-not-found", "/models/none-lora")
    assert proposed(finding)["lora_paths"][0] == "set"
    assert "model_path" not in proposed(finding)
    assert "adapter" in finding.title and "no usable adapter" in finding.explanation


def test_an_llm_without_a_name_begins_a_sentence_only_where_it_does() -> None:
    error = "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"
    head = "".join(line for line in sglang("weight-load").splitlines(True) if "server_args" not in line)
    text = head + raised("TP1", ("srt/model_loader/loader.py", "load_model"), error=error)
    assert verdict(text).explanation.startswith("A file of the LLM is damaged")


def test_a_gated_llm_asks_for_a_token() -> None:
    finding = verdict(sglang_args(
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at"
        " https://huggingface.co/meta-llama/Llama-3.1-8B.\n401 Client Error. (Request ID: Root=1)\nCannot access gated"
        " repo for url https://huggingface.co/meta-llama/Llama-3.1-8B/resolve/main/config.json.",
        ("srt/utils/hf_transformers_utils.py", "get_config")))  # fmt: skip
    assert finding.cause == "model-not-found"
    assert finding.remedies[0].env == "HF_TOKEN"
    assert shown(finding)["model"] == "meta-llama/Llama-3.1-8B"


def test_a_name_the_hub_does_not_have_is_not_called_gated() -> None:
    finding = verdict(sglang_args(
        "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1)\n\nRepository Not Found"
        " for url: https://huggingface.co/api/models/org/nosuch/tree/main?recursive=True.",
        ("srt/model_loader/weight_utils.py", "load_model")))  # fmt: skip
    assert finding.cause == "model-not-found"
    assert "no such path" in finding.explanation


@pytest.mark.parametrize(
    "error",
    [
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the"
        " cached files.",
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "RuntimeError: Cannot find any model weights with `/models/x`",
        "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model-00003-of-00017.safetensors'",
    ],
)
def test_files_that_are_missing_or_damaged_while_weights_are_loaded(error: str) -> None:
    text = sglang("weight-load") + raised("TP1", ("srt/model_loader/loader.py", "load_model"), error=error) + SIGQUIT
    finding = verdict(text)
    assert (finding.cause, finding.phase) == ("model-not-found", "weight-load")
    assert wrong_and_sure(text, ["model-not-found"]) == []


@pytest.mark.parametrize(
    ("text", "knob"),
    [
        (pydantic("Model architectures ['Foo3ForCausalLM'] are not supported for now. Supported architectures:"
                  " dict_keys(['A'])"), "version"),
        (sglang("weight-load") + raised("TP0", ("srt/models/registry.py", "load_model"), error="ValueError: Foo"
         " has no SGlang implementation and the Transformers implementation is not compatible with SGLang."),
         "version"),
        (sglang_args("ValueError: The checkpoint you are trying to load has model type `qwen9` but Transformers"
                     " does not recognize this architecture. This could be because of an issue with the checkpoint",
                     ("srt/utils/hf_transformers_utils.py", "get_config")), "version"),
        (sglang_args("ValueError: Loading /models/x requires you to execute the configuration file in that repo on your"
                     " local machine. Make sure you have read the code, then set the option `trust_remote_code=True` to"
                     " remove this error.", ("srt/utils/hf_transformers_utils.py", "get_config")), "trust_remote_code"),
        (pydantic("The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100."
                  " Current capability: 90.", "VllmConfig"), "version"),
        (sglang("weight-load", tp=8) + raised("TP5", ("srt/layers/linear.py", "load_model"), error="ValueError: Weight"
         " output_partition_size = 192 is not divisible by weight quantization block_n = 128."), "tp_size"),
    ],
)  # fmt: skip
def test_an_llm_this_engine_cannot_run(text: str, knob: str) -> None:
    finding = verdict(text)
    assert finding.cause == "unsupported-model"
    assert knob in proposed(finding)
    assert "mem_fraction_static" not in proposed(finding)


def test_a_missing_compiler_is_not_a_missing_llm() -> None:
    text = sglang("ready") + raised("TP0", ("flashinfer/jit/core.py", "load_cuda_ops"),
                                    error="FileNotFoundError: [Errno 2] No such file or directory:"
                                          " '/usr/local/cuda/bin/nvcc'")  # fmt: skip
    assert verdict(text).cause == "jit-toolchain-missing"


# --- Ports ------------------------------------------------------------------------------------------------------------


def uvicorn(port: int) -> str:
    return (
        sglang("serving", port=port).partition("[2026-03-01 10:00:53]")[0]
        + "[2026-03-01 10:00:53] INFO:     Application startup complete.\n"
        f"[2026-03-01 10:00:53] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', {port}):"
        " address already in use\n[2026-03-01 10:00:53] INFO:     Waiting for application shutdown.\n"
    )


def test_a_taken_http_port() -> None:
    finding = verdict(uvicorn(30005))
    assert (finding.cause, finding.phase, finding.ranks) == ("port-in-use", "warmup", None)
    assert (shown(finding)["port"], shown(finding)["errno"]) == (30005, 98)
    assert "port" in proposed(finding)
    assert "nccl_port" not in proposed(finding)


def test_ready_lines_behind_it_do_not_make_it_ready() -> None:
    text = uvicorn(30005) + (
        "[2026-03-01 10:00:55] The server is fired up and ready to roll!\n"
        "[2026-03-01 10:00:55] INFO:     Application shutdown complete.\n"
        "[2026-03-01 10:00:55] Subprocess detokenizer (pid=8528) crashed with exit code -9. Triggering SIGQUIT for"
        " cleanup...\n"
    )
    finding = verdict(text)
    assert finding.cause == "port-in-use"
    assert any("fired up" in advice for advice in finding.wrong_advice)


def test_a_taken_port_of_the_ranks_names_the_rank_and_its_own_flag() -> None:
    error = ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
             " port: 29511, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use")  # fmt: skip
    text = (
        sglang("dist-init")
        + "[rank0]:[W120 02:41:02.110 socket.cpp:764] [c10d] The server socket has failed to bind to [::]:29511"
        " (errno: 98 - Address already in use).\n"
        + raised("TP0", ("torch/distributed/rendezvous.py", "_create_c10d_store"), error=error)
        + SIGQUIT
    )
    finding = verdict(text)
    assert (finding.cause, finding.phase, finding.ranks) == ("port-in-use", "dist-init", (0,))
    assert (shown(finding)["port"], shown(finding)["errno"]) == (29511, 98)
    assert {"nccl_port", "port"} <= set(proposed(finding))
    assert wrong_and_sure(text, ["port-in-use"]) == []


def test_vllm_says_no_port_and_its_arguments_do() -> None:
    text = vllm("args", port=8155) + SERVE + "OSError: [Errno 98] Address already in use\n"
    finding = verdict(text)
    assert (finding.cause, finding.phase) == ("port-in-use", "args")
    assert shown(finding)["port"] == 8155


def test_a_port_check_of_sglang() -> None:
    text = sglang_args("ValueError: Port is already in use. dist_init_port=29500")
    finding = verdict(text)
    assert (finding.cause, shown(finding)["port"]) == ("port-in-use", 29500)


def test_a_client_that_asks_about_ports_is_no_failure() -> None:
    text = sglang("serving") + (
        "[2026-03-01 10:02:00] Receive: obj=GenerateReqInput(rid='1', text='OSError: [Errno 98] Address already"
        " in use')\n"
    )
    assert findings(text) == ()


def test_an_internal_port_of_sglang_that_is_not_told_is_not_guessed() -> None:
    text = sglang_args("OSError: [Errno 98] Address already in use", ("srt/managers/io.py", "bind"))
    assert "port" not in shown(verdict(sglang("args") + text))


def test_an_adapter_of_a_higher_rank_raises_the_bound() -> None:
    finding = verdict(vllm("args") + SERVE + "ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n")
    assert (finding.cause, proposed(finding)["max_lora_rank"]) == ("bad-argument", ("raise", 64))
