"""Find the engines that tests/engine/build.sh built, in GPUTUNER_ENGINES or in its default folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read at import, before the suite sets a home of its own.
DEFAULT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gputuner-ci"


@pytest.fixture(scope="session")
def engines() -> Path:
    """Return the folder with an environment for each engine."""
    folder = Path(os.environ.get("GPUTUNER_ENGINES", DEFAULT))
    missing = [name for name in ("sglang", "vllm") if not (folder / name / ".complete").exists()]
    if missing:
        pytest.skip(f"no {' and '.join(missing)} in {folder}: run tests/engine/build.sh")
    return folder
