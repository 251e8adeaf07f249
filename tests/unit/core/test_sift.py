from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tuner.core.sift import (
    BUNCH,
    CLOSE,
    EDGE,
    FLOOD,
    Kept,
    Limits,
    Routine,
    Sieve,
    Sifted,
    alarming,
    judge,
    merged,
    notable,
    thinned,
)
from tuner.core.wrapping import Wrapping

ROUTINE = Routine([rb"batch \d+", rb"GET \d+ OK"])
TEST = judge(ROUTINE, Wrapping())
LIMITS = Limits()


def _sifted(lines: list[bytes], limits: Limits = LIMITS, block: int = 50) -> Sifted:
    sieve = Sieve(TEST, limits)
    for start in range(0, len(lines), block):
        sieve.add(b"\n".join(lines[start : start + block]) + b"\n")
    return sieve.done()


def _numbers(kept: list[Kept]) -> list[int]:
    return [number for number, _ in kept]


def _busy(count: int, **others: bytes) -> list[bytes]:
    lines = [b"batch %d" % n for n in range(count)]
    for at, line in others.items():
        lines[int(at[1:])] = line
    return lines


def test_without_engines_everything_may_matter() -> None:
    assert not Routine([])("")
    assert notable("anything")
    with pytest.raises(re.error):
        Routine([b"("])


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_what_is_no_routine_is_kept_with_its_number(block: int) -> None:
    others = {"_0": b"boom", "_500": b"batch 500 boom", "_501": b"", "_4999": b"\xff\xfe"}
    found = _sifted(_busy(5000, **others), Limits(every=400), block)
    assert found.lines == 5000
    assert found.notable == [(int(at[1:]), line) for at, line in others.items()]
    assert found.left_out == 0


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_routine_lines_are_kept_around_what_may_matter_and_evenly(block: int) -> None:
    lines = _busy(50_000, _20000=b"boom")
    kept = merged([_sifted(lines, Limits(every=1000), block)], Limits())
    assert [line for _, line in kept.notable] == [lines[number] for number, _ in kept.notable]
    numbers = _numbers(kept.notable)
    assert numbers == sorted(set(numbers))
    for begin, end in ((0, EDGE), (20_000 - EDGE, 20_000 + EDGE + 1), (50_000 - EDGE, 50_000)):
        assert set(range(begin, end)) <= set(numbers)
    rest = [n for n in numbers if EDGE < n < 20_000 - EDGE or 20_000 + EDGE < n < 50_000 - EDGE]
    assert 45 * BUNCH <= len(rest) <= 50 * BUNCH
    assert max(b - a for a, b in pairwise(numbers)) <= 2100


def test_of_a_short_log_nothing_is_left_out() -> None:
    lines = _busy(9000, _4000=b"boom")
    assert _numbers(merged([_sifted(lines)], Limits()).notable) == list(range(9000))


def test_pieces_make_the_same_as_a_whole_around_what_may_matter() -> None:
    lines = _busy(20_000, _9990=b"boom", _10010=b"bang", _15000=b"boom")
    limits = Limits(every=1000)
    whole = merged([_sifted(lines, limits)], Limits())
    for cut in (1, 5, 9990, 10_000, 10_020, 19_999):
        kept = merged([_sifted(lines[:cut], limits), _sifted(lines[cut:], limits)], Limits())
        numbers = set(_numbers(kept.notable))
        assert kept.lines == 20_000
        wanted = {n for n in _numbers(whole.notable) if min(abs(n - m) for m in (0, 9990, 10_010, 15_000)) <= EDGE}
        assert wanted <= numbers, cut
        assert len(numbers) <= len(whole.notable) + 2 * BUNCH


def test_a_piece_that_ends_far_from_what_may_matter_adds_nothing() -> None:
    limits = Limits(every=1000)
    kept = merged([_sifted(_busy(5000), limits)] * 4, Limits())
    assert kept.lines == 20_000
    assert len(kept.notable) <= 2 * EDGE + 20 * BUNCH


def test_a_flood_counts_as_routine_in_the_end() -> None:
    lines = [b"NCCL INFO comm 0x%x rank %d" % (n * 7919, n % 8) for n in range(FLOOD + 20_000)]
    lines[FLOOD + 9000] = b"NCCL WARN no space left"
    found = _sifted(lines, Limits(every=1000))
    assert len(found.notable) == FLOOD + 1
    assert (FLOOD + 9000, b"NCCL WARN no space left") in found.notable
    kept = set(_numbers(merged([found], Limits()).notable))
    assert set(range(FLOOD + 9000 - CLOSE, FLOOD + 9000 + CLOSE)) <= kept


def test_what_is_too_much_is_thinned_in_the_middle_and_errors_last() -> None:
    kept = [(n, b"line %d" % n) for n in range(100_000)]
    kept[61_803] = (61_803, b"Traceback (most recent call last):")
    thin = thinned(kept, 4000, 10_000_000)
    numbers = _numbers(thin)
    assert len(numbers) <= 4000
    assert numbers == sorted(numbers)
    assert set(range(900)) | set(range(99_100, 100_000)) | set(range(61_800, 61_860)) <= set(numbers)
    assert max(b - a for a, b in pairwise(numbers)) < 400
    assert thinned(kept[:4000], 4000, 10_000_000) == kept[:4000]


def test_bytes_count_as_lines_do() -> None:
    kept = [(n, b"x" * 1000) for n in range(1000)]
    thin = thinned(kept, 100_000, 100_000)
    assert 50 <= len(thin) <= 100
    assert thin[0] == kept[0]
    assert thin[-1] == kept[-1]


def test_one_log_of_errors_alone_stays_within_its_limits() -> None:
    words = [bytes([97 + n // 676 % 26, 97 + n // 26 % 26, 97 + n % 26]) * 3 for n in range(17_576)]
    limits = Limits(notable=500, notable_bytes=100_000)
    found = _sifted([b"Error %s" % word for word in words], limits)
    assert len(found.notable) <= 500
    assert found.left_out == 17_576 - len(found.notable)
    assert found.lines == 17_576


def test_routine_lines_stay_within_their_limits() -> None:
    lines: list[bytes] = []
    for n in range(2000):
        lines.extend([b"boom %s" % (b"g" * (n % 50)), *(b"batch %d" % n for n in range(60))])
    found = _sifted(lines, Limits(routine=1000))
    assert max(len(found.close), len(found.even)) <= 2000 + 2 * EDGE
    kept = merged([found], Limits(routine=1000))
    assert len(kept.notable) <= len(found.notable) + 1000


def test_bars_and_halves_are_judged_by_all_they_hold() -> None:
    assert TEST(b"batch 1")
    assert TEST(b"batch 1\r")
    assert TEST(b"batch 1\rbatch 2")
    assert not TEST(b"100%|####| 3/3 [00:01<00:00, 2.9it/s]batch 2")
    assert not TEST(b"batch 1\x1b[31m boom")
    half = judge(ROUTINE, Wrapping(["cri"]))
    assert half(b"2025-07-25T07:53:08.2Z stdout F batch 1")
    assert not half(b"2025-07-25T07:53:08.2Z stdout P batch 1")


@pytest.mark.parametrize("line", ["RuntimeError: boom", "Fatal Python error: Aborted", "Killed", "NCCL WARN no space"])
def test_words_of_failures_are_seen(line: str) -> None:
    assert alarming(line)
    assert alarming(f"batch 1{line}")


def test_a_line_without_them_is_quiet() -> None:
    assert not alarming("[2026-02-26 20:01:07 TP0] Load weight begin. avail mem=138.22 GB")


def test_after_many_strange_lines_routine_ones_are_found_again() -> None:
    words = [bytes([103 + n // 400 % 20, 103 + n // 20 % 20, 103 + n % 20]) for n in range(4000)]
    lines = [*words, *_busy(5000, _4000=b"boom")]
    found = _sifted(lines, Limits(every=1000))
    assert [line for _, line in found.notable[:4000]] == words
    assert len(found.notable) < 4000 + 100
    assert (8000, b"boom") in found.notable
