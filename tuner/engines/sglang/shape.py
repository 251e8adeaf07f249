"""The shape of a start: the settings that decide its memory, and how a change of knobs alters them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from tuner.core.fit import element_bytes
from tuner.core.versions import in_range, parse_version, since
from tuner.domain.starts import Start
from tuner.engines.sglang import memory
from tuner.engines.sglang.defaults import auto_chunk, auto_graph_bs, graph_sizes, prefill_sizes
from tuner.units import real, whole

GATED = "0.5.16 - 0.5.17"
"""Versions that leave prefill graphs out if less than `GATE_GIB` is free: 0.5.16 does, 0.5.14 and 0.5.18 do not."""
GATE_GIB = 4.0
"""Free memory after the KV pool that those versions ask for before they capture prefill graphs, GiB."""

_NCCL_CHANNELS = 16
"""Number of NCCL channels that is assumed if no variable sets it."""
_NCCL_BUFFER = 4 << 20
"""NCCL's default buffer size, bytes."""
_OFF = "disabled"
_LARGEST = 1 << 16
"""Largest batch size or token count of a graph that is considered; the list of sizes would grow too long."""
_PHASE = r"{}=PhaseConfig\((?P<body>[^()]*)\)"
_BACKEND = re.compile(r"backend='(\w+)'")
_SIZES = re.compile(r"\bbs=\[([\d, ]*)\]")

_SYMMETRIC = "SGLANG_SYMM_MEM_PREALLOC_GB_SIZE"
_CHANNELS = frozenset({"NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE"})
_SWITCHES = {
    "enable_dp_attention": "dp_attention",
    "enable_symm_mem": "symmetric",
    "disable_cuda_graph": "graphs_off",
    "disable_cuda_graph_padding": "every_size",
    "disable_piecewise_cuda_graph": "prefill_forbidden",
    "disable_prefill_cuda_graph": "prefill_forbidden",
    "enable_piecewise_cuda_graph": "prefill_wanted",
}
"""Field of `Shape` that each on/off knob sets."""
_FIELDS = {
    "mem_fraction_static": "fraction",
    "tp_size": "tp",
    "pp_size": "pp",
    "dp_size": "dp",
    "context_length": "context",
    "max_running_requests": "requests",
    "chunked_prefill_size": "chunk",
    "max_prefill_tokens": "max_prefill",
    "page_size": "page",
    "max_total_tokens": "cap",
    "speculative_algorithm": "speculative",
    "speculative_num_draft_tokens": "draft_tokens",
    "speculative_draft_model_path": "draft",
    "mamba_full_memory_ratio": "mamba_ratio",
    "cuda_graph_backend_decode": "decode_backend",
    "cuda_graph_backend_prefill": "prefill_backend",
    "cuda_graph_max_bs_prefill": "prefill_longest",
}
"""Field of `Shape` that each knob with a value sets unchanged."""
_DECODE = frozenset({"cuda_graph_max_bs", "cuda_graph_bs", "disable_cuda_graph_padding", "speculative_algorithm"})
"""Knobs that change the sizes of the decode graphs."""
_PREFILL = frozenset({"chunked_prefill_size", "cuda_graph_max_bs_prefill", "max_total_tokens", "context_length"})
"""Knobs that change the sizes of the prefill graphs."""


class Shape(Struct, frozen=True, kw_only=True):
    """The settings of one start that decide its memory."""

    version: str | None = None
    fraction: float | None = None
    """Memory fraction as given; None: SGLang chooses it."""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dp_attention: bool = False
    context: int | None = None
    """Context length, tokens; None if unknown."""
    requests: int | None = None
    """`max_running_requests` as given; None: it follows from the size of the pool."""
    chunk: int = 8192
    """`chunked_prefill_size`, tokens; 0 or less without chunks."""
    max_prefill: int = 16384
    page: int = 1
    """Tokens of a page."""
    cap: int | None = None
    """`max_total_tokens`; None if it was not given."""
    kv_bytes: float = 2.0
    """Bytes of one element of the KV pool."""
    decode_sizes: tuple[int, ...] = ()
    """Batch sizes of the decode graphs; empty if they are off."""
    decode_listed: tuple[int, ...] = ()
    """Batch sizes of the decode graphs that would be captured if graphs were on."""
    every_size: bool = False
    """Whether each batch size gets its own decode graph (no padding)."""
    prefill_graphs: bool = False
    """Whether prefill graphs are captured."""
    prefill_sizes: tuple[int, ...] = ()
    """Token counts of the prefill graphs."""
    prefill_longest: int | None = None
    """Largest token count of a prefill graph as given; None: it follows from the chunk."""
    graphs_off: bool = False
    """Whether a flag switches all graphs off."""
    decode_backend: str | None = None
    """Backend of the decode graphs as given; None if it was not."""
    prefill_backend: str | None = None
    """Backend of the prefill graphs as given, which lifts the 4 GiB gate; None if it was not."""
    prefill_forbidden: bool = False
    """Whether a flag forbids prefill graphs (0.5.10 and later)."""
    prefill_wanted: bool = False
    """Whether a flag asks for prefill graphs (up to 0.5.9)."""
    speculative: str | None = None
    """`speculative_algorithm`; None without speculation."""
    draft: str | None = None
    """Path or name of the draft model as given; None if it was not."""
    draft_tokens: int = 0
    mamba_ratio: float | None = None
    """`mamba_full_memory_ratio`: states of linear attention per byte of KV; None if it was not given."""
    latent: bool = False
    """Whether attention is latent (MLA)."""
    custom_all_reduce: bool = True
    symmetric: bool = False
    """Whether NCCL symmetric memory is on."""
    symmetric_asked: float | None = None
    """NCCL symmetric memory to preallocate if it is on, GiB, as given; None: SGLang's default."""
    channels: int = _NCCL_CHANNELS
    """NCCL channels."""
    buffer_bytes: int = _NCCL_BUFFER
    """NCCL buffer size."""
    channels_known: bool = False
    """Whether a variable sets the channels, so that `channels` is not assumed."""

    @property
    def attention_tp(self) -> int:
        """Number of ranks that divide the attention heads of one request."""
        return max(1, self.tp // self.dp) if self.dp_attention else self.tp

    @property
    def world(self) -> int:
        """Number of ranks of one replica."""
        return self.tp * self.pp

    @property
    def drafts(self) -> bool:
        """Whether a draft takes memory of its own."""
        return self.speculative is not None and self.speculative != "NGRAM"

    @property
    def symmetric_gib(self) -> float:
        """Preallocated NCCL symmetric memory, GiB."""
        if not self.symmetric or not since(self.version, "0.5.9"):
            return 0.0
        return 4.0 if self.symmetric_asked is None else max(0.0, self.symmetric_asked)

    @property
    def wants_prefill(self) -> bool:
        """Whether the settings ask for prefill graphs: by their backend, else by the flags, else by the version."""
        if self.graphs_off:
            return False
        if self.prefill_backend is not None:
            return self.prefill_backend != _OFF
        return not self.prefill_forbidden and (self.prefill_wanted or since(self.version, "0.5.10"))

    @property
    def gate(self) -> bool:
        """Whether SGLang switches prefill graphs off if less than `GATE_GIB` is free."""
        version = parse_version(self.version)
        return version is not None and in_range(version, GATED) and self.prefill_backend is None


def shape_of(start: Start, gpu_mib: float | None, *, latent: bool | None = None) -> Shape:
    """Read the shape of a start from its log.

    Args:
        start: The start.
        gpu_mib: `memory.total` of the GPU, which decides SGLang's defaults; None if unknown.
        latent: Whether attention is latent, where its own log does not tell it; None if unknown.
    """
    settings, said = start.settings, memory.said_fraction(start)[0]
    variables = start.env
    limits = {name: figure.value for name, figure in start.limits.items()}
    shape = Shape(
        version=start.version,
        fraction=said,
        tp=whole(settings.get("tp_size")) or max(1, len(start.ranks)),
        pp=whole(settings.get("pp_size")) or 1,
        dp=whole(settings.get("dp_size")) or 1,
        context=whole(limits.get("context_len")) or whole(settings.get("context_length")),
        requests=whole(settings.get("max_running_requests")),
        chunk=whole(settings.get("chunked_prefill_size")) or 8192,
        max_prefill=whole(settings.get("max_prefill_tokens")) or 16384,
        page=whole(settings.get("page_size")) or 1,
        cap=whole(settings.get("max_total_tokens")),
        kv_bytes=memory.pool_dtype_bytes(start),
        speculative=settings.get("speculative_algorithm") or None,
        draft=settings.get("speculative_draft_model_path") or None,
        draft_tokens=whole(settings.get("speculative_num_draft_tokens")) or 0,
        mamba_ratio=_real(settings.get("mamba_full_memory_ratio")),
        latent=bool(latent if (own := memory.latent(start)) is None else own),
        custom_all_reduce=not settings.get("disable_custom_all_reduce"),
        prefill_longest=whole(settings.get("cuda_graph_max_bs_prefill"))
        or whole(settings.get("piecewise_cuda_graph_max_tokens")),
        decode_backend=settings.get("cuda_graph_backend_decode"),
        prefill_backend=settings.get("cuda_graph_backend_prefill"),
        symmetric_asked=_real(variables.get(_SYMMETRIC)),
        **_switches(settings),
        **_nccl(variables),
    )
    return _with_graphs(shape, start, gpu_mib)


def changed(shape: Shape, changes: Mapping[str, Any], gpu_mib: float | None) -> Shape:
    """Return the shape with some knobs changed; knobs without effect on memory are ignored.

    Args:
        shape: The shape before the change.
        changes: New value by canonical knob name; None lets SGLang choose.
        gpu_mib: `memory.total` of the GPU, which decides SGLang's defaults; None if unknown.
    """
    new: dict[str, Any] = {field: changes[knob] for knob, field in _FIELDS.items() if knob in changes}
    new.update(_switches(changes))
    for field, default in (("tp", 1), ("pp", 1), ("dp", 1), ("page", 1), ("max_prefill", 16384), ("draft_tokens", 0)):
        if field in new and new[field] is None:
            new[field] = default
    if "speculative" in new and new["speculative"] != shape.speculative:
        new.setdefault("draft", None)  # the named draft belongs to the old algorithm
    if "chunk" in new and new["chunk"] is None:
        new["chunk"] = auto_chunk(shape.version, gpu_mib) if gpu_mib is not None else shape.chunk
    if "kv_cache_dtype" in changes:
        new["kv_bytes"] = element_bytes(changes["kv_cache_dtype"]) or 2.0
    if "disable_custom_all_reduce" in changes:
        new["custom_all_reduce"] = not changes["disable_custom_all_reduce"]
    if _SYMMETRIC in changes:
        new["symmetric_asked"] = _real(changes[_SYMMETRIC])
    if _CHANNELS & set(changes):
        held: dict[str, Any] = {"NCCL_BUFFSIZE": shape.buffer_bytes}
        if shape.channels_known:
            held["NCCL_MAX_NCHANNELS"] = shape.channels
        new.update(_nccl({**held, **{name: changes[name] for name in _CHANNELS & set(changes)}}))
    return _regraphed(msgspec.structs.replace(shape, **new), shape, changes, gpu_mib)


def same_draft(one: Shape, other: Shape) -> bool:
    """Return whether two starts use the same draft, as far as both name it; NEXTN is another name of EAGLE."""
    first, second = (each.speculative if each.speculative != "NEXTN" else "EAGLE" for each in (one, other))
    return first == second and (one.draft == other.draft or one.draft is None or other.draft is None)


def _with_graphs(shape: Shape, start: Start, gpu_mib: float | None) -> Shape:
    """Return the shape with its graph sizes: as captured, else as the settings list them, else by the version."""
    settings = start.settings
    captured = {g.what: g.sizes for rank in start.ranks for g in rank.graphs if g.sizes}
    decode_backend, decode_listed = phase_config(settings, "decode")
    prefill_backend, prefill_listed = phase_config(settings, "prefill")
    decode: tuple[int, ...] = captured.get("decode") or captured.get("verify") or decode_listed
    listed = settings.get("cuda_graph_bs_decode") or settings.get("cuda_graph_bs")
    if not decode and isinstance(listed, (list, tuple)):
        decode = tuple(int(size) for size in listed if isinstance(size, int))
    if not decode:
        largest = whole(settings.get("cuda_graph_max_bs_decode")) or whole(settings.get("cuda_graph_max_bs"))
        if largest is None and gpu_mib is not None:
            largest = auto_graph_bs(shape.version, gpu_mib, shape.tp, shape.requests)
        decode = _decode(shape, largest)
    prefill = captured.get("prefill") or captured.get("piecewise") or prefill_listed
    told = shape if prefill_backend is None else msgspec.structs.replace(shape, prefill_backend=prefill_backend)
    return msgspec.structs.replace(
        shape,
        decode_sizes=() if shape.graphs_off or decode_backend == _OFF else decode,
        decode_listed=decode,
        prefill_graphs=bool(captured.keys() & {"prefill", "piecewise"}) or told.wants_prefill,
        prefill_sizes=prefill or tuple(prefill_sizes(_prefill_limit(shape))),
    )


def _regraphed(shape: Shape, old: Shape, changes: Mapping[str, Any], gpu_mib: float | None) -> Shape:
    decode = _new_decode(shape, old, changes, gpu_mib)
    return msgspec.structs.replace(
        shape,
        decode_listed=decode,
        decode_sizes=decode if _decode_now(shape, old) else (),
        prefill_sizes=tuple(prefill_sizes(_prefill_limit(shape))) if _PREFILL & set(changes) else shape.prefill_sizes,
        prefill_graphs=_prefill_now(shape, old),
    )


def _new_decode(shape: Shape, old: Shape, changes: Mapping[str, Any], gpu_mib: float | None) -> tuple[int, ...]:
    """Return the batch sizes of the decode graphs after a change, as if graphs were on."""
    listed = changes.get("cuda_graph_bs")
    if isinstance(listed, (list, tuple)):
        return tuple(sorted(int(size) for size in listed))
    if not _DECODE & set(changes):
        return old.decode_listed
    largest = whole(changes.get("cuda_graph_max_bs", max(old.decode_listed, default=0)))
    if largest is None and gpu_mib is not None:
        largest = auto_graph_bs(shape.version, gpu_mib, shape.tp, shape.requests)
    largest = None if largest is None else min(largest, _LARGEST)
    return _decode(shape, largest) or old.decode_listed


def _decode_now(shape: Shape, old: Shape) -> bool:
    """Return whether there are decode graphs after a change.

    If no setting of them changed, the old state stays: SGLang may have switched them off for other reasons.
    """
    said = (shape.graphs_off, shape.decode_backend)
    if said == (old.graphs_off, old.decode_backend):
        return bool(old.decode_sizes) or not old.decode_listed
    return not shape.graphs_off and shape.decode_backend != _OFF


def _prefill_now(shape: Shape, old: Shape) -> bool:
    """Return whether there are prefill graphs after a change; unchanged settings keep the old state."""
    same = (shape.wants_prefill, shape.prefill_backend) == (old.wants_prefill, old.prefill_backend)
    return shape.prefill_graphs if same else shape.wants_prefill


def phase_config(settings: Mapping[str, Any], phase: str) -> tuple[str | None, tuple[int, ...]]:
    """Return backend (None if unnamed) and sizes of one phase in `cuda_graph_config` (0.5.14 and later).

    The setting is a dict or the printed form of its class.
    """
    config = settings.get("cuda_graph_config")
    if isinstance(config, Mapping):
        body = config.get(phase)
        if not isinstance(body, Mapping):
            return None, ()
        sizes = body.get("bs")
        listed = tuple(int(size) for size in sizes if isinstance(size, int)) if isinstance(sizes, (list, tuple)) else ()
        backend = body.get("backend")
        return (backend if isinstance(backend, str) else None), listed
    if not isinstance(config, str) or (found := re.search(_PHASE.format(phase), config)) is None:
        return None, ()
    backend_at, sizes_at = _BACKEND.search(found["body"]), _SIZES.search(found["body"])
    return (
        None if backend_at is None else backend_at[1],
        () if sizes_at is None else tuple(int(size) for size in sizes_at[1].split(",") if size.strip()),
    )


def _decode(shape: Shape, largest: int | None) -> tuple[int, ...]:
    if largest is None or largest > _LARGEST:
        return ()
    speculative, padding = shape.speculative is not None, not shape.every_size
    return tuple(graph_sizes(shape.version, largest, speculative=speculative, padding=padding))


def _prefill_limit(shape: Shape) -> int:
    """Return the largest token count of a prefill graph: as given, else the chunk.

    Without a given one it is bounded by latent attention, `max_total_tokens` and the context length.
    """
    if shape.prefill_longest is not None:
        return min(shape.prefill_longest, _LARGEST)
    limit = shape.chunk if shape.chunk > 0 else shape.max_prefill
    if shape.latent:
        limit = min(limit, 8192 if since(shape.version, "0.5.21") else 2048)
    for bound in (shape.cap, shape.context):
        limit = limit if bound is None else min(limit, bound)
    return min(limit, _LARGEST)


def _nccl(variables: Mapping[str, Any]) -> dict[str, Any]:
    most, least = whole_of(variables.get("NCCL_MAX_NCHANNELS")), whole_of(variables.get("NCCL_MIN_NCHANNELS"))
    known = most is not None or least is not None
    channels = _NCCL_CHANNELS if most is None else most
    return {
        "channels": max(1, channels, least or 1),
        "buffer_bytes": whole_of(variables.get("NCCL_BUFFSIZE")) or _NCCL_BUFFER,
        "channels_known": known,
    }


def _switches(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Shape` set by the on/off knobs among settings or changes; knobs not named are left out."""
    found: dict[str, Any] = {}
    for knob, field in _SWITCHES.items():
        if knob in told:
            found[field] = found.get(field, False) or bool(told[knob])
    return found


def whole_of(value: Any) -> int | None:
    """Return a variable's text or a numeric value as int; None if it is neither."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 16 else None
    return whole(value)


def _real(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return real(value)
