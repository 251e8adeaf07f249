"""The Tune screen: choosing, what is shown of a choice, and that nothing is done without the capital letter."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from tests.support import changing, states
from tests.support.sessions import FakeSession, settled
from tests.ui.test_contract import painted
from tests.unit.core.test_runs import later_server
from tuner.domain.acts import CancelRun, EndLeftovers, ReleaseLease, ResumeRun, Switch, TakeLease
from tuner.domain.events import Acted
from tuner.domain.runs import ProcessId, RunOutcome, RunStep
from tuner.domain.state import HostState
from tuner.domain.tuning import Wish
from tuner.errors import CatalogError
from tuner.screens.confirm import ConfirmDialog
from tuner.screens.dialogs import TextDialog
from tuner.widgets.keybar import KeyBar
from tuner.widgets.rows import Rows
from tuner.widgets.spans import text_of
from tuner.widgets.tune_knobs import completions, taken_apart

AppOn = Callable[..., tuple[Any, list[FakeSession]]]
NARROW, WIDE = (80, 24), (160, 48)


def session(state: HostState, **more: Any) -> FakeSession:
    return FakeSession(state, **{"facts": changing.FACTS, **more})


def tuned(app_on: AppOn, state: HostState, library: Any = None, **more: Any) -> tuple[Any, FakeSession]:
    app, (host,) = app_on(session(state, **more), library=library or changing.FakeLibrary())
    return app, host


def rows(app: Any, name: str) -> str:
    return app.screen.query_one(name, Rows).text


def told(app: Any) -> str:
    return "\n".join(f"{each.title} {each.message}" for each in app._notifications)


async def press(pilot: Any, *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


# Choosing ------------------------------------------------------------------------------------------------------------


async def test_presets_stand_with_their_keys_and_those_for_others_with_the_reason(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        lines = rows(app, "#presets").splitlines()
        assert [line[1:17].rstrip() for line in lines[1:]] == [
            "0 as it is",
            "1 base-88",
            "2 nccl-2ch-128k",
            "3 graph-bs-512",
            "4 fp8-kv",
            "5 nvlink-sharp",
            "6 vllm-eager  is",
        ]
        assert "needs NVLink" in lines[6]
        assert "below" not in lines[0], "the list takes the lines that the part leaves free"


async def test_a_number_chooses_and_what_changes_is_shown_at_once(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2")
        text = rows(app, "#tune")
        assert "NCCL_MAX_NCHANNELS        16 › 2" in text
        assert "NCCL_BUFFSIZE             4 MiB › 128 KiB" in text
        assert "what changes against the running server (pid 48211)" in text
        assert "fewer NCCL channels, small buffers" in rows(app, "#tune-title")
        await press(pilot, "9")
        assert "NCCL_MAX_NCHANNELS        16 › 2" in rows(app, "#tune"), "there is no ninth"
        await press(pilot, "0")
        assert "nothing: the server would be started again as it runs" in rows(app, "#tune")


async def test_what_is_not_for_this_server_can_be_looked_at_and_says_why(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "5")
        assert "not for this server: needs NVLink between every pair of GPUs" in rows(app, "#tune-title")
        await press(pilot, "enter", "Y")
        assert not isinstance(app.screen, ConfirmDialog)
        assert host.acts == []


async def test_the_arrow_keys_go_through_the_list_and_the_filter_narrows_it(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "down", "down", "up")
        assert app.screen.view.chosen == "base-88"
        await press(pilot, "slash", *"nchannels")
        lines = rows(app, "#presets").splitlines()
        assert [line[1:17].rstrip() for line in lines[1:]] == ["0 as it is", "2 nccl-2ch-128k"]
        assert "1 of 6 with nchannels" in lines[0]
        await press(pilot, "enter", "down")
        assert app.screen.view.chosen == "nccl-2ch-128k"
        await press(pilot, "escape")
        assert "6 vllm-eager" in rows(app, "#presets")


async def test_the_order_of_the_number_keys_is_the_operators_and_kept(app_on: AppOn) -> None:
    library = changing.FakeLibrary()
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "3", "p", "p")
        assert library.ids[:3] == ["graph-bs-512", "base-88", "nccl-2ch-128k"]
        await press(pilot, "p")
        assert library.ids[0] == "graph-bs-512", "there is nothing above the first"
        await press(pilot, "P", "2")
        assert app.screen.view.chosen == "graph-bs-512"
    assert library.ids[:2] == ["base-88", "graph-bs-512"]
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert "2 graph-bs-512" in rows(app, "#presets")


async def test_a_broken_file_of_presets_is_named_and_leaves_the_others(app_on: AppOn) -> None:
    problems = (
        CatalogError(Path("presets/x.toml"), 3, "there is no field tile"),
        CatalogError(Path("presets/y.toml"), 1, "is not TOML"),
    )
    library = changing.FakeLibrary(problems=problems)
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert "there is no field tile: presets/x.toml:3 (and 1 more)" in rows(app, "#tune-note")
        assert "2 nccl-2ch-128k" in rows(app, "#presets")


async def test_a_chosen_preset_that_is_gone_is_not_chosen_any_more(app_on: AppOn) -> None:
    library = changing.FakeLibrary()
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2")
        assert app.screen.view.chosen == "nccl-2ch-128k"
        del library.known["nccl-2ch-128k"]
        app.screen.read_presets()
        await settled(pilot)
        assert app.screen.view.chosen == ""
        assert "There is no preset nccl-2ch-128k here" in told(app)
        assert app.screen.wish().preset == ""


# Values by hand ------------------------------------------------------------------------------------------------------


async def test_a_knob_is_added_by_its_name_and_a_checked_value(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"mem_fr")
        assert rows(app, "#hints").splitlines()[0].startswith("▌mem_fraction_static")
        await press(pilot, "enter", *"1.2")
        assert "1.2 is more than 1" in rows(app, "#hints")
        await press(pilot, "enter")
        assert app.screen.entry == "value", "what is no value is not taken"
        await press(pilot, "backspace", "backspace", "backspace", *"0.9", "enter")
        assert app.screen.view.overrides == {"mem_fraction_static": 0.9}
        assert "mem_fraction_static       0.88 › 0.9" in rows(app, "#tune")


async def test_name_and_value_can_be_typed_at_once(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"cuda_graph_max_bs=64", "enter")
        assert app.screen.view.overrides == {"cuda_graph_max_bs": 64}


async def test_a_name_and_its_value_are_told_apart_from_words_of_a_name(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t")
        knobs = app.screen.knobs()
    assert completions(knobs, "memory weights"), "the words of a title find it"
    for typed, name, value in (
        ("cuda_graph_max_bs=64", "cuda_graph_max_bs", "64"),
        ("--cuda-graph-max-bs 64", "--cuda-graph-max-bs", "64"),
        ("NCCL_DEBUG_FILE=/logs/a=b c", "NCCL_DEBUG_FILE", "/logs/a=b c"),
        ("memory weights", "memory weights", ""),
        ("mem_fraction_static =", "mem_fraction_static", ""),
        ("wurst 3", "wurst", "3"),
    ):
        assert taken_apart(knobs, typed) == (name, value)


async def test_while_a_value_is_typed_behind_its_name_the_knob_stays_marked(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"mem_fraction_static=1.")
        assert rows(app, "#hints").splitlines()[0].startswith("▌mem_fraction_static")


async def test_a_name_that_no_knob_has_is_said_and_not_taken(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"wurst", "enter")
        assert "no knob of this version is called wurst" in rows(app, "#hints")
        assert app.screen.view.overrides == {}


async def test_the_safe_interval_moves_as_the_value_moves(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"mem_fraction_static=0.88", "enter")

        def bar() -> str:
            return next(line for line in rows(app, "#tune").splitlines() if "safe fractions" in line)

        before = bar()
        await press(pilot, "right", "right")
        assert app.screen.view.overrides == {"mem_fraction_static": 0.89}
        assert bar() != before
        assert "● 0.89" in bar()
        await press(pilot, "left")
        assert "● 0.885" in bar()
        await press(pilot, "delete")
        assert app.screen.view.overrides == {}


async def test_what_the_forecast_refuses_can_be_tried_all_the_same(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "n", *"mem_fraction_static=0.99", "enter")
        assert "refuses  Memory forecast" in rows(app, "#tune")
        assert "F Overrule" in app.screen.query_one(KeyBar).text
        await press(pilot, "enter")
        assert not isinstance(app.screen, ConfirmDialog)
        await press(pilot, "F", "enter")
        assert isinstance(app.screen, ConfirmDialog)
        assert "Asking the host" not in told(app), "it would cover the keys of the question"
        await press(pilot, "Y")
    assert isinstance(host.acts[0], Switch)


@pytest.mark.parametrize("outcome", [RunOutcome.READY, RunOutcome.FAILED, RunOutcome.BACK, RunOutcome.REFUSED])
async def test_what_was_set_for_a_run_ends_with_it(app_on: AppOn, outcome: RunOutcome) -> None:
    app, host = tuned(app_on, changing.tunable(), acted=Acted(id=1, run=changing.FAILED.id))
    tried = outcome is not RunOutcome.REFUSED
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "n", *"mem_fraction_static=0.99", "enter", "F", "enter", "Y")
        going = states.REPLACE(changing.FAILED, outcome=RunOutcome.RUNNING, supervised=True)
        host.push(states.REPLACE(changing.tunable(), runs=(going,)))
        await settled(pilot)
        assert app.screen.view.ignore_forecast, "it goes on"
        await press(pilot, "n", *"tp_size=4", "enter")
        ended = states.REPLACE(changing.FAILED, outcome=outcome)
        host.push(states.REPLACE(changing.tunable(), runs=(ended,)))
        await settled(pilot)
        assert app.screen.view.ignore_forecast is not tried
        assert app.screen.view.overrides == {"tp_size": 4} | ({} if tried else {"mem_fraction_static": 0.99})


async def test_another_preset_is_not_tried_against_the_forecast_unasked(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "n", *"mem_fraction_static=0.99", "enter", "F")
        assert app.screen.view.ignore_forecast
        await press(pilot, "2")
        assert not app.screen.view.ignore_forecast


# Applying ------------------------------------------------------------------------------------------------------------


async def test_before_a_switch_everything_is_named_and_only_the_capital_letter_agrees(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "enter", "enter", "y", "enter")
        assert host.acts == [], "neither enter nor a small letter agrees"
        text = rows(app, "#question")
        for part in (
            "root@gpu-box-1",
            "pid 48211, owner root, up 2h14m",
            "4 in flight, 0 queued; cut if not done within 15 s",
            "NCCL_MAX_NCHANNELS 16 -> 2",
            "NCCL_BUFFSIZE 4 MiB -> 128 KiB",
            "TERM to its main process",
            "8 GPUs must give the memory back",
            "usually ready in 9:58",
            "a key goes back to the server as it was (pid 48211)",
        ):
            assert part in text, part
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.stop is not None
    assert act.order.stop.leader == ProcessId(pid=48211, start_ticks=8190000, uid=0, title=act.order.stop.leader.title)
    assert act.order.start is not None
    assert act.order.start.preset == "nccl-2ch-128k"
    assert act.order.start.env["NCCL_MAX_NCHANNELS"] == "2"
    assert act.order.back is not None
    assert act.order.back.like == f"server:{states.KEY}"
    assert act.order.operator == host.operator
    assert not act.order.auto_back
    assert act.order.stop.drain_s == 0


async def test_draining_and_going_back_are_chosen_in_the_question(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "enter", "a", "d")
        assert "[x] goes back by itself if it fails" in rows(app, "#answers")
        assert "[x] waits for its requests first" in rows(app, "#answers")
        assert "4 in flight, 0 queued; cut if not done within 5:00" in rows(app, "#question")
        assert "TERM to its main process: no new requests, up to 5:00 for those in flight" in rows(app, "#question")
        assert "go back to the server as it was (pid 48211) without being asked, once" in rows(app, "#question")
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.auto_back
    stop = act.order.stop
    assert stop is not None
    assert stop.drain_s == 300 or stop.steps[0].wait_s == 300, "SGLang drains by itself after a TERM"


@pytest.mark.parametrize("key", ["escape", "n"])
async def test_the_question_can_be_declined(app_on: AppOn, key: str) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2", "enter", key)
        assert not isinstance(app.screen, ConfirmDialog)
        assert "Nothing was changed" in told(app)
    assert host.acts == []


async def test_keys_that_were_typed_ahead_change_nothing(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2")
        await pilot.press("enter", "enter", "enter", "y", "enter", "space")
        await settled(pilot)
        assert isinstance(app.screen, ConfirmDialog)
    assert host.acts == []


async def test_what_a_check_refuses_is_not_asked_about(app_on: AppOn) -> None:
    taken = {"port": 30000, "owners": [{"pid": 711, "user": "bob", "title": "nginx", "ours": False}]}
    app, host = tuned(app_on, changing.tunable(), facts={**changing.FACTS, "port": taken})
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "enter")
        assert not isinstance(app.screen, ConfirmDialog)
        assert "Port 30000" in told(app)
    assert host.acts == []


async def test_without_the_hosts_facts_nothing_is_done(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable(), facts=None)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "enter")
        assert not isinstance(app.screen, ConfirmDialog)
        assert "The host does not answer" in told(app)
    assert host.acts == []
    assert host.asked, "it was asked"


async def test_why_the_host_did_not_do_it_is_said(app_on: AppOn) -> None:
    answer = Acted(id=1, error="the disk is full", hint="make room in /root")
    app, host = tuned(app_on, changing.tunable(), acted=answer)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "enter", "Y")
        assert "Switch to nccl-2ch-128k the disk is full. Make room in /root" in told(app)
    assert len(host.acts) == 1


async def test_the_choice_is_checked_by_the_host_once_it_rests(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2")
        while not app.screen.view.checked:
            await pilot.pause(0.02)
        assert re.search(r"all \d+ ok", rows(app, "#tune"))
        assert host.asked[-1].command == ("/opt/venv/bin/python", "-m", "sglang.launch_server")


async def test_stop_starts_nothing(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "S")
        assert "Stop the server?" in "\n".join(painted(app))
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.start is None
    assert act.order.stop is not None


async def test_a_dry_run_shows_the_steps_and_the_command_and_sends_nothing(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "D")
        assert isinstance(app.screen, TextDialog)
        assert "1  stop pid 48211: TERM to its main process" in app.screen.text
        assert "NCCL_BUFFSIZE=131072" in app.screen.text
        assert "--api-key '***'" in app.screen.text
    assert host.acts == []


async def test_y_copies_the_exact_command(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "3", "y")
        assert app.clipboard.endswith("--cuda-graph-max-bs 512")


# Who may -------------------------------------------------------------------------------------------------------------


async def test_read_only_shows_everything_and_does_nothing(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable(), read_only=True)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2")
        assert "Connected with --read-only" in rows(app, "#tune-note")
        assert "NCCL_MAX_NCHANNELS" in rows(app, "#tune")
        await press(pilot, "enter", "Y", "S", "Y", "L", "Y")
        assert "nothing on the host is changed" in told(app)
        assert not isinstance(app.screen, ConfirmDialog)
    assert host.acts == []


async def test_another_operators_lease_is_named_and_taken_over_deliberately(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.leased())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2", "enter")
        assert not isinstance(app.screen, ConfirmDialog)
        assert "alice@ws-4 holds the lease of this host, taken 12:00 ago" in rows(app, "#tune-note")
        await press(pilot, "L")
        assert "Take over from alice@ws-4?" in "\n".join(painted(app))
        await press(pilot, "enter", "y")
        assert host.acts == []
        await press(pilot, "Y")
    assert host.acts == [TakeLease(seize=True)]


async def test_a_free_lease_is_taken_and_given_back(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "L")
        assert host.acts == [TakeLease()]
        host.push(states.REPLACE(changing.tunable(), lease=changing.MINE))
        await settled(pilot)
        await press(pilot, "L")
    assert host.acts[1:] == [ReleaseLease()]


async def test_who_loses_the_lease_is_told_on_every_screen(app_on: AppOn) -> None:
    state = states.REPLACE(changing.tunable(), lease=changing.MINE)
    app, host = tuned(app_on, state)
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        lost = states.REPLACE(changing.leased().lease, lost_to=changing.ALICE)
        host.push(states.REPLACE(state, lease=lost))
        await settled(pilot)
        assert "alice@ws-4 took over: you can only watch root@gpu-box-1 now" in told(app)


# While a change goes on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_every_screen_tells_of_a_change_that_goes_on(app_on: AppOn, size: tuple[int, int]) -> None:
    app, _ = tuned(app_on, changing.changing())
    async with app.run_test(size=size) as pilot:
        for key in "oxtidlm":
            await press(pilot, key)
            assert "switching to graph-bs-512: stopping, 12 s left, TERM sent" in "\n".join(painted(app)), key


async def test_the_preset_of_the_server_stands_in_the_status_line(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.changed())
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        assert "preset graph-bs-512" in painted(app)[0]
        assert "graph-bs-512 serves, 1:34 after the order" in painted(app)[1]
        await press(pilot, "t")
        line = next(line for line in rows(app, "#presets").splitlines() if "graph-bs-512" in line)
        assert line.rstrip().endswith("running")


async def test_the_preset_of_the_server_can_be_taken_away(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.changed())
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t")
        assert app.screen.wish() == Wish(server=states.KEY, preset="graph-bs-512")
        await press(pilot, "0", "down")
        assert "▌  without its preset" in rows(app, "#presets")
        assert app.screen.wish() == Wish(server=states.KEY, bare=True)


async def test_from_a_failed_change_a_key_leads_to_why(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.went_back())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert "base-88 serves again" in rows(app, "#tune")
        assert "v why it failed" in rows(app, "#tune")
        await press(pilot, "v")
        assert app.current_mode == "findings"
        assert "mem-fraction-too-low" in "\n".join(painted(app))


async def test_after_a_failed_start_the_key_bar_leads_to_what_is_left_of_it(app_on: AppOn) -> None:
    wanted = ("enter Apply", "B Go back", "C Clean up", "v Why", "o Overview", "l Logs", "? Help", "q Quit")
    app, _ = tuned(app_on, changing.broken())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        bar = app.screen.query_one(KeyBar).text
        assert [each for each in wanted if each not in bar] == []


async def test_after_going_back_a_remedy_stops_what_serves_and_starts_the_mended_preset(app_on: AppOn) -> None:
    state = changing.went_back()
    run = states.REPLACE(state.runs[0], preset="fp8-kv", title="fp8-kv")
    state = states.REPLACE(state, runs=(run,), seen=frozenset({"60311:9100000", states.KEY}))
    app, host = tuned(app_on, state)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "v", "G")
        assert not isinstance(app.screen, ConfirmDialog), "what was good serves already"
        await press(pilot, "A")
        assert "Switch to fp8-kv with mem_fraction_static 0.88?" in "\n".join(painted(app))
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.stop is not None
    assert act.order.stop.leader.pid == 48211
    assert act.order.start is not None
    assert "--mem-fraction-static 0.88" in " ".join(act.order.start.argv)
    assert "--kv-cache-dtype fp8_e5m2" in " ".join(act.order.start.argv)
    assert act.order.back is not None
    assert act.order.back.like == f"server:{states.KEY}"


async def test_a_change_is_followed_step_by_step_and_can_be_cancelled(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.loading())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        text = rows(app, "#tune")
        assert "✔ stop        14.0 s  TERM; all 9 processes have ended" in text
        assert "weights 21/62" in text
        assert "all 8 GPUs 86.8 › 0.6 ✔" in text
        assert "enter Apply" not in app.screen.query_one(KeyBar).text, "one change at a time"
        assert "✖" not in rows(app, "#tune-tabs"), "that a change goes on is no fault of the choice"
        parts = {part.name: [text_of(line).strip() for line in part.lines] for part in app.screen._parts}
        assert parts["checks"] == parts["forecast"] == ["checked again when the run has ended"]
        await press(pilot, "K", "enter")
        assert host.acts == []
        await press(pilot, "Y")
        assert host.acts == [CancelRun(run=changing.LOADING.id, back=True)]
        await press(pilot, "K", "a", "Y")
    assert host.acts[1:] == [CancelRun(run=changing.LOADING.id, back=False)]


async def test_what_a_cancel_does_follows_from_the_step(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.loading())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "K")
        assert "the new server (pid 60311) is stopped" in rows(app, "#question")
        stopping = states.REPLACE(changing.LOADING, step=RunStep.STOP, new=None)
        host.push(states.REPLACE(changing.loading(), runs=(stopping,)))
        await settled(pilot)
        assert "is stopped all the same" in rows(app, "#question")
        await press(pilot, "escape")
    assert host.acts == []


async def test_a_question_about_what_is_over_is_withdrawn(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.loading())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "K")
        assert isinstance(app.screen, ConfirmDialog)
        ready = states.REPLACE(changing.LOADING, outcome=RunOutcome.READY, step=RunStep.END)
        host.push(states.REPLACE(changing.loading(), runs=(ready,)))
        await settled(pilot)
        assert not isinstance(app.screen, ConfirmDialog)
        assert "The change has ended" in told(app)
        await press(pilot, "Y")
    assert host.acts == []


async def test_a_question_about_a_server_that_ended_is_withdrawn(app_on: AppOn) -> None:
    state = changing.tunable()
    app, host = tuned(app_on, state)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2", "enter")
        assert isinstance(app.screen, ConfirmDialog)
        host.push(states.REPLACE(state, servers=()))
        await settled(pilot)
        assert not isinstance(app.screen, ConfirmDialog)
        assert "The server has ended meanwhile" in told(app)
    assert host.acts == []


async def test_what_came_of_an_act_is_told_once(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.loading(), acted=Acted(id=1, error="the run has ended already: ready"))
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "K", "Y")
        assert told(app).count("has ended already") == 1


async def test_an_interrupted_change_can_be_finished_or_undone(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.interrupted())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "interrupted while loading" in painted(app)[1]
        assert "t what can be done" in painted(app)[1]
        await press(pilot, "t")
        assert "f adopt the new server" in rows(app, "#tune")
        assert "B go back to base-88" in rows(app, "#tune")
        await press(pilot, "f", "Y")
        assert host.acts == [ResumeRun(run=changing.INTERRUPTED.id)]
        await press(pilot, "B", "Y")
    assert host.acts[1:] == [ResumeRun(run=changing.INTERRUPTED.id, back=True)]


async def test_an_interrupted_change_is_not_finished_beside_a_server_that_came_since(app_on: AppOn) -> None:
    app, host = tuned(app_on, later_server())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "f")
        assert not isinstance(app.screen, ConfirmDialog)
        assert "was started since" in told(app)
    assert host.acts == []


async def test_only_own_leftovers_are_ended(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.broken())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert "pid 9120 alice python train.py, holds 2.4 GiB of GPU memory, no" in rows(app, "#tune")
        await press(pilot, "C", "Y")
    (act,) = host.acts
    assert isinstance(act, EndLeftovers)
    assert [each.pid for each in act.processes] == [48390]


async def test_after_a_failed_start_a_key_goes_back(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.broken())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "B")
        assert "base-88, exactly as it was" in rows(app, "#question")
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.start is not None
    assert act.order.start.like == f"back:{changing.FAILED.id}"
    assert act.order.start.argv == ()
    assert act.order.stop is None


async def test_a_remedy_is_applied_by_its_key_after_the_question(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.broken())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "A")
        assert "mem_fraction_static 0.55 -> 0.88" in rows(app, "#question")
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.start is not None
    assert act.order.start.argv[-2:] == ("--mem-fraction-static", "0.88")


async def test_a_remedy_that_is_refused_is_copied(app_on: AppOn) -> None:
    missing = {"path": "/opt/venv/bin/python", "exists": False}
    app, host = tuned(app_on, changing.broken(), facts={**changing.FACTS, "interpreter": missing})
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "A")
        assert not isinstance(app.screen, ConfirmDialog)
        assert app.clipboard == "--mem-fraction-static 0.88"
        assert "Copied instead" in told(app)
    assert host.acts == []


async def test_a_remedy_that_cannot_be_applied_says_that_it_is_copied(app_on: AppOn) -> None:
    app, host = tuned(app_on, states.explained())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "A copies --mem-fraction-static 0.88" in rows(app, "#card"), "its API key ended with the process"
        await press(pilot, "A")
        assert app.clipboard == "--mem-fraction-static 0.88"
    assert host.asked == []


async def test_what_the_probe_has_seen_can_be_started_again_with_a_remedy(app_on: AppOn) -> None:
    state = states.explained()
    failed = state.servers[0]
    argv = tuple("0.55" if word == "0.88" else word for word in failed.identity.argv)
    settings = {**failed.settings, "mem_fraction_static": 0.55}
    failed = states.REPLACE(failed, identity=states.REPLACE(failed.identity, argv=argv), settings=settings)
    app, host = tuned(app_on, states.REPLACE(state, servers=(failed,), seen=frozenset({states.KEY})))
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "A applies --mem-fraction-static 0.88" in rows(app, "#card")
        await press(pilot, "A", "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.start is not None
    assert act.order.start.like == f"server:{states.KEY}"


async def test_the_card_of_a_failed_start_goes_back(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.broken())
    async with app.run_test(size=NARROW) as pilot:
        await pilot.pause()
        assert "G back to base-88" in rows(app, "#card")
        await press(pilot, "G", "Y")
    assert isinstance(host.acts[0], Switch)


# What is kept --------------------------------------------------------------------------------------------------------


async def test_the_choice_is_saved_as_a_preset(app_on: AppOn) -> None:
    library = changing.FakeLibrary()
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "3", "n", *"mem_fraction_static=0.87", "enter", "n", *"NCCL_MAX_NCHANNELS=4", "enter")
        await press(pilot, "w", *"small-pool leaves room", "enter")
        assert "Saved preset small-pool" in told(app)
        assert "small-pool" in rows(app, "#presets")
    (preset,) = library.saved
    assert (preset.id, preset.why, preset.extends) == ("small-pool", "leaves room", ("graph-bs-512",))
    assert preset.args == {"mem_fraction_static": 0.87}
    assert preset.env == {"NCCL_MAX_NCHANNELS": "4"}
    assert preset.engine == "sglang"


async def test_why_a_preset_was_not_saved_is_said(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable(), changing.FakeLibrary(broken="There is a preset of that name already"))
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "2", "w", *"base-88", "enter")
        assert "There is a preset of that name already" in told(app)


async def test_how_a_server_is_started_is_kept_with_one_key(app_on: AppOn) -> None:
    library = changing.FakeLibrary()
    app, _ = tuned(app_on, changing.tunable(), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "r", *"kimi", "enter")
        assert "Saved recipe kimi" in told(app)
    (recipe,) = library.kept_recipes
    assert recipe.command == ("/opt/venv/bin/python", "-m", "sglang.launch_server")
    assert "--api-key" in recipe.args
    assert recipe.args[recipe.args.index("--api-key") + 1] == "***"


async def test_where_no_server_runs_a_recipe_starts_one(app_on: AppOn) -> None:
    library = changing.FakeLibrary(recipes=(changing.RECIPE,))
    app, host = tuned(app_on, states.empty(), library)
    async with app.run_test(size=WIDE) as pilot:
        await press(pilot, "t", "4", "enter")
        assert "Start graph-bs-512?" in "\n".join(painted(app))
        assert "cuda_graph_max_bs not set -> 512" in rows(app, "#question")
        assert "model_path" not in rows(app, "#question")
        await press(pilot, "Y")
    (act,) = host.acts
    assert isinstance(act, Switch)
    assert act.order.stop is None
    assert act.order.start is not None
    assert act.order.start.argv[:3] == changing.RECIPE.command


async def test_where_no_command_line_is_known_a_recipe_is_chosen(app_on: AppOn) -> None:
    other = states.REPLACE(changing.RECIPE, name="glm", port=30001)
    library = changing.FakeLibrary(recipes=(changing.RECIPE, other))
    (ended,) = changing.broken().servers
    ended = states.REPLACE(ended, identity=states.REPLACE(ended.identity, argv=()))
    app, _ = tuned(app_on, states.REPLACE(changing.broken(), servers=(ended,), runs=()), library)
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert "r chooses one of the 2 recipes that are kept" in rows(app, "#tune")
        assert "B Go back" not in app.screen.query_one(KeyBar).text, "there is nothing to go back to"
        await press(pilot, "r")
        assert [line.split()[-1] for line in rows(app, "#hints").splitlines()] == ["30000", "30001"]
        await press(pilot, "down", "enter")
        assert app.screen.wish().recipe is other
        assert app.screen.view.tuning.launch is not None
        await press(pilot, "r", *"wurst", "enter")
        assert "no recipe that is kept for this host is called so" in rows(app, "#hints")


async def test_without_server_and_recipe_it_says_what_to_do(app_on: AppOn) -> None:
    app, _ = tuned(app_on, states.empty())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t")
        assert "It is not known how to start a server here" in rows(app, "#tune")


# On a small terminal -------------------------------------------------------------------------------------------------


async def test_on_a_small_terminal_each_part_is_one_key_away(app_on: AppOn) -> None:
    app, _ = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "2")
        seen = []
        for _ in range(5):
            tabs = rows(app, "#tune-tabs")
            seen.append(tabs[tabs.index("[") + 1 : tabs.index("]")].split(" ✔")[0].split(" ▲")[0])
            await press(pilot, "tab")
        assert seen == ["changes", "by hand", "forecast", "checks", "command"]
        await press(pilot, "shift+tab")
        assert "[command]" in rows(app, "#tune-tabs")
        assert "NCCL_BUFFSIZE=131072" in rows(app, "#tune")


async def test_letters_typed_into_the_line_choose_nothing(app_on: AppOn) -> None:
    app, host = tuned(app_on, changing.tunable())
    async with app.run_test(size=NARROW) as pilot:
        await press(pilot, "t", "n", *"2SKB")
        assert app.screen.query_one("#entry", Input).value == "2SKB"
        assert app.screen.view.chosen == ""
        await press(pilot, "escape")
        assert app.screen.entry == ""
    assert host.acts == []
