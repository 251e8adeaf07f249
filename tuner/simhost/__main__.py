"""`python -m tuner.simhost`: a simulated GPU host that ends when its stdin does."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tuner.simhost import scenarios
from tuner.simhost.engine.config import VERSIONS
from tuner.simhost.engine.faults import FAULTS


def options(argv: list[str]) -> argparse.Namespace:
    """Parse the command line of the host process."""
    parser = argparse.ArgumentParser(prog="python -m tuner.simhost", description="The simulated host behind the demo.")
    parser.add_argument("--scenario", choices=tuple(scenarios.SCENARIOS), default="healthy")
    parser.add_argument("--version", choices=VERSIONS, default="0.5.9")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, default=None, help="work here, and leave it")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--runtime", type=Path, default=None, help="folder in which to register as the running demo")
    parser.add_argument("--no-server", action="store_true")
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--gpu-mode", choices=("missing", "error", "hang"), default=None)
    parser.add_argument("--lost-gpu", type=int, action="append", default=[])
    parser.add_argument("--traffic", choices=("office", "solo", "none"), default=None, help="other users than usual")
    parser.add_argument("--flag", action="append", default=[], help="more words of the server's command line")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME[=NUMBER]",
                        help="faults of the scenario's server: " + ", ".join(FAULTS))  # fmt: skip
    parser.add_argument("--bystanders", action="store_true", help="also processes that look like a server of "
                        "the operator's and are none, among them bob's server on GPU 5")  # fmt: skip
    return parser.parse_args(argv)


def main() -> int:
    """Run a simulated host until stdin ends."""
    from tuner.simhost.world import World

    world = World(options(sys.argv[1:]))
    try:
        world.build()
        world.begin()
        # Slow imports come after the server was started: both must be ready for the first client.
        from tuner.simhost.host import serve

        serve(world)
    finally:
        world.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
