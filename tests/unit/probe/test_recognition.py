"""Which command line is a server, and which only talks about one."""

from __future__ import annotations

import re
import shlex

import msgspec
import pytest

from tuner.engines.sglang.engine import SGLang
from tuner.engines.vllm.engine import VLLM
from tuner.probe.agent import recognition

PLANS = {plan.name: recognition.Engine(msgspec.to_builtins(plan)) for plan in (SGLang().plan(), VLLM().plan())}

SERVERS = [
    ("sglang", "python3 -m sglang.launch_server --model-path /m --tp 2"),
    ("sglang", "/venv/bin/python -m sglang.launch_server --model-path /m"),
    ("sglang", "/venv/bin/python3.12 -u -B -m sglang.launch_server --model-path /m"),
    ("sglang", "python3 -X faulthandler -W ignore -m sglang.launch_server --model-path /m"),
    ("sglang", "/venv/bin/python3 /venv/bin/sglang serve --model-path /m"),
    ("vllm", "/venv/bin/python3 /venv/bin/vllm serve /m --port 18000"),
    ("vllm", "/venv/bin/python -m vllm.entrypoints.openai.api_server --model /m"),
]

NEAR_MISSES = [
    "bash -c python3 -m sglang.launch_server --model-path /m",
    "/bin/sh -c exec /venv/bin/vllm serve /m",
    "sudo -E python3 -m sglang.launch_server --model-path /m",
    "docker exec -it box python3 -m sglang.launch_server --model-path /m",
    "docker run --gpus all lmsysorg/sglang python3 -m sglang.launch_server --model-path /m",
    "ssh root@gpu python3 -m sglang.launch_server --model-path /m",
    "tmux new-session -d python3 -m sglang.launch_server --model-path /m",
    "SCREEN -dmS llm vllm serve /m",
    "grep --color=auto sglang.launch_server",
    "pgrep -f python3 -m sglang.launch_server",
    "vim python/sglang/launch_server.py",
    "tail -f sglang.launch_server.log",
    "less /var/log/vllm serve.log",
    "watch -n1 vllm serve",
    "timeout 600 python3 -m sglang.launch_server --model-path /m",
    "nsys profile -o out python3 -m sglang.launch_server --model-path /m",
    "/opt/conda/bin/python /opt/conda/bin/conda run -n llm python -m sglang.launch_server --model-path /m",
    "uv run vllm serve /m",
    "python3 -m sglang.bench_serving --backend sglang --num-prompts 100",
    "/venv/bin/python3 /venv/bin/vllm bench serve --model /m",
    "python3 -c import sglang.launch_server",
    "python3 -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=8) -m sglang.launch_server",
    "python3 watch.py -m sglang.launch_server",
    "python3 -m pytest -m sglang.launch_server",
    "python3 -m sglang.launch_server_wrapper --model-path /m",
    "/venv/bin/python3 -m sglang.launch_server --help",
    "/venv/bin/python3 /venv/bin/vllm serve --help=ModelConfig",
    "/venv/bin/vllm serve -h",
    "python3",
    "",
]


def found(line: str) -> list[str]:
    argv = line.split(" ") if line else []
    return [name for name, engine in PLANS.items() if engine.leads(argv, line)]


@pytest.mark.parametrize(("engine", "line"), SERVERS)
def test_a_server_is_recognised(engine: str, line: str) -> None:
    assert found(line) == [engine]


@pytest.mark.parametrize("line", NEAR_MISSES)
def test_what_only_mentions_a_server_is_none(line: str) -> None:
    assert found(line) == []


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("python3 -m pkg.mod a", "pkg.mod"),
        ("python3 -mpkg.mod a", "pkg.mod"),
        ("python3 -um pkg.mod", "pkg.mod"),
        ("python3 -X dev -W error script.py -m other", "script.py"),
        ("python3 -Xdev script.py", "script.py"),
        ("python3 --check-hash-based-pycs always script.py", "script.py"),
        ("pypy3 script.py", "script.py"),
        ("python3.13t script.py", "script.py"),
        ("python3 -m cProfile -o out -m pkg.mod", "pkg.mod"),
        ("python3 -m debugpy --listen 5678 -m pkg.mod a", "pkg.mod"),
        ("/usr/bin/pythonista x", "/usr/bin/pythonista"),
        ("bash -c x", "bash"),
    ],
)
def test_the_program_of_a_command_line(line: str, program: str) -> None:
    argv = shlex.split(line)
    at = recognition.program_index(argv)
    assert at is not None
    assert argv[at].endswith(program)


@pytest.mark.parametrize("line", ["python3", "python3 -", "python3 -c code arg", "python3 -Ic code", "python3 -m", ""])
def test_an_interpreter_without_a_program(line: str) -> None:
    assert recognition.program_index(shlex.split(line)) is None


def test_a_title_begins_the_command_line() -> None:
    engine = PLANS["sglang"]
    assert engine.titled("sglang::scheduler_TP3")
    assert not engine.titled("pgrep -f sglang::scheduler")


def test_expressions_meet_the_program_itself() -> None:
    """An unanchored expression must not make a carrier a server."""
    engine = recognition.Engine({"name": "x", "leaders": [re.escape("toy serve")]})
    assert engine.leads(["/bin/toy", "serve"], "/bin/toy serve")
    assert not engine.leads(["bash", "-c", "toy serve"], "bash -c toy serve")


@pytest.mark.parametrize(
    ("log", "work"),
    [
        ('[2026-11-29 16:20:58] INFO:     127.0.0.1:40112 - "GET /metrics HTTP/1.1" 200 OK\n', False),
        (
            'INFO:  127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\n\nINFO: 1 - "GET /v1/loads HTTP/1.1" 200 OK\n',
            False,
        ),
        ('{"log":"INFO:  127.0.0.1:1 - \\"GET /server_info HTTP/1.1\\" 200 OK\\n","stream":"stdout"}\n', False),
        ('INFO:     127.0.0.1:1 - "GET /metrics_of_others HTTP/1.1" 200 OK\n', True),
        ('INFO:     10.0.0.9:1 - "POST /generate HTTP/1.1" 200 OK\n', True),
        ('INFO:  127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK\n[x TP0] Decode batch, #running-req: 1\n', True),
        ("[x TP0] Prefill batch, #new-seq: 1", True),
        ("\n \n", False),
    ],
)
def test_lines_about_work_and_lines_about_the_asking(log: str, work: bool) -> None:
    assert PLANS["sglang"].works(log.encode()) is work
