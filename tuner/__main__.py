"""`python -m tuner`: the same as the installed command."""

from tuner.cli import main

main()
