from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support import states
from tuner.domain.logs import Level, LogBlock, LogLine
from tuner.domain.state import LogState
from tuner.widgets.log_index import WINDOW, Fold, LogFilter, LogIndex, line_of


def texts(index: LogIndex) -> list[str]:
    return [line_of(row).text for row in index.rows]


def log_with(*blocks: LogBlock) -> LogState:
    return LogState(blocks=blocks, start=blocks[0].start, end=blocks[-1].end)


def block(*lines: LogLine) -> LogBlock:
    return LogBlock(lines[0].offset, lines[-1].offset + 1, lines)


def ranked(text: str, rank: int, offset: int, fold: int, **more: object) -> LogLine:
    return LogLine(offset=offset, text=text, rank=f"TP{rank}", fold=fold, **more)  # type: ignore[arg-type]


def test_equal_lines_of_eight_ranks_become_one_row_and_the_odd_one_stays() -> None:
    index = LogIndex()
    index.update(states.log_of(states.serving_log(0)))
    folds = [row for row in index.rows if isinstance(row, Fold)]
    weights = [row for row in folds if "Load weight end" in row.line.text]
    assert [len(row.ranks) for row in weights] == [7, 1]
    assert weights[1].ranks == ("TP5",)
    assert "21.70" in weights[1].line.text


def test_a_rank_that_repeats_itself_starts_another_row() -> None:
    index = LogIndex()
    lines = [ranked("x", rank, at, 7) for at, rank in enumerate((0, 1, 0, 1, 2))]
    index.update(log_with(block(*lines)))
    assert [row.ranks for row in index.rows if isinstance(row, Fold)] == [("TP0", "TP1", "TP2"), ("TP0", "TP1")]


def test_lines_far_apart_do_not_fold() -> None:
    index = LogIndex()
    filler = [LogLine(offset=at, text=f"line {at}") for at in range(1, WINDOW + 5)]
    index.update(log_with(block(ranked("x", 0, 0, 7), *filler, ranked("x", 1, WINDOW + 9, 7))))
    assert sum(text == "x" for text in texts(index)) == 2


def test_a_traceback_folds_with_its_head_and_shows_where_it_differs() -> None:
    index = LogIndex()
    lines: list[LogLine] = []
    for rank, last in ((0, "ValueError: a"), (1, "ValueError: a"), (2, "ValueError: b")):
        lines.append(ranked("Traceback", rank, len(lines), 9, level=Level.ERROR))
        for body in ("  File x", last):
            lines.append(LogLine(offset=len(lines), text=body, rank=f"TP{rank}", continued=True, level=Level.ERROR))
    index.update(log_with(block(*lines)))
    assert texts(index) == ["Traceback", "  File x", "ValueError: a", "ValueError: b"]


def test_filters_keep_markers_and_bodies_of_what_passes() -> None:
    index = LogIndex()
    lines = (
        LogLine(offset=0, text="fine", rank="TP0"),
        LogLine(offset=1, text="log was rotated", marker=True),
        LogLine(offset=2, text="bad", rank="TP1", level=Level.ERROR),
        LogLine(offset=3, text="  body", rank="TP1", continued=True),
        LogLine(offset=4, text="main", level=Level.WARNING),
    )
    index.refilter(LogFilter(level=Level.ERROR), folding=True)
    index.update(log_with(block(*lines)))
    assert texts(index) == ["log was rotated", "bad", "  body"]
    index.refilter(LogFilter(rank=""), folding=True)
    assert texts(index) == ["log was rotated", "main"]
    index.refilter(LogFilter(text="FINE"), folding=True)
    assert texts(index) == ["fine", "log was rotated"]
    assert list(index.ranks) == ["TP0", "TP1"]


def test_ids_stay_when_blocks_come_and_go() -> None:
    blocks = [block(*(LogLine(offset=10 * b + at, text=f"{b}.{at}") for at in range(5))) for b in range(6)]
    index = LogIndex()
    index.update(log_with(*blocks[:3]))
    known = {index.first + at: text for at, text in enumerate(texts(index))}
    later = log_with(*blocks[2:6])
    assert index.would_drop(later) == 10
    index.update(later)
    assert texts(index) == [f"{b}.{at}" for b in range(2, 6) for at in range(5)]
    for row_id in range(index.first, index.first + 5):
        assert line_of(index[row_id]).text == known[row_id]


def test_after_a_new_filter_the_newest_rows_are_there_at_once_and_the_rest_follows() -> None:
    blocks = [block(*(LogLine(offset=1000 * b + at, text=f"{b}.{at}") for at in range(1000))) for b in range(12)]
    index = LogIndex()
    index.update(log_with(*blocks))
    while index.work():
        pass
    newest = index.last - 1
    index.refilter(LogFilter(text="9"), folding=False)
    assert index.building
    assert texts(index)[-1] == "11.999"
    assert index.last - 1 > newest, "old ids must not mean new rows"
    while index.work():
        pass
    expected = [line.text for each in blocks for line in each.lines if "9" in line.text]
    assert texts(index) == expected


def test_fetched_lines_stand_in_front_until_a_hole_would_open() -> None:
    blocks = [block(LogLine(offset=100 + b, text=f"held {b}")) for b in range(4)]
    index = LogIndex()
    index.update(log_with(*blocks[:3]))
    first = index.first
    index.prepend([LogLine(offset=1, text="old")])
    assert index.first == first - 1
    assert texts(index) == ["old", "held 0", "held 1", "held 2"]
    index.refilter(LogFilter(text="1"), folding=True)
    assert texts(index) == ["held 1"]
    assert index.start == 1, "lines that are not shown are held all the same"
    index.refilter(LogFilter(), folding=True)
    assert texts(index) == ["old", "held 0", "held 1", "held 2"]
    assert index.would_drop(log_with(*blocks[1:4])) == 2
    index.update(log_with(*blocks[1:4]))
    assert texts(index) == ["held 1", "held 2", "held 3"]


def test_a_log_that_was_replaced_starts_over() -> None:
    index = LogIndex()
    index.update(log_with(block(LogLine(offset=0, text="a"))))
    index.update(log_with(block(LogLine(offset=0, text="b"))))
    assert texts(index) == ["b"]
    index.update(LogState())
    assert texts(index) == []


def test_a_tail_holds_few_rows_whatever_comes() -> None:
    index = LogIndex(keep_rows=50)
    blocks: list[LogBlock] = []
    for b in range(40):
        blocks.append(block(*(LogLine(offset=1000 * b + at, text=f"{b}.{at}") for at in range(900))))
        index.update(log_with(*blocks[-10:]))
        assert len(index.rows) <= 500
        assert texts(index)[-1] == f"{b}.899"


def test_a_tail_ends_as_the_log_does_however_much_came_at_once() -> None:
    for at_once in (3, 30, 300):
        index = LogIndex(keep_rows=50)
        blocks = [block(LogLine(offset=0, text="first"))]
        index.update(log_with(*blocks))
        for b in range(1, at_once + 1):
            blocks.append(block(*(LogLine(offset=1000 * b + at, text=f"{b}.{at}") for at in range(20))))
        index.update(log_with(*blocks))
        shown = texts(index)
        assert shown[-40:] == [f"{b}.{at}" for b in (at_once - 1, at_once) for at in range(20)]
        assert len(shown) <= 620
        assert index.last - index.first == len(shown)


def test_finding_by_pattern_level_and_offset() -> None:
    index = LogIndex()
    index.update(states.failed().servers[0].log)
    error = index.find_level(Level.ERROR, index.first, 1)
    assert error is not None
    assert "Scheduler hit an exception" in line_of(index[error]).text
    assert index.find_level(Level.ERROR, error - 1, -1) is None
    found = index.find("not enough", index.last - 1, -1)
    assert found is not None
    assert index.at_offset(line_of(index[found]).offset) == found
    assert index.at_offset(-5) is None


CHUNKS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), st.booleans(), st.sampled_from(list(Level))),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=12,
)


def blocks_of(chunks: list[list[tuple[str, int, bool, Level]]]) -> list[LogBlock]:
    offset, made = 0, []
    for chunk in chunks:
        lines = []
        for text, rank, continued, level in chunk:
            offset += 1
            fold = 0 if continued else ord(text)
            tag = None if rank == 3 else f"TP{rank}"
            lines.append(LogLine(offset=offset, text=text, rank=tag, fold=fold, continued=continued, level=level))
        made.append(block(*lines))
    return made


@given(CHUNKS, st.sampled_from(["", "a"]), st.sampled_from(list(Level)), st.booleans())
def test_growing_block_by_block_equals_reading_at_once(
    chunks: list[list[tuple[str, int, bool, Level]]], text: str, level: Level, folding: bool
) -> None:
    # Which block a traceback's head stands in decides about bodies that continue over a block's edge.
    blocks = blocks_of([[(words, rank, goes_on and at > 0, level)
                         for at, (words, rank, goes_on, level) in enumerate(chunk)] for chunk in chunks])  # fmt: skip
    wanted = LogFilter(text=text, level=level)
    grown, whole = LogIndex(), LogIndex()
    for index in (grown, whole):
        index.refilter(wanted, folding=folding)
    for count in range(1, len(blocks) + 1):
        grown.update(log_with(*blocks[:count]))
    whole.update(log_with(*blocks))
    assert texts(grown) == texts(whole)


@given(CHUNKS, st.integers(1, 4))
def test_without_folding_no_line_is_lost_and_none_is_shown_twice(
    chunks: list[list[tuple[str, int, bool, Level]]], window: int
) -> None:
    blocks = blocks_of(chunks)
    index = LogIndex()
    index.refilter(LogFilter(), folding=False)
    for at in range(len(blocks)):
        held = blocks[max(0, at - window) : at + 1]
        index.update(log_with(*held))
        assert [line_of(row).offset for row in index.rows] == [line.offset for each in held for line in each.lines]


def test_log_state_of_states_is_consistent() -> None:
    log = states.log_of(states.serving_log(30))
    offsets = [line.offset for each in log.blocks for line in each.lines]
    assert offsets == sorted(offsets)
    assert msgspec.structs.replace(log).end == log.end
