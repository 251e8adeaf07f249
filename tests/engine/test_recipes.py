"""Recipes of real servers: what is read off one, what it really has, and which flags it says it knows."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from tests.engine.servers import Sglang, Vllm
from tests.engine.watching import watching
from tuner.core.drift import drift
from tuner.core.helptext import flag_problems, parse_help
from tuner.core.recipes import lay_over, read_recipe
from tuner.domain.preflight import PreflightAsk
from tuner.domain.presets import Overlay
from tuner.domain.server import Phase
from tuner.engines import load_engines

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ENGINES = load_engines()
KINDS = {"sglang": Sglang, "vllm": Vllm}


@pytest.mark.parametrize("name", KINDS)
async def test_a_recipe_says_what_a_server_was_started_with(
    name: str, engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "3")
    monkeypatch.setenv("SSH_TTY", "/dev/pts/9")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os\nos.environ['NCCL_MAX_NCHANNELS'] = '2'\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    engine = ENGINES[name]
    async with watching() as watch:
        with KINDS[name](engines / name, tmp_path / "server.log") as server:
            await watch.server(server, lambda s: s.phase is Phase.READY, 180)
            helper = "multiprocessing.resource_tracker"
            seen = await watch.server(
                server, lambda s: any(helper in m.title and m.env for m in s.identity.members), 30
            )
            recipe = read_recipe(watch.session.state, seen, engine)

            # It starts the same server again.
            launch = lay_over(recipe, Overlay(), None, engine, server=seen)
            assert launch.argv == seen.identity.argv
            assert list(launch.argv[-len(server.argv()[1:]) :]) == server.argv()[1:]
            assert {**server.environment(), "HF_HUB_OFFLINE": "1"}.items() <= launch.env.items()
            assert "SSH_TTY" not in launch.env
            assert (recipe.port, recipe.cwd, recipe.log_dir) == (server.port, str(tmp_path), str(tmp_path))
            assert recipe.model == str(server.model)

            # What changed behind the scenes is seen, and by whom.
            ask = PreflightAsk(
                key=seen.identity.key, command=recipe.command, like=recipe.like, cwd=recipe.cwd, managers=False
            )
            facts = (await watch.session.preflight(ask)).facts
            found = {each.text: each for each in drift(seen, engine, facts["env_files"]["settings"])}
            channels = found["NCCL_MAX_NCHANNELS"]
            assert (channels.now, channels.changed) == ("2", False)
            assert f"{site}/sitecustomize.py:2 sets it to 2" in channels.drift
            if name == "sglang":
                assert found["CUDA_DEVICE_MAX_CONNECTIONS"].now == "8"
                assert "it began with 3, and its processes have 8" in found["CUDA_DEVICE_MAX_CONNECTIONS"].drift

        # The installed engine takes all of it, by its own help.
        help_text = await asyncio.to_thread(
            subprocess.run,
            [*recipe.command, *engine.behaviour().starting.help],
            env=os.environ | server.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        known = parse_help(help_text.stdout)
        assert len(known) > 300
        assert flag_problems(recipe.args, known, engine) == ()
        assert len(flag_problems(["--no-such-flag"], known, engine)) == 1
