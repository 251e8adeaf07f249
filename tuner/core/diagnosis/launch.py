"""Causes in the launch: arguments, the LLM and its files, ports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import first_line, option, variable
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Sign

_PORTS = ("port-in-use", "rank-port-in-use")
_CHOSEN_BY_ARGUMENT = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)+")
_NAMED = re.compile(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b")
_REFUSALS = frozenset({"ValueError", "AssertionError", "ValidationError", "NotImplementedError", "TypeError", "KeyError",
                       "ArgumentError", "RuntimeError", "AttributeError"})  # fmt: skip
_IN_ARGUMENTS = ("server_args.py", "arg_groups", "arg_utils.py", "prepare_server_args", "parse_args", "argparse.py",
                 "create_engine_config", "vllm/config", "check_server_args", "__post_init__")  # fmt: skip
_LLM_FILES = re.compile(r"\.(?:json|safetensors|bin|gguf|model|pt|pth|jinja|txt)$|safetensors|\.bin files")
_LOADER = ("loader.py", "weight_utils", "load_model", "hf_transformers", "get_config", "transformers/", "tokenizer",
           "huggingface_hub", "model_config")  # fmt: skip
_UNSUPPORTED = (
    "are not supported for now", "does not recognize this architecture", "failed to be inspected", "has no vLLM impl",
    "has no SGlang impl", "has no SGLang impl", "Unknown quantization method", "does not match the quantization method",
    "is not supported for the current GPU", "is not supported for quantization method", "No model architectures",
    "Unsupported architectures", "Unsupported model type", "Unrecognized model in", "nrecognized configuration class",
    "is not divisible by weight quantization", "too large tensor parallel size",
)  # fmt: skip


def port_in_use(case: Case) -> Finding | None:
    """A port that the server wants is taken."""
    sign = case.root_sign(*_PORTS)
    if sign is None:
        return None
    said = next((s for s in (sign, *case.signs(*_PORTS)) if s.fields.get("port") is not None), None)
    port = said.fields.get("port") if said is not None else None
    http = case.setting("port")
    inside = case.root is not None and case.root.failure is not None and port is not None and port != http
    errno = next((s for s in (sign, *case.signs(*_PORTS)) if s.fields.get("errno") is not None), None)
    ready = case.start.ready_at is not None
    shown = port if port is not None else http
    name = f"Port {shown}" if shown is not None else "A port"
    which = "the ranks meet there" if inside else "clients are served there"
    seen = " Later lines say that the server is ready; it is not: nobody can reach it." if ready else ""
    late = case.start.engine == "sglang" and not inside
    return case.finding(
        "port-in-use",
        f"{name} is taken ({which}): an earlier server that still runs, another program, or with --network host"
        f" another container.{' SGLang asks for it only after everything is loaded.' if late else ''}{seen}",
        evidence=[
            case.quote("port", said, "port") if said is not None else case.arg("port"),
            case.quote("errno", errno, "errno") if errno is not None else None,
            case.quote("address", said, "address_host") if said is not None else None,
            Evidence(what="error", value=str(sign.fields.get("error") or first_line(sign.text)), at=sign.at),
        ],
        remedies=[
            *([option(case, "nccl_port", "--nccl-port", Move.SET, "a free port for the ranks")]
              if inside and case.start.engine == "sglang" else []),
            option(case, "port", "--port", Move.SET,
                   "another port: internal ones are counted from it" if inside else "another port"),
            case.advice("listener", f"ss -ltnp 'sport = :{shown}' shows who listens" if shown is not None else
                        "ss -ltnp shows who listens on which port"),
        ],
        wrong_advice=["`The server is fired up and ready to roll!` in this log"] if ready else [],
        refuted_by=f"nothing listening on {f'port {shown}' if shown is not None else 'that port'} when it is started"
                   " again",
        phase=_port_phase(case, inside),
    )  # fmt: skip


def _port_phase(case: Case, inside: bool) -> str | None:
    """The HTTP port is asked for first by vLLM, and last by SGLang."""
    if inside or (case.root is not None and case.root.failure is not None and case.phase not in ("none", "kv-alloc")):
        return None
    return "args" if case.start.engine == "vllm" or not case.start.ranks else "warmup"


def refused_by_parser(case: Case) -> Finding | None:
    """The command line's own parser refused it."""
    sign = case.root_sign("argument-error")
    if sign is None:
        return None
    fields = sign.fields
    asked = fields.get("argument") or fields.get("ambiguous")
    detail = str(fields.get("error") or fields.get("detail") or sign.text)
    unknown = fields.get("unrecognized") or fields.get("unknown")
    if asked is None:
        asked = _first_flag(str(unknown or detail))
    asked = str(asked).split("/")[0] if asked is not None else None
    value = fields.get("value")
    new = _spelled_now(case, asked) if asked is not None else None
    required = fields.get("required") or fields.get("missing")
    return case.finding(
        "bad-argument",
        f"The command line was refused before anything was started: {first_line(detail, 200)}.{_renamed(asked, new)}",
        evidence=[
            Evidence(what="argument", value=asked, at=sign.at) if asked is not None else None,
            Evidence(what="value", value=str(value), at=sign.at) if value is not None else None,
            Evidence(what="required", value=str(required), at=sign.at) if required is not None else None,
            Evidence(what="error", value=first_line(detail), at=sign.at),
        ],
        remedies=[_for_flag(case, asked, new, value, fields)] if asked is not None else
        [case.advice("arguments", "--help lists what this version takes")],
        refuted_by="the same command accepted by the same version",
        phase="args",
        ranks=None,
    )  # fmt: skip


def _first_flag(text: str) -> str | None:
    found = re.search(r"(?<![\w-])--?[A-Za-z][\w.-]*", text)
    return found[0] if found is not None else None


def _spelled_now(case: Case, asked: str) -> str | None:
    """How this version spells what an old flag means."""
    spelling = case.engine.knob(asked.lstrip("-").replace("-", "_"), case.start.version)
    return spelling.text if spelling is not None else None


def _renamed(asked: str | None, new: str | None) -> str:
    return f" This version calls it {new}." if asked and new and new != asked else ""


def _for_flag(case: Case, asked: str, new: str | None, value: object, fields: dict[str, object]) -> Remedy:
    if new is not None and new != asked:
        return Remedy(knob=asked.lstrip("-").replace("-", "_"), flag=new, move=Move.SET,
                      why=f"{asked} is spelled {new} in this version")  # fmt: skip
    candidates = str(fields.get("candidates") or fields.get("matches") or "")
    if candidates:
        return case.advice(asked.lstrip("-").replace("-", "_"), f"write one of them out: {candidates}", flag=asked)
    if value is not None:
        choices = str(fields.get("choices") or "")
        knob = asked.lstrip("-").replace("-", "_")
        why = f"one of {choices[:300]}" if choices else "a value that this argument takes; --help lists them"
        return Remedy(knob=knob, flag=asked, move=Move.SET, why=why)
    return Remedy(knob=asked.lstrip("-").replace("-", "_"), flag=asked, move=Move.UNSET,
                  why="this version does not take it; --help lists what it takes")  # fmt: skip


def context_too_long(case: Case) -> Finding | None:
    """A longer context than the LLM was made for."""
    sign = case.root_sign("context-too-long")
    if sign is None:
        return None
    asked, derived = sign.fields.get("asked"), sign.fields.get("derived")
    return case.finding(
        "bad-argument",
        f"A context of {asked} tokens was asked for, and the LLM's own configuration allows {derived}. It is a limit of"
        " the LLM, not of memory.",
        evidence=[case.quote("asked", sign, "asked", "tokens"), case.quote("derived", sign, "derived", "tokens")],
        remedies=[
            case.remedy("context_length", Move.LOWER, f"at most {derived} by its configuration",
                        value=derived, most=derived)
        ],
        wrong_advice=["the variable that allows more: positions the LLM never saw give wrong answers, and with RoPE"
                      " faults"],
        refuted_by="a larger max_position_embeddings, or RoPE scaling, in the LLM's config.json",
        phase="args",
    )  # fmt: skip


def not_divisible(case: Case) -> Finding | None:
    """Attention heads cannot be dealt out to so many ranks."""
    sign = case.root_sign("heads-not-divisible")
    if sign is None:
        return None
    heads, parts = sign.fields.get("heads"), sign.fields.get("parts")
    fits = [n for n in (1, 2, 4, 8, 16, 32) if isinstance(heads, int) and heads % n == 0]
    smaller = max((n for n in fits if isinstance(parts, int) and n < parts), default=None)
    return case.finding(
        "bad-argument",
        f"{heads} attention heads cannot be dealt out to {parts} ranks evenly.",
        evidence=[
            case.quote("heads", sign, "heads"),
            case.quote("tensor parallel size", sign, "parts"),
            case.arg("tp_size", "tensor_parallel_size"),
        ],
        remedies=[
            case.remedy("tp_size", Move.LOWER, "a size that divides the heads", value=smaller, most=smaller),
            case.remedy("pp_size", Move.RAISE, "layers instead of heads for the other GPUs"),
        ],
        refuted_by="a number of heads in config.json that the size divides",
    )


def more_ranks_than_gpus(case: Case) -> Finding | None:
    """More ranks than visible GPUs."""
    sign = case.root_sign("more-ranks-than-gpus", "invalid-device")
    if sign is None:
        return None
    world, gpus = sign.fields.get("world"), sign.fields.get("gpus")
    numbers = f" {world} ranks, {gpus} GPUs." if gpus is not None else ""
    return case.finding(
        "bad-argument",
        f"A rank was given a GPU that is not there.{numbers} The sizes of parallelism ask for more GPUs than this"
        " process sees.",
        evidence=[
            case.quote("world size", sign, "world"),
            case.quote("GPUs", sign, "gpus"),
            case.arg("tp_size", "tensor_parallel_size"),
            case.arg("pp_size", "pipeline_parallel_size"),
            case.arg("dp_size", "data_parallel_size"),
            case.arg("base_gpu_id"),
            Evidence(what="error", value=first_line(case.message.replace("\n", " ")), at=sign.at),
        ],
        remedies=[
            case.remedy("tp_size", Move.LOWER, "as many ranks as GPUs", most=gpus if isinstance(gpus, int) else None),
            variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "as many GPUs as ranks, and only such as exist"),
            case.advice("nvidia-smi", "nvidia-smi -L inside the container lists them"),
        ],
        refuted_by="nvidia-smi -L inside the container listing as many GPUs as there are ranks",
    )


def batched_tokens(case: Case) -> Finding | None:
    """vLLM: a batch that is shorter than what has to fit into it."""
    sign = case.root_sign("batched-tokens-short")
    if sign is None:
        return None
    bound = sign.fields.get("bound")
    other = str(sign.fields.get("bound_name"))
    return case.finding(
        "bad-argument",
        f"max_num_batched_tokens ({sign.fields.get('batched_tokens')}) is less than {other} ({bound}), and without"
        " chunked prefill one request has to fit into one batch.",
        evidence=[
            case.quote("max_num_batched_tokens", sign, "batched_tokens", "tokens"),
            case.quote(other, sign, "bound", "tokens" if other == "max_model_len" else "requests"),
        ],
        remedies=[
            case.remedy("max_num_batched_tokens", Move.RAISE, f"at least {other}", value=bound, least=bound),
            case.remedy("context_length" if other == "max_model_len" else "max_running_requests", Move.LOWER,
                        "or less of the other", most=sign.fields.get("batched_tokens")),
            case.remedy("enable_chunked_prefill", Move.SET, "then a request may be longer than a batch", value=True)
            if other == "max_model_len" else None,
        ],
        refuted_by="chunked prefill switched on",
        phase="args",
    )  # fmt: skip


def llm_not_found(case: Case) -> Finding | None:
    """A path, name or revision that leads to no usable LLM."""
    unsupported = any(text in case.message for text in _UNSUPPORTED)
    denied = case.root_sign("model-access-denied")
    offline = case.root_sign("download-failed")
    damaged = case.root_sign("checkpoint-damaged")
    missing = None if unsupported else case.root_sign("model-not-found", "tokenizer-failed") or _file_of_llm(case)
    sign = denied or missing or offline or damaged
    if sign is None or case.root_sign("remote-code-needed") is not None:
        return None
    name = sign.fields.get("model") or case.setting("model_path", "model")
    named = f"`{name}`" if name else "The LLM"
    words, remedies = _not_found_words(case, named, denied, offline, damaged, missing)
    return case.finding(
        "model-not-found",
        words,
        evidence=[
            Evidence(what="model", value=str(name), at=sign.at) if name else None,
            case.quote("status", sign, "status"),
            case.quote("file", sign, "file_path") or case.quote("file", sign, "file"),
            case.quote("error", sign, "error"),
            Evidence(what="error", value=_told(case), at=sign.at),
        ],
        remedies=remedies,
        refuted_by="the files at that path, complete, readable by the user the server runs as",
        phase="args" if case.phase in ("none", "args") else None,
        confidence=Confidence.HIGH if sign.id != "tokenizer-failed" else Confidence.MEDIUM,
    )


def _not_found_words(
    case: Case, named: str, denied: Sign | None, offline: Sign | None, damaged: Sign | None, missing: Sign | None
) -> tuple[str, list[Remedy | None]]:
    path = option(case, "model_path", "--model-path", Move.SET,
                  "an absolute path inside the container that holds config.json and the weights, or NAMESPACE/NAME")  # fmt: skip
    if denied is not None:
        return (
            f"{named} may not be downloaded: it is gated or private, and no token of somebody with access was sent.",
            [variable(case, "HF_TOKEN", Move.SET, "a token of an account that was granted access"),
             case.advice("licence", "accept the terms on the LLM's page first"), path],
        )  # fmt: skip
    if damaged is not None and missing is None:
        return (
            f"A file of {named} is damaged or incomplete: a download that was cut off, a full disk, or a pointer of"
            " git-lfs instead of the file.",
            [case.advice("files", "ls -l: a weight file of some hundred bytes is a pointer; download it again"), path],
        )
    if offline is not None and missing is None:
        return (
            f"{named} is not in the cache, and the hub cannot be reached from here.",
            [path, variable(case, "HF_ENDPOINT", Move.SET, "a mirror that is reachable"),
             variable(case, "HF_HUB_OFFLINE", Move.UNSET, "where it forbids the download")],
        )  # fmt: skip
    return (
        f"{named} leads to no usable LLM: there is no such path here, or it lacks a file, or the hub has no such name."
        " A path that does not exist is taken for a name of the hub, whose complaint is about the name's form.",
        [path, case.advice("mounts", "ls the path inside the container: volumes that are not mounted look so")],
    )


def _file_of_llm(case: Case) -> Sign | None:
    sign = case.root_sign("file-missing", "file-denied")
    if sign is None:
        return None
    path = str(sign.fields.get("file_path") or sign.fields.get("error") or "")
    own = str(case.setting("model_path", "model") or "\0")
    if (path.startswith(own) or _LLM_FILES.search(path)) and (case.on_stack(*_LOADER) or not case.frames):
        return sign
    return None


def unsupported_llm(case: Case) -> Finding | None:
    """The engine cannot run this LLM with these arguments."""
    code = case.root_sign("remote-code-needed")
    mismatch = case.root_sign("weights-mismatch", "block-not-divisible")
    spoken = next((text for text in _UNSUPPORTED if text in case.message), None)
    if case.root is None or (code is None and mismatch is None and spoken is None):
        return None
    sign = code or mismatch or case.root_sign("model-not-found")
    at = sign.at if sign is not None else case.root.at
    quantised = "uantization" in (spoken or "")
    divided = "divisible" in case.message or "tensor parallel size" in case.message
    if code is not None:
        words = "The LLM brings code of its own, which the engine runs only when it is told to."
    elif divided:
        words = "A weight matrix, divided among the ranks, no longer consists of whole blocks of its quantisation."
    elif mismatch is not None:
        words = "Shapes of the weights do not fit the LLM that this version builds from its configuration."
    elif quantised:
        words = "This version, or this GPU, does not run the quantisation of the LLM."
    else:
        words = "This version does not know the architecture of the LLM."
    model = case.setting("model_path", "model")
    return case.finding(
        "unsupported-model",
        f"{words} Memory plays no part.",
        evidence=[
            Evidence(what="model", value=str(model), at=case.start.settings_at) if model else None,
            case.quote("architectures", sign, "architectures") if sign is not None else None,
            case.quote("parameter", sign, "parameter") if sign is not None else None,
            case.quote("size", sign, "size") if sign is not None else None,
            case.quote("block", sign, "block") if sign is not None else None,
            case.arg("quantization"),
            Evidence(what="error", value=_told(case), at=at),
        ],
        remedies=[
            option(case, "trust_remote_code", "--trust-remote-code", Move.SET, "if you trust that code", True)
            if code is not None else None,
            case.remedy("tp_size", Move.LOWER, "larger parts are whole blocks again") if divided else None,
            case.remedy("quantization", Move.UNSET, "the checkpoint's own is taken then") if quantised else None,
            None if code is not None or divided else
            case.advice("version", "newer versions of the engine and of transformers know more LLMs"),
        ],
        refuted_by="the same version serving the same checkpoint elsewhere with these arguments",
        phase="args" if case.phase == "none" else None,
        confidence=Confidence.MEDIUM if mismatch is not None and not divided else Confidence.HIGH,
    )  # fmt: skip


def refused_by_engine(case: Case) -> Finding | None:
    """The engine's own checks of its arguments refused them: its words are the finding."""
    root = case.root
    failure = root.failure if root is not None else None
    if failure is None or failure.exception not in _REFUSALS:
        return None
    validated = case.root_sign("validation-error") is not None or failure.exception == "ValidationError"
    if not validated and not (case.phase in ("args", "none") and case.on_stack(*_IN_ARGUMENTS)):
        return None
    if case.start.ranks and not validated:
        return None
    said = _told(case)
    flags = list(dict.fromkeys(_CHOSEN_BY_ARGUMENT.findall(failure.message)))
    names = [n for n in dict.fromkeys(_NAMED.findall(failure.message)) if n in case.start.settings or _is_knob(case, n)]
    remedies = list(_for_names(case, flags, names))
    return case.finding(
        "bad-argument",
        f"The engine refuses its arguments: {said.rstrip('.')}. Nothing was loaded yet.",
        evidence=[
            Evidence(what="error", value=said, at=failure.message_at),
            *(case.arg(name) for name in names[:4]),
        ],
        remedies=remedies or [case.advice("arguments", "what the message names; --help lists what is allowed")],
        refuted_by="the same arguments accepted by the same version",
        phase="args" if case.phase in ("none", "args") else None,
        confidence=Confidence.HIGH if flags or names or validated else Confidence.MEDIUM,
    )


def _is_knob(case: Case, name: str) -> bool:
    return case.engine.knob(name, case.start.version) is not None


def _for_names(case: Case, flags: Iterable[str], names: Iterable[str]) -> Iterable[Remedy | None]:
    seen: set[str] = set()
    for name in (*(flag.lstrip("-").replace("-", "_") for flag in flags), *names):
        if name not in seen and len(seen) < 3:
            seen.add(name)
            flag = f"--{name.replace('_', '-')}"
            yield option(case, name, flag, Move.OTHER, "as the message says")


def _told(case: Case) -> str:
    """The message without its wrapping: pydantic puts a count before it."""
    root = case.root
    if root is None:
        return ""
    if root.failure is None:
        return first_line(case.message)
    for line in root.failure.message.splitlines():
        text = line.strip()
        if text.startswith(("Value error, ", "Assertion failed, ")):
            return text.partition(", ")[2].partition(" [type=")[0][:240]
    return first_line(root.failure.message) or root.failure.exception


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (
    port_in_use,
    refused_by_parser,
    context_too_long,
    not_divisible,
    more_ranks_than_gpus,
    batched_tokens,
    unsupported_llm,
    llm_not_found,
    refused_by_engine,
)
