from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tuner.core.sift import EDGE
from tuner.engines import load_engines
from tuner.errors import UsageProblem
from tuner.store import logbytes, sifting
from tuner.store.logfiles import LogText, read

ROUTINES = [engine.routine() for engine in load_engines().values()]
BATCH = "[2026-02-26 20:05:31 TP%d] Decode batch, #running-req: %d, #token: 2112, token usage: 0.01, #queue-req: 0"
START = "[2026-02-26 20:01:07 TP0] Load weight begin. avail mem=138.22 GB"
BOOM = "[2026-02-26 20:07:00 TP5] Scheduler hit an exception: Traceback (most recent call last):"


def _texts(path: Path | str, *more: Path) -> list[tuple[int, str]]:
    return list(read([path, *more], ROUTINES))


def _written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def _busy(count: int) -> list[str]:
    return [BATCH % (n % 8, n) for n in range(count)]


def _numbered(lines: list[str]) -> list[tuple[int, str]]:
    return list(enumerate(lines, 1))


@pytest.fixture
def small_pieces() -> Iterator[None]:
    with patch.object(sifting, "PIECE", 20_000), patch.object(logbytes, "BLOCK", 4096):
        yield


LINES = [START, *_busy(30), BOOM, "  raise é"]


class TestForms:
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("last", [True, False])
    def test_a_plain_file(self, tmp_path: Path, end: str, last: bool) -> None:
        path = _written(tmp_path / "a.log", end.join(LINES) + (end if last else ""))
        log = read([path], ROUTINES)
        assert list(log) == list(log) == _numbered(LINES)
        assert (log.lines_total, log.left_out, log.size_bytes) == (33, 0, path.stat().st_size)

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
    def test_a_packed_file(self, tmp_path: Path, pack: object) -> None:
        path = tmp_path / "a.log.1"
        path.write_bytes(pack("\n".join(LINES).encode()))  # type: ignore[operator]
        assert _texts(path) == _numbered(LINES)

    def test_several_packed_one_after_the_other(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gz"
        path.write_bytes(b"".join(gzip.compress(f"{line}\n".encode()) for line in LINES))
        assert _texts(path) == _numbered(LINES)

    def test_a_packed_file_that_breaks_off_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gz"
        lines = [f"{START} {os.urandom(8).hex()}" for _ in range(50_000)]
        packed = gzip.compress("\n".join(lines).encode())
        path.write_bytes(packed[: len(packed) * 3 // 4])
        log = read([path], ROUTINES)
        assert 20_000 < log.lines_total < 50_000
        assert next(iter(log)) == (1, lines[0])
        packed = gzip.compress("\n".join(lines[:200]).encode())
        path.write_bytes(packed[: len(packed) * 3 // 4])
        assert 50 < read([path], ROUTINES).lines_total < 200, "what is smaller than a block is read too"
        path.write_bytes(packed[:12] + b"no gzip")
        with pytest.raises(UsageProblem, match=r"cannot read a log: .*a\.gz"):
            read([path], ROUTINES)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
    def test_other_encodings(self, tmp_path: Path, encoding: str) -> None:
        path = tmp_path / "a.log"
        mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
        path.write_bytes(mark + "\n".join(LINES).encode(encoding))
        assert _texts(path) == _numbered(LINES)

    def test_bytes_that_are_no_utf_8(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        path.write_bytes(b"caf\xe9 \xf0\x9f\n" + START.encode())
        assert _texts(path) == [(1, "caf\ufffd \ufffd"), (2, START)]

    def test_the_hole_that_a_truncated_log_begins_with(self, tmp_path: Path) -> None:
        path = tmp_path / "a.log"
        with path.open("wb") as file:
            file.truncate(3 * logbytes.BLOCK + 5)
            file.seek(0, os.SEEK_END)
            file.write(f"{START}\n{BOOM}\n".encode())
        log = read([path], ROUTINES)
        assert list(log) == [(1, START), (2, BOOM)]
        assert log.lines_total == 2

    def test_a_line_of_megabytes(self, tmp_path: Path) -> None:
        for size in (70_000, 900_000, 5_000_000):
            path = _written(tmp_path / "a.log", f"{START}\n" + "x" * size + f"end\n{BOOM}")
            log = read([path], ROUTINES)
            (_, first), (_, long), (_, last) = log
            assert (first, last) == (START, BOOM)
            assert long.startswith("xxx")
            assert long.endswith("more characters]")
            assert len(long) < 66_000
            assert log.lines_total == 3

    def test_progress_bars_keep_their_last_state_and_what_is_glued_behind_one_is_seen(self, tmp_path: Path) -> None:
        bar = "\rLoading: 10%|#| 1/9 [00:01<00:09, 1.1s/it]\rLoading: 90%|#| 8/9 [00:08<00:01, 1.1s/it]"
        path = _written(tmp_path / "a.log", f"{START}\n{bar}{BOOM}\n{bar}\n")
        last = "Loading: 90%|#| 8/9 [00:08<00:01, 1.1s/it]"
        assert _texts(path) == [(1, START), (2, last), (2, BOOM), (3, last)]

    def test_control_sequences_are_gone_and_secrets_hidden(self, tmp_path: Path) -> None:
        path = _written(tmp_path / "a.log", "\x1b[1;36mred\x1b[0m\x07 HF_TOKEN=hf_abcdefghijKLMNOPQR\n")
        assert _texts(path) == [(1, "red· HF_TOKEN=***")]

    def test_an_empty_file(self, tmp_path: Path) -> None:
        log = read([_written(tmp_path / "a.log", "")], ROUTINES)
        assert (list(log), log.lines_total) == ([], 0)


class TestWrapped:
    def test_lines_come_without_what_is_round_them(self, tmp_path: Path) -> None:
        lines = [START, *_busy(5), BOOM]
        wrapped = [json.dumps({"log": line + "\n", "stream": "stderr"}) for line in lines]
        assert _texts(_written(tmp_path / "a.log", "\n".join(wrapped))) == _numbered(lines)

    def test_halves_of_a_line_are_joined_under_the_number_of_the_first(self, tmp_path: Path) -> None:
        head = "2025-07-25T07:53:08.2+08:00 stdout"
        records = [f"F {START}", "P server_args=Serv", "P erArgs(", "F tp_size=8)", f"F {BOOM}", "P the end"]
        path = _written(tmp_path / "a.log", "\n".join(f"{head} {record}" for record in records))
        assert _texts(path) == [(1, START), (2, "server_args=ServerArgs(tp_size=8)"), (5, BOOM), (6, "the end")]

    def test_each_file_has_its_own_wrappers(self, tmp_path: Path) -> None:
        one = _written(tmp_path / "1.log", f"Jul 22 09:35:07 gpu-box sglang[1871]: {START}\n")
        two = _written(tmp_path / "2.log", f"{BOOM}\n")
        assert _texts(one, two) == [(1, START), (2, BOOM)]

    def test_routine_lines_are_sifted_whatever_is_round_them(self, tmp_path: Path) -> None:
        lines = [START, *_busy(20_000), BOOM]
        text = "\n".join(f"\x1b[36m(SGLangWorker pid=38141)\x1b[0m {line}" for line in lines)
        with patch.object(sifting, "_EVEN", 100):
            log = read([_written(tmp_path / "a.log", text)], ROUTINES)
        texts = list(log)
        assert texts[0] == (1, START)
        assert texts[-1] == (20_002, BOOM)
        assert 2 * EDGE < len(texts) < 1000
        assert all(text == lines[at - 1] for at, text in texts)

    def test_an_object_of_several_lines(self, tmp_path: Path) -> None:
        record = json.dumps({"MESSAGE": f"{START}\n{BOOM}", "_PID": "3"})
        assert _texts(_written(tmp_path / "a.log", record)) == [(1, START), (1, BOOM)]


class TestSeveral:
    def test_places_are_found_again(self, tmp_path: Path) -> None:
        empty = _written(tmp_path / "0.log", "")
        one = _written(tmp_path / "1.log", f"{START}\nx\ny")
        packed = tmp_path / "2.gz"
        packed.write_bytes(gzip.compress(b"z\n"))
        three = _written(tmp_path / "3.log", BOOM)
        log = read([empty, one, packed, three], ROUTINES)
        assert list(log) == [(1, START), (2, "x"), (3, "y"), (4, "z"), (5, BOOM)]
        assert log.lines_total == 5
        assert log.files == tuple(map(str, (empty, one, packed, three)))
        assert [log.locate(at) for at in (1, 3, 4, 5)] == [
            (str(one), 1), (str(one), 3), (str(packed), 1), (str(three), 1),
        ]  # fmt: skip

    def test_the_standard_input(self) -> None:
        stdin = io.BytesIO(gzip.compress(f"{START}\n{BOOM}".encode()))
        log = read(["-"], ROUTINES, stdin=stdin)
        assert list(log) == [(1, START), (2, BOOM)]
        assert log.locate(2) == ("standard input", 2)

    def test_a_pipe(self, tmp_path: Path) -> None:
        end, mouth = os.pipe()
        os.write(mouth, f"{START}\n{BOOM}\n".encode())
        os.close(mouth)
        assert _texts(f"/dev/fd/{end}") == [(1, START), (2, BOOM)]
        os.close(end)


class TestRefused:
    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageProblem, match=r"cannot read a log: .*absent\.log: No such file"):
            read([tmp_path / "absent.log"], ROUTINES)

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageProblem, match="a folder is no log"):
            read([tmp_path], ROUTINES)

    @pytest.mark.parametrize(
        ("name", "why"), [("/proc/self/mem", "Input/output error"), ("a.log/b", "Not a directory")]
    )
    def test_what_cannot_be_read(self, tmp_path: Path, name: str, why: str) -> None:
        _written(tmp_path / "a.log", START)
        with pytest.raises(UsageProblem, match=f"cannot read a log: .*{name}: {why}"):
            read([tmp_path / name], ROUTINES)

    @pytest.mark.parametrize(
        ("data", "what"),
        [
            (bytes(range(256)) * 20, "this is no text"),
            (b"\x7fELF\x02\x01" + bytes(500), "a program or a core dump"),
            (b"PK\x03\x04" + bytes(500), "an archive"),
            (b"LPKSHHRH" + bytes(500), "systemd's journal"),
            (bytes(257) + b"ustar  ", "an archive"),
            (gzip.compress(bytes(257) + b"ustar  ", mtime=0), "an archive"),
            (b"\x28\xb5\x2f\xfd" + bytes(50), "zstd|cannot read a log"),
        ],
    )  # fmt: skip
    def test_what_is_no_log(self, tmp_path: Path, data: bytes, what: str) -> None:
        path = tmp_path / "a.log"
        path.write_bytes(data)
        with pytest.raises(UsageProblem, match=what):
            read([path], ROUTINES)


@pytest.mark.usefixtures("small_pieces")
class TestPieces:
    def test_one_process_and_several_find_the_same(self, tmp_path: Path) -> None:
        lines = _busy(3000)
        lines[1700] = BOOM
        lines[1701] = "y" * 50_000
        one = _written(tmp_path / "1.log", "\n".join(lines))
        two = _written(tmp_path / "2.log", "\n".join([START, *_busy(500), BOOM]) + "\n")
        alone, together = (read([one, two], ROUTINES, processes=n) for n in (1, 3))
        assert list(alone) == list(together)
        assert alone.lines_total == together.lines_total == 3502
        assert [at for at, text in alone if text in (BOOM, START) or "yyy" in text] == [1701, 1702, 3001, 3502]
        assert together.locate(3502) == (str(two), 502)

    def test_what_a_process_that_fails_had_taken_is_done_all_the_same(self, tmp_path: Path) -> None:
        path = _written(tmp_path / "1.log", "\n".join([START, *_busy(3000), BOOM]))
        expected = list(read([path], ROUTINES, processes=1))
        broken = "import sys, os; os.read(int(sys.argv[2]), 4); sys.stdin.buffer.read(); sys.exit(3)"
        with patch.object(sifting, "_CHILD", broken):
            assert list(read([path], ROUTINES, processes=2)) == expected

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 19_999, 20_000, 20_001, 60_000])
    def test_lines_are_cut_right_wherever_pieces_begin(self, tmp_path: Path, size: int) -> None:
        lines = ["a" * size, "", "b" * (20_000 - size % 20_000), "c", "d" * 45_000, START]
        assert _texts(_written(tmp_path / "a.log", "\n".join(lines))) == _numbered(lines)

    def test_a_file_and_a_stream_hold_the_same(self, tmp_path: Path) -> None:
        lines = [START, *_busy(3000), BOOM, *_busy(3000)]
        path = _written(tmp_path / "a.log", "\n".join(lines))
        stream = read(["-"], ROUTINES, stdin=io.BytesIO(path.read_bytes()))
        file = read([path], ROUTINES)
        assert stream.lines_total == file.lines_total == 6002
        for log in (stream, file):
            numbers = {at for at, _ in log}
            assert set(range(1, EDGE)) | set(range(3002 - EDGE, 3002 + EDGE)) | {6002} <= numbers


def test_another_process_needs_nothing_but_python(tmp_path: Path) -> None:
    """It is started without the packages of its environment, so that it starts fast."""
    root = Path(sifting.__file__).parents[2]
    code = f"import sys; sys.path.append({str(root)!r}); import tuner.store.sifting; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert {"tuner.core.sift", "tuner.store.logbytes"} <= set(done.stdout.split())


def test_nothing_is_left_open(tmp_path: Path) -> None:
    path = _written(tmp_path / "a.log", START)
    packed = tmp_path / "a.gz"
    packed.write_bytes(gzip.compress(START.encode()))
    before = set(Path("/proc/self/fd").iterdir())
    log: LogText = read([path, packed], ROUTINES)
    assert list(log) == [(1, START), (2, START)]
    with pytest.raises(UsageProblem):
        read([path, tmp_path / "absent"], ROUTINES)
    assert set(Path("/proc/self/fd").iterdir()) == before
