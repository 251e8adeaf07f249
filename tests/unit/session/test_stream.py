from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.core.redact import MASK, mask
from tuner.domain import events as e
from tuner.session.stream import HOLD_S, MAX_HELD, PIECE, Stream


def wire(*events: dict[str, Any], seq: int = 1) -> bytes:
    return b"".join(json.dumps({"seq": seq + n, **event}).encode() + b"\n" for n, event in enumerate(events))


def log(offset: int, data: bytes, **more: Any) -> dict[str, Any]:
    text = data.decode("utf-8", "replace")
    return {"t": "log", "key": "k", "offset": offset, "end": offset + len(data), "data": text, **more}


def opened(offset: int = 0, reason: str = "start", inode: int = 7) -> dict[str, Any]:
    return {
        "t": "log_open",
        "key": "k",
        "reason": reason,
        "path": "/log",
        "device": 1,
        "inode": inode,
        "offset": offset,
    }


def texts(events: list[Any]) -> list[str]:
    return [event.data for event in events if isinstance(event, e.LogBytes)]


def feed(stream: Stream, *events: dict[str, Any], now: float = 0.0, seq: int = 1) -> list[Any]:
    return list(stream.feed(wire(*events, seq=seq), now))


def test_a_torn_line_is_held_until_its_end_comes() -> None:
    stream = Stream()
    first = feed(stream, opened(), log(0, b"one\ntw"))
    assert texts(first) == ["one\n"]
    second = feed(stream, log(6, b"o\n"), seq=3)
    (event,) = second
    assert (event.offset, event.end, event.data) == (4, 8, "two\n")


def test_a_torn_line_is_let_go_after_a_while() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"Loading 12%"), now=5.0)
    assert list(stream.idle(5.0 + HOLD_S / 2)) == []
    (event,) = stream.idle(5.0 + HOLD_S)
    assert (event.offset, event.end, event.data) == (0, 11, "Loading 12%")
    assert list(stream.idle(99.0)) == []


def test_a_progress_bar_is_shown_up_to_its_last_carriage_return() -> None:
    assert texts(feed(Stream(), opened(), log(0, b"\r10%\r20%"))) == ["\r10%\r"]


def test_a_secret_cut_in_two_is_hidden() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"api_key='top"))
    assert texts(feed(stream, log(12, b"secret' x\n"), seq=3)) == [f"api_key='{MASK}' x\n"]


def test_a_secret_cut_in_two_by_a_long_pause_is_hidden() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"token hf_abcDEF"))
    shown = texts(list(stream.idle(HOLD_S)))
    shown += texts(feed(stream, log(15, b"0123456789 x\n"), seq=3))
    assert shown == [f"token hf_{MASK}", f"{MASK} x\n"]


def test_a_server_that_is_gone_leaves_no_line_held() -> None:
    stream = Stream()
    events = feed(stream, opened(), log(0, b"last words"), {"t": "server_gone", "key": "k"})
    assert [type(event).__name__ for event in events] == ["LogOpened", "LogBytes", "ServerGone"]


def test_the_log_of_a_server_that_is_gone_is_not_resumed() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"one\n"), {"t": "server_gone", "key": "k", "left": [7]})
    assert stream.connect().keys() == {"k"}
    feed(stream, {"t": "server_gone", "key": "k"})
    assert stream.connect() == {}


def test_numbers_tell_lost_lines_and_nothing_else() -> None:
    stream = Stream()
    held = feed(stream, opened(), log(0, b"held"), {"t": "scanned"})
    assert [event.seq for event in held] == [1, 2]
    lost = feed(stream, {"t": "scanned"}, seq=6)
    assert [event.seq for event in lost] == [5]


def test_after_a_reconnect_reading_goes_on_where_it_was() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"one\ntwo\nthr"))
    resume = stream.connect()["k"]
    assert (resume.device, resume.inode, resume.path, resume.offset) == (1, 7, "/log", 8)
    again = feed(stream, opened(8, "resume"), log(8, b"three\n"))
    assert texts(again) == ["three\n"]


def test_bytes_that_come_again_are_dropped() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"one\ntwo\n"))
    stream.connect()
    again = feed(stream, opened(0, "start"), log(0, b"one\ntwo\nthree\n"))
    (event,) = [event for event in again if isinstance(event, e.LogBytes)]
    assert (event.offset, event.end, event.data) == (8, 14, "three\n")
    assert texts(feed(stream, log(4, b"two\n"), seq=3)) == []


def test_bytes_that_come_again_are_dropped_also_within_letters_of_several_bytes() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, "ä\n".encode()))
    stream.connect()
    assert texts(feed(stream, opened(0, "start"), log(0, "ä\nö\n".encode()))) == ["ö\n"]


def test_another_file_begins_anew() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"old old old\n"))
    rotated = feed(stream, opened(0, "rotated", inode=8), log(0, b"new\n"), seq=3)
    assert texts(rotated) == ["new\n"]
    assert stream.connect()["k"].inode == 8


def test_a_truncated_file_begins_anew() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"old old old\n"))
    assert texts(feed(stream, opened(0, "truncated"), log(0, b"new\n"), seq=3)) == ["new\n"]


def test_what_a_file_holds_is_remembered_until_it_is_another_one() -> None:
    stream = Stream()
    events = feed(
        stream, opened(), log(0, b"one\nto", crc=5), log(6, b"rn", crc=6), {**log(4, b"x\n", crc=9), "key": "j"}
    )
    assert all(x.crc is None for x in events if isinstance(x, e.LogBytes))
    resume = stream.connect()["k"]
    assert (resume.offset, resume.check) == (4, (8, 6)), "the torn line comes again, and is checked too"
    feed(stream, opened(0, "truncated"))
    assert stream.connect()["k"].check is None


def test_a_file_that_cannot_be_read_now_is_resumed_later() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"one\n"), {"t": "log_open", "key": "k", "reason": "vanished"})
    assert stream.connect()["k"].offset == 4


def test_the_start_up_section_is_not_mistaken_for_a_repeat() -> None:
    stream = Stream()
    events = feed(stream, opened(1000), log(0, b"head\n", head=True), log(1000, b"tail\n"))
    assert texts(events) == ["head\n", "tail\n"]
    assert stream.connect()["k"].offset == 1005


def test_a_gap_moves_the_place_where_reading_goes_on() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"one\n"), {"t": "log_gap", "key": "k", "offset": 4, "end": 900, "reason": "flood"})
    assert stream.connect()["k"].offset == 900


def test_the_cursor_of_a_journal_is_kept() -> None:
    stream = Stream()
    feed(stream, opened(), log(0, b"one\n", cursor="s=1"), log(4, b"two\n", cursor="s=2"))
    assert stream.connect()["k"].cursor == "s=2"


def test_long_text_comes_in_pieces_whose_offsets_are_true() -> None:
    data = b"".join(b"line %06d \xc3\xa4\n" % n for n in range(10_000))
    events = [event for event in feed(Stream(), opened(), log(0, data)) if isinstance(event, e.LogBytes)]
    assert len(events) > 3
    assert all(len(event.data) <= PIECE for event in events)
    assert "".join(event.data for event in events).encode() == data
    assert [(event.offset, event.end) for event in events] == _contiguous(events)


def test_masking_keeps_the_offsets_of_other_lines_true() -> None:
    data = b"a\nb api_key='a-long-secret-indeed' c\nd\n"
    events = feed(Stream(), opened(), log(0, data))[1:]
    assert [(event.offset, event.data) for event in events] == [
        (0, "a\n"),
        (2, f"b api_key='{MASK}' c\n"),
        (37, "d\n"),
    ]


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    stream = Stream()
    data = b"x" * (MAX_HELD + 1)
    assert "".join(texts(feed(stream, opened(), log(0, data)))) == data.decode()


def test_bytes_that_are_no_text_are_passed_on_at_once() -> None:
    events = feed(Stream(), opened(), log(0, b"\xff\xfe\nab\xff"))[1:]
    assert [(event.offset, event.end) for event in events] == [(0, 6)]


def test_bytes_that_are_no_text_before_a_torn_line_do_not_shift_it() -> None:
    stream = Stream()
    first = feed(stream, opened(), log(0, b"\xff\xfe\nab"))[1:]
    second = feed(stream, log(5, b"c\n"), seq=3)
    assert [(event.offset, event.end, event.data[-3:]) for event in first + second] == [
        (0, 3, "\ufffd\ufffd\n"),
        (3, 7, "abc\n"[-3:]),
    ]


lines = st.lists(
    st.one_of(
        st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\n\r"), max_size=30).filter(
            lambda line: "canary" not in line
        ),
        st.sampled_from(["api_key='canary-in-a-mine'", "HF_TOKEN=canary-in-a-mine", "http://u:canary-in-a-mine@h/"]),
    ),
    max_size=12,
).map(lambda all_: "".join(line + "\n" for line in all_))


@settings(deadline=None)
@given(lines, st.lists(st.integers(0, 400), max_size=8), st.lists(st.booleans(), min_size=9, max_size=9))
def test_however_a_log_is_cut_it_is_shown_whole_once_and_masked(text: str, cuts: list[int], pauses: list[bool]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    # The probe cuts between letters.
    edges = [edge for edge in edges if edge == len(data) or (data[edge] & 0xC0) != 0x80]
    stream = Stream()
    now = 0.0
    shown = feed(stream, opened(), now=now)
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        now += 2 * HOLD_S if pauses[number] else 0.0
        shown += list(stream.idle(now))
        shown += feed(stream, log(start, data[start:end]), now=now, seq=2 + number)
    shown += list(stream.idle(now + 99))
    pieces = [event for event in shown if isinstance(event, e.LogBytes)]
    assert [(event.offset, event.end) for event in pieces] == _contiguous(pieces)
    assert (pieces[-1].end if pieces else 0) == len(data)
    whole = "".join(event.data for event in pieces)
    assert "canary-in-a-mine" not in whole
    if not any(pauses):
        assert whole == mask(text)


@settings(deadline=None)
@given(lines, st.lists(st.integers(0, 300), min_size=1, max_size=6), st.randoms())
def test_over_any_cuts_of_the_link_each_byte_is_shown_once(text: str, cuts: list[int], random: Any) -> None:
    data = text.encode()
    stream = Stream()
    shown: list[Any] = []
    position = 0
    for number, size in enumerate([*cuts, len(data)]):
        tail = stream.connect().get("k")
        position = tail.offset if tail else 0
        # The probe may also repeat what was shown already.
        back = random.randint(0, position) if number % 2 else position
        while back and (data[back : back + 1] or b"a")[0] & 0xC0 == 0x80:
            back -= 1
        end = min(len(data), position + size)
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        shown += feed(stream, opened(back, "resume" if tail else "start"), log(back, data[back:end]))
    pieces = [event for event in shown if isinstance(event, e.LogBytes)]
    assert [(event.offset, event.end) for event in pieces] == _contiguous(pieces)
    assert (pieces[-1].end if pieces else 0) == len(data)


def _contiguous(events: list[e.LogBytes]) -> list[tuple[int, int]]:
    """What the offsets must be, given the ends."""
    ends = [event.end for event in events]
    return list(zip([events[0].offset, *ends[:-1]], ends, strict=True)) if events else []
