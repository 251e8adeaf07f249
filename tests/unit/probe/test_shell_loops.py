"""Whether a script would start a server again."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.probe.agent.processes import argv_of
from tuner.probe.agent.shell_loops import find_loop, launch_words, loop_above

LEADER = ["/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "m"]

LOOPS = {
    "while": (3, True, "#!/bin/bash\n# restarts it\nwhile true; do\n  python -m sglang.launch_server --port 1\ndone\n"),
    "until": (1, True, "until python -m sglang.launch_server; do\n  sleep 5\ndone\n"),
    "until, in its body": (1, True, "until false; do python -m sglang.launch_server; done"),
    "do on a line of its own": (1, True, "while :\ndo\n  exec_it=1\n  python -m sglang.launch_server\ndone\n"),
    "one line": (1, True, "for i in 1 2 3; do python -m sglang.launch_server --seed $i; done"),
    "continued": (2, True, "x=1\nwhile \\\n  true; do\n  python \\\n -m sglang.launch_server \\\n --port 1\ndone"),
    "nested": (1, True, "while true; do\n for i in 1; do\n  echo $i\n done\n python -m sglang.launch_server\ndone"),
    "after &&": (1, True, "cd /srv && while true; do python -m sglang.launch_server; done"),
    "function": (
        4,
        False,
        "start() {\n  python -m sglang.launch_server\n}\nwhile true; do start; sleep 1; done",
    ),
    "behind a variable": (2, False, 'CMD="$@"\nwhile true; do $CMD; done'),
    "another script": (1, False, "while true; do ./serve.sh; done"),
    "runs itself": (2, True, 'python -m sglang.launch_server\nexec "$0" "$@"'),
}

NONE = {
    "one shot": "#!/bin/bash\nexport NCCL_ALGO=Ring\nexec python -m sglang.launch_server --port 1\n",
    "waits beside it": "python -m sglang.launch_server &\nuntil curl -s :1/health; do sleep 1; done\nwait\n",
    "prepares before it": "for f in a b; do cp $f /tmp; done\npython -m sglang.launch_server\n",
    "a comment": "# while true; do\npython -m sglang.launch_server  # until it ends; for ever\n",
    "words in a text": "echo 'wait for it'\npython -m sglang.launch_server --served-model-name while\n",
    "a text for a file": "#!/bin/sh\n"
    "cat > w.sh <<'EOF'\nwhile true; do python -m sglang.launch_server; done\nEOF\n"
    "python -m sglang.launch_server",
    "a name with do in it": "python -m sglang.launch_server --docs for --until 3",
    "empty": "",
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_found(name: str) -> None:
    line, certain, text = LOOPS[name]
    found = find_loop(text, launch_words(LEADER))
    assert found is not None
    assert (found[0], found[2]) == (line, certain)
    assert found[1] in " ".join(text.replace("\\\n", " ").split("\n")) or "\\" in text


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_loop_round_the_server(name: str) -> None:
    assert find_loop(NONE[name], launch_words(LEADER)) is None


COMMANDS = st.sampled_from(
    [
        "export NCCL_ALGO=Ring",
        "cd /srv",
        "# while it lasts; do not touch",
        "echo 'for now'",
        "mkdir -p logs && date > logs/began",
        "if [ -f x ]; then\n  rm x\nfi",
        "source /venv/bin/activate",
        "ulimit -n 65535",
    ]
)
LAUNCHES = st.sampled_from(
    [
        "python -m sglang.launch_server --port 1",
        "exec python \\\n  -m sglang.launch_server \\\n  --port 1",
        "numactl -N 0 python -m sglang.launch_server > log 2>&1",
        "nohup python -m sglang.launch_server &\nwait",
    ]
)
HEADS = st.sampled_from(["while true", "while :", "until false", "for i in 1 2 3", "while sleep 5"])


@given(st.lists(COMMANDS, max_size=4), LAUNCHES, st.lists(COMMANDS, max_size=3), HEADS, st.booleans())
def test_a_script_put_into_a_loop_is_found_and_without_it_is_none(
    before: list[str], launch: str, after: list[str], head: str, one_line: bool
) -> None:
    words = launch_words(LEADER)
    assert find_loop("\n".join([*before, launch, *after]), words) is None
    body = "\n".join([*before, launch])
    looped = f"{head}; do {launch}\ndone" if one_line else f"{head}\ndo\n{body}\ndone"
    found = find_loop("\n".join([*before, looped, *after]), words)
    assert found is not None
    assert found[2], "it surely holds the server"
    assert found[0] == "\n".join([*before, ""]).count("\n") + 1


@given(st.text("abdo while until for done;&|(){}$\"'#\\\n<", max_size=80))
def test_no_script_stops_the_search(text: str) -> None:
    found = find_loop(text, ["sglang.launch_server"])
    assert found is None or 1 <= found[0] <= text.count("\n") + 1


def test_a_server_is_known_by_its_module_or_program() -> None:
    assert launch_words(LEADER) == ["sglang.launch_server"]
    assert launch_words(["/venv/bin/python", "/venv/bin/vllm", "serve", "m"]) == ["vllm"]
    assert launch_words(["python", "run_server.py"]) == ["run_server.py", "run_server"]
    assert launch_words([]) == []


def test_a_script_that_comes_through_a_pipe_is_left_to_the_shell_that_runs_it() -> None:
    """`bash <(...)` reads its script line by line: what somebody else reads of it is never run."""
    read, write = os.pipe()
    with subprocess.Popen(["bash", f"/dev/fd/{read}"], stdout=subprocess.PIPE, pass_fds=(read,)) as shell:
        os.close(read)
        assert shell.stdout is not None
        os.write(write, b"echo begins\n")
        assert shell.stdout.readline() == b"begins\n"
        shell.send_signal(signal.SIGSTOP)
        os.write(write, b"echo goes on\n")
        os.close(write)
        found = loop_above(SimpleNamespace(pid=shell.pid, argv=argv_of(shell.pid)), [LEADER])  # type: ignore[arg-type]
        shell.send_signal(signal.SIGCONT)
        assert found is not None
        assert (found["text"], found["certain"]) == ("cannot be read", False)
        assert shell.stdout.read() == b"goes on\n"
