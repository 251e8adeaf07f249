"""Judges of causes in the LLM's files: missing, not accessible, damaged, or not supported by the engine."""

from __future__ import annotations

import re

from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import error_told, option, quoted, variable
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Sign

_LLM_FILES = re.compile(r"\.(?:json|safetensors|bin|gguf|model|pt|pth|jinja|txt)$|safetensors|\.bin files")
_LOADER = ("loader.py", "weight_utils", "load_model", "hf_transformers", "get_config", "transformers/", "tokenizer",
           "huggingface_hub", "model_config")  # fmt: skip
_DOWNLOADS = ("huggingface_hub", "modelscope", "weight_utils", "hf_transformers", "model_loader", "transformers/")
_SHAPES = ("weights-mismatch", "block-not-divisible")


def not_found(case: Case) -> Finding | None:
    """Diagnose a path, name or revision that leads to no usable LLM or adapter."""
    if case.root_sign("llm-unsupported", *_SHAPES) is not None:
        return None
    denied = case.root_sign("llm-gated")
    offline = case.root_sign("llm-offline", "download-failed")
    offline = offline if offline is not None and _from_hub(case, offline) else None
    damaged = case.root_sign("llm-files-damaged")
    missing = case.root_sign("llm-not-found", "llm-files-missing", "tokenizer-failed") or _file_of_llm(case)
    # The hub answers for an unknown name as for one that needs a token, so `llm-not-found` takes precedence.
    sign = missing if missing is not None and missing.id == "llm-not-found" else denied or missing or offline or damaged
    if sign is None:
        return None
    adapter = case.root_sign("adapter-failed")
    own = adapter.fields["name"] if adapter is not None else case.start.model
    name = sign.fields.get("model") or own
    words, remedies = _words(case, f"`{name}`" if name else "the LLM", sign, adapter=adapter is not None)
    return case.finding(
        "model-not-found",
        words[:1].upper() + words[1:],
        evidence=[
            Evidence(what="model" if adapter is None else "adapter", value=str(name),
                     at=sign.at if sign.fields.get("model") or adapter is not None else case.start.settings_at)
            if name else None,
            case.quote("file", sign, "missing_path") or case.quote("file", sign, "file_path")
            or case.quote("file", sign, "damaged_path"),
            case.quote("detail", sign, "detail"),
            error_told(case, sign.at),
        ],
        remedies=remedies,
        refuted_by="the files at that path, complete, readable by the user the server runs as",
        phase="args" if case.phase in ("none", "args") else None,
        confidence=Confidence.HIGH if sign.id != "tokenizer-failed" else Confidence.MEDIUM,
    )  # fmt: skip


def _from_hub(case: Case, sign: Sign) -> bool:
    """Return whether the failed connection was to the hub: engines also download kernels and call other services."""
    return "peer_host" not in sign.fields or "hub_host" in sign.fields or case.on_stack(*_DOWNLOADS)


def _words(case: Case, named: str, sign: Sign, *, adapter: bool) -> tuple[str, list[Remedy | None]]:
    """Return the explanation of a sign and its remedies, for an LLM or for an adapter of one."""
    why = "an absolute path inside the container that holds config.json and the weights, or NAMESPACE/NAME"
    flag = case.engine.behaviour().llm_flag
    path = _path_of_adapter(case) if adapter else option(case, "model_path", flag, Move.SET, why)
    token = variable(case, "HF_TOKEN", Move.SET, "a token of an account that was granted access")
    if sign.id == "llm-gated":
        return (
            f"{named} may not be downloaded: it is gated or private, and no token of somebody with access was sent.",
            [token,
             case.advice("licence", "accept the terms on the LLM's page first"), path],
        )  # fmt: skip
    if sign.id == "llm-files-damaged":
        return (
            f"A file of {named} is damaged or incomplete: a download that was cut off, a full disk, or a pointer of"
            " git-lfs instead of the file.",
            [case.advice("files", "ls -l: a weight file of some hundred bytes is a pointer; download it again"), path],
        )
    if sign.id in ("llm-offline", "download-failed"):
        return (
            f"{named} is not in the cache, and the hub cannot be reached from here.",
            [path, variable(case, "HF_ENDPOINT", Move.SET, "a mirror that is reachable"),
             variable(case, "HF_HUB_OFFLINE", Move.UNSET, "where it forbids the download")],
        )  # fmt: skip
    if sign.id == "tokenizer-failed" and "model" not in sign.fields:
        trust = "remote_code_text" in sign.fields
        return (
            f"The tokenizer of {named} could not be made of its files: they are of a newer form than the installed"
            f" packages read{', or it brings code of its own' if trust else ''}, or one is missing or damaged.",
            [option(case, "trust_remote_code", "--trust-remote-code", Move.SET, "if you trust the LLM's own code", True)
             if trust and case.setting("trust_remote_code") is not True else None,
             case.advice("version", "newer transformers and tokenizers, or a newer version of the engine"),
             case.advice("files", "tokenizer.json, tokenizer_config.json or tokenizer.model beside the weights")],
        )  # fmt: skip
    if sign.id == "file-denied":
        return (
            f"A file of {named} may not be read by the user the server runs as.",
            [case.advice("permissions", "ls -l of it inside the container, and id; SELinux wants :z on mounts"),
             path],
        )  # fmt: skip
    denied = case.root_sign("llm-gated") is not None
    return (
        f"{named} leads to no usable {'adapter' if adapter else 'LLM'}: there is no such path here, or it lacks a file,"
        " or the hub has no such name."
        " A path that does not exist is taken for a name of the hub, whose complaint is about the name's form.",
        [path, token if denied else None,
         case.advice("mounts", "ls the path inside the container: volumes that are not mounted look so")],
    )  # fmt: skip


def _path_of_adapter(case: Case) -> Remedy:
    why = "NAME=PATH, an absolute path inside the container that holds adapter_config.json and its weights"
    flag = case.engine.behaviour().adapters_flag
    return option(case, flag.lstrip("-").replace("-", "_"), flag, Move.SET, why)


def _file_of_llm(case: Case) -> Sign | None:
    sign = case.root_sign("file-missing", "file-denied")
    if sign is None:
        return None
    path = str(sign.fields.get("file_path") or sign.fields.get("error") or "")
    own = case.start.model or "\0"
    loading = case.on_stack(*_LOADER) or not case.frames
    if path.startswith(own) or (loading and _LLM_FILES.search(path)):
        return sign
    return None


def draft(case: Case) -> Finding | None:
    """Diagnose a draft of the wrong kind, or a target that does not support this kind of draft."""
    sign = case.root_sign("draft-unfit")
    if sign is None:
        return None
    name = sign.fields.get("architecture")
    target = str(sign.fields.get("attribute", "")).startswith(("get_", "set_eagle3", "capture_", "set_aux"))
    words = (
        f"This version cannot speculate with {name} as the target: it lacks what a draft of this kind needs from it."
        if target
        else f"{name} was loaded as the draft, and is no draft of this kind: a target's own checkpoint, or a draft"
        " for another method."
    )
    return case.finding(
        "draft-unfit",
        f"{words} Memory plays no part.",
        evidence=[
            error_told(case, sign.at),
            case.quote("architecture", sign, "architecture"),
            case.arg("speculative_algorithm"),
            case.arg("speculative_draft_model_path"),
        ],
        remedies=[
            None if target else option(case, "speculative_draft_model_path", "--speculative-draft-model-path", Move.SET,
                                       "a draft that was trained for this target and method"),
            case.remedy("speculative_algorithm", Move.SET if not target else Move.UNSET,
                        "the method the draft was made for" if not target else "without a draft it serves"),
            case.advice("version", "targets that can be speculated with grow by version"),
        ],
        refuted_by="the same pair of target and draft serving elsewhere with this version",
        confidence=Confidence.MEDIUM,
    )  # fmt: skip


def attention(case: Case) -> Finding | None:
    """Diagnose an LLM whose shapes or data types no attention kernel, or not the requested one, supports."""
    sign = case.root_sign("backend-unfit")
    if sign is None:
        return None
    chosen, cache = sign.fields.get("backend"), sign.fields.get("cache")
    words = (
        f"The attention backend {chosen} was asked for, and it does not take what this LLM or the arguments need of it."
        if chosen
        else f"{sign.fields.get('refused')} takes no KV cache of {cache} on this GPU. The GPU may well have 8-bit"
        " floating point: other attention backends take such a cache, and so do newer versions of this one."
        if cache
        else "No attention kernel of this version takes what the LLM and the arguments ask for together: the size of"
        " its heads, the data type, or that of the KV cache."
    )
    return case.finding(
        "attention-backend-unfit",
        f"{words} The reasons stand in the message; memory plays no part.",
        evidence=[
            case.quote("backend", sign, "backend") or case.quote("backend", sign, "refused"),
            case.quote("head size", sign, "head_size"),
            quoted("error", str(sign.fields.get("error")), sign.at),
            case.arg("kv_cache_dtype"),
            case.arg("attention_backend"),
        ],
        remedies=[
            option(case, "attention_backend", "--attention-backend", Move.UNSET if chosen else Move.SET,
                   "the engine takes one that fits" if chosen else "another than the one that refused"),
            case.remedy("kv_cache_dtype", Move.UNSET, "fewer backends take another data type than the LLM's")
            if case.setting("kv_cache_dtype") not in (None, "auto") else None,
            case.advice("version", "newer versions have more kernels"),
        ],
        refuted_by="the same LLM and backend serving elsewhere with this version",
    )  # fmt: skip


def unsupported(case: Case) -> Finding | None:
    """Diagnose an LLM that the engine cannot run, or not with these server args."""
    sign = case.root_sign("llm-unsupported", *_SHAPES)
    if sign is None:
        return None
    code = "remote_code_text" in sign.fields
    divided = sign.id == "block-not-divisible"
    quantised = "quantization" in sign.fields
    lacking, dtype = "lacking" in sign.fields, sign.fields.get("dtype")
    if divided:
        words = "A weight matrix, divided among the ranks, no longer consists of whole blocks of its quantisation."
    elif lacking:
        words = (
            "Weights of which the LLM is made are not in its files: a shard is missing, or this version looks for other"
        )
        words += " names."
    elif sign.id == "weights-mismatch":
        words = "Shapes of the weights do not fit the LLM that this version builds from its configuration."
    elif "asked" in sign.fields:
        words = "The checkpoint is quantised in another way than the arguments say."
    elif dtype is not None:
        words = "The quantisation of the LLM computes in other data types than the one that was asked for."
    elif quantised:
        words = "This version, or this GPU, does not run the quantisation of the LLM."
    elif code:
        words = "The LLM brings code of its own, which the engine runs only when it is told to."
    else:
        words = "This version does not know the architecture of the LLM."
    model = case.start.model
    plain = not (divided or quantised or sign.id == "weights-mismatch")
    return case.finding(
        "unsupported-model",
        f"{words} Memory plays no part.",
        evidence=[
            Evidence(what="model", value=model, at=case.start.settings_at) if model else None,
            *(case.quote(name.replace("_", " "), sign, name) for name in
              ("architecture", "quantization", "minimum", "capability", "parameter", "size", "block")),
            case.arg("quantization"),
            error_told(case, sign.at),
        ],
        remedies=[
            option(case, "trust_remote_code", "--trust-remote-code", Move.SET, "if you trust that code", True)
            if code and plain else None,
            case.remedy("tp_size", Move.LOWER, "larger parts are whole blocks again, if they fit") if divided else None,
            option(case, "dtype", "--dtype", Move.SET, "a data type that this quantisation computes in", dtype)
            if dtype is not None else
            case.remedy("quantization", Move.UNSET, "the checkpoint's own is taken then") if quantised else None,
            case.advice("files", "every file that the index (model.safetensors.index.json) names, in its full size")
            if lacking else None,
            None if divided or (code and plain) else
            case.advice("version", "newer versions of the engine and of transformers know more LLMs"),
        ],
        refuted_by="the same version serving the same checkpoint elsewhere with these arguments",
        phase="args" if case.phase == "none" else None,
        confidence=Confidence.MEDIUM if sign.id == "weights-mismatch" else Confidence.HIGH,
    )  # fmt: skip
