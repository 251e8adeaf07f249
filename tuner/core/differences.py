"""Collects what differs between two starts: arguments, variables, versions, measures.

`core.compare` decides what each difference means for the outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner.core.fit import rank_cells
from tuner.core.literals import parse_settings
from tuner.core.surroundings import environment, parts
from tuner.core.talk import effective_channels
from tuner.core.versions import may_be_same
from tuner.domain.comparison import Difference, Group, Measure, Origin, RankPair, Role, Value
from tuner.domain.server import START_PHASES
from tuner.domain.starts import MODEL_ARGS, Figure, RankStory, Start

NOISE = frozenset({
    "random_seed", "seed", "port", "host", "nccl_port", "dist_init_addr", "master_port", "data_parallel_rpc_port",
    "disaggregation_bootstrap_port", "grpc_port", "metrics_port", "api_key", "admin_api_key", "ssl_keyfile",
    "ssl_certfile", "ssl_ca_certs", "served_model_name", "tokenizer_path", "tokenizer", "download_dir",
    "crash_dump_folder", "file_storage_path", "export_metrics_to_file_dir", "debug_tensor_dump_output_folder",
    "log_requests_target", "log_file", "otlp_traces_endpoint", "instance_id", "engine_id", "run_id", "pid",
    "checkpoint_hash", "config_file", "uds",
})  # fmt: skip
"""Arguments that differ between any two starts and explain no outcome."""
NOISE_VARIABLES = re.compile(
    r"PWD|OLDPWD|HOME|USER|LOGNAME|SHLVL|_|SSH_\w+|TERM|TMUX\w*|STY|WINDOWID|XDG_\w+|DBUS_\w+|INVOCATION_ID"
    r"|JOURNAL_STREAM|SYSTEMD_EXEC_PID|HOSTNAME|MASTER_PORT|\w*_PORT|SLURM_JOB\w*|NCCL_DEBUG(_FILE|_SUBSYS)?"
)
"""Environment variables that differ between any two starts and explain no outcome."""
UNLIKE = 0.005
"""GiB: sizes that differ by no more are equal, since half of the last printed digit is rounding."""
SLOWER = 1.25
"""Ratio from which two durations count as different, if they also differ by `SLOWER_S`."""
SLOWER_S = 2.0
"""Seconds from which two durations count as different, if their ratio also reaches `SLOWER`."""

_MEMORY: tuple[tuple[str, Callable[[RankStory], Figure | None], Callable[..., float]], ...] = (
    ("total", lambda rank: rank.total_gib, min),
    ("communicators", lambda rank: rank.communicators_gib, max),
    ("before weights", lambda rank: rank.before_weights, min),
    ("weights", lambda rank: rank.weights_gib, max),
    ("draft weights", lambda rank: rank.draft_weights_gib, max),
    ("after weights", lambda rank: rank.after_weights, min),
    ("activation", lambda rank: rank.activation_gib, max),
    ("non-torch", lambda rank: rank.non_torch_gib, max),
    ("mamba state", lambda rank: rank.mamba_gib, max),
    ("after pool", lambda rank: rank.after_pool, min),
    ("at ready", lambda rank: rank.available_at_ready, min),
)
"""Name of a purpose, its figure in a rank's story, and which rank counts: the least free memory, the most used
memory."""
_POOL: tuple[tuple[str, str, Callable[[RankStory], Figure | None], Callable[..., float]], ...] = (
    ("tokens", "tokens", lambda rank: rank.kv_tokens, min),
    ("size", "GiB", lambda rank: rank.kv_gib, min),
    ("draft pool", "GiB", lambda rank: rank.draft_kv_gib, max),
)
_ECHOES = frozenset({"max_total_num_tokens", "available_gpu_mem", "chunked_prefill_size", "max_prefill_tokens"})
"""Limits that repeat a measure or an argument, so that their change means nothing of its own."""
FREE = frozenset({"before weights", "after weights", "after pool", "at ready"})
"""Purposes that measure free memory, not used memory."""


def arguments(good: Start, bad: Start) -> Iterator[Difference]:
    """Yield the server args whose values differ, by name.

    An argument that only one log prints counts if the operator set it; else one of the versions does not have it, and
    it is noise. If only one of the logs prints arguments at all, nothing is yielded.
    """
    if not good.settings or not bad.settings:
        return
    one, other = flat(good.settings), flat(bad.settings)
    echoes = _echoes(one, other)
    for name in sorted(one.keys() | other.keys()):
        before, after = one.get(name), other.get(name)
        if same(name, before, after):
            continue
        in_both = name in one and name in other
        was_asked = name in good.given or name in bad.given
        noise = name in NOISE or name.rpartition(".")[0] in echoes or not (in_both or was_asked)
        whose = "baseline" if name in one else "other start"
        yield Difference(
            group=Group.ARGUMENT,
            name=name,
            good=_as_value(before),
            bad=_as_value(after),
            good_origin=_origin(good, name),
            bad_origin=_origin(bad, name),
            good_at=good.settings_at,
            bad_at=bad.settings_at,
            role=Role.NOISE if noise else Role.POSSIBLE,
            note="" if in_both or was_asked else f"only the {whose} has it",
        )


def _echoes(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the nested settings in which a change only repeats a top-level argument's."""
    changed = {
        name: (repr(one.get(name)), repr(other.get(name)))
        for name in one.keys() | other.keys()
        if not same(name, one.get(name), other.get(name))
    }
    whole = {pair for name, pair in changed.items() if "." not in name}
    return {name.rpartition(".")[0] for name, pair in changed.items() if "." in name and pair in whole}


def variables(good: Start, bad: Start) -> Iterator[Difference]:
    """Yield the environment variables that only one log proves, or whose values differ."""
    one, other = environment(good), environment(bad)
    for name in sorted(one.keys() | other.keys()):
        before, after = one.get(name), other.get(name)
        if before == after:
            continue
        yield Difference(
            group=Group.ENVIRONMENT,
            name=name,
            good=before,
            bad=after,
            good_origin=Origin.UNKNOWN if before is None else Origin.MEASURED,
            bad_origin=Origin.UNKNOWN if after is None else Origin.MEASURED,
            role=Role.NOISE if NOISE_VARIABLES.fullmatch(name) else Role.POSSIBLE,
        )


def versions(good: Start, bad: Start) -> Iterator[Difference]:
    """Yield the parts whose versions differ; those of an editable install also if only one log tells them."""
    before, after = parts(good), parts(bad)
    if good.version and bad.version and good.engine == bad.engine and not may_be_same(good.version, bad.version):
        before.setdefault("engine", good.version)
        after.setdefault("engine", bad.version)
    for name in sorted(before.keys() | after.keys(), key=lambda part: (part != "engine", part)):
        old, new = before.get(name), after.get(name)
        if old == new or (name not in _INSTALL and (old is None or new is None)):
            continue
        yield Difference(
            group=Group.VERSION,
            name=name,
            good=old,
            bad=new,
            good_origin=Origin.UNKNOWN if old is None else Origin.MEASURED,
            bad_origin=Origin.UNKNOWN if new is None else Origin.MEASURED,
        )


_INSTALL = frozenset({"commit", "dirty", "changed files"})
"""Parts that only an editable install has: they count even if the other log tells nothing."""


def measures(good: Start, bad: Start) -> Iterator[Measure]:
    """Yield every number that either log tells, in the order of a start: phases, memory, pool, graphs, limits."""
    yield from _phases(good, bad)
    for name, of, worst in _MEMORY:
        yield from _measure(Group.MEMORY, name, "GiB", _figures(good, of), _figures(bad, of), worst)
    for name, unit, figure, worst in _POOL:
        yield from _measure(Group.POOL, name, unit, _figures(good, figure), _figures(bad, figure), worst)
    yield from _measure(Group.POOL, "bytes per token", "B", cells(good), cells(bad), max)
    yield from _graphs(good, bad)
    for name in dict.fromkeys([*good.limits, *bad.limits]):
        before, after = good.limits.get(name), bad.limits.get(name)
        yield Measure(
            group=Group.LIMIT,
            name=name,
            good=None if before is None else before.value,
            bad=None if after is None else after.value,
        )
    channels = effective_channels(good), effective_channels(bad)
    if channels != (None, None):
        yield Measure(group=Group.LIMIT, name="NCCL channels", good=channels[0], bad=channels[1])


def missing(measure: Measure, good: Start, bad: Start) -> bool:
    """Return whether only one start captured these graphs, although the other became ready without them."""
    if measure.group is not Group.GRAPHS or measure.unit != "GiB" or (measure.good is None) == (measure.bad is None):
        return False
    without = good if measure.good is None else bad
    return without.ready_at is not None


def unlike(measure: Measure) -> bool:
    """Return whether two numbers differ by more than rounding, and durations by more than those of equal starts."""
    if measure.name in _ECHOES or measure.good is None or measure.bad is None or measure.good == measure.bad:
        return False
    gap = abs(measure.bad - measure.good)
    if measure.group is Group.PHASE or measure.unit == "s":
        times = measure.ratio
        return gap >= SLOWER_S and (times is None or max(times, 1 / times) >= SLOWER)
    if measure.name == "bytes per token":
        return gap > 0.01 * abs(measure.good)
    return gap > UNLIKE if measure.unit == "GiB" else True


def same(name: str, one: Any, other: Any) -> bool:
    """Return whether two values of an argument mean the same: of paths that lead to an LLM only the LLM counts."""
    if one == other:
        return True
    if name in (*MODEL_ARGS, "speculative_draft_model_path"):
        return bool(one) and bool(other) and llm(one) == llm(other)
    return False


def llm(name: Any) -> str:
    """Return the LLM that a path, a hub id or a cached snapshot names, in lower case."""
    text = str(name).rstrip("/")
    cached = re.search(r"models--([^/]+)/snapshots/", text + "/")
    last = cached[1].rpartition("--")[2] if cached else text.rpartition("/")[2]
    return last.lower()


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted names: `cuda_graph_config.decode.max_bs`."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        inner = parse_settings(value) if isinstance(value, str) and _COMPOSED.match(value) else value
        if isinstance(inner, Mapping) and inner and name.count(".") < _DEEPEST:
            found |= flat({str(part): each for part, each in inner.items()}, f"{name}.")
        else:
            found[name] = value
    return found


_COMPOSED = re.compile(r"[A-Za-z_][\w.]*\(\w+=|\{['\"]")
_DEEPEST = 3


def _as_value(value: Any) -> Value:
    """Return a value in a type that a `Difference` holds; other types become text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, int) for each in value):
        return tuple(value)
    return str(value)


def cells(start: Start) -> dict[int, float]:
    """Return bytes of KV per token, by rank number."""
    return {number: cell.value for number, cell in rank_cells(start).items()}


def _origin(start: Start, name: str) -> Origin:
    if name in start.given:
        return Origin.GIVEN
    # An engine that prints what the operator set (`given`) would have printed it: it was not set.
    return Origin.RESOLVED if name in start.settings or start.given else Origin.UNKNOWN


def _phases(good: Start, bad: Start) -> Iterator[Measure]:
    for phase in START_PHASES:
        yield from _measure(Group.PHASE, phase.value, "s", _seconds(good, phase), _seconds(bad, phase), max)


def _seconds(start: Start, phase: str) -> dict[int, float]:
    """Return seconds of a phase by rank, all its spans added: the draft model's weights make a second one."""
    found: dict[int, float] = {}
    for rank in start.ranks:
        spans = [span.seconds for span in rank.phases if span.phase == phase and span.seconds is not None]
        if spans:
            found[rank.number] = sum(spans)
    return found


def _graphs(good: Start, bad: Start) -> Iterator[Measure]:
    names = dict.fromkeys(each.what for start in (good, bad) for rank in start.ranks for each in rank.graphs)
    for what in names:
        sides = [
            [(rank.number, each) for rank in start.ranks for each in rank.graphs if each.what == what]
            for start in (good, bad)
        ]
        sizes = [{n: each.used_gib for n, each in side if each.used_gib is not None} for side in sides]
        times = [{n: each.seconds for n, each in side if each.seconds is not None} for side in sides]
        counts = [{n: float(len(each.sizes)) for n, each in side if each.sizes} for side in sides]
        largest = [{n: float(max(each.sizes)) for n, each in side if each.sizes} for side in sides]
        yield from _measure(Group.GRAPHS, f"{what} memory", "GiB", sizes[0], sizes[1], max)
        yield from _measure(Group.GRAPHS, f"{what} time", "s", times[0], times[1], max)
        yield from _measure(Group.GRAPHS, f"{what} sizes", "", counts[0], counts[1], max)
        yield from _measure(Group.GRAPHS, f"{what} largest", "", largest[0], largest[1], max)


def _figures(start: Start, of: Callable[[RankStory], Figure | None]) -> dict[int, float]:
    return {rank.number: figure.value for rank in start.ranks if (figure := of(rank)) is not None}


def _measure(
    group: Group,
    name: str,
    unit: str,
    good: Mapping[int, float],
    bad: Mapping[int, float],
    worst: Callable[..., float],
) -> Iterator[Measure]:
    if not good and not bad:
        return
    yield Measure(
        group=group,
        name=name,
        unit=unit,
        good=worst(good.values(), default=None),
        bad=worst(bad.values(), default=None),
        pairs=tuple(RankPair(n, good.get(n), bad.get(n)) for n in sorted(good.keys() | bad.keys())),
    )
