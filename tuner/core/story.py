"""Phases and memory of each rank, from the facts of one start's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tuner.core import facts as f
from tuner.core.engine import Engine
from tuner.core.lifecycle import rank_order
from tuner.domain.layout import Layout, tag_parts
from tuner.domain.logs import LogFact
from tuner.domain.server import Phase
from tuner.domain.starts import Figure, GraphCapture, PhaseSpan, RankStory

_SIZES = re.compile(r"\d+")


def layout_of(engine: Engine, settings: dict[str, Any], tags: Iterable[str | None]) -> Layout:
    """Return the layout that server args ask for, and that the ranks of a log or a host confirm.

    Args:
        engine: The engine whose args they are.
        settings: The server args.
        tags: Tags of the ranks that are shown. One replica alone is a server of its own, numbered by who started it:
            Ray, or a router.
    """
    asked = engine.layout(settings)
    parts = [tag_parts(tag) for tag in tags if tag]
    replicas = {each["DP"] for each in parts if "DP" in each}
    if len(replicas) < 2:
        return msgspec.structs.replace(asked, dp=1)
    within = {(each.get("PP", 0), each.get("TP", 0)) for each in parts}
    if asked.dp == 1 and not asked.shared and len(within) < len({tuple(each.items()) for each in parts}):
        # The line of arguments is missing, and the same TP rank in two replicas says that they share none.
        return Layout(
            tp=max(asked.tp, *(rank + 1 for _, rank in within)),
            pp=max(asked.pp, *(stage + 1 for stage, _ in within)),
            dp=max(replicas) + 1,
        )
    return asked


class _Rank:
    """What is known of one rank so far."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.spans: list[PhaseSpan] = []
        self.fields: dict[str, Any] = {}
        self.graphs: list[GraphCapture] = []
        self.sizes: tuple[int, ...] = ()
        self.pool_done = False
        self.last_at = 0
        self.last_time: float | None = None

    def figure(self, name: str, value: Any, at: int, *, add: bool = False) -> None:
        """Note a number; with `add`, added to what is known."""
        if value is None:
            return
        known = self.fields.get(name)
        self.fields[name] = Figure(round(known.value + value, 4) if add and known else float(value), at)

    @property
    def open(self) -> PhaseSpan | None:
        return self.spans[-1] if self.spans and not self.spans[-1].ended else None

    def begin(self, phase: Phase, fact: LogFact, before: float | None = None) -> None:
        current = self.open
        if current is not None and current.phase is phase:
            return
        if current is not None:
            self._close(current, fact)
        self.spans.append(PhaseSpan(phase=phase, at=fact.offset, started=fact.at, before_gib=before))

    def end(self, phase: Phase, fact: LogFact) -> None:
        current = self.open
        if current is None or current.phase is not phase:
            self.begin(phase, fact)
            current = self.spans[-1]
        self._close(current, fact, fact.fields)

    def _close(self, span: PhaseSpan, fact: LogFact, told: dict[str, Any] | None = None) -> None:
        told = told or {}
        seconds = told.get("elapsed_s")
        if seconds is None and fact.at is not None and span.started is not None:
            seconds = max(0.0, fact.at - span.started)
        after = told.get("available_gib")
        used = told.get("used_gib")
        if used is None and after is not None and span.before_gib is not None:
            used = round(span.before_gib - after, 2)
        self.spans[-1] = msgspec.structs.replace(span, seconds=seconds, ended=True, after_gib=after, used_gib=used)

    def drop_empty_pool(self) -> None:
        """Drop a KV pool phase that was begun too early: the draft's weights come first."""
        if self.spans and self.spans[-1].phase is Phase.KV_ALLOC and not self.spans[-1].ended:
            self.spans.pop()

    def story(self, layout: Layout) -> RankStory:
        return RankStory(
            tag=self.tag or "TP0",
            number=layout.number(self.tag),
            phases=tuple(self.spans),
            graphs=tuple(self.graphs),
            last_at=self.last_at,
            last_time=self.last_time,
            **self.fields,
        )


def stories(facts: Sequence[LogFact], layout: Layout) -> tuple[RankStory, ...]:
    """Return what each rank of a start did, in rank order.

    Args:
        facts: Facts of one start, in the order of its log.
        layout: How ranks are numbered.
    """
    ranks: dict[str, _Rank] = {}
    tagged = any(fact.rank is not None for fact in facts)
    for fact in facts:
        if fact.rank is None and (tagged or fact.kind not in _OF_A_RANK):
            continue
        rank = ranks.setdefault(fact.rank or "", _Rank(fact.rank or ""))
        rank.last_at = max(rank.last_at, fact.offset)
        rank.last_time = fact.at if fact.at is not None else rank.last_time
        available = fact.fields.get("available_gib")
        if available is not None and fact.kind != f.PROGRESS:
            rank.figure("last_available", available, fact.offset)
        handler = _HANDLERS.get(fact.kind)
        if handler is not None:
            handler(rank, fact)
    return tuple(sorted((r.story(layout) for r in ranks.values()), key=lambda r: (r.number, rank_order(r.tag))))


def _phase_begin(rank: _Rank, fact: LogFact) -> None:
    phase = Phase(fact.fields["phase"])
    # Even if the beginning of the log is missing, weights after a pool or graphs are the draft's.
    loaded = rank.pool_done or bool({"weights_gib", "after_weights", "kv_gib"} & rank.fields.keys())
    if phase in (Phase.WEIGHT_LOAD, Phase.DIST_INIT) and loaded:
        phase = Phase.DRAFT_INIT
        if not rank.pool_done:
            rank.drop_empty_pool()
    rank.begin(phase, fact, fact.fields.get("available_gib"))
    if phase is Phase.WEIGHT_LOAD:
        rank.figure("before_weights", fact.fields.get("available_gib"), fact.offset)
    if phase is Phase.GRAPH_CAPTURE:
        rank.sizes = _sizes(fact.text)


def _phase_end(rank: _Rank, fact: LogFact) -> None:
    phase = Phase(fact.fields["phase"])
    if phase is Phase.DIST_INIT:
        if rank.open is not None and rank.open.phase is Phase.DRAFT_INIT:
            return
        rank.figure("communicators_gib", fact.fields.get("used_gib"), fact.offset)
    rank.end(phase, fact)


def _weights(rank: _Rank, fact: LogFact) -> None:
    used, after = fact.fields.get("used_gib"), fact.fields.get("available_gib")
    draft = rank.open is not None and rank.open.phase is Phase.DRAFT_INIT
    if used is None and after is not None and "before_weights" in rank.fields and not draft:
        used = round(rank.fields["before_weights"].value - after, 2)
    if draft:
        rank.figure("draft_weights_gib", used, fact.offset)
        if not rank.pool_done:
            rank.end(Phase.DRAFT_INIT, fact)
            rank.figure("after_weights", after, fact.offset)
            rank.begin(Phase.KV_ALLOC, fact, after)
        return
    rank.end(Phase.WEIGHT_LOAD, fact)
    rank.figure("weights_gib", used, fact.offset)
    rank.figure("after_weights", after, fact.offset)
    rank.begin(Phase.KV_ALLOC, fact, after)


def _kv_pool(rank: _Rank, fact: LogFact) -> None:
    size, tokens, label = fact.fields.get("kv_gib"), fact.fields.get("tokens"), fact.fields.get("label")
    if label == "mamba":
        rank.figure("mamba_gib", size, fact.offset)
    elif rank.pool_done or (rank.open is not None and rank.open.phase is Phase.DRAFT_INIT):
        rank.figure("draft_kv_gib", size, fact.offset)
    else:
        fresh = label == "post-capture"
        rank.figure("kv_gib", size, fact.offset, add=not fresh)
        if label != "SWA":
            rank.figure("kv_tokens", tokens, fact.offset)
        if rank.open is None or rank.open.phase is not Phase.KV_ALLOC:
            rank.begin(Phase.KV_ALLOC, fact)


def _pool_end(rank: _Rank, fact: LogFact) -> None:
    if not rank.pool_done:
        rank.figure("after_pool", fact.fields.get("available_gib"), fact.offset)
        rank.end(Phase.KV_ALLOC, fact)
    rank.pool_done = True


def _graphs(rank: _Rank, fact: LogFact) -> None:
    used = fact.fields.get("used_gib")
    what = str(fact.fields.get("what") or "decode").removeprefix("target ").strip() or "decode"
    capture = GraphCapture(
        what=what,
        at=fact.offset,
        used_gib=used,
        seconds=fact.fields.get("elapsed_s"),
        sizes=_sizes(fact.text) or rank.sizes,
    )
    rank.graphs.append(capture)
    rank.sizes = ()
    rank.pool_done = True
    rank.end(Phase.GRAPH_CAPTURE, fact)


def _memory(rank: _Rank, fact: LogFact) -> None:
    """Note vLLM's own summary of its memory; the fields differ by version."""
    fields = fact.fields
    for name, key in (("weights_gib", "weights_gib"), ("activation_gib", "activation_gib"),
                      ("non_torch_gib", "non_torch_gib"), ("total_gib", "total_gib"), ("kv_gib", "kv_gib"),
                      ("before_weights", "free_gib")):  # fmt: skip
        rank.figure(name, fields.get(key), fact.offset)
    if fields.get("kv_gib") is not None and not rank.pool_done and "graphs_gib" not in fields:
        rank.begin(Phase.KV_ALLOC, fact)


def _limits(rank: _Rank, fact: LogFact) -> None:
    rank.figure("available_at_ready", fact.fields.get("available_gib"), fact.offset)
    current = rank.open
    if current is not None:
        rank.end(current.phase, msgspec.structs.replace(fact, fields={}))


def _sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in a capture's line: `bs=[1, 2, 4]` or `num_tokens=[4, 8]`."""
    _, found, rest = text.partition("=[")
    if not found:
        return ()
    return tuple(int(size) for size in _SIZES.findall(rest.partition("]")[0])[:2000])


_HANDLERS = {
    f.PHASE_BEGIN: _phase_begin,
    f.PHASE_END: _phase_end,
    f.WEIGHTS: _weights,
    f.KV_POOL: _kv_pool,
    f.POOL_END: _pool_end,
    f.GRAPHS: _graphs,
    f.MEMORY: _memory,
    f.LIMITS: _limits,
}
_OF_A_RANK = frozenset(_HANDLERS)
"""Kinds of facts that only ranks print: a server with a single rank prints them without a tag."""
