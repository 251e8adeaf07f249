"""A log that is followed live: which findings are made of it, when, and out of how little memory."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.golden import diagnoses
from tuner.core import explaining
from tuner.core.diagnosis import diagnose
from tuner.core.reading import starts_of
from tuner.core.reduce import initial, reduce
from tuner.core.scene import Scene, completed
from tuner.domain import events as e
from tuner.domain.commands import LookUpStarts
from tuner.domain.findings import Remedy, Severity
from tuner.domain.gpu import GpuInfo, GpuProcess, ProcessInfo
from tuner.domain.history import UsualTimes
from tuner.domain.server import LogSource, Member, Phase, ServerIdentity
from tuner.domain.state import ForeignProcess, HostState, ServerState
from tuner.engines import load_engines
from tuner.store.journal import read_events

ENGINES = load_engines()
GOLDEN = Path(__file__).parents[2] / "golden"
CORPUS, JOURNALS = GOLDEN / "corpus", GOLDEN / "journals"
KEY = "10:99"
BORN = 1_772_135_000.0
"""A little before the first line of the logs below, in UTC."""
LOW = (CORPUS / "seed-3-custom-ar-055.log").read_text()
HEALTHY = (CORPUS / "seed-1-baseline.log").read_text()
DECODE = (
    "[2026-02-26 21:{m:02d}:{s:02d} TP0] Decode batch, #running-req: 4, #token: {n}, token usage: 0.37,"
    " cuda graph: True, gen throughput (token/s): 89.51, #queue-req: 0\n"
)
ACCESS = '[2026-02-26 21:{m:02d}:{s:02d}] INFO:     10.0.0.9:{n} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


class Play:
    """One server and its log, event by event, at a clock of its own."""

    def __init__(self, engine: str = "sglang", *, ranks: int = 8, born: float | None = None, utc: float | None = None):
        members = tuple(
            Member(pid=11 + i, ppid=10, start_ticks=1, title=f"sglang::scheduler_TP{i}") for i in range(ranks)
        )
        self.identity = ServerIdentity(
            key=KEY, engine=engine, pid=10, start_ticks=99, started_at=born, members=members,
            argv=("python", "-m", "sglang.launch_server", "--tp", "8"), log=LogSource(kind="file", path="/log"), env={},
        )  # fmt: skip
        self.mono = 100.0
        self.end = 0
        self.state = initial("box")
        self.findings: list[tuple[str, ...]] = []
        self.add(
            e.ProbeHello(protocol=1, python="3.11", pid=1, uid=0, hostname="h", at=(born or BORN) + 60, mono=self.mono,
                         utc_offset_s=utc)
        )  # fmt: skip
        self.add(e.ServerSeen(server=self.identity))

    def add(self, event: e.AnyEvent, after: float = 0.05) -> ServerState:
        self.mono += after
        seq = self.state.last_seq + 1
        event = msgspec.structs.replace(event, seq=seq, mono=self.mono)
        self.state, _ = reduce(self.state, event, ENGINES)
        if self.state.servers:
            causes = tuple(finding.cause for finding in self.server.findings)
            if not self.findings or self.findings[-1] != causes:
                self.findings.append(causes)
        return self.server

    @property
    def server(self) -> ServerState:
        return self.state.servers[0] if self.state.servers else ServerState(identity=self.identity)

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(finding.cause for finding in self.server.findings)

    @property
    def root(self) -> str | None:
        """Cause of its failure."""
        return next((each.cause for each in self.server.findings if each.severity is Severity.FATAL), None)

    def opened(self, size: int = 0, reason: str = "start") -> Play:
        self.add(e.LogOpened(key=KEY, reason=reason, path="/log", size=size))
        self.end = 0 if reason != "resume" else self.end
        return self

    def log(self, text: str, after: float = 0.05, **changes: Any) -> Play:
        offset = changes.pop("offset", self.end)
        self.end = offset + len(text.encode())
        self.add(e.LogBytes(key=KEY, offset=offset, end=self.end, data=text, **changes), after)
        return self

    def tick(self, seconds: float = 1.0) -> Play:
        """Time passes: the probe reads the GPUs."""
        self.add(e.GpuSamples(samples=()), seconds)
        return self


def pieces(text: str, lines: int = 10) -> Iterator[str]:
    rows = text.splitlines(keepends=True)
    for part in range(0, len(rows), lines):
        yield "".join(rows[part : part + lines])


def live(text: str, **how: Any) -> Play:
    play = Play(**how).opened()
    for piece in pieces(text):
        play.log(piece)
    return play.tick().tick().tick()


# --- Verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.log")), ids=lambda path: path.stem)
def test_a_log_that_grows_is_judged_as_the_same_log_read_whole(path: Path) -> None:
    start, whole = diagnoses.judged(path)
    text = "".join(f"{line.text}\n" for line in start.lines)
    if len(start.lines) >= explaining.KEEP:
        pytest.skip("more than is kept live")
    play = live(text, engine=start.engine)
    assert play.causes[:1] == tuple(finding.cause for finding in whole[:1])


def test_a_failed_start_is_diagnosed_with_the_line_that_shows_it() -> None:
    play = Play().opened()
    shown = LOW.index("Not enough memory. Please try to increase --mem-fraction-static")
    end = LOW.index("\n", shown) + 1
    for piece in pieces(LOW[:end]):
        assert play.root is None
        play.log(piece)
    assert play.root == "mem-fraction-too-low"
    finding = play.server.findings[0]
    assert finding.at is not None
    assert LOW.encode()[finding.at :].partition(b"\n")[0].decode() in LOW[:end]
    assert play.server.start is not None
    assert play.server.start.ranks[0].before_weights is not None


@pytest.mark.parametrize("seed", range(6))
def test_wherever_a_log_is_cut_into_events_the_findings_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    text = LOW if seed % 2 else HEALTHY
    whole = live(text).server.findings
    play = Play().opened()
    cuts = sorted(rng.sample(range(1, len(text)), 40))
    for first, last in itertools.pairwise([0, *cuts, len(text)]):
        play.log(text[first:last], rng.choice((0.01, 0.2, 1.0)))
    assert play.tick().tick().tick().server.findings == whole


def test_an_error_that_announces_an_exception_is_not_judged_before_it() -> None:
    core = "(EngineCore pid=20) ERROR 11-29 14:10:00 [core.py:1110] "
    raised = (
        "EngineCore encountered a fatal error.\n",
        "Traceback (most recent call last):\n",
        '  File "/opt/site/vllm/v1/worker/gpu_model_runner.py", line 36, in execute_model\n    y = f(x)\n',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of"
        " 80.00 GiB of which 812.25 MiB is free.\n",
    )
    play = Play(engine="vllm").opened()
    play.log("INFO 11-29 14:00:00 [api_server.py:1] vLLM API server version 0.32.0\n").tick(5)
    for piece in raised:
        play.log("".join(f"{core}{line}\n" for line in piece.splitlines()))
    assert [causes for causes in play.findings if causes] == [play.causes]
    assert play.root not in (None, "inconclusive")


def test_an_exception_that_never_ends_is_told_after_a_moment() -> None:
    play = Play().opened().log(HEALTHY).tick(5)
    play.log("[2026-02-26 21:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n")
    play.log('  File "/opt/site/sglang/srt/managers/scheduler.py", line 4640, in run_scheduler_process\n    f()\n')
    assert play.root is None
    assert play.tick().root == "inconclusive"


# --- Which lines are its own ------------------------------------------------------------------------------------------


def test_a_second_start_in_the_same_log_leaves_nothing_of_the_first() -> None:
    play = live(LOW)
    assert play.root == "mem-fraction-too-low"
    failed = len(play.server.explain.lines)
    for piece in pieces(HEALTHY):
        play.log(piece)
    play.tick(10).tick()
    assert play.causes == ()
    assert len(play.server.explain.lines) < failed + HEALTHY.count("\n")
    assert min(line.at for line in play.server.explain.lines) >= len(LOW.encode())
    for piece in pieces(LOW):
        play.log(piece)
    assert play.tick().root == "mem-fraction-too-low"


def test_a_server_that_fails_again_and_again_in_one_log_is_judged_each_time() -> None:
    """Its lines look like those of the starts before, which came too often to be kept."""
    play = Play().opened()
    for _ in range(2 * explaining.ALIKE):
        for piece in pieces(LOW, 60):
            play.log(piece)
    play.tick().tick()
    assert play.root == "mem-fraction-too-low"
    finding = play.server.findings[0]
    assert finding.ranks == live(LOW).server.findings[0].ranks
    assert min(line.at for line in play.server.explain.lines) >= (2 * explaining.ALIKE - 1) * len(LOW.encode())


@pytest.mark.parametrize("reason", ["rotated", "truncated", "replaced"])
def test_a_log_that_is_rotated_in_the_middle_of_a_start_is_one_start(reason: str) -> None:
    rows = LOW.splitlines(keepends=True)
    middle = next(i for i, row in enumerate(rows) if "Load weight end" in row)
    play = Play().opened()
    for piece in pieces("".join(rows[:middle])):
        play.log(piece)
    play.opened(reason=reason)
    for piece in pieces("".join(rows[middle:])):
        play.log(piece)
    play.tick().tick()
    whole = live(LOW).server.findings[0]
    finding = play.server.findings[0]
    assert (finding.cause, finding.ranks, finding.phase) == (whole.cause, whole.ranks, whole.phase)
    assert [each.value for each in finding.evidence] == [each.value for each in whole.evidence]
    before = [each.at for each in finding.evidence if each.at is not None and each.at < 0]
    assert before, "evidence of the file before stands before the file"


def test_a_late_attach_judges_by_the_head_and_the_tail() -> None:
    rows = LOW.splitlines(keepends=True)
    head, tail = "".join(rows[:30]), "".join(rows[40:])
    gap = "x" * 5_000_000
    end = len((head + gap).encode())
    play = Play().opened(end + len(tail.encode()))
    play.log(head, head=True)
    assert play.tick().causes == (), "nothing is judged while the past is still being read"
    play.add(e.LogGap(key=KEY, offset=play.end, end=end, reason="skipped"))
    play.log(tail, offset=end)
    assert play.tick().root == "mem-fraction-too-low"


def test_what_an_earlier_process_printed_into_the_same_log_is_not_judged() -> None:
    """The log's lines are of February 2026; this server began in March and has said nothing yet."""
    play = Play(born=BORN + 30 * 86_400, utc=0.0).opened(len(LOW.encode()))
    play.log(LOW)
    assert play.tick().tick().causes == ()
    assert play.server.explain.lines == ()


def test_lines_without_a_time_before_those_of_an_earlier_process_are_its_own_too() -> None:
    play = Play(born=BORN + 30 * 86_400, utc=0.0).opened(len(LOW.encode()))
    begin = LOW.index("Traceback")
    play.log(LOW[begin : begin + 400])
    assert play.server.explain.lines
    play.log(LOW[begin + 400 :])
    assert play.tick().tick().causes == ()
    assert play.server.explain.lines == ()


def test_a_server_that_is_gone_is_not_judged_by_its_successors_lines() -> None:
    play = live(HEALTHY)
    play.log("[2026-02-26 21:00:00] Gracefully exiting... Remaining number of requests 0. \n")
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000))
    ended = play.tick().causes
    for piece in pieces(LOW):
        play.log(piece)
    assert play.tick().tick().causes == ended
    assert all(line.at < len(HEALTHY.encode()) + 200 for line in play.server.explain.lines)


def test_a_last_line_without_an_end_counts_once_its_server_is_gone() -> None:
    mark = "Not enough memory. Please try to increase --mem-fraction-static"
    end = LOW.index("\n", LOW.index(mark))
    play = Play().opened()
    play.log(LOW[:end]).tick()
    play.add(e.ServerGone(key=KEY, at=BORN + 900))
    assert play.root == "mem-fraction-too-low"


def test_a_log_that_is_opened_again_from_its_beginning_is_not_two_starts() -> None:
    play = live(LOW)
    findings, kept = play.server.findings, len(play.server.explain.lines)
    play.opened(len(LOW.encode()))
    for piece in pieces(LOW):
        play.log(piece)
    play.tick().tick()
    assert (play.server.findings, len(play.server.explain.lines)) == (findings, kept)


def test_a_log_of_an_engine_that_is_not_known_is_shown_and_not_judged() -> None:
    play = live(LOW, engine="triton")
    assert play.server.log.lines_total == LOW.count("\n")
    assert (play.causes, play.server.explain.lines, play.server.start) == ((), (), None)


def test_a_start_that_fails_before_its_engine_says_anything_is_judged_by_what_there_is() -> None:
    play = Play(ranks=0).opened()
    play.log('Traceback (most recent call last):\n  File "<frozen runpy>", line 198, in _run_module_as_main\n')
    play.log("ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found\n")
    play.add(e.ServerGone(key=KEY, at=BORN + 9))
    assert len(play.causes) == 1
    assert play.causes != ("rank-died",)
    play = Play(ranks=0).opened()
    play.log("launch_server.py: error: argument --tensor-parallel-size/--tp-size/--tp: invalid int value: 'two'\n")
    play.add(e.ServerGone(key=KEY, at=BORN + 9))
    (finding,) = play.tick().server.findings
    assert play.server.start is not None and play.server.start.phase == finding.phase == "args"


# --- When ---------------------------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One entry for each diagnosis from now on."""
    times: list[float] = []

    def counting(*args: Any) -> Any:
        times.append(0.0)
        return diagnose(*args)

    monkeypatch.setattr("tuner.core.explaining.diagnose", counting)
    return times


def test_nothing_is_diagnosed_again_without_news(monkeypatch: pytest.MonkeyPatch) -> None:
    play = live(LOW)
    made = counted(monkeypatch)
    before = play.server
    for _ in range(50):
        play.tick()
    assert made == []
    assert play.server.findings is before.findings
    assert play.server.start is before.start


def test_a_start_that_has_just_become_ready_is_no_start_any_more() -> None:
    """Its last line alone would wait for the pace of a server that serves."""
    play = Play().opened()
    ready = HEALTHY.index("The server is fired up and ready to roll!")
    before = HEALTHY.rindex("\n", 0, HEALTHY.index("Application startup complete")) + 1
    for piece in pieces(HEALTHY[:before]):
        play.log(piece)
    play.tick(3.0)
    assert play.server.start is not None and play.server.start.outcome == "running"
    play.log(HEALTHY[before : HEALTHY.index("\n", ready) + 1])
    play.tick()
    assert play.server.phase is Phase.READY
    assert play.server.start.outcome == "ready"


def test_a_server_that_serves_for_hours_is_looked_at_seldom_and_has_no_findings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    play = live(HEALTHY)
    assert play.server.phase is Phase.READY
    made = counted(monkeypatch)
    for second in range(1_200):
        text = DECODE.format(m=second // 60 % 60, s=second % 60, n=second)
        play.log(text + ACCESS.format(m=second // 60 % 60, s=second % 60, n=second), 0.5).tick(0.5)
    assert play.findings == [()]
    assert len(made) <= 1_200 / explaining.SERVING_S + 1
    assert len(play.server.explain.batches) == explaining.BATCHES


def test_a_flood_of_lines_that_look_alike_costs_no_diagnoses_and_hides_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, last = LOW.splitlines(keepends=True)[:30], LOW.splitlines(keepends=True)[30:]
    play = Play().opened().log("".join(first))
    play.tick(5)
    made = counted(monkeypatch)
    for second in range(60):
        play.log("".join(
            f"box:{4000 + rank}:{4100 + rank} [{rank}] NCCL INFO Channel {second:02d}/{n} : {rank}[{rank}] ->"
            f" {n}[{n}] via P2P/CUMEM\n"
            for rank in range(8) for n in range(100)
        ), 1.0)  # fmt: skip
    assert len(made) <= 3
    assert len(play.server.explain.lines) <= len(first) + 2 * explaining.ALIKE
    for piece in pieces("".join(last)):
        play.log(piece)
    assert play.tick().root == "mem-fraction-too-low"


def test_a_warning_that_comes_all_the_time_does_not_delay_a_failure() -> None:
    play = live(HEALTHY)
    for second in range(100):
        play.log(
            f"[2026-02-26 21:00:00 TP0] WARNING: something odd, number {second}, of kind {'x' * (second % 50)}\n", 1.0
        )
    died = "[2026-02-26 21:30:00] Subprocess scheduler_3 (pid=14) crashed with exit code -9. Triggering SIGQUIT.\n"
    play.log(died, 0.01)
    for _ in range(6):
        if play.causes:
            break
        play.tick(0.1)
    assert play.causes, "within half a second"


# --- Memory ---------------------------------------------------------------------------------------------------------


def unlike(number: int) -> str:
    """A line that looks like no other."""
    word = "".join(chr(ord("g") + int(digit)) for digit in str(number))
    return f"[2026-02-26 21:00:00] Receive: obj=GenerateReqInput(text='{word}')\n"


def test_what_is_kept_is_bounded_whatever_comes() -> None:
    play = live(HEALTHY)
    for block in range(60):
        play.log("".join(unlike(1000 * block + n) for n in range(400)))
        told = play.server.explain
        assert len(told.lines) <= explaining.MOST
        assert len(told.batches) <= explaining.BATCHES
        assert len(told.shapes) <= explaining.SHAPES
    assert play.tick(10).causes == ()
    assert play.server.start is not None
    assert len(play.server.start.ranks) == 8, "what tells of the start is kept"


def test_a_failure_keeps_its_cause_whatever_is_printed_after_it() -> None:
    play = live(LOW)
    findings = [(f.cause, f.ranks, f.phase) for f in play.server.findings]
    for block in range(20):
        play.log(
            "".join(f'  File "/x/{unlike(1000 * block + n).strip()}.py", line {n}, in f\n' for n in range(300)), 1.0
        )
    play.tick(20)
    assert [(f.cause, f.ranks, f.phase) for f in play.server.findings] == findings
    assert len(play.server.explain.lines) <= explaining.MOST


def test_what_was_read_of_a_line_is_forgotten_with_it() -> None:
    play = live(LOW)
    line = play.server.explain.lines[5]
    assert explaining.read_kept(ENGINES["sglang"], line) is explaining.read_kept(ENGINES["sglang"], line)
    known = len(explaining._read)
    del line
    for piece in pieces(HEALTHY):
        play.log(piece)
    play.tick(10)
    play.state = initial("box")
    assert len(explaining._read) < known


# --- What the host shows beside the log -------------------------------------------------------------------------------


def table(gpus: int = 8) -> e.GpuTable:
    return e.GpuTable(
        source="pynvml",
        gpus=tuple(
            GpuInfo(index=i, uuid=f"GPU-{i}", name="H200", bus_id=f"00000000:{0x10 + i:02X}:00.0") for i in range(gpus)
        ),
    )


def without(identity: ServerIdentity, *tags: str) -> e.ServerSeen:
    left = tuple(member for member in identity.members if member.title.rpartition("_")[2] not in tags)
    return e.ServerSeen(server=msgspec.structs.replace(identity, members=left))


def test_a_rank_that_vanishes_is_named_before_the_log_says_anything() -> None:
    play = live(HEALTHY)
    play.add(table())
    play.add(without(play.identity, "TP3"))
    play.tick()
    (finding,) = play.server.findings
    assert (finding.cause, finding.ranks, str(finding.confidence)) == ("rank-died", (3,), "high")
    assert "TP3 (pid 14)" in finding.explanation
    assert finding.at == play.server.start.last if play.server.start else False
    play.log(
        "[2026-02-26 21:30:00 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/scheduler.py", line 3, in run\n    f()\n'
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242\n\n"
    )
    play.tick()
    assert (play.server.findings[0].cause, play.server.findings[0].ranks) == ("rank-died", (3,))


def test_a_rank_that_the_launcher_names_died_before_those_that_the_launcher_ended() -> None:
    play = Play().opened()
    for piece in pieces(HEALTHY[: HEALTHY.index("Load weight begin")]):
        play.log(piece)
    play.add(without(play.identity, "TP0"))
    assert play.tick().server.findings[0].ranks == (0,)
    play.log(
        "[2026-02-26 21:30:00] Traceback (most recent call last):\n"
        '  File "/x/engine.py", line 2040, in _wait_for_scheduler_ready\n    raise _scheduler_died_error(j, procs[j])\n'
        "RuntimeError: Rank 1 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a"
        " common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n"
    )
    assert (play.tick().tick().root, play.server.findings[0].ranks) == ("host-oom-killed", (1,))


def test_a_server_that_is_gone_without_a_word_was_killed_from_outside() -> None:
    play = live(HEALTHY)
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000))
    (finding,) = play.server.findings
    assert (finding.cause, finding.ranks, str(finding.confidence)) == ("rank-died", None, "medium")
    assert "killed from outside" in finding.explanation


def test_a_start_that_is_gone_without_a_word_is_told_with_its_phase() -> None:
    play = Play().opened()
    for piece in pieces(HEALTHY[: HEALTHY.index("Load weight end")]):
        play.log(piece)
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000))
    (finding,) = play.server.findings
    assert (finding.cause, finding.phase) == ("rank-died", "weight-load")
    assert "no word of a SIGTERM" in finding.explanation


def test_a_failure_whose_lines_tell_no_time_is_as_old_as_the_line_before() -> None:
    """vLLM's tracebacks have none; its phase took from the process's beginning until then."""
    play = Play(engine="vllm", ranks=0, born=BORN).opened()
    at = f"{datetime.fromtimestamp(BORN + 9, UTC):%m-%d %H:%M:%S}"
    play.log(
        f"(APIServer pid=10) INFO {at} [utils.py:233] non-default args: {{'model': 'm', 'port': 31003}}\n"
        "Traceback (most recent call last):\n"
        '  File "/x/api_server.py", line 9, in setup_server\n    sock.bind(address)\n'
        "OSError: [Errno 98] Address already in use\n"
    )
    play.tick().tick()
    assert play.root == "port-in-use"
    (args,) = play.server.phases
    assert args.ended is not None
    assert args.ended - args.started == 9.0


@pytest.mark.parametrize(
    "log", ["real/sglang-0.5.23-cpu/fail-port-in-use.log", "real/sglang-0.5.23-cpu/portclash-new.log"]
)
def test_a_start_failed_in_the_phase_that_its_cause_tells(log: str) -> None:
    """No line begins SGLang's warm-up before the port is bound; whoever has it answers, and that looks ready."""
    play = live((GOLDEN / log).read_text(), ranks=1)
    (finding,) = play.server.findings
    assert (finding.cause, finding.phase) == ("port-in-use", "warmup")
    start = play.server.start
    assert start is not None and (start.phase, start.outcome, start.ready_at) == (Phase.WARMUP, "failed", None)
    assert play.server.errors[0].phase is Phase.WARMUP


def test_a_rank_that_vanishes_is_named_though_no_line_can_be_read() -> None:
    play = Play()
    play.add(e.LogOpened(key=KEY, reason="unreadable", kind="none", note="the output goes to a terminal"))
    play.add(
        e.HttpAnswer(key=KEY, endpoint="metrics", status=200, series={'sglang:num_running_reqs{tp_rank="0"}': 1.0})
    )
    play.add(without(play.identity, "TP3"))
    (finding,) = play.tick().server.findings
    assert (finding.cause, finding.ranks, finding.phase, finding.at) == ("rank-died", (3,), "runtime", None)
    assert str(finding.confidence) == "high"


def test_a_dead_worker_is_shown_by_its_own_process_to_the_end() -> None:
    """vLLM's engine core lives on for a while, and is no rank once there are workers."""
    titles = ("VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1")
    members = tuple(Member(pid=20 + i, ppid=10, start_ticks=1, title=title) for i, title in enumerate(titles))
    play = Play(engine="vllm", ranks=0)
    identity = msgspec.structs.replace(play.identity, argv=("vllm", "serve", "m", "--tensor-parallel-size", "2"))
    for seen in (members[:1], members, members[:2], members[:1]):
        play.add(e.ServerSeen(server=msgspec.structs.replace(identity, members=seen)))
    assert [(rank.tag, rank.pid, rank.alive) for rank in play.server.ranks] == [("TP0", 21, False), ("TP1", 22, False)]


def orphans(identity: ServerIdentity, *pids: int) -> ServerIdentity:
    """What the leader left over, as the probe tells of it."""
    members = tuple(member for member in identity.members if member.pid in pids)
    return msgspec.structs.replace(
        identity, key=f"{pids[0]}:1", pid=pids[0], start_ticks=1, members=members, argv=(), orphaned=True, port=None
    )


def test_a_leader_that_is_killed_and_what_it_left_over_are_one_server() -> None:
    play = live(HEALTHY)
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000, left=(12, 13, 14)))
    (finding,) = play.tick().server.findings
    assert (finding.cause, finding.ranks) == ("rank-died", None)
    assert "All processes" not in finding.explanation
    assert "live on (pid 12, 13, 14)" in finding.explanation
    assert play.server.start is not None and play.server.start.outcome == "failed"
    assert finding.remedies[0].value == "kill 12 13 14"

    rest = orphans(play.identity, 13, 14)
    play.add(e.ServerSeen(server=rest))
    (server,) = play.state.servers
    assert (server.identity.key, server.left_pids) == (KEY, (13, 14))
    assert [rank.tag for rank in server.ranks if rank.alive] == ["TP2", "TP3"]
    assert server.findings[0].remedies[0].value == "kill 13 14"

    play.add(e.ServerGone(key=rest.key, at=BORN + 9_100))
    assert play.tick().server.left_pids == ()
    (finding,) = play.server.findings
    assert finding.explanation.startswith("All processes of the server are gone")
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000, left=()))
    assert len(play.state.servers) == 1


def test_a_leader_that_is_killed_while_nobody_watches_and_what_it_left_over_are_one_server() -> None:
    play = live(HEALTHY)
    hello = play.state.hello
    assert hello is not None
    play.add(hello)  # the link was cut; this is the next probe
    play.add(e.ServerSeen(server=orphans(play.identity, 13, 14)))
    play.add(e.ScanEnded())
    (server,) = play.state.servers
    assert (server.gone, server.phase, server.left_pids) == (True, Phase.FAILED, (13, 14))
    assert play.tick().causes == ("rank-died",)


def test_the_llm_of_a_server_whose_command_line_does_not_tell_it_is_the_logs() -> None:
    play = Play()
    play.identity = orphans(play.identity, 12, 13)
    play.state, _ = reduce(initial("box"), e.ServerSeen(seq=1, mono=1.0, server=play.identity), ENGINES)
    assert play.server.model is None
    size = len(HEALTHY.encode())
    event = e.LogBytes(seq=2, mono=2.0, key=play.identity.key, offset=0, end=size, data=HEALTHY)
    play.state, asked = reduce(play.state, event, ENGINES)
    assert play.server.model == "/models/Kimi-K2.5-INT4"
    assert [each.model for each in asked if isinstance(each, LookUpStarts)] == ["/models/Kimi-K2.5-INT4"]


def test_what_a_leader_left_over_before_anybody_looked_is_told_as_that() -> None:
    play = Play()
    late = Play()
    late.state = initial("box")
    late.add(e.ProbeHello(protocol=1, python="3.11", pid=1, uid=0, hostname="h", at=BORN, mono=late.mono))
    late.add(e.ServerSeen(server=orphans(play.identity, 12, 13)))
    (finding,) = late.tick().server.findings
    assert (finding.cause, str(finding.severity), finding.phase) == ("rank-died", "fatal", "none")
    assert late.server.start is not None and late.server.start.phase == "none", "nobody saw it serve"
    assert finding.remedies[0].value == "kill 12 13"


def test_a_server_that_was_asked_to_stop_has_no_finding() -> None:
    play = live(HEALTHY)
    play.log("[2026-02-26 21:00:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n")
    play.log("[2026-02-26 21:00:01] Gracefully exiting... Remaining number of requests 0. \n")
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000))
    assert play.tick().causes == ()
    assert play.server.phase is Phase.STOPPED


def tenant(gpu: int, pid: int = 777, gib: float = 40.0) -> e.GpuProcesses:
    ranks = tuple(GpuProcess(pid=11 + i, gpu=i, used_bytes=60 << 30) for i in range(8))
    info = ProcessInfo(pid=pid, user="alice", command="python train.py")
    other = GpuProcess(pid=pid, gpu=gpu, used_bytes=int(gib * (1 << 30)))
    return e.GpuProcesses(processes=(*ranks, other), infos=(info,))


def foreign_log() -> str:
    """The low fraction's log, with a GPU that another process had half of before the weights were loaded."""
    path = next(path for path in sorted(CORPUS.glob("*.log")) if "foreign-process-on-gpu" in
                path.with_suffix(".expect.json").read_text().partition("also_acceptable")[0]
                and "TP0" in path.read_text())  # fmt: skip
    return path.read_text()


def test_the_tenant_is_named_where_a_log_only_misses_memory() -> None:
    play = Play().opened()
    play.add(table())
    play.add(tenant(0))
    for piece in pieces(foreign_log()):
        play.log(piece)
    play.tick().tick()
    finding = play.server.findings[0]
    assert finding.cause == "foreign-process-on-gpu"
    assert "pid 777 of alice (python train.py) holds 40.00 GiB of GPU 0" in finding.explanation
    assert ("pid 777 on GPU 0", 40.0, "GiB") in [(each.what, each.value, each.unit) for each in finding.evidence]


def test_the_tenant_of_a_rank_is_found_by_the_ranks_number_and_not_by_its_place_in_a_list() -> None:
    """A rank whose GPU is not known is in no list of GPUs."""
    sglang = ENGINES["sglang"]
    start = starts_of(enumerate(foreign_log().splitlines(), 1), ENGINES)[-1]
    (root, *others) = diagnose(start, sglang)
    tenants = tuple(ForeignProcess(pid=20 + gpu, gpu=gpu, memory_bytes=40 << 30) for gpu in (1, 2))
    scene = Scene(gpus=(("TP1", 1), ("TP2", 2)), tenants=tenants)
    (found, *_) = completed((msgspec.structs.replace(root, ranks=(1,)), *others), start, sglang, scene)
    assert "pid 21 holds 40.00 GiB of GPU 1" in found.explanation
    assert "pid 22" not in found.explanation


def xid(code: int, gpu: int, at: float) -> e.GpuXid:
    return e.GpuXid(
        bus_id=f"0000:{0x10 + gpu:02x}:00", xid=code, text=f"NVRM: Xid (PCI:0000:{0x10 + gpu:02x}:00)", at=at
    )


def test_a_fault_of_the_card_is_the_cause_of_what_its_rank_printed() -> None:
    play = Play(born=BORN).opened()
    play.add(table())
    for piece in pieces(HEALTHY):
        play.log(piece)
    play.add(xid(79, 5, BORN - 500), 1.0)
    play.add(without(play.identity, "TP5"))
    play.tick()
    assert play.causes == ("rank-died",), "an error from before it began is none of its own"
    play.add(xid(13, 5, BORN + 700), 1.0)
    play.tick()
    told = [(each.what, each.value) for each in play.server.findings[0].evidence]
    assert ("Xid in the kernel's log", 13) in told
    play.add(xid(79, 5, BORN + 800), 1.0)
    play.tick()
    (finding,) = play.server.findings
    assert (finding.cause, finding.ranks) == ("gpu-hardware", (5,))
    assert "CUDA_VISIBLE_DEVICES" in [remedy.env for remedy in finding.remedies], "as where only the log tells"


def test_what_the_kernel_killed_for_want_of_memory_is_told_as_that() -> None:
    play = Play(born=BORN).opened()
    for piece in pieces(HEALTHY):
        play.log(piece)
    text = "Memory cgroup out of memory: Killed process 14 (sglang::schedul) total-vm:99kB, anon-rss:9kB"
    play.add(e.ProcessKilled(pid=999, name="python", text=text, at=BORN + 800))
    play.add(e.ProcessKilled(pid=14, name="sglang::schedul", text=text, at=BORN - 800))
    play.add(without(play.identity, "TP3"))
    assert play.tick().causes == ("rank-died",), "another process, and one of another time"
    play.add(e.ProcessKilled(pid=14, name="sglang::schedul", text=text, at=BORN + 800))
    (finding,) = play.tick().server.findings
    assert (finding.cause, finding.ranks, str(finding.confidence)) == ("host-oom-killed", (3,), "high")
    assert "its container or unit had used up its limit" in finding.explanation
    assert ("kernel", text) in [(each.what, each.value) for each in finding.evidence]


# --- What stands still ------------------------------------------------------------------------------------------------

LOOK = '[2026-02-26 21:50:00] INFO:     127.0.0.1:{n} - "GET /metrics HTTP/1.1" 200 OK\n'


def test_a_rank_that_is_stopped_under_load_is_told_on_a_host_without_gpus_and_forgotten_when_it_goes_on() -> None:
    """Its server answers and prints our own looks at its numbers all the time."""
    play = live(HEALTHY)
    halted = tuple(
        msgspec.structs.replace(member, state="T" if member.title.endswith("TP3") else "S")
        for member in play.identity.members
    )

    def second(number: int, tokens: float) -> None:
        play.add(e.HostSample(), 0.4)
        body = "\n".join(
            f'sglang:{name}{{tp_rank="0"}} {value}'
            for name, value in (("num_running_reqs", 4.0), ("gen_throughput", tokens))
        )
        series = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in body.splitlines()}
        play.add(e.HttpAnswer(key=KEY, endpoint="metrics", status=200, series=series), 0.3)
        play.log(LOOK.format(n=40_000 + number), 0.3)

    for number in range(5):
        second(number, 89.0)
        play.log(DECODE.format(m=50, s=number, n=1000 + number))
    assert play.server.metrics.running == 4
    play.add(e.ServerSeen(server=msgspec.structs.replace(play.identity, members=halted)))
    for number in range(20):
        second(5 + number, 0.0)
    (finding,) = play.server.findings
    assert (finding.cause, finding.ranks, str(finding.confidence)) == ("watchdog-hang", (3,), "high")
    assert [each.value for each in finding.remedies] == ["kill -CONT 14"]
    play.add(e.ServerSeen(server=play.identity))
    for number in range(8):
        second(25 + number, 89.0)
    assert play.causes == ()


# --- Journals of real hosts -------------------------------------------------------------------------------------------

_TOO_HIGH = re.compile(r"(?<=mem-fraction-too-high)-.*")
RECORDED: dict[str, Any] = {
    "sglang-0.5.16-2xH200-start-load-stop": [()],
    "sglang-0.5.16-2xH200-tenant-rank-killed": [("rank-died", (1,), "high"), ("custom-ar-disabled", None, "high")],
    "sglang-0.5.16-4xH200-start-load-stop-kv-oom": [("mem-fraction-too-high", (0,), "medium")],
}
"""The last: cuBLAS found no memory between pool and graphs, which both causes of a fraction that is too high may be."""


def recut(events: Iterable[tuple[float, e.AnyEvent]], rng: random.Random | None) -> Iterator[e.AnyEvent]:
    """A journal's events, the log cut into other pieces."""
    for _, event in events:
        if rng is None or not isinstance(event, e.LogBytes) or not event.data.isascii() or len(event.data) < 3:
            yield event
            continue
        cuts = sorted(rng.sample(range(1, len(event.data)), min(3, len(event.data) - 1)))
        for first, last in itertools.pairwise([0, *cuts, len(event.data)]):
            part = {"offset": event.offset + first, "end": event.offset + last, "data": event.data[first:last]}
            yield msgspec.structs.replace(event, seq=0, **part)


def judged(state: HostState) -> list[list[tuple[str, Any, str]]]:
    return [
        [(_TOO_HIGH.sub("", finding.cause), finding.ranks, str(finding.confidence)) for finding in server.findings]
        for server in state.servers
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_on_real_gpus_is_judged_as_what_was_done_to_it(name: str) -> None:
    states = []
    for rng in (None, random.Random(1), random.Random(2)):
        state = initial("h200")
        for event in recut(read_events(JOURNALS / f"{name}.ndjson"), rng):
            state, _ = reduce(state, event, ENGINES)
        states.append(judged(state))
    assert states[0] == states[1] == states[2]
    expected = [each for each in RECORDED[name] if each]
    assert [found for found in states[0] if found] == ([expected] if expected else [])


def test_what_earlier_starts_measured_reaches_a_card_that_is_there_already() -> None:
    """A log may be read to its end before the logs of earlier starts are."""
    play = live(LOW)
    alone = fraction_of(play)
    good, _ = diagnoses.judged(CORPUS / "seed-1-baseline.log")
    play.add(e.HistoryFound(key=KEY, usual=UsualTimes(), starts=(good,)))
    play.tick(0.1)
    helped = fraction_of(play)
    assert "by estimate" in alone.why and "by estimate" not in helped.why
    assert (alone.min, helped.min) == (0.77, 0.77)
    assert (alone.serves, helped.serves) == (None, 0.861), "the earlier start tells the bytes of a request"
    forecast = ENGINES["sglang"].forecast(play.server.start, {}, [good])  # type: ignore[arg-type]
    assert (helped.max, helped.serves) == (forecast.f_max, forecast.f_whole)


def fraction_of(play: Play) -> Remedy:
    return next(each for each in play.server.findings[0].remedies if each.knob == "mem_fraction_static")


BARE = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in run\n    f()\nValueError: nothing\n'


def test_an_exception_of_nobody_is_no_end_while_all_processes_live() -> None:
    play = live(HEALTHY)
    play.add(table())
    play.log(BARE)
    play.tick(3.0)
    assert play.causes == ()
    play.add(e.ServerGone(key=KEY, at=BORN + 9_000))
    play.tick(3.0)
    assert play.root == "inconclusive"
