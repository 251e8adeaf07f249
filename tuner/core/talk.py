"""How ranks communicate, by NCCL's own lines: its variables, its channels, and its transports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tuner.core.surroundings import parts
from tuner.domain.gates import Note
from tuner.domain.starts import Sign, Start

CHANNEL_LIMITS = {"NCCL_MAX_NCHANNELS": max, "NCCL_MAX_CTAS": max, "NCCL_MIN_NCHANNELS": min, "NCCL_MIN_CTAS": min}
_FEW = 6


def notes_of(start: Start) -> tuple[Note, ...]:
    """Return notes on what NCCL did, and on CUDA graphs that are off."""
    return (*_nccl(start), *_graphs(start))


def _nccl(start: Start) -> Iterator[Note]:
    version = parts(start).get("nccl")
    if version is not None:
        at = next((sign.at for sign in start.signs if sign.id == "nccl-version"), None)
        yield Note(what="NCCL version", value=version, at=at)
    told = {sign.fields["name"]: sign for sign in _of(start, "nccl-env")}
    if told:
        listed = ", ".join(f"{name}={sign.fields['value']}" for name, sign in list(told.items())[:_FEW])
        more = f" and {len(told) - _FEW} more" if len(told) > _FEW else ""
        yield Note(what="NCCL was told", value=listed + more, at=next(iter(told.values())).at)
    channels = effective_channels(start)
    if channels is not None:
        sign = next(_of(start, "nccl-channels"))
        limit = next((told[name] for name in CHANNEL_LIMITS if name in told), None)
        words = f"{channels} for collectives"
        if limit is not None and _number(limit) == channels:
            words += f": {limit.fields['name']}={limit.fields['value']} took effect"
        yield Note(what="NCCL channels", value=words, at=sign.at, good=True if limit is not None else None)
    kinds = transports(start)
    if kinds:
        listed = ", ".join(f"{kind} ({count} connections)" for kind, count in kinds.most_common())
        slow = any(kind.startswith("SHM") for kind in kinds)
        yield Note(what="ranks talk by", value=listed, at=next(_of(start, "nccl-transport")).at, good=not slow)
    algorithms = Counter(
        f"{sign.fields['algorithm']} {sign.fields['protocol']}"
        for sign in _of(start, "nccl-algorithm")
        if sign.fields.get("collective") == "AllReduce"
    )
    if algorithms:
        at = next(_of(start, "nccl-algorithm")).at
        yield Note(what="NCCL's all-reduce", value=", ".join(name for name, _ in algorithms.most_common()), at=at)


def _graphs(start: Start) -> Iterator[Note]:
    seen: set[str] = set()
    for sign in start.signs:
        if sign.id not in ("prefill-graphs-off", "graphs-off", "graphs-off-for", "cudagraph-downgraded"):
            continue
        text = sign.text.split("\n")[0].partition(". Set ")[0].rstrip(". ")
        if text not in seen:
            seen.add(text)
            yield Note(what="CUDA graphs", value=text[:300], at=sign.at, good=False)


def effective_channels(start: Start) -> int | None:
    """Return the channels for collectives that were set up, the most of any communicator; None if not logged."""
    counts = [sign.fields["coll_channels"] for sign in _of(start, "nccl-channels")]
    return max((count for count in counts if isinstance(count, int)), default=None)


def transports(start: Start) -> Counter[str]:
    """Return the transports between ranks, with the number of connections of each."""
    return Counter("/".join(str(sign.fields["transport"]).split("/")[:2]) for sign in _of(start, "nccl-transport"))


def _of(start: Start, name: str) -> Iterator[Sign]:
    return (sign for sign in start.signs if sign.id == name)


def _number(sign: Sign) -> int | None:
    value = str(sign.fields.get("value", ""))
    return int(value) if value.isdecimal() and len(value) < 10 else None
