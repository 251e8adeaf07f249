"""Whether a start fits, said beforehand, against what it then did: every start of the demo, every real one on a GPU.

The demo's engine shares no code with the forecast (`tests/support/demo_starts.py`). The real starts are those of
`real/INDEX.md` and of the journals; those of `evidence` are in `test_forecasts.py`.
`docs/benchmarks.md` has the counts.
"""

from __future__ import annotations

import collections
import functools
import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.golden import diagnoses
from tests.golden.test_journals import JOURNALS, states
from tests.support import demo_starts as demo
from tests.support.golden_starts import GOLDEN, last_start
from tuner.core.knobs import read_value
from tuner.domain.forecast import Fit, Forecast
from tuner.domain.knobs import KnobKind
from tuner.domain.preflight import Verdict
from tuner.domain.presets import Preset
from tuner.domain.starts import Start
from tuner.domain.tuning import Tuning
from tuner.simhost.engine.config import VERSIONS

SGLANG = diagnoses.ENGINES["sglang"]
OF_MEMORY = (
    "graphs-16", "graphs-128", "graphs-512", "kv-fp8", "requests-32", "sglang-prefill-4096", "sglang-fraction-80",
    "sglang-fraction-88",
)  # fmt: skip
"""The bundled presets that change what a start of SGLang takes."""
BASE = "base-88-3"
"""The launch with which most scenarios begin."""
OTHER_BASE = 0.80
"""A second start that worked, from which the launches themselves are forecast as well: its pool is too small for a
request of full length."""


class Held(NamedTuple):
    """A forecast and what came of the start."""

    name: str
    forecast: Forecast
    worked: bool

    @property
    def definite(self) -> bool:
        """Whether it was said without `not surely`."""
        return self.forecast.sure or self.forecast.fit not in (Fit.FITS, Fit.UNKNOWN)

    @property
    def right(self) -> bool:
        """Whether what was said came true."""
        return (self.forecast.fit is Fit.FITS) is self.worked


def counted(held: list[Held]) -> dict[str, int]:
    """Return how many forecasts were right and wrong, and how many starts that do not surely fit worked or not."""
    names = {(True, True): "right", (True, False): "wrong", (False, True): "unsure, worked", (False, False): "unsure"}
    return dict(collections.Counter(names[each.definite, each.right] for each in held))


def said(each: Held) -> str:
    told = each.forecast
    return f"{each.name}: {told.fit} at {told.fraction} of {told.f_min} to {told.f_max}, and it worked: {each.worked}"


# The demo.


def laid_over(version: str, base: float, launch: str, preset: str = "") -> Tuning:
    """Return what `gputuner apply` makes of a launch of a scenario, with a preset beneath it."""
    wanted = demo.launches()[launch]
    beneath = demo.presets().get(preset)
    own = {} if beneath is not None and "mem_fraction_static" in beneath.args else {
        "mem_fraction_static": wanted.fraction
    }  # fmt: skip
    made = Preset(
        id="wanted", title="Wanted", why="w", extends=(preset,) if preset else (), args=own, env=dict(wanted.env),
        path="wanted.toml",
    )  # fmt: skip
    return demo.proposed(demo.served(version, base)[0], version, made, {})


@functools.cache
def held_in_demo(version: str, base: float, launch: str, preset: str = "") -> Held:
    tuning = laid_over(version, base, launch, preset)
    assert tuning.launch is not None
    assert tuning.planned is not None
    then = demo.started(version, tuning.launch)
    return Held(f"{version} {launch} {preset} from {base}", tuning.planned.then, then.works)


@functools.cache
def of_scenarios() -> list[Held]:
    return [
        held_in_demo(version, base, launch)
        for version in VERSIONS
        for base in (0.88, OTHER_BASE)
        for launch in demo.launches()
    ]


@functools.cache
def of_presets() -> list[Held]:
    return [
        held_in_demo(version, 0.88, launch, preset)
        for version in VERSIONS
        for launch, wanted in demo.launches().items()
        for preset in OF_MEMORY
        if "fraction" not in preset or wanted.env or launch == BASE
    ]


def test_the_scenarios_start_with_every_outcome() -> None:
    """Else the test below proves little: too low, too high in capture, too high in a long prompt, and what works."""
    launches = demo.launches()
    assert len(launches) == 7
    assert {launch.fraction for launch in launches.values()} == {0.88, 0.55, 0.5, 0.97, 0.94}
    for version in VERSIONS:
        ends = {name: demo.started(version, laid_over(version, 0.88, name).launch).failed for name in launches}  # type: ignore[arg-type]
        assert set(ends.values()) == {"", "pool", "capture", "serving"}, ends


def test_every_launch_of_every_scenario_does_as_was_said() -> None:
    assert [said(each) for each in of_scenarios() if not (each.definite and each.right)] == []


def test_with_a_preset_of_memory_what_is_said_for_certain_comes_true() -> None:
    """Some are said to fit, but not surely: by the expected values, and not if the errors come true."""
    assert [said(each) for each in of_presets() if each.definite and not each.right] == []
    for each in of_presets():
        if not each.definite:
            told = each.forecast
            assert told.fit is Fit.FITS
            assert told.f_max is not None
            assert told.fraction is not None
            unforecast = any("is not forecast" in warning for warning in told.warnings)
            assert told.fraction > told.f_max or unforecast, "it is told up to where it surely fits, or why not"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("preset", ["", *OF_MEMORY[:-2]])
def test_the_largest_fraction_that_is_called_safe_works_and_the_least_does_not(version: str, preset: str) -> None:
    told = held_in_demo(version, 0.88, BASE, preset).forecast
    assert told.f_max is not None
    assert told.f_min is not None
    state = demo.served(version, 0.88)[0]
    ends = {}
    for fraction in (told.f_max, told.f_min, told.f_min + 0.001):
        args = {"mem_fraction_static": round(fraction, 4)}
        made = Preset(id="end", title="End", why="w", extends=(preset,) if preset else (), args=args, path="end.toml")
        tuning = demo.proposed(state, version, made, {})
        assert tuning.launch is not None
        ends[fraction] = demo.started(version, tuning.launch).failed
    assert list(ends.values()) == ["", "pool", ""]


def test_what_does_not_surely_fit_is_no_plain_yes_before_a_switch() -> None:
    """The memory's check asks the operator, and names the safe fraction."""
    tuning = laid_over("0.5.9", 0.88, BASE, "graphs-512")
    (memory,) = [check for check in tuning.checks if check.id == "memory"]
    assert tuning.planned is not None
    assert (tuning.planned.then.fit, tuning.planned.then.sure) == (Fit.FITS, False)
    assert memory.verdict is Verdict.WARN
    assert f"up to {tuning.planned.then.f_max:.3f}" in memory.way_out


# Real starts.

CHANGES = "real/sglang-0.5.16-2xH200-changes/"
CHANNELS = {"NCCL_MAX_NCHANNELS": "2"}
"""What those logs do not tell, and the journal of the same starts does."""


@functools.cache
def real() -> dict[str, Start]:
    """Return every start of the LLM on two and on four H200, by log, or by journal and server."""
    found: dict[str, Start] = {}
    for path in sorted((GOLDEN / "real").glob("*H200*/*/server.log")):
        name = str(path.relative_to(GOLDEN).parent)
        found[name] = last_start(f"{name}/server.log")
    for name in ("nccl2ch", "f995", "back"):
        found[CHANGES + name] = msgspec.structs.replace(found[CHANGES + name], env=CHANNELS)
    for path in sorted(JOURNALS.glob("*.ndjson")):
        last = {}
        for _, state in states(path):
            last.update({server.identity.key: server.start for server in state.servers if server.start is not None})
        found.update({f"{path.stem} {key}": start for key, start in last.items()})
    return found


def value(start: Start, name: str) -> object:
    table = SGLANG.knobs()
    if table[name].kind is KnobKind.FLAG:
        return table.value(start.settings, name, start.version)
    spelling = table.spelling(name, start.version)
    text = (start.env or {}).get(spelling.text if spelling is not None else name)
    return None if text is None else read_value(table[name], text)


def from_to(base: Start, other: Start) -> Forecast:
    """Return the forecast of a start from another: every knob that is forecast and differs is changed."""
    known = [name for name, knob in SGLANG.knobs().items() if knob.forecast]
    values = {name: (value(base, name), value(other, name)) for name in known}
    return SGLANG.forecast(base, {name: then for name, (now, then) in values.items() if now != then})


@functools.cache
def of_real() -> list[Held]:
    return [
        Held(f"{other} from {base}", from_to(started, then), then.worked)
        for base, started in real().items()
        if started.worked
        for other, then in real().items()
        if other != base
    ]


def test_every_real_start_does_as_was_said_from_every_other_that_worked() -> None:
    assert len(real()) == 21
    assert sum(not start.worked for start in real().values()) == 4, "too low once, too high on two hosts"
    assert [said(each) for each in of_real() if not each.right] == []
    for each in of_real():
        if not each.definite:
            assert each.forecast.warnings, "it is told why it does not surely fit"


@pytest.mark.parametrize(
    ("printed", "log", "fits", "rel"),
    [("apply1", "custom-ar", True, 5e-4), ("apply2", "nccl2ch", True, 5e-4), ("apply3", "f995", False, None)],
)
def test_what_apply_printed_before_each_change_came_true(printed: str, log: str, fits: bool, rel: float | None) -> None:
    """What was said on the host itself, before anything was started."""
    text = (GOLDEN / f"runs/sglang-0.5.16-2xH200/{printed}.txt").read_text("utf-8")
    then = last_start(f"{CHANGES}{log}/server.log")
    assert ("\nFITS " in text, "\nDOES NOT FIT " in text, then.worked) == (fits, not fits, fits)
    if rel is not None:
        told = re.search(r"([\d,]+) tokens of KV", text)
        assert told is not None
        assert int(told[1].replace(",", "")) == pytest.approx(then.limits["max_total_num_tokens"].value, rel=rel)


def test_a_fraction_above_the_interval_does_not_fit_though_its_tokens_are_not_known() -> None:
    """A start that failed before it told its pool is refused when it is planned once more."""
    again = SGLANG.forecast(last_start(f"{CHANGES}f995/server.log"), {})
    assert (again.fit, again.kv_tokens, again.f_max) == (Fit.TOO_HIGH, None, 0.942)


def test_of_a_server_without_a_gpu_nothing_is_said() -> None:
    logs = list((GOLDEN / "real").glob("*-cpu/*.log"))
    assert len(logs) == 29
    for path in logs:
        start, _ = diagnoses.judged(path)
        told = diagnoses.ENGINES[start.engine].forecast(start, {})
        assert (told.fit, told.f_max, told.sure) == (Fit.UNKNOWN, None, False), path


def test_the_page_has_these_counts() -> None:
    page = (Path(__file__).parents[2] / "docs/benchmarks.md").read_text("utf-8")
    for name, held in (
        ("the demo's scenarios", of_scenarios()),
        ("the same with presets", of_presets()),
        ("real logs and journals", of_real()),
    ):
        counts = counted(held)
        row = " | ".join(f"{counts.get(kind, 0)}" for kind in ("right", "wrong", "unsure, worked", "unsure"))
        line = next((line for line in page.splitlines() if line.startswith(f"| {name}")), "")
        assert line.endswith(f"| {len(held)} | {row} |"), (name, len(held), row)
