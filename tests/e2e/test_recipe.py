"""A recipe read off the demo's server by the installed command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_headless import gputuner

pytestmark = pytest.mark.timeout(90)


def test_a_recipe_is_read_kept_shown_and_sound(_own_home: Path) -> None:
    ran = gputuner("recipe", "read", "demo", "--save", "mine", "--json")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    recipe = answer["recipe"]
    assert recipe["command"][1:] == ["-m", "sglang.launch_server"]
    assert recipe["args"][:4] == ["--model-path", "/models/kimi-k2.5-int4", "--tp", "8"]
    assert recipe["env"]["HF_TOKEN"] == "***"
    assert not [name for name in recipe["env"] if name.startswith(("SSH_", "XDG_"))]
    assert (recipe["engine"], recipe["version"]) == ("sglang", "0.5.23")
    assert recipe["args"][recipe["args"].index("--port") + 1] == str(recipe["port"])
    assert recipe["like"].startswith("server:")
    assert answer["drift"] == []
    saved = Path(answer["saved"])
    assert saved.is_relative_to(_own_home)
    assert "hf_" not in saved.read_text()

    checked = gputuner("recipe", "check", saved)
    assert (checked.returncode, checked.stdout) == (0, f"{saved}: fine\n")
    shown = json.loads(gputuner("recipe", "show", "mine", "--json").stdout)
    assert shown == recipe | {"name": "mine", "like": ""}

    again = gputuner("recipe", "read", "demo", "--save", "mine")
    assert again.returncode == 2
    assert "--replace" in again.stderr
    wrong = gputuner("recipe", "read", "demo", "--server", "1")
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1
