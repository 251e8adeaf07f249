"""Text of a log to lines that are safe to show."""

from tuner.core import logtext


def lines(*pieces: str) -> list[tuple[int, str]]:
    """Feed pieces as they would arrive, ASCII, from offset 0."""
    partial, start, offset, found = "", 0, 0, []
    for piece in pieces:
        end = offset + len(piece.encode())
        complete, partial, start = logtext.split(partial, start, piece, offset, end)
        found += complete
        offset = end
    return found + ([(start, partial)] if partial else [])


def test_lines_have_byte_offsets() -> None:
    assert lines("a\nbc\n\nd\n") == [(0, "a"), (2, "bc"), (5, ""), (6, "d")]


def test_offsets_count_bytes_not_characters() -> None:
    assert lines("é\nx\n") == [(0, "é"), (3, "x")]


def test_a_torn_line_is_joined_wherever_it_is_torn() -> None:
    whole = "[12:00 TP0] hello world\nnext line\nlast"
    for cut in range(len(whole) + 1):
        assert lines(whole[:cut], whole[cut:]) == [(0, "[12:00 TP0] hello world"), (24, "next line"), (34, "last")]


def test_offsets_stay_inside_the_piece_when_masking_changed_its_length() -> None:
    found, partial, start = logtext.split("", 0, "short\nlonger than before\nrest", 100, 110)
    assert [o for o, _ in found] == sorted(o for o, _ in found)
    assert all(100 <= o <= 110 for o, _ in found)
    assert (partial, start <= 110) == ("rest", True)


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    partial, start = "", 0
    for i in range(40):
        _, partial, start = logtext.split(partial, start, "x" * 10_000, i * 10_000, (i + 1) * 10_000)
    assert len(partial) <= logtext.MAX_LINE + 1
    assert start == 0


def test_a_progress_bar_without_end_keeps_its_last_state() -> None:
    partial, start = "", 0
    for i in range(200):
        bar = f"\rCapturing batches: {i:3d}/200 " + "#" * 1000
        _, partial, start = logtext.split(partial, start, bar, i * len(bar), (i + 1) * len(bar))
    assert "199/200" in partial
    assert len(partial) < 3000


def test_a_bar_is_reduced_to_its_last_state() -> None:
    assert logtext.segments("  0%| 0/8\r 50%| 4/8\r100%| 8/8 [00:04<00:00, 1.2it/s]") == [
        "100%| 8/8 [00:04<00:00, 1.2it/s]"
    ]


def test_text_behind_a_bar_is_a_line_of_its_own() -> None:
    text = "  0%| 0/8 [00:00<?, ?it/s]\r 12%| 1/8 [00:01<00:07,  1.11s/it][2026-11-29 16:24:07 TP1] multimem off"
    assert logtext.segments(text) == [" 12%| 1/8 [00:01<00:07,  1.11s/it]", "[2026-11-29 16:24:07 TP1] multimem off"]


def test_windows_line_ends_and_bare_returns() -> None:
    assert logtext.segments("hello\r") == ["hello"]
    assert logtext.segments("") == [""]
    assert logtext.segments("a\rb") == ["b"]


def test_control_sequences_are_removed_or_shown() -> None:
    assert logtext.clean("\x1b[1;33mwarn\x1b[0m [bold]x[/]") == "warn [bold]x[/]"
    assert logtext.clean("a\x1b]0;title\x07b") == "ab"
    assert logtext.clean("a\x00\x08b\x9b31mc") == "a··b·31mc"
    assert logtext.clean("tab\tstays") == "tab\tstays"


def test_characters_that_reorder_text_do_not_pass() -> None:
    assert logtext.clean("safe\u202eexe.txt\u2066") == "safe·exe.txt·"


def test_a_megabyte_line_is_cut_with_a_marker() -> None:
    shown = logtext.cut("y" * 1_000_000)
    assert len(shown) < logtext.MAX_LINE + 60
    assert shown.endswith("[934,464 more characters]")


def test_fold_key_ignores_how_long_it_took_and_nothing_else() -> None:
    one = logtext.fold_key("Load weight end. elapsed=503.22 s, avail mem=21.71 GB")
    two = logtext.fold_key("Load weight end. elapsed=499.10 s, avail mem=21.71 GB")
    odd = logtext.fold_key("Load weight end. elapsed=503.22 s, avail mem=19.03 GB")
    assert one == two != odd
    assert logtext.fold_key("") != 0


def test_strings_of_a_terminal_are_removed_and_without_an_end_only_their_beginning() -> None:
    assert logtext.clean("x\x1bPa;b\x1b\\y\x1b_z") == "xyz"
    n = 1024 * 1024
    assert logtext.clean("\x1bP" * n) == ""
    assert logtext.clean("\x1b_a" * n) == "a" * n


def test_a_line_is_cut_before_it_is_cleaned_and_says_so() -> None:
    title = logtext.cut("\x1b]0;" + "y" * 100_000)
    assert title == f" … [{100_000 + 4 - logtext.MAX_LINE:,} more characters]"
    assert logtext.cut("\x1b[1ma\x1b[0m") == "a"
