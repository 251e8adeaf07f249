"""Servers found in /proc: who they are, what belongs to them, and when they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.proc.acting import toy_process
from tests.fixtures.proc.running import running, toy_plan, until
from tests.fixtures.proc.tree import HZ, ProcTree, make_venv, toy_server
from tuner.domain import events as e
from tuner.probe.agent import processes
from tuner.simhost import tree as simhost_tree


@pytest.fixture
def tree(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "root")


def test_an_identity_is_complete(tree: ProcTree, tmp_path: Path) -> None:
    python = make_venv(tmp_path / "venv", version="4.5.6")
    log = tmp_path / "server.log"
    log.write_text("x\n")
    env = {"PATH": "/usr/bin", "TOY_API_KEY": "topsecret", "HF_TOKEN": "hf_topsecret", "NCCL_ALGO": "Ring"}
    key = toy_server(tree, python=python, log=log, env=env, flags=["--port=7009", "--api-key", "topsecret"])
    tree.listen(100, 7009)
    tree.listen(101, 26001, address="0.0.0.0")
    with running(tree.root, toy_plan()) as probe:
        server = probe.server(lambda s: 26001 in s.ports)
        assert (server.key, server.engine, server.pid) == (key, "toy", 100)
        assert server.started_at == pytest.approx(tree.boot + 500_100 / os.sysconf("SC_CLK_TCK"), abs=0.1)
        assert (server.uid, server.user, server.cwd) == (0, "root", "/")
        assert server.argv[:3] == (str(python), "-m", "toyllm.serve")
        assert server.env["NCCL_ALGO"] == "Ring"
        assert server.env["HF_TOKEN"] == "***"
        assert (server.interpreter, server.version) == (str(python), "4.5.6")
        assert (server.port, server.ports) == (7009, (7009, 26001))
        assert (server.manager.kind, server.manager.name) == ("shell", "bash")
        assert [(m.pid, m.title) for m in server.members][1:] == [(101, "toy::rank_0"), (102, "toy::rank_1")]
        assert [m.env for m in server.members] == [None, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
        assert (server.log.kind, server.log.path, server.log.inode) == ("file", str(log), log.stat().st_ino)
        assert not server.orphaned
        assert "topsecret" not in repr(probe.events)


def test_what_its_environment_has_become_shows_in_pythons_helper(tree: ProcTree) -> None:
    """The leader's own never changes in /proc, and the title of a rank overwrites the rank's."""
    toy_server(tree, env={"CUDA_VISIBLE_DEVICES": "0,1", "NCCL_ALGO": "Ring"})
    helper = ["python", "-B", "-c", "from multiprocessing.resource_tracker import main;main(36)"]
    tree.add(110, helper, ppid=100, env={"CUDA_VISIBLE_DEVICES": "1,0", "NCCL_ALGO": "Tree"})
    tree.add(111, ["nvcc", "x.cu"], ppid=100, env={"CUDA_VISIBLE_DEVICES": "7"})
    with running(tree.root, toy_plan()) as probe:
        server = probe.server(lambda s: {110, 111} <= {m.pid for m in s.members})
        env = {m.pid: m.env for m in server.members}
        assert (env[110], env[111]) == ({"CUDA_VISIBLE_DEVICES": "1,0"}, None)


@pytest.mark.parametrize(
    ("flags", "port", "given"),
    [(["--port", "7005"], 7005, True), (["--port=7006"], 7006, True), ([], 7000, False), (["--port"], 7000, False)],
)
def test_the_port_of_a_command_line(tree: ProcTree, flags: list[str], port: int, given: bool) -> None:
    toy_server(tree, flags=flags)
    tree.listen(100, 7777)
    with running(tree.root, toy_plan()) as probe:
        # One that listens elsewhere, and was not told where to, took its port from a file.
        assert probe.server(lambda s: s.ports == (7777,)).port == (port if given else 7777)


def test_a_process_of_a_simulated_host_is_no_server_of_the_machine_below(tmp_path: Path) -> None:
    """A root alone is no reason: exporters in containers have one."""
    demo, container = tmp_path / "demo", tmp_path / "container"
    for root in (demo, container):
        root.mkdir()
    (demo / simhost_tree.SIMULATED).touch()
    with (
        toy_process(tmp_path / "one", env={"HOST_ROOT": str(demo)}) as theirs,
        toy_process(tmp_path / "two", env={"HOST_ROOT": str(container)}) as ours,
        running(None, toy_plan()) as probe,
    ):
        probe.server(lambda s: s.pid == ours.pid)
        probe.first(e.ScanEnded)
        assert theirs.pid not in [each.server.pid for each in probe.of(e.ServerSeen)]


def test_the_simulated_host_says_in_its_root_that_it_is_one(tmp_path: Path) -> None:
    simhost_tree.Tree(tmp_path, now=time.time()).build()
    assert (tmp_path / processes.SIMULATED).is_file()


def test_what_only_mentions_a_server_is_none(tree: ProcTree) -> None:
    tree.add(50, ["bash", "-c", "python -m toyllm.serve"])
    tree.add(51, ["vim", "toy serve"])
    tree.add(52, ["python", "-c", "import toyllm.serve"])
    tree.add(53, ["grep", "toy::rank"])
    tree.add(54, ["python", "-m", "toyllm.serve"], state="Z")
    tree.add(55, ["python", "/opt/conda/bin/conda", "run", "python", "-m", "toyllm.serve"])
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        assert probe.of(e.ServerSeen) == []
        tree.add(56, ["python", "-m", "toyllm.serve"], ppid=55)
        assert probe.server().pid == 56


def test_a_title_that_reads_like_a_server_is_none_unless_python_runs(tree: ProcTree) -> None:
    title = ["python3 -m toyllm.serve --port 7001"]
    tree.add(60, title, exe="/usr/bin/sleep")
    tree.add(61, title, exe="/usr/bin/python3.12 (deleted)")
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        assert [seen.server.pid for seen in probe.of(e.ServerSeen)] == [61]


def test_the_topmost_match_leads(tree: ProcTree) -> None:
    tree.add(60, ["/v/bin/python", "/v/bin/toy", "serve", "m"])
    tree.add(61, ["/v/bin/python", "/v/bin/toy", "serve", "m"], ppid=60)
    tree.add(62, ["toy::rank_0"], ppid=61)
    with running(tree.root, toy_plan()) as probe:
        server = probe.server(lambda s: len(s.members) == 3)
        assert server.pid == 60
        probe.first(e.ScanEnded)
        assert {seen.server.pid for seen in probe.of(e.ServerSeen)} == {60}


def test_servers_come_change_and_go(tree: ProcTree) -> None:
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        tree.add(100, ["python", "-m", "toyllm.serve"], ticks=900_100)
        assert len(probe.server().members) == 1
        tree.add(101, ["python", "-c", "from multiprocessing.spawn import spawn_main"], ppid=100)
        probe.server(lambda s: len(s.members) == 2)
        tree.title(101, "toy::rank_0")
        titled = probe.server(lambda s: len(s.members) == 2 and s.members[1].title == "toy::rank_0")
        assert titled.key == "100:900100"
        tree.change(101, state="Z")
        probe.server(lambda s: len(s.members) == 2 and s.members[1].state == "Z")
        tree.remove(101, 100)
        gone = probe.first(e.ServerGone)
        assert (gone.key, gone.left) == ("100:900100", ())
        # The same PID once more is another server.
        tree.add(100, ["python", "-m", "toyllm.serve"], ticks=900_999)
        assert probe.server(lambda s: s.key == "100:900999")


def test_an_exec_makes_a_server_of_a_shell(tree: ProcTree) -> None:
    tree.add(100, ["bash", "run.sh"])
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        tree.title(100, ["python", "-m", "toyllm.serve"])
        assert probe.server().pid == 100


def test_a_zombie_leader_has_ended(tree: ProcTree) -> None:
    toy_server(tree, ranks=0)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        tree.change(100, state="Z")
        tree.title(100, "")
        assert probe.first(e.ServerGone).left == ()


def test_ranks_that_outlive_their_leader_are_orphans(tree: ProcTree) -> None:
    key = toy_server(tree)
    tree.add(103, ["toy::helper"], ppid=101)
    with running(tree.root, toy_plan()) as probe:
        probe.server(lambda s: len(s.members) == 4)
        tree.change(101, ppid=1)
        tree.change(102, ppid=1)
        tree.remove(100)
        gone = probe.first(e.ServerGone)
        assert gone.key == key
        assert sorted(gone.left) == [101, 102, 103]
        first = probe.server(lambda s: s.orphaned and s.pid == 101)
        assert [m.pid for m in first.members] == [101, 103]
        probe.server(lambda s: s.orphaned and s.pid == 102)
        tree.remove(102)
        assert probe.first(e.ServerGone, lambda g: g.key != key).key.startswith("102:")


def test_what_one_leader_left_over_is_one_server(tree: ProcTree) -> None:
    tree.add(70, ["toy::engine"], group=60)
    tree.add(71, ["toy::rank_0"], ppid=70, group=60)
    tree.add(72, ["toy::rank_1"], group=60)
    tree.add(73, ["toy::helper"], ppid=72, group=60)
    tree.add(80, ["toy::engine"], group=61)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        both = probe.server(lambda s: s.pid == 70)
        assert {m.pid for m in both.members} == {70, 71, 72, 73}
        assert [m.pid for m in probe.server(lambda s: s.pid == 80).members] == [80]
        tree.remove(70)
        assert sorted(probe.first(e.ServerGone).left) == [71, 72, 73]
        rest = probe.server(lambda s: s.pid not in (70, 80))
        assert {m.pid for m in rest.members} >= {72, 73}


def test_what_is_counted_to_another_leaves_no_problem_behind(tree: ProcTree) -> None:
    """Neither of the two may be read."""
    for pid in (70, 72):
        tree.add(pid, [f"toy::rank_{pid}"], group=60)
    with running(tree.root, toy_plan()) as probe:
        probe.server(lambda s: s.pid == 70 and len(s.members) == 2)
        tree.remove(70, 72)
        gone = probe.first(e.ServerGone)
        probe.problem("proc-denied", cleared=True)
        told = {(p.subject, p.cleared) for p in probe.of(e.ProblemSeen) if p.code == "proc-denied"}
        assert told == {(gone.key, False), (gone.key, True)}


def test_what_a_leader_left_over_has_no_port_and_is_told_until_it_ends(tree: ProcTree) -> None:
    key = toy_server(tree)
    tree.add(104, ["ninja"], ppid=100)
    with running(tree.root, toy_plan()) as probe:
        probe.server(lambda s: s.key == key and len(s.members) == 4)
        tree.remove(100)
        assert sorted(probe.first(e.ServerGone, lambda g: g.key == key).left) == [101, 102, 104]
        assert probe.server(lambda s: s.orphaned).port is None
        tree.remove(104)
        assert sorted(probe.first(e.ServerGone, lambda g: g.key == key and 104 not in g.left).left) == [101, 102]


def test_orphans_are_there_at_first_sight(tree: ProcTree) -> None:
    tree.add(70, ["toy::engine"])
    tree.add(71, ["toy::rank_0"], ppid=70)
    with running(tree.root, toy_plan()) as probe:
        probe.first(e.ScanEnded)
        (seen,) = probe.of(e.ServerSeen)
        assert (seen.server.orphaned, seen.server.pid, len(seen.server.members)) == (True, 70, 2)


def test_helpers_without_a_title_are_no_news(tree: ProcTree) -> None:
    toy_server(tree)
    with running(tree.root, toy_plan()) as probe:
        probe.server(lambda s: len(s.members) == 3)
        for pid in range(300, 310):
            tree.add(pid, ["nvcc", "-c", "kernel.cu"], ppid=101)
            probe.settle()
            before = len(probe.of(e.ServerSeen))
        tree.add(320, ["toy::rank_9"], ppid=100)
        server = probe.server(lambda s: any(m.pid == 320 for m in s.members))
        assert before == 1
        assert [m.pid for m in server.members] == [100, 101, 102, 320]


def test_argv_and_environment_are_told_once(tree: ProcTree) -> None:
    toy_server(tree)
    with running(tree.root, toy_plan()) as probe:
        first = probe.server()
        assert first.argv
        assert first.env
        tree.add(320, ["toy::rank_9"], ppid=100)
        later = probe.server(lambda s: any(m.pid == 320 for m in s.members))
        assert (later.argv, later.env) == ((), None)


def test_a_child_that_stays_is_a_member_and_a_short_one_is_not(tree: ProcTree) -> None:
    toy_server(tree, ranks=0)
    soon = int((time.time() - tree.boot + 3600.0) * HZ)
    with running(tree.root, toy_plan()) as probe:
        probe.server()
        tree.add(300, ["nvcc", "-c", "kernel.cu"], ppid=100, ticks=soon)
        tree.add(301, ["python", "-c", "from multiprocessing.resource_tracker import main"], ppid=100)
        tree.add(302, ["nvcc", "-c", "kernel.cu"], ppid=301)
        server = probe.server(lambda s: len(s.members) > 1)
        assert [m.pid for m in server.members] == [100, 301]


@pytest.mark.parametrize(
    ("cgroup", "kind", "name"),
    [
        ("0::/system.slice/llm.service", "systemd", "llm.service"),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/run-u7.service", "systemd", "run-u7.service"),
        (f"12:memory:/docker/{'ab' * 32}", "docker", "ab" * 6),
        (f"0::/machine.slice/libpod-{'cd' * 32}.scope", "podman", "cd" * 6),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234abcd_12ab_34cd_56ef_1234567890ab.slice"
            f"/cri-containerd-{'ef' * 32}.scope",
            "kubernetes",
            "1234abcd-12ab-34cd-56ef-1234567890ab",
        ),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", "slurm", "4711"),
        ("0::/", "shell", "bash"),
    ],
)
def test_who_started_it(tree: ProcTree, cgroup: str, kind: str, name: str) -> None:
    toy_server(tree)
    (tree.proc / "100/cgroup").write_text(cgroup + "\n")
    with running(tree.root, toy_plan()) as probe:
        manager = probe.server().manager
        assert (manager.kind, manager.name) == (kind, name)


def test_what_may_not_be_read_is_said(tree: ProcTree) -> None:
    toy_server(tree)
    (tree.proc / "100/environ").unlink()
    with running(tree.root, toy_plan()) as probe:
        assert probe.server().env is None
        problem = probe.problem("proc-denied")
        assert problem.subject == "100:500100"
        assert "root" in problem.detail
        tree.remove(100, 101, 102)
        probe.problem("proc-denied", cleared=True)


def test_a_socket_that_may_not_be_looked_at_is_known_by_its_owner(tree: ProcTree) -> None:
    toy_server(tree, ranks=0)
    for place in (tree.proc / "100/fd").iterdir():
        place.unlink()
    (tree.proc / "100/fd").rmdir()
    (tree.proc / "100/fd").write_text("")
    tree.listen(100, 7001, uid=0, held=False)
    tree.listen(100, 7002, uid=12345, held=False)
    with running(tree.root, toy_plan()) as probe:
        assert probe.server(lambda s: s.ports).ports == (7001,)


def test_another_process_on_the_port_is_not_the_server(tree: ProcTree) -> None:
    toy_server(tree)
    tree.add(400, ["nginx"])
    tree.listen(400, 7001)
    tree.listen(100, 9999)
    with running(tree.root, toy_plan()) as probe:
        assert probe.server(lambda s: s.ports).ports == (9999,)


SERVE = """
import os, sys, time
open(sys.argv[1] + ".ready", "w").close()
while not os.path.exists(sys.argv[1] + ".stop"):
    print("tick", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package whose module runs as a real process."""
    (tmp_path / "toyllm").mkdir()
    (tmp_path / "toyllm/__init__.py").write_text("")
    (tmp_path / "toyllm/serve.py").write_text(SERVE)
    return tmp_path


def launch(package: Path, **streams: object) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(package), "TOY": "1"}
    argv = [sys.executable, "-m", "toyllm.serve", str(package / "flag")]
    process = subprocess.Popen(argv, env=env, **{"stderr": subprocess.STDOUT, **streams})  # type: ignore[call-overload]
    until(lambda: (package / "flag.ready").exists())
    return process  # type: ignore[no-any-return]


def end(package: Path, process: subprocess.Popen[bytes]) -> None:
    (package / "flag.stop").touch()
    assert process.wait(10.0) == 0


@pytest.mark.parametrize("deleted", [False, True])
def test_a_real_process_with_a_file(package: Path, deleted: bool) -> None:
    log = package / "out.log"
    with log.open("wb") as out:
        process = launch(package, stdout=out)
    if deleted:
        log.unlink()
    with running(None, toy_plan()) as probe:
        server = probe.server(lambda s: s.pid == process.pid)
        assert server.env["TOY"] == "1"
        assert server.interpreter == sys.executable
        assert server.log.kind == "file"
        assert server.log.path == str(log)
        assert server.cwd == str(Path.cwd())
        key = server.key
        probe.first(e.LogBytes, lambda x: x.key == key and "tick" in x.data)
        if deleted:
            probe.first(e.ProblemSeen, lambda p: (p.code, p.subject) == ("log-vanished", key))
        end(package, process)
        probe.first(e.ServerGone, lambda g: g.key == key)


def test_a_real_process_behind_tee(package: Path, tmp_path: Path) -> None:
    log = tmp_path / "teed.log"
    tee = subprocess.Popen(["tee", str(log)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process = launch(package, stdout=tee.stdin)
    assert tee.stdin
    tee.stdin.close()
    with running(None, toy_plan()) as probe:
        server = probe.server(lambda s: s.pid == process.pid)
        assert (server.log.kind, server.log.path) == ("file", str(log))
        probe.first(e.LogBytes, lambda x: x.key == server.key and "tick" in x.data)
        end(package, process)
    assert tee.wait(10.0) == 0


def test_a_real_process_in_a_terminal_and_in_a_pipe(package: Path) -> None:
    main, side = os.openpty()
    process = launch(package, stdout=side, stderr=side)
    os.close(side)
    try:
        with running(None, toy_plan()) as probe:
            server = probe.server(lambda s: s.pid == process.pid)
            assert server.log.kind == "none"
            assert "tee" in server.log.note
            problem = probe.first(e.ProblemSeen, lambda p: p.subject == server.key)
            assert problem.code == "log-terminal"
            assert probe.first(e.LogOpened, lambda x: x.key == server.key).reason == "unreadable"
            end(package, process)
    finally:
        os.close(main)
        process.wait(10.0)
    (package / "flag.stop").unlink()
    (package / "flag.ready").unlink()
    with launch(package, stdout=subprocess.PIPE) as piped, running(None, toy_plan()) as probe:
        server = probe.server(lambda s: s.pid == piped.pid)
        assert probe.first(e.ProblemSeen, lambda p: p.subject == server.key).code == "log-pipe"
        end(package, piped)


def test_nothing_secret_is_sent(tree: ProcTree) -> None:
    toy_server(tree, flags=["--api-key=canary-1"], env={"TOY_API_KEY": "canary-2", "GITHUB_TOKEN": "canary-3"})
    tree.title(101, ["toy::rank_0", "--api-key", "canary-4"])
    with running(tree.root, toy_plan()) as probe:
        probe.server(lambda s: len(s.members) == 3)
        probe.send(op="checks", id=1)
        probe.first(e.CheckResult)
        assert "canary" not in json.dumps([repr(event) for event in probe.events])
