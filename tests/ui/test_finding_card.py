"""What a card says, at any width, without a terminal."""

from __future__ import annotations

import pytest

from tests.support import explained, states
from tuner.core.finding_words import ranks_text, value_text
from tuner.domain.findings import Confidence, Evidence, Finding, Severity
from tuner.widgets.finding_card import Card
from tuner.widgets.glyphs import ASCII, UNICODE
from tuner.widgets.spans import text_of, width_of

TAGS = {number: f"TP{number}" for number in range(8)}
FINDINGS = (explained.too_low(), explained.graphs_off(), explained.variable_ignored())


def card(finding: Finding | None = None, *, unfolded: bool = False, **more: object) -> Card:
    made = Card(finding or explained.too_low(), UNICODE, tags=TAGS, **more)  # type: ignore[arg-type]
    made.fold(unfolded=unfolded)
    return made


def text(made: Card, width: int = 100, room: int = 40) -> str:
    return "\n".join(text_of(line) for line in made.lines(width, room))


def test_folded_it_says_what_where_who_how_sure_and_what_to_do() -> None:
    lines = text(card(more=1), 100).splitlines()
    assert len(lines) == 4
    assert "✖ FAILED in kv-alloc · mem-fraction-too-low · all 8 ranks · high confidence" in lines[0]
    assert "nothing is left for the KV pool" in lines[1]
    assert "= 21.70 - 94.04 x 0.45 = -20.62 GiB" in lines[2]
    assert "A copies --mem-fraction-static 0.88 · u unfolds · x 1 more finding" in lines[3]


def test_unfolded_it_holds_all_of_it() -> None:
    shown = text(card(unfolded=True), 100)
    flat = " ".join(shown.replace("│", " ").split())
    for part in (
        "f must be above 0.7692",
        "Custom all-reduce costs 0.03 GiB: not the cause.",
        "A raise --mem-fraction-static to 0.88 0.861 to 0.907 is safe",
        "as the last start that worked",
        "A smaller LLM or more GPUs",
        "TP5 free after weights 21.70 GB byte 412",
        "mem_fraction_static 0.55 byte 3",
        "KV pool -20.62 GiB computed",
        "refuted by A line of the same start",
        "esc folds",
    ):
        assert part in flat, part


def test_wrong_advice_of_the_log_is_named() -> None:
    shown = text(card(explained.variable_ignored(), unfolded=True), 100)
    assert "▲ wrong     The log's advice to set --disable-custom-all-reduce would change nothing" in shown


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.cause)
@pytest.mark.parametrize("width", [24, 40, 78, 158, 300])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_line_is_as_wide_as_the_card(finding: Finding, width: int, glyphs: object) -> None:
    made = Card(finding, glyphs, tags=TAGS, more=2)  # type: ignore[arg-type]
    for unfolded in (False, True):
        made.fold(unfolded=unfolded)
        for room in (3, 7, 60):
            lines = made.lines(width, room)
            assert {width_of(line) for line in lines} == {width}
            assert len(lines) == made.height(width, room) <= max(3, room)
            if glyphs is ASCII:
                assert all(text_of(line).isascii() for line in lines)


def test_a_card_that_is_too_long_scrolls_to_its_last_line() -> None:
    made = card(unfolded=True)
    assert "more below" in text(made, 78, 9)
    seen = text(made, 78, 9)
    steps = 0
    while made.move(1, 78, 9):
        seen += text(made, 78, 9)
        steps += 1
        assert steps < 50
    assert "weights on every rank." in text(made, 78, 9)
    assert "more above" in text(made, 78, 9)
    for line in made.inside(78):
        assert text_of(line.line).rstrip() in seen
    while made.move(-1, 78, 9):
        steps += 1
        assert steps < 100
    assert "The static share" in text(made, 78, 9)


def test_the_chosen_line_leads_to_its_place_or_its_remedy() -> None:
    made = card(unfolded=True)
    assert made.chosen(100).at == 412, "before anything is chosen: the line of the finding"
    made.move(1, 100, 40)
    assert made.chosen(100).remedy == 0
    made.move(1, 100, 40)
    assert (made.chosen(100).remedy, made.chosen(100).at) == (None, 412)
    made.move(1, 100, 40)
    assert made.chosen(100).at == 388


def test_lines_are_made_once_while_nothing_changes() -> None:
    made = card(unfolded=True)
    first = made.lines(100, 40)
    assert made.lines(100, 40) is first
    made.move(1, 100, 40)
    assert made.lines(100, 40) is not first


def test_keys_stand_only_on_the_card_that_they_are_about() -> None:
    lines = card().lines(100, 40, active=False)
    assert "copies" not in "\n".join(text_of(line) for line in lines)


def test_severity_is_a_sign_and_a_word() -> None:
    words = {
        Severity.FATAL: "✖ FAILED",
        Severity.ERROR: "✖ BROKEN",
        Severity.PERFORMANCE: "▲ SLOW",
        Severity.INFO: "i NOTE",
    }
    for severity, word in words.items():
        made = card(states.REPLACE(explained.too_low(), severity=severity))
        assert word in text(made)


def test_numbers_are_said_as_logs_print_them() -> None:
    assert [
        value_text(21.7, "GB"),
        value_text(0.55),
        value_text(159277, "tokens"),
        value_text(30000),
        value_text(None),
        value_text(1, "requests"),
    ] == [
        "21.70 GB",
        "0.55",
        "159,277 tokens",
        "30000",
        "n/a",
        "1 request",
    ]


def test_one_long_value_does_not_push_the_others_out() -> None:
    gate = "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs"
    told = (
        Evidence(what="gen throughput (token/s)", value=21.6, unit="token/s", at=70),
        Evidence(what="gate", value=gate, at=11),
        Evidence(what="GPUs in the TP group", value=4),
    )
    rows = text(card(states.REPLACE(explained.too_low(), evidence=told), unfolded=True), 78, 60).splitlines()
    numbers = [row for row in rows if "21.6 token/s" in row or "GPUs in the TP group " in row]
    assert [row.replace("│", "").rstrip()[-8:] for row in numbers] == [" byte 70", "computed"]
    assert "gen throughput (token/s)" in numbers[0]
    assert numbers[1].split()[-3:-1] == ["4", "computed"]
    assert gate in " ".join(" ".join(row.strip("│ ") for row in rows).split())


def test_ranks_are_named_or_counted() -> None:
    assert ranks_text(tuple(range(8)), TAGS) == "all 8 ranks"
    assert ranks_text((0, 1), {0: "TP0", 1: "TP1"}) == "both ranks"
    assert ranks_text((3, 7), TAGS) == "TP3, TP7"
    assert ranks_text((0, 1, 2, 3, 4), TAGS) == "TP0, TP1, TP2, TP3 and 1 more"
    assert ranks_text((9,), TAGS) == "rank 9"
    assert ranks_text((0,), {0: "TP0"}) == ""
    assert ranks_text(None, TAGS) == ""


def test_remote_text_is_data() -> None:
    finding = Finding(
        cause="inconclusive",
        severity=Severity.FATAL,
        confidence=Confidence.LOW,
        title="[red]\x1b[31mno markup[/red]",
        evidence=(Evidence(what="a\x07b", value="x\ny", at=1),),
    )
    shown = text(card(finding, unfolded=True))
    assert "[red]no markup[/red]" in shown
    assert "\x1b" not in shown
    assert "\x07" not in shown
