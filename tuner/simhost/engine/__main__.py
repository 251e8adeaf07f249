"""`python -m tuner.simhost.engine SPEC LIFELINE`: one simulated server. Started by the host process only."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    """Run the server that the spec describes."""
    from tuner.simhost.engine.config import Spec, resolve
    from tuner.simhost.engine.server import Server

    spec = Spec.read(Path(sys.argv[1]).read_text())
    lifeline = int(sys.argv[2]) if len(sys.argv) > 2 else None
    if lifeline is not None:
        os.set_blocking(lifeline, False)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        config = resolve(spec)
    except SystemExit as error:
        sys.exit(error.code)
    Server(spec, config, 1, lifeline).run()


if __name__ == "__main__":
    main()
