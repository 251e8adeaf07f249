"""Entries of systemd's journal, and where they lie among the bytes of a log."""

from __future__ import annotations

import json
import random

import pytest

from tuner.probe.agent.journal import Marks, container_log_name, matches_of, parsed, unit_log


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"MESSAGE": "text €"}, "text €\n".encode()),
        ({"MESSAGE": [104, 255]}, b"h\xff\n"),
        ({"MESSAGE": ["one", [116, 119, 111]]}, b"one\ntwo\n"),
        ({"MESSAGE": None}, b"\n"),
        ({}, b"\n"),
        ({"MESSAGE": "cut", "_LINE_BREAK": "line-max"}, b"cut"),
        ({"MESSAGE": "the end", "_LINE_BREAK": "eof"}, b"the end\n"),
        ({"MESSAGE": "cut", "CONTAINER_PARTIAL_MESSAGE": "true"}, b"cut"),
    ],
)
def test_the_text_of_an_entry(fields: dict[str, object], data: bytes) -> None:
    assert parsed(json.dumps(fields).encode()).data == data


def test_the_other_fields_of_an_entry() -> None:
    fields = {"__CURSOR": "c", "__REALTIME_TIMESTAMP": "1500000", "_PID": "7", "_SYSTEMD_INVOCATION_ID": "mine"}
    assert parsed(json.dumps(fields).encode())[2:] == (1.5, "7", "mine")
    assert parsed(json.dumps({**fields, "INVOCATION_ID": "told"}).encode()).invocation == "told"
    assert parsed(json.dumps(fields).encode()).cursor == "c"


@pytest.mark.parametrize("line", [b"Hint: you are not", b"", b"[1]", b"3", b'{"__REALTIME_TIMESTAMP":"x"}', b"{"])
def test_what_is_no_entry(line: bytes) -> None:
    with pytest.raises(ValueError):
        parsed(line)


def test_a_log_is_selected_by_its_name() -> None:
    assert matches_of(unit_log("a.service", None)) == ["_SYSTEMD_UNIT=a.service", "+", "UNIT=a.service", "_PID=1"]
    user = matches_of(unit_log("a.service", 1000))
    assert user == ["_SYSTEMD_USER_UNIT=a.service", "_UID=1000", "+", "USER_UNIT=a.service", "_UID=1000"]
    assert matches_of(container_log_name("ab" * 32)) == ["CONTAINER_ID=" + "ab" * 6]


def test_marks_are_near_and_few() -> None:
    marks = Marks()
    assert marks.not_before(0) is marks.not_after(0) is marks.newest is None
    chooser = random.Random(3)
    ends = sorted(chooser.sample(range(1, 10**9), 60_000))
    for end in (*ends[30_000:], *ends[29_999::-1]):
        marks.add(end, f"at {end}")
    assert marks.newest == (ends[-1], f"at {ends[-1]}")
    assert marks.not_before(10**9) == marks.newest
    kept = set()
    for offset in range(0, 10**9, 500_000):
        after, before = marks.not_before(offset), marks.not_after(offset)
        assert after is not None
        assert after[0] >= offset
        assert after[1] == f"at {after[0]}"
        assert before is None or (before[0] <= offset and before[1] == f"at {before[0]}")
        kept.add(after)
    assert 100 < len(kept) <= Marks.LIMIT + 1
    assert max(after - before for (before, _), (after, _) in zip(sorted(kept), sorted(kept)[1:], strict=False)) < 10**7
