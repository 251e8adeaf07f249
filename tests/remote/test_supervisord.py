"""Servers that a real supervisord keeps: how that is seen, and what is done with them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.proc.running import RunningProbe, is_alive, running, toy_plan, until
from tests.fixtures.runs.bench import free_port, lives
from tests.support.supervisord import BIN, Supervisord, command, engine, kept
from tuner import cli
from tuner.core.respawn import Keeper, keeper, returns
from tuner.domain import events as e
from tuner.domain.server import Manager

pytestmark = pytest.mark.timeout(120)
PROGRAM = """
[program:{name}]
command={command}
environment={env}
stdout_logfile={folder}/%(program_name)s-%(process_num)d.log
redirect_stderr=true
{more}
"""
NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root starts programs of other users")


def program(folder: Path, name: str, line: str, *more: str, **env: str) -> str:
    """A section of supervisord's configuration that keeps a look-alike."""
    variables = ",".join(f'{key}="{value}"' for key, value in engine(folder, **env).items())
    return PROGRAM.format(name=name, command=line, env=variables, folder=folder, more="\n".join(more))


def serving(daemon: Supervisord, name: str, number: int = 0) -> int:
    """Wait until a program serves; return its PID."""
    log = daemon.folder / f"{name.partition(':')[0]}-{number}.log"
    until(lambda: log.exists() and "ready to roll" in log.read_text())
    until(lambda: daemon.state(name) == "RUNNING")
    return daemon.pid_of(name)


def neighbours() -> int:
    """A tenth of two free ports, which end in 1 and 2."""
    while True:
        tenth = free_port() // 10
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 10 * tenth + 1))
            two.bind(("127.0.0.1", 10 * tenth + 2))
            return tenth


# -- what is done with them -------------------------------------------------------------------------------------------


@pytest.fixture
def gputuner(_own_home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs a command on this machine; returns what it told. Its runs' processes are ended by PID."""

    def run(verb: str, *arguments: str) -> dict[str, Any]:
        capsys.readouterr()
        cli.run([verb, "local", *arguments, "--yes", "--json"])
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    yield run
    for record in _own_home.glob(".gputuner/runs/*/state.json"):
        found = json.loads(record.read_text())
        for process in filter(None, (found.get("new"), found.get("supervisor"))):
            if lives(process["pid"], process["start_ticks"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process["pid"], signal.SIGKILL)


def audited(home: Path) -> list[list[str]]:
    """The commands of managers in the audit, without what stands before the verb."""
    lines = [json.loads(line) for line in (home / ".gputuner/audit.ndjson").read_text().splitlines()]
    asked = (line["argv"] for line in lines if line["by"] == "supervisor" and line["act"] in ("stop", "start"))
    return [argv[argv.index(str(BIN / "supervisorctl")) + 3 :] for argv in asked]


def test_one_of_several_processes_is_replaced_and_gone_back_to(
    tmp_path: Path, _own_home: Path, gputuner: Callable[..., dict[str, Any]]
) -> None:
    tenth = neighbours()
    line = command(tmp_path, f"{tenth}%(process_num)d")
    more = ("numprocs=2", "numprocs_start=1", "process_name=%(program_name)s_%(process_num)02d", "autorestart=true")
    with kept(tmp_path, program(tmp_path, "llm", line, *more, TOY_TOO_MANY="13")) as daemon:
        first, other = serving(daemon, "llm:llm_01", 1), serving(daemon, "llm:llm_02", 2)
        failed = gputuner("apply", "--server", str(first), "--set", "max_running_requests=13", "--auto-rollback")
        assert failed["outcome"] == "back", failed
        (note,) = [check for check in failed["checks"] if check["id"] == "manager"]
        assert note["verdict"] == "note"
        assert "supervisord program llm:llm_01, autorestart=true" in note["detail"]
        again = daemon.pid_of("llm:llm_01")
        assert (failed["server_pid"], again != first) == (again, True)

        switched = gputuner("apply", "--server", str(again), "--set", "max_running_requests=16")
        assert switched["outcome"] == "ready", switched
        assert daemon.state("llm:llm_01") == "STOPPED"
        assert not is_alive(again)

        # Exactly what ran before: it is supervisord's again, and not a copy of it beside supervisord.
        back = gputuner("apply", "--server", str(switched["server_pid"]), "--back")
        assert back["outcome"] == "ready", back
        assert back["server_pid"] == daemon.pid_of("llm:llm_01")
        assert not is_alive(switched["server_pid"])
        assert daemon.pid_of("llm:llm_02") == other
    verb = ["start", "llm:llm_01"]
    assert audited(_own_home) == [["stop", "llm:llm_01"], verb, ["stop", "llm:llm_01"], verb]


@pytest.mark.parametrize("group", [False, True], ids=["script alone", "stopasgroup"])
def test_the_server_of_a_script_is_stopped_with_it(
    tmp_path: Path, group: bool, gputuner: Callable[..., dict[str, Any]]
) -> None:
    """supervisord ends the script alone, unless told otherwise; the server goes on, and nobody would start it again."""
    script = tmp_path / "run.sh"
    script.write_text(f"{command(tmp_path, free_port())}\nexit $?\n")
    more = ("autorestart=true", "stopasgroup=true" if group else "")
    with kept(tmp_path, program(tmp_path, "llm", f"/bin/bash {script}", *more)) as daemon:
        serving(daemon, "llm")
        with probing() as probe:
            server = of(probe, tmp_path).pid
        stopped = gputuner("stop", "--server", str(server))
        assert stopped["outcome"] == "stopped", stopped
        assert sum(step["seconds"] for step in stopped["steps"]) < 20
        assert (daemon.state("llm"), is_alive(server)) == ("STOPPED", False)


# -- how they are seen ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def probing(python: str = sys.executable, **env: str) -> Iterator[RunningProbe]:
    """A probe that knows the look-alike."""
    plan = toy_plan()
    plan["engines"][0]["leaders"] = [r"^\S*python[\d.]* -m sglang\.launch_server\s"]
    with running(None, plan, python=python, **env) as probe:
        yield probe


def of(probe: RunningProbe, folder: Path) -> Any:
    """The look-alike that serves an LLM of a folder."""
    return probe.server(lambda server: str(folder / "toy") in server.argv)


def found(folder: Path, python: str = sys.executable, **env: str) -> tuple[dict[str, Any], Keeper]:
    """What the probe tells of supervisord, and what follows from it."""
    with probing(python, **env) as probe:
        key, after = of(probe, folder).key, probe.count()
        probe.send(op="preflight", id=after, ask={"key": key})
        facts = dict(probe.first(e.PreflightResult, lambda answer: answer.id == after, after).facts)
    return facts["manager"].get("supervisord"), keeper(facts)


@pytest.mark.parametrize("restart", ["true", "unexpected", "false", ""])
def test_a_program_in_a_group_of_an_included_file(tmp_path: Path, restart: str) -> None:
    text = program(
        tmp_path, "llm", command(tmp_path, free_port()), f"autorestart={restart}" if restart else "",
        "stopwaitsecs=300 ; it drains",
    )  # fmt: skip
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/llm.conf").write_text(text)
    group = "[include]\nfiles = conf.d/*.conf\n[group:serving]\nprograms=llm\n"
    with kept(tmp_path, group) as daemon:
        serving_pid = until(lambda: daemon.pid_of("serving:llm"))
        with probing() as probe:
            assert of(probe, tmp_path).manager == Manager(kind="supervisord", name="serving:llm")
        part, keeps = found(tmp_path)
        assert (part["name"], part["main"], part["pid"]) == ("serving:llm", True, daemon.pid)
        assert keeps.words == f"supervisord program serving:llm, autorestart={restart or 'unexpected'}"
        assert keeps.stop == (str(BIN / "supervisorctl"), "-c", str(daemon.config), "stop", "serving:llm")
        assert (keeps.start[-2:], keeps.wait_s, keeps.refusal) == (("start", "serving:llm"), 305.0, "")
        assert daemon.pid_of("serving:llm") == serving_pid


START = {
    "joined flags": (sys.executable, str(BIN / "supervisord"), "-nc{config}"),
    "as a module": (sys.executable, "-m", "supervisor.supervisord", "--configuration={config}"),
    "found by itself": (sys.executable, str(BIN / "supervisord")),
    "relative": (sys.executable, str(BIN / "supervisord"), "-c", "supervisord.conf"),
}


@pytest.mark.parametrize("how", START)
def test_its_configuration_is_found_as_it_finds_it(tmp_path: Path, how: str) -> None:
    with kept(tmp_path, program(tmp_path, "llm", command(tmp_path, free_port())), argv=START[how]) as daemon:
        until(lambda: daemon.pid_of("llm"))
        part, keeps = found(tmp_path)
        assert (part["config"], keeps.stop[-2:]) == (str(daemon.config), ("stop", "llm"))


def test_where_its_configuration_is_gone_its_socket_is_used(tmp_path: Path) -> None:
    with kept(tmp_path, program(tmp_path, "llm", command(tmp_path, free_port()))) as daemon:
        until(lambda: daemon.pid_of("llm"))
        daemon.config.rename(tmp_path / "moved.conf")
        part, keeps = found(tmp_path)
        assert part["config"] is None
        assert keeps.stop[-4:] == ("-s", f"unix://{tmp_path}/s.sock", "stop", "llm")
        assert keeps.refusal == ""


def test_a_password_stands_in_its_configuration(tmp_path: Path) -> None:
    login = "username=ann\npassword=toy-secret"
    text = program(tmp_path, "llm", command(tmp_path, free_port()))
    with kept(tmp_path, text, login=login) as daemon:
        until(lambda: daemon.pid_of("llm"))
        part, keeps = found(tmp_path)
        assert keeps.stop[-2:] == ("stop", "llm")
        assert "toy-secret" not in repr((part, keeps))
        # Somebody took the login out of the file after supervisord had read it.
        daemon.config.write_text(daemon.config.read_text().replace(login, ""))
        _, keeps = found(tmp_path)
        assert keeps.refusal.endswith("does not answer: <ProtocolError for 127.0.0.1/RPC2: 401 Unauthorized>")
        daemon.config.write_text(daemon.config.read_text().replace("[supervisorctl]", f"[supervisorctl]\n{login}"))


def test_without_a_supervisorctl_it_is_refused(tmp_path: Path) -> None:
    alone = tmp_path / "bin" / "supervisord"
    alone.parent.mkdir()
    shutil.copy(BIN / "supervisord", alone)
    text = program(tmp_path, "llm", command(tmp_path, free_port()))
    with kept(tmp_path, text, argv=(sys.executable, str(alone), "-c", "{config}")) as daemon:
        until(lambda: daemon.pid_of("llm"))
        _, keeps = found(tmp_path, PATH="/usr/bin:/bin")
        assert "there is no supervisorctl" in keeps.refusal
        assert keeps.stop == ()


SUBREAPER = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.executable, sys.argv[1:])"


def test_a_program_is_not_stopped_for_a_server_that_only_inherited_its_variables(tmp_path: Path) -> None:
    """As in a container where supervisord is the first process: what outlives its parents becomes its child."""
    line = f"{command(tmp_path, free_port())} &"
    script = tmp_path / "notebook.sh"
    script.write_text(f"( {line} )\nexec sleep 1000\n")
    argv = (sys.executable, "-c", SUBREAPER, sys.executable, str(BIN / "supervisord"), "-c", "{config}")
    with kept(tmp_path, program(tmp_path, "notebook", f"/bin/sh {script}"), argv=argv) as daemon:
        serving(daemon, "notebook")
        with probing() as probe:
            server = of(probe, tmp_path)
        until(lambda: parent_of(server.pid) == daemon.pid)
        try:
            part, keeps = found(tmp_path)
            assert (part["name"], part["main"]) == ("notebook", False)
            assert keeps == Keeper()
        finally:
            os.kill(server.pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_nothing_starts_in_the_place_of_what_is_about_to_come_back(tmp_path: Path) -> None:
    """It crashes, and supervisord waits a moment before it tries again."""
    broken = tmp_path / "broken"
    text = program(tmp_path, "llm", command(tmp_path, free_port()), "autorestart=true", "startretries=100",
                   TOY_BROKEN=str(broken))  # fmt: skip
    with kept(tmp_path, text) as daemon, probing() as probe:
        pid = serving(daemon, "llm")
        key = probe.server(lambda server: server.pid == pid).key
        broken.touch()
        os.kill(pid, signal.SIGKILL)
        probe.first(e.ServerGone, lambda gone: gone.key == key)
        until(lambda: daemon.state("llm") == "BACKOFF" and daemon.control("tail", "llm")[1].count("broken") > 2)
        back = returns(ended(probe, key))
        assert back is not None
        assert back.refusal.endswith("about to be started again: supervisord program llm, autorestart=true")
        assert "`supervisorctl stop llm`" in back.way_out
        daemon.control("stop", "llm")
        assert returns(ended(probe, key)) is None


def ended(probe: RunningProbe, key: str) -> dict[str, Any]:
    """What the probe tells before a start in the place of a server that has ended."""
    after = probe.count()
    probe.send(op="preflight", id=after, ask={"ended": key, "managers": False})
    return dict(probe.first(e.PreflightResult, lambda answer: answer.id == after, after).facts)


# -- of other users ---------------------------------------------------------------------------------------------------


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that other users may read."""
    folder = Path(tempfile.mkdtemp(prefix="toy-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@as_root
def test_root_stops_what_another_user_s_supervisord_keeps(
    open_folder: Path, gputuner: Callable[..., dict[str, Any]]
) -> None:
    os.chown(open_folder, NOBODY, NOBODY)
    line = command(open_folder, free_port(), python="/usr/bin/python3")
    text = program(open_folder, "llm", line, "autorestart=true", "user=nobody")
    with kept(open_folder, text, more="user=root") as daemon:
        pid = serving(daemon, "llm")
        stopped = gputuner("stop", "--server", str(pid))
        assert (stopped["outcome"], daemon.state("llm")) == ("stopped", "STOPPED"), stopped


@as_root
def test_a_user_whose_server_root_s_supervisord_keeps_may_not_stop_it(open_folder: Path) -> None:
    """The server is this user's own, so that signals would reach it; supervisord would start it again."""
    nobody = open_folder / "python"
    nobody.write_text('#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/python3 "$@"\n')
    nobody.chmod(0o755)
    text = program(open_folder, "llm", command(open_folder, free_port(), python="/usr/bin/python3"), "user=nobody")
    with kept(open_folder, text, more="user=root") as daemon:
        serving(daemon, "llm")
        part, keeps = found(open_folder, python=str(nobody), HOME="/")
        assert (part["name"], part["owner"], part["may"]) == ("llm", "root", False)
        assert "may not use supervisord's socket" in keeps.refusal
        assert "sudo supervisorctl stop llm" in keeps.way_out
