"""Where the engines are: built by tests/engine/build.sh, found in GPUTUNER_ENGINES or in its default place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read at import, before the suite's own home takes the place of the real one.
DEFAULT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gputuner-ci"


@pytest.fixture(scope="session")
def engines() -> Path:
    """The folder with one environment for each engine."""
    folder = Path(os.environ.get("GPUTUNER_ENGINES", DEFAULT))
    missing = [name for name in ("sglang", "vllm") if not (folder / name / ".complete").exists()]
    if missing:
        pytest.skip(f"no {' and '.join(missing)} in {folder}: run tests/engine/build.sh")
    return folder
