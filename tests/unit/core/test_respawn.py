"""Who would start a server again, and what follows for its stop."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tuner.core.respawn import STOP_WAIT_S, Keeper, keeper, returns
from tuner.domain.server import Manager

UNIT = {
    "unit": "sglang.service", "user": False, "owner": "root", "may": True, "restart": "always", "main": True,
    "wraps": False, "others": [], "timeout_stop_s": 90.0, "transient": False,
}  # fmt: skip


def of(**parts: Any) -> Keeper:
    return keeper({"manager": {"loops": [], "watchers": [], "starters": [], **parts}})


def test_nothing_above_means_signals() -> None:
    assert of() == Keeper()


@pytest.mark.parametrize("restart", ["always", "on-failure", "no"])
def test_a_unit_is_stopped_and_started_by_systemctl(restart: str) -> None:
    found = of(systemd={**UNIT, "restart": restart})
    assert (found.stop, found.start) == (
        ("systemctl", "stop", "sglang.service"),
        ("systemctl", "start", "sglang.service"),
    )
    assert found.words == f"systemd unit sglang.service, Restart={restart}"
    assert (found.refusal, found.doubt, found.wait_s) == ("", "", 95.0)


def test_a_users_unit_is_reached_through_the_users_manager() -> None:
    found = of(systemd={**UNIT, "user": True, "owner": "bob", "runtime_dir": "/run/user/1000"})
    assert found.stop == ("env", "XDG_RUNTIME_DIR=/run/user/1000", "systemctl", "--user", "stop", "sglang.service")


def test_a_transient_unit_is_not_there_to_be_started_again() -> None:
    found = of(systemd={**UNIT, "transient": True})
    assert found.stop
    assert found.start == ()


def test_without_rights_the_way_out_is_the_line_to_type() -> None:
    found = of(systemd={**UNIT, "may": False})
    assert found.stop == ()
    assert "may not stop units" in found.refusal
    assert "sudo systemctl stop sglang.service" in found.way_out
    of_another = of(systemd={**UNIT, "user": True, "may": False, "owner": "bob"})
    assert "bob" in of_another.refusal
    assert of_another.way_out == "connect as bob"


def test_a_unit_with_other_processes_is_not_stopped_from_here() -> None:
    found = of(systemd={**UNIT, "others": [{"pid": 7, "title": "redis"}]})
    assert (found.stop, "pid 7 redis" in found.refusal) == ((), True)


def test_a_server_in_somebodys_unit_is_not_that_units_program() -> None:
    # A notebook's unit: it neither ends nor starts again with a server that somebody started in a cell.
    notebook = {**UNIT, "unit": "jupyter.service", "main": False, "wraps": True, "others": [{"pid": 7, "title": "x"}]}
    assert of(systemd=notebook) == Keeper()


def test_a_script_of_a_unit_that_runs_more_than_the_server_ends_with_it() -> None:
    script = {**UNIT, "main": False, "wraps": True, "direct": True, "others": [{"pid": 7, "title": "proxy"}]}
    assert "pid 7 proxy" in of(systemd=script).refusal
    assert of(systemd={**script, "others": []}).stop


def test_a_unit_that_cannot_be_asked_refuses() -> None:
    found = of(systemd={"unit": "sglang.service", "user": False, "problem": "there is no systemctl on PATH"})
    assert "no systemctl" in found.refusal
    assert found.way_out


def test_the_unit_of_a_run_is_no_manager() -> None:
    assert of(systemd={**UNIT, "unit": "gputuner-20261130-101523-a1b2c3d4.service"}) == Keeper()


def test_a_long_stop_of_a_unit_is_waited_for() -> None:
    assert of(systemd={**UNIT, "timeout_stop_s": 300.0}).wait_s == 305.0
    assert of(systemd={**UNIT, "timeout_stop_s": None}).wait_s == STOP_WAIT_S


PROGRAM = {
    "pid": 9, "name": "llm:sglang", "main": True, "program": "/v/bin/supervisorctl", "config": "/etc/s.conf",
    "owner": "ann",
}  # fmt: skip


def test_a_program_is_stopped_and_started_by_supervisorctl() -> None:
    found = of(supervisord={**PROGRAM, "restart": "unexpected", "timeout_stop_s": 300.0})
    assert found.stop == ("/v/bin/supervisorctl", "-c", "/etc/s.conf", "stop", "llm:sglang")
    assert found.start[-2:] == ("start", "llm:sglang")
    assert (found.words, found.wait_s) == ("supervisord program llm:sglang, autorestart=unexpected", 305.0)
    assert of(supervisord={**PROGRAM, "config": None, "url": "unix:///s"}).stop[1:3] == ("-s", "unix:///s")
    assert of(supervisord={**PROGRAM, "main": False}) == Keeper(), "the variables alone are inherited by anybody"


def test_a_program_that_cannot_be_stopped_is_refused() -> None:
    assert "no supervisorctl" in of(supervisord={**PROGRAM, "program": None}).refusal
    hidden = of(supervisord={**PROGRAM, "may": False})
    assert "may not use supervisord's socket" in hidden.refusal
    assert "connect as ann" in hidden.way_out
    assert "does not answer: 401" in of(supervisord={**PROGRAM, "problem": "401"}).refusal
    nameless = of(supervisord={**PROGRAM, "name": None, "problem": "its environment may not be read"})
    assert "supervisord (pid 9) keeps it" in nameless.refusal
    assert nameless.way_out == "connect as ann"


def test_supervisord_stands_nearer_to_its_server_than_its_own_unit() -> None:
    """Debian starts it as supervisor.service: stopping that would stop all its programs."""
    unit = {**UNIT, "unit": "supervisor.service", "main": False, "wraps": True, "direct": False}
    assert of(systemd=unit, supervisord=PROGRAM).stop[-2:] == ("stop", "llm:sglang")


def test_supervisord_is_not_stopped_for_a_server_that_is_none_of_its_programs() -> None:
    """Somebody typed it into a notebook, the only program there: its unit would take notebook and supervisord along."""
    unit = {**UNIT, "unit": "supervisor.service", "main": False, "wraps": True, "direct": False, "main_pid": 9}
    assert of(systemd=unit, supervisord={**PROGRAM, "main": False}) == Keeper()
    assert of(systemd={**unit, "main_pid": 8}, supervisord={**PROGRAM, "main": False}).stop[-1] == "supervisor.service"


@pytest.mark.parametrize(
    ("fact", "words", "way_out"),
    [
        ({"by": "systemd", **UNIT}, "systemd unit sglang.service, Restart=always", "systemctl stop sglang.service"),
        ({"by": "systemd", **UNIT, "user": True}, "sglang.service", "systemctl --user stop sglang.service"),
        ({"by": "supervisord", **PROGRAM}, "supervisord program llm:sglang", "supervisorctl stop llm:sglang"),
    ],
)
def test_what_is_about_to_come_back_is_stopped_first(fact: dict[str, Any], words: str, way_out: str) -> None:
    found = returns({"returning": fact})
    assert found is not None
    assert found.refusal.startswith("the server before has ended, and is about to be started again: ")
    assert words in found.refusal
    assert f"`{way_out}`" in found.way_out


@pytest.mark.parametrize("fact", [None, {"by": None}, {"problem": "there was no such server"}, {"by": 7}, "x"])
def test_what_does_not_come_back_speaks_against_no_start(fact: Any) -> None:
    assert returns({"returning": fact}) is None


@pytest.mark.parametrize(
    ("kind", "words"), [("docker", "docker stop llm"), ("podman", "podman stop llm"), ("kubernetes", "kubectl")]
)
def test_a_container_is_refused_with_the_way_out(kind: str, words: str) -> None:
    found = of(container={"kind": kind, "name": "llm", "inside": False, "main": True, "restart": "always"})
    assert "container" in found.refusal
    assert words in found.way_out
    assert found.stop == ()


def test_within_a_container_only_its_main_process_is_refused() -> None:
    inside = {"kind": "docker", "name": "llm", "inside": True, "main": False}
    assert of(container=inside) == Keeper()
    assert "which ends with it" in of(container={**inside, "main": True}).refusal


def test_slurm_is_refused() -> None:
    found = of(slurm={"job": "4711"})
    assert "4711" in found.refusal
    assert "scancel 4711" in found.way_out


def test_a_shell_loop_is_refused_with_its_place() -> None:
    loop = {
        "pid": 7,
        "command": "bash run.sh",
        "file": "/srv/run.sh",
        "line": 3,
        "text": "while true; do",
        "certain": True,
    }
    found = of(loops=[loop])
    assert found.words == "shell loop: bash run.sh (pid 7)"
    assert "/srv/run.sh:3: while true; do" in found.refusal
    assert "kill 7" in found.way_out
    text = {**loop, "file": "", "certain": False}
    assert "its -c text" in of(loops=[text]).refusal
    assert "may start it again" in of(loops=[text]).refusal


def test_a_watcher_is_refused_by_name() -> None:
    found = of(watchers=[{"kind": "runit", "pid": 8, "command": "runsv sglang"}])
    assert "runit (pid 8: runsv sglang)" in found.refusal


def test_an_unknown_starter_is_a_doubt() -> None:
    found = of(starters=[{"pid": 8, "command": "python launch.py"}])
    assert (found.refusal, "launch.py" in found.doubt) == ("", True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(UNIT)), inner, max_size=5),
    max_leaves=9,
)
KINDS = ("systemd", "container", "slurm", "supervisord", "loops", "watchers", "starters")


@example({"systemd": {"others": True}})
@given(st.dictionaries(st.sampled_from(KINDS), JSON))
def test_whatever_is_told_a_server_is_stopped_one_way_or_refused_with_a_way_out(parts: dict[str, Any]) -> None:
    found = of(**parts)
    assert not (found.refusal and found.stop)
    assert not (found.refusal and not found.way_out)
    assert not (found.start and not found.stop)
    assert found.wait_s >= STOP_WAIT_S


@pytest.mark.parametrize("facts", [{}, {"manager": {"problem": "no answer within 10 s"}}, {"manager": None}])
def test_what_was_not_asked_is_a_doubt_and_never_nothing(facts: dict[str, Any]) -> None:
    assert keeper(facts).doubt
    assert keeper(facts, Manager(kind="systemd", name="x.service")).doubt
    assert keeper(facts, Manager(kind="docker", name="llm")).refusal
    assert keeper(facts, Manager(kind="slurm", name="3")).refusal
