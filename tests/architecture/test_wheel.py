"""What is shipped: a file that is missing from the wheel is found by nobody who works in a clone."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = (".toml", ".tcss", ".json", ".md", ".typed", ".ndjson", ".gz")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = f"import os; os.chdir({str(ROOT)!r}); from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    (built,) = folder.glob("gputuner-*.whl")
    return built


def test_it_holds_every_module_and_data_file(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tuner").rglob("*")
        if path.is_file() and (path.suffix == ".py" or path.suffix in DATA) and "__pycache__" not in path.parts
    }
    presets = {f"tuner/_presets/{path.name}" for path in (ROOT / "presets").iterdir()}
    assert package | presets <= inside
    assert presets, "the presets' own README at least"
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_it_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.startswith("gputuner-")} == {"tuner"}


@pytest.mark.timeout(120)
def test_the_command_works_from_it_alone(wheel: Path, tmp_path: Path) -> None:
    """Installed where the clone cannot be seen; the packages it needs are lent by this environment."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv/bin/python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    zipfile.ZipFile(wheel).extractall(site)
    lent = next(path for path in sys.path if path.endswith("site-packages"))
    (Path(site) / "lent.pth").write_text(lent + "\n")
    code = (
        "from importlib.metadata import entry_points\n"
        "import tuner\n"
        f"assert tuner.__file__.startswith({site!r}), tuner.__file__\n"
        "(command,) = entry_points(group='console_scripts', name='gputuner')\n"
        "command.load()(['--version'])\n"
    )
    ran = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("gputuner ")
