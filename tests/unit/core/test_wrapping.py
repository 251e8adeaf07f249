from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.core import wrapping

CORPUS = Path(__file__).parents[2] / "golden" / "corpus"
SGLANG = [
    "[2026-02-26 20:01:07 TP0] Load weight begin. avail mem=138.22 GB",
    "[2026-02-26 20:01:09 TP1] Load weight begin. avail mem=138.22 GB",
    '[2026-02-26 20:05:31] INFO:     127.0.0.1:40112 - "GET /model_info HTTP/1.1" 200 OK',
    "Traceback (most recent call last):",
    '  File "/sgl/scheduler.py", line 9, in run',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
]
VLLM = [
    "(EngineCore_DP0 pid=4120) INFO 11-02 09:14:33 [core.py:77] Initializing a V1 LLM engine (v0.11.0)",
    "(Worker_TP1 pid=4311) INFO 11-02 09:15:10 [gpu_worker.py:805] Free memory on device",
    'INFO:     10.0.0.9:40112 - "GET /metrics HTTP/1.1" 200 OK',
]


def _docker(text: str) -> str:
    return json.dumps({"log": text + "\n", "stream": "stderr", "time": "2026-02-27T12:00:00.1Z"}, separators=(",", ":"))


WRAPPERS = {
    "docker-json": _docker,
    "docker-json with spaces": lambda text: json.dumps({"log": text + "\n", "stream": "stdout", "time": "2026Z"}),
    "json-log": lambda text: json.dumps({"log": text, "stream": "stderr", "kubernetes": {"pod_name": "x"}}),
    "cri": lambda text: f"2025-07-25T07:53:08.217487080+08:00 stdout F {text}",
    "journal short": lambda text: f"Jul 22 09:35:07 gpu-box sglang[1871]: {text}",
    "journal short, early in the month": lambda text: f"Jul  2 09:35:07 gpu-box sglang-8b.service[1871]: {text}",
    "journal short-precise": lambda text: f"Jul 22 09:35:07.123456 gpu-box sglang[1871]: {text}",
    "journal short-iso": lambda text: f"2025-07-22T09:35:07+0800 gpu-box sglang[1871]: {text}",
    "journal short-iso-precise": lambda text: f"2025-07-22T09:35:07.123456+08:00 gpu-box sglang[1871]: {text}",
    "journal short-full": lambda text: f"Tue 2025-07-22 09:35:07 CST gpu-box sglang[1871]: {text}",
    "journal short-unix": lambda text: f"1753176907.123456 gpu-box sglang[1871]: {text}",
    "journal short-monotonic": lambda text: f"[  912.345678] gpu-box sglang[1871]: {text}",
    "journal json": lambda text: json.dumps({"__CURSOR": "s=1", "MESSAGE": text, "_PID": "1871"}),
    "journal json, bytes": lambda text: json.dumps({"MESSAGE": list(text.encode()), "_PID": "1871"}),
    "compose": lambda text: f"sglang-1  | {text}",
    "compose, old": lambda text: f"llm_sglang_1 | {text}",
    "pm2": lambda text: f"0|sglang   | {text}",
    "kubectl timestamps": lambda text: f"2025-07-22T01:02:03.123456789Z {text}",
    "kubectl prefix": lambda text: f"[pod/sglang-7d9f-x2x/server] {text}",
    "kubectl prefix and timestamps": lambda text: f"[pod/sglang-7d9f-x2x/server] 2025-07-22T01:02:03.12Z {text}",
    "stern": lambda text: f"sglang-7d9f-x2x server {text}",
    "stern json": lambda text: json.dumps({"message": text + "\n", "podName": "sglang-7d9f", "containerName": "a"}),
    "ray": lambda text: f"(SGLangWorker pid=38141) {text}",
    "ray of another host": lambda text: f"(RayWorkerWrapper pid=1, ip=10.0.0.1) {text}",
    "ray, coloured": lambda text: f"\x1b[36m(SGLangWorker pid=38141)\x1b[0m {text}",
    "ray, repeated": lambda text: f"(SGLangWorker pid=38141) {text} [repeated 7x across cluster]",
    "ts": lambda text: f"Jul 22 09:35:07 {text}",
    "ts with a year": lambda text: f"2025-07-22 09:35:07 {text}",
    "ts since the start": lambda text: f"00:00:12 {text}",
    "ts in brackets": lambda text: f"[2025-07-22 09:35:07] {text}",
    "srun": lambda text: f"0: {text}",
    "srun of many": lambda text: f" 7: {text}",
    "cat -n": lambda text: f"    12\t{text}",
    "grep": lambda text: f"server.log:{text}",
    "grep -n": lambda text: f"logs/server.log:12:{text}",
    "quoted": lambda text: f"> {text}",
    "indented": lambda text: f"    {text}",
    "tagged by a collector": lambda text: f"[VLLM LOG] {text}",
    "platform": lambda text: f"[2025-12-18T16:24:02+08:00] job-7-3da56 >> (SGLangEngine pid=3111) {text}",
    "in a frame": lambda text: f"│ {text:<120} │",
    "compose round ray": lambda text: f"ray-1  | (SGLangWorker pid=38141) {text}",
    "docker round colours round ray": lambda text: _docker(f"\x1b[36m(SGLangWorker pid=3)\x1b[0m {text}"),
    "cri round journal's json": lambda text: f"2025-07-25T07:53:08.2Z stderr F {json.dumps({'MESSAGE': text})}",
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("lines", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_a_wrapper_is_found_and_taken_off_every_line(name: str, lines: list[str]) -> None:
    wrapped = [WRAPPERS[name](line) for line in lines]
    assert wrapped != lines
    found = wrapping.find(wrapped)
    assert [found.unwrap(line) for line in wrapped] == [(line, True) for line in lines]


@pytest.mark.parametrize("lines", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_what_is_not_wrapped_wears_nothing(lines: list[str]) -> None:
    assert wrapping.find(lines).names == ()
    assert wrapping.find([]).names == ()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.log")), ids=lambda path: path.stem)
def test_only_those_of_the_corpus_that_are_wrapped_are_unwrapped(path: Path) -> None:
    expected = {"mineru-3131": ("journal",), "sg-8336": ("cri",), "vl-20305": ("docker-json",), "rlinf-92": ("ray",)}
    lines = path.read_text(errors="replace").split("\n")
    assert wrapping.find(lines).names == expected.get(path.stem, ())


def test_lines_that_do_not_wear_it_stay_as_they_are() -> None:
    lines = [*(WRAPPERS["journal short"](line) for line in SGLANG), "-- Boot 3f2a --", *SGLANG]
    found = wrapping.find(lines)
    assert [found.unwrap(line)[0] for line in lines] == [*SGLANG, "-- Boot 3f2a --", *SGLANG]


def test_the_journal_of_other_units_and_of_the_kernel_is_read_too() -> None:
    found = wrapping.find([WRAPPERS["journal short"](line) for line in SGLANG])
    assert found.unwrap("Jul 22 09:40:00 gpu-box kernel: Out of memory: Killed process 1871 (python)") == (
        "Out of memory: Killed process 1871 (python)",
        True,
    )
    assert found.unwrap("Jul 22 09:40:00 gpu-box systemd[1]: sglang.service: Failed with result 'oom-kill'.")[0] == (
        "sglang.service: Failed with result 'oom-kill'."
    )


def test_names_of_engine_processes_are_no_actors() -> None:
    lines = [
        "(EngineCore_DP0 pid=12) INFO 11-02 09:14:33 [core.py:77] hello",
        "(EngineCore_DP0 pid=12) (RayWorkerWrapper pid=40, ip=10.0.0.2) INFO 11-02 09:14:34 [worker.py:7] hello",
        "(VllmWorker rank=1 pid=12) INFO 11-02 09:14:33 [core.py:77] hello",
        "(WorkerDict pid=12) [2026-02-26 20:01:07 TP0] hello",
    ]
    found = wrapping.find(lines)
    assert [found.unwrap(line)[0] for line in lines] == [
        lines[0],
        "INFO 11-02 09:14:34 [worker.py:7] hello",
        lines[2],
        "[2026-02-26 20:01:07 TP0] hello",
    ]


def test_what_torchrun_prints_in_front_of_a_line_stays() -> None:
    lines = [
        "[rank0]:[E226 20:01:07] Process group watchdog thread terminated",
        "[rank0]: Traceback (most recent call last):",
    ]
    assert wrapping.find([*SGLANG, *lines]).unwrap(lines[0]) == (lines[0], True)


def test_json_that_an_engine_prints_is_no_wrapper() -> None:
    line = json.dumps({"asctime": "2026-11-29 16:24:10,123", "levelname": "INFO", "message": "hello", "process": 3})
    assert wrapping.find([line] * 3).names == ()


def test_halves_of_a_line_are_told_apart_from_whole_ones() -> None:
    found = wrapping.find([WRAPPERS["cri"](line) for line in SGLANG])
    assert found.unwrap("2025-07-25T07:53:08.2Z stdout P half ") == ("half ", False)
    found = wrapping.find([_docker(line) for line in SGLANG])
    assert found.unwrap('{"log":"half","stream":"stdout"}') == ("half", False)
    assert found.unwrap('{"log":"torn') == ('{"log":"torn', True)


def test_wrappers_travel_by_name() -> None:
    found = wrapping.find([WRAPPERS["compose round ray"](line) for line in SGLANG])
    again = wrapping.Wrapping([*found.names, "of another version"])
    assert again.names == found.names == ("compose", "ray")
    assert again.unwrap("ray-1  | (SGLangWorker pid=38141) hello") == ("hello", True)


def test_records_of_container_runtimes_are_unwrapped() -> None:
    time = "2026-11-29T14:02:11.123456789Z"
    assert wrapping.unwrap("cri", f"{time} stderr F [x] hi") == ("[x] hi", True)
    assert wrapping.unwrap("cri", "2026-11-29T14:02:11.1+02:00 stdout P:tag  half ") == (" half ", False)
    assert wrapping.unwrap("cri", f"{time} stdout F ") == ("", True)
    assert wrapping.unwrap("cri", f"{time} stdout F") == ("", True)
    assert wrapping.unwrap("file", f"{time} stdout F x") == (f"{time} stdout F x", True)
    assert wrapping.unwrap("cri", "stdout F x") == ("stdout F x", True)


def test_docker_records_are_unwrapped() -> None:
    record = json.dumps({"log": "[x] hi\n", "stream": "stderr", "time": "2026-02-27T12:00:00Z"})
    assert wrapping.unwrap("docker-json", record) == ("[x] hi", True)
    assert wrapping.unwrap("docker-json", json.dumps({"log": "half"})) == ("half", False)
    assert wrapping.unwrap("file", record) == (record, True)
    assert wrapping.unwrap("docker-json", "{broken") == ("{broken", True)
    assert wrapping.unwrap("docker-json", '{"log": 5}') == ('{"log": 5}', True)
