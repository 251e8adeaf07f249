"""Starts of the simulated server: what is printed is what is held, by version."""

from __future__ import annotations

import re

import pytest

from tests.unit.simhost.played import T0, log_of, server
from tuner.simhost.engine import memory
from tuner.simhost.engine.memory import GIB
from tuner.simhost.engine.start import StartFailed


def _last(pattern: str, log: str, rank: int = 0) -> list[float]:
    found = re.findall(rf"TP{rank}\] {pattern}", log)
    assert found, pattern
    last = found[-1]
    return [float(value) for value in ((last,) if isinstance(last, str) else last)]


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_printed_memory_is_held_memory(version: str) -> None:
    played = server(version)
    played.replay(T0, T0 + 700)
    log = log_of(played)

    for rank in range(8):
        before = _last(r"Load weight begin\. avail mem=([\d.]+)", log, rank)[0]
        after, weights = _last(r"Load weight end\..*avail mem=([\d.]+) GB, mem usage=([\d.]+)", log, rank)
        tokens, kv = _last(r"KV Cache is allocated\..*#tokens: (\d+), KV size: ([\d.]+)", log, rank)
        pool_end = _last(r"Memory pool end\. avail mem=([\d.]+)", log, rank)[0]
        held = played.machine.box.ranks[rank]
        assert before - after == pytest.approx(weights, abs=0.011)
        assert weights == pytest.approx(held.weights / GIB, abs=0.005)
        assert kv == pytest.approx((tokens + 1) * 70_272 / GIB, abs=0.005)
        assert after - pool_end == pytest.approx(kv + held.request_table / GIB, abs=0.011)
        free_now = played.startup_free[rank] / GIB
        captured = (held.graphs + held.prefill_graphs + held.workspace) / GIB
        spare = 184 / 1024 if rank == 0 else 0.0
        assert pool_end - free_now == pytest.approx(captured - spare, abs=0.011)
    assert _last(r"max_total_num_tokens=(\d+).*available_gpu_mem=([\d.]+)", log) == pytest.approx(
        [159_277, played.startup_free[0] / GIB], abs=0.006
    )


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_a_start_takes_ten_minutes_and_its_times_agree(version: str) -> None:
    played = server(version, seed=4)
    played.replay(T0, T0 + 700)
    log = log_of(played)

    assert played.ready_at - T0 == pytest.approx(598, abs=12)
    for rank in range(8):
        elapsed = _last(r"Load weight end\. elapsed=([\d.]+)", log, rank)[0]
        assert elapsed == pytest.approx(506 if version == "0.5.9" else 446, rel=0.03)
    assert log.index("server_args=") < log.index("Load weight begin") < log.index("KV Cache is") < log.index("Uvicorn")
    assert log.index("Uvicorn running") < log.index("The server is fired up and ready to roll!")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.5.9", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
                  "Current value: self.server_args.mem_fraction_static=0.55"),
        ("0.5.23", "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.55. "
                   "Raise --mem-fraction-static above 0.770 (minimum viable = 1 - available/pre = 0.7692). "
                   "If using speculative decoding, draft weights are now counted."),
    ],
)  # fmt: skip
def test_too_low_a_fraction_fails_on_all_ranks(version: str, words: str) -> None:
    played = server(version, 0.55)

    with pytest.raises(StartFailed) as failed:
        played.replay(T0, T0 + 700)

    assert failed.value.where == "pool"
    assert failed.value.errors == dict.fromkeys(range(8), words)
    assert "KV Cache is allocated" not in log_of(played)


def test_too_high_a_fraction_runs_out_in_capture() -> None:
    played = server("0.5.9", 0.97)

    with pytest.raises(StartFailed) as failed:
        played.replay(T0, T0 + 700)

    error = failed.value.errors[3]
    tried, free = (float(v) for v in re.findall(r"allocate ([\d.]+) MiB.*of which ([\d.]+) MiB is free", error)[0])
    assert failed.value.where == "capture"
    assert tried > free == pytest.approx(played.machine.box.free(3) / (1 << 20), abs=0.006)


def test_the_poorest_gpu_sizes_every_pool() -> None:
    alone, shared = server(), server(foreign={2: 3 * GIB})
    alone.replay(T0, T0 + 700)
    shared.replay(T0, T0 + 700)

    lost = alone.machine.tokens - shared.machine.tokens
    # T and A both fall by 3 GiB, and T counts for 0.12 of itself.
    assert lost == pytest.approx(3 * 0.88 * GIB / memory.MLA_CELL_BYTES, abs=2)


def test_an_unbalanced_box_is_refused_by_the_healthy_ranks() -> None:
    played = server(foreign={2: 20 * GIB})

    with pytest.raises(StartFailed) as failed:
        played.replay(T0, T0 + 700)

    assert sorted(failed.value.errors) == [0, 1, 3, 4, 5, 6, 7]
    assert "The memory capacity is unbalanced" in failed.value.errors[0]


def test_a_cap_on_tokens_is_kept() -> None:
    played = server("0.5.9", 0.88, "--max-total-tokens", "20000")
    played.replay(T0, T0 + 700)
    assert played.machine.tokens == 20_000

    over = server("0.5.9", 0.88, "--max-total-tokens", "999999")
    over.replay(T0, T0 + 700)
    assert "max_total_tokens=999999 is larger than the profiled value 159277." in log_of(over)


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("0.5.9", ["--no-such-thing"], "launch_server.py: error: unrecognized arguments: --no-such-thing"),
        ("0.5.23", ["--no-such-thing"], "sglang serve: error: unrecognized arguments: --no-such-thing"),
        (
            "0.5.23",
            ["--cuda-graph-max-bs", "8"],
            "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match "
            "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        ),
        ("0.5.9", ["--port", "x"], "launch_server.py: error: argument --port: invalid int value: 'x'"),
        ("0.5.9", ["--kv-cache-dtype", "fp7"], "argument --kv-cache-dtype: invalid choice: 'fp7' (choose from"),
    ],
)
def test_flags_that_argparse_refuses(
    version: str, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        server(version, 0.88, *flags)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def _phases(log: str) -> list[str]:
    words = r"Load weight end|KV Cache is allocated|graph begin|max_total_num_tokens|Init \w+(?: \w+)? begin"
    return re.findall(rf"TP0\] .*?({words})", log)


def test_the_old_version_makes_its_draft_after_the_targets_graphs() -> None:
    plain, spec = server(), server("0.5.9", 0.88, "--speculative-algorithm", "EAGLE")
    for played in (plain, spec):
        played.replay(T0, T0 + 760)

    assert _phases(log_of(spec)) == [
        "Init torch distributed begin", "Load weight end", "KV Cache is allocated", "graph begin",
        "Init torch distributed begin", "Load weight end", "KV Cache is allocated", "graph begin", "graph begin",
        "max_total_num_tokens",
    ]  # fmt: skip
    assert spec.machine.tokens == plain.machine.tokens
    assert spec.machine.max_running == 48
    taken = plain.startup_free[3] - spec.startup_free[3]
    assert taken == spec.machine.box.ranks[3].draft > GIB


def test_the_new_version_counts_its_draft_into_the_pool() -> None:
    plain, spec = server("0.5.23"), server("0.5.23", 0.88, "--speculative-algorithm", "EAGLE")
    for played in (plain, spec):
        played.replay(T0, T0 + 760)

    log = log_of(spec)
    assert _phases(log)[:5] == [
        "Init parallel begin", "Load weight end", "Load weight end", "KV Cache is allocated", "KV Cache is allocated",
    ]  # fmt: skip
    assert "Capture target verify CUDA graph begin" in log
    assert "TP0] Capture draft decode CUDA graph begin" in log
    assert "TP1] Capture draft decode CUDA graph begin" not in log
    lost = plain.machine.tokens - spec.machine.tokens
    assert lost == pytest.approx((1_409_286_144 + 159_277 * 1_152) / (70_272 + 1_152), rel=0.01)
