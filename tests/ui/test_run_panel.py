"""What is said of a run, in one line and in full, and of what is asked before one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import changing, states
from tuner.core.order_words import steps_of
from tuner.core.run_words import (
    aim,
    cause_of,
    cut_words,
    holder_words,
    leftover_words,
    outcome,
    progress,
    wait_words,
    way_on,
)
from tuner.core.tuning import tune
from tuner.domain.planning import PlanKnob
from tuner.domain.preflight import Check, Verdict
from tuner.domain.runs import Lease, RunOutcome, RunRecord, RunStep
from tuner.domain.state import HostState
from tuner.domain.tuning import PresetChoice, Tuning, Wish
from tuner.engines import load_engines
from tuner.screens.tune_requests import all_knobs
from tuner.widgets.confirm_text import answer_lines, for_change, for_lease, proposal_lines
from tuner.widgets.glyphs import ASCII, UNICODE
from tuner.widgets.run_panel import NEWS_S, news, run_line, run_lines
from tuner.widgets.spans import text_of, width_of
from tuner.widgets.tune_knobs import completions, knob_lines, said_of_text
from tuner.widgets.tune_list import list_lines
from tuner.widgets.tune_page import View, run_keys, sections, tab_line
from tuner.widgets.tune_text import check_lines, checks_word, title_lines

ENGINES = load_engines()
WALL = states.WALL
KNOBS = all_knobs(ENGINES["sglang"], changing.tunable().servers[0], "0.5.9")


def tuning(state: HostState, wish: Wish) -> Tuning:
    return tune(
        state, wish, ENGINES, changing.PRESETS, run="r1", operator=changing.MIA, facts=changing.FACTS, flags=None
    )


def text(state: HostState, run: RunRecord, width: int = 100, doing: str = "") -> str:
    return "\n".join(text_of(line).rstrip() for line in run_lines(state, run, width, UNICODE, doing=doing))


# In one line ---------------------------------------------------------------------------------------------------------


def test_a_run_in_one_line() -> None:
    assert progress(changing.STOPPING, WALL) == "switching to graph-bs-512: stopping, 12 s left, TERM sent"
    assert progress(changing.LOADING, WALL) == "switching to graph-bs-512: loading, pid 60311"
    late = states.REPLACE(changing.LOADING, until=WALL + 9)
    assert progress(late, WALL) == "switching to graph-bs-512: loading, 9 s left, pid 60311"
    cancelled = states.REPLACE(changing.STOPPING, cancelled_by=changing.ALICE)
    assert progress(cancelled, WALL) == "switching to graph-bs-512: cancelling, 12 s left, TERM sent"
    back = states.REPLACE(changing.LOADING, going_back=True)
    assert progress(back, WALL) == "going back to base-88: loading, pid 60311"
    assert (
        progress(changing.INTERRUPTED, WALL)
        == "switching to graph-bs-512: interrupted while loading, its supervisor is gone"
    )
    stop = changing.run(preset="", title="", back="", step=RunStep.MEMORY)
    assert progress(stop, WALL) == "stopping pid 48211: waiting for the GPU memory"
    start = changing.run(old=None, step=RunStep.CHECK)
    assert aim(start) == "starting graph-bs-512"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"outcome": RunOutcome.READY}, "graph-bs-512 serves, 1:34 after the order"),
        ({"outcome": RunOutcome.REFUSED, "detail": "the port is taken by pid 7"}, "the port is taken by pid 7"),
        ({"outcome": RunOutcome.FAILED, "failure": "exit code 1"}, "graph-bs-512 did not start: exit code 1"),
        (
            {"outcome": RunOutcome.BACK, "failure": "exit code 1"},
            "graph-bs-512 did not start: exit code 1; base-88 serves again",
        ),
        (
            {
                "outcome": RunOutcome.BACK,
                "cancelled_by": changing.ALICE,
                "detail": "the server before serves again",
            },
            "graph-bs-512 was cancelled; base-88 serves again",
        ),
        ({"outcome": RunOutcome.CANCELLED}, "cancelled before anything was touched"),
        ({"outcome": RunOutcome.STUCK, "detail": "pid 48300 did not end"}, "stuck: pid 48300 did not end"),
        ({"outcome": RunOutcome.STOPPED, "memory": changing.memory([0.6])}, "pid 48211 is stopped, all its memory"),
        ({"outcome": RunOutcome.STOPPED, "memory": changing.memory([80.0])}, "pid 48211 is stopped"),
    ],
)
def test_how_a_run_ended(fields: dict[str, object], words: str) -> None:
    assert words in outcome(changing.run(**fields))


def test_waits_and_leftovers_and_holders() -> None:
    assert wait_words(11.6) == "12 s left"
    assert wait_words(588) == "9:48 left"
    first, second = changing.FAILED.leftovers
    assert leftover_words(first) == "pid 48390 root sglang::detokenizer, of the stopped server"
    assert leftover_words(second) == (
        "pid 9120 alice python train.py, holds 2.4 GiB of GPU memory, not ours: never signalled"
    )
    assert holder_words(changing.leased().lease, WALL) == "alice@ws-4 holds the lease of this host, taken 12:00 ago"
    silent = states.REPLACE(changing.leased().lease, beat_at=WALL - 25)
    assert holder_words(silent, WALL).endswith("; last sign of life 0:25 ago")
    assert holder_words(changing.MINE, WALL) == ""
    assert holder_words(Lease(), WALL) == ""
    assert way_on(states.empty(), changing.INTERRUPTED) == "pid 60311, which it started, lives"
    stopping = states.REPLACE(changing.STOPPING, supervised=False)
    assert way_on(states.empty(), stopping).startswith("the old server is not seen any more")
    assert way_on(changing.tunable(), stopping) == "pid 48211, which it was to stop, still lives"
    assert way_on(states.empty(), changing.LOADING) == ""


def test_the_outcome_is_news_for_a_minute_and_an_interrupted_run_stays_news() -> None:
    state = changing.changed()
    assert news(state) is changing.READY
    assert news(states.REPLACE(state, now=changing.READY.updated_at + NEWS_S + 1)) is None
    assert run_line(states.REPLACE(state, runs=()), 80, UNICODE) == ()
    left = changing.interrupted()
    assert news(states.REPLACE(left, now=WALL + 90_000)) is changing.INTERRUPTED
    line = text_of(run_line(left, 100, UNICODE))
    assert line.startswith(" ▲ switching to graph-bs-512: interrupted")
    assert line.rstrip().endswith("t what can be done")


# In full -------------------------------------------------------------------------------------------------------------


def test_a_run_in_full_has_steps_times_countdown_and_memory() -> None:
    shown = text(changing.changing(), changing.STOPPING)
    assert " ▶ switching to graph-bs-512 · 1:35 so far · by mia@laptop · back: base-88" in shown
    assert "   ▶ stop          1:34  12 s left, TERM sent" in shown
    assert "   then memory › launch › loading › port › health › first token › steady" in shown
    shown = text(changing.loading(), changing.LOADING, doing="weights 21/62")
    assert "   ▶ loading       1:17  pid 60311, weights 21/62, gives up in 40:00" in shown
    assert "   GiB           all 8 GPUs 86.8 › 0.6 ✔" in shown


def test_a_failed_run_says_why_what_did_not_come_back_and_what_was_left() -> None:
    shown = text(changing.broken(), changing.FAILED)
    title = changing.broken().servers[0].findings[0].title
    ended = "(exit code 1 in 62 s: torch.OutOfMemoryError: CUDA out of memory)"
    assert f"graph-bs-512 did not start: {title} {ended}" in " ".join(shown.split())
    assert "   ✖ loading       1:02  ended by itself" in shown
    assert "GPUs 0-6 86.8 › 0.6 ✔   GPU 7 86.8 › 12.4 ◌" in shown
    assert " ▲ left over  pid 48390 root sglang::detokenizer, of the stopped server" in shown
    assert run_keys(changing.loading(), changing.LOADING) == ["K cancels it"]
    cancelled = states.REPLACE(changing.LOADING, cancelled_by=changing.ALICE)
    assert run_keys(changing.loading(), cancelled) == []
    assert run_keys(changing.broken(), changing.FAILED) == [
        "B goes back to base-88",
        "v why it failed",
        "C ends what was left over",
    ]
    killed = states.REPLACE(changing.FAILED, failure="ended", exit_code=-9)
    assert "(signal 9)" in text(changing.broken(), killed)


def test_a_failed_start_is_named_by_its_cause_and_how_it_ended_comes_after() -> None:
    killed = states.REPLACE(changing.FAILED, failure="the server was ended by SIGKILL after 16 s", exit_code=-9)
    state = states.REPLACE(changing.broken(), runs=(killed,), now=killed.updated_at)
    title = state.servers[0].findings[0].title
    words = f"graph-bs-512 did not start: {title} (after 16 s)"
    assert text_of(run_line(state, 180, UNICODE, here=True)).strip() == f"{UNICODE.bad} {words}"
    shown = text(state, killed, width=180)
    assert words in shown
    assert "signal 9" not in shown, "it is told once"
    back = states.REPLACE(killed, outcome=RunOutcome.BACK, failed=killed.new, new=killed.old)
    assert progress(back, WALL, cause_of(states.REPLACE(state, runs=(back,)), back)) == f"{words}; base-88 serves again"
    cancelled = states.REPLACE(back, cancelled_by=changing.ALICE)
    assert cause_of(state, cancelled) == "", "what was cancelled did not fail"
    unknown = states.REPLACE(state, servers=())
    assert progress(killed, WALL, cause_of(unknown, killed)).endswith("did not start: " + killed.failure)


def test_the_step_in_which_a_start_failed_is_marked_and_not_the_one_after_it() -> None:
    why = "the server was ended by SIGKILL after 62 s"
    whole = changing.steps(
        *changing.ENDED, (RunStep.LOADING, 18.2, 80, "8 ranks live"), (RunStep.MEMORY, 80, 82, "the GPU memory is back")
    )
    loading = states.REPLACE(whole[4], failed=why)
    failed = states.REPLACE(changing.FAILED, failure=why, steps=(*whole[:4], loading, whole[5]))
    shown = text(changing.broken(), failed)
    assert f"   ✖ loading       1:02  {why}" in shown
    assert "   ✔ memory       2.0 s  the GPU memory is back" in shown
    again = tuple(states.REPLACE(each, back=True) for each in whole[3:5])
    back = states.REPLACE(
        failed, outcome=RunOutcome.BACK, going_back=True, failed=failed.new, steps=(*failed.steps, *again)
    )
    shown = text(changing.broken(), back)
    assert shown.count("✖") == 1
    assert f"   ✖ loading       1:02  {why}" in shown


def test_a_run_that_only_stops_has_no_steps_of_a_start_ahead() -> None:
    stop = states.REPLACE(changing.STOPPING, preset="", title="", back="")
    assert "   then memory" in text(changing.changing(), stop)
    assert "launch" not in text(changing.changing(), stop)


def test_a_stop_that_cut_requests_does_not_look_like_a_clean_one() -> None:
    killed = changing.steps(
        (RunStep.STOP, 0.2, 30.9, "all 11 processes have ended, after SIGKILL to 11 processes"),
        (RunStep.MEMORY, 30.9, 31.5, "the GPU memory is back"),
    )
    ended = changing.run(
        outcome=RunOutcome.STOPPED,
        memory=changing.memory([0.6]),
        steps=(states.REPLACE(killed[0], unclean=True), killed[1]),
    )
    words = "ended by SIGKILL, which cut its requests in flight"
    assert outcome(ended) == f"pid 48211 is stopped, {words}, all its memory came back"
    shown = text(changing.changed(), ended)
    assert "   ▲ stop        30.7 s  all 11 processes have ended, after SIGKILL" in shown
    assert "   ✔ memory" in shown
    serves = states.REPLACE(ended, outcome=RunOutcome.READY)
    assert outcome(serves).endswith(f"after the order; the server before: {words}")
    drained = changing.steps((RunStep.DRAIN, 0, 30, "11 requests still in flight after 30 s"))
    late = changing.run(outcome=RunOutcome.STOPPED, steps=(states.REPLACE(drained[0], unclean=True),))
    assert outcome(late) == "pid 48211 is stopped, its requests in flight were cut"
    launch = changing.steps((RunStep.LAUNCH, 31, 32, ""), (RunStep.STOP, 40, 50, "SIGKILL"))
    failed = changing.run(steps=(*killed, launch[0], states.REPLACE(launch[1], unclean=True)))
    assert cut_words(failed) == "", "a start that failed and was killed served nobody"


def test_unknown_numbers_are_unknown() -> None:
    waiting = changing.run(step=RunStep.MEMORY, memory=changing.memory([None, 0.6]))
    assert "GPU 0 86.8 › ? ◌" in text(changing.changing(), waiting)


# Orders, checks, lists -----------------------------------------------------------------------------------------------


def test_an_order_in_words_names_every_signal_and_the_way_back() -> None:
    made = tuning(changing.tunable(), Wish(server=states.KEY, preset="nccl-2ch-128k", auto_back=True, drain_s=300))
    assert made.order is not None
    told = "\n".join(steps_of(made.order))
    for part in (
        "stop pid 48211: TERM to its main process",
        "KILL to each process of it that lives",
        "Before each signal boot, PID, start and owner are checked",
        "wait up to 60 s until 8 GPUs gave the memory back",
        "start nccl-2ch-128k, detached from this terminal, log in /data/logs",
        "its own process listens on port 30000, health answers, a first token comes, all 8 ranks live",
        "go back to the server as it was (pid 48211) without being asked, once",
    ):
        assert part in told, part


def test_checks_put_what_refuses_first_and_say_the_way_out() -> None:
    checks = (
        Check(id="disk", title="Disk", verdict=Verdict.OK, detail="plenty"),
        Check(id="port", title="Port 30000", verdict=Verdict.FAIL, detail="taken by pid 7", way_out="choose another"),
        Check(id="shm", title="/dev/shm", verdict=Verdict.WARN, detail="1 GiB"),
        Check(id="llm", title="LLM", verdict=Verdict.UNKNOWN, detail="the probe did not tell"),
    )
    lines = [text_of(line).rstrip() for line in check_lines(checks, 100, 40, UNICODE, checked=True)]
    assert lines[0].startswith(" ✖ refuses  Port 30000             taken by pid 7")
    assert lines[1].strip() == "› choose another"
    assert lines[2].startswith(" ▲ warns    /dev/shm")
    assert lines[3].startswith(" ? unknown  LLM")
    assert lines[4].startswith(" ✔ ok       Disk")
    assert checks_word(checks, checking=False, checked=True, glyphs=UNICODE) == ("✖ 1 refuses it", "bad")
    assert checks_word(checks[2:], checking=True, checked=False, glyphs=UNICODE)[1] == "busy"
    assert checks_word(checks[2:], checking=False, checked=True, glyphs=UNICODE) == ("▲ 2 of 2 to look at", "warn")
    assert checks_word(checks[:1], checking=False, checked=True, glyphs=UNICODE) == ("✔ all 1 ok", "ok")
    assert checks_word(checks[:1], checking=False, checked=False, glyphs=UNICODE)[0] == "the host is not asked yet"


def test_completions_put_the_beginning_of_a_name_first() -> None:
    found = [each.knob.name for each in completions(KNOBS, "cuda_graph")]
    assert found[0] == "cuda_graph_max_bs"
    assert completions(KNOBS, "--mem-fraction-static")[0].knob.name == "mem_fraction_static"
    assert completions(KNOBS, "NCCL_BUFF")[0].knob.name == "NCCL_BUFFSIZE"
    assert completions(KNOBS, "no such thing") == []


def test_of_a_typed_value_its_harm_or_its_range_is_said() -> None:
    fraction = KNOBS["mem_fraction_static"]
    assert not said_of_text(fraction, "1.3").good
    assert "1.3 is more than 1" in said_of_text(fraction, "1.3").text
    assert said_of_text(fraction, "0.9").good
    tokens = said_of_text(KNOBS["chunked_prefill_size"], "4GiB")
    told = all_knobs(ENGINES["sglang"], None, "0.5.9", 80 << 30)["chunked_prefill_size"]
    assert said_of_text(told, "").text.endswith(". Left out: 8192, by the memory of the smallest GPU")
    assert said_of_text(KNOBS["max_prefill_tokens"], "").text.endswith(". Left out: 16384")
    assert not tokens.good
    assert tokens.text.startswith("a whole number of tokens is meant, not '4GiB'; -1 or more: tokens")
    assert said_of_text(fraction, "").text.startswith("0.01 to 1")
    harmful = [
        (knob, hazard)
        for knob in KNOBS.values()
        for hazard in knob.knob.hazards
        if hazard.value is not None and not hazard.given and hazard.where == type(hazard.where)()
    ]
    assert harmful, "the catalogue knows harmful values"
    for knob, hazard in harmful:
        text_of_it = ("on" if hazard.value else "off") if isinstance(hazard.value, bool) else str(hazard.value)
        said = said_of_text(knob, text_of_it)
        assert said.style in ("bad", "warn"), knob.knob.name


STATES = [*changing.ALL.values(), states.serving, states.empty]
CHOICES = tuple(
    PresetChoice(id=name, title=each.title, why=each.why, unmet="" if at % 3 else "needs NVLink between every pair")
    for at, (name, each) in enumerate(changing.PRESETS.items())
)
VIEWS: dict[str, View] = {}


def view(name: str, state: HostState) -> View:
    if name not in VIEWS:
        key = state.servers[0].identity.key if state.servers else ""
        wish = Wish(server=key, preset="nccl-2ch-128k", overrides={"mem_fraction_static": 0.97})
        VIEWS[name] = View(
            presets=CHOICES,
            knobs=KNOBS,
            chosen="nccl-2ch-128k",
            overrides=wish.overrides,
            tuning=tuning(state, wish),
            checked=True,
            can_act=True,
        )
    return VIEWS[name]


@given(
    at=st.integers(0, len(STATES) - 1),
    width=st.integers(40, 180),
    room=st.integers(4, 40),
    alone=st.booleans(),
    plain=st.booleans(),
)
def test_nothing_is_wider_than_its_room(at: int, width: int, room: int, alone: bool, plain: bool) -> None:
    state = STATES[at]()
    glyphs = ASCII if plain else UNICODE
    shown = view(STATES[at].__name__, state)
    server = state.servers[0] if state.servers else None
    parts = sections(state, server, shown, max(76, width), room, glyphs, alone=alone)
    for part in parts:
        for line in part.lines:
            assert width_of(line) <= max(76, width), (part.name, text_of(line))
            assert not plain or text_of(line).isascii(), text_of(line)
    assert width_of(tab_line(parts, "changes", max(76, width), glyphs)) <= max(76, width)
    listed = list_lines(CHOICES, "fp8-kv", "base-88", width, room, glyphs)
    assert len(listed) <= max(2, room)
    assert all(width_of(line) <= width for line in listed)
    assert any("fp8-kv" in text_of(line) for line in listed), "what is chosen is in view"
    knobs: dict[str, PlanKnob] = KNOBS
    by_hand = knob_lines(knobs, {"mem_fraction_static": 0.97, "tp_size": 4}, 1, width, room, glyphs, active=True)
    assert all(width_of(line) <= width for line in by_hand)
    assert len(by_hand) <= room
    if shown.tuning is not None and shown.tuning.order is not None:
        proposal = for_change(state, server, shown.tuning, shown.tuning.order, drain=True, back=True)
        asked = [*proposal_lines(proposal, width), *answer_lines(proposal, width)]
        assert all(width_of(line) <= max(width, 48) for line in asked)
    assert all(width_of(line) <= width for line in proposal_lines(for_lease(state), width))
    for run in state.runs:
        assert all(width_of(line) <= width for line in run_lines(state, run, width, glyphs))
        assert width_of(run_line(state, width, glyphs)) <= width


def test_a_reason_that_is_too_long_keeps_its_beginning() -> None:
    words = "Lower latency for small all-reduces on PCIe and less memory for the buffers of each rank " * 2
    for width in range(60, 100):
        choice = PresetChoice(id="two", title="fewer channels", why=words)
        last = text_of(title_lines(choice, 0, width, UNICODE, most=2)[-1])
        assert last.startswith(" Lower latency for small")
        assert last.endswith("…")
        assert len(last) < width
