"""`python -m tuner.simhost`: a simulated GPU host that ends with its stdin."""

from __future__ import annotations

import sys


def main() -> int:
    """Entry point."""
    from tuner.simhost import host

    return host.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
