"""The files of the simulated host: its programs, its Python with SGLang and NVML, and the folder of its LLM."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.simhost import gpus, scenarios
from tuner.simhost.engine.models import MODELS
from tuner.simhost.tree import HOSTNAME

if TYPE_CHECKING:
    from tuner.simhost.world import World

_GUEST = Path(__file__).parent / "guest"
_NO_SYSTEMD = (
    'echo "System has not been booted with systemd as init system (PID 1). Can\'t operate." >&2\n'
    'echo "Failed to connect to bus: Host is down" >&2\nexit 1\n'
)
_MAIN = """\
import sys

sys.path.append({path!r})
from tuner.simhost.engine.launch import main

if __name__ == "__main__":
    main({world!r})
"""
_COMMAND = """\
#!{python}
import sys

if sys.argv[1:2] != ["serve"]:
    sys.exit("usage: sglang {{serve}} ...")
from runpy import run_module

run_module("sglang.launch_server", run_name="__main__")
"""


def install(world: World) -> None:
    """Write all of it."""
    folders = (world.run_dir, world.logs, world.site / "sglang", world.dir / "bin", world.venv / "bin", world.home)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    _python(world)
    _sglang(world)
    _script(world, "nvidia-smi", f'exec "{sys.executable}" -I -S "{world.dir}/bin/nvidia_smi.py" "$@"\n')
    _script(world, "hostname", f"echo {HOSTNAME}\n")
    # Those of the machine below would start and stop things there.
    for name in ("systemctl", "systemd-run", "loginctl"):
        _script(world, name, _NO_SYSTEMD)
    shutil.copyfile(_GUEST / "nvidia_smi.py", world.dir / "bin" / "nvidia_smi.py")
    for model in MODELS.values():
        folder = world.root / model.path.removeprefix("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(
            json.dumps({"architectures": [model.architecture], "model_type": model.kind, "torch_dtype": "bfloat16"})
        )
        index = {"metadata": {"total_size": model.weights_bytes}, "weight_map": {}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _python(world: World) -> None:
    """Make a real virtual environment on our own interpreter, which servers run on and which is this host's Python."""
    (world.venv / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\nversion = 3.12.3\n")
    for name in ("python", "python3"):
        (world.venv / "bin" / name).symlink_to(sys.executable)
    running = world.venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if not running.exists():
        running.symlink_to(world.site.parent)
    shutil.copyfile(_GUEST / "pynvml.py", world.site / "pynvml.py")
    # One file, so that NVML and nvidia-smi never differ.
    (world.site / "gpu-state.json").symlink_to(world.gpu_state)


def _sglang(world: World) -> None:
    """Install a package whose servers are simulated, and the file by which they find this host."""
    info = world.site / f"sglang-{world.args.version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {world.args.version}\n")
    package, facts = world.site / "sglang", world.dir / "simhost.json"
    (package / "__init__.py").write_text(f'__version__ = "{world.args.version}"\n')
    path = str(Path(__file__).resolve().parents[2])
    (package / "launch_server.py").write_text(_MAIN.format(path=path, world=str(facts)))
    command = world.venv / "bin" / "sglang"
    command.write_text(_COMMAND.format(python=world.python))
    command.chmod(0o755)
    life = world.run_dir / "life"
    os.mkfifo(life, 0o600)
    facts.write_text(
        json.dumps(
            {
                "run": str(world.run_dir),
                "life": str(life),
                "gpu_state": str(world.gpu_state),
                "version": world.args.version,
                "seed": world.args.seed,
                "speed": world.args.speed,
                "pace": scenarios.START_PACE * world.args.speed,
                "traffic": world.traffic,
                "capacity": gpus.CAPACITY_BYTES,
            }
        )
    )


def _script(world: World, name: str, body: str) -> None:
    path = world.dir / "bin" / name
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
