"""Small logs for tests of judges: the head of a start up to some phase, and the lines of a failure."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence

from tuner.core.diagnosis import diagnose
from tuner.core.logtext import clean, segments
from tuner.core.reading import starts_of
from tuner.domain.findings import Confidence, Finding, Severity
from tuner.domain.starts import Start
from tuner.engines import load_engines

ENGINES = load_engines()
PHASES = ("args", "dist-init", "weight-load", "kv-alloc", "graph-capture", "ready", "serving")
"""Phases up to which a head can be made; it ends within that phase."""
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( [A-Z ]*\d[A-Z\d ]*)?\] ", re.MULTILINE)


def sglang(upto: str, tp: int = 2, **settings: object) -> str:
    """Return SGLang 0.5.9's lines up to a phase."""
    known = {"model_path": "/models/x", "port": 30000, "mem_fraction_static": 0.85, "tp_size": tp, "nnodes": 1,
             "node_rank": 0, "attention_backend": "fa3", **settings}  # fmt: skip
    args = ", ".join(f"{name}={value!r}" for name, value in known.items())
    ranks = [f" TP{n}" if tp > 1 else "" for n in range(tp)]
    steps: list[tuple[str, list[str]]] = [
        ("args", [f"[2026-03-01 10:00:00] server_args=ServerArgs({args})"]),
        ("dist-init", [f"[2026-03-01 10:00:08{r}] Init torch distributed begin." for r in ranks]),
        ("weight-load", [
            *(f"[2026-03-01 10:00:12{r}] Init torch distributed ends. elapsed=4.02 s, mem usage=0.61"
              f" GB" for r in ranks),
            *(f"[2026-03-01 10:00:12{r}] Load weight begin. avail mem=78.40 GB" for r in ranks),
        ]),
        ("kv-alloc", [f"[2026-03-01 10:00:40{r}] Load weight end. elapsed=27.90 s, type=XForCausalLM,"
                      " dtype=torch.bfloat16, avail mem=48.10 GB, mem usage=30.30 GB." for r in ranks]),
        ("graph-capture", [
            *(f"[2026-03-01 10:00:41{r}] KV Cache is allocated. #tokens: 280000, K size: 18.10 GB, V size: 18.10 GB"
              for r in ranks),
            *(f"[2026-03-01 10:00:41{r}] Memory pool end. avail mem=11.70 GB" for r in ranks),
            *(f"[2026-03-01 10:00:42{r}] Capture cuda graph begin. This can take up to several minutes."
              " avail mem=11.20 GB" for r in ranks),
        ]),
        ("ready", [
            *(f"[2026-03-01 10:00:52{r}] Capture cuda graph end. Time elapsed: 10.02 s. mem usage=1.20 GB."
              f" avail mem=10.00 GB."
              for r in ranks),
            f"[2026-03-01 10:00:52{ranks[0]}] max_total_num_tokens=280000, chunked_prefill_size=8192,"
            " max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, available_gpu_mem=9.90 GB",
            "[2026-03-01 10:00:53] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
            f"[2026-03-01 10:00:54{ranks[0]}] Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0,"
            " token usage: 0.00, #running-req: 0, #queue-req: 0",
            "[2026-03-01 10:00:55] The server is fired up and ready to roll!",
        ]),
        ("serving", [
            f"[2026-03-01 10:01:{s:02}{ranks[0]}] Decode batch, #running-req: 4, #token: {900 + s}, token usage: 0.01,"
            " cuda graph: True, gen throughput (token/s): 311.20, #queue-req: 0" for s in range(5, 25, 5)
        ]),
    ]  # fmt: skip
    lines = [line for step, group in steps[: PHASES.index(upto) + 1] for line in group if step]
    return "\n".join(lines) + "\n"


def vllm(upto: str, tp: int = 2, version: str = "0.20.2", **given: object) -> str:
    """Return vLLM's lines up to a phase, of which only `args`, `dist-init`, `kv-alloc` and `ready` differ."""
    asked = {"model": "/models/x", "tensor_parallel_size": tp, **given}
    api, core = "(APIServer pid=11) INFO 05-14", "(EngineCore_DP0 pid=22) INFO 05-14"
    workers = [f"(Worker_TP{n} pid={30 + n}) INFO 05-14" for n in range(tp)]
    steps: list[tuple[str, list[str]]] = [
        ("args", [f"{api} 08:15:31 [utils.py:299] vLLM server version {version}, serving model /models/x",
                  f"{api} 08:15:31 [utils.py:233] non-default args: {asked!r}"]),
        ("dist-init", [
            f"{core} 08:15:45 [core.py:105] Initializing a V1 LLM engine (v{version}) with config: model='/models/x',"
            f" max_seq_len=40960, tensor_parallel_size={tp}, pipeline_parallel_size=1, data_parallel_size=1",
            *(f"{w} 08:15:51 [parallel_state.py:1568] world_size={tp} rank={n} local_rank={n}"
              " distributed_init_method=tcp://127.0.0.1:48031 backend=nccl" for n, w in enumerate(workers)),
        ]),
        ("kv-alloc", [
            f"{workers[0]} 08:15:59 [gpu_model_runner.py:4960] Model loading took 15.2 GiB memory and 11.1 seconds",
            f"{workers[0]} 08:16:11 [gpu_worker.py:441] Available KV cache memory: 42.1 GiB",
            f"{core} 08:16:11 [kv_cache_utils.py:1319] GPU KV cache size: 407,968 tokens",
        ]),
        ("ready", [
            f"{workers[0]} 08:16:40 [gpu_model_runner.py:5901] Graph capturing finished in 21 secs, took 0.44 GiB",
            "(APIServer pid=11) INFO:     Started server process [11]",
            "(APIServer pid=11) INFO:     Application startup complete.",
        ]),
    ]  # fmt: skip
    names = [name for name, _ in steps]
    lines = [line for _, group in steps[: names.index(upto) + 1] for line in group]
    return "\n".join(lines) + "\n"


def raised(rank: str, *frames: tuple[str, str], error: str, time: str = "10:03:00", final: str = "") -> str:
    """Return a scheduler's traceback; frames are (file, function), outermost first."""
    tag = f" {rank}" if rank else ""
    lines = [f"[2026-03-01 {time}{tag}] Scheduler hit an exception: Traceback (most recent call last):"]
    for path, function in frames:
        lines += [f'  File "/opt/sglang/{path}", line 11, in {function}', "    run()"]
    lines += [error, ""]
    if final:
        lines += ["During handling of the above exception, another exception occurred:", "",
                  "Traceback (most recent call last):",
                  '  File "/opt/sglang/srt/managers/scheduler.py", line 900, in run_scheduler_process', "    run()",
                  final, ""]  # fmt: skip
    return "\n".join(lines) + "\n"


SIGQUIT = "[2026-03-01 10:03:01] Received sigquit from a child process. It usually means the child failed.\n"


def start_of(text: str) -> Start:
    """Return the last start in a log."""
    lines = [(n, clean(part)) for n, line in enumerate(text.split("\n"), 1) for part in segments(line)]
    return starts_of(lines, ENGINES)[-1]


def findings(text: str) -> tuple[Finding, ...]:
    """Return the findings of a log; empty where no engine is recognised."""
    lines = [(n, clean(part)) for n, line in enumerate(text.split("\n"), 1) for part in segments(line)]
    starts = starts_of(lines, ENGINES)
    return diagnose(starts[-1], ENGINES[starts[-1].engine]) if starts else ()


def verdict(text: str) -> Finding:
    """Return the root cause of a log that failed."""
    found = [f for f in findings(text) if f.severity in (Severity.FATAL, Severity.ERROR)]
    assert found, "nothing was found"
    return found[0]


def shown(finding: Finding) -> dict[str, object]:
    """Return a finding's evidence: values by name."""
    return {each.what: each.value for each in reversed(finding.evidence)}


def proposed(finding: Finding) -> dict[str, tuple[str, object]]:
    """Return a finding's remedies: move and value by knob."""
    return {each.knob: (each.move.value, each.value) for each in reversed(finding.remedies)}


# --- Damage that real logs have ---------------------------------------------------------------------------------------


def blocks(text: str) -> list[str]:
    """Return the records of a log, each with the lines that continue it."""
    parts: list[str] = []
    for line in text.splitlines():
        if parts and not _STAMP.match(line) and not line.startswith(("(", "[rank")):
            parts[-1] += "\n" + line
        else:
            parts.append(line)
    return parts


def without_times(text: str) -> str:
    """Remove the prefixes, as a collector does that keeps only messages."""
    return _STAMP.sub("", text)


def head_cut(text: str) -> str:
    """Remove the first third."""
    lines = text.splitlines()
    return "\n".join(lines[len(lines) // 3 :]) + "\n"


def tail_cut(text: str) -> str:
    """Remove the last three lines."""
    lines = text.splitlines()
    return "\n".join(lines[: max(1, len(lines) - 3)]) + "\n"


def ranks_shuffled(text: str) -> str:
    """Shuffle records that were printed within one second."""
    generator = random.Random(7)
    out: list[str] = []
    same: list[str] = []
    stamp = ""
    for block in blocks(text):
        now = block[:21] if _STAMP.match(block) else ""
        if now != stamp or not now:
            generator.shuffle(same)
            out += same
            same = []
        stamp = now
        same.append(block)
    generator.shuffle(same)
    return "\n".join([*out, *same]) + "\n"


def lines_dropped(text: str) -> str:
    """Remove every ninth line."""
    return "\n".join(line for n, line in enumerate(text.splitlines()) if n % 9 != 4) + "\n"


DAMAGE: Sequence[Callable[[str], str]] = (without_times, head_cut, tail_cut, ranks_shuffled, lines_dropped)


def wrong_and_sure(text: str, accepted: Iterable[str]) -> list[str]:
    """Return verdicts of damaged copies that are wrong with high confidence; there must be none."""
    good = {*accepted, "inconclusive", "error-unknown"}
    bad = []
    for damage in DAMAGE:
        for finding in findings(damage(text))[:1]:
            serious = finding.severity in (Severity.FATAL, Severity.ERROR)
            if serious and finding.cause not in good and finding.confidence is Confidence.HIGH:
                bad.append(f"{damage.__name__}: {finding.cause}")
    return bad
