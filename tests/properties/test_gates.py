"""Whatever a log, an environment or arguments hold, the ways to add up a tensor are told without an error."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.core.diagnosis import diagnose
from tuner.core.gates import all_reduce
from tuner.core.reading import starts_of
from tuner.core.reduction_words import headline, rows
from tuner.domain.gates import GateState, Hardware, PathState
from tuner.domain.starts import Start
from tuner.engines import load_engines

ENGINES = load_engines()
NAMES = sorted({
    *(rule.name for engine in ENGINES.values() for rule in engine.gates().variables),
    *(rule.name for engine in ENGINES.values() for rule in engine.gates().overwrites),
    *(knob for engine in ENGINES.values() for knob in engine.knobs() if knob.isupper()),
})  # fmt: skip
SETTINGS = sorted({
    gate.name for engine in ENGINES.values() for path in engine.gates().paths for gate in path.gates if gate.name
})  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(["0", "1", "true", "2", "-1", "LL128", "SYS", "4M", "expandable_segments:True", ""]),
    st.text(max_size=20),
)
ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 1 << 70), st.floats(), st.text(max_size=8), st.lists(st.none())
)
VERSIONS = st.one_of(
    st.none(), st.text(max_size=8), st.builds("0.{}.{}".format, st.integers(4, 33), st.integers(0, 24)),
    st.sampled_from([">=0.5.21", "0.5.5 - 0.5.8", "<=0.4.3"]),
)  # fmt: skip
LINES = (
    "host:1:1 [0] NCCL INFO NCCL_MAX_NCHANNELS set by environment to {}.",
    "host:1:1 [0] NCCL INFO Invalid value {} for NCCL_BUFFSIZE, using default {}.",
    "host:1:1 [0] NCCL INFO {} coll channels, {} nvls channels, {} p2p channels, {} p2p channels per peer",
    "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {}",
    "[2026-02-26 20:00:01 TP0] Custom allreduce is disabled because {}. To",
    "[2026-02-26 20:00:01 TP0] Custom allreduce is disabled due to an unsupported world size: {}. Supported",
    "[2026-02-26 20:00:01 TP0] SGLANG_FORCE_CUSTOM_AR_PCIE={}: Enabling custom allreduce on PCIe topology ({} GPUs).",
    "[2026-02-26 20:00:01 TP0] Disabling auto-selected prefill CUDA graph: only {} GiB is free; at least {} GiB is",
    "[2026-02-26 20:00:01 TP0] Registering {} cuda graph addresses",
)


def _holds(start: Start, engine: str, hardware: Hardware | None = None) -> None:
    told = all_reduce(start, ENGINES[engine], hardware)
    if told is None:
        return
    assert told.paths[-1].state is PathState.OPEN, "NCCL is always there"
    for path in told.paths:
        closed = [gate for gate in path.gates if gate.state is GateState.CLOSED]
        assert (path.state is PathState.CLOSED) <= bool(closed)
        assert path.state is not PathState.OPEN or not closed
    assert headline(told)
    assert all(row.words for row in rows(told, gates=True, unasked=True))


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None)
@given(
    env=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
    arguments=st.dictionaries(st.sampled_from([*SETTINGS, "nnodes", "device"]), ANY, max_size=6),
    version=VERSIONS,
    ranks=st.integers(0, 20),
    hardware=st.builds(
        Hardware, full_nvlink=st.sampled_from([None, True, False]), capability=st.sampled_from(["", "9.0", "12.0", "x"])
    ),
)
def test_any_environment_and_arguments(
    engine: str, env: dict[str, str], arguments: dict[str, Any], version: str | None, ranks: int, hardware: Hardware
) -> None:
    size = {"sglang": "tp_size", "vllm": "tensor_parallel_size"}[engine]
    start = Start(engine=engine, version=version, settings={size: ranks, **arguments}, env=env)
    _holds(start, engine, hardware)
    for finding in diagnose(start, ENGINES[engine]):
        assert finding.severity == "info"
        assert finding.explanation
        assert finding.refuted_by


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LINES), VALUES), max_size=8), st.booleans())
def test_any_values_in_lines_that_are_read(told: list[tuple[str, str]], ready: bool) -> None:
    lines = [
        "[2026-02-26 19:52:30] server_args=ServerArgs(model_path='m', tp_size=8, disable_custom_all_reduce=False)",
        *(line.replace("{}", value) for line, value in told),
        *(["[2026-02-26 20:02:31] The server is fired up and ready to roll!"] if ready else []),
    ]
    for start in starts_of(list(enumerate(lines, 1)), ENGINES):
        _holds(start, start.engine)
        for finding in diagnose(start, ENGINES[start.engine]):
            assert finding.severity in ("info", "performance")
            assert all(each.at is None or start.first <= each.at <= start.last for each in finding.evidence)
