"""Whether a script would start a server again."""

from __future__ import annotations

import pytest

from tuner.probe.agent.shell_loops import find_loop, launch_words

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


def test_a_server_is_known_by_its_module_or_program() -> None:
    assert launch_words(LEADER) == ["sglang.launch_server"]
    assert launch_words(["/venv/bin/python", "/venv/bin/vllm", "serve", "m"]) == ["vllm"]
    assert launch_words(["python", "run_server.py"]) == ["run_server.py", "run_server"]
    assert launch_words([]) == []
