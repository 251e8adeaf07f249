"""Files that set variables behind the scenes: they are read and never run."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.probe.agent.env_files import in_pairs, in_pth, in_python, settings_in_files, startup_files

NAMES = st.sampled_from(["NCCL_ALGO", "NCCL_P2P_LEVEL", "CUDA_MODULE_LOADING", "SGLANG_X", "OMP_NUM_THREADS"])
VALUES = st.text(st.characters(codec="ascii", exclude_characters="\0\r"), max_size=8)


def statement(name: str, value: str, kind: int) -> str:
    return (
        f"os.environ[{name!r}] = {value!r}",
        f"os.environ.setdefault({name!r}, {value!r})",
        f"os.putenv({name!r}, {value!r})",
        f"os.environ.update({{{name!r}: {value!r}}})",
        f"os.environ.update({name}={value!r})",
        f"for k, v in {{{name!r}: {value!r}}}.items():\n    os.environ.setdefault(k, v)",
        f"for k, v in [({name!r}, {value!r})]:\n    os.environ[k] = v",
        f"table = {{{name!r}: {value!r}}}\nfor k, v in table.items():\n    os.environ[k] = v",
        f"os.environ |= dict({name}={value!r})",
        f"if True:\n    os.environ[{name!r}] = str({value!r})",
    )[kind]


@given(st.lists(st.tuples(NAMES, VALUES, st.integers(0, 9)), max_size=6))
def test_what_is_read_is_what_running_it_would_set(parts: list[tuple[str, str, int]]) -> None:
    source = "import os\n" + "\n".join(statement(*part) for part in parts)
    environ: dict[str, str] = {}
    fake = types.SimpleNamespace(environ=environ, putenv=environ.__setitem__)
    exec(source.removeprefix("import os\n"), {"os": fake})
    read: dict[str, str] = {}
    for _, name, value, how in in_python(source):
        if how == "assign" or name not in read:
            read[name] = value
    assert read == environ


def test_lines_are_told_where_they_stand() -> None:
    source = "import os\n\nos.environ['NCCL_P2P_LEVEL'] = 'SYS'\nos.environ.pop('NCCL_ALGO', None)\n"
    assert list(in_python(source)) == [(3, "NCCL_P2P_LEVEL", "SYS", "assign"), (4, "NCCL_ALGO", "", "unset")]


def test_a_value_that_is_computed_is_not_invented() -> None:
    assert list(in_python("os.environ['NCCL_ALGO'] = pick()")) == [(1, "NCCL_ALGO", "...", "assign")]


def test_source_that_this_python_cannot_parse_is_read_by_its_lines() -> None:
    source = "print 'old'\nos.environ['NCCL_ALGO'] = 'Ring'\n# os.environ['A_B'] = 'x'\nos.putenv('NCCL_PROTO', 'LL')\n"
    assert list(in_python(source)) == [(2, "NCCL_ALGO", "Ring", "assign"), (4, "NCCL_PROTO", "LL", "assign")]


@given(st.text(max_size=200))
def test_no_text_stops_the_reading(text: str) -> None:
    for read in (in_python, in_pth, lambda t: in_pairs(t, "default")):
        for line, name, _, _ in read(text):
            assert line >= 1
            assert name


def test_of_a_path_file_only_imports_are_run() -> None:
    text = "/opt/lib\nos.environ['A_B'] = '1'\nimport os; os.environ['NCCL_ALGO'] = 'Tree'\n"
    assert list(in_pth(text)) == [(3, "NCCL_ALGO", "Tree", "assign")]


def test_pairs() -> None:
    text = "# NCCL_ALGO=Tree\nNCCL_ALGO=Ring\nexport NCCL_PROTO='LL'\n\nnonsense\n"
    assert list(in_pairs(text, "login")) == [(2, "NCCL_ALGO", "Ring", "login"), (3, "NCCL_PROTO", "LL", "login")]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A virtual environment above a system's Python 3.11 that is a folder as well."""
    base, venv = tmp_path / "usr", tmp_path / "venv"
    (base / "lib/python3.11").mkdir(parents=True)
    (base / "bin").mkdir()
    (base / "bin/python3.11").write_text("")
    (venv / "lib/python3.11/site-packages").mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.11.9\n")
    (venv / "bin/python").symlink_to(base / "bin/python3.11")
    return venv / "bin/python"


def test_the_file_behind_the_scenes_is_found_with_line_and_value(python: Path, tmp_path: Path) -> None:
    # The case it was born from: /usr/lib/python3.12/sitecustomize.py sets NCCL variables for each Python of the host.
    custom = tmp_path / "usr/lib/python3.11/sitecustomize.py"
    custom.write_text("import os\nos.environ['NCCL_P2P_LEVEL'] = 'SYS'\nos.environ['EDITOR'] = 'vi'\n")
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_DEBUG=WARN\n")
    found = settings_in_files(str(python), {"NCCL_CONF_FILE": str(conf)}, str(tmp_path))
    assert [each for each in found if each["path"].startswith(str(tmp_path))] == [
        {"path": str(custom), "line": 2, "name": "NCCL_P2P_LEVEL", "value": "SYS", "how": "assign"},
        {"path": str(conf), "line": 1, "name": "NCCL_DEBUG", "value": "WARN", "how": "default"},
    ]


def test_only_the_first_sitecustomize_counts(python: Path, tmp_path: Path) -> None:
    site = tmp_path / "venv/lib/python3.11/site-packages"
    for folder in (site, tmp_path / "usr/lib/python3.11", tmp_path / "own"):
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text("")
    (site / "a.pth").write_text("import a\n")
    env = {"PYTHONPATH": f"relative:{tmp_path / 'own'}"}
    assert startup_files(str(python), env, str(tmp_path)) == [
        f"{site}/a.pth",
        f"{tmp_path}/own/sitecustomize.py",
    ]
    assert startup_files(str(python), {}, str(tmp_path))[-1] == f"{tmp_path}/usr/lib/python3.11/sitecustomize.py"


def test_a_user_customization_is_run_unless_a_virtual_environment_hides_it(python: Path, tmp_path: Path) -> None:
    user = tmp_path / ".local/lib/python3.11/site-packages"
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text("")
    base = str(tmp_path / "usr/bin/python3.11")
    assert startup_files(base, {}, str(tmp_path)) == [f"{user}/usercustomize.py"]
    assert startup_files(base, {"PYTHONNOUSERSITE": "1"}, str(tmp_path)) == []
    assert startup_files(str(python), {}, str(tmp_path)) == []


def test_secrets_in_such_files_stay_there(python: Path, tmp_path: Path) -> None:
    (tmp_path / "usr/lib/python3.11/sitecustomize.py").write_text(
        "import os\nos.environ['HF_TOKEN'] = 'hf_verysecret'\n"
    )
    found = settings_in_files(str(python), {}, str(tmp_path))
    assert [each["value"] for each in found if each["name"] == "HF_TOKEN"] == ["***"]
