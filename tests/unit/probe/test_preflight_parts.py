"""Parts of the pre-flight that need no probe: programs, help texts, LLM folders, control groups, spans of time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tuner.probe.agent import limits
from tuner.probe.agent.children import Children
from tuner.probe.agent.help_text import MOST_BYTES, help_of
from tuner.probe.agent.llm_files import hub_cache, llm_facts
from tuner.probe.agent.managers import seconds_of
from tuner.probe.agent.programs import find_program, interpreter_facts
from tuner.probe.supervisor import launching, orders


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        ("tool", "none:bin", "bin/tool"),
        ("tool", "", "tool"),
        ("tool", "data:bin", "bin/tool"),
        ("tool", "data", PermissionError),
        ("bin/tool", "", "bin/tool"),
        ("./bin", "", PermissionError),
        ("other", "bin", FileNotFoundError),
        ("bin/other", "", FileNotFoundError),
    ],
)
def test_the_checks_find_the_program_that_the_launch_runs(
    tmp_path: Path, name: str, path: str, found: str | type[OSError]
) -> None:
    script(tmp_path / "bin/tool", "")
    script(tmp_path / "tool", "")
    script(tmp_path / "data/tool", "", 0o644)
    env = {"PATH": path}
    facts = interpreter_facts([name], env, str(tmp_path))
    assert (facts["exists"], facts["executable"]) == (found is not FileNotFoundError, isinstance(found, str))
    launch = orders.Launch({"argv": [name], "cwd": str(tmp_path)})
    if isinstance(found, str):
        assert launching.program_of(launch, env) == find_program(name, env, str(tmp_path)) == str(tmp_path / found)
    else:
        with pytest.raises(launching.LaunchFailed, match="not executable" if facts["exists"] else "not there"):
            launching.program_of(launch, env)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment with a Python and a program that it runs."""
    script(tmp_path / "venv/bin/python3", "")
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.12.3.final.0\n")
    script(tmp_path / "venv/bin/vllm", f"#!{tmp_path}/venv/bin/python3\nimport x\n")
    return tmp_path / "venv"


def test_a_program_is_run_by_the_python_of_its_first_line(venv: Path) -> None:
    found = interpreter_facts(["vllm", "serve"], {"PATH": f"/none:{venv}/bin"}, "/")
    assert found == {
        "program": "vllm",
        "path": f"{venv}/bin/python3",
        "exists": True,
        "executable": True,
        "version": "3.12.3",
    }


@pytest.mark.parametrize(
    "first",
    [
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S A=1 python3 -u\n",
        '#!/bin/sh\n\'\'\'exec\' "{}/bin/python3" "$0" "$@"\n',
    ],
)
def test_other_first_lines_that_name_a_python(venv: Path, first: str) -> None:
    name = script(venv / "bin/tool", first.replace("{}", str(venv)))
    assert interpreter_facts([str(name)], {"PATH": f"{venv}/bin"}, "/")["path"] == f"{venv}/bin/python3"


def test_a_wrapper_runs_the_python_behind_it(venv: Path) -> None:
    command = ["env", "A=1", f"{venv}/bin/python3", "-m", "x"]
    assert interpreter_facts(command, {"PATH": os.environ["PATH"]}, "/")["path"] == f"{venv}/bin/python3"


def test_a_python_relative_to_the_working_folder(venv: Path) -> None:
    found = interpreter_facts(["venv/bin/python3", "-m", "x"], {}, str(venv.parent))
    assert (found["path"], found["exists"]) == (f"{venv}/bin/python3", True)


def test_what_is_missing_broken_or_may_not_run(venv: Path, tmp_path: Path) -> None:
    assert interpreter_facts(["/none/python"], {}, "/")["exists"] is False
    assert interpreter_facts(["python9"], {"PATH": str(tmp_path)}, "/")["exists"] is False
    (venv / "bin/python").symlink_to("/none/python3.11")
    assert "/none/python3.11" in interpreter_facts([f"{venv}/bin/python"], {}, "/")["broken"]
    script(venv / "bin/tool", "#!/none/python3\n")
    assert "/none/python3" in interpreter_facts([f"{venv}/bin/tool"], {}, "/")["broken"]
    (venv / "bin/python3").chmod(0o644)
    assert interpreter_facts([f"{venv}/bin/python3"], {}, "/")["executable"] is False
    assert find_program("python3", {"PATH": f"{venv}/bin"}, "/") == f"{venv}/bin/python3", "found, and told as it is"


# -- help texts ---------------------------------------------------------------------------------------------


def helped(code: str, limit_s: float = 20.0, **env: str) -> dict[str, object]:
    children = Children()
    found = help_of(children, [sys.executable, "-c", code], {"PATH": os.environ["PATH"], **env}, "/", limit_s)
    children.end_all()
    return found


def test_a_help_text_is_bounded_and_masked() -> None:
    found = helped("import os; print('  --key ' + os.environ['X_TOKEN']); print('x' * 3_000_000)", X_TOKEN="hidden-one")
    assert str(found["text"]).startswith("  --key ***\n")
    assert len(str(found["text"])) == MOST_BYTES - len("hidden-one") + len("***")


def test_a_help_that_takes_too_long_is_ended() -> None:
    began = time.monotonic()
    found = helped("import time\nprint('loading', flush=True)\nimport signal\nsignal.pause()", limit_s=1.0)
    assert "did not end within 1 s: loading" in str(found["problem"])
    assert time.monotonic() - began < 10


def test_a_child_that_keeps_the_output_open_is_not_waited_for() -> None:
    code = "import os, signal\nif os.fork() == 0:\n signal.alarm(8)\n signal.pause()\nprint('done', flush=True)"
    began = time.monotonic()
    assert "did not end" in str(helped(code, limit_s=1.0)["problem"])
    assert time.monotonic() - began < 6


def test_the_working_folder_of_the_help_must_be_there() -> None:
    assert "/none" in help_of(Children(), ["sh"], {"PATH": os.environ["PATH"]}, "/none", 5.0)["problem"]


# -- LLMs ---------------------------------------------------------------------------------------------


def test_folders_files_and_names_of_llms(tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    assert llm_facts(str(folder), {}, "/", "/root")["config"] is False
    (folder / "params.json").write_text("{}")
    assert llm_facts("./llm", {}, str(tmp_path), "/root")["config"] is True
    assert llm_facts("llm", {}, str(tmp_path), "/root")["kind"] == "path", "a folder below the working folder"
    assert llm_facts("~/llm", {}, "/", str(tmp_path))["exists"] is True
    (tmp_path / "a.gguf").write_bytes(b"1234")
    assert llm_facts(str(tmp_path / "a.gguf"), {}, "/", "/root")["config"] is True
    assert llm_facts("org/llm", {}, str(tmp_path), str(tmp_path))["kind"] == "hub"
    assert llm_facts("org/llm", {"VLLM_USE_MODELSCOPE": "True"}, "/", str(tmp_path))["kind"] == "remote"
    assert llm_facts("a/b/c", {}, "/", str(tmp_path))["exists"] is False


@pytest.mark.parametrize(
    ("env", "cache"),
    [
        ({}, "/h/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": "/hf"}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "~/x"}, "/h/x"),
    ],
)
def test_where_the_hub_keeps_what_it_downloads(env: dict[str, str], cache: str) -> None:
    assert hub_cache(env, "/h") == cache


# -- limits and times ---------------------------------------------------------------------------------------------


def test_the_control_group_with_the_least_room_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(limits, "SYS", str(tmp_path / "sys"))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/a.slice/b.scope\n")
    assert limits.cgroup_memory() is None
    group = tmp_path / "sys/fs/cgroup/a.slice"
    (group / "b.scope").mkdir(parents=True)
    (group / "b.scope/memory.max").write_text("max\n")
    assert limits.cgroup_memory() is None
    (group / "b.scope/memory.max").write_text("1000\n")
    (group / "b.scope/memory.current").write_text("100\n")
    (group / "memory.max").write_text("2000\n")
    (group / "memory.current").write_text("1500\n")
    assert limits.cgroup_memory() == (2000, 1500)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/x\n0::/\n")
    old = tmp_path / "sys/fs/cgroup/memory/x"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("500\n")
    (old / "memory.usage_in_bytes").write_text("1\n")
    assert limits.cgroup_memory() == (500, 1)


def test_limits_of_this_process_and_of_another() -> None:
    found = limits.limit_facts(os.getpid())
    for name in ("nofile", "nproc", "memlock"):
        assert found[name] == found["server_" + name]
    assert "server_nofile" not in limits.limit_facts(None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1min 30s", 90.0), ("90s", 90.0), ("500ms", 0.5), ("infinity", None), ("", None), ("1h", 3600.0)],
)
def test_spans_of_time_as_systemd_prints_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds
