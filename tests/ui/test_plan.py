"""The memory of a start that has not happened: knobs, forecast, command."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest
from textual.widgets import Input

from tests.support import explained, states
from tests.support.sessions import FakeSession, settled
from tuner.core.planned import knobs_of
from tuner.domain.forecast import Fit, Forecast
from tuner.domain.knobs import KnobType, Turning
from tuner.domain.planning import PlanKnob, Planned
from tuner.domain.state import HostState
from tuner.engines import load_engines
from tuner.widgets.glyphs import ASCII, UNICODE
from tuner.widgets.notes import group_name
from tuner.widgets.plan_fields import change_words, command_line, label_of, next_value, typed_value, value_words
from tuner.widgets.plan_panel import base_line, panel
from tuner.widgets.rows import Rows
from tuner.widgets.spans import text_of, width_of

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
NARROW, WIDE = (80, 24), (160, 48)
ENGINE = load_engines()["sglang"]
KNOBS = {each.knob.name: each for each in knobs_of(ENGINE, explained.good_start())}


def planned(**changes: Any) -> Planned:
    base = explained.good_start()
    return Planned(
        base=base,
        knobs=tuple(KNOBS.values()),
        now=ENGINE.forecast(base, {}),
        title=ENGINE.title,
        then=ENGINE.forecast(base, changes),
    )


def text(plan: Planned, width: int = 159, chosen: int = 0, **values: Any) -> str:
    lines = panel(plan, values, chosen, width, UNICODE, old=False).lines
    return "\n".join(text_of(line).rstrip() for line in lines)


def with_past(state: HostState) -> HostState:
    return states.REPLACE(state, servers=(states.REPLACE(state.servers[0], past=(explained.good_start(),)),))


def shown(app: Any) -> str:
    return app.screen.query_one("#plan", Rows).text


def command(app: Any) -> str:
    return app.screen.query_one("#command", Rows).text


# Knobs ---------------------------------------------------------------------------------------------------------------


def test_the_knobs_are_those_of_the_version_with_the_values_of_the_start() -> None:
    assert list(KNOBS)[:3] == ["mem_fraction_static", "cuda_graph_max_bs", "chunked_prefill_size"]
    assert KNOBS["mem_fraction_static"].value == 0.88
    assert KNOBS["NCCL_MAX_NCHANNELS"].value == 16
    assert KNOBS["NCCL_BUFFSIZE"].assumed
    assert KNOBS["tp_size"].flag == "--tp-size"
    assert "gpu_memory_utilization" not in KNOBS


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_how_a_knob_is_turned_stands_with_the_knob(name: str) -> None:
    turned = [knob for knob in load_engines()[name].knobs().values() if knob.turning is not None]
    assert len({knob.turning.place for knob in turned if knob.turning}) == len(turned) > 8, "one place each"
    for knob in turned:
        assert knob.turning is not None
        assert knob.min is None or knob.turning.first >= knob.min, knob.name
        assert knob.type is not KnobType.INT or knob.turning.first >= knob.turning.least, knob.name
    extra = states.REPLACE(KNOBS["tp_size"].knob, turning=Turning(place=1, negates="one_gpu", unset="off"))
    assert label_of(states.REPLACE(KNOBS["tp_size"], knob=extra)) == "one_gpu"
    assert value_words(states.REPLACE(KNOBS["tp_size"], knob=extra), None) == "off"


def test_vllm_has_its_own() -> None:
    start = states.REPLACE(explained.good_start(), engine="vllm", version="0.11.0", settings={"max_num_seqs": 256})
    found = {each.knob.name: each for each in knobs_of(load_engines()["vllm"], start)}
    assert {"gpu_memory_utilization", "max_num_batched_tokens", "max_running_requests"} <= found.keys()
    assert "mem_fraction_static" not in found


@pytest.mark.parametrize(
    ("name", "value", "more", "less"),
    [
        ("mem_fraction_static", 0.88, 0.885, 0.875),
        ("mem_fraction_static", 0.8812, 0.885, 0.88),
        ("cuda_graph_max_bs", 128, 160, 96),
        ("cuda_graph_max_bs", 100, 128, 96),
        ("chunked_prefill_size", 8192, 16384, 4096),
        ("max_running_requests", None, 128, 128),
        ("context_length", 131072, 262144, 65536),
        ("tp_size", 8, 16, 4),
        ("tp_size", 1, 2, 1),
        ("NCCL_MAX_NCHANNELS", 16, 24, 12),
        ("NCCL_BUFFSIZE", 4194304, 8388608, 2097152),
        ("disable_custom_all_reduce", False, True, True),
        ("kv_cache_dtype", "auto", "fp8_e5m2", "fp4_e2m1"),
        ("speculative_algorithm", None, "EAGLE", "NGRAM"),
    ],
)
def test_the_next_value_is_a_sensible_one(name: str, value: Any, more: Any, less: Any) -> None:
    assert next_value(KNOBS[name], value, 1) == more
    assert next_value(KNOBS[name], value, -1) == less


def test_values_have_an_end() -> None:
    for each in KNOBS.values():
        value = each.value
        for _ in range(80):
            value = next_value(each, value, 1)
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert next_value(each, value, 1) == value
    assert next_value(KNOBS["mem_fraction_static"], 0.995, 1) == 0.995
    assert next_value(KNOBS["mem_fraction_static"], 0.05, -1) == 0.05


def test_values_are_said_shortly() -> None:
    words = {
        ("context_length", 262144): "256k",
        ("chunked_prefill_size", 8192): "8192",
        ("NCCL_BUFFSIZE", 131072): "128 KiB",
        ("NCCL_BUFFSIZE", 4194304): "4 MiB",
        ("disable_custom_all_reduce", False): "on",
        ("disable_custom_all_reduce", True): "off",
        ("speculative_algorithm", None): "off",
        ("max_running_requests", None): "auto",
        ("mem_fraction_static", 0.885): "0.885",
    }
    for (name, value), text_of_it in words.items():
        assert value_words(KNOBS[name], value) == text_of_it


def test_typed_values_are_read_and_refused_with_a_reason() -> None:
    assert typed_value(KNOBS["mem_fraction_static"], "90%") == 0.9
    assert typed_value(KNOBS["NCCL_BUFFSIZE"], "1M") == 1 << 20
    assert typed_value(KNOBS["kv_cache_dtype"], "auto") == "auto"
    assert typed_value(KNOBS["speculative_algorithm"], "none") is None
    assert typed_value(KNOBS["disable_custom_all_reduce"], "off") is True, "custom all-reduce off"
    refused = (
        ("tp_size", "many"),
        ("kv_cache_dtype", "fp7"),
        ("mem_fraction_static", "7"),
        ("chunked_prefill_size", "4G"),
    )
    for name, words in refused:
        with pytest.raises(ValueError):
            typed_value(KNOBS[name], words)


# The command ---------------------------------------------------------------------------------------------------------


def made(argv: str, **values: Any) -> str:
    return command_line(shlex.split(argv), tuple(KNOBS.values()), values)


def test_a_change_replaces_adds_or_takes_out_an_argument() -> None:
    assert made("python -m x --mem-fraction-static 0.88 --tp-size 8", mem_fraction_static=0.9) == (
        "python -m x --tp-size 8 --mem-fraction-static 0.9"
    )
    assert made("x --mem-fraction-static=0.88", mem_fraction_static=0.9) == "x --mem-fraction-static 0.9"
    assert made("x --mem_fraction_static 0.88 y", mem_fraction_static=0.9) == "x y --mem-fraction-static 0.9"
    assert made("x", cuda_graph_max_bs=64) == "x --cuda-graph-max-bs 64"
    assert made("x --max-running-requests 9 --port 1", max_running_requests=None) == "x --port 1"
    assert made("x --chunked-prefill-size 4096", chunked_prefill_size=-1) == "x --chunked-prefill-size -1"
    assert made("x --chunked-prefill-size -1 --port 1", chunked_prefill_size=4096) == (
        "x --port 1 --chunked-prefill-size 4096"
    )


def test_switches_have_no_value() -> None:
    assert made("x", disable_custom_all_reduce=True) == "x --disable-custom-all-reduce"
    assert made("x --disable-custom-all-reduce --port 1", disable_custom_all_reduce=False) == "x --port 1"


def test_a_switch_that_goes_takes_no_word_along() -> None:
    assert made("serve --disable-custom-all-reduce /models/a", disable_custom_all_reduce=False) == "serve /models/a"


def test_a_flag_is_replaced_under_whatever_name_it_was_given() -> None:
    assert made("python -u -m x --tp 4 --port 1", tp_size=2) == "python -u -m x --port 1 --tp-size 2"
    assert made("x --tensor-parallel-size=4", tp_size=None) == "x"


def test_variables_stand_before_the_command() -> None:
    values = {"NCCL_MAX_NCHANNELS": 2, "mem_fraction_static": 0.9}
    assert made("x", **values) == "env NCCL_MAX_NCHANNELS=2 x --mem-fraction-static 0.9"
    assert made("x", NCCL_MAX_NCHANNELS=2, NCCL_BUFFSIZE=None) == "env -u NCCL_BUFFSIZE NCCL_MAX_NCHANNELS=2 x"
    assert change_words(tuple(KNOBS.values()), values) == ["NCCL_MAX_NCHANNELS=2", "--mem-fraction-static 0.9"]
    assert change_words(tuple(KNOBS.values()), {"NCCL_BUFFSIZE": None}) == ["unset NCCL_BUFFSIZE"]


def test_a_command_is_quoted_for_a_shell() -> None:
    argv = ["/opt/my env/python", "-m", "x", "--served-name", "a;rm -rf /"]
    assert shlex.split(command_line(argv, tuple(KNOBS.values()), {"tp_size": 4})) == [*argv, "--tp-size", "4"]


# The panel -----------------------------------------------------------------------------------------------------------


def test_now_and_then_stand_side_by_side_with_their_sources() -> None:
    shown_text = text(planned(mem_fraction_static=0.9), mem_fraction_static=0.9)
    assert "✔ FITS  at a fraction of 0.9:" in shown_text
    row = next(line.split("│")[1] for line in shown_text.splitlines() if "│ KV pool" in line)
    assert row.split()[:3] == ["KV", "pool", "10.42"]
    assert float(row.split()[3]) == pytest.approx(21.71 - 94.04 * 0.1, abs=0.02)
    assert "formula" in row
    assert "21.71 - 94.04 x (1 - 0.9)" in row
    assert "mem_fraction_static   0.88 › 0.9" in shown_text
    assert [line.split()[-1] for line in shown_text.splitlines() if "then ▐" in line] == ["left"]


def test_the_interval_shows_the_value_in_it_or_beside_it() -> None:
    inside = next(line for line in text(planned()).splitlines() if "safe fractions" in line)
    assert "0.7691" in inside
    assert "● 0.88" in inside
    outside = text(planned(mem_fraction_static=0.7))
    assert "✖ DOES NOT FIT  refused at 0.7: the least fraction" in outside
    line = next(line for line in outside.splitlines() if "safe fractions" in line)
    assert line.index("●") < line.index("─")


def test_no_fraction_works_is_said() -> None:
    nowhere = Forecast(fit=Fit.NOWHERE, fraction=0.9, f_min=0.97, f_max=0.94)
    plan = states.REPLACE(planned(), then=nowhere)
    assert "none: no fraction works" in text(plan)
    assert "no fraction works: the pool needs more than 0.9700" in " ".join(text(plan).split())
    assert "the weights alone" in text(states.REPLACE(plan, then=states.REPLACE(nowhere, f_min=1.02)))


def test_the_base_is_named_by_its_engine() -> None:
    assert text_of(base_line(planned(), 120, UNICODE)).startswith(
        " planned from the start of SGLang 0.5.9, which worked"
    )


def test_what_is_not_known_is_named() -> None:
    unknown = Forecast(fit=Fit.UNKNOWN, unknown=("the draft's weights: a start with speculation tells them",))
    shown_text = text(states.REPLACE(planned(), then=unknown))
    assert "▲ NOT KNOWN  the logs do not tell enough" in shown_text
    assert "missing: the draft's weights" in shown_text


def test_what_is_safe_begins_where_one_request_of_full_length_fits() -> None:
    plan = planned().then
    serving = states.REPLACE(plan, context=131_072, f_whole=0.861)
    assert " safe fractions  0.861 " in text(states.REPLACE(planned(), then=serving))
    small = states.REPLACE(serving, fraction=0.8, kv_tokens=1_200)
    shown_text = text(states.REPLACE(planned(), then=small))
    assert "▲ STARTS  at a fraction of 0.8: 1,200 tokens of KV, too few for one request of full length" in shown_text
    assert "from 0.861 on it holds one request of the full 131,072 tokens" in shown_text
    doubtful = text(states.REPLACE(planned(), then=states.REPLACE(plan, sure=False, estimated=True)))
    assert "▲ FITS, NOT SURELY" in doubtful and "0.923 by estimate" in doubtful


def test_ranks_that_differ_have_bars_of_their_own() -> None:
    base = explained.good_start()
    odd = states.REPLACE(base.ranks[3], after_weights=explained.Figure(19.0, 1), weights_gib=explained.Figure(75.0, 1))
    base = states.REPLACE(base, ranks=(*base.ranks[:3], odd, *base.ranks[4:]))
    forecast = ENGINE.forecast(base, {})
    plan = Planned(base=base, knobs=tuple(KNOBS.values()), now=forecast, then=forecast)
    bars = [line for line in text(plan, 79).splitlines() if " now  " in line and "left" in line]
    assert [line.partition(" now  ")[0].strip() for line in bars] == ["TP0-2, 4-7", "TP3"]
    assert len({line.index("▐") for line in bars}) == 1


def test_ranks_are_named_together_and_never_by_guess() -> None:
    assert group_name(["TP2"], 8) == "TP2"
    assert group_name(["TP0", "TP1", "TP3"], 8) == "TP0-1, 3"
    assert group_name([f"rank {number}" for number in range(2, 4)], 4) == "rank 2-3"
    assert group_name(["TP0", "rank 2", "rank 3"], 4) == "TP0 +2"
    assert group_name(["DP0 TP0", "DP0 TP1"], 4) == "DP0 TP0 +1"
    assert group_name(["TP0", "TP1"], 2) == "all 2"


@pytest.mark.parametrize("width", [79, 100, 159, 240])
@pytest.mark.parametrize("changes", [{}, {"mem_fraction_static": 0.97}, {"mem_fraction_static": 0.3}, {"tp_size": 4}])
def test_lines_fit(width: int, changes: dict[str, Any]) -> None:
    for glyphs in (UNICODE, ASCII):
        for at in range(len(KNOBS)):
            drawn = panel(planned(**changes), changes, at, width, glyphs, old=True)
            assert max(width_of(line) for line in drawn.lines) <= width
            assert text_of(drawn.lines[drawn.chosen]).startswith(glyphs.cursor)
            if glyphs is ASCII:
                assert all(text_of(line).isascii() for line in drawn.lines)


# The screen ----------------------------------------------------------------------------------------------------------


async def test_turning_a_knob_redraws_the_forecast_and_the_command(app_on: AppOn) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        assert "FITS  at a fraction of 0.88: 159,277 tokens" in shown(app)
        assert "nothing is turned yet" in command(app)
        await pilot.press("right", "right")
        await settled(pilot)
        assert "at a fraction of 0.89:" in shown(app)
        assert "change   --mem-fraction-static 0.89" in command(app)
        await pilot.press("y")
        assert "--mem-fraction-static 0.89" in app.clipboard
        assert "0.88" not in app.clipboard
        await pilot.press("left", "left")
        await settled(pilot)
        assert "nothing is turned yet" in command(app)


async def test_a_value_is_typed(app_on: AppOn) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        await pilot.press("down", *"512", "enter")
        await settled(pilot)
        assert "--cuda-graph-max-bs 512" in command(app)
        assert not isinstance(app.focused, Input)
        await pilot.press("enter", *"many", "enter")
        await settled(pilot)
        assert [toast.severity for toast in app._notifications][-1] == "error"
        await pilot.press("escape", "backspace")
        await settled(pilot)
        assert "nothing is turned yet" in command(app)


async def test_all_is_undone_at_once(app_on: AppOn) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        await pilot.press("right", "down", "right", "up", "up", "right")
        await settled(pilot)
        assert "--cuda-graph-max-bs 160 --disable-custom" in command(app)
        await pilot.press("delete")
        await settled(pilot)
        assert "nothing is turned yet" in command(app)


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_the_chosen_knob_and_the_command_stay_on_the_screen(app_on: AppOn, size: tuple[int, int]) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=size) as pilot:
        await pilot.press("m", *"0.97", "enter")
        await settled(pilot)
        box = app.screen.query_one("#plan-box")
        for _ in range(len(KNOBS)):
            row = next(at for at, line in enumerate(shown(app).splitlines()) if line.startswith("▌"))
            assert box.scroll_y <= row < box.scroll_y + box.size.height
            await pilot.press("down")
            await pilot.pause()
        assert app.screen.query_one("#command").region.bottom <= size[1] - 1


async def test_a_failed_start_is_planned_from_with_what_worked_before(app_on: AppOn) -> None:
    app, _ = app_on(with_past(states.explained()))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        assert "DOES NOT FIT" in shown(app)
        assert "an earlier start helps" in app.screen.query_one("#base", Rows).text
        await pilot.press(*"0.88", "enter")
        await settled(pilot)
        assert "FITS, NOT SURELY  at a fraction of 0.88" in shown(app), "7 graphs were seen, and 20 are to come"


async def test_a_start_that_tells_nothing_is_planned_from_an_earlier_one(app_on: AppOn) -> None:
    app, _ = app_on(with_past(states.serving()))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        assert "FITS  at a fraction of 0.88" in shown(app)


async def test_empty_states_are_words(app_on: AppOn) -> None:
    app, (session,) = app_on(states.serving())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        assert "its log does not tell how much memory its start took" in " ".join(shown(app).split())
        await pilot.press("left", "up", "enter", "backspace", "delete", "1", "y")
        session.push(states.empty())
        await settled(pilot)
        assert "no server, so nothing to plan from" in shown(app)


async def test_a_hidden_secret_is_told_when_the_command_is_copied(app_on: AppOn) -> None:
    app, _ = app_on(states.slowed())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.press("m")
        await settled(pilot)
        await pilot.press("right", "y")
        await settled(pilot)
        assert any("put it in again" in toast.message for toast in app._notifications)


def test_a_knob_of_the_plan_is_one_of_the_catalogue() -> None:
    for each in KNOBS.values():
        assert isinstance(each, PlanKnob)
        assert each.knob.forecast, each.knob.name
