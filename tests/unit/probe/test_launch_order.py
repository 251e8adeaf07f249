"""Orders to launch are completed with what only the host knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.core.redact import mask_argv, mask_env
from tuner.probe.agent import launcher
from tuner.probe.agent.arguments import masked_argv
from tuner.probe.agent.base import Refused
from tuner.probe.agent.launch_order import Source, completed, filled_argv, filled_env

SECRETS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda text: not text.startswith("-") and text.strip() == text
)
FLAGS = st.sampled_from(["--api-key", "--admin-api-key", "--hf-token", "--model", "--port", "--served-model-name"])


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command line with flags in both spellings, with several values, and given more than once."""
    words = ["python", "-m", "engine.serve", "serve", "model"]
    for flag in draw(st.lists(FLAGS, max_size=6)):
        values = draw(st.lists(SECRETS, min_size=1, max_size=3))
        if draw(st.booleans()):
            words.append(f"{flag}={values[0]}")
        else:
            words += [flag, *values]
    return words


@given(command_lines())
def test_what_the_probe_masks_is_filled_in_again(argv: list[str]) -> None:
    assert filled_argv(masked_argv(argv), Source("it", argv)) == argv


@given(command_lines())
def test_what_the_laptop_masks_is_filled_in_again(argv: list[str]) -> None:
    assert filled_argv(list(mask_argv(masked_argv(argv))), Source("it", argv)) == argv


@given(st.dictionaries(st.sampled_from(["HF_TOKEN", "OPENAI_API_KEY", "MODE", "URL"]), SECRETS))
def test_variables_that_are_masked_are_filled_in_again(env: dict[str, str]) -> None:
    assert filled_env(mask_env(env), Source("it", env=env)) == env


@pytest.mark.parametrize(
    ("argv", "real", "filled"),
    [
        (["--api-key=***"], ["--api-key", "k"], ["--api-key=k"]),
        (["--api-key", "***"], ["--api_key=k"], ["--api-key", "k"]),
        (["--api-key", "***", "***"], ["--api-key", "k", "l"], ["--api-key", "k", "l"]),
        (["--a-key", "***", "--a-key", "***"], ["--a-key", "k", "--a-key", "l"], ["--a-key", "k", "--a-key", "l"]),
        (["-e", "HF_TOKEN=***"], ["-e", "HF_TOKEN=t"], ["-e", "HF_TOKEN=t"]),
        (["--url", "https://u:***@h/new"], ["--url", "https://u:p@h/new"], ["--url", "https://u:p@h/new"]),
        (["x", "sk-***", "--y"], ["sk-k", "x"], ["x", "sk-k", "--y"]),
    ],
)
def test_secrets_are_found_by_their_flag(argv: list[str], real: list[str], filled: list[str]) -> None:
    assert filled_argv(argv, Source("it", real)) == filled


@pytest.mark.parametrize(
    ("argv", "real"),
    [
        (["--api-key", "***"], ["--port", "1"]),
        (["--api-key", "***", "***"], ["--api-key", "k"]),
        (["--api-key", "***", "--api-key", "***"], ["--api-key", "k"]),
        (["--url", "https://u:***@other/"], ["--url", "https://u:p@h/"]),
        (["--api-key", "***"], ["--api-key="]),
    ],
)
def test_a_secret_that_cannot_be_had_is_named(argv: list[str], real: list[str]) -> None:
    with pytest.raises(Refused, match=argv[0]):
        filled_argv(argv, Source("it", real))


def launch(find: Any = None, **fields: Any) -> dict[str, Any]:
    return completed({"argv": [], "env": {}, "like": "server:1:2", "cwd": None, **fields}, lambda like: find)


def test_an_empty_command_line_is_that_of_what_it_is_like(tmp_path: Path) -> None:
    source = Source("it", ["a", "b"], {"X": "1", "NOTIFY_SOCKET": "/n", "GPUTUNER_RUN": "old"}, str(tmp_path))
    done = launch(source, env={"Y": "2"})
    assert (done["argv"], done["base"], done["env"], done["cwd"]) == (["a", "b"], {"X": "1"}, {"Y": "2"}, str(tmp_path))


def test_what_cannot_be_completed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="environment of it may not be read"):
        launch(Source("it", ["a"], None, "/"))
    with pytest.raises(Refused, match="command line of it"):
        launch(Source("it", None, {"A": "1"}, "/"))
    with pytest.raises(Refused, match="working folder"):
        launch(Source("it", ["a"], {"A": "1"}, str(tmp_path / "gone")))


def test_a_service_manager_needs_none_of_it() -> None:
    done = launch(Source("it", None, None), manager=["systemctl", "start", "u"], env={"T": "***"})
    assert (done["argv"], done["env"], done["was"]) == ([], {}, {})


def test_what_a_service_manager_keeps_is_a_model_for_later_starts() -> None:
    """They are like it with other arguments, when it does not run any more."""
    source = Source("it", ["a", "b"], {"X": "1", "INVOCATION_ID": "9"}, "/")
    done = launch(source, manager=["systemctl", "start", "u"])
    assert (done["argv"], done["was"]) == ([], {"argv": ["a", "b"], "env": {"X": "1"}, "cwd": "/"})


def test_exactly_what_a_service_manager_kept_is_started_by_it() -> None:
    source = Source("run 1", ["a", "b"], {"X": "1"}, "/", ["systemctl", "start", "u"])
    done = launch(source, like="back:1")
    assert (done["manager"], done["argv"], done["was"]["argv"]) == (["systemctl", "start", "u"], [], ["a", "b"])
    other = launch(source, like="back:1", argv=["a", "c"])
    assert (other.get("manager"), other["argv"], other["base"]) == (None, ["a", "c"], {"X": "1"})


def test_without_a_model_the_environment_is_the_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22")
    monkeypatch.setenv("HOST_ROOT", "/nowhere")
    monkeypatch.setenv("FROM_LOGIN", "yes")
    done = launch(like="", argv=["a"])
    assert done["base"]["FROM_LOGIN"] == "yes"
    assert not {"SSH_CONNECTION", "HOST_ROOT"} & done["base"].keys()
    assert done["cwd"] == "/"


@pytest.mark.parametrize(
    ("uid", "files", "scope"),
    [
        (0, {}, None),
        (0, {"run/systemd/system/x": ""}, ()),
        (1000, {"run/systemd/system/x": "", "run/user/1000/bus": ""}, None),
        (1000, {"run/systemd/system/x": "", "var/lib/systemd/linger/toy": "", "run/user/1000/bus": ""}, ("--user",)),
        (1000, {"run/systemd/system/x": "", "var/lib/systemd/linger/toy": ""}, None),
        (1000, {"run/systemd/system/x": "", "etc/systemd/logind.conf": "KillUserProcesses=yes\n"}, Refused),
        (1000, {"run/systemd/system/x": "", "etc/systemd/logind.conf": "#KillUserProcesses=yes\n"}, None),
        (
            1000,
            {
                "run/systemd/system/x": "",
                "etc/systemd/logind.conf": "KillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/own.conf": "[Login]\nKillExcludeUsers=root toy\n",
            },
            None,
        ),
        (
            1000,
            {
                "run/systemd/system/x": "",
                "etc/systemd/logind.conf": "KillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/own.conf": "KillUserProcesses=no\n",
            },
            None,
        ),
    ],
)
def test_who_keeps_a_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: int, files: dict[str, str], scope: Any
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    owned = tmp_path / f"run/user/{uid}"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(launcher, "HOST_ROOT", str(tmp_path))
    monkeypatch.setattr(launcher, "ME", uid)
    monkeypatch.setattr(launcher, "user_name", lambda uid: "toy")
    monkeypatch.setattr(launcher, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(launcher, "runtime_folder", lambda: str(owned) if owned.exists() else None)
    if scope is Refused:
        with pytest.raises(Refused) as refused:
            launcher.systemd_scope()
        assert "enable-linger" in refused.value.hint
    else:
        assert launcher.systemd_scope() == scope
