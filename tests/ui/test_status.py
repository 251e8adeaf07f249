from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.support import states
from tuner.domain.events import ProblemSeen
from tuner.domain.findings import Finding, Severity
from tuner.domain.link import LinkPhase
from tuner.domain.server import START_PHASES, Phase
from tuner.domain.state import HostState, LinkState
from tuner.widgets import notes, status
from tuner.widgets.glyphs import ASCII, UNICODE
from tuner.widgets.spans import text_of, width_of
from tuner.widgets.wording import WORDING, source_words

CODES = {
    *("nvml-missing", "nvml-error", "nvml-hang", "gpu-lost", "no-gpu", "proc-denied", "log-denied", "log-vanished"),
    *("log-terminal", "log-pipe", "log-none", "http-refused", "http-nonsense", "http-auth", "http-timeout"),
    *("disk-full", "python-old", "tail-flood", "clock-skew", "probe-error", "journal", "history"),
    "folder",
    "run-damaged",
}


def test_every_problem_code_has_words() -> None:
    assert set(WORDING) == CODES


def test_an_unknown_code_is_shown_as_it_is() -> None:
    state = msgspec.structs.replace(states.serving(), problems=(ProblemSeen(code="from-the-future", detail="x"),))
    assert any(
        "from-the-future (x)" in text_of(line) for item in notes.note_items(state, None, 120, UNICODE) for line in item
    )


@pytest.mark.parametrize("reason", ["Does `ssh box` work?", "It ended.", "It ended"])
def test_why_a_link_is_down_has_one_sign_at_its_end(reason: str) -> None:
    link = LinkState(phase=LinkPhase.DOWN, reason=reason, final=True)
    (item,) = notes.note_items(HostState(name="box", link=link), None, 120, UNICODE)
    end = "?" if reason.endswith("?") else "."
    assert text_of(item[0]).endswith(f"{reason.rstrip('.?')}{end} Press R to try again")


def test_a_start_that_says_nothing_any_more_is_told_and_which_ranks_do_nothing() -> None:
    def shown(silent_s: float, busy: int = 8, usual: dict[Phase, tuple[float, float]] | None = None) -> str:
        state = states.starting()
        server = state.servers[0]
        server = states.REPLACE(
            server,
            log=states.REPLACE(server.log, grown_at=state.mono, said_at=state.mono - silent_s),
            usual=states.REPLACE(server.usual, phases_s=usual or {}),
        )
        samples = tuple(
            states.REPLACE(each, utilization_ratio=1.0 if each.index < busy else 0.0) for each in state.samples
        )
        state = msgspec.structs.replace(state, servers=(server,), samples=samples)
        return " ".join(
            text_of(line).strip() for item in notes.note_items(state, server, 160, UNICODE) for line in item
        )

    assert "silent" not in shown(100.0)
    assert "silent start: no line in the log for 2:10" in shown(130.0)
    assert "without work" not in shown(130.0) + shown(130.0, busy=0), "all do the same"
    assert "2:10; TP6, TP7 without work while other ranks have some" in shown(130.0, busy=6)
    phase = states.starting().servers[0].phase
    assert "silent" not in shown(130.0, usual={phase: (500.0, 520.0)}), "it always takes so long"


def test_a_start_that_is_found_to_stand_still_is_told_by_its_card_alone() -> None:
    state = states.starting()
    server = state.servers[0]
    log = states.REPLACE(server.log, said_at=state.mono - 130.0)
    server = states.REPLACE(server, log=log, usual=states.REPLACE(server.usual, phases_s={}))
    assert notes.silence(state, server)
    for cause in ("start-hang", "graph-capture-hang"):
        found = Finding(cause=cause, severity=Severity.ERROR)
        assert notes.silence(state, states.REPLACE(server, findings=(found,))) == ""


def test_an_unknown_phase_says_what_is_waited_for() -> None:
    state = states.starting()
    server = states.REPLACE(state.servers[0], phase=Phase.UNKNOWN, phases=())
    assert "UNKNOWN  neither its log nor its port has told" in text_of(status.phase_line(state, server, 80, UNICODE))


def test_what_to_do_about_a_lost_host_is_told_to_its_end() -> None:
    reason = "The host key has CHANGED: it is another one than " + "/home/a/.ssh/known_hosts says. " * 8 + "Remove it"
    link = LinkState(phase=LinkPhase.DOWN, reason=reason, final=True)
    state = HostState(name="box", link=link)
    (item,) = notes.note_items(state, None, 80, UNICODE)
    assert " ".join(text_of(line).strip() for line in item).endswith(f"{reason}. Press R to try again")
    assert len(notes.note_items(state, None, 80, UNICODE, most=1)[0]) == 1


@pytest.mark.parametrize("name", states.ALL)
@pytest.mark.parametrize("width", [80, 120, 160])
def test_every_line_fits(name: str, width: int) -> None:
    state = states.ALL[name]()
    server = state.servers[0] if state.servers else None
    for glyphs in (UNICODE, ASCII):
        lines = [status.status_line(state, server, width, glyphs, age_s=12.0), status.no_server_line(state, glyphs)]
        if server is not None:
            lines.append(status.phase_line(state, server, width, glyphs))
            lines.append(status.serving_line(state, server, width, glyphs, "#########"))
        for most in (1, 3):
            lines += [line for item in notes.note_items(state, server, width, glyphs, most=most) for line in item]
        for line in lines:
            assert width_of(line) <= width, text_of(line)


def test_status_line_names_what_matters() -> None:
    state = states.serving()
    text = text_of(status.status_line(state, state.servers[0], 160, UNICODE))
    for part in ("root@gpu-box-1", "8x RTX PRO 6000", "PCIe, no NVLink", "SGLang 0.5.9", "kimi-k2.5-int4"):
        assert part in text
    assert "pid 48211 root 2h14m" in text
    assert text.endswith("link 12 ms  1.4 kB/s  ● up ")


def test_a_narrow_status_line_drops_the_cards_before_the_model() -> None:
    state = states.stale()
    text = text_of(status.status_line(state, state.servers[0], 80, UNICODE, age_s=12.0))
    assert "kimi-k2.5-int4" in text
    assert "reconnecting, attempt 3" in text
    assert "RTX" not in text


def test_the_running_phase_stands_beside_the_usual() -> None:
    state = states.starting()
    wide = text_of(status.phase_line(state, state.servers[0], 160, UNICODE))
    assert "▶ weights 21/62 2:57 (usually 8:25-8:44)" in wide
    assert "so far 3:01, usually 9:50 to 10:10" in wide
    narrow = text_of(status.phase_line(state, state.servers[0], 80, UNICODE))
    assert "▶ weights 21/62 2:57 (usually 8:25-8:44)" in narrow


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [80, 160])
def test_a_start_that_hangs_is_called_longer_than_usual(width: int, glyphs: Any) -> None:
    state = states.starting()
    longest = state.servers[0].usual.phases_s[Phase.WEIGHT_LOAD][1]
    began = state.servers[0].phases[-1].started
    for took, late in ((longest * 2.9, False), (longest * 3.1, True)):
        now = msgspec.structs.replace(state, now=began + took)
        line = status.phase_line(now, now.servers[0], width, glyphs)
        assert "weights 21/62" in text_of(line)
        assert ("longer than usual (8:25-8:44)" in text_of(line)) == late
        assert ((f"{glyphs.warn} weights", "warn") in line) == late
    quick = states.REPLACE(state.servers[0].usual, phases_s={Phase.WEIGHT_LOAD: (1.0, 2.0)})
    server = states.REPLACE(state.servers[0], usual=quick)
    for took, late in ((59.0, False), (61.0, True)):
        line = status.phase_line(msgspec.structs.replace(state, now=began + took), server, width, glyphs)
        assert ("longer than usual" in text_of(line)) == late


def test_the_phases_say_that_their_beginning_is_cut() -> None:
    state = states.starting()
    server = state.servers[0]
    earlier = states.REPLACE(server.phases[0], ended=server.phases[0].started + 3600)
    long = states.REPLACE(server, phases=(*(earlier,) * 5, *server.phases[1:]))
    assert "STARTING  … › args" in text_of(status.phase_line(state, long, 120, UNICODE))
    assert "STARTING  ~ > " in text_of(status.phase_line(state, long, 120, ASCII))
    assert "…" not in text_of(status.phase_line(state, server, 160, UNICODE))


def test_a_long_wait_for_the_first_token_is_told_in_seconds() -> None:
    metrics = states.REPLACE(states.server().metrics, ttft_s=13.776)
    assert "ttft  13.8 s" in [text_of(part) for part in status.metric_parts(metrics)]
    assert any("13.8 s" in text_of(line) for line in status.metric_grid(metrics, 49))
    metrics = states.REPLACE(metrics, ttft_s=9.999)
    assert "ttft 9999 ms" in [text_of(part) for part in status.metric_parts(metrics)]


def test_a_failure_names_phase_first_rank_and_words() -> None:
    state = states.failed()
    lines = [text_of(line) for item in notes.note_items(state, state.servers[0], 80, UNICODE) for line in item]
    joined = " ".join(line.strip() for line in lines)
    assert joined.startswith("✖ FAILED while allocating KV · TP5 first of 8 ranks: RuntimeError: Not enough memory.")
    assert "self.server_args.mem_fraction_static=0.55" in joined
    assert "pid 48390 outlived the server" in joined


def test_a_server_killed_without_a_word_is_described() -> None:
    state = states.failed()
    server = msgspec.structs.replace(state.servers[0], errors=(), phase_evidence="")
    lines = [text_of(line) for item in notes.note_items(state, server, 120, UNICODE) for line in item]
    assert any("the log does not say why" in line for line in lines)


def notes_of(state: HostState, width: int = 160, **options: Any) -> str:
    items = notes.note_items(state, state.servers[0], width, UNICODE, **options)
    return "\n".join(text_of(line).strip() for item in items for line in item)


def test_a_server_that_served_did_not_fail_in_ready_and_a_silent_death_comes_first() -> None:
    text = notes_of(states.killed())
    first, second = text.splitlines()[:2]
    assert first.startswith("✖ FAILED while serving: TP3 (pid 48380) died without an error of its own: killed")
    assert second == "✖ then TP0: RuntimeError: Connection closed by peer [10.0.0.5]:41234"
    state = states.killed()
    styles = {style for _, style in status.phase_line(state, state.servers[0], 160, UNICODE)[2:]}
    assert "bad" not in styles, "its warm-up went well"
    going = msgspec.structs.replace(state.servers[0], phase=Phase.READY)
    assert notes_of(msgspec.structs.replace(state, servers=(going,))).startswith("✖ error: TP3 (pid 48380) died")


@pytest.mark.parametrize("phase", [*START_PHASES, Phase.READY, Phase.STOPPING])
def test_what_failed_is_said_in_words(phase: Phase) -> None:
    state = states.failed()
    error = msgspec.structs.replace(state.servers[0].errors[0], phase=phase)
    text = notes_of(msgspec.structs.replace(state, servers=(states.REPLACE(state.servers[0], errors=(error,)),)))
    assert re.match(r"✖ FAILED (while|in the) [A-Za-z -]+ · TP5", text)


def test_one_problem_of_many_gpus_is_one_line_and_the_rest_is_counted() -> None:
    state = states.unreadable()
    text = notes_of(state)
    assert text.count("The driver answers with an error") == 1
    assert "The driver answers with an error (GPU 0-7: Unknown Error)." in text
    assert notes.ranges([6, 0, 1, 2, 4]) == "0-2, 4, 6"
    whole, compact = (notes.note_items(state, state.servers[0], 160, UNICODE, most=most, problems=3) for most in (3, 1))
    lines = [text_of(line) for line in notes.note_lines(whole, compact, 20, UNICODE, hidden=4)]
    assert lines[-1] == " … and 4 more: i shows all"
    assert sum("✖" in line or "▲" in line for line in lines) == 3


@pytest.mark.parametrize("code", ["journal", "history"])
def test_a_problem_on_this_side_is_said_in_its_own_sentence(code: str) -> None:
    detail = "The journal ends here: /tmp/x: No space left on device. Free some space, or record elsewhere"
    state = msgspec.structs.replace(states.serving(), problems=(ProblemSeen(code=code, detail=detail),))
    assert notes_of(state, 300).startswith(f"▲ {detail}. ")


def test_sources_are_said_in_words() -> None:
    assert source_words("http+log+nvml") == "the server, its log, the driver"
    assert source_words("") == ""


def test_numbers_of_a_server_that_no_longer_answers_are_dated() -> None:
    state = states.silent()
    server = state.servers[0]
    text = text_of(status.serving_line(state, server, 120, UNICODE, "▁▂▃"))
    assert "as of 9 s ago" in text
    fresh = msgspec.structs.replace(server, metrics=states.REPLACE(server.metrics, at=state.mono - 4))
    assert status.metrics_age(state, fresh) is None
    idle = msgspec.structs.replace(server, metrics=states.REPLACE(server.metrics, next_s=10.0))
    assert status.metrics_age(state, idle) is None, "it is asked more seldom, and that is all"
    from_log = msgspec.structs.replace(server, metrics=states.REPLACE(server.metrics, source="log"))
    assert status.metrics_age(state, from_log) is None, "the core lets these fall by themselves"
    assert status.samples_age(state) == 9
    assert status.samples_age(states.serving()) is None


def test_a_count_that_is_not_known_keeps_its_place() -> None:
    metrics = states.REPLACE(states.server().metrics, source="log", running=None)
    texts = [text_of(part) for part in status.metric_parts(metrics)]
    assert "run   -" in texts
    assert "running      -" in text_of(status.metric_grid(metrics, 49)[0])


def test_notes_that_do_not_fit_are_counted() -> None:
    state = states.troubled()
    whole, compact = (notes.note_items(state, state.servers[0], 80, UNICODE, most=most) for most in (3, 1))
    lines = notes.note_lines(whole, compact, 5, UNICODE)
    assert len(lines) == 5
    assert "and 4 more: i shows all" in text_of(lines[-1])


def test_the_advice_at_the_end_of_a_failure_has_its_lines() -> None:
    state = states.failed()
    whole, compact = (notes.note_items(state, state.servers[0], 80, UNICODE, most=most) for most in (3, 1))
    lines = [
        text_of(line) for line in notes.note_lines([*whole, *whole[1:] * 4], [*compact, *compact[1:] * 4], 6, UNICODE)
    ]
    assert len(lines) == 6
    assert "mem_fraction_static=0.55" in " ".join(lines[:3])
    assert "more: i shows all" in lines[-1]


def test_dead_ranks_are_no_part_of_the_legend_and_weights_that_come_are_loading() -> None:
    from tuner.widgets.rank_table import rows_of

    state = states.starting()
    server = state.servers[0]
    dead = states.REPLACE(server.ranks[3], alive=False)
    server = states.REPLACE(server, ranks=(*server.ranks[:3], dead, *server.ranks[4:]))
    samples = tuple(
        states.REPLACE(each, memory_used_bytes=10**9) if each.index == 3 else each for each in state.samples
    )
    state = msgspec.structs.replace(state, servers=(server,), samples=samples)
    assert text_of(notes.legend_line(rows_of(state, server), server, 80, UNICODE)) == " ▚ loading weights 26.1"
    ready = states.REPLACE(server, phase=Phase.READY)
    state = msgspec.structs.replace(state, servers=(ready,))
    assert text_of(notes.legend_line(rows_of(state, ready), ready, 80, UNICODE)) == " · in use 26.1"


def test_equal_ranks_make_one_number_in_the_legend() -> None:
    from tuner.widgets.rank_table import rows_of

    state = states.serving()
    text = text_of(notes.legend_line(rows_of(state, state.servers[0]), state.servers[0], 110, UNICODE))
    assert text == " █ weights 72.3  ▒ KV pool 10.4 (159,277 tokens)  ▓ graphs 2.6  ░ context, NCCL 1.5  # foreign 2.4"


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_sign_and_word(phase: Phase) -> None:
    server = msgspec.structs.replace(states.server(), phase=phase)
    for glyphs in (UNICODE, ASCII):
        text, _ = status.phase_word(server, glyphs)
        sign, word = text.split(" ", 1)
        assert sign
        assert word.isupper()


def test_names_of_cards_and_models() -> None:
    assert status.gpu_name("NVIDIA RTX PRO 6000 Blackwell Server Edition") == "RTX PRO 6000"
    assert status.gpu_name("NVIDIA H200") == "H200"
    assert status.gpu_name("NVIDIA A100-SXM4-80GB") == "A100-SXM4-80GB"
    assert status.model_name("/models/kimi-k2.5-int4/") == "kimi-k2.5-int4"
    assert status.model_name("Qwen/Qwen3-32B") == "Qwen/Qwen3-32B"
    assert status.model_name(None) == ""
