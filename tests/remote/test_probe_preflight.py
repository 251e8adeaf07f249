"""The facts for the checks before a switch, by the real probe."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import RunningProbe, pythons, running, toy_plan, until
from tests.fixtures.proc.tree import ProcTree, make_venv, toy_server
from tuner.core.respawn import Keeper, keeper, returns
from tuner.domain import events as e

HEX = "0123456789abcdef" * 4


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "root")


def asked(probe: RunningProbe, **ask: Any) -> dict[str, Any]:
    """The facts that the probe answers with."""
    after = probe.count()
    probe.send(op="preflight", id=after, ask=ask)
    return dict(probe.first(e.PreflightResult, lambda answer: answer.id == after, after).facts)


@contextmanager
def facts_of(tree: ProcTree, key: str, *, path: Path | None = None, **ask: Any) -> Iterator[dict[str, Any]]:
    """The facts of a host with one server; `path` goes before the PATH of the probe."""
    more = {"PATH": f"{path}:{os.environ['PATH']}"} if path is not None else {}
    with running(tree.root, toy_plan(), **more) as probe:
        probe.first(e.ScanEnded)
        yield asked(probe, key=key, **ask)


def program(folder: Path, name: str, text: str) -> Path:
    """A shell script that can be run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + textwrap.dedent(text))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("python", pythons())
def test_all_facts_of_a_start(tree: ProcTree, tmp_path: Path, python: str) -> None:
    interpreter = make_venv(tmp_path / "venv", version="4.5.6")
    interpreter.chmod(0o755)
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.4\n")
    (tmp_path / "venv/lib/python3.11/site-packages/a.pth").write_text("import os; os.environ['NCCL_ALGO'] = 'Tree'\n")
    model = tmp_path / "llm"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"x" * 1000)
    key = toy_server(tree, python=interpreter, env={"HOME": str(tmp_path), "HF_TOKEN": "hf_topsecret"})
    tree.listen(100, 7001)
    with running(tree.root, toy_plan(), python=python, HOME=str(tmp_path)) as probe:
        probe.first(e.ScanEnded)
        facts = asked(
            probe,
            key=key,
            command=[str(interpreter), "-m", "toyllm.serve"],
            argv=[str(interpreter), "-m", "toyllm.serve", "--model", str(model)],
            help_argv=["/bin/sh", "-c", 'echo "  --model $HF_TOKEN"; echo "  --port $ADDED" >&2'],
            env={"ADDED": "1", "HF_TOKEN": "***"},
            cwd=str(tmp_path),
            like=f"server:{key}",
            package="toyllm",
            llm=str(model),
            port=7001,
            log_dir=str(tmp_path / "logs"),
        )
        assert "topsecret" not in repr(probe.events)
    assert facts["start"] == {"refused": None}
    assert facts["interpreter"] == {
        "program": str(interpreter),
        "path": str(interpreter),
        "exists": True,
        "executable": True,
        "version": "3.11.4",
    }
    assert facts["version"] == {"package": "toyllm", "version": "4.5.6"}
    assert sorted(facts["help"]["text"].splitlines()) == ["  --model ***", "  --port 1"]
    assert facts["cwd"] == {"path": str(tmp_path), "exists": True}
    assert facts["llm"] == {
        "name": str(model), "kind": "path", "exists": True, "config": True, "bytes": 1000, "missing": [],
    }  # fmt: skip
    (owner,) = facts["port"]["owners"]
    assert (owner["pid"], owner["user"], owner["ours"]) == (100, "root", True)
    log = facts["log"]
    assert (log["exists"], log["at"], log["writable"]) == (False, str(tmp_path), True)
    assert log["free_bytes"] > 0
    assert all(total >= free > 0 for total, free in facts["disks"]["folders"].values())
    assert facts["shm"]["total_bytes"] > 0
    assert facts["limits"]["nofile"][1] != 0
    assert facts["rights"]["may"] is True
    assert facts["rights"]["folder"] == str(tmp_path / ".gputuner")
    assert facts["holders"]["processes"] == []
    assert facts["env_files"]["settings"][0]["path"].endswith("a.pth")
    assert keeper(facts).refusal == ""


@pytest.mark.parametrize("like", [True, False], ids=["like that server", "by a recipe"])
def test_no_program_of_another_user_s_server_is_run(tree: ProcTree, tmp_path: Path, like: bool) -> None:
    """It would run with the rights of whoever looks, who often is root, though the server was only looked at."""
    key = toy_server(tree)
    uid = os.getuid() + 1
    (tree.root / "proc/100/status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    mark = tmp_path / "was-run"
    ask = {"command": ["/bin/sh"], "help_argv": ["/bin/sh", "-c", f"touch {mark}"], "like": f"server:{key}" * like}
    with facts_of(tree, key, **ask) as facts:
        assert "not run" in facts["help"]["problem"]
    assert not mark.exists()


@pytest.mark.parametrize(
    ("uid", "cgroup"),
    [(os.getuid() + 1, "0::/system.slice/llm.scope"), (os.getuid(), f"0::/system.slice/docker-{'0f' * 32}.scope")],
    ids=["another user's", "in a container"],
)
def test_no_supervisorctl_of_another_user_or_a_container_is_run(
    tree: ProcTree, tmp_path: Path, uid: int, cgroup: str
) -> None:
    """Whoever names a process `supervisord` chooses what lies beside it, and what its configuration loads."""
    mark, bin_ = tmp_path / "was-run", tmp_path / "bin"
    daemon = program(bin_, "supervisord", "")
    program(bin_, "supervisorctl", f"touch {mark}; echo 100\n")
    key = toy_server(tree, env={"PATH": "/usr/bin", "SUPERVISOR_PROCESS_NAME": "llm", "SUPERVISOR_GROUP_NAME": "llm"})
    tree.add(90, ["/usr/bin/python3", str(daemon)], ticks=500_099, uid=uid, cgroup=cgroup)
    for pid in (100, 101, 102):
        (tree.proc / str(pid) / "cgroup").write_text(f"{cgroup}\n")
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        facts = asked(probe, key=key)
        keeps = keeper(facts)
        assert keeps.refusal
        assert keeps.stop == ()
        if uid != os.getuid():
            assert f"connect as {facts['manager']['supervisord']['owner']}," in keeps.way_out
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone, lambda gone: gone.key == key)
        assert asked(probe, ended=key)["returning"] == {"by": None}
    assert not mark.exists()


def test_files_of_the_host_that_set_variables(tree: ProcTree, tmp_path: Path) -> None:
    (tree.root / "etc").mkdir()
    (tree.root / "etc/nccl.conf").write_text("# all hosts\nNCCL_P2P_LEVEL=SYS\n")
    (tree.root / "etc/environment").write_text("CUDA_MODULE_LOADING=LAZY\nEDITOR=vi\n")
    python = make_venv(tmp_path / "venv")
    env = {"HOME": str(tmp_path)}
    with facts_of(tree, toy_server(tree, python=python, env=env), command=[str(python)], env=env) as facts:
        assert [(each["path"], each["line"], each["name"], each["how"]) for each in facts["env_files"]["settings"]] == [
            ("/etc/nccl.conf", 2, "NCCL_P2P_LEVEL", "default"),
            ("/etc/environment", 1, "CUDA_MODULE_LOADING", "login"),
        ]


def test_nothing_is_written_on_the_host(tree: ProcTree, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    key = toy_server(tree, env={"HOME": str(home)})
    with running(tree.root, toy_plan(), HOME=str(home)) as probe:
        probe.first(e.ScanEnded)
        asked(probe, key=key, command=["python"], like=f"server:{key}", llm="a/b", port=7001)
    assert list(home.iterdir()) == []


def test_only_what_was_asked_is_answered(tree: ProcTree) -> None:
    with facts_of(tree, toy_server(tree)) as facts:
        assert set(facts) == {"rights", "holders", "manager"}


def test_a_secret_that_cannot_be_had_is_told_without_stopping_the_rest(tree: ProcTree) -> None:
    key = toy_server(tree)
    with facts_of(
        tree, key, command=["sh"], argv=["sh", "--api-key", "***"], env={"OTHER_TOKEN": "***"}, like=f"server:{key}"
    ) as facts:
        assert "does not have the secret value" in facts["start"]["refused"]
        assert facts["start"]["hint"]
        assert facts["interpreter"]["exists"]


@pytest.mark.parametrize(
    ("text", "words"),
    [("echo torch is missing; exit 3", "ended with 3: torch is missing"), ("exit 0", None)],
)
def test_the_help_says_why_it_failed(tree: ProcTree, tmp_path: Path, text: str, words: str | None) -> None:
    script = program(tmp_path, "engine", text)
    with facts_of(tree, toy_server(tree), help_argv=[str(script), "--help"]) as facts:
        assert words is None or words in facts["help"]["problem"]
        assert words is not None or facts["help"]["text"] == ""


def test_a_help_that_is_not_there(tree: ProcTree) -> None:
    with facts_of(tree, toy_server(tree), help_argv=["/opt/none/python", "--help"]) as facts:
        assert "/opt/none/python is not there" in facts["help"]["problem"]


# -- the port ---------------------------------------------------------------------------------------------------------


def test_a_free_port_and_one_of_another(tree: ProcTree) -> None:
    key = toy_server(tree)
    tree.add(300, ["nginx", "--token", "topsecret"], uid=1)
    tree.listen(300, 7002, uid=1)
    tree.listen(300, 7003, uid=1, held=False)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        assert asked(probe, key=key, port=7009)["port"] == {"port": 7009, "owners": []}
        (owner,) = asked(probe, key=key, port=7002)["port"]["owners"]
        assert (owner["pid"], owner["title"], owner["ours"]) == (300, "nginx --token ***", False)
        assert owner["user"] not in (None, "root")
        (hidden,) = asked(probe, key=key, port=7003)["port"]["owners"]
        assert (hidden["pid"], hidden["user"], hidden["ours"]) == (None, owner["user"], False)
        (without,) = asked(probe, port=7002)["port"]["owners"]
        assert without["pid"] == 300


def test_a_real_port_and_its_real_owner() -> None:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with running(None, toy_plan()) as probe:
            probe.first(e.ScanEnded)
            (owner,) = asked(probe, port=port)["port"]["owners"]
            assert (owner["pid"], owner["ours"]) == (os.getpid(), False)


# -- rights -----------------------------------------------------------------------------------------------------------


def test_another_users_server_and_who_may_stop_it(tree: ProcTree) -> None:
    key = toy_server(tree)
    (tree.proc / "100/status").write_text("Name:\tx\nUid:\t1\t1\t1\t1\n")
    with facts_of(tree, key) as facts:
        rights = facts["rights"]
        assert rights["server_user"] not in (None, "root")
        # Root may signal everybody, others only their own.
        assert rights["may"] is (os.getuid() == 0)


# -- the LLM ----------------------------------------------------------------------------------------------------------


def test_an_llm_on_the_simulated_hosts_disk(tree: ProcTree) -> None:
    folder = tree.root / "models/x"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model-1.safetensors").write_bytes(b"1234")
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        found = asked(probe, llm="/models/x")["llm"]
        assert (found["exists"], found["config"], found["bytes"]) == (True, True, 4)
        assert found["missing"] == ["model-2.safetensors"]
        assert asked(probe, llm="/models/none")["llm"]["exists"] is False
        assert asked(probe, llm="s3://bucket/x")["llm"]["kind"] == "remote"


def test_an_llm_of_the_hub(tree: ProcTree, tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--org--llm/snapshots/0123456789"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"1234")
    refs = tmp_path / "hub/models--org--llm/refs"
    refs.mkdir()
    (refs / "main").write_text("0123456789")
    env = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        found = asked(probe, llm="org/llm", env=env)["llm"]
        assert (found["kind"], found["cached"], found["bytes"]) == ("hub", True, 4)
        other = asked(probe, llm="org/other", env=env)["llm"]
        assert (other["cached"], other["offline"], other["cache"]) == (False, "HF_HUB_OFFLINE", str(tmp_path / "hub"))
        (snapshot / "model.safetensors").unlink()
        assert asked(probe, llm="org/llm", env=env)["llm"]["cached"] is False


# -- who would start it again -----------------------------------------------------------------------------------------


def systemctl(folder: Path, log: Path, **properties: str) -> Path:
    """A systemctl that tells of one unit and writes down how it was called."""
    told = {
        "LoadState": "loaded", "ActiveState": "active", "MainPID": "100", "Restart": "always",
        "TimeoutStopUSec": "1min 30s", "FragmentPath": "", "DropInPaths": "", "Transient": "no", "ControlGroup": "",
        **properties,
    }  # fmt: skip
    lines = "\n".join(f"echo {shlex.quote(f'{name}={value}')}" for name, value in told.items())
    program(folder, "systemctl", f'echo "$@" >> {log}\n{lines}\n')
    return folder


def in_unit(tree: ProcTree, cgroup: str = "0::/system.slice/toy.service") -> str:
    key = toy_server(tree)
    for pid in (100, 101, 102):
        (tree.proc / str(pid) / "cgroup").write_text(cgroup + "\n")
    tree.change(100, ppid=1)
    tree.remove(90)
    return key


def test_a_unit_that_restarts_its_server(tree: ProcTree, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    unit = tmp_path / "toy.service"
    unit.write_text('[Service]\nEnvironment="NCCL_ALGO=Ring" HF_TOKEN=hf_topsecret\nExecStart=/x\n')
    path = systemctl(tmp_path / "bin", log, FragmentPath=str(unit))
    with facts_of(tree, in_unit(tree), path=path) as facts:
        part = facts["manager"]["systemd"]
        assert (part["unit"], part["user"], part["restart"], part["main"]) == ("toy.service", False, "always", True)
        assert (part["timeout_stop_s"], part["others"], part["transient"]) == (90.0, [], False)
        assert part["may"] is (os.getuid() == 0)
        assert part["settings"][0] == {
            "path": str(unit), "line": 2, "name": "NCCL_ALGO", "value": "Ring", "how": "unit",
        }  # fmt: skip
        assert "topsecret" not in repr(facts)
        if os.getuid() == 0:
            assert keeper(facts).stop == ("systemctl", "stop", "toy.service")
    (call,) = log.read_text().splitlines()
    assert call.startswith("show --no-pager --property=")
    assert call.endswith(" -- toy.service")


def test_what_else_lives_in_the_unit(tree: ProcTree, tmp_path: Path) -> None:
    key = in_unit(tree)
    tree.add(400, ["redis-server"])
    group = tree.root / "sys/fs/cgroup/system.slice/toy.service"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("100\n101\n102\n400\n")
    path = systemctl(tmp_path / "bin", tmp_path / "calls", ControlGroup="/system.slice/toy.service")
    with facts_of(tree, key, path=path) as facts:
        assert facts["manager"]["systemd"]["others"] == [{"pid": 400, "title": "redis-server"}]
        assert "redis-server" in keeper(facts).refusal


@pytest.mark.parametrize("problem", ["exit 1", "echo LoadState=not-found"])
def test_a_unit_that_cannot_be_asked(tree: ProcTree, tmp_path: Path, problem: str) -> None:
    program(tmp_path / "bin", "systemctl", problem)
    with facts_of(tree, in_unit(tree), path=tmp_path / "bin") as facts:
        assert facts["manager"]["systemd"]["problem"]
        assert keeper(facts).refusal


def test_a_users_unit_is_asked_of_the_users_manager(tree: ProcTree, tmp_path: Path) -> None:
    me = os.getuid()
    log = tmp_path / "calls"
    path = systemctl(tmp_path / "bin", log)
    group = f"0::/user.slice/user-{me}.slice/user@{me}.service/app.slice/toy.service"
    with facts_of(tree, in_unit(tree, group), path=path) as facts:
        assert facts["manager"]["systemd"]["may"] is True
        assert keeper(facts).stop[0] == "env"
    assert log.read_text().startswith("--user show")
    other = group.replace(f"user@{me}", "user@4711")
    with facts_of(tree, in_unit(tree, other), path=path) as facts:
        assert keeper(facts).refusal


@pytest.mark.parametrize(
    ("cgroup", "kind"),
    [
        (f"0::/system.slice/docker-{HEX}.scope", "docker"),
        (f"0::/machine.slice/libpod-{HEX}.scope", "podman"),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
            f"0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice/cri-containerd-{HEX}.scope",
            "kubernetes",
        ),
    ],
)
def test_containers_are_refused(tree: ProcTree, cgroup: str, kind: str) -> None:
    with facts_of(tree, in_unit(tree, cgroup)) as facts:
        assert facts["manager"]["container"]["kind"] == kind
        assert "systemd" not in facts["manager"]
        assert keeper(facts).refusal


SYSTEMD = Path(__file__).parents[1] / "golden/managers/systemd-252"
"""What a real systemd told of its units, and the kernel of the servers in them: see the README there."""


def recorded(tree: ProcTree, name: str, bin_: Path, above: list[str] | None = None) -> str:
    """A server in a recorded unit. `above`: the unit's main process, where that is not the server itself."""
    key = toy_server(tree)
    tree.remove(90)
    if above is not None:
        tree.add(90, above, ppid=1, ticks=500_099)
    tree.change(100, ppid=1 if above is None else 90)
    for pid in (100, 101, 102):
        (tree.proc / str(pid) / "cgroup").write_text((SYSTEMD / f"{name}.cgroup").read_text())
    text = re.sub(r"(?m)^MainPID=(?!0$).*", f"MainPID={100 if above is None else 90}", shown(name))
    bin_.mkdir()
    (bin_ / "shown").write_text(text.replace("/etc/systemd/system", str(bin_)))
    triggers = SYSTEMD / f"{name}.triggers"
    program(bin_, "systemctl", f'case "$*" in *=Id,*) cat {triggers};; *) cat {bin_}/shown;; esac\n')
    return key


def shown(name: str) -> str:
    return (SYSTEMD / f"{name}.show").read_text()


@pytest.mark.skipif(os.getuid() != 0, reason="the records are root's")
@pytest.mark.parametrize(
    ("name", "unit", "restart", "limit_s"),
    [
        ("restart-always-drop-ins", "sglang.service", "always", 90.0),
        ("template-in-slice", r"llm@toy\x2dtwo.service", "always", 320.0),
        ("transient", "transient-llm.service", "no", 90.0),
    ],
)
def test_units_as_systemd_tells_of_them(
    tree: ProcTree, tmp_path: Path, name: str, unit: str, restart: str, limit_s: float
) -> None:
    with facts_of(tree, recorded(tree, name, tmp_path / "bin"), path=tmp_path / "bin") as facts:
        part = facts["manager"]["systemd"]
        assert (part["unit"], part["restart"], part["main"], part["timeout_stop_s"]) == (unit, restart, True, limit_s)
        assert keeper(facts).stop == ("systemctl", "stop", unit)
        assert bool(keeper(facts).start) is (name != "transient")


@pytest.mark.skipif(os.getuid() != 0, reason="the records are root's")
def test_units_whose_main_process_is_not_the_server(tree: ProcTree, tmp_path: Path) -> None:
    key = recorded(tree, "script-no-stop-limit", tmp_path / "bin", ["/bin/bash", "/opt/run.sh"])
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        part = facts["manager"]["systemd"]
        assert (part["main"], part["wraps"], part["direct"], part["timeout_stop_s"]) == (False, True, True, None)
        assert keeper(facts).stop == ("systemctl", "stop", "wrap.service")


@pytest.mark.skipif(os.getuid() != 0, reason="the records are root's")
@pytest.mark.parametrize(
    "shell",
    [["bash"], ["-bash"], ["/bin/bash", "-l"], ["/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "/run/k.json"]],
)
def test_a_unit_is_not_stopped_for_what_was_typed_into_a_shell_or_a_notebook_below_it(
    tree: ProcTree, tmp_path: Path, shell: list[str]
) -> None:
    """A notebook that has nothing else open: its unit would take it along."""
    key = recorded(tree, "script-no-stop-limit", tmp_path / "bin", ["/usr/bin/python3", "/opt/jupyter-lab"])
    tree.add(95, shell, ppid=90, ticks=500_099, cgroup=(SYSTEMD / "script-no-stop-limit.cgroup").read_text())
    tree.change(100, ppid=95)
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        assert (facts["manager"]["systemd"]["wraps"], facts["manager"]["systemd"]["others"]) == (True, [])
        assert (keeper(facts).stop, keeper(facts).refusal) == ((), "")


def test_a_forking_unit_of_which_systemd_knows_no_process(tree: ProcTree, tmp_path: Path) -> None:
    """It starts nothing again, and goes on without the server."""
    key = recorded(tree, "forking-without-main", tmp_path / "bin")
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        assert (facts["manager"]["systemd"]["main_pid"], keeper(facts).words) == (0, "")


@pytest.mark.parametrize("name", ["restart-always-drop-ins", "template-in-slice"])
def test_drop_ins_with_a_space_or_a_backslash_in_their_path_are_read(tree: ProcTree, tmp_path: Path, name: str) -> None:
    bin_ = tmp_path / "bin"
    key = recorded(tree, name, bin_)
    own = (
        bin_
        / {
            "restart-always-drop-ins": "sglang.service.d/10 own.conf",
            "template-in-slice": r"llm@toy\x2dtwo.service.d/10.conf",
        }[name]
    )
    own.parent.mkdir()
    own.write_text('[Service]\nEnvironment="NCCL_ALGO=Tree"\n')
    with facts_of(tree, key, path=bin_) as facts:
        told = facts["manager"]["systemd"]["settings"]
        assert [(each["path"], each["name"], each["value"]) for each in told] == [(str(own), "NCCL_ALGO", "Tree")]


@pytest.mark.skipif(os.getuid() != 0, reason="the records are root's")
def test_what_would_start_a_unit_again_is_stopped_with_it(tree: ProcTree, tmp_path: Path) -> None:
    """Its timer runs; its path unit does not, and is not started on the way back."""
    key = recorded(tree, "timer", tmp_path / "bin")
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        assert facts["manager"]["systemd"]["triggers"] == ["sglang.timer"]
        keeps = keeper(facts)
        assert keeps.words == "systemd unit sglang.service, Restart=always, started by sglang.timer"
        assert keeps.stop == ("systemctl", "stop", "sglang.timer", "sglang.service")
        assert keeps.start == ("systemctl", "start", "sglang.timer", "sglang.service")


@pytest.mark.skipif(os.getuid() != 0, reason="the records are root's")
def test_a_unit_is_left_alone_where_it_cannot_be_asked_what_starts_it(tree: ProcTree, tmp_path: Path) -> None:
    key = recorded(tree, "timer", tmp_path / "bin")
    program(tmp_path / "bin", "systemctl", f'case "$*" in *=Id,*) exit 4;; *) cat {tmp_path}/bin/shown;; esac\n')
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        keeps = keeper(facts)
        assert keeps.stop == ()
        assert "cannot be read: systemctl show sglang.path sglang.timer: exit code 4" in keeps.refusal


@pytest.mark.skipif(os.getuid() != 0, reason="the records are root's")
def test_what_starts_a_unit_has_a_backslash_in_its_name(tree: ProcTree, tmp_path: Path) -> None:
    """Systemd quotes it in a list, as it does paths."""
    key = recorded(tree, "timer", tmp_path / "bin")
    told = shown("timer").replace("sglang.timer", r'"llm\\x2dtwo.timer"')
    (tmp_path / "bin/shown").write_text(told)
    (tmp_path / "bin/states").write_text("Id=llm\\x2dtwo.timer\nActiveState=active\n")
    states_asked = f'echo "$*" > {tmp_path}/asked; cat {tmp_path}/bin/states'
    text = f'case "$*" in *=Id,*) {states_asked};; *) cat {tmp_path}/bin/shown;; esac\n'
    program(tmp_path / "bin", "systemctl", text)
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        assert facts["manager"]["systemd"]["triggers"] == [r"llm\x2dtwo.timer"]
    assert (tmp_path / "asked").read_text().split()[-1] == r"llm\x2dtwo.timer"


@pytest.mark.parametrize("name", ["absent", "masked"])
def test_a_unit_that_systemd_does_not_have(tree: ProcTree, tmp_path: Path, name: str) -> None:
    key = in_unit(tree)
    program(tmp_path / "bin", "systemctl", f"cat {SYSTEMD}/{name}.show\n")
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        assert bool(facts["manager"]["systemd"].get("problem")) is (name == "absent")


def test_a_unit_that_waits_to_start_its_server_again(tree: ProcTree, tmp_path: Path) -> None:
    key = recorded(tree, "restart-always-drop-ins", tmp_path / "bin")
    with running(tree.root, toy_plan(), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}") as probe:
        probe.first(e.ScanEnded)
        tree.remove(100, 101, 102)
        probe.first(e.ServerGone, lambda gone: gone.key == key)
        assert asked(probe, ended=key)["returning"] == {"by": None}, "it runs, with another process"
        (tmp_path / "bin/shown").write_text(shown("auto-restart"))
        facts = asked(probe, ended=key)
        back = returns(facts)
        assert back is not None
        assert "systemctl stop sglang.service" in back.way_out


SLURM = SYSTEMD.parent / "slurm-22.05"


@pytest.mark.parametrize("hidden", [False, True], ids=["own", "another user's"])
@pytest.mark.parametrize(
    "record", sorted(SLURM.glob("*/*.parents")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_jobs_as_slurm_keeps_them(tree: ProcTree, tmp_path: Path, record: Path, hidden: bool) -> None:
    """Where its environment is hidden, the title of Slurm's daemon above the step still names the job."""
    told = dict(line.split("=", 1) for line in record.with_suffix(".env").read_text().splitlines())
    key = toy_server(tree, env={} if hidden else told)
    tree.remove(90)
    above = [json.loads(line) for line in record.read_text().splitlines()]
    for i, argv in enumerate(above):
        tree.add(90 - i, argv, ppid=1 if i == len(above) - 1 else 89 - i, ticks=500_098)
    for pid in (100, 101, 102):
        (tree.proc / str(pid) / "cgroup").write_text(record.with_suffix(".cgroup").read_text())
    program(tmp_path / "bin", "systemctl", f"cat {SYSTEMD}/forking-without-main.show\n")
    with facts_of(tree, key, path=tmp_path / "bin") as facts:
        if hidden and record.stem == "salloc":
            assert keeper(facts).doubt, "nothing but its environment names the job"
            return
        assert facts["manager"]["slurm"] == {"job": told["SLURM_JOB_ID"]}
        assert f"Slurm job {told['SLURM_JOB_ID']}" in keeper(facts).refusal
        assert keeper(facts).stop == ()


def test_a_server_typed_into_the_shell_of_salloc_is_the_operator_s(tree: ProcTree) -> None:
    """The job is the shell's, and goes on without the server."""
    key = toy_server(tree, env={"SLURM_JOB_ID": "4"})
    tree.add(90, ["-bash"], ppid=80, ticks=500_099)
    tree.add(80, ["salloc", "--gpus=2"], ppid=1, ticks=500_098)
    with facts_of(tree, key) as facts:
        assert "slurm" not in facts["manager"]
        assert keeper(facts) == Keeper()


def test_a_slurm_job_is_refused(tree: ProcTree) -> None:
    with facts_of(tree, in_unit(tree, "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0")) as facts:
        assert facts["manager"]["slurm"] == {"job": "4711"}
        assert keeper(facts).refusal


SCRIPTS = {
    "while true; do python -m toyllm.serve; sleep 5; done\n": True,
    "export NCCL_ALGO=Ring\npython -m toyllm.serve --port 7001\n": False,
}


@pytest.mark.parametrize("text", SCRIPTS)
def test_a_script_above_is_read_from_its_own_folder(tree: ProcTree, tmp_path: Path, text: str) -> None:
    (tmp_path / "run.sh").write_text(text)
    key = toy_server(tree)
    tree.add(90, ["bash", "run.sh", "--now"], ticks=500_099, cwd=str(tmp_path))
    with facts_of(tree, key) as facts:
        found = [(each["pid"], each["file"], each["line"]) for each in facts["manager"]["loops"]]
        assert found == ([(90, str(tmp_path / "run.sh"), 1)] if SCRIPTS[text] else [])
        assert bool(keeper(facts).refusal) is SCRIPTS[text]


@pytest.mark.parametrize(
    ("argv", "loops"),
    [
        (["bash", "-c", "while :; do python -m toyllm.serve; done"], 1),
        (["sh", "-ec", "until python -m toyllm.serve; do :; done"], 1),
        (["bash", "-c", "python -m toyllm.serve"], 0),
        (["-bash"], 0),
        (["bash", "-l"], 0),
        (["zsh", "-i"], 0),
        (["nohup", "bash"], 0),
        (["tmux", "new", "-s", "llm"], 0),
        (["bash", "/gone/run.sh"], 1),
    ],
)
def test_shells_above(tree: ProcTree, argv: list[str], loops: int) -> None:
    key = toy_server(tree)
    tree.add(90, argv, ticks=500_099)
    with facts_of(tree, key) as facts:
        assert len(facts["manager"]["loops"]) == loops
        assert facts["manager"]["watchers"] == facts["manager"]["starters"] == []


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("for step in lint tests; do run_step; done\n", None),
        ("step_tests() { .ci/do tests; }\nfor step in lint tests; do\n  step_$step\ndone\n", None),
        ("while true; do ./everything; done\n", None),
        ("while true; do python launch_all.py; done\n", True),
        ("while true; do python -m toyllm.serve; done\n", True),
    ],
)
def test_a_loop_above_an_unknown_program_counts_where_it_names_what_runs(
    tree: ProcTree, tmp_path: Path, text: str, certain: bool | None
) -> None:
    (tmp_path / "ci.sh").write_text(text)
    key = toy_server(tree)
    tree.add(90, ["/v/bin/python", "launch_all.py"], ppid=85, ticks=500_099)
    tree.add(85, ["python3", ".ci/do", "tests"], ppid=80, ticks=500_099)
    tree.add(80, ["bash", "ci.sh"], ticks=500_098, cwd=str(tmp_path))
    with facts_of(tree, key) as facts:
        assert [each["certain"] for each in facts["manager"]["loops"]] == ([] if certain is None else [certain])
        assert bool(keeper(facts).refusal) is bool(certain)
        assert certain or "launch_all.py" in keeper(facts).doubt


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["runsv", "toy"], "runit"),
        (["node", "/usr/bin/nodemon", "x"], "nodemon"),
        (["PM2 v5.3.0: God Daemon (/root/.pm2)"], "pm2"),
        (["/v/bin/python", "/v/bin/circusd", "c.ini"], "circus"),
    ],
)
def test_watchers_above(tree: ProcTree, argv: list[str], kind: str) -> None:
    key = toy_server(tree)
    tree.add(90, argv, ticks=500_099)
    with facts_of(tree, key) as facts:
        assert [each["kind"] for each in facts["manager"]["watchers"]] == [kind]


@pytest.mark.parametrize("argv", [["/v/bin/python", "launch_all.py"], ["/usr/sbin/cron", "-f"]])
def test_a_program_of_which_nobody_knows_is_a_doubt(tree: ProcTree, argv: list[str]) -> None:
    key = toy_server(tree)
    tree.add(90, argv, ticks=500_099)
    with facts_of(tree, key) as facts:
        assert [each["command"] for each in facts["manager"]["starters"]] == [" ".join(argv)]
        assert keeper(facts).doubt
        assert argv[0].rpartition("/")[2] in keeper(facts).doubt


def test_the_supervisor_of_a_run_starts_nothing_again(tree: ProcTree) -> None:
    key = in_unit(tree, "0::/system.slice/gputuner-20261130-101523-a1b2c3d4.service")
    folder = "/root/.gputuner/runs/20261130-101523-a1b2c3d4"
    tree.add(90, ["/usr/bin/python3", "-ISB", f"{folder}/supervisor.py", folder], ticks=500_099)
    tree.change(100, ppid=90)
    with facts_of(tree, key) as facts:
        assert facts["manager"] == {"loops": [], "watchers": [], "starters": []}


def test_a_real_loop_round_a_real_process(tmp_path: Path) -> None:
    package = tmp_path / "toyllm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "serve.py").write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()\n")
    (tmp_path / "run.sh").write_text(f"# restarts\nwhile true; do\n  {sys.executable} -m toyllm.serve <&0\ndone\n")
    shell = subprocess.Popen(
        ["bash", "run.sh"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    try:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        with running(None, toy_plan()) as probe:
            key = probe.server(lambda s: s.cwd == str(tmp_path)).key
            facts = asked(probe, key=key, command=["python"])
            (loop,) = facts["manager"]["loops"]
            assert (loop["pid"], loop["line"], loop["certain"]) == (shell.pid, 2, True)
            assert facts["rights"]["may"] is True
            assert facts["limits"]["server_nofile"] == facts["limits"]["nofile"]
            assert f"kill {shell.pid}" in keeper(facts).way_out
    finally:
        shell.kill()
        assert shell.stdin is not None
        shell.stdin.close()
        shell.wait()
        assert shell.stdout is not None
        until(lambda: shell.stdout is not None and shell.stdout.read() is not None)
        shell.stdout.close()
