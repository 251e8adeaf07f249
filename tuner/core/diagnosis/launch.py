"""Judges of causes at launch: server args, ports, and (in `checkpoints` and `refusals`) the LLM's files."""

from __future__ import annotations

import re
from collections.abc import Callable

from tuner.core.diagnosis import checkpoints, refusals
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import engine_variable, first_line, listed, option, quoted, variable
from tuner.domain.behaviour import PortBound
from tuner.domain.findings import Evidence, Finding, Move, Remedy

_PORTS = ("port-in-use", "rank-port-in-use")


def port_in_use(case: Case) -> Finding | None:
    """Diagnose a port of the server that is already in use."""
    sign = case.root_sign(*_PORTS)
    if sign is None:
        return None
    said = next((s for s in (sign, *case.signs(*_PORTS)) if s.fields.get("port") is not None), None)
    port = said.fields.get("port") if said is not None else None
    http = case.setting("port")
    bound = "attempting to bind on address" in sign.text or port == http
    talk = "zmq" in sign.text or "tcp://" in sign.text or "ZMQ" in case.message
    inside = (
        port is not None
        and not bound
        and (talk or "socket" in sign.text or case.root_sign("rank-port-in-use") is not None)
    )
    errno = next((s for s in (sign, *case.signs(*_PORTS)) if s.fields.get("errno") is not None), None)
    ready = case.start.ready_at is not None
    first = case.engine.behaviour().port_bound is PortBound.FIRST
    known = port is not None or first
    shown = port if port is not None else http if known else None
    name = f"Port {shown}" if shown is not None else "A port"
    which = (
        "processes of the engine talk there"
        if inside and talk
        else "the ranks meet there"
        if inside
        else "clients are served there"
    )
    seen = " Later lines say that the server is ready; it is not: nobody can reach it." if ready else ""
    late = "" if first or inside else f" {case.engine.title} asks for it only after everything is loaded."
    return case.finding(
        "port-in-use",
        f"{name} is taken ({which}): an earlier server that still runs, another program, or with --network host"
        f" another container.{late}{seen}",
        evidence=[
            case.quote("port", said, "port") if said is not None else case.arg("port") if known else None,
            case.quote("errno", errno, "errno") if errno is not None else None,
            case.quote("address", said, "address_host") if said is not None else None,
            Evidence(what="error", value=str(sign.fields.get("error") or first_line(sign.text)), at=sign.at),
        ],
        remedies=[
            _meeting_place(case, port) if inside else None,
            option(case, "port", "--port", Move.SET,
                   "another port: internal ones are counted from it" if inside else "another port"),
            case.advice("listener", "shows who listens",
                        "ss -ltnp" if shown is None else f"ss -ltnp 'sport = :{shown}'"),
        ],
        wrong_advice=["`The server is fired up and ready to roll!` in this log"] if ready else [],
        refuted_by=f"nothing listening on {f'port {shown}' if shown is not None else 'that port'} when it is started"
                   " again",
        phase=_port_phase(case, inside),
    )  # fmt: skip


def _meeting_place(case: Case, port: object) -> Remedy | None:
    """Propose another rendezvous port for the ranks, by the argument that named the taken one."""
    address = case.setting("dist_init_addr")
    if address is not None and str(address).endswith(f":{port}"):
        why = "the same free port on every node"
        return case.remedy("dist_init_addr", Move.SET, why)
    return case.remedy("nccl_port", Move.SET, "a free port for the ranks")


def _port_phase(case: Case, inside: bool) -> str | None:
    """Return the phase of a taken port, by when the engine binds it; None: that of the root failure."""
    if inside or (case.root is not None and case.root.failure is not None and case.phase not in ("none", "kv-alloc")):
        return None
    first = case.engine.behaviour().port_bound is PortBound.FIRST
    return "args" if first or not case.start.ranks else "warmup"


def refused_by_parser(case: Case) -> Finding | None:
    """Diagnose a command line that the engine's argument parser refused."""
    sign = case.root_sign("argument-error")
    if sign is None:
        return None
    fields = sign.fields
    asked = fields.get("argument") or fields.get("ambiguous")
    detail = str(fields.get("detail") or sign.text)
    if asked is None:
        asked = _first_flag(str(fields.get("unknown") or detail))
    asked = str(asked).split("/")[0] if asked is not None else None
    value = fields.get("value")
    known = fields.get("argument") is not None
    new = _spelled_now(case, asked) if asked is not None and not known else None
    required = fields.get("missing")
    return case.finding(
        "bad-argument",
        f"The command line was refused before anything was started: {_in_short(detail)}.{_renamed(asked, new)}",
        evidence=[
            Evidence(what="argument", value=asked, at=sign.at) if asked is not None else None,
            Evidence(what="value", value=str(value), at=sign.at) if value is not None else None,
            Evidence(what="required", value=str(required), at=sign.at) if required is not None else None,
            quoted("error", detail, sign.at),
        ],
        remedies=[_for_flag(case, asked, new, value, fields)] if asked is not None else
        [case.advice("arguments", "--help lists what this version takes")],
        refuted_by="the same command accepted by the same version",
        phase="args",
        ranks=None,
    )  # fmt: skip


def _in_short(detail: str) -> str:
    """Return what was refused, without the list of what is taken: the remedy has it."""
    return first_line(detail.partition(" (choose from")[0], 200)


def _first_flag(text: str) -> str | None:
    found = re.search(r"(?<![\w-])--?[A-Za-z][\w.-]*", text)
    return found[0] if found is not None else None


def _spelled_now(case: Case, asked: str) -> str | None:
    """Return this version's spelling of a flag that was refused; None if it has none."""
    spelling = case.engine.knob(asked.lstrip("-").replace("-", "_"), case.start.version)
    return spelling.text if spelling is not None else None


def _renamed(asked: str | None, new: str | None) -> str:
    return f" This version calls it {new}." if asked and new and new != asked else ""


def _for_flag(case: Case, asked: str, new: str | None, value: object, fields: dict[str, object]) -> Remedy:
    if new is not None and new != asked:
        return Remedy(knob=asked.lstrip("-").replace("-", "_"), flag=new, move=Move.SET,
                      why=f"{asked} is spelled {new} in this version")  # fmt: skip
    candidates = str(fields.get("matches") or "")
    if candidates:
        return case.advice(asked.lstrip("-").replace("-", "_"), f"write one of them out: {candidates}", flag=asked)
    if value is not None:
        choices = str(fields.get("choices") or "")
        knob = asked.lstrip("-").replace("-", "_")
        why = f"one of {listed(choices, 300)}" if choices else "a value that this argument takes; --help lists them"
        return Remedy(knob=knob, flag=asked, move=Move.SET, why=why)
    if fields.get("argument") is not None:
        json = "json" in fields
        why = "JSON: names and texts in double quotes, the whole in single ones for the shell" if json else \
            "a value that this argument takes; --help tells"  # fmt: skip
        return Remedy(knob=asked.lstrip("-").replace("-", "_"), flag=asked, move=Move.SET, why=why)
    return Remedy(knob=asked.lstrip("-").replace("-", "_"), flag=asked, move=Move.UNSET,
                  why="this version does not take it; --help lists what it takes")  # fmt: skip


def context_too_long(case: Case) -> Finding | None:
    """Diagnose a requested context longer than the LLM's configuration allows."""
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
    """Diagnose attention heads that do not divide evenly among the ranks."""
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
            case.remedy(
                "tp_size",
                Move.LOWER,
                "a size that divides the heads, if the weights fit on so many GPUs",
                value=smaller,
                most=smaller,
            ),
            case.remedy("pp_size", Move.RAISE, "layers instead of heads for the other GPUs"),
        ],
        refuted_by="a number of heads in config.json that the size divides",
    )


def more_ranks_than_gpus(case: Case) -> Finding | None:
    """Diagnose more ranks than visible GPUs."""
    sign = case.root_sign("more-ranks-than-gpus")
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
            quoted("error", case.message.replace("\n", " "), sign.at),
        ],
        remedies=[
            case.remedy(
                "tp_size",
                Move.LOWER,
                "as many ranks as GPUs, if the weights fit on them",
                most=gpus if isinstance(gpus, int) else None,
            ),
            variable(case, "CUDA_VISIBLE_DEVICES", Move.SET, "as many GPUs as ranks, and only such as exist"),
            case.advice("nvidia-smi", "inside the container: lists them", "nvidia-smi -L"),
        ],
        refuted_by="nvidia-smi -L inside the container listing as many GPUs as there are ranks",
    )


def forked(case: Case) -> Finding | None:
    """Diagnose a worker forked from a process that had already used CUDA."""
    sign = case.root_sign("cuda-forked")
    if sign is None:
        return None
    return case.finding(
        "worker-forked",
        "A worker was forked from a process that had used CUDA already, and CUDA does not survive that: something in"
        " the main process (a plugin, an import, the script that starts the engine) touched a GPU first.",
        evidence=[quoted("error", case.message.partition("\n")[2], sign.at)],
        remedies=[
            engine_variable(case, "worker_start_method", Move.SET, "new processes instead of copies", "spawn"),
            case.advice("script", "start it under `if __name__ == '__main__':`, and call nothing of CUDA before"),
        ],
        refuted_by="the same failure with spawned workers",
    )  # fmt: skip


def batched_tokens(case: Case) -> Finding | None:
    """Diagnose a token budget per batch (vLLM) that is below the context length or the number of requests."""
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


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (
    port_in_use,
    refused_by_parser,
    context_too_long,
    not_divisible,
    more_ranks_than_gpus,
    forked,
    batched_tokens,
    checkpoints.draft,
    checkpoints.attention,
    checkpoints.unsupported,
    checkpoints.not_found,
    refusals.by_its_checks,
)
